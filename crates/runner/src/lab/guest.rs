//! Runs a guest from its start to its end.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::emulator::{LabParts, firmware};
use super::error::LabError;
use super::kept::note_use;
use super::machine::LabMachine;
use super::{Folders, LabPrinter, LabStream, text};
use crate::error::{Error, IoContext};

/// Ratio of wall-clock time to processor time in the boot limit. It ends a boot whose emulator waits without using
/// processor time.
const CLOCK_TIMES_BOOT_LIMIT: u32 = 10;
/// Start of the kernel's message about a process that it killed for lack of memory.
const OUT_OF_MEMORY: &str = "Out of memory: Killed process";
/// Interval at which the guest's state is checked.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// `tsc=reliable`: emulated time stamp counters follow guest time exactly, so the kernel need not watch them.
const KERNEL_PARAMETERS: &str = "console=ttyS0 loglevel=5 panic=-1 tsc=reliable";
/// Kernel messages that put the guest's clock or scheduling in doubt.
const UNRELIABLE_CLOCK_MESSAGES: [&str; 5] = [
    "clocksource: Marking",
    "unstable",
    "soft lockup",
    "hard LOCKUP",
    "rcu: INFO",
];
/// Number of console lines in error messages.
const LAST_LINES: usize = 3;

/// Signal that interrupted waiting, in a static because a signal handler gets no other data.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

extern "C" fn interrupted(signal: libc::c_int) {
    INTERRUPTED.store(signal, Ordering::Relaxed);
}

/// Makes SIGINT, SIGTERM and SIGHUP end the guest; restores the earlier actions when dropped.
struct Interrupts([(libc::c_int, libc::sighandler_t); 3]);

impl Interrupts {
    fn take() -> Self {
        INTERRUPTED.store(0, Ordering::Relaxed);
        let handler = interrupted as extern "C" fn(libc::c_int) as libc::sighandler_t;
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
        // SAFETY: the handler only writes an atomic.
        Self(signals.map(|signal| (signal, unsafe { libc::signal(signal, handler) })))
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for (signal, action) in self.0 {
            // SAFETY: restores the action that `take` replaced.
            unsafe { libc::signal(signal, action) };
        }
    }
}

/// A running emulator, which is killed on drop.
pub(super) struct EmulatorProcess(pub Child);

impl Drop for EmulatorProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl EmulatorProcess {
    /// Processor time of the emulator.
    fn processor_time(&self) -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).ok()?;
        // SAFETY: the call takes no pointers.
        let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        processor_time(&stat, u64::try_from(ticks_per_s).ok()?)
    }

    /// Has the boot exceeded its limit?
    fn is_past(&self, limit: Duration, begun: Instant) -> bool {
        self.processor_time().is_some_and(|used| used > limit)
            || begun.elapsed() > limit.saturating_mul(CLOCK_TIMES_BOOT_LIMIT)
    }
}

/// User and system time in a text of `/proc/PID/stat`.
fn processor_time(stat: &str, ticks_per_s: u64) -> Option<Duration> {
    // The process name can contain spaces and parentheses, so fields are counted from the last parenthesis.
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut times = behind_name.split_ascii_whitespace().skip(11);
    let mut ticks = || times.next()?.parse::<u64>().ok();
    let all = ticks()?.checked_add(ticks()?)?;
    Some(Duration::from_millis(
        all.checked_mul(1000)?.checked_div(ticks_per_s)?,
    ))
}

/// Mount tags of the folders that the guest mounts.
const SHARES: [&str; 3] = ["root", "work", "share"];
/// Variable with the path of the kept guest, for commands that the emulator runs.
pub(super) const KEPT_VARIABLE: &str = "NEARPAGE_KEPT";

