//! Selects accesses to certain addresses or objects.
//!
//! The recorder filters the samples itself: no PMU can be restricted to data addresses, as Intel's PEBS, AMD's IBS and
//! Arm's SPE sample first and see the address afterwards.

use std::ops::Range;
use std::rc::Rc;

use nearpage_files::readable;
use nearpage_recording::elf::{ElfFile, Symbol, demangle};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::address_space::module_file;
use crate::calibrate::page_bytes;
use crate::processes::Mapping;

/// Accesses to keep; all if both lists are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessSelection {
    /// Addresses to keep, in any process.
    pub ranges: Vec<Range<u64>>,
    /// Names of static objects and mappings to keep: a symbol, `[heap]`, the path or name of a file, or the NAME of
    /// memory that a program named (`[anon:NAME]`).
    pub objects: Vec<String>,
}

impl AccessSelection {
    /// Whether all accesses are kept.
    pub fn all(&self) -> bool {
        self.ranges.is_empty() && self.objects.is_empty()
    }

    /// The selected name that matches the path of a mapping.
    fn mapping(&self, path: &str) -> Option<&String> {
        let file = path.starts_with('/') && !path.starts_with("//");
        let file = file.then(|| path.rsplit('/').next()).flatten();
        let memory = path.strip_prefix("[anon:");
        let memory = memory.and_then(|name| name.strip_suffix(']'));
        let names = [Some(path), file, memory];
        self.objects
            .iter()
            .find(|object| names.contains(&Some(object)))
    }

    fn symbol(&self, name: &str) -> Option<&String> {
        self.objects
            .iter()
            .find(|object| *object == name || **object == demangle(name))
    }
}

/// A file with its selected symbols.
type SymbolsOfFile = Option<Rc<(ElfFile, Vec<Symbol>)>>;

/// Selects accesses by address while objects come and go.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    selection: AccessSelection,
    /// Ranges of selected mappings and symbols, by process.
    mappings: FxHashMap<u32, Vec<Range<u64>>>,
    symbols: FxHashMap<u32, Vec<Range<u64>>>,
    /// Files by path and build-id.
    files: FxHashMap<(String, Vec<u8>), SymbolsOfFile>,
    /// Selected names that existed at some time.
    found: FxHashSet<String>,
}

impl Filter {
    pub fn new(selection: AccessSelection) -> Self {
        Self {
            selection,
            ..Self::default()
        }
    }

    #[inline]
    pub fn keeps(&self, pid: u32, address: u64) -> bool {
        self.selection.all() || self.keeps_of_some(pid, address)
    }

    fn keeps_of_some(&self, pid: u32, address: u64) -> bool {
        let holds = |ranges: &Vec<Range<u64>>| ranges.iter().any(|range| range.contains(&address));
        holds(&self.selection.ranges)
            || [&self.mappings, &self.symbols]
                .iter()
                .any(|all| all.get(&pid).is_some_and(holds))
    }

    /// A note on selected objects that never existed.
    pub fn never_found(&self) -> Option<String> {
        let objects = self.selection.objects.iter();
        let never_found = objects.filter(|object| !self.found.contains(*object));
        let never_found: Vec<String> = never_found
            .map(|object| format!("`{}`", readable(object)))
            .collect();
        (!never_found.is_empty()).then(|| {
            format!(
                "there was no static object or mapping called {}: --object takes symbols, files, `[heap]` and names of \
                 named memory",
                never_found.join(", ")
            )
        })
    }

    /// Enters a new mapping.
    pub fn map(&mut self, pid: u32, mapping: &Mapping, build_id: &[u8]) {
        if self.selection.objects.is_empty() {
            return;
        }
        let range = mapping.begin..mapping.end;
        self.unmap(pid, &range);
        if let Some(object) = self.selection.mapping(&mapping.path) {
            self.found.insert(object.clone());
            self.mappings.entry(pid).or_default().push(range);
        } else if mapping.protection & libc::PROT_EXEC as u32 != 0 && mapping.of_file() {
            self.map_module(pid, mapping, build_id);
        }
    }

    fn map_module(&mut self, pid: u32, mapping: &Mapping, build_id: &[u8]) {
        let key = (mapping.path.clone(), build_id.to_vec());
        let found = self.files.entry(key).or_insert_with(|| {
            let file = module_file(pid, mapping.begin, &mapping.path, build_id, |path| {
                let file = ElfFile::open(path).ok()?;
                let is_same = build_id.is_empty() || file.build_id_bytes() == build_id;
                is_same.then_some(file)
            })?;
            let mut symbols = file.data_symbols();
            symbols.retain(|symbol| {
                let object = self.selection.symbol(&symbol.name);
                self.found.extend(object.cloned());
                object.is_some()
            });
            (!symbols.is_empty()).then(|| Rc::new((file, symbols)))
        });
        let Some((file, symbols)) = found.as_deref() else {
            return;
        };
        let page_bytes = page_bytes() as u64;
        let Some(bias) = file.bias(mapping.begin, mapping.file_offset, true, page_bytes) else {
            return;
        };
        let ranges = symbols.iter().map(|symbol| {
            let begin = symbol.address.wrapping_add(bias);
            begin..begin.saturating_add(symbol.size_bytes)
        });
        let known = self.symbols.entry(pid).or_default();
        let new: Vec<_> = ranges.filter(|range| !known.contains(range)).collect();
        known.extend(new);
    }

