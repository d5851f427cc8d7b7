//! Bundles: one file that describes another machine to a maintainer, and shows how nearpage behaves there.
//!
//! ```text
//! sys/…                  the parts of /sys that nearpage reads, and the PMUs' events as the kernel names them
//! proc/hwloc-nofile-info the size of a page
//! nearpage/perf.json     kernel permissions, and raw records of a loop of nearpage's own (`nearpage_sampler::capture`)
//! nearpage/system.json   versions of nearpage and of the kernel, the processor's model
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, IsTerminal, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use nearpage_amount::{bytes, counted};
use nearpage_machine::Machine;
use nearpage_report::printable;
use nearpage_runner::{PRELOAD_MISSING, PreloadLibrary};
use nearpage_sampler::{DecodedSource, Options, PerfBundle};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Usage, json, shell, terminal};

const SYS: &str = "/sys";
const PERF: &str = "nearpage/perf.json";
const SYSTEM: &str = "nearpage/system.json";
/// Size limit of a bundle.
const BYTES_MAX: u64 = 64 << 20;
/// Limits for the description of PMUs: number of devices, number of files in a folder, and bytes of a file.
const DEVICES_MAX: usize = 256;
const FILES_MAX: usize = 4096;
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Folder in which the kernel names PMUs and their events.
const PMUS: &str = "sys/bus/event_source/devices";
/// Keys of `/proc/cpuinfo` that identify the processor.
const PROCESSOR_KEYS: [&str; 9] = [
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "microcode",
    "CPU implementer",
    "CPU part",
    "CPU revision",
];

/// Paths with their contents; `None` for folders.
type Files = BTreeMap<String, Option<Vec<u8>>>;

/// System of a bundle; it has no host name.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct System {
    /// Version of nearpage.
    nearpage: String,
    /// Release of the kernel.
    kernel: String,
    /// Entries of `/proc/cpuinfo` that identify the processor.
    processor: BTreeMap<String, String>,
}

/// What `doctor --from-bundle FILE --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BundleOutput {
    /// Version of this form.
    version: u32,
    /// The system on which the bundle was made.
    system: System,
    /// Architecture of the machine.
    architecture: String,
    /// Number of memory nodes.
    nodes: usize,
    /// Number of CPUs.
    cpus: usize,
    /// The source that nearpage chooses for each value of `record --source`.
    choices: Vec<ChoiceOutput>,
    /// How nearpage decodes the samples of each source.
    sources: Vec<DecodedSource>,
}

/// The choice for one value of `record --source`.
#[derive(Debug, Serialize, JsonSchema)]
struct ChoiceOutput {
    /// The value of `--source`.
    request: String,
    /// Can nearpage sample with this value?
    works: bool,
    /// The reason for the choice.
    line: String,
}

/// Gathers a bundle, lists its files, asks for consent, and writes the bundle.
pub fn write(file: &Path, yes: bool) -> anyhow::Result<ExitCode> {
    let files = gathered()?;
    terminal::print(&listed(&files))?;
    if !yes {
        if !io::stdin().is_terminal() {
            return Err(Usage(
                "nothing is written without --yes where there is no terminal to ask at".to_owned(),
            )
            .into());
        }
        terminal::print(&format!(
            "\nWrite all of this to {}? [y/N] ",
            printable(&file.to_string_lossy())
        ))?;
        io::stdout().flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            terminal::say("nothing was written");
            return Ok(ExitCode::FAILURE);
        }
    }
    let packed = packed(&files)?;
    let mut written = nearpage_files::create(file).with_context(|| file.display().to_string())?;
    written
        .write_all(&packed)
        .with_context(|| file.display().to_string())?;
    terminal::say(&format!(
        "the bundle is in {} ({})",
        file.display(),
        bytes(packed.len() as u64)
    ));
    terminal::next(&format!(
        "nearpage doctor --from-bundle {}",
        shell::path(file)
    ));
    Ok(ExitCode::SUCCESS)
}

fn gathered() -> anyhow::Result<Files> {
    let mut files = Machine::gather(Path::new(SYS))?;
    add_pmus(&mut files);
    let mut options = Options::new(Vec::<std::ffi::OsString>::new());
    options.preload = PreloadLibrary::find()
        .map(drop)
        .map_err(|_| nearpage_sampler::NoPreload(PRELOAD_MISSING.to_owned()));
    let perf = nearpage_sampler::capture(&options)?;
    files.insert(PERF.to_owned(), Some(perf.to_json().into_bytes()));
    let system = System {
        nearpage: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        processor: processor(&read("/proc/cpuinfo")),
    };
    files.insert(SYSTEM.to_owned(), Some(serde_json::to_vec_pretty(&system)?));
    Ok(files)
}

