//! Cost of source lines and instructions, with the source if it is available.

use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use nearpage_files::path_from_text;
use nearpage_recording::ModuleId;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::costs::{CodePlace, Costs, Sums};
use crate::opened::Opened;

/// Maximum number of listed functions, by cost.
const FUNCTIONS_MAX: usize = 500;
/// Size limit of a source file.
const SOURCE_BYTES_MAX: u64 = 4 << 20;
/// Size limit of a function's machine code, some 8,000 instructions.
const CODE_BYTES_MAX: u64 = 32 << 10;

/// A function that accesses memory.
#[derive(Debug, Serialize)]
pub(crate) struct Function {
    name: String,
    /// Number of the function's module; null for generated code.
    module: Option<u32>,
    module_name: String,
    /// File name in the debug information; empty without debug information.
    file: String,
    #[serde(flatten)]
    sums: Sums,
}

/// The functions with the highest cost.
#[derive(Debug, Serialize)]
pub(crate) struct Functions {
    functions: Vec<Function>,
    /// Number of all functions.
    count: usize,
    /// Share of the accesses that the figures represent, 0 to 1.
    share: f64,
}

/// Code of a function.
#[derive(Debug, Serialize)]
pub(crate) struct Code {
    name: String,
    file: String,
    source: Availability<Source>,
    instructions: Availability<Vec<Instruction>>,
    share: f64,
}

/// A value, or the reason why it is missing.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Availability<T> {
    There(T),
    Missing { missing: String },
}

impl<T> From<Result<T, String>> for Availability<T> {
    fn from(found: Result<T, String>) -> Self {
        match found {
            Ok(found) => Self::There(found),
            Err(missing) => Self::Missing { missing },
        }
    }
}

#[derive(Debug, PartialEq, Serialize)]
struct Source {
    /// Path from which the file was read.
    path: String,
    /// Was the file changed after the recording began?
    is_newer: bool,
    lines: Vec<String>,
    /// Costs by line number, over all functions.
    costs: Vec<(u32, Sums)>,
    /// First and last line with a cost in the function.
    function_lines: Option<(u32, u32)>,
}

#[derive(Debug, Serialize)]
struct Instruction {
    /// Virtual address in the module's file, hexadecimal.
    address: String,
    text: String,
    /// File and line; empty if they equal those of the previous instruction.
    line: String,
    #[serde(flatten)]
    sums: Sums,
}

/// Lists functions by cost.
pub(crate) fn functions(opened: &Opened, costs: &Costs) -> Functions {
    let mut sums: FxHashMap<(Option<ModuleId>, &str), (Sums, &CodePlace)> = FxHashMap::default();
    for row in &costs.rows {
        let place = &costs.places[row.place];
        let sum = sums
            .entry((place.module, &place.function))
            .or_insert((Sums::default(), place));
        sum.0 += row.sums;
    }
    let mut found: Vec<_> = sums.into_iter().collect();
    found.sort_by(|a, b| {
        let by_cost = b.1.0.cost_ns.total_cmp(&a.1.0.cost_ns);
        by_cost.then_with(|| a.0.cmp(&b.0))
    });
    let modules = &opened.recording.tables.modules;
    let module_name = |module: Option<ModuleId>| {
        let module = module.and_then(|module| modules.get(module.0 as usize));
        module.map_or("", |module| module.file_name()).to_owned()
    };
    Functions {
        count: found.len(),
        share: costs.share,
        functions: found
            .into_iter()
            .take(FUNCTIONS_MAX)
            .map(|((module, name), (sums, place))| Function {
                name: name.to_owned(),
                module: module.map(|module| module.0),
                module_name: module_name(module),
                file: place.file.clone(),
                sums,
            })
            .collect(),
    }
}

/// Code of a function that accesses memory; `None` if no function of this name does. The source is searched below
/// `folders`, or without folders at its own path.
pub(crate) fn code(
    opened: &Opened,
    costs: &Costs,
    folders: &[PathBuf],
    (module, name): (Option<ModuleId>, &str),
) -> Option<Code> {
    let is_of = |place: &CodePlace| place.module == module && place.function == name;
    // Rows are ordered by cost, so this is the costliest instruction.
    let first = costs
        .rows
        .iter()
        .find(|row| is_of(&costs.places[row.place]))?;
    let place = &costs.places[first.place];
    let source = source(opened, costs, folders, place, &is_of);
    let instructions = match first.instruction {
        (Some(module), offset) => instructions(opened, costs, module, offset),
        (None, _) => Err("its code is in no file".to_owned()),
    };
    Some(Code {
        name: name.to_owned(),
        file: place.file.clone(),
        source: source.into(),
        instructions: instructions.into(),
        share: costs.share,
    })
}

fn source(
    opened: &Opened,
    costs: &Costs,
    folders: &[PathBuf],
    place: &CodePlace,
    is_of: &dyn Fn(&CodePlace) -> bool,
) -> Result<Source, String> {
    if place.file.is_empty() {
        return Err(
            "the program has no debug information for this function; build with -g".to_owned(),
        );
    }
    let path = find(&place.file, folders)?;
    let text = nearpage_files::read(&path, SOURCE_BYTES_MAX)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let text = String::from_utf8_lossy(&text);
    if text.contains('\0') {
        return Err(format!("{} is no text", path.display()));
    }
    let started_unix_ns = u128::from(opened.recording.metadata.started_unix_ns);
    let changed = fs::metadata(&path).and_then(|metadata| metadata.modified());
    let changed = changed
        .ok()
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let mut sums: FxHashMap<u32, Sums> = FxHashMap::default();
    let mut function_lines: Option<(u32, u32)> = None;
    for row in &costs.rows {
        let at = &costs.places[row.place];
        if at.file != place.file || at.line == 0 {
            continue;
        }
        *sums.entry(at.line).or_default() += row.sums;
        if is_of(at) {
            let (first, last) = function_lines.unwrap_or((at.line, at.line));
            function_lines = Some((first.min(at.line), last.max(at.line)));
        }
    }
    let mut costs: Vec<(u32, Sums)> = sums.into_iter().collect();
    costs.sort_by_key(|(line, _)| *line);
    Ok(Source {
        path: path.display().to_string(),
        is_newer: changed.is_some_and(|since| since.as_nanos() > started_unix_ns),
        lines: text.lines().map(str::to_owned).collect(),
        costs,
        function_lines,
    })
}

