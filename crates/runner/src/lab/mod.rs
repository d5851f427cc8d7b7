//! Runs a command on a modelled machine: in a real Linux guest whose clock follows the tracer's model.

mod counts;
mod emulator;
mod error;
mod guest;
mod initramfs;
mod kept;
mod kernel;
mod machine;
mod pages;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearpage_files::TemporaryFolder;
use nearpage_machine::Machine;

pub use counts::{LabCounts, LabNode, LabPair, LabServer};
pub use emulator::LabParts;
pub use error::LabError;
pub use kernel::{LabFunction, LabKernel, LabKernelGroup};
pub use pages::LabPages;

use crate::TracerPlugin;
use crate::error::{Error, IoContext, NO_FOLDER, check_command};
use guest::Guest;
use kernel::KernelSymbols;
use machine::{LabMachine, ModelStart};

/// Options of a run in the lab.
#[derive(Clone, Debug)]
pub struct LabOptions {
    /// The command and its arguments; empty: a shell on the console.
    pub command: Vec<OsString>,
    /// A line of shell that the guest runs before the command. Its time does not count.
    pub before: Option<String>,
    /// The modelled machine: `local`, a preset or a file.
    pub machine: String,
    /// Total number of CPUs, spread evenly over the nodes. `None`: the machine's CPUs, at most sixteen.
    pub cpus: Option<u32>,
    /// Memory of each node, in MiB.
    pub memory_mib: u32,
    /// Kernel to boot. `None`: the newest in /boot, or the kernel of the tests' guest.
    pub kernel: Option<PathBuf>,
    /// A folder that the command may write to.
    pub share: Option<PathBuf>,
    /// Point from which time is modelled.
    pub modelled_from: ModelledFrom,
    /// Instructions of all CPUs from that point that warm the caches and are not counted.
    pub warm_up_instructions: u64,
    /// Seed of the emulator's random numbers.
    pub seed: u32,
    /// Processor time limit of the boot; the wall-clock limit is ten times as long. `None`: by the number of CPUs.
    pub boot_limit: Option<Duration>,
    /// Time limit of the command on this host.
    pub time_limit: Option<Duration>,
}

/// Point from which time is modelled. Before that point, each instruction takes as long as without any miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelledFrom {
    /// The boot.
    Boot,
    /// The start of the command.
    Command,
    /// The first `nearpage_begin` of the program.
    Marker,
}

impl ModelledFrom {
    /// Number of begin marks before the model starts. The first mark precedes the command.
    fn begin_marks(self) -> u64 {
        match self {
            Self::Boot => 0,
            Self::Command => 1,
            Self::Marker => 2,
        }
    }
}

/// Result of a run in the lab.
#[derive(Clone, Debug)]
pub struct LabRun {
    /// Exit status of the command, as a shell shows it.
    pub status: u8,
    /// Name of the modelled machine.
    pub machine: String,
    /// CPUs of the guest.
    pub cpus: u32,
    /// Counts of the model; `None` for a shell.
    pub counts: Option<LabCounts>,
    /// Page events while the command ran; `None` for a shell, or if the kernel does not count them.
    pub pages: Option<LabPages>,
    /// Assumptions about the machine.
    pub assumed: Vec<String>,
    /// Messages of the guest's kernel that put its clock or memory in doubt.
    pub warnings: Vec<String>,
}

/// Output stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabStream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// Called with the command's output while the command runs.
pub type LabPrinter<'a> = &'a dyn Fn(LabStream, &[u8]);

