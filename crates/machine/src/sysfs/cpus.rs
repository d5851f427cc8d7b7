//! CPUs, cores and caches.

use std::collections::{BTreeMap, BTreeSet};

use super::{CPUS, cpus_in_words};
use crate::tree::Tree;
use crate::{Cache, CacheKind, CpuId, CpuKind, CpuList, Error, Number};

/// CPUs that are online. Adds a note about CPUs that are offline.
pub(crate) fn online(tree: &Tree, notes: &mut Vec<String>) -> Result<CpuList, Error> {
    let folders = tree.numbered(CPUS, "cpu")?;
    let folders: Vec<_> = folders
        .into_iter()
        .filter(|(cpu, _)| *cpu <= CpuId::MAX)
        .collect();
    let named = tree.list::<CpuId>(&format!("{CPUS}/online"))?;
    let online: CpuList = match named {
        Some(online) if !online.as_slice().is_empty() => online,
        _ if folders.is_empty() && tree.is_system() => {
            let count = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
            (0..count).map(CpuId).collect()
        }
        _ if folders.is_empty() => {
            return Err(Error::Tree {
                path: tree.display(CPUS),
                problem: "there are no CPUs; the tree is incomplete".to_owned(),
            });
        }
        _ => {
            let mut online = Vec::new();
            for (cpu, folder) in &folders {
                if tree.read(&format!("{folder}/online"))?.as_deref() != Some("0") {
                    online.push(CpuId(*cpu));
                }
            }
            online.into_iter().collect()
        }
    };
    if !tree.is_system() {
        let offline = folders
            .iter()
            .map(|(cpu, _)| CpuId(*cpu))
            .filter(|&cpu| !online.contains(cpu));
        let offline: Vec<CpuId> = offline.collect();
        if !offline.is_empty() {
            notes.push(format!("{} offline: left out", cpus_in_words(&offline)));
        }
    }
    Ok(online)
}

/// Those of `cpus` that have a folder, with its path. The list of online CPUs may name any that there are no files about.
pub(super) fn described(tree: &Tree, cpus: &CpuList) -> Result<Vec<(CpuId, String)>, Error> {
    let folders = tree.numbered(CPUS, "cpu")?.into_iter();
    let folders = folders.map(|(cpu, folder)| (CpuId(cpu), folder));
    Ok(folders.filter(|(cpu, _)| cpus.contains(*cpu)).collect())
}

/// The distinct kinds of caches, and the cores with several of these CPUs, of which those with a folder are [`described`].
/// Adds a note about caches that are left out.
pub(super) fn caches_and_cores(
    tree: &Tree,
    cpus: &CpuList,
    described: &[(CpuId, String)],
    notes: &mut Vec<String>,
) -> Result<(Vec<Cache>, Vec<Vec<CpuId>>), Error> {
    let mut caches: Vec<Cache> = Vec::new();
    let mut left_out = BTreeSet::new();
    let mut cores: BTreeMap<CpuId, Vec<CpuId>> = BTreeMap::new();
    let mut on_a_core = BTreeSet::new();
    // Indexes and CPUs of caches that were read through another CPU that shares the cache.
    let mut read = BTreeSet::new();
    for &(cpu, ref folder) in described {
        for (index, cache) in tree.numbered(&format!("{folder}/cache"), "index")? {
            if read.contains(&(index, cpu)) {
                continue;
            }
            if let Some((cache, shared)) = cache_of(tree, &cache, folder, cpus)? {
                read.extend(shared.into_iter().map(|cpu| (index, cpu)));
                // Firmware may report nothing, or 0.
                if cache.size_bytes == 0 || cache.line_bytes == 0 || cache.level == 0 {
                    left_out.insert(cache.level);
                } else if !caches.contains(&cache) {
                    caches.push(cache);
                }
            }
        }
        if on_a_core.contains(&cpu) {
            continue;
        }
        if let Some(core) = core_of(tree, folder)? {
            let core = core.as_slice().iter().copied();
            let core: Vec<CpuId> = core.filter(|&sibling| cpus.contains(sibling)).collect();
            let is_new = core.iter().all(|sibling| !on_a_core.contains(sibling));
            if is_new && let [first, _, ..] = core.as_slice() {
                on_a_core.extend(core.iter().copied());
                cores.insert(*first, core);
            }
        }
    }
    caches.sort_by_key(|cache| (cache.level, cache.kind as u8));
    if !tree.is_system() {
        notes.extend(caches_left_out(&left_out));
    }
    Ok((caches, cores.into_values().collect()))
}

/// CPUs of a CPU's core. The second name is that of kernels before Linux 5.3.
fn core_of(tree: &Tree, cpu: &str) -> Result<Option<CpuList>, Error> {
    for name in ["core_cpus", "thread_siblings"] {
        let path = format!("{cpu}/topology/{name}");
        if let Some(core) = tree.list_or_map(&format!("{path}_list"), &path)? {
            return Ok(Some(core));
        }
    }
    Ok(None)
}

/// A note about left-out caches of these levels.
pub(crate) fn caches_left_out(levels: &BTreeSet<u8>) -> Option<String> {
    let levels: Vec<String> = levels.iter().map(|level| format!("L{level}")).collect();
    let levels = levels.join(", ");
    (!levels.is_empty()).then(|| format!("no size of lines is known of {levels}: left out"))
}

