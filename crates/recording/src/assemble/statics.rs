//! Static objects and code of each process's modules.

use std::cell::OnceCell;

use rustc_hash::{FxHashMap, FxHashSet};

use super::modules::Modules;
use crate::elf::{ElfFile, Symbol, demangle};
use crate::{ModuleId, Object, ObjectKind};

/// Smallest page size. Loaders map whole pages.
const PAGE_BYTES: u64 = 4096;

/// Pages that were accessed, each with its process.
#[derive(Debug, Default)]
pub(super) struct AccessedPages(Vec<(u32, u64)>);

impl AccessedPages {
    /// Adds (process, address) pairs.
    pub(super) fn add(&mut self, accessed: impl Iterator<Item = (u32, u64)>) {
        self.0
            .extend(accessed.map(|(pid, address)| (pid, address / PAGE_BYTES)));
        self.0.sort_unstable();
        self.0.dedup();
    }

    /// Whether any page that overlaps the range was accessed.
    fn any(&self, pid: u32, address: u64, size_bytes: u64) -> bool {
        let last = address.saturating_add(size_bytes.max(1) - 1) / PAGE_BYTES;
        let first = (pid, address / PAGE_BYTES);
        let at = self.0.partition_point(|page| *page < first);
        self.0.get(at).is_some_and(|page| *page <= (pid, last))
    }
}

/// Appends the symbols, data sections and segments of every module of every process in `active`. These overlap: an
/// access belongs to the smallest object that contains it. With `accessed`, only objects on accessed pages are
/// appended, as the processes of a whole machine have millions of symbols.
pub(super) fn objects(
    modules: &Modules,
    active: &FxHashSet<u32>,
    accessed: Option<&AccessedPages>,
    objects: &mut Vec<Object>,
) {
    let mut instances: FxHashMap<(u32, ModuleId, u64), (u64, u64)> = FxHashMap::default();
    for mapping in modules
        .mappings()
        .iter()
        .filter(|mapping| active.contains(&mapping.pid))
    {
        let life = (mapping.born_ns, mapping.died_ns);
        // Several executable mappings of one module are one instance.
        let key = (mapping.pid, mapping.module, mapping.bias);
        let known = instances.entry(key).or_insert(life);
        *known = (known.0.min(life.0), known.1.max(life.1));
    }
    let mut instances: Vec<_> = instances.into_iter().collect();
    instances.sort_unstable_by_key(|((pid, module, bias), life)| (*module, *pid, *bias, *life));

    let mut pieces: Option<(ModuleId, Vec<Piece>)> = None;
    for ((pid, module, bias), (born_ns, died_ns)) in instances {
        let Some(file) = modules.file(module) else {
            continue;
        };
        let wanted = |piece: &Piece| {
            let address = piece.symbol.address.wrapping_add(bias);
            accessed.is_none_or(|accessed| accessed.any(pid, address, piece.symbol.size_bytes))
        };
        // Modules without accessed segments are skipped before their symbols are read.
        if !segments_of(file, "").iter().any(wanted) {
            continue;
        }
        if pieces.as_ref().is_none_or(|(of, _)| *of != module) {
            pieces = Some((module, pieces_of(file, modules.name(module))));
        }
        let Some((_, pieces)) = &pieces else { continue };
        let wanted = pieces.iter().filter(|piece| wanted(piece));
        objects.extend(wanted.map(|piece| Object {
            kind: piece.kind,
            name: piece.name().to_owned(),
            pid,
            address: piece.symbol.address.wrapping_add(bias),
            size_bytes: piece.symbol.size_bytes,
            born_ns,
            died_ns,
            weight: 1.0,
            call_site: None,
            thread: None,
            order: 0,
            module: Some(module),
            module_offset: piece.symbol.address,
            same_memory_as: None,
        }));
    }
}

struct Piece {
    kind: ObjectKind,
    symbol: Symbol,
    /// Demangled name, computed at first use.
    name: OnceCell<String>,
}

impl Piece {
    fn named(kind: ObjectKind, name: String, symbol: Symbol) -> Self {
        Self {
            kind,
            symbol,
            name: name.into(),
        }
    }

    fn name(&self) -> &str {
        self.name.get_or_init(|| demangle(&self.symbol.name))
    }
}

fn segments_of(file: &ElfFile, module: &str) -> Vec<Piece> {
    let segments = file.segments().into_iter().map(|segment| {
        let address = segment.address & !(PAGE_BYTES - 1);
        let size_bytes = (segment.address.saturating_add(segment.size_bytes) - address)
            .checked_next_multiple_of(PAGE_BYTES)
            .unwrap_or(u64::MAX);
        let kind = match segment.executable {
            true => ObjectKind::Code,
            false => ObjectKind::Static,
        };
        let symbol = Symbol {
            name: String::new(),
            address,
            size_bytes,
        };
        Piece::named(kind, module.to_owned(), symbol)
    });
    segments.collect()
}

fn pieces_of(file: &ElfFile, module: &str) -> Vec<Piece> {
    let mut pieces = segments_of(file, module);
    let sections = file.data_sections().into_iter().map(|section| {
        let name = format!("{module} {}", section.name);
        Piece::named(ObjectKind::Static, name, section)
    });
    pieces.extend(sections);
    let symbols = file.data_symbols().into_iter().map(|symbol| Piece {
        kind: ObjectKind::Static,
        symbol,
        name: OnceCell::new(),
    });
    pieces.extend(symbols);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accessed_objects_are_found_by_page() {
        let mut accessed = AccessedPages::default();
        accessed.add([(7, 0x5008), (9, 0x1000)].into_iter());
        accessed.add([(7, 0x5ff0)].into_iter());
        assert_eq!(accessed.0.len(), 2);
        for (pid, address, size_bytes, expected) in [
            (7, 0x5000, 8, true),
            (7, 0x4ff8, 8, false),
            (7, 0x4ff8, 9, true),
            (7, 0x6000, u64::MAX, false),
            (7, 0, 0x5000, false),
            (7, 0, u64::MAX, true),
            (7, 0x5fff, 0, true),
            (8, 0, u64::MAX, false),
            (9, 0x1fff, 1, true),
        ] {
            let found = accessed.any(pid, address, size_bytes);
            assert_eq!(found, expected, "{pid} {address:#x} {size_bytes}");
        }
    }
}