/// Runs a command on a modelled machine.
///
/// # Errors
/// The command, emulator, firmware, kernel, busybox or tracer is missing. The machine can't be modelled, or lacks the
/// CPUs or memory. The guest doesn't boot, or crashes. An interrupt.
pub fn lab(options: &LabOptions, print: LabPrinter<'_>) -> Result<LabRun, Error> {
    let machine = Machine::by_name_or_path(&options.machine, Path::new("/sys"))?;
    let shell = options.command.is_empty();
    if !shell {
        // A missing program shows before the boot, because the guest has the same programs.
        check_command(&options.command)?;
    }
    let machine = LabMachine::new(
        &machine,
        &options.machine,
        options.cpus,
        options.memory_mib,
        ModelStart {
            begin_marks: options.modelled_from.begin_marks(),
            warm_up_instructions: options.warm_up_instructions,
        },
    )?;
    let parts = LabParts::find(options.kernel.as_deref())?;
    let plugin = TracerPlugin::find()?;
    let folder = TemporaryFolder::new("lab").context(NO_FOLDER)?;
    let folders = Folders::make(folder.path(), options.share.as_deref())?;
    let write = |name: &str, text: &[u8]| {
        let path = folders.own.join(name);
        fs::write(&path, text).at(&path, "can't be written")?;
        Ok::<PathBuf, Error>(path)
    };
    let setup = write("setup", machine.setup.as_bytes())?;
    let plugin = |name: &str, lab_setup: &str| {
        Ok::<String, Error>(format!(
            "{},setup={},out={},lab={}",
            text(&plugin.path)?,
            text(&setup)?,
            text(&folders.own)?,
            text(&write(name, lab_setup.as_bytes())?)?
        ))
    };
    let stopping = machine.lab_setup.replace("stop_booted 0", "stop_booted 1");
    let script = guest_script(&options.command, options.before.as_deref());
    folders.write_for_guest("script", &script)?;
    if shell {
        folders.write_for_guest("shell", b"")?;
    }
    if let Some(share) = &folders.share {
        folders.write_for_guest("share", text(share)?.as_bytes())?;
    }
    let initramfs = folders.own.join("initramfs");
    initramfs::write(&parts, &initramfs)?;
    let guest = Guest {
        machine: &machine,
        parts: &parts,
        plugin: plugin("lab_setup", &machine.lab_setup)?,
        stopping_plugin: plugin("stopping_setup", &stopping)?,
        initramfs: &initramfs,
        folders: &folders,
        shell,
        seed: options.seed,
        boot_limit: options
            .boot_limit
            .unwrap_or_else(|| boot_limit(machine.cpus())),
        time_limit: options.time_limit,
    };
    // A modelled boot cannot be reused, because a saved guest has no caches and TLBs.
    let kept = match options.modelled_from {
        ModelledFrom::Boot => None,
        _ => guest.kept_path()?,
    };
    let ended = guest.run(kept.as_deref(), print)?;
    let counts = match shell {
        true => None,
        false => Some(counted(options.modelled_from, &machine, &folders)?),
    };
    let events = |file: &str| fs::read_to_string(folders.work.join(file)).unwrap_or_default();
    let pages = LabPages::parse(&events(EVENTS_BEFORE), &events(EVENTS_AFTER));
    Ok(LabRun {
        status: ended.status,
        machine: machine.machine().name.clone(),
        cpus: machine.cpus(),
        counts,
        pages,
        assumed: machine.assumed.clone(),
        warnings: ended.warnings,
    })
}

/// Counts of the model.
fn counted(
    from: ModelledFrom,
    machine: &LabMachine,
    folders: &Folders,
) -> Result<LabCounts, LabError> {
    let text = fs::read_to_string(folders.own.join("counts")).map_err(|_| match from {
        ModelledFrom::Marker => LabError::NoMarker,
        _ => LabError::NoCounts,
    })?;
    let symbols = fs::read(folders.work.join("kallsyms")).unwrap_or_default();
    let symbols = KernelSymbols::parse(&String::from_utf8_lossy(&symbols));
    let nodes = machine.machine().nodes.len();
    LabCounts::parse(&text, nodes, machine.instruction_ns(), &symbols)
}

/// Processor time limit of a boot: Linux 6.12 with 16 CPUs took more than 210 s, 6.1 with four 17 s.
fn boot_limit(cpus: u32) -> Duration {
    Duration::from_secs(u64::from(60 + 20 * cpus))
}

/// Folders of a run.
struct Folders {
    /// Folder for the emulator and the tracer alone.
    own: PathBuf,
    /// Folder that the guest writes to.
    work: PathBuf,
    /// Folder that the command may write to.
    share: Option<PathBuf>,
}