/// Start of a guest.
pub(super) enum Beginning<'a> {
    /// The guest boots.
    Boot,
    /// The guest boots and stops, to be saved to this file.
    UntilBooted(&'a Path),
    /// The guest continues from this file.
    Kept(&'a Path),
}

pub(super) struct Guest<'a> {
    pub machine: &'a LabMachine,
    pub parts: &'a LabParts,
    /// Tracer plugin with arguments.
    pub plugin: String,
    /// Tracer plugin with arguments that stop the guest after its boot.
    pub stopping_plugin: String,
    pub initramfs: &'a Path,
    pub folders: &'a Folders,
    /// Runs a shell on the console instead of a command.
    pub shell: bool,
    pub seed: u32,
    pub boot_limit: Duration,
    pub time_limit: Option<Duration>,
}

/// How a guest ended.
pub(super) struct GuestEnd {
    pub status: u8,
    pub warnings: Vec<String>,
}

impl Guest<'_> {
    /// Runs the guest to its end. With `kept`, the guest continues from a booted guest, which is made if it is missing.
    pub fn run(&self, kept: Option<&Path>, print: LabPrinter<'_>) -> Result<GuestEnd, Error> {
        let _interrupts = Interrupts::take();
        let Some(kept) = kept else {
            return self.run_from(&Beginning::Boot, print);
        };
        if !kept.exists() && !self.keep(kept)? {
            return self.run_from(&Beginning::Boot, print);
        }
        note_use(kept);
        match self.run_from(&Beginning::Kept(kept), print) {
            // The emulator fails on a damaged file.
            Err(Error::Lab(LabError::Emulator { .. })) => {
                let _ = fs::remove_file(kept);
                self.run_from(&Beginning::Boot, print)
            }
            ended => ended,
        }
    }

    /// Fails if an interrupt has come, or the boot has exceeded its limit.
    pub(super) fn check(&self, emulator: &EmulatorProcess, begun: Instant) -> Result<(), Error> {
        if INTERRUPTED.load(Ordering::Relaxed) != 0 {
            return Err(Error::Interrupted);
        }
        if emulator.is_past(self.boot_limit, begun) {
            return Err(LabError::NotBooted {
                seconds: self.boot_limit.as_secs(),
                console: self.last_lines(),
            }
            .into());
        }
        Ok(())
    }

    fn run_from(
        &self,
        beginning: &Beginning<'_>,
        print: LabPrinter<'_>,
    ) -> Result<GuestEnd, Error> {
        let mut emulator = self.start(beginning)?;
        let begun = Instant::now();
        let mut output = [("stdout", LabStream::Output), ("stderr", LabStream::Error)]
            .map(|(name, stream)| (Follower::new(self.folders.work.join(name)), stream));
        let mut booted = None;
        loop {
            // The check comes before the output is read, so that an ended guest's output is read completely.
            let ended = emulator
                .0
                .try_wait()
                .context("can't wait for the emulator")?;
            if booted.is_none() && self.folders.work.join("booted").exists() {
                booted = Some(Instant::now());
            }
            for (follower, stream) in &mut output {
                follower.pass_on(|bytes| print(*stream, bytes));
            }
            if ended.is_some() {
                return self.ended(booted.is_some());
            }
            match (booted, self.time_limit) {
                (None, _) => self.check(&emulator, begun)?,
                (Some(booted), Some(limit)) if booted.elapsed() > limit => {
                    return Err(LabError::TooLong {
                        seconds: limit.as_secs(),
                    }
                    .into());
                }
                _ if INTERRUPTED.load(Ordering::Relaxed) != 0 => return Err(Error::Interrupted),
                _ => {}
            }
            sleep(LOOK_EVERY);
        }
    }

    pub(super) fn start(&self, beginning: &Beginning<'_>) -> Result<EmulatorProcess, Error> {
        let path = &self.parts.emulator;
        let messages = self.folders.own.join("emulator");
        let messages = File::create(&messages).at(&messages, "can't be written")?;
        let mut command = Command::new(path);
        command.args(self.fixed_arguments()?);
        // A guest that stops after its boot has no shell.
        let shell = self.shell && !matches!(beginning, Beginning::UntilBooted(_));
        command.args(self.own_arguments(shell)?).stderr(messages);
        if !shell {
            command.stdin(Stdio::null()).stdout(Stdio::null());
        }
        match beginning {
            Beginning::Boot => command.args(["-plugin", &self.plugin]),
            Beginning::UntilBooted(kept) => command
                .args(["-plugin", &self.stopping_plugin, "-qmp", "stdio"])
                .env(KEPT_VARIABLE, kept)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped()),
            Beginning::Kept(kept) => command
                .args(["-plugin", &self.plugin, "-incoming"])
                .arg(format!("exec:cat <\"${KEPT_VARIABLE}\""))
                .env(KEPT_VARIABLE, kept),
        };
        // SAFETY: the closure runs between fork and exec and makes two system calls, which neither allocate nor lock.
        unsafe {
            command.pre_exec(move || {
                // The emulator must not outlive nearpage.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // The terminal's signals go to nearpage, which ends the emulator itself.
                if !shell {
                    libc::setpgid(0, 0);
                }
                Ok(())
            });
        }
        Ok(EmulatorProcess(command.spawn().at(path, "can't be run")?))
    }

    /// Arguments that determine the guest's boot.
    pub(super) fn fixed_arguments(&self) -> Result<Vec<String>, Error> {
        let mut arguments = Vec::new();
        let mut add = |option: &str, value: &str| {
            arguments.extend([option.to_owned(), value.to_owned()]);
        };
        add("-machine", "q35,hmat=on");
        add("-accel", "tcg,thread=single");
        add("-icount", "shift=0,sleep=off");
        add("-seed", &self.seed.to_string());
        add("-rtc", "base=2026-01-01,clock=vm");
        add("-cpu", "max");
        add("-display", "none");
        // A kept guest resumes on its own after loading.
        add("-global", "migration.store-global-state=off");
        for folder in firmware() {
            add("-L", folder);
        }
        add("-kernel", text(&self.parts.kernel)?);
        add("-append", KERNEL_PARAMETERS);
        for tag in SHARES {
            // Without ioeventfd, the CPU that makes a request handles it at once, so guest time stands still meanwhile.
            add(
                "-device",
                &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag},ioeventfd=off"),
            );
        }
        arguments.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_owned));
        arguments.extend(self.machine.emulator_arguments());
        Ok(arguments)
    }

    /// Arguments with the files of this run.
    fn own_arguments(&self, shell: bool) -> Result<Vec<String>, Error> {
        let mut arguments = Vec::new();
        let mut add = |option: &str, value: &str| {
            arguments.extend([option.to_owned(), value.to_owned()]);
        };
        add("-initrd", text(self.initramfs)?);
        let console = self.folders.own.join("console");
        match shell {
            true => {
                add("-chardev", "stdio,id=console,signal=off");
                add("-serial", "chardev:console");
            }
            false => add("-serial", &format!("file:{}", text(&console)?)),
        }
        let work = text(&self.folders.work)?;
        let share = self.folders.share.as_deref().map(text).transpose()?;
        // The device of a share is always present, so that guests with and without a share boot alike. Without a share
        // it is not mounted.
        let paths = [
            ("/", ",readonly=on"),
            (work, ""),
            (share.unwrap_or(work), ""),
        ];
        for (tag, (path, extra)) in SHARES.into_iter().zip(paths) {
            let fs =
                format!("local,id={tag},path={path},security_model=none,multidevs=remap{extra}");
            add("-fsdev", &fs);
        }
        Ok(arguments)
    }

    fn read(&self, folder: &Path, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(folder.join(name)).unwrap_or_default()).into_owned()
    }

    fn last_lines(&self) -> String {
        let console = self.read(&self.folders.own, "console");
        let lines: Vec<&str> = console
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        match lines.len() {
            0 => "(nothing)".to_owned(),
            count => lines[count.saturating_sub(LAST_LINES)..].join(" | "),
        }
    }

    /// Reason for the end of a guest that left no status.
    fn gone(&self) -> LabError {
        match is_full(&self.folders.work) {
            true => LabError::Full {
                folder: env::temp_dir(),
            },
            false => LabError::Died {
                console: self.last_lines(),
            },
        }
    }

    /// Result of an emulator that has ended.
    pub(super) fn ended(&self, booted: bool) -> Result<GuestEnd, Error> {
        let console = self.read(&self.folders.own, "console");
        if !booted {
            let message = self.read(&self.folders.own, "emulator");
            let message = message.lines().last().unwrap_or_default().to_owned();
            return Err(match message.is_empty() {
                true => self.gone(),
                false => LabError::Emulator { message },
            }
            .into());
        }
        let status = self.read(&self.folders.work, "status");
        let Ok(status) = status.trim().parse::<u8>() else {
            if console_says_out_of_memory(&console) {
                return Err(LabError::OutOfMemory {
                    mib: self.machine.memory_mib(),
                }
                .into());
            }
            return Err(self.gone().into());
        };
        let log = console + &self.read(&self.folders.work, "dmesg");
        let mut warnings = Vec::new();
        if let Some(line) = log.lines().find_map(|line| line.split_once(OUT_OF_MEMORY)) {
            let name = line
                .1
                .split_once('(')
                .and_then(|(_, name)| name.split_once(')'));
            warnings.push(format!(
                "out of memory, ended {}: --memory gives nodes more than {} MiB each",
                name.map_or("a process", |(name, _)| name),
                self.machine.memory_mib()
            ));
        }
        for line in log.lines().map(str::trim) {
            let doubtful = UNRELIABLE_CLOCK_MESSAGES
                .iter()
                .any(|words| line.contains(words));
            if doubtful && !warnings.iter().any(|known| known == line) {
                warnings.push(line.to_owned());
            }
        }
        Ok(GuestEnd { status, warnings })
    }
}

