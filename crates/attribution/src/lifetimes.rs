//! Finds the object to which an address belonged at a time.
//!
//! An object occupies a rectangle in addresses and time: heap memory is reused, so an address alone does not identify
//! an object. [`Lifetimes`] keeps births and deaths in order of time. A [`Cursor`] moves along them in either
//! direction and holds the set of live objects. Accesses come nearly in order of time, so the cursor moves little and
//! needs memory for the live objects only.

use std::{cmp::Reverse, collections::BinaryHeap};

use nearpage_recording::{Object, ObjectKind};
use rustc_hash::FxHashMap;

use crate::live::{LiveRanges, Range, SearchPosition};

/// Order in which kinds of objects are searched: allocations before the areas that contain them, thread-local storage
/// before the stack mapping that contains it, and the allocator's memory last.
const PRECEDENCE: [ObjectKind; KINDS] = [
    ObjectKind::Heap,
    ObjectKind::Tls,
    ObjectKind::Stack,
    ObjectKind::Static,
    ObjectKind::Code,
    ObjectKind::Mapping,
    ObjectKind::HeapArea,
];
const KINDS: usize = 7;

fn precedence(kind: ObjectKind) -> usize {
    PRECEDENCE
        .iter()
        .position(|&other| other == kind)
        .expect("every kind has its place")
}

#[derive(Clone, Copy, Debug)]
struct Change {
    time_ns: u64,
    span: u32,
    birth: bool,
}

/// A range with the time of its birth and death.
#[derive(Clone, Copy, Debug)]
struct Span {
    kind: u8,
    range: Range,
    born_ns: u64,
    died_ns: u64,
}

#[derive(Debug)]
struct Process {
    spans: Vec<Span>,
    changes: Vec<Change>,
}

#[derive(Debug, Default)]
pub(crate) struct Lifetimes {
    processes: Vec<Process>,
    by_pid: FxHashMap<u32, u32>,
}

impl Lifetimes {
    /// Indexes `objects`; `group_of` has the group of each object. Where objects of one kind overlap in address and
    /// time, the younger object ends the older one: as a whole on the heap, within the overlap for other kinds. Of
    /// objects of the same age, the smaller lies on top.
    pub fn new(objects: &[Object], group_of: &[u32]) -> Lifetimes {
        let mut lifetimes = Lifetimes::default();
        let mut members: Vec<Vec<u32>> = Vec::new();
        for (id, object) in objects.iter().enumerate() {
            if object.size_bytes == 0 || object.died_ns <= object.born_ns {
                continue;
            }
            let next = members.len() as u32;
            let process = *lifetimes.by_pid.entry(object.pid).or_insert(next);
            if process == next {
                members.push(Vec::new());
            }
            members[process as usize].push(id as u32);
        }
        lifetimes.processes = members
            .into_iter()
            .map(|ids| Process::new(objects, group_of, ids))
            .collect();
        lifetimes
    }

    /// Number of processes, from which [`process`](Self::process) counts.
    pub fn process_count(&self) -> usize {
        self.processes.len()
    }

    pub fn process(&self, pid: u32) -> Option<u32> {
        self.by_pid.get(&pid).copied()
    }
}

impl Process {
    fn new(objects: &[Object], group_of: &[u32], mut ids: Vec<u32>) -> Process {
        ids.sort_unstable_by_key(|&id| {
            let object = &objects[id as usize];
            (
                object.born_ns,
                Reverse(object.size_bytes),
                object.address,
                id,
            )
        });
        let mut building = Building {
            spans: Vec::with_capacity(ids.len()),
            ..Building::default()
        };
        for id in ids {
            let object = &objects[id as usize];
            let range = Range {
                start: object.address,
                end: object.address.saturating_add(object.size_bytes),
                base: object.address,
                group: group_of[id as usize],
                object: object.same_memory_as.map_or(id, |same| same.0),
            };
            building.begin_object(object.kind, range, object.born_ns, object.died_ns);
        }
        let spans = building.spans;
        let mut changes = Vec::with_capacity(2 * spans.len());
        for (number, span) in spans
            .iter()
            .enumerate()
            .filter(|(_, span)| span.born_ns < span.died_ns)
        {
            let span_number = number as u32;
            changes.push(Change {
                time_ns: span.born_ns,
                span: span_number,
                birth: true,
            });
            if span.died_ns != u64::MAX {
                changes.push(Change {
                    time_ns: span.died_ns,
                    span: span_number,
                    birth: false,
                });
            }
        }
        changes.sort_unstable_by_key(|change| {
            (
                change.time_ns,
                change.birth,
                spans[change.span as usize].range.start,
                change.span,
            )
        });
        Process { spans, changes }
    }
}