impl Folders {
    fn make(folder: &Path, share: Option<&Path>) -> Result<Self, Error> {
        let make = |name: &str| {
            let path = folder.join(name);
            fs::create_dir(&path).at(&path, "can't be made")?;
            path.canonicalize().at(&path, "can't be found")
        };
        let share = share.map(|share| share.canonicalize().at(share, "can't be found"));
        let folders = Self {
            own: make("own")?,
            work: make("work")?,
            share: share.transpose()?,
        };
        for path in [Some(&folders.work), folders.share.as_ref()]
            .into_iter()
            .flatten()
        {
            text(path)?;
        }
        Ok(folders)
    }

    /// Writes a file for the guest's first process.
    fn write_for_guest(&self, name: &str, content: &[u8]) -> Result<(), Error> {
        let path = self.work.join(name);
        fs::write(&path, content).at(&path, "can't be written")
    }
}

/// A path as text, if the emulator and the kernel's command line can take it.
fn text(path: &Path) -> Result<&str, LabError> {
    let text = path
        .to_str()
        .filter(|text| !text.contains([',', ' ', '"', '\n']));
    text.ok_or_else(|| LabError::Path {
        path: path.to_owned(),
    })
}

/// Quotes a word for a shell script.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend_from_slice(br"'\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// Files with the kernel's page counters before and after the command, in the work folder.
const EVENTS_BEFORE: &str = "vmstat-before";
const EVENTS_AFTER: &str = "vmstat-after";

/// Command for a shell on the console. When a session's first process ends, the kernel discards output that the console
/// has not shown yet, so `stty` waits until the output is shown.
const SHELL: &[u8] = b"/bin/sh -i; status=$?; stty sane; exit $status";

/// Script of the guest: this process's variables and folder, then `before`, then the command between two marks.
fn guest_script(command: &[OsString], before: Option<&str>) -> Vec<u8> {
    let mut script = Vec::new();
    let mut line = |parts: &[&[u8]]| {
        parts.iter().for_each(|part| script.extend_from_slice(part));
        script.push(b'\n');
    };
    for (name, value) in env::vars_os() {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let name = name.as_bytes();
        if name.iter().all(is_name) && !name.first().is_none_or(u8::is_ascii_digit) {
            line(&[b"export ", name, b"=", &quoted(&value)]);
        }
    }
    line(&[b"export TMPDIR=/dev/shm"]);
    if let Ok(folder) = env::current_dir() {
        line(&[b"cd ", &quoted(folder.as_os_str())]);
    }
    if command.is_empty() {
        line(&[b"exec setsid -c /bin/sh -c '", SHELL, b"'"]);
        return script;
    }
    let words: Vec<Vec<u8>> = command.iter().map(|word| quoted(word)).collect();
    if let Some(before) = before {
        line(&[before.as_bytes()]);
    }
    let events = |file: &str| format!("cat /proc/vmstat >/run/nearpage/{file}");
    line(&[events(EVENTS_BEFORE).as_bytes()]);
    line(&[b"/run/nearpage-begin"]);
    line(&[&words.join(&b' ')]);
    line(&[b"status=$?"]);
    line(&[b"/run/nearpage-end"]);
    line(&[events(EVENTS_AFTER).as_bytes()]);
    line(&[b"exit $status"]);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_reach_the_guest_as_they_were_typed() {
        let words = ["printf", "%s|", "a b", "it's", "$HOME", ""];
        let command: Vec<OsString> = words.map(OsString::from).to_vec();
        let script = String::from_utf8(guest_script(&command, Some("echo before"))).unwrap();
        let line = script
            .lines()
            .find(|line| line.starts_with("'printf'"))
            .unwrap();
        let output = std::process::Command::new("sh")
            .args(["-c", line])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a b|it's|$HOME||");
        assert!(script.contains("/run/nearpage-begin\n'printf'"), "{script}");
        let before = script.find("echo before\n").unwrap();
        assert!(before < script.find(EVENTS_BEFORE).unwrap(), "{script}");
        assert!(script.find(EVENTS_AFTER) > script.find("/run/nearpage-end"));
    }

    #[test]
    fn paths_that_the_emulator_would_split_are_refused() {
        assert!(text(Path::new("/a/b")).is_ok());
        for path in ["/a,b", "/a b"] {
            assert!(text(Path::new(path)).is_err(), "{path}");
        }
    }
}
