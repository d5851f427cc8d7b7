//! Which object an access belongs to, one by one: for those who hand accesses on with their names
//! rather than add them up.

use nearpage_recording::{Object, ObjectId, ObjectKind};

use crate::groups::Groups;
use crate::lifetimes::{Cursor, Lifetimes};
use crate::{Affinity, ObjectGroup, OperationTotals, Pattern};

/// The objects of a recording, to be searched by address and time.
#[derive(Debug)]
pub struct ObjectIndex {
    pub(crate) groups: Groups,
    pub(crate) lifetimes: Lifetimes,
}

/// An object that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundObject {
    /// Its number.
    pub object: ObjectId,
    /// What it is.
    pub kind: ObjectKind,
    /// Position of its group in [`ObjectIndex::groups`].
    pub group: usize,
}

impl ObjectIndex {
    /// Indexes `objects`.
    pub fn new(objects: &[Object]) -> Self {
        Self::with(Groups::new(objects), objects)
    }

    /// Indexes `objects`, in the groups that an attribution begins with: a few large objects of one call site have each
    /// their own.
    pub fn for_attribution(objects: &[Object]) -> Self {
        Self::with(Groups::with_siblings(objects), objects)
    }

    fn with(groups: Groups, objects: &[Object]) -> Self {
        let lifetimes = Lifetimes::new(objects, &groups.of_object);
        Self { groups, lifetimes }
    }

    /// The rows that a report has of these objects, by name and size alone.
    pub fn groups(&self) -> Vec<ObjectGroup> {
        let groups = self.groups.groups.iter();
        groups
            .map(|group| ObjectGroup {
                kind: group.kind,
                name: group.name.clone(),
                size_bytes: group.size_bytes,
                instances: group.instances.round() as u64,
                sibling: None,
                samples: vec![ObjectId(group.first)],
                loads: OperationTotals::default(),
                stores: OperationTotals::default(),
                threads: Vec::new(),
                hot: Vec::new(),
                affinity: Affinity::default(),
                first_touches: Vec::new(),
                uses: Vec::new(),
                pattern: Pattern::Unknown,
            })
            .collect()
    }

    /// Position of an object's group in [`ObjectIndex::groups`].
    pub fn group_of(&self, object: ObjectId) -> Option<usize> {
        let group = self.groups.of_object.get(object.0 as usize)?;
        Some(*group as usize)
    }

    /// Begins to search; quick where times come nearly in order.
    pub fn search(&self) -> Search<'_> {
        Search {
            lifetimes: &self.lifetimes,
            cursor: Cursor::new(&self.lifetimes),
        }
    }
}

/// Finds objects, one after the other.
#[derive(Debug)]
pub struct Search<'a> {
    lifetimes: &'a Lifetimes,
    cursor: Cursor<'a>,
}

impl Search<'_> {
    /// The object of process `pid` that `address` belonged to at `time_ns`.
    pub fn find(&mut self, pid: u32, time_ns: u64, address: u64) -> Option<FoundObject> {
        let process = self.lifetimes.process(pid)?;
        let place = self.cursor.first_looked_up(process).seek(address);
        let (kind, range) = self.cursor.find(process, time_ns, address, place)?;
        Some(FoundObject {
            object: ObjectId(range.object),
            kind,
            group: range.group as usize,
        })
    }
}
