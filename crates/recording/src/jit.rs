//! Names of code that a program's own compiler generates, from the file that runtimes write for profilers:
//! `/tmp/perf-PID.map`. The file has a line per function with its address, its bytes (both hexadecimal) and its name
//! (Linux's `tools/perf/Documentation/jit-interface.txt`). OpenJDK writes the file at exit with
//! `-XX:+DumpPerfMapAtExit`, Node.js while it runs with `--perf-basic-prof`.
//!
//! The recorder keeps a copy in the recording's folder. A process with such a file has a module, `[jit of PID]`, whose
//! offsets are addresses. Where code moved or replaced other code, the last line about an address counts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nearpage_files::memory_folder;

use crate::elf::Symbol;
use crate::folder;
use crate::{Module, ModuleId, ModuleMapping, Object, ObjectKind, Tables};

/// Name of the code object of anonymous executable memory.
pub(crate) const OBJECT: &str = "[jit]";
/// Most bytes of a map that are read: some million functions.
const MAP_BYTES_MAX: u64 = 256 << 20;

fn map_file(pid: u32) -> String {
    format!("perf-{pid}.map")
}

fn module_name(pid: u32) -> String {
    format!("[jit of {pid}]")
}

/// Copies the maps of these processes that were modified after `since`. If a map cannot be copied, its code has no
/// names.
pub(crate) fn keep(pids: impl IntoIterator<Item = u32>, since: SystemTime, folder: &Path) {
    for pid in pids {
        let kept = folder.join(map_file(pid));
        let writer = Writer::of(pid);
        if let Ok(Some(map)) = open_map(&writer.map, &writer.users, since)
            && copy(map, &kept).is_err()
        {
            let _ = fs::remove_file(folder::unfinished(&kept));
        }
    }
}

/// Where a process's map is, and who may own it.
struct Writer {
    map: PathBuf,
    /// Users who may own the file.
    users: Vec<u32>,
}

impl Writer {
    /// A live process may be in a container and have another process id there. The user of an ended process is unknown:
    /// the map must belong to root or this user, as perf demands (tools/perf/util/symbol.c).
    fn of(pid: u32) -> Self {
        let own = nearpage_files::own_user();
        let folder = memory_folder(Path::new("/proc"), pid);
        // The status has the thread's name, which need not be UTF-8.
        let Ok(status) = fs::read(folder.join("status")) else {
            return Self {
                map: Path::new("/tmp").join(map_file(pid)),
                users: vec![0, own],
            };
        };
        let status = String::from_utf8_lossy(&status);
        let last = |field: &str| -> Option<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(field))?;
            line.split_whitespace().next_back()?.parse().ok()
        };
        Self {
            map: folder
                .join("root/tmp")
                .join(map_file(last("NSpid:").unwrap_or(pid))),
            // The last of four ids is the file-system user id, which owns new files.
            users: vec![0, last("Uid:").unwrap_or(own)],
        }
    }
}

/// Opens the map if it is a regular file of one of these users, as anybody can create a file of that name.
fn open_map(path: &Path, users: &[u32], since: SystemTime) -> io::Result<Option<File>> {
    let named = fs::symlink_metadata(path)?;
    if !named.is_file() || named.modified()? < since {
        return Ok(None);
    }
    let file = nearpage_files::open(path)?;
    let opened = file.metadata()?;
    let same = (opened.dev(), opened.ino()) == (named.dev(), named.ino());
    Ok((same && users.contains(&opened.uid())).then_some(file))
}

/// Copies a map, whole or not at all.
pub(crate) fn copy(map: File, kept: &Path) -> io::Result<()> {
    let unfinished = folder::unfinished(kept);
    let mut file = folder::create_file(&unfinished).map_err(io::Error::other)?;
    io::copy(&mut map.take(MAP_BYTES_MAX), &mut file)?;
    fs::rename(&unfinished, kept)
}

/// Earliest modification time of the maps of a recording's processes. Processes that ran before the recording may have
/// written a map at any time.
pub(crate) fn since(started_unix_ns: u64, attached: bool) -> SystemTime {
    match attached {
        true => SystemTime::UNIX_EPOCH,
        // Times of files have the resolution of the kernel's tick.
        false => {
            let started = Duration::from_nanos(started_unix_ns);
            SystemTime::UNIX_EPOCH + started.saturating_sub(Duration::from_millis(20))
        }
    }
}

/// The objects that are code which processes generated.
pub fn generated_code(objects: &[Object]) -> impl Iterator<Item = &Object> {
    objects
        .iter()
        .filter(|object| object.kind == ObjectKind::Code && object.name == OBJECT)
}