    /// Removes the mappings in a range.
    pub fn unmap(&mut self, pid: u32, gone: &Range<u64>) {
        if let Some(ranges) = self.mappings.get_mut(&pid) {
            let rest = |range: &Range<u64>| {
                let before = range.start..range.end.min(gone.start);
                let after = range.start.max(gone.end)..range.end;
                [before, after].into_iter().filter(|part| !part.is_empty())
            };
            *ranges = ranges.iter().flat_map(rest).collect();
        }
    }

    /// Copies the ranges of a forked process's parent.
    pub fn fork(&mut self, parent_pid: u32, pid: u32) {
        for all in [&mut self.mappings, &mut self.symbols] {
            if let Some(ranges) = all.get(&parent_pid).cloned() {
                all.insert(pid, ranges);
            }
        }
    }

    /// Forgets a process's ranges.
    pub fn clear(&mut self, pid: u32) {
        self.mappings.remove(&pid);
        self.symbols.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn mapping(begin: u64, end: u64, path: &str) -> Mapping {
        Mapping {
            begin,
            end,
            file_offset: 0,
            protection: 3,
            shared: None,
            path: path.to_owned(),
        }
    }

    fn wanting(objects: &[&str]) -> Filter {
        Filter::new(AccessSelection {
            ranges: Vec::new(),
            objects: objects.iter().map(|name| (*name).to_owned()).collect(),
        })
    }

    #[test]
    fn ranges_hold_in_any_process() {
        let filter = Filter::new(AccessSelection {
            ranges: vec![0x1000..0x2000, 0x5000..0x5001],
            objects: Vec::new(),
        });
        for (address, kept) in [
            (0xfff, false),
            (0x1000, true),
            (0x1fff, true),
            (0x2000, false),
            (0x5000, true),
        ] {
            assert_eq!(filter.keeps(7, address), kept, "{address:#x}");
        }
        assert!(Filter::default().keeps(7, 0));
    }

    #[test]
    fn mappings_are_selected_by_name_while_they_exist() {
        let mut filter = wanting(&["[heap]", "data.bin", "big array"]);
        for (begin, path) in [
            (0x1000, "[heap]"),
            (0x3000, "/tmp/data.bin"),
            (0x5000, "[anon:big array]"),
            (0x7000, "//anon"),
        ] {
            filter.map(7, &mapping(begin, begin + 0x1000, path), &[]);
        }
        let kept =
            |filter: &Filter, pid| [0x1000, 0x3000, 0x5000, 0x7000].map(|at| filter.keeps(pid, at));
        assert_eq!(kept(&filter, 7), [true, true, true, false]);
        assert_eq!(kept(&filter, 8), [false; 4]);
        filter.fork(7, 8);
        filter.unmap(8, &(0x800..0x1800));
        assert!(!filter.keeps(8, 0x1000) && filter.keeps(8, 0x1800) && filter.keeps(7, 0x1000));
        filter.map(8, &mapping(0x3000, 0x4000, "//anon"), &[]);
        assert!(!filter.keeps(8, 0x3000));
        filter.clear(7);
        assert_eq!(kept(&filter, 7), [false; 4]);
        assert!(filter.keeps(8, 0x5000));
    }

    #[test]
    fn objects_that_never_were_there_are_named() {
        let mut filter = wanting(&["[heap]", "gird", "NEARPAGE_FILTER_TEST"]);
        filter.map(7, &mapping(0x1000, 0x2000, "[heap]"), &[]);
        filter.clear(7);
        let said = filter.never_found().unwrap();
        assert!(
            said.contains("`gird`, `NEARPAGE_FILTER_TEST`") && !said.contains("`[heap]`,"),
            "{said}"
        );
        assert_eq!(wanting(&[]).never_found(), None);
    }

    #[unsafe(no_mangle)]
    static NEARPAGE_FILTER_TEST: [u8; 64] = [7; 64];

    #[test]
    fn symbols_are_selected_at_their_modules_addresses() {
        let pid = std::process::id();
        let processes = crate::processes::Processes::new(Path::new("/proc"));
        let mut filter = wanting(&["NEARPAGE_FILTER_TEST"]);
        for mapping in processes.mappings(pid).unwrap() {
            filter.map(pid, &mapping, &[]);
        }
        let begin = std::hint::black_box(&raw const NEARPAGE_FILTER_TEST) as u64;
        let kept = [begin - 1, begin, begin + 63, begin + 64].map(|at| filter.keeps(pid, at));
        assert_eq!(kept, [false, true, true, false]);
        assert_eq!(filter.never_found(), None);
    }
}
