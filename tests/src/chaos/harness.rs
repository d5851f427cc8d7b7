//! Runs a program natively and observed, and compares the results.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::event::{Event, ObserverFault};

/// Time after which a step counts as hanging: far more than the slowest machine needs.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// Shell script: runs a command in a folder, and keeps the command's output and exit status there.
const KEEPER: &str = "cd \"$1\" && shift && : >../started && \"$@\" >out 2>err </dev/null; echo $? >status.new; mv status.new status";

/// Result of an event.
#[derive(Debug)]
pub enum Outcome {
    /// The program behaved as it does natively.
    Well,
    /// Nothing could be compared: even the native run took too long, for instance because the machine is busy.
    Unjudged,
    /// A rule was broken.
    BrokenRules(BrokenRules),
}

/// The broken rules of an event.
#[derive(Debug)]
pub struct BrokenRules {
    /// The event, in words.
    pub event: String,
    /// A line for each broken rule.
    pub found: Vec<String>,
    /// Folder with all files of the event.
    pub folder: PathBuf,
}

impl fmt::Display for BrokenRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.event, self.found.join("; "))?;
        write!(f, " ({})", self.folder.display())
    }
}

/// Runs events in a folder, one at a time.
pub struct Harness {
    nearpage: PathBuf,
    folder: PathBuf,
    is_root: bool,
}

struct Trial<'a> {
    harness: &'a Harness,
    event: &'a Event,
    folder: PathBuf,
    found: Vec<String>,
}

impl Harness {
    /// Writes the programs' input files into the folder.
    pub fn new(nearpage: &Path, folder: &Path) -> io::Result<Self> {
        let inputs = folder.join("inputs");
        fs::create_dir_all(&inputs)?;
        let line = |line: u32| format!("{} line {line}\n", line.wrapping_mul(2_654_435_761));
        fs::write(
            inputs.join("text"),
            (0..100_000).map(line).collect::<String>(),
        )?;
        let number = |line: u32| format!("{}\n", line.wrapping_mul(2_654_435_761) % 100_003);
        fs::write(
            inputs.join("numbers"),
            (0..9_000).map(number).collect::<String>(),
        )?;
        let hello = "#include <stdio.h>\nint main(void) { return printf(\"hello\\n\"); }\n";
        fs::write(inputs.join("hello.c"), hello)?;
        Ok(Self {
            nearpage: nearpage.to_owned(),
            folder: folder.canonicalize()?,
            is_root: fs::metadata("/proc/self")?.is_dir() && user_id() == 0,
        })
    }

    /// Runs an event.
    ///
    /// # Errors
    /// A folder can't be made, or a program can't be started.
    pub fn run(&self, event: &Event) -> io::Result<Outcome> {
        let folder = self.folder.join(format!("event-{}", event.number));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        for part in ["native", "observed", "temporary", "written"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let mut trial = Trial {
            harness: self,
            event,
            folder,
            found: Vec::new(),
        };
        let is_judged = trial.happen()?;
        let Trial { folder, found, .. } = trial;
        if found.is_empty() || !is_judged {
            fs::remove_dir_all(&folder)?;
            return Ok(if is_judged {
                Outcome::Well
            } else {
                Outcome::Unjudged
            });
        }
        Ok(Outcome::BrokenRules(BrokenRules {
            event: event.to_string(),
            found,
            folder,
        }))
    }
}

impl Trial<'_> {
    /// Runs the event. Returns false if the native run took too long, so that nothing can be compared.
    fn happen(&mut self) -> io::Result<bool> {
        let native = self.command("sh", &self.words("native")).spawn()?;
        if self.wait(native, "the program by itself")?.is_none() {
            return Ok(false);
        }
        self.end_processes("the program by itself");
        let _ = fs::remove_file(self.folder.join("started"));
        let disk = self.mount()?;
        self.observe()?;
        self.end_processes("observed");
        self.compare();
        self.look_at_recording()?;
        self.look_for_leftovers()?;
        drop(disk);
        Ok(true)
    }

    /// The program's command line, with output in the subfolder `part`.
    fn words(&self, part: &str) -> Vec<String> {
        let folder = self.folder.join(part).display().to_string();
        let mut words = ["-c", KEEPER, "keeper", &folder]
            .map(str::to_owned)
            .to_vec();
        words.extend(self.event.surroundings.words());
        words.extend(["sh", "-c", self.event.program.script].map(str::to_owned));
        words
    }