/// Finds the file that debug information calls `recorded`. The file is searched below each folder, first with all of
/// its own parent folders, then with fewer. Without folders, its own path is used. No link may lead out of a folder.
fn find(recorded: &str, folders: &[PathBuf]) -> Result<PathBuf, String> {
    let recorded = path_from_text(recorded);
    if folders.is_empty() {
        return match recorded.is_absolute() && is_there(&recorded) {
            true => Ok(recorded.into_owned()),
            false => Err(format!(
                "{} is not on this machine: nearpage view --source-dir DIR names the folder of the source",
                recorded.display()
            )),
        };
    }
    let mut names = Vec::new();
    for component in recorded.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::ParentDir => {
                names.pop();
            }
            _ => {}
        }
    }
    for folder in folders {
        let Ok(folder) = folder.canonicalize() else {
            continue;
        };
        for first in 0..names.len() {
            let below: PathBuf = names[first..].iter().collect();
            let found = folder.join(below).canonicalize();
            let is_inside = |found: &PathBuf| found.starts_with(&folder) && is_there(found);
            if let Some(found) = found.ok().filter(is_inside) {
                return Ok(found);
            }
        }
    }
    Err(format!(
        "no {} below {}",
        names.last().copied().unwrap_or_default().display(),
        folders
            .iter()
            .map(|folder| folder.display().to_string())
            .collect::<Vec<_>>()
            .join(", ")
    ))
}

fn is_there(path: &Path) -> bool {
    let found: io::Result<fs::Metadata> = fs::metadata(path);
    found.is_ok_and(|metadata| metadata.is_file())
}

/// Instructions of the function that contains `offset` in a module's file.
fn instructions(
    opened: &Opened,
    costs: &Costs,
    module: ModuleId,
    offset: u64,
) -> Result<Vec<Instruction>, String> {
    let mut symbols = opened.functions.symbols();
    let found = symbols.machine_code(module, offset, CODE_BYTES_MAX)?;
    let end = found.address + found.bytes.len() as u64;
    let mut sums: FxHashMap<u64, Sums> = FxHashMap::default();
    for row in &costs.rows {
        if row.instruction.0 == Some(module) && (found.address..end).contains(&row.instruction.1) {
            *sums.entry(row.instruction.1).or_default() += row.sums;
        }
    }
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_space_after_operand_separator(true);
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_add_leading_zero_to_hex_numbers(false);
    let decoder = Decoder::with_ip(64, &found.bytes, found.address, DecoderOptions::NONE);
    let mut last = String::new();
    Ok(decoder
        .into_iter()
        .map(|instruction| {
            let address = instruction.ip();
            let mut text = String::new();
            formatter.format(&instruction, &mut text);
            let frame = symbols.instruction(module, address).into_iter().next();
            let line = frame
                .filter(|frame| frame.line > 0)
                .map_or_else(String::new, |frame| {
                    let file = frame.file.rsplit('/').next().unwrap_or_default();
                    format!("{file}:{}", frame.line)
                });
            let is_new = line != last;
            last.clone_from(&line);
            Instruction {
                address: format!("{address:#x}"),
                text,
                line: if is_new { line } else { String::new() },
                sums: sums.get(&address).copied().unwrap_or_default(),
            }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn source_is_found_below_its_folder_and_nowhere_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let tree = folder.path().join("tree");
        let at = |name: &str| tree.join(name).canonicalize().expect("it is there");
        fs::create_dir_all(tree.join("src/deep")).expect("made");
        for name in ["src/a.c", "b.c", "src/deep/a.c"] {
            fs::write(tree.join(name), "int x;").expect("written");
        }
        fs::write(folder.path().join("secret"), "key").expect("written");
        symlink(folder.path().join("secret"), tree.join("src/secret")).expect("linked");
        symlink("/dev/zero", tree.join("zero.c")).expect("linked");
        let folders = [tree.clone()];
        let find = |recorded: &str| find(recorded, &folders);
        assert_eq!(find("/build/x/src/a.c"), Ok(at("src/a.c")));
        assert_eq!(find("/build/x/src/deep/a.c"), Ok(at("src/deep/a.c")));
        assert_eq!(find("/elsewhere/b.c"), Ok(at("b.c")));
        assert_eq!(find("/build/x/lib/../src/a.c"), Ok(at("src/a.c")));
        for outside in [
            "/build/src/secret",
            "../secret",
            "src/../../secret",
            "/dev/zero.c",
            "/src",
            "",
            "/",
        ] {
            assert!(find(outside).is_err(), "{outside}");
        }
        // Without a folder, only the recorded path is tried, and it must be a regular file.
        let own = folder.path().join("secret");
        let own = own.to_str().expect("text");
        assert_eq!(super::find(own, &[]), Ok(PathBuf::from(own)));
        for absent in ["a.c", "/dev/zero", "/absent/a.c"] {
            assert!(super::find(absent, &[]).is_err(), "{absent}");
        }
    }
}
