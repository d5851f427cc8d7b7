//! Code mappings of processes, and the verdicts on samples in this code.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nearpage_files::{DELETED_SUFFIX, MappedFile, path_from_text, path_inside};
use rustc_hash::FxHashMap;

use crate::architecture::Decoder;
use crate::calibrate::SkidSide;
use crate::image::{AFTER_BYTES, BEFORE_BYTES, Image, Stretch};
use crate::instruction::Code;
use crate::judge::Judge;
use crate::page_nodes::with_memory;
use crate::verdict::{Undecoded, Verdict};

/// Source of a mapping's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A file, with its build-id (empty if unknown).
    File { path: Rc<str>, build_id: Rc<[u8]> },
    /// Memory without a file: generated code, or the vdso.
    Memory,
}

#[derive(Clone, Debug)]
struct CodeMap {
    end: u64,
    file_offset: u64,
    origin: Origin,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct AddressSpace {
    maps: BTreeMap<u64, CodeMap>,
    verdicts: FxHashMap<u64, Rc<Verdict>>,
    /// Recent verdicts, by the lowest bits of the instruction pointer; empty before the first look-up.
    recent: Vec<Option<CachedVerdict>>,
}

/// Verdict on the samples at an instruction pointer.
#[derive(Clone, Debug)]
pub(crate) struct CachedVerdict {
    ip: u64,
    pub verdict: Rc<Verdict>,
    pub needs_thread_pointer: bool,
}

/// Size of the cache of recent verdicts: one place for each instruction of a typical loop.
const RECENT: usize = 256;

impl AddressSpace {
    /// The address space of a process that is forked from this one.
    pub fn forked(&self) -> Self {
        Self {
            maps: self.maps.clone(),
            ..Self::default()
        }
    }

    /// Enters a mapping over `address..address + length`; `origin` is given if the mapping is executable.
    pub fn map(&mut self, address: u64, length: u64, file_offset: u64, origin: Option<Origin>) {
        let end = address.saturating_add(length);
        let overlapping: Vec<u64> = self
            .maps
            .range(..end)
            .rev()
            .take_while(|(_, map)| map.end > address)
            .map(|(at, _)| *at)
            .collect();
        if !overlapping.is_empty() {
            self.verdicts.retain(|ip, _| !(address..end).contains(ip));
            self.recent.clear();
        }
        for begin in overlapping {
            let Some(map) = self.maps.remove(&begin) else {
                continue;
            };
            if end < map.end {
                let file_offset = map.file_offset.wrapping_add(end - begin);
                self.maps.insert(
                    end,
                    CodeMap {
                        file_offset,
                        ..map.clone()
                    },
                );
            }
            if begin < address {
                self.maps.insert(
                    begin,
                    CodeMap {
                        end: address,
                        ..map
                    },
                );
            }
        }
        if let Some(origin) = origin
            && address < end
        {
            self.maps.insert(
                address,
                CodeMap {
                    end,
                    file_offset,
                    origin,
                },
            );
        }
    }

    /// Verdict on samples at `ip` of process `pid`.
    #[inline]
    pub fn verdict(
        &mut self,
        pid: u32,
        ip: u64,
        compatible: bool,
        codes: &mut Codes,
    ) -> &CachedVerdict {
        let place = ip as usize % RECENT;
        if !matches!(self.recent.get(place), Some(Some(recent)) if recent.ip == ip) {
            self.look_up(pid, ip, compatible, codes);
        }
        match &self.recent[place] {
            Some(recent) => recent,
            None => unreachable!("it was just looked up"),
        }
    }

