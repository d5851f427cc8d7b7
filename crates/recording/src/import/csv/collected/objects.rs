//! Objects, told apart by process, name, and address where the file has their addresses.

use rustc_hash::FxHashMap;

use super::super::BadLine;
use super::super::row::Row;
use super::threads::Threads;
use crate::{CallSite, CallSiteId, Frame, ModuleId, Object, ObjectKind, Tables};

/// More objects are refused.
const OBJECTS_MAX: usize = 1 << 20;
/// Objects without an address are laid out from here on, where Linux maps nothing by itself.
const MADE_UP: u64 = 0x2000_0000_0000;
const PAGE_BYTES: u64 = 4096;
/// Accesses in user mode have lower addresses.
const ADDRESS_MAX: u64 = 1 << 63;
/// Suffixes that `report` and `export --to csv` add to the name of a heap object's call site.
const ALLOCATED: [&str; 2] = [" (malloc)", " (mmap)"];

/// How an object's place is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// The file has the object's address.
    At(u64),
    /// The file has the addresses of accesses; the object spans them.
    Around,
    /// The file has neither the object's address nor those of accesses.
    MadeUp,
}

#[derive(Default)]
pub(super) struct Objects {
    numbers: FxHashMap<(u32, Option<u64>), FxHashMap<String, usize>>,
    seen: Vec<CollectedObject>,
}

struct CollectedObject {
    pid: u32,
    name: String,
    kind: ObjectKind,
    place: Place,
    /// First address; set by `make_up` for made-up places.
    address: u64,
    /// End of the last byte accessed; an offset in the object until its place is made up.
    end: u64,
    /// Size that the file states.
    size_bytes: Option<u64>,
    /// Times of the first and last access.
    times: (u64, u64),
    /// Number of the thread that used the object first.
    thread: usize,
    /// Number of the first line that names the object.
    line: u64,
}

/// Place of a row's access and object.
struct RowPlace {
    place: Place,
    /// Address of the access; an offset in the object if the place is made up.
    address: u64,
}

fn row_place(row: &Row<'_>) -> Result<RowPlace, String> {
    let outside = || "the address lies before its object".to_owned();
    let at = |base: u64, address: u64| RowPlace {
        place: Place::At(base),
        address,
    };
    Ok(match (row.address, row.object_address, row.object_offset) {
        (Some(address), Some(base), _) if address < base => return Err(outside()),
        (Some(address), Some(base), _) => at(base, address),
        (Some(address), None, Some(offset)) => {
            at(address.checked_sub(offset).ok_or_else(outside)?, address)
        }
        (Some(address), None, None) => RowPlace {
            place: Place::Around,
            address,
        },
        (None, Some(base), offset) => at(base, base.saturating_add(offset.unwrap_or(0))),
        (None, None, offset) => RowPlace {
            place: Place::MadeUp,
            address: offset.unwrap_or(0),
        },
    })
}

impl Objects {
    pub fn add(&mut self, row: &Row<'_>, thread: usize, line: u64) -> Result<(), String> {
        let RowPlace { place, address } = row_place(row)?;
        let end = address.saturating_add(row.bytes.max(1));
        if end >= ADDRESS_MAX || row.object_bytes.is_some_and(|bytes| bytes >= ADDRESS_MAX) {
            return Err("an address, an offset or a size beyond the address space".to_owned());
        }
        if row.object.is_empty() {
            return Ok(());
        }
        let base = match place {
            Place::At(base) => Some(base),
            Place::Around | Place::MadeUp => None,
        };
        let next = self.seen.len();
        let names = self.numbers.entry((row.pid, base)).or_default();
        let number = match names.get(row.object) {
            Some(number) => *number,
            None if next == OBJECTS_MAX => return Err(format!("more than {OBJECTS_MAX} objects")),
            None => {
                names.insert(row.object.to_owned(), next);
                self.seen.push(CollectedObject {
                    pid: row.pid,
                    name: row.object.to_owned(),
                    kind: row.object_kind,
                    place,
                    address: base.unwrap_or(address),
                    end,
                    size_bytes: None,
                    times: (row.time_ns, row.time_ns),
                    thread,
                    line,
                });
                next
            }
        };
        let object = &mut self.seen[number];
        if object.place != place {
            return Err(format!(
                "the object {:?} has an address here or on line {}, and not on the other: give object_address on both",
                row.object, object.line
            ));
        }
        object.address = object.address.min(base.unwrap_or(address));
        object.end = object.end.max(end);
        object.size_bytes = object.size_bytes.max(row.object_bytes);
        let (first, last) = object.times;
        object.times = (first.min(row.time_ns), last.max(row.time_ns));
        Ok(())
    }

