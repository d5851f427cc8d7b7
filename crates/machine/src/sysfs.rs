//! Reads a machine from the kernel's `/sys/devices/system/{node,cpu}` and `/sys/kernel/mm` and, for trees gathered on
//! other machines, from `/proc`.
//!
//! Missing folders are no errors: without a `node` folder (containers, kernels without NUMA) the machine has one node,
//! and without `cache` folders it has no caches. [`Machine::notes`] lists the data that a gathered tree lacks. A file
//! that exists but cannot be read is an error.

mod cpus;
mod devices;
mod limits;
mod nodes;

use std::collections::BTreeMap;
use std::path::Path;

use crate::tree::Tree;
use crate::{Bandwidth, CpuId, CpuList, Error, Machine, Node, NodeId, TransparentHugePages};

pub(crate) use cpus::{caches_left_out, online};

/// Assumed page size of trees without this information.
const PAGE_BYTES_USUAL: u64 = 4096;
/// File of hwloc-gather-topology besides the kernel's files, and the line that gives the page size.
const GATHERED_INFO: &str = "proc/hwloc-nofile-info";
const PAGE_SIZE: &str = "PageSize:";
const NODES: &str = "sys/devices/system/node";
const CPUS: &str = "sys/devices/system/cpu";

impl Machine {
    /// Reads the running machine; `sys_root` is `/sys` outside of tests.
    ///
    /// # Errors
    /// A file exists but cannot be read or has unexpected content, or the machine is invalid ([`Machine::validate`]).
    pub fn local(sys_root: &Path) -> Result<Self, Error> {
        from_tree(&Tree::system(sys_root), "local".to_owned())
    }

    /// The files that [`Machine::local`] reads, for an archive: paths that begin with `sys/`, with the content of files
    /// and `None` for folders. Files of which only the existence matters are empty. The page size, which no kernel file
    /// has, is stored as hwloc-gather-topology does.
    ///
    /// # Errors
    /// As [`Machine::local`].
    pub fn gather(sys_root: &Path) -> Result<BTreeMap<String, Option<Vec<u8>>>, Error> {
        let tree = Tree::system(sys_root);
        from_tree(&tree, "local".to_owned())?;
        let mut files = tree.seen();
        let page_size = format!("{PAGE_SIZE} {}\n", own_page_bytes());
        files.insert(GATHERED_INFO.to_owned(), Some(page_size.into_bytes()));
        Ok(files)
    }

    /// Text of another file in an archive of a machine's `/sys`; `None` if there is no such path.
    ///
    /// # Errors
    /// As [`Machine::from_sysfs`].
    pub fn file_of_archive(bytes: &[u8], path: &str) -> Result<Option<String>, Error> {
        Tree::archived(bytes, Path::new("archive"))?.read(path)
    }

    /// Reads another machine's `/sys`, and its `/proc` if it was gathered, from a folder or an archive (`.tar`,
    /// `.tar.bz2`, `.tar.gz`, `.tar.zst`). Links that lead out of the folder are not followed.
    ///
    /// # Errors
    /// As [`Machine::local`]; or the archive is damaged, too large, or has no `sys/devices/system`.
    pub fn from_sysfs(path: &Path) -> Result<Self, Error> {
        from_tree(&Tree::gathered(path)?, name(path))
    }

    /// As [`Machine::from_sysfs`], from an archive's bytes; `origin` is its name in messages.
    ///
    /// # Errors
    /// As [`Machine::from_sysfs`].
    pub fn from_sysfs_archive(bytes: &[u8], origin: &str) -> Result<Self, Error> {
        let origin = Path::new(origin);
        from_tree(&Tree::archived(bytes, origin)?, name(origin))
    }
}

/// A file's name without the ending of an archive.
fn name(path: &Path) -> String {
    let name = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = name
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_else(|| path.display().to_string());
    let bare = ARCHIVES.iter().find_map(|ending| name.strip_suffix(ending));
    bare.unwrap_or(&name).to_owned()
}

/// Endings of archives' names.
const ARCHIVES: [&str; 6] = [".tar", ".tar.bz2", ".tar.gz", ".tgz", ".tar.zst", ".tbz2"];

/// Does the name have the ending of an archive?
pub(crate) fn is_archive(path: &Path) -> bool {
    let name = path.to_string_lossy();
    ARCHIVES.iter().any(|ending| name.ends_with(ending))
}

/// Reads a machine from a tree and gives it this name.
fn from_tree(tree: &Tree, name: String) -> Result<Machine, Error> {
    let mut notes = Vec::new();
    let online = online(tree, &mut notes)?;
    let place = match tree.is_system() {
        true => tree.display(NODES).display().to_string(),
        false => format!("{NODES} of {name}"),
    };
    let (nodes, distance, mut source) = match nodes::of(tree, &online, &mut notes)? {
        Some((nodes, distance)) => (nodes, distance, place),
        None => {
            let node = Node {
                id: NodeId(0),
                cpus: online.as_slice().to_vec(),
                memory_bytes: nodes::memory_of_all(tree)?,
                memory_kind: None,
            };
            let source = format!("{place}: not there, so taken as one node");
            (vec![node], None, source)
        }
    };
    let (latency_ns, bandwidth) = nodes::rated(tree, &nodes)?;
    if latency_ns.is_some() || bandwidth != Bandwidth::default() {
        source.push_str("; latency and bandwidth as the firmware rates them (ACPI HMAT)");
    }
    let placed: CpuList = nodes
        .iter()
        .flat_map(|node| node.cpus.iter().copied())
        .collect();
    let left_out = online
        .as_slice()
        .iter()
        .copied()
        .filter(|&cpu| !placed.contains(cpu));
    let left_out: CpuList = left_out.collect();
    if !left_out.as_slice().is_empty() {
        notes.push(format!(
            "CPUs {left_out} belong to no node and are left out"
        ));
    }
    let described = cpus::described(tree, &placed)?;
    let (caches, cores) = cpus::caches_and_cores(tree, &placed, &described, &mut notes)?;
    let memory_caches = nodes::memory_caches(tree, &nodes)?;
    let cpu_kinds = cpus::kinds(tree, &placed, &described)?;
    let devices = devices::of(tree, &nodes);
    limits::note(tree, &nodes, &mut notes)?;
    let page_bytes = page_bytes(tree, &mut notes)?;
    let machine = Machine {
        source,
        notes,
        page_bytes,
        huge_page_bytes: huge_page_bytes(tree)?,
        transparent_huge_pages: transparent_huge_pages(tree)?,
        latency_ns,
        distance,
        bandwidth,
        cores,
        cpu_kinds,
        caches,
        memory_caches,
        devices,
        ..Machine::of_nodes(name, nodes)
    };
    let machine = match tree.is_system() {
        true => machine,
        false => with_what_is_missing(machine),
    };
    machine.validate().map_err(|fault| Error::Invalid {
        origin: tree.display("sys/devices/system").display().to_string(),
        fault,
    })?;
    Ok(machine)
}