/// Adds a module for generated code to each process with a map in the folder.
pub(crate) fn add_modules(folder: &Path, tables: &mut Tables) {
    let mut modules: BTreeMap<u32, Option<ModuleId>> = BTreeMap::new();
    for object in generated_code(&tables.objects) {
        let module = modules.entry(object.pid).or_insert_with(|| {
            if !folder.join(map_file(object.pid)).is_file() {
                return None;
            }
            tables.modules.push(Module {
                path: module_name(object.pid),
                build_id: String::new(),
            });
            Some(ModuleId(tables.modules.len() as u32 - 1))
        });
        if let Some(module) = *module {
            tables.mappings.push(ModuleMapping {
                pid: object.pid,
                address: object.address,
                size_bytes: object.size_bytes,
                born_ns: object.born_ns,
                died_ns: object.died_ns,
                module,
                bias: 0,
            });
        }
    }
    tables
        .mappings
        .sort_by_key(|mapping| (mapping.pid, mapping.address, mapping.born_ns));
}

/// The file with the names of a module's functions, if the module is generated code.
pub(crate) fn map_of(folder: &Path, module: &Module) -> Option<PathBuf> {
    let pid = module.path.strip_prefix("[jit of ")?.strip_suffix(']')?;
    Some(folder.join(map_file(pid.parse().ok()?)))
}

/// Functions of a map, by address.
pub(crate) fn read(map: &Path) -> io::Result<Vec<Symbol>> {
    let mut bytes = Vec::new();
    nearpage_files::open(map)?
        .take(MAP_BYTES_MAX)
        .read_to_end(&mut bytes)?;
    Ok(functions(&bytes))
}

/// Functions in the text of a map, by address; invalid lines are left out.
pub(crate) fn functions(map: &[u8]) -> Vec<Symbol> {
    let mut known: BTreeMap<u64, Symbol> = BTreeMap::new();
    let lines = map.split(|&byte| byte == b'\n').filter_map(function);
    let lines: Vec<Symbol> = lines.collect();
    // The last line about an address counts.
    for function in lines.into_iter().rev() {
        let end = function.address.saturating_add(function.size_bytes);
        let before = known.range(..end).next_back();
        let is_free =
            before.is_none_or(|(_, other)| other.address + other.size_bytes <= function.address);
        if is_free {
            known.insert(function.address, function);
        }
    }
    known.into_values().collect()
}

fn function(line: &[u8]) -> Option<Symbol> {
    let line = String::from_utf8_lossy(line);
    let mut words = line.trim_end().splitn(3, ' ');
    let mut number = || {
        let word = words.next()?;
        u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
    };
    let (address, size_bytes) = (number()?, number()?);
    let name = words.next()?.trim();
    let is_one = size_bytes > 0 && address.checked_add(size_bytes).is_some() && !name.is_empty();
    is_one.then(|| Symbol {
        name: name.to_owned(),
        address,
        size_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(map: &str) -> Vec<(u64, u64, String)> {
        functions(map.as_bytes())
            .into_iter()
            .map(|one| (one.address, one.size_bytes, one.name))
            .collect()
    }

    #[test]
    fn lines_are_functions() {
        let map = "7f00 20 LSum;::run(I)V\n0x8000 0x10 LazyCompile:*f /home/me/@x/a b.js:1:2\r\nno line\n9000 0 empty\n9000 8\n";
        assert_eq!(
            named(map),
            [
                (0x7f00, 0x20, "LSum;::run(I)V".to_owned()),
                (
                    0x8000,
                    0x10,
                    "LazyCompile:*f /home/me/@x/a b.js:1:2".to_owned()
                ),
            ]
        );
        assert_eq!(named("ffffffffffffffff 2 beyond\n-1 2 x\n"), []);
    }

    #[test]
    fn the_last_word_about_an_address_counts() {
        let map =
            "1000 100 first\n1200 100 other\n1080 100 second\n1300 10 third\n12f0 20 fourth\n";
        let names: Vec<String> = named(map).into_iter().map(|one| one.2).collect();
        assert_eq!(names, ["second", "fourth"]);
    }

    #[test]
    fn only_regular_files_of_the_time_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("map"), "1000 10 f\n").unwrap();
        std::os::unix::fs::symlink(path("map"), path("link")).unwrap();
        let own = fs::metadata(folder.path()).unwrap().uid();
        let opens = |name: &str, since| matches!(open_map(&path(name), &[own], since), Ok(Some(_)));
        assert!(opens("map", SystemTime::UNIX_EPOCH));
        assert!(!opens("map", SystemTime::now() + Duration::from_secs(60)));
        assert!(!opens("link", SystemTime::UNIX_EPOCH));
        assert!(!opens("none", SystemTime::UNIX_EPOCH));
        let opened = open_map(folder.path(), &[own], SystemTime::UNIX_EPOCH);
        assert!(opened.unwrap().is_none());
        let of_another = open_map(&path("map"), &[own + 1], SystemTime::UNIX_EPOCH);
        assert!(of_another.unwrap().is_none(), "somebody else's file");
    }

    #[test]
    fn a_process_writes_its_map_as_its_user() {
        let own = nearpage_files::own_user();
        let writer = Writer::of(std::process::id());
        assert!(
            writer
                .map
                .ends_with(format!("root/tmp/perf-{}.map", std::process::id()))
        );
        assert_eq!(writer.users, [0, own]);
        let ended = Writer::of(u32::MAX);
        assert_eq!(
            (ended.map, ended.users),
            (format!("/tmp/perf-{}.map", u32::MAX).into(), vec![0, own])
        );
    }
}