    /// Lays out objects without an address, and fills the tables.
    pub fn finish(
        &mut self,
        threads: &Threads,
        module: ModuleId,
        tables: &mut Tables,
        notes: &mut Vec<String>,
    ) -> Result<(), BadLine> {
        let made_up = self.make_up()?;
        if made_up > 0 {
            notes.push(format!(
                "{} without an address in the file: their places are made up, one after another",
                nearpage_amount::counted(made_up, "object")
            ));
        }
        let shared = self.overlapping()?;
        let mut sites: FxHashMap<String, (CallSiteId, u32)> = FxHashMap::default();
        for (object, shares) in self.seen.iter().zip(shared) {
            let site = (object.kind == ObjectKind::Heap).then(|| {
                let next = CallSiteId(tables.call_sites.len() as u32);
                let frame = allocated_in(&object.name, module);
                let name = frame.function.clone();
                let (site, objects) = sites.entry(name).or_insert_with(|| {
                    let frames = vec![frame];
                    tables.call_sites.push(CallSite { frames });
                    (next, 0)
                });
                *objects += 1;
                (*site, *objects - 1)
            });
            // Where objects share a place at different times, each lives from its first to its last access.
            let (born_ns, died_ns) = match shares {
                true => (object.times.0, object.times.1.saturating_add(1)),
                false => (0, u64::MAX),
            };
            let has_thread = matches!(object.kind, ObjectKind::Stack | ObjectKind::Tls);
            tables.objects.push(Object {
                kind: object.kind,
                name: match site {
                    Some(_) => String::new(),
                    None => object.name.clone(),
                },
                pid: object.pid,
                address: object.address,
                size_bytes: object.bytes(),
                born_ns,
                died_ns,
                weight: 1.0,
                call_site: site.map(|(site, _)| site),
                thread: has_thread.then(|| threads.position(object.thread)),
                order: site.map_or(0, |(_, order)| order),
                module: None,
                module_offset: 0,
                same_memory_as: None,
            });
        }
        Ok(())
    }

    /// Lays out objects without an address, with an unused page after each. Returns their number.
    fn make_up(&mut self) -> Result<u64, BadLine> {
        let mut next = MADE_UP;
        let mut count = 0;
        let unknown = |object: &&mut CollectedObject| object.place == Place::MadeUp;
        for object in self.seen.iter_mut().filter(unknown) {
            let size_bytes = object.size_bytes.unwrap_or(0).max(object.end);
            object.address = next;
            object.end = next.saturating_add(size_bytes);
            next = object.end.saturating_add(2 * PAGE_BYTES) / PAGE_BYTES * PAGE_BYTES;
            if next >= ADDRESS_MAX {
                return Err(
                    object.bad("the objects up to this one are larger than the address space")
                );
            }
            count += 1;
        }
        Ok(count)
    }

    /// Tells for each object whether it overlaps others.
    fn overlapping(&self) -> Result<Vec<bool>, BadLine> {
        let mut sorted: Vec<usize> = (0..self.seen.len()).collect();
        sorted.sort_by_key(|&number| (self.seen[number].pid, self.seen[number].address));
        let mut shares = vec![false; self.seen.len()];
        let mut widest: Option<usize> = None;
        for number in sorted {
            let object = &self.seen[number];
            let Some(end) = object
                .address
                .checked_add(object.bytes())
                .filter(|end| *end < ADDRESS_MAX)
            else {
                return Err(object.bad("the object ends beyond the address space"));
            };
            if let Some(before) = widest {
                let other = &self.seen[before];
                if other.pid == object.pid && object.address < other.address + other.bytes() {
                    let is_told = |object: &CollectedObject| matches!(object.place, Place::At(_));
                    if !is_told(object) || !is_told(other) {
                        return Err(object.bad(&format!(
                            "the object {:?} lies where {:?} does: tell them apart by object_address",
                            object.name, other.name
                        )));
                    }
                    (shares[number], shares[before]) = (true, true);
                    if end <= other.address + other.bytes() {
                        continue;
                    }
                }
            }
            widest = Some(number);
        }
        Ok(shares)
    }

    /// The address of a row's access.
    pub fn address(&self, row: &Row<'_>) -> u64 {
        match row_place(row) {
            Ok(RowPlace {
                place: Place::MadeUp,
                address,
            }) => {
                let names = self.numbers.get(&(row.pid, None));
                let number = names.and_then(|names| names.get(row.object));
                number.map_or(0, |&number| self.seen[number].address) + address
            }
            Ok(RowPlace { address, .. }) => address,
            Err(_) => 0,
        }
    }
}

impl CollectedObject {
    fn bytes(&self) -> u64 {
        let accessed = self.end - self.address;
        match self.place {
            Place::MadeUp => accessed,
            _ => self.size_bytes.unwrap_or(0).max(accessed),
        }
    }

    fn bad(&self, cause: &str) -> BadLine {
        BadLine {
            number: self.line,
            cause: cause.to_owned(),
        }
    }
}

/// Frame that names a heap object's call site.
fn allocated_in(name: &str, module: ModuleId) -> Frame {
    let plain = ALLOCATED
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix));
    Frame {
        function: plain.unwrap_or(name).to_owned(),
        ..Frame::unknown(module, 0)
    }
}