/// Is the file system of the folder full?
fn is_full(folder: &Path) -> bool {
    let written = fs::write(folder.join("space"), "some");
    written.is_err_and(|error| error.kind() == io::ErrorKind::StorageFull)
}

/// Did the kernel give up for lack of memory?
fn console_says_out_of_memory(console: &str) -> bool {
    [OUT_OF_MEMORY, "deadlocked on memory"]
        .iter()
        .any(|words| console.contains(words))
}

/// Reads a file while the guest writes it.
struct Follower {
    path: PathBuf,
    file: Option<File>,
}

impl Follower {
    fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    /// Passes on the bytes that the guest has added.
    fn pass_on(&mut self, pass: impl FnOnce(&[u8])) {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &mut self.file else { return };
        let mut bytes = Vec::new();
        let at = file.stream_position();
        match file.read_to_end(&mut bytes) {
            Ok(0) => {}
            Ok(_) => pass(&bytes),
            // The bytes are read again next time.
            Err(_) => {
                let _ = at.and_then(|at| file.seek(SeekFrom::Start(at)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn processor_time_is_read_behind_the_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 2 0 1 1 1";
        assert_eq!(processor_time(stat, 100), Some(Duration::from_secs(2)));
        for damaged in ["", "7 (a) S 1", "7 (a) S 1 7 7 0 -1 4194560 1 0 0 0 x 50"] {
            assert_eq!(processor_time(damaged, 100), None, "{damaged}");
        }
        assert_eq!(processor_time(stat, 0), None);
        let own = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(processor_time(&own, 100).is_some());
    }

    #[test]
    fn a_file_that_grows_is_passed_on_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdout");
        let mut follower = Follower::new(path.clone());
        let passed = RefCell::new(Vec::new());
        let mut look = || follower.pass_on(|bytes| passed.borrow_mut().push(bytes.to_vec()));
        look();
        fs::write(&path, "one").unwrap();
        look();
        look();
        use std::io::Write;
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"two").unwrap();
        look();
        assert_eq!(*passed.borrow(), [b"one".to_vec(), b"two".to_vec()]);
    }
}