/// Text of a kernel file; empty if the file cannot be read.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Keys of the first processor in `/proc/cpuinfo` that identify its model.
fn processor(cpuinfo: &str) -> BTreeMap<String, String> {
    let lines = cpuinfo.lines().take_while(|line| !line.trim().is_empty());
    let pairs = lines.filter_map(|line| line.split_once(':'));
    let pairs = pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()));
    pairs
        .filter(|(key, _)| PROCESSOR_KEYS.contains(&key.as_str()))
        .collect()
}

/// Adds the PMUs with the fields and events that the kernel names.
fn add_pmus(files: &mut Files) {
    for device in names(PMUS).into_iter().take(DEVICES_MAX) {
        let device = format!("{PMUS}/{device}");
        for name in ["type", "cpus", "cpumask"] {
            add_file(files, format!("{device}/{name}"));
        }
        for folder in ["format", "events", "caps"] {
            let folder = format!("{device}/{folder}");
            for name in names(&folder).into_iter().take(FILES_MAX) {
                add_file(files, format!("{folder}/{name}"));
            }
        }
    }
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new("/").join(folder))
        .into_iter()
        .flatten()
        .flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

fn add_file(files: &mut Files, path: String) {
    if let Ok(content) = nearpage_files::read(&Path::new("/").join(&path), FILE_BYTES_MAX) {
        files.insert(path, Some(content));
    }
}

/// Lists a bundle's files, for people who decide whether to share it. Paths that differ only in numbers are one line.
fn listed(files: &Files) -> String {
    let mut kinds: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (path, content) in files {
        let Some(content) = content else { continue };
        let kind = kinds.entry(without_numbers(path)).or_default();
        *kind = (kind.0 + 1, kind.1 + content.len());
    }
    let mut text = "The bundle has:\n".to_owned();
    for (path, (count, bytes)) in kinds {
        let _ = writeln!(
            text,
            "{count:>6} × {:>8} bytes  {}",
            bytes / count,
            printable(&path)
        );
    }
    if let Some(Some(system)) = files.get(SYSTEM) {
        let _ = writeln!(text, "{SYSTEM}:");
        for line in String::from_utf8_lossy(system).lines() {
            let _ = writeln!(text, "  {}", printable(line));
        }
    }
    text + "Samples in nearpage/perf.json are of a loop of nearpage's own; addresses in them are changed.\n"
}

/// Replaces each number, and each address on the PCI bus, by `*`.
fn without_numbers(path: &str) -> String {
    let part = |part: &str| {
        if part.contains(':') {
            return "*".to_owned();
        }
        let mut text = String::new();
        for letter in part.chars() {
            match letter.is_ascii_digit() {
                true if text.ends_with('*') => {}
                true => text.push('*'),
                false => text.push(letter),
            }
        }
        text
    };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// Packs files into an archive, in the order of their paths.
fn packed(files: &Files) -> anyhow::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let inside = format!("{path}/");
        let has_members = files
            .range(inside.clone()..)
            .next()
            .is_some_and(|(next, _)| next.starts_with(&inside));
        if has_members {
            continue;
        }
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        match content {
            Some(content) => {
                header.set_size(content.len() as u64);
                archive.append_data(&mut header, path, content.as_slice())?;
            }
            None => {
                header.set_mode(0o755);
                header.set_entry_type(tar::EntryType::Directory);
                header.set_size(0);
                archive.append_data(&mut header, path, io::empty())?;
            }
        }
    }
    Ok(archive.into_inner()?)
}

