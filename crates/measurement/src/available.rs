//! Free memory and load of the machine: what other programs leave for a measurement.

use std::path::{Path, PathBuf};

/// A note if other programs keep at least half a CPU busy, by the load of the last minute in `/proc/loadavg`.
pub(super) fn busy(loadavg: &str) -> Option<String> {
    let load: f64 = loadavg.split(' ').next()?.parse().ok()?;
    (load >= 0.5).then(|| {
        format!(
            "other programs are running (load {load:.1}): the figures are worse than the machine; measure again when it is idle"
        )
    })
}

/// Free bytes by `MemFree` of a node's `meminfo` (`Node 0 MemFree: 12 kB`), or `MemAvailable` of the system's.
pub(super) fn free_bytes(meminfo: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(meminfo).ok()?;
    let of = |key: &str| {
        let (_, rest) = text.split_once(key)?;
        let kibibytes: u64 = rest.split_whitespace().next()?.parse().ok()?;
        Some(kibibytes * 1024)
    };
    of("MemAvailable:").or_else(|| of("MemFree:"))
}

/// Bytes that this process may still use: the system's available memory, or the rest of a control group's limit if that
/// is less. `None`: neither is known.
pub fn available_bytes(sys_root: &Path) -> Option<u64> {
    let system = free_bytes(Path::new("/proc/meminfo"));
    let group = control_group_bytes(sys_root);
    system.into_iter().chain(group).min()
}

/// Bytes left in the tightest control group (version 2) of this process.
pub(super) fn control_group_bytes(sys_root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    group_bytes(&sys_root.join("fs/cgroup"), path)
}

pub(super) fn group_bytes(root: &Path, path: &str) -> Option<u64> {
    let number =
        |path: PathBuf| -> Option<u64> { std::fs::read_to_string(path).ok()?.trim().parse().ok() };
    let folder = root.join(path);
    folder
        .ancestors()
        .take_while(|folder| folder.starts_with(root))
        .filter_map(|group| {
            let limit = number(group.join("memory.max"))?;
            Some(limit.saturating_sub(number(group.join("memory.current")).unwrap_or(0)))
        })
        .min()
}
