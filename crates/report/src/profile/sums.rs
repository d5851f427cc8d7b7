//! Sums of the accesses of one instruction with equal labels, for formats without individual accesses.

use nearpage_machine::NodeId;
use nearpage_recording::{AccessKind, Level, Recording, ThreadIndex};
use rustc_hash::FxHashMap;

use super::labels::{Code, Labelled, access_name, level_name, node_name};

/// Properties that the accesses of a sample have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Number of the instruction in [`Sums::codes`].
    pub code: u32,
    object: u32,
    object_kind: &'static str,
    pub node: Option<NodeId>,
    pub cpu_node: Option<NodeId>,
    pub level: Level,
    pub kind: AccessKind,
    pub thread: ThreadIndex,
}

/// Sum of the accesses of a sample.
pub(super) struct Sum {
    pub key: Key,
    pub accesses: f64,
    pub cost_ns: f64,
}

/// Sums of all accesses.
#[derive(Default)]
pub(super) struct Sums {
    /// Samples in order of appearance.
    pub rows: Vec<Sum>,
    by_key: FxHashMap<Key, usize>,
    /// Instructions, by number.
    pub codes: FxHashMap<u32, Code>,
    objects: Vec<String>,
    object_numbers: FxHashMap<String, u32>,
}

impl Sums {
    pub fn add(&mut self, labelled: &Labelled<'_>) {
        let access = &labelled.access;
        let object = match self.object_numbers.get(labelled.object) {
            Some(number) => *number,
            None => {
                let number = self.objects.len() as u32;
                self.objects.push(labelled.object.to_owned());
                self.object_numbers
                    .insert(labelled.object.to_owned(), number);
                number
            }
        };
        let key = Key {
            code: labelled.code_number,
            object,
            object_kind: labelled.object_kind,
            node: labelled.node,
            cpu_node: labelled.cpu_node,
            level: access.level,
            kind: access.kind,
            thread: access.thread,
        };
        let codes = &mut self.codes;
        codes
            .entry(labelled.code_number)
            .or_insert_with(|| labelled.code.clone());
        let next = self.rows.len();
        let at = *self.by_key.entry(key).or_insert(next);
        if at == next {
            self.rows.push(Sum {
                key,
                accesses: 0.0,
                cost_ns: 0.0,
            });
        }
        self.rows[at].accesses += f64::from(access.weight);
        self.rows[at].cost_ns += f64::from(access.cost_ns);
    }

    /// Name and kind of a sample's object.
    pub fn object(&self, key: &Key) -> (&str, &'static str) {
        (&self.objects[key.object as usize], key.object_kind)
    }

    /// Labels of a sample: names and values. The thread's value is its name and number.
    pub fn labels(&self, key: &Key, recording: &Recording) -> [(&'static str, String); 7] {
        let thread = recording.tables.threads.get(key.thread.0 as usize);
        let thread = thread.map_or_else(
            || "unknown".to_owned(),
            |thread| format!("{} {}", thread.name, thread.tid),
        );
        [
            ("object", self.objects[key.object as usize].clone()),
            ("object kind", key.object_kind.to_owned()),
            ("node", node_name(key.node)),
            ("CPU node", node_name(key.cpu_node)),
            ("level", level_name(key.level).to_owned()),
            ("kind", access_name(key.kind).to_owned()),
            ("thread", thread),
        ]
    }
}