    /// A command with the environment that native and observed runs share.
    fn command(&self, program: &str, words: &[String]) -> Command {
        let temporary = match self.event.fault {
            ObserverFault::NoTemporaryFolder => "gone",
            _ => "temporary",
        };
        let mut command = Command::new(program);
        command
            .args(words)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("LC_ALL", "C")
            .env("HOME", &self.folder)
            .env("XDG_DATA_HOME", self.folder.join("kept"))
            .env("TMPDIR", self.folder.join(temporary))
            .env("INPUTS", self.harness.folder.join("inputs"))
            .env("NEARPAGE_CHAOS", &self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        command
    }

    /// Runs the program under nearpage, with the fault.
    fn observe(&mut self) -> io::Result<()> {
        let observer = &self.event.observer;
        let written = self.folder.join("written/recording").display().to_string();
        let words = observer
            .words
            .iter()
            .map(|word| word.replace("OUT", &written));
        let mut words: Vec<String> = words.collect();
        let mut attached = None;
        if observer.attaches {
            let program = self.command("sh", &self.words("observed")).spawn()?;
            words.push(program.id().to_string());
            attached = Some(program);
        } else {
            words.extend(["--", "sh"].map(str::to_owned));
            words.extend(self.words("observed"));
        }
        let nearpage = self.harness.nearpage.display().to_string();
        let mut command = match self.event.fault {
            ObserverFault::ClosedStreams(streams) => {
                let script = format!("exec \"$@\" {streams}");
                let mut before = ["-c", &script, "closed", &nearpage]
                    .map(str::to_owned)
                    .to_vec();
                before.extend(words);
                self.command("sh", &before)
            }
            _ => self.command(&nearpage, &words),
        };
        let error = self.folder.join("nearpage.err");
        command.stderr(File::create(&error)?);
        command.stdout(File::create(self.folder.join("nearpage.out"))?);
        if self.event.fault == ObserverFault::BrokenPipe {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut nearpage = command.spawn()?;
        drop((nearpage.stdout.take(), nearpage.stderr.take()));
        match self.event.fault {
            ObserverFault::Signal(name, after_ms) => {
                sleep(Duration::from_millis(after_ms));
                signal(name, &nearpage);
            }
            ObserverFault::Pause(after_ms, for_ms) => {
                sleep(Duration::from_millis(after_ms));
                signal("STOP", &nearpage);
                sleep(Duration::from_millis(for_ms));
                signal("CONT", &nearpage);
            }
            _ => {}
        }
        let status = self.wait(nearpage, "nearpage")?;
        if let Some(program) = attached {
            self.wait(program, "the program that nearpage was attached to")?;
        }
        if let Some(status) = status {
            self.check_status(status);
        }
        Ok(())
    }

    /// Waits for a process; kills its process group after the time limit.
    fn wait(&mut self, mut child: Child, name: &str) -> io::Result<Option<ExitStatus>> {
        let begin = Instant::now();
        while begin.elapsed() < TIME_LIMIT {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            sleep(Duration::from_millis(3));
        }
        self.found.push(format!("{name} hangs"));
        for process in self.processes() {
            kill("KILL", process);
        }
        child.wait()?;
        Ok(None)
    }

    /// Checks nearpage's exit status and messages.
    fn check_status(&mut self, status: ExitStatus) {
        let error = fs::read_to_string(self.folder.join("nearpage.err")).unwrap_or_default();
        if error.contains("panicked at") {
            self.found.push("nearpage panicked".to_owned());
        }
        let program = fs::read_to_string(self.folder.join("native/status")).unwrap_or_default();
        let is_own = matches!(
            self.event.fault,
            ObserverFault::Signal(..) | ObserverFault::BrokenPipe
        );
        match (status.code(), status.signal()) {
            (_, Some(signal)) if !is_own => {
                self.found.push(format!("nearpage died of signal {signal}"))
            }
            (Some(code), _) if code >= 126 && !is_own && program.trim() != code.to_string() => {
                self.found
                    .push(format!("nearpage ended with {code}: {error}"));
            }
            _ => {}
        }
    }

    /// Running processes of this event.
    fn processes(&self) -> Vec<u32> {
        let mark = format!("NEARPAGE_CHAOS={}", self.folder.display());
        let Ok(processes) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment
                .split(|&byte| byte == 0)
                .any(|one| one == mark.as_bytes())
        })
        .collect()
    }

