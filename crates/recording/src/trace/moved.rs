//! Gives memory that `mremap` moved or resized its earlier properties. The tracer records only the new place, with
//! unknown protection, right after the `Unmap` of the part that is left behind.

use std::collections::BTreeMap;

use super::file::{Mapped, Mapping};

/// Protection and flags of moved memory in a trace.
const UNKNOWN: u32 = u32::MAX;

/// `PROT_READ | PROT_WRITE` and `MAP_PRIVATE | MAP_ANONYMOUS`, for memory whose origin is not in the trace.
const ANONYMOUS: (u32, u32) = (3, 0x22);

/// Restores protection, flags and file of moved memory; `mapped` is in order of time.
pub(super) fn follow(mapped: &mut [Mapped]) {
    let mut live = Live::default();
    // Start of the last unmapped range, its time, and the position of its mapping.
    let mut left: Option<(u64, u64, usize)> = None;
    for at in 0..mapped.len() {
        let Mapped {
            virtual_time,
            range: (start, end),
            ..
        } = mapped[at];
        match &mapped[at].by {
            None => left = live.at(start).map(|what| (start, virtual_time, what)),
            Some(by) if by.protection == UNKNOWN => {
                let here = live.at(start).map(|what| (start, what));
                let there = left
                    .filter(|(_, when, _)| *when == virtual_time)
                    .map(|(begin, _, what)| (begin, what));
                // If memory shrank where it was, the unmapped part follows it directly.
                let smaller = there.is_some_and(|(begin, _)| begin == end);
                let before = if smaller {
                    here.or(there)
                } else {
                    there.or(here)
                };
                let by = before.map(|(begin, what)| of(&mapped[what], begin));
                mapped[at].by = Some(by.unwrap_or_else(|| Mapping {
                    protection: ANONYMOUS.0,
                    flags: ANONYMOUS.1,
                    ..Mapping::default()
                }));
            }
            Some(_) => {}
        }
        live.change(start, end, mapped[at].by.as_ref().map(|_| at));
    }
}

/// The part of a mapping from address `begin` on.
fn of(mapped: &Mapped, begin: u64) -> Mapping {
    let by = mapped.by.clone().unwrap_or_default();
    let offset = by.offset.saturating_add(begin - mapped.range.0);
    match by.path.starts_with('/') {
        true => Mapping { offset, ..by },
        // A moved part of the heap or of a stack is an ordinary mapping.
        false => Mapping {
            path: String::new(),
            ..by
        },
    }
}

/// Current mappings: start → end, and position among the changes.
#[derive(Default)]
struct Live(BTreeMap<u64, (u64, usize)>);

impl Live {
    fn at(&self, address: u64) -> Option<usize> {
        let (_, &(end, what)) = self.0.range(..=address).next_back()?;
        (address < end).then_some(what)
    }

    fn change(&mut self, start: u64, end: u64, what: Option<usize>) {
        if start >= end {
            return;
        }
        let before = self.0.range(..start).next_back();
        if let Some((&begin, &(until, old))) = before
            && until > start
        {
            self.0.insert(begin, (start, old));
            if until > end {
                self.0.insert(end, (until, old));
            }
        }
        while let Some((&begin, &(until, old))) = self.0.range(start..end).next() {
            self.0.remove(&begin);
            if until > end {
                self.0.insert(end, (until, old));
            }
        }
        if let Some(what) = what {
            self.0.insert(start, (end, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(virtual_time: u64, start: u64, end: u64, by: Option<(u32, &str)>) -> Mapped {
        Mapped {
            virtual_time,
            time_ns: virtual_time,
            range: (start, end),
            by: by.map(|(protection, path)| Mapping {
                protection,
                path: path.to_owned(),
                ..Mapping::default()
            }),
        }
    }

    /// Protection, offset and path of the last change.
    fn last(mut changes: Vec<Mapped>) -> (u32, u64, String) {
        follow(&mut changes);
        let by = changes.pop().and_then(|change| change.by).expect("mapped");
        (by.protection, by.offset, by.path)
    }

    #[test]
    fn moved_memory_is_what_it_was() {
        let file = Some((1, "/data"));
        let mapped = change(1, 0x1000, 0x9000, file);
        let moved = |time, start, end| change(time, start, end, Some((UNKNOWN, "")));
        let left = |time, start, end| change(time, start, end, None);
        let of_file = |offset| (1, offset, "/data".to_owned());
        // Grown in place.
        let grown = vec![mapped.clone(), moved(2, 0x1000, 0xa000)];
        assert_eq!(last(grown), of_file(0));
        // A part was moved, and then grown.
        let part = [
            mapped.clone(),
            left(2, 0x3000, 0x5000),
            moved(2, 0x2_0000, 0x2_4000),
        ];
        assert_eq!(last(part.to_vec()), of_file(0x2000));
        let again = [&part[..], &[moved(3, 0x2_0000, 0x2_8000)]].concat();
        assert_eq!(last(again), of_file(0x2000));
        // Shrunk in place; moved to the addresses just before.
        let smaller = vec![
            mapped.clone(),
            left(2, 0x5000, 0x9000),
            moved(2, 0x1000, 0x5000),
        ];
        assert_eq!(last(smaller), of_file(0));
        let before = vec![
            change(1, 0x1000, 0x9000, Some((3, "[heap]"))),
            left(2, 0x1000, 0x9000),
            moved(2, 0x0800, 0x1000),
        ];
        assert_eq!(last(before), (3, 0, String::new()));
        // The origin is unknown.
        let unknown = vec![left(1, 0x1000, 0x2000), moved(1, 0x5000, 0x6000)];
        assert_eq!(last(unknown), (3, 0, String::new()));
        let earlier = vec![mapped, left(2, 0x1000, 0x9000), moved(3, 0x5000, 0x6000)];
        assert_eq!(last(earlier), (3, 0, String::new()));
    }

    #[test]
    fn mappings_are_cut_by_later_mappings() {
        let mut live = Live::default();
        live.change(10, 20, Some(0));
        live.change(12, 14, Some(1));
        live.change(13, 25, Some(2));
        let found: Vec<_> = (9..26).map(|address| live.at(address)).collect();
        let expected = [
            vec![None],
            vec![Some(0); 2],
            vec![Some(1)],
            vec![Some(2); 12],
            vec![None],
        ];
        assert_eq!(found, expected.concat());
        live.change(0, 100, None);
        assert!(live.0.is_empty());
    }
}