/// Makes the lifetimes of one process's ranges disjoint. Objects come in order of birth.
#[derive(Default)]
struct Building {
    spans: Vec<Span>,
    /// Live ranges by kind. Here, `object` is the position in `spans`.
    live: [LiveRanges; KINDS],
    deaths: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Building {
    fn begin_object(&mut self, kind: ObjectKind, range: Range, born_ns: u64, died_ns: u64) {
        self.end_objects(born_ns);
        let place = precedence(kind);
        for older in self.live[place].overlapping(range.start, range.end) {
            self.live[place].remove(older.start);
            let span = &mut self.spans[older.object as usize];
            let (older, older_died_ns) =
                (span.range, std::mem::replace(&mut span.died_ns, born_ns));
            // The allocator does not hand out memory twice, so the older object had been freed as a whole.
            if kind != ObjectKind::Heap {
                for (start, end) in [(older.start, range.start), (range.end, older.end)] {
                    if start < end {
                        self.add(
                            place,
                            Range {
                                start,
                                end,
                                ..older
                            },
                            born_ns,
                            older_died_ns,
                        );
                    }
                }
            }
        }
        self.add(place, range, born_ns, died_ns);
    }

    fn add(&mut self, place: usize, range: Range, born_ns: u64, died_ns: u64) {
        let position = self.spans.len() as u32;
        self.spans.push(Span {
            kind: place as u8,
            range,
            born_ns,
            died_ns,
        });
        self.live[place].insert(Range {
            object: position,
            ..range
        });
        if died_ns != u64::MAX {
            self.deaths.push(Reverse((died_ns, position)));
        }
    }

    fn end_objects(&mut self, now_ns: u64) {
        while let Some(&Reverse((died_ns, position))) = self.deaths.peek()
            && died_ns <= now_ns
        {
            self.deaths.pop();
            let span = &self.spans[position as usize];
            // A younger object may have replaced the range before.
            if span.died_ns == died_ns {
                self.live[span.kind as usize].remove(span.range.start);
            }
        }
    }
}

/// The live objects of each process at the time of the last look-up.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    processes: Vec<ProcessCursor<'a>>,
}

#[derive(Debug)]
struct ProcessCursor<'a> {
    process: &'a Process,
    live: [LiveRanges; KINDS],
    /// Number of changes that have been applied.
    next: usize,
    /// Times between the last applied change (inclusive) and the next one (exclusive), for which the cursor need not
    /// move.
    steady_ns: (u64, u64),
}