    #[cold]
    fn look_up(&mut self, pid: u32, ip: u64, compatible: bool, codes: &mut Codes) {
        let maps = &self.maps;
        let verdict = self.verdicts.entry(ip).or_insert_with(|| {
            let map = maps
                .range(..=ip)
                .next_back()
                .filter(|(_, map)| ip < map.end);
            Rc::new(codes.judge(pid, ip, map, if compatible { 32 } else { 64 }))
        });
        self.recent.resize(RECENT, None);
        self.recent[ip as usize % RECENT] = Some(CachedVerdict {
            ip,
            needs_thread_pointer: verdict.needs_thread_pointer(),
            verdict: Rc::clone(verdict),
        });
    }
}

/// Address spaces by position, and the position of each process.
#[derive(Default)]
pub(crate) struct AddressSpaces {
    all: Vec<AddressSpace>,
    of_process: FxHashMap<u32, u32>,
    /// Positions that ended processes have left.
    free: Vec<u32>,
}

impl AddressSpaces {
    /// Position of the address space of process `pid`; a new one is empty.
    pub fn position(&mut self, pid: u32) -> u32 {
        let Self {
            all,
            of_process,
            free,
        } = self;
        *of_process.entry(pid).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                all.push(AddressSpace::default());
                all.len() as u32 - 1
            })
        })
    }

    pub fn at(&mut self, position: u32) -> &mut AddressSpace {
        &mut self.all[position as usize]
    }

    pub fn of(&mut self, pid: u32) -> &mut AddressSpace {
        let position = self.position(pid);
        self.at(position)
    }

    /// Copies the address space of `parent` for the forked process `pid`.
    pub fn fork(&mut self, parent: u32, pid: u32) {
        let parent = self.of_process.get(&parent);
        let space = parent.map(|position| self.all[*position as usize].forked());
        *self.of(pid) = space.unwrap_or_default();
    }

    /// Forgets the address space of a process that ended or executes another program.
    pub fn remove(&mut self, pid: u32) {
        if let Some(position) = self.of_process.remove(&pid) {
            *self.at(position) = AddressSpace::default();
            self.free.push(position);
        }
    }
}

/// Path and build-id. Files that have no build-id and cannot be reached by path are also told apart by process and
/// address, as other files may have the same path.
type ImageKey = (Rc<str>, Rc<[u8]>, Option<(u32, u64)>);

pub(crate) struct Codes {
    side: SkidSide,
    judge: Judge<Decoder>,
    /// The build-id is part of the key, as a path may name different files in different mount namespaces.
    images: FxHashMap<ImageKey, Option<Image>>,
}

impl Codes {
    pub fn new(side: SkidSide) -> Self {
        Self {
            side,
            judge: Judge::default(),
            images: FxHashMap::default(),
        }
    }

    fn judge(&mut self, pid: u32, ip: u64, map: Option<(&u64, &CodeMap)>, bitness: u32) -> Verdict {
        let no_code = Verdict::Undecoded(Undecoded::NoCode);
        let Some((begin, map)) = map else {
            return no_code;
        };
        let in_memory = || {
            let from = ip.saturating_sub(BEFORE_BYTES).max(*begin);
            let bytes = read_memory(pid, from, map.end.min(ip.saturating_add(AFTER_BYTES)))?;
            Some((Stretch::around(from, bytes, ip, bitness).map(Rc::new), ip))
        };
        let found = match &map.origin {
            Origin::Memory => in_memory(),
            Origin::File { path, build_id } => {
                let at = map.file_offset.wrapping_add(ip - begin);
                match self.image(pid, *begin, path, build_id) {
                    Some(image) => Some((image.stretch(at), at)),
                    // The code of a missing file is still in memory while it is mapped.
                    None if mapped(pid, ip, path).is_some() => in_memory(),
                    None => None,
                }
            }
        };
        let Some((stretch, at)) = found else {
            return no_code;
        };
        let Some(stretch) = stretch else {
            return Verdict::Undecoded(Undecoded::Ambiguous);
        };
        let at = at - stretch.begin;
        let code = Code {
            address: ip.wrapping_sub(at),
            bytes: &stretch.bytes,
            bitness,
        };
        self.judge
            .judge(code, &stretch.flow, at as usize, self.side)
    }

    /// Opens a deleted module while its process lives, as nothing leads to the file afterwards.
    pub fn keep(&mut self, pid: u32, begin: u64, origin: &Origin) {
        if let Origin::File { path, build_id } = origin
            && path.ends_with(DELETED_SUFFIX)
            && !build_id.is_empty()
        {
            self.image(pid, begin, path, build_id);
        }
    }

    fn image(
        &mut self,
        pid: u32,
        begin: u64,
        path: &Rc<str>,
        build_id: &Rc<[u8]>,
    ) -> Option<&mut Image> {
        let is_shared = !build_id.is_empty() || !path.ends_with(DELETED_SUFFIX);
        let place = (!is_shared).then_some((pid, begin));
        let key = (Rc::clone(path), Rc::clone(build_id), place);
        let open = || {
            let same = |image: &Image| build_id.is_empty() || *image.build_id == **build_id;
            module_file(pid, begin, path, build_id, |path| {
                Image::open(path).filter(same)
            })
        };
        self.images.entry(key).or_insert_with(open).as_mut()
    }
}