/// Prints how nearpage behaves on a bundle's machine.
pub fn replay(file: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let named = || file.display().to_string();
    let bytes = nearpage_files::read(file, BYTES_MAX).with_context(named)?;
    let (machine, output) = output(&bytes).with_context(named)?;
    match as_json {
        true => json::print(&output)?,
        false => terminal::print(&output.to_text(&machine))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn machine(bytes: &[u8]) -> anyhow::Result<Machine> {
    Ok(Machine::from_sysfs_archive(bytes, "bundle.tar")?)
}

/// The machine of a bundle, and how nearpage behaves there.
fn output(bytes: &[u8]) -> anyhow::Result<(Machine, BundleOutput)> {
    let text = |path: &str| -> anyhow::Result<String> {
        let found = Machine::file_of_archive(bytes, path)?;
        found.with_context(|| format!("it is no bundle: it has no {path}"))
    };
    let machine = machine(bytes)?;
    let system: System = serde_json::from_str(&text(SYSTEM)?).context(SYSTEM)?;
    let perf = match PerfBundle::from_json(text(PERF)?.as_bytes()) {
        Ok(perf) => perf,
        Err(why) => bail!("{PERF}: {why}"),
    };
    let replayed = match nearpage_sampler::replay(&perf) {
        Ok(replayed) => replayed,
        Err(why) => bail!("{PERF}: {why}"),
    };
    let choice = |(asked, found): (&str, Result<String, String>)| ChoiceOutput {
        request: asked.to_owned(),
        works: found.is_ok(),
        line: found.unwrap_or_else(|why| why),
    };
    let output = BundleOutput {
        version: nearpage_recording::JSON_VERSION,
        system,
        architecture: replayed.architecture,
        nodes: machine.nodes.len(),
        cpus: machine.cpus().as_slice().len(),
        choices: replayed.choices.into_iter().map(choice).collect(),
        sources: replayed.sources,
    };
    Ok((machine, output))
}

impl BundleOutput {
    fn to_text(&self, machine: &Machine) -> String {
        let mut text = format!(
            "nearpage {} on Linux {}, {}\n",
            printable(&self.system.nearpage),
            printable(&self.system.kernel),
            printable(&self.architecture)
        );
        for (key, value) in &self.system.processor {
            let _ = writeln!(text, "{}: {}", printable(key), printable(value));
        }
        let _ = writeln!(text, "\n{}", machine.to_text(terminal::width()));
        for choice in &self.choices {
            let _ = writeln!(
                text,
                "record --source {}: {}",
                choice.request,
                printable(&choice.line)
            );
        }
        for source in &self.sources {
            let _ = write!(text, "\n{}: ", printable(&source.name));
            if !source.missing.is_empty() {
                let _ = writeln!(text, "no records: {}", printable(&source.missing));
                continue;
            }
            let _ = write!(
                text,
                "{}, {} accesses ({} to the loop's data), {} computation, {} undecoded, {} malformed",
                counted(source.records as u64, "record"),
                source.accesses,
                source.to_data,
                source.compute,
                source.undecoded,
                source.malformed
            );
            if let Some(cycles) = source.latency_cycles {
                let _ = write!(text, ", median latency {cycles} cycles");
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_of_this_machine_says_what_this_machine_is() {
        let files = gathered().unwrap();
        let bytes = packed(&files).unwrap();
        let (there, found) = output(&bytes).unwrap();
        let here = Machine::local(Path::new(SYS)).unwrap();
        assert_eq!(
            (found.nodes, found.cpus),
            (here.nodes.len(), here.cpus().as_slice().len())
        );
        assert_eq!((there.nodes, there.caches), (here.nodes, here.caches));
        assert_eq!(found.choices.len(), 4);
        for source in found
            .sources
            .iter()
            .filter(|source| source.missing.is_empty())
        {
            assert_eq!(source.malformed, 0, "{source:?}");
            assert!(source.records <= 200 && source.accesses > 0, "{source:?}");
            assert!(source.to_data > source.accesses / 2, "{source:?}");
        }
        let listed = listed(&files);
        assert!(
            listed.contains("nearpage/perf.json") && listed.lines().count() < 200,
            "{listed}"
        );
    }

    #[test]
    fn a_bundle_tells_nothing_of_who_made_it() {
        let files = gathered().unwrap();
        let mut secrets = vec![
            env!("CARGO_MANIFEST_DIR").to_owned(),
            read("/proc/sys/kernel/hostname").trim().to_owned(),
        ];
        secrets.extend(std::env::args());
        secrets.extend(
            ["HOME", "USER"]
                .iter()
                .filter_map(|name| std::env::var(name).ok()),
        );
        for secret in secrets.iter().filter(|secret| secret.len() > 5) {
            for (path, content) in &files {
                let content = content.as_deref().unwrap_or_default();
                let is_in =
                    path.contains(secret) || String::from_utf8_lossy(content).contains(secret);
                assert!(!is_in, "{path} has {secret}");
            }
        }
        let is_told = |path: &str| {
            let folders = path.starts_with("sys/") || path.starts_with("nearpage/");
            folders || path == "proc/hwloc-nofile-info"
        };
        assert!(files.keys().all(|path| is_told(path)));
    }

    #[test]
    fn other_files_are_refused_as_bundles_in_one_line() {
        let mut files = gathered().unwrap();
        let refusal = |files: &Files| {
            let error = output(&packed(files).unwrap()).expect_err("refused");
            let words = format!("{error:#}");
            assert!(!words.contains('\n') && words.len() < 300, "{words}");
            words
        };
        let perf = files
            .insert(PERF.to_owned(), Some(b"{\"version\": 1}".to_vec()))
            .flatten()
            .unwrap();
        assert!(refusal(&files).contains(PERF));
        let other =
            String::from_utf8(perf)
                .unwrap()
                .replacen("\"version\": 1", "\"version\": 9", 1);
        files.insert(PERF.to_owned(), Some(other.into_bytes()));
        assert!(refusal(&files).contains("version 9"));
        files.remove(PERF);
        assert!(refusal(&files).contains("it has no nearpage/perf.json"));
        assert!(output(b"no archive").is_err());
    }
}