impl<'a> Cursor<'a> {
    /// A cursor before all births.
    pub fn new(lifetimes: &'a Lifetimes) -> Cursor<'a> {
        let processes = lifetimes
            .processes
            .iter()
            .map(|process| ProcessCursor {
                process,
                live: Default::default(),
                next: 0,
                steady_ns: (1, 0),
            })
            .collect();
        Cursor { processes }
    }

    /// The live objects of the kind that is searched first. A search begun here is finished by [`find`](Self::find).
    #[inline]
    pub fn first_looked_up(&self, process: u32) -> &LiveRanges {
        &self.processes[process as usize].live[0]
    }

    /// The object of a process ([`Lifetimes::process`]) at an address and time, and its kind. `place` comes from a
    /// search in [`first_looked_up`](Self::first_looked_up); any other value is correct, too, but slower.
    #[inline]
    pub fn find(
        &mut self,
        process: u32,
        time_ns: u64,
        address: u64,
        place: SearchPosition,
    ) -> Option<(ObjectKind, &Range)> {
        let cursor = &mut self.processes[process as usize];
        if time_ns < cursor.steady_ns.0 || time_ns >= cursor.steady_ns.1 {
            cursor.move_to(time_ns);
        }
        let live = &cursor.live;
        if let Some(range) = live[0].find_from(address, place) {
            return Some((PRECEDENCE[0], range));
        }
        PRECEDENCE[1..]
            .iter()
            .zip(&live[1..])
            .find_map(|(&kind, live)| Some((kind, live.find(address)?)))
    }
}

impl ProcessCursor<'_> {
    fn move_to(&mut self, time_ns: u64) {
        let changes = &self.process.changes;
        while let Some(change) = changes
            .get(self.next)
            .filter(|change| change.time_ns <= time_ns)
        {
            let Span { kind, range, .. } = self.process.spans[change.span as usize];
            match change.birth {
                true => self.live[kind as usize].insert(range),
                false => self.live[kind as usize].remove(range.start),
            }
            self.next += 1;
        }
        while let Some(change) = self
            .next
            .checked_sub(1)
            .map(|last| changes[last])
            .filter(|last| last.time_ns > time_ns)
        {
            let Span { kind, range, .. } = self.process.spans[change.span as usize];
            match change.birth {
                true => self.live[kind as usize].remove(range.start),
                false => self.live[kind as usize].insert(range),
            }
            self.next -= 1;
        }
        let from = self
            .next
            .checked_sub(1)
            .map_or(0, |last| changes[last].time_ns);
        self.steady_ns = (
            from,
            changes
                .get(self.next)
                .map_or(u64::MAX, |change| change.time_ns),
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object(
        kind: ObjectKind,
        address: u64,
        size_bytes: u64,
        born_ns: u64,
        died_ns: u64,
    ) -> Object {
        Object {
            kind,
            name: String::new(),
            pid: 1,
            address,
            size_bytes,
            born_ns,
            died_ns,
            weight: 1.0,
            call_site: None,
            thread: None,
            order: 0,
            module: None,
            module_offset: 0,
            same_memory_as: None,
        }
    }

    fn find(objects: &[Object], time_ns: u64, address: u64) -> Option<u32> {
        let groups = vec![0; objects.len()];
        let lifetimes = Lifetimes::new(objects, &groups);
        Cursor::new(&lifetimes)
            .find(
                lifetimes.process(1)?,
                time_ns,
                address,
                SearchPosition::default(),
            )
            .map(|(_, range)| range.object)
    }

    #[test]
    fn memory_is_used_again() {
        let objects = [
            object(ObjectKind::Heap, 100, 50, 10, 20),
            object(ObjectKind::Heap, 120, 50, 30, u64::MAX),
        ];
        assert_eq!(find(&objects, 9, 120), None);
        assert_eq!(find(&objects, 10, 120), Some(0));
        assert_eq!(find(&objects, 20, 120), None);
        assert_eq!(find(&objects, 30, 120), Some(1));
        assert_eq!(find(&objects, 30, 110), None);
    }

    #[test]
    fn the_heap_lies_in_a_mapping_and_a_lost_free_ends_with_the_next_allocation() {
        let objects = [
            object(ObjectKind::HeapArea, 0, 1000, 0, u64::MAX),
            object(ObjectKind::Heap, 100, 50, 10, u64::MAX),
            object(ObjectKind::Heap, 140, 50, 20, u64::MAX),
        ];
        assert_eq!(find(&objects, 15, 100), Some(1));
        assert_eq!(find(&objects, 20, 100), Some(0));
        assert_eq!(find(&objects, 20, 145), Some(2));
    }

    #[test]
    fn a_mapping_over_another_replaces_its_middle() {
        let objects = [
            object(ObjectKind::Mapping, 0, 1000, 0, 90),
            object(ObjectKind::Mapping, 400, 100, 10, 50),
        ];
        for (time, expected) in [(5, [0, 0, 0]), (10, [0, 1, 0])] {
            assert_eq!(
                [0, 450, 999].map(|a| find(&objects, time, a).unwrap()),
                expected
            );
        }
        assert_eq!(
            [0, 450, 999].map(|a| find(&objects, 60, a)),
            [Some(0), None, Some(0)]
        );
        assert_eq!(find(&objects, 90, 0), None);
    }

    proptest! {
        /// The direction from which the cursor comes does not matter.
        #[test]
        fn moves_both_ways(
            specs in prop::collection::vec((0usize..7, 0u64..64, 1u64..20, 0u64..50, 1u64..50), 1..60),
            looks in prop::collection::vec((0u64..110, 0u64..90), 1..100),
        ) {
            let objects: Vec<Object> = specs.iter().map(|&(kind, address, size, born, life)| {
                object(PRECEDENCE[kind], address, size, born, born + life)
            }).collect();
            let groups = vec![0; objects.len()];
            let lifetimes = Lifetimes::new(&objects, &groups);
            let mut cursor = Cursor::new(&lifetimes);
            for (time_ns, address) in looks {
                let moved = cursor.find(0, time_ns, address, SearchPosition::default()).map(|(_, range)| range.object);
                let mut cursor = Cursor::new(&lifetimes);
                let fresh = cursor.find(0, time_ns, address, SearchPosition::default());
                let fresh = fresh.map(|(_, range)| range.object);
                prop_assert_eq!(moved, fresh);
                // An object that is found contains the address and is alive.
                if let Some(id) = moved {
                    let object = &objects[id as usize];
                    prop_assert!(object.address <= address && address < object.address + object.size_bytes);
                    prop_assert!(object.born_ns <= time_ns && time_ns < object.died_ns);
                }
            }
        }
    }
}