/// File that a live process has mapped at an address; none if the mapping no longer has this path.
fn mapped(pid: u32, address: u64, path: &str) -> Option<MappedFile> {
    MappedFile::find(Path::new("/proc"), pid, address, &path_from_text(path))
}

/// Opens the file of the module that a process has mapped at `begin`, with `open`. Tries three files in order: the
/// path as the process sees it, which may be in another mount namespace; the path here, for ended processes; and the
/// mapped file, for deleted files. If the mapped module has a build-id, `open` must return none for files without it.
/// Otherwise the process's mappings tell another file of the name apart, and take as long to read as there are.
pub(crate) fn module_file<T>(
    pid: u32,
    begin: u64,
    path: &str,
    build_id: &[u8],
    open: impl Fn(&Path) -> Option<T>,
) -> Option<T> {
    let path = path_from_text(path);
    let proc_root = Path::new("/proc");
    let mapped = LazyCell::new(|| MappedFile::find(proc_root, pid, begin, &path));
    let is_replaced = || mapped.as_ref().is_some_and(MappedFile::is_deleted);
    let by_name = || {
        let inside = open(&path_inside(proc_root, pid, &path));
        inside.or_else(|| open(&path))
    };
    let may_have_name = !build_id.is_empty() || !is_replaced();
    let by_name = may_have_name.then(by_name).flatten();
    by_name.or_else(|| {
        let file = mapped.as_ref()?.open().ok()?;
        open(&PathBuf::from(format!(
            "/proc/self/fd/{}",
            file.as_raw_fd()
        )))
    })
}

/// Copies memory of a live process; `None` if the process has ended.
pub(crate) fn read_memory(pid: u32, begin: u64, end: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0u8; usize::try_from(end.checked_sub(begin)?).ok()?];
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: begin as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    let copied = with_memory(pid, |thread| {
        let thread = thread as libc::pid_t;
        // SAFETY: `local` is our own buffer of this length; `remote` is only read, and only in the other process.
        let copied = unsafe { libc::process_vm_readv(thread, &local, 1, &remote, 1, 0) };
        usize::try_from(copied).map_err(|_| io::Error::last_os_error())
    });
    bytes.truncate(copied.ok()?);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_its_own_space_until_it_is_gone() {
        let mut spaces = AddressSpaces::default();
        spaces.of(7).map(0x1000, 0x1000, 0, Some(Origin::Memory));
        spaces.fork(7, 8);
        spaces.of(8).map(0x5000, 0x1000, 0, Some(Origin::Memory));
        spaces.fork(9, 10);
        let mut maps = |pid| spaces.of(pid).maps.len();
        assert_eq!([maps(7), maps(8), maps(10)], [1, 2, 0]);
        let position = spaces.position(7);
        spaces.remove(7);
        spaces.remove(7);
        // The position is reused for another process, with an empty address space.
        assert_eq!(spaces.position(11), position);
        assert_ne!(spaces.position(12), position);
        assert_eq!((spaces.of(11).maps.len(), spaces.of(8).maps.len()), (0, 2));
    }

    #[test]
    fn mappings_replace_what_they_cover() {
        let mut space = AddressSpace::default();
        let origin = |name: &str| {
            Some(Origin::File {
                path: name.into(),
                build_id: [].into(),
            })
        };
        space.map(0x1000, 0x4000, 0, origin("a"));
        space.map(0x2000, 0x1000, 0x7000, origin("b"));
        space.map(0x4800, 0x1000, 0, None);
        let maps: Vec<_> = space
            .maps
            .iter()
            .map(|(at, map)| (*at, map.end, map.file_offset))
            .collect();
        assert_eq!(
            maps,
            [
                (0x1000, 0x2000, 0),
                (0x2000, 0x3000, 0x7000),
                (0x3000, 0x4800, 0x2000)
            ]
        );
        space.map(0, u64::MAX, 0, None);
        assert!(space.maps.is_empty());
    }
}
