//! `nearpage doctor`: what this machine allows. Everything missing has its cause and remedy.

mod bundle;
mod page;

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use nearpage_amount::counted;
use nearpage_machine::Machine;
use nearpage_report::emphasis::{BAD, DOUBTFUL, GOOD, painted};
use nearpage_runner::{
    Emulator, LabParts, PLUGINS_FROM, PRELOAD_MISSING, PreloadLibrary, TracerPlugin,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{arguments, json, terminal};

pub use bundle::BundleOutput;

/// How well something works here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// Works.
    Ok,
    /// Works in part, or something else is used instead.
    Limited,
    /// Does not work.
    Missing,
}

/// One thing that nearpage can use.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct Finding {
    /// Name of the facility.
    name: &'static str,
    /// How well nearpage can use the facility here.
    state: State,
    /// The facility that was found, or the reason why it is missing.
    found: String,
    /// How to make the facility available; empty where there is nothing to do.
    remedy: String,
}

/// What `doctor --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DoctorOutput {
    /// Version of this form.
    version: u32,
    /// A finding for each thing that nearpage can use.
    findings: Vec<Finding>,
}

impl Finding {
    fn new(
        name: &'static str,
        state: State,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            state,
            found: found.into(),
            remedy: remedy.into(),
        }
    }
}