/// A cache of a CPU, and those of `cpus` that share the cache.
fn cache_of(
    tree: &Tree,
    folder: &str,
    cpu: &str,
    cpus: &CpuList,
) -> Result<Option<(Cache, Vec<CpuId>)>, Error> {
    // Virtual machines omit files about unknown properties.
    let (Some(level), Some(kind)) = (
        tree.number(&format!("{folder}/level"))?,
        cache_kind(tree, &format!("{folder}/type"))?,
    ) else {
        return Ok(None);
    };
    let size_bytes = cache_size(tree, &format!("{folder}/size"))?.unwrap_or(0);
    let line_bytes = tree.number(&format!("{folder}/coherency_line_size"))?;
    let line_bytes = line_bytes.unwrap_or(0);
    // Where set and list differ, as on AMD's modules under Linux 3, the set is right.
    let shared = format!("{folder}/shared_cpu_");
    let shared = match tree.map::<CpuId>(&format!("{shared}map"))? {
        Some(shared) => Some(shared),
        None => tree.list(&format!("{shared}list"))?,
    };
    let shared = match shared {
        // On Itanium the set is empty if the CPUs of one core share the cache.
        Some(none) if none.as_slice().is_empty() => core_of(tree, cpu)?,
        shared => shared,
    };
    let shared = shared.unwrap_or_default();
    let shared: Vec<CpuId> = shared
        .as_slice()
        .iter()
        .copied()
        .filter(|&cpu| cpus.contains(cpu))
        .collect();
    let cache = Cache {
        level,
        kind,
        size_bytes,
        line_bytes,
        associativity: ways(tree, folder, size_bytes, line_bytes)?,
        shared_by_cpus: shared.len().max(1) as u32,
        latency_ns: None,
    };
    Ok(Some((cache, shared)))
}

/// Ways of a cache; 0 if unknown. Some firmware truncates the number to a few bits, so that the size is not a multiple
/// of the ways; then the ways follow from the number of sets.
fn ways(tree: &Tree, folder: &str, size_bytes: u64, line_bytes: u32) -> Result<u32, Error> {
    let ways = tree.number::<u32>(&format!("{folder}/ways_of_associativity"))?;
    let ways = ways.unwrap_or(0);
    let is_part = |ways: u64| ways != 0 && size_bytes.is_multiple_of(ways);
    let of_ways = |ways: u64| u64::from(line_bytes).saturating_mul(ways);
    if ways == 0 || is_part(of_ways(ways.into())) {
        return Ok(ways);
    }
    let sets = tree.number::<u64>(&format!("{folder}/number_of_sets"))?;
    let of_sets = of_ways(sets.unwrap_or(0));
    let found = is_part(of_sets).then(|| u32::try_from(size_bytes / of_sets).ok());
    Ok(found.flatten().unwrap_or(ways))
}

fn cache_kind(tree: &Tree, path: &str) -> Result<Option<CacheKind>, Error> {
    match tree.read(path)?.as_deref() {
        None => Ok(None),
        Some("Data") => Ok(Some(CacheKind::Data)),
        Some("Instruction") => Ok(Some(CacheKind::Instruction)),
        Some("Unified") => Ok(Some(CacheKind::Unified)),
        Some(other) => Err(tree.unexpected(path, "`Data`, `Instruction` or `Unified`", other)),
    }
}

/// Reads a size such as `32K`; the kernel writes kibibytes only.
fn cache_size(tree: &Tree, path: &str) -> Result<Option<u64>, Error> {
    let Some(text) = tree.read(path)? else {
        return Ok(None);
    };
    let kibibytes = text
        .strip_suffix('K')
        .and_then(|number| number.parse::<u64>().ok());
    let bytes = kibibytes.and_then(|number| number.checked_mul(1024));
    bytes
        .map(Some)
        .ok_or_else(|| tree.unexpected(path, "a size such as `32K`", &text))
}

/// Kinds of CPUs, if there are several: by the kernel's PMUs (Intel), else by CPU capacity (Arm) or base frequency.
pub(super) fn kinds(
    tree: &Tree,
    cpus: &CpuList,
    described: &[(CpuId, String)],
) -> Result<Vec<CpuKind>, Error> {
    let mut kinds = Vec::new();
    for name in ["cpu_core", "cpu_atom", "cpu_lowpower"] {
        let listed = tree
            .list::<CpuId>(&format!("sys/devices/{name}/cpus"))?
            .unwrap_or_default();
        let listed = listed
            .as_slice()
            .iter()
            .copied()
            .filter(|&cpu| cpus.contains(cpu));
        let listed: Vec<CpuId> = listed.collect();
        if !listed.is_empty() {
            kinds.push(CpuKind {
                name: name.to_owned(),
                cpus: listed,
            });
        }
    }
    if kinds.len() > 1 {
        return Ok(kinds);
    }
    for (file, name) in [
        ("cpu_capacity", "capacity"),
        ("cpufreq/base_frequency", "base kHz"),
    ] {
        let mut by_figure: BTreeMap<u64, Vec<CpuId>> = BTreeMap::new();
        for &(cpu, ref folder) in described {
            if let Some(figure) = tree.number(&format!("{folder}/{file}"))? {
                by_figure.entry(figure).or_default().push(cpu);
            }
        }
        if by_figure.len() > 1 {
            let kind = |(figure, cpus)| CpuKind {
                name: format!("{name} {figure}"),
                cpus,
            };
            return Ok(by_figure.into_iter().rev().map(kind).collect());
        }
    }
    Ok(Vec::new())
}
