//! Finds the objects of single accesses, for callers that pass accesses on instead of adding them up.

use nearpage_recording::{Object, ObjectId, ObjectKind};

use crate::groups::Groups;
use crate::lifetimes::{Cursor, Lifetimes};
use crate::{Affinity, ObjectGroup, OperationTotals, Pattern};

/// Index of a recording's objects by address and time.
#[derive(Debug)]
pub struct ObjectIndex {
    pub(crate) groups: Groups,
    pub(crate) lifetimes: Lifetimes,
}

/// The object that an access belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundObject {
    /// Number of the object.
    pub object: ObjectId,
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Position of the object's group in [`ObjectIndex::groups`].
    pub group: usize,
}

impl ObjectIndex {
    /// Indexes `objects`.
    pub fn new(objects: &[Object]) -> Self {
        Self::with(Groups::new(objects), objects)
    }

    /// Indexes `objects` with the groups of an attribution: each of a few large objects of one call site has its own
    /// group.
    pub fn for_attribution(objects: &[Object]) -> Self {
        Self::with(Groups::with_siblings(objects), objects)
    }

    fn with(groups: Groups, objects: &[Object]) -> Self {
        let lifetimes = Lifetimes::new(objects, &groups.of_object);
        Self { groups, lifetimes }
    }

    /// Groups by name and size, without accesses.
    pub fn groups(&self) -> Vec<ObjectGroup> {
        let groups = self.groups.groups.iter();
        groups
            .map(|group| ObjectGroup {
                kind: group.kind,
                name: group.name.clone(),
                size_bytes: group.size_bytes,
                instances: group.instances.round() as u64,
                sibling: None,
                is_shared_memory: group.is_shared_memory,
                listed_instances: vec![ObjectId(group.first)],
                loads: OperationTotals::default(),
                stores: OperationTotals::default(),
                threads: Vec::new(),
                hot: Vec::new(),
                affinity: Affinity::default(),
                first_touches: Vec::new(),
                touchers: Vec::new(),
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

    /// Starts a search, which is fast if times come nearly in order.
    pub fn search(&self) -> Search<'_> {
        Search {
            lifetimes: &self.lifetimes,
            cursor: Cursor::new(&self.lifetimes),
        }
    }
}

/// Finds the objects of accesses, one access at a time.
#[derive(Debug)]
pub struct Search<'a> {
    lifetimes: &'a Lifetimes,
    cursor: Cursor<'a>,
}

impl Search<'_> {
    /// The object of process `pid` at `address` and `time_ns`.
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