/// Adds notes about data that a gathered tree lacks.
fn with_what_is_missing(mut machine: Machine) -> Machine {
    let several_nodes = machine.nodes.len() > 1;
    let memory_unknown = machine.nodes.iter().any(|node| node.memory_bytes.is_none());
    let missing = [
        (
            several_nodes && machine.distance.is_none(),
            "no distances: 10 to a node's own memory and 20 to others are assumed",
        ),
        (
            machine.caches.is_empty(),
            "no caches: add `[[cache]]` tables before tracing or simulating for this machine",
        ),
        (
            memory_unknown,
            "no sizes of memory: it is taken as unlimited",
        ),
    ];
    let words = missing.into_iter().filter(|(is_missing, _)| *is_missing);
    machine
        .notes
        .extend(words.map(|(_, words)| words.to_owned()));
    machine
}

/// Size of transparent huge pages, or else the smallest size in `hugepages/hugepages-2048kB`….
fn huge_page_bytes(tree: &Tree) -> Result<Option<u64>, Error> {
    let pmd_size = "sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    if let Some(bytes) = tree.number(pmd_size)? {
        return Ok(Some(bytes));
    }
    let size = |name: &String| {
        name.strip_prefix("hugepages-")?
            .strip_suffix("kB")?
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    };
    let names = tree.names("sys/kernel/mm/hugepages").unwrap_or_default();
    Ok(names.iter().filter_map(size).min())
}

/// Reads a setting such as `always [madvise] never`.
fn transparent_huge_pages(tree: &Tree) -> Result<Option<TransparentHugePages>, Error> {
    let path = "sys/kernel/mm/transparent_hugepage/enabled";
    let Some(text) = tree.read(path)? else {
        return Ok(None);
    };
    let chosen = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    match chosen {
        Some("always") => Ok(Some(TransparentHugePages::Always)),
        Some("madvise") => Ok(Some(TransparentHugePages::Madvise)),
        Some("never") => Ok(Some(TransparentHugePages::Never)),
        _ => Err(tree.unexpected(
            path,
            "`always`, `madvise` and `never`, one in brackets",
            &text,
        )),
    }
}

/// The page size. For this system, it is in the auxiliary vector (getauxval(3), AT_PAGESZ). For a gathered tree, it is
/// in hwloc-gather-topology's file, always 4 KiB on x86, and otherwise assumed with a note.
fn page_bytes(tree: &Tree, notes: &mut Vec<String>) -> Result<u64, Error> {
    if tree.is_system() {
        return Ok(own_page_bytes());
    }
    let gathered = tree.read(GATHERED_INFO)?.unwrap_or_default();
    let said = gathered
        .lines()
        .find_map(|line| line.strip_prefix(PAGE_SIZE)?.trim().parse().ok());
    if let Some(bytes) = said {
        return Ok(bytes);
    }
    let processor = tree.read("proc/cpuinfo")?.unwrap_or_default();
    let is_x86 = ["GenuineIntel", "AuthenticAMD"]
        .iter()
        .any(|vendor| processor.contains(vendor));
    if !is_x86 {
        notes.push("the tree does not say the size of a page: 4 KiB is assumed".to_owned());
    }
    Ok(PAGE_BYTES_USUAL)
}

fn own_page_bytes() -> u64 {
    const AT_PAGESZ: u64 = 6;
    const WORD: usize = size_of::<usize>();
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, usize::from_ne_bytes) as u64;
    let vector = std::fs::read("/proc/self/auxv").unwrap_or_default();
    vector
        .chunks_exact(2 * WORD)
        .find(|entry| word(&entry[..WORD]) == AT_PAGESZ)
        .map_or(PAGE_BYTES_USUAL, |entry| word(&entry[WORD..]))
}

/// CPUs that are online: `devices/system/cpu/online` under `sys_root`, or else every `cpuN` folder, or else as many
/// CPUs as the process may use.
///
/// # Errors
/// A file exists but cannot be read, or is not a list.
pub fn online_cpus(sys_root: &Path) -> Result<CpuList, Error> {
    online(&Tree::system(sys_root), &mut Vec::new())
}

/// Text such as `CPU 3` or `CPUs 3-4`.
fn cpus_in_words(cpus: &[CpuId]) -> String {
    let list: CpuList = cpus.iter().copied().collect();
    match cpus {
        [one] => format!("CPU {one}"),
        _ => format!("CPUs {list}"),
    }
}

#[cfg(test)]
mod tests;
