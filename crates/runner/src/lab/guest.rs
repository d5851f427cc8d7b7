//! A guest from its start to its end.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::emulator::{LabParts, firmware};
use super::error::LabError;
use super::machine::LabMachine;
use super::{Folders, LabPrinter, LabStream, text};
use crate::error::{Error, IoContext};

/// How often it is looked what became of the guest.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The emulated time stamp counters follow guest time exactly: the kernel has no reason to watch them.
const KERNEL_PARAMETERS: &str = "console=ttyS0 loglevel=5 panic=-1 tsc=reliable";
/// Words of the kernel that put its clock or scheduling in doubt.
const DOUBTS: [&str; 6] = [
    "clocksource: Marking",
    "unstable",
    "soft lockup",
    "hard LOCKUP",
    "rcu: INFO",
    "Out of memory",
];
/// Lines of the console in messages.
const LAST_LINES: usize = 3;

/// The signal that ended waiting: a handler can be given nothing else than statics.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

extern "C" fn interrupted(signal: libc::c_int) {
    INTERRUPTED.store(signal, Ordering::Relaxed);
}

/// SIGINT, SIGTERM and SIGHUP end the guest as long as this lives; afterwards they do what they did before.
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
            // SAFETY: restores what `take` found.
            unsafe { libc::signal(signal, action) };
        }
    }
}

/// An emulator, ended when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A guest.
pub(super) struct Guest<'a> {
    pub machine: &'a LabMachine,
    pub parts: &'a LabParts,
    /// The tracer with its arguments.
    pub plugin: String,
    pub initramfs: &'a Path,
    pub folders: &'a Folders,
    /// A shell on the console rather than a command.
    pub shell: bool,
    pub seed: u32,
    pub boot_limit: Duration,
    pub time_limit: Option<Duration>,
}

/// How it ended.
pub(super) struct Ended {
    pub status: u8,
    pub warnings: Vec<String>,
}

impl Guest<'_> {
    /// Runs it to its end.
    pub fn run(&self, print: LabPrinter<'_>) -> Result<Ended, Error> {
        let interrupts = Interrupts::take();
        let mut emulator = self.start()?;
        let begun = Instant::now();
        let mut output = [("stdout", LabStream::Output), ("stderr", LabStream::Error)]
            .map(|(name, stream)| (Follower::new(self.folders.work.join(name)), stream));
        let mut booted = None;
        loop {
            // Asked for first, so that whatever an ended guest wrote is seen below.
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
            if INTERRUPTED.load(Ordering::Relaxed) != 0 {
                drop(emulator);
                drop(interrupts);
                return Err(Error::Interrupted);
            }
            match (booted, self.time_limit) {
                (None, _) if begun.elapsed() > self.boot_limit => {
                    return Err(LabError::NotBooted {
                        seconds: self.boot_limit.as_secs(),
                        console: self.last_lines(),
                    }
                    .into());
                }
                (Some(booted), Some(limit)) if booted.elapsed() > limit => {
                    return Err(LabError::TooLong {
                        seconds: limit.as_secs(),
                    }
                    .into());
                }
                _ => sleep(LOOK_EVERY),
            }
        }
    }

    fn start(&self) -> Result<Running, Error> {
        let path = &self.parts.emulator;
        let messages = self.folders.own.join("emulator");
        let messages = File::create(&messages).at(&messages, "can't be written")?;
        let mut command = Command::new(path);
        command.args(self.arguments()?).stderr(messages);
        if !self.shell {
            command.stdin(Stdio::null()).stdout(Stdio::null());
        }
        let own_group = !self.shell;
        // SAFETY: between fork and exec two system calls are made, which neither allocate nor lock.
        unsafe {
            command.pre_exec(move || {
                // It must not outlive whoever started it, however that ends.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // What interrupts nearpage is nearpage's to act on.
                if own_group {
                    libc::setpgid(0, 0);
                }
                Ok(())
            });
        }
        Ok(Running(command.spawn().at(path, "can't be run")?))
    }

    fn arguments(&self) -> Result<Vec<String>, Error> {
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
        for folder in firmware() {
            add("-L", folder);
        }
        add("-plugin", &self.plugin);
        add("-kernel", text(&self.parts.kernel)?);
        add("-initrd", text(self.initramfs)?);
        let work = text(&self.folders.work)?;
        let mut line = KERNEL_PARAMETERS.to_owned();
        let share = self.folders.share.as_deref().map(text).transpose()?;
        if let Some(share) = share {
            line += &format!(" share={share}");
        }
        if self.shell {
            line += " shell=1";
            add("-chardev", "stdio,id=console,signal=off");
            add("-serial", "chardev:console");
        } else {
            let console = self.folders.own.join("console");
            add("-serial", &format!("file:{}", text(&console)?));
        }
        add("-append", &line);
        let shares = [
            Some(("root", "/", ",readonly=on")),
            Some(("work", work, "")),
            share.map(|share| ("share", share, "")),
        ];
        for (tag, path, extra) in shares.into_iter().flatten() {
            let fs =
                format!("local,id={tag},path={path},security_model=none,multidevs=remap{extra}");
            add("-fsdev", &fs);
            // Requests are taken at once, by the CPU that makes them, so that time stands still from there on.
            add(
                "-device",
                &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag},ioeventfd=off"),
            );
        }
        arguments.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_owned));
        arguments.extend(self.machine.emulator_arguments());
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

    /// The emulator is gone.
    fn ended(&self, booted: bool) -> Result<Ended, Error> {
        let console = self.read(&self.folders.own, "console");
        if !booted {
            let message = self.read(&self.folders.own, "emulator");
            let message = message.lines().last().unwrap_or_default().to_owned();
            return Err(match message.is_empty() {
                true => LabError::Died {
                    console: self.last_lines(),
                },
                false => LabError::Emulator { message },
            }
            .into());
        }
        let status = self.read(&self.folders.work, "status");
        let Ok(status) = status.trim().parse::<u8>() else {
            return Err(LabError::Died {
                console: self.last_lines(),
            }
            .into());
        };
        let log = console + &self.read(&self.folders.work, "dmesg");
        let mut warnings = Vec::new();
        for line in log.lines().map(str::trim) {
            let doubtful = DOUBTS.iter().any(|words| line.contains(words));
            if doubtful && !warnings.iter().any(|known| known == line) {
                warnings.push(line.to_owned());
            }
        }
        Ok(Ended { status, warnings })
    }
}

/// A file that the guest writes.
struct Follower {
    path: PathBuf,
    file: Option<File>,
}

impl Follower {
    fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    /// What is new of it.
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
            // Next time.
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
