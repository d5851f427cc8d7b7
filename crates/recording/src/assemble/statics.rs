//! Static objects and code: what the modules of a process bring with them.

use rustc_hash::{FxHashMap, FxHashSet};

use super::modules::Modules;
use crate::elf::{ElfFile, Symbol, demangle};
use crate::{ModuleId, Object, ObjectKind};

/// Appends the symbols, data sections and segments of every module of every process in `active`,
/// largest around smallest: an access belongs to the smallest that holds it.
pub(super) fn objects(modules: &Modules, active: &FxHashSet<u32>, objects: &mut Vec<Object>) {
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
        if pieces.as_ref().is_none_or(|(of, _)| *of != module) {
            let found = modules
                .file(module)
                .map(|file| pieces_of(file, modules.name(module)))
                .unwrap_or_default();
            pieces = Some((module, found));
        }
        let Some((_, pieces)) = &pieces else { continue };
        objects.extend(pieces.iter().map(|piece| Object {
            kind: piece.kind,
            name: piece.symbol.name.clone(),
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
        }));
    }
}

struct Piece {
    kind: ObjectKind,
    symbol: Symbol,
}

fn pieces_of(file: &ElfFile, module: &str) -> Vec<Piece> {
    /// What a loader maps is whole pages of this size at the least.
    const PAGE_BYTES: u64 = 4096;
    let mut pieces = Vec::new();
    for segment in file.segments() {
        let address = segment.address & !(PAGE_BYTES - 1);
        let size_bytes = (segment.address.saturating_add(segment.size_bytes) - address)
            .checked_next_multiple_of(PAGE_BYTES)
            .unwrap_or(u64::MAX);
        let kind = if segment.executable {
            ObjectKind::Code
        } else {
            ObjectKind::Static
        };
        pieces.push(Piece {
            kind,
            symbol: Symbol {
                name: module.to_owned(),
                address,
                size_bytes,
            },
        });
    }
    for section in file.data_sections() {
        let name = format!("{module} {}", section.name);
        pieces.push(Piece {
            kind: ObjectKind::Static,
            symbol: Symbol { name, ..section },
        });
    }
    for symbol in file.data_symbols() {
        let name = demangle(&symbol.name);
        pieces.push(Piece {
            kind: ObjectKind::Static,
            symbol: Symbol { name, ..symbol },
        });
    }
    pieces
}