pub fn main(arguments: arguments::Doctor) -> anyhow::Result<ExitCode> {
    if let Some(file) = &arguments.bundle {
        return bundle::write(file, arguments.yes);
    }
    if let Some(file) = &arguments.from_bundle {
        return bundle::replay(file, arguments.json);
    }
    let findings = examine();
    if arguments.json {
        json::print(&DoctorOutput {
            version: nearpage_recording::JSON_VERSION,
            findings,
        })?;
    } else {
        let text = to_text(&findings, terminal::width(), terminal::colour());
        terminal::print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn examine() -> Vec<Finding> {
    let machine = Machine::local(Path::new("/sys"));
    let mut findings = vec![nodes(&machine)];
    findings.extend(machine.as_ref().ok().and_then(devices));
    findings.extend(sources());
    findings.push(preload());
    findings.push(tracer());
    findings.push(lab());
    findings.extend(policies());
    findings.push(balancing(Path::new("/proc")));
    findings.push(huge_pages(Path::new("/sys")));
    findings.push(mappings(Path::new("/proc")));
    findings
}

fn nodes(machine: &Result<Machine, nearpage_machine::Error>) -> Finding {
    let machine = match machine {
        Ok(machine) => machine,
        Err(error) => {
            return Finding::new(
                "memory nodes",
                State::Missing,
                error.to_string(),
                "mount sysfs",
            );
        }
    };
    let cpus = counted(machine.cpus().as_slice().len() as u64, "CPU");
    match machine.nodes.len() {
        1 => Finding::new(
            "memory nodes",
            State::Limited,
            format!("1 node, {cpus}: recording and planning work, there is nothing to place here"),
            "plan for another machine with --machine, and run the plan there",
        ),
        count => Finding::new(
            "memory nodes",
            State::Ok,
            format!("{count} nodes, {cpus}"),
            "",
        ),
    }
}

/// Finding about PCI devices and their nodes; `None` without devices.
fn devices(machine: &Machine) -> Option<Finding> {
    let found = machine.device_lines().join("; ");
    if machine.devices.is_empty() {
        return None;
    }
    let is_known = machine.devices.iter().all(|device| device.node.is_some());
    Some(match is_known {
        true => Finding::new("devices", State::Ok, found, ""),
        false => Finding::new(
            "devices",
            State::Limited,
            found,
            "the firmware does not say which node a device is next to; look for a NUMA or PCI locality setting there",
        ),
    })
}

/// Findings about the sources of accesses.
fn sources() -> Vec<Finding> {
    let as_finding = |probed: nearpage_sampler::Finding| {
        let state = match (probed.available, probed.subject) {
            (true, _) => State::Ok,
            (false, "clock samples") => State::Missing,
            (false, _) => State::Limited,
        };
        let found = if probed.cause.is_empty() {
            probed.found
        } else {
            format!("{}: {}", probed.found, probed.cause)
        };
        Finding::new(probed.subject, state, found, probed.remedy)
    };
    let preload = PreloadLibrary::find()
        .map(drop)
        .map_err(|_| nearpage_sampler::NoPreload(PRELOAD_MISSING.to_owned()));
    nearpage_sampler::probe(&preload, Path::new("/proc"))
        .into_iter()
        .map(as_finding)
        .collect()
}

fn preload() -> Finding {
    match PreloadLibrary::find() {
        Ok(library) => Finding::new(
            "preload library",
            State::Ok,
            library.ld_preload().to_string_lossy(),
            "",
        ),
        Err(error) => Finding::new(
            "preload library",
            State::Missing,
            error.to_string(),
            "install libnearpage_preload.so beside nearpage; without it no heap objects and no placement",
        ),
    }
}

/// Finding about the tracer: the QEMUs on this machine, and whether one of them can load the plugin.
fn tracer() -> Finding {
    let plugin = TracerPlugin::find();
    let emulators = Emulator::all();
    let listed: Vec<String> = emulators
        .iter()
        .map(|emulator| {
            let able = if emulator.loads_plugins {
                "can load it"
            } else {
                "built without plugins, can't load it"
            };
            format!("{} {}: {able}", emulator.path.display(), emulator.version)
        })
        .collect();
    let usable = emulators.iter().any(|emulator| emulator.loads_plugins);
    match plugin {
        Ok(_) if usable => Finding::new("tracer", State::Ok, listed.join("; "), ""),
        Ok(_) => Finding::new(
            "tracer",
            State::Limited,
            if listed.is_empty() {
                "no qemu-x86_64: `nearpage trace` cannot work".to_owned()
            } else {
                listed.join("; ")
            },
            PLUGINS_FROM,
        ),
        Err(error) => Finding::new(
            "tracer",
            State::Limited,
            error.to_string(),
            "install libnearpage_tracer.so beside nearpage; `nearpage trace` needs it",
        ),
    }
}

/// Finding about the parts that `nearpage lab` needs.
fn lab() -> Finding {
    match LabParts::find(None) {
        Ok(parts) => Finding::new(
            "lab",
            State::Ok,
            format!(
                "{}, kernel {}",
                parts.emulator.display(),
                parts.kernel.display()
            ),
            "",
        ),
        Err(error) => {
            let words = error.to_string();
            let (found, remedy) = words.split_once(": ").unwrap_or((&words, ""));
            Finding::new("lab", State::Limited, found, remedy)
        }
    }
}

/// Tries each system call that placement uses on a page of nearpage's own.
fn policies() -> Vec<Finding> {
    let refused = |name, error: &io::Error, instead: &str| {
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM) => {
                "a seccomp profile refuses it: run the container with CAP_SYS_NICE, or a profile that \
                                  allows mbind, set_mempolicy and move_pages"
            }
            Some(libc::ENOSYS) => "the kernel was built without CONFIG_NUMA",
            _ => "",
        };
        Finding::new(name, State::Limited, format!("{error}; {instead}"), remedy)
    };
    let mut findings = Vec::new();
    findings.push(match page::bind(libc::MPOL_PREFERRED) {
        Ok(()) => Finding::new("mbind", State::Ok, "memory policies can be set", ""),
        Err(error) => refused("mbind", &error, "`run` falls back to --mechanism touch"),
    });
    findings.push(match page::bind(page::MPOL_WEIGHTED_INTERLEAVE) {
        Ok(()) => Finding::new("weighted interleave", State::Ok, "the kernel's own", ""),
        Err(error) => Finding::new(
            "weighted interleave",
            State::Limited,
            format!("{error}; weights are laid out page run by page run instead"),
            "Linux 6.9 or newer",
        ),
    });
    findings.push(match page::query_node() {
        Ok(node) => Finding::new(
            "move_pages",
            State::Ok,
            format!("pages can be located (ours is on node {node})"),
            "",
        ),
        Err(error) => refused("move_pages", &error, "remote accesses can't be told"),
    });
    findings
}

fn balancing(proc_root: &Path) -> Finding {
    let state = fs::read_to_string(proc_root.join("sys/kernel/numa_balancing")).unwrap_or_default();
    match state.trim() {
        "" => Finding::new(
            "automatic NUMA balancing",
            State::Ok,
            "not in this kernel",
            "",
        ),
        "0" => Finding::new("automatic NUMA balancing", State::Ok, "off", ""),
        _ => Finding::new(
            "automatic NUMA balancing",
            State::Limited,
            "on: the kernel moves pages too; those under a memory policy of ours stay",
            "for comparisons, echo 0 >/proc/sys/kernel/numa_balancing (as root)",
        ),
    }
}