    /// Waits for leftover processes.
    fn end_processes(&mut self, of: &str) {
        let begin = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            if begin.elapsed() > TIME_LIMIT {
                let name =
                    |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                let names: Vec<String> =
                    left.iter().map(|pid| name(pid).trim().to_owned()).collect();
                self.found
                    .push(format!("{of}: {} still runs", names.join(", ")));
                left.into_iter().for_each(|pid| kill("KILL", pid));
                return;
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Checks that a started program did the same as in the native run.
    fn compare(&mut self) {
        if !self.folder.join("started").exists() {
            // Without permission to observe, nearpage may refuse to start the program, but must say why.
            let error = fs::read_to_string(self.folder.join("nearpage.err")).unwrap_or_default();
            if self.event.fault == ObserverFault::Nothing && !error.contains("nearpage: ") {
                self.found
                    .push("the program was not started, without a word".to_owned());
            }
            return;
        }
        if self.event.reaches_program() {
            return;
        }
        let [native, observed] =
            ["native", "observed"].map(|part| contents(&self.folder.join(part)));
        for name in native.keys().chain(observed.keys()) {
            let words = match (native.get(name), observed.get(name)) {
                (Some(_), None) => "is missing",
                (None, Some(_)) => "is too much",
                (Some(native), Some(observed)) if native != observed => "differs",
                _ => continue,
            };
            self.found.push(format!("{name} {words}"));
        }
        self.found.dedup();
    }

    /// Checks that the recording opens, however the recorder ended.
    fn look_at_recording(&mut self) -> io::Result<()> {
        let recording = self.folder.join("written/recording");
        // A recorder that was killed early leaves an empty folder.
        if !recording.exists()
            || !self.folder.join("started").exists()
            || matches!(self.event.fault, ObserverFault::FullDisk(_)) && !self.is_whole()
        {
            return Ok(());
        }
        let words = ["report", "--json", &recording.display().to_string()].map(str::to_owned);
        let mut command = self.command(&self.harness.nearpage.display().to_string(), &words);
        let path = self.folder.join("report.err");
        let report = command.stderr(File::create(&path)?).spawn()?;
        if let Some(status) = self.wait(report, "nearpage report")?
            && !status.success()
        {
            let error = fs::read_to_string(path)?;
            self.found
                .push(format!("the recording does not open: {}", error.trim()));
        }
        Ok(())
    }

    /// Did the recorder finish the recording?
    fn is_whole(&self) -> bool {
        self.folder
            .join("written/recording/recording.json")
            .exists()
    }

    /// Checks for leftover temporary files: the next nearpage removes those of a killed one.
    fn look_for_leftovers(&mut self) -> io::Result<()> {
        let left = || -> io::Result<Vec<String>> {
            let files = fs::read_dir(self.folder.join("temporary"))?;
            files
                .map(|file| Ok(file?.file_name().display().to_string()))
                .collect()
        };
        if matches!(self.event.fault, ObserverFault::Signal(..)) && !left()?.is_empty() {
            let words = ["run", "--place", "rest=interleave", "true"].map(str::to_owned);
            let mut next = self.command(&self.harness.nearpage.display().to_string(), &words);
            next.status()?;
        }
        let words = left()?
            .into_iter()
            .map(|name| format!("{name} is left in the folder for temporary files"));
        self.found.extend(words);
        Ok(())
    }

    /// Mounts a small disk for nearpage's output.
    fn mount(&self) -> io::Result<Option<Disk>> {
        let ObserverFault::FullDisk(kib) = self.event.fault else {
            return Ok(None);
        };
        if !self.harness.is_root {
            return Ok(None);
        }
        let folder = self.folder.join("written");
        let options = format!("size={kib}k");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(&folder)
            .status()?;
        Ok(mount.success().then_some(Disk(folder)))
    }
}

/// A disk that is unmounted when dropped.
struct Disk(PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn signal(name: &str, child: &Child) {
    kill(name, child.id());
}

/// Sends a signal; ignores processes that have already ended.
fn kill(name: &str, pid: u32) {
    let kill = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .stderr(Stdio::null())
        .status();
    let _ = kill;
}

fn user_id() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let effective = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    effective.unwrap_or(u32::MAX)
}

/// Contents of all files below a folder, by path.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(one) = folders.pop() {
        for entry in fs::read_dir(&one).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path
                    .strip_prefix(folder)
                    .unwrap_or(&path)
                    .display()
                    .to_string();
                let bytes = fs::read(&path).unwrap_or_default();
                files.insert(name, without_numbers(bytes));
            }
        }
    }
    files
}

/// Output of stress-ng without process ids and times (`stress-ng: fail:  [4711] memfd: …`, `finished prematurely after
/// just 0.50s`).
fn without_numbers(text: Vec<u8>) -> Vec<u8> {
    if !text.starts_with(b"stress-ng: ") {
        return text;
    }
    let text = String::from_utf8_lossy(&text);
    let without = |line: &str, before: &str| match line.split_once(before) {
        Some((begin, rest)) => {
            let is_of_number = |character: char| character.is_ascii_digit() || character == '.';
            format!("{begin}{before}{}", rest.trim_start_matches(is_of_number))
        }
        None => line.to_owned(),
    };
    let lines = text
        .lines()
        .map(|line| without(&without(line, "  ["), "after just ") + "\n");
    lines.collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::without_numbers;

    #[test]
    fn messages_of_different_processes_are_equal_and_other_output_is_kept() {
        let message = |pid, seconds| {
            format!(
                "stress-ng: fail:  [{pid}] memfd: errno=1\nstress-ng: 7\n\
                 stress-ng: warn:  [{pid}] memfd: WARNING: finished prematurely after just {seconds}s\n"
            )
            .into_bytes()
        };
        let [one, other] =
            [(14086, 0.5), (9, 0.51)].map(|(pid, seconds)| without_numbers(message(pid, seconds)));
        assert_eq!(one, other);
        let expected = "stress-ng: fail:  [] memfd: errno=1\nstress-ng: 7\n\
                        stress-ng: warn:  [] memfd: WARNING: finished prematurely after just s\n";
        assert_eq!(String::from_utf8(one).unwrap(), expected);
        assert_eq!(without_numbers(b"  [1] x".to_vec()), b"  [1] x");
    }
}