fn huge_pages(sys: &Path) -> Finding {
    let text =
        fs::read_to_string(sys.join("kernel/mm/transparent_hugepage/enabled")).unwrap_or_default();
    let chosen = text
        .split(['[', ']'])
        .nth(1)
        .unwrap_or("not in this kernel")
        .to_owned();
    let found = match chosen.as_str() {
        "always" => "always: large objects are placed in huge pages' steps".to_owned(),
        "madvise" => {
            "madvise: placed in huge pages' steps where the program asks for them".to_owned()
        }
        other => other.to_owned(),
    };
    Finding::new("transparent huge pages", State::Ok, found, "")
}

fn mappings(proc_root: &Path) -> Finding {
    let text = fs::read_to_string(proc_root.join("sys/vm/max_map_count")).unwrap_or_default();
    match text.trim().parse::<u64>() {
        Ok(count) => Finding::new(
            "mappings",
            State::Ok,
            format!("{count} per process; placement adds at most {}", count / 4),
            "",
        ),
        Err(_) => Finding::new(
            "mappings",
            State::Limited,
            "vm.max_map_count can't be read; 65530 is assumed",
            "",
        ),
    }
}

fn to_text(findings: &[Finding], width: usize, colour: bool) -> String {
    const STATE_COLUMNS: usize = 8;
    const FOUND_COLUMNS_MIN: usize = 24;
    let names = findings.iter().map(|finding| finding.name.len());
    let name_columns = names.max().unwrap_or(0);
    let beside = name_columns + 2 + STATE_COLUMNS;
    // A narrow terminal shows the finding below its name.
    let is_narrow = width < beside + FOUND_COLUMNS_MIN;
    let (name_columns, state_columns, indent) = match is_narrow {
        true => (0, 0, 2),
        false => (name_columns, STATE_COLUMNS, beside),
    };
    let next_line = format!("\n{:indent$}", "");
    let mut text = String::new();
    for finding in findings {
        let (word, style) = match finding.state {
            State::Ok => ("ok", GOOD),
            State::Limited => ("limited", DOUBTFUL),
            State::Missing => ("missing", BAD),
        };
        let word = painted(&format!("{word:<state_columns$}"), style, colour);
        let mut body = finding.found.clone();
        if !finding.remedy.is_empty() {
            let _ = write!(body, "\nremedy: {}", finding.remedy);
        }
        let lines: Vec<String> = body
            .lines()
            .flat_map(|line| wrap(line, width.saturating_sub(indent)))
            .collect();
        let _ = writeln!(
            text,
            "{:<name_columns$}  {word}{}{}",
            finding.name,
            if is_narrow { &next_line } else { "" },
            lines.join(&next_line)
        );
    }
    text
}

/// Breaks a line at spaces. A word that is longer than `width` stays whole.
fn wrap(line: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in line.split(' ') {
        let last = lines.last_mut().expect("never empty");
        if last.is_empty() {
            last.push_str(word);
        } else if last.chars().count() + 1 + word.chars().count() <= width {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_wraps_and_names_remedies() {
        let findings = ["mbind", "automatic NUMA balancing"].map(|name| {
            let found = "a b c d e f g h i j k l m n o p q r s t";
            Finding::new(name, State::Limited, found, "do this")
        });
        for width in [40, 50, 57, 58, 80] {
            let text = to_text(&findings, width, false);
            assert!(
                text.lines().all(|line| line.chars().count() <= width),
                "{text}"
            );
            assert_eq!(text.matches("remedy: do this").count(), 2, "{text}");
            assert_eq!(text.starts_with("mbind  limited\n  a b"), width < 58);
            assert!(!text.contains('\x1b'));
        }
    }

    #[test]
    fn huge_page_state_is_the_bracketed_word() {
        let root = std::env::temp_dir().join(format!("nearpage-doctor-{}", std::process::id()));
        let folder = root.join("kernel/mm/transparent_hugepage");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("enabled"), "always [madvise] never\n").unwrap();
        assert!(huge_pages(&root).found.starts_with("madvise"));
        fs::remove_dir_all(&root).unwrap();
    }
}
