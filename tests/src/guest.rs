//! A real Linux with several memory nodes, on a machine with one node.
//!
//! QEMU emulates the guest in software. The guest's root is this machine's file system, read-only over 9p, so
//! everything built or installed here runs there under the same path. One folder is writable in the guest, under the
//! same path, too. `tests/setup` prepares the kernel and an initramfs whose `/init` (`tests/guest/init`) runs a script
//! and powers off. Results are read from files; the console is only quoted in error messages.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::case::{Case, repository};

/// About ten times a boot's duration on two idle cores.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
const ATTEMPTS: u32 = 2;
/// Files that `/init` and the emulator leave in the folder.
const RESULTS: [&str; 5] = ["booted", "status", "stdout", "stderr", "console"];
/// `tsc=reliable`: the emulated time stamp counters agree, but by default the kernel distrusts them and reads a clock a
/// hundred times slower. The other parameters end a hanging guest after a minute, with a report of its CPUs: once in
/// several hundred boots, two CPUs of a kernel waited for each other forever.
const KERNEL_PARAMETERS: &str = "console=ttyS0 loglevel=5 panic=-1 tsc=reliable \
    watchdog_thresh=30 softlockup_panic=1 softlockup_all_cpu_backtrace=1 \
    rcupdate.rcu_cpu_stall_timeout=60 sysctl.kernel.panic_on_rcu_stall=1";

/// The machine that the guest sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Nodes in the order of their numbers.
    pub nodes: Vec<GuestNode>,
    /// `distances[from][to]` as in the ACPI SLIT: 10 is local.
    pub distances: Vec<Vec<u8>>,
}

/// A memory node. CPUs are numbered consecutively, node by node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestNode {
    /// Number of CPUs; 0 makes a memory-only node.
    pub cpus: u32,
    /// Size in MiB. The kernel itself takes about 10 MiB of it, and 60 MiB on one of the nodes.
    pub memory_mib: u32,
}

/// Results of a script.
#[derive(Debug)]
pub struct GuestOutput {
    /// The script's exit status; 128 + N if signal N ended the script.
    pub status: i32,
    /// The script's standard output.
    pub stdout: String,
    /// The script's standard error.
    pub stderr: String,
    /// Time from the emulator's start to the script's.
    pub boot: Duration,
    /// Time from the script's start until the guest was off.
    pub script: Duration,
}

/// Reasons for not getting a [`GuestOutput`].
#[derive(Debug)]
pub enum GuestError {
    /// `tests/setup` has not been run.
    NotSetUp {
        /// The first missing file.
        missing: PathBuf,
    },
    /// The script never started.
    NeverBooted {
        /// The console's last lines.
        console: String,
    },
    /// The guest died while the script ran.
    Died {
        /// The console's last lines.
        console: String,
    },
    /// The script was still running at its limit.
    TooLong {
        /// The limit.
        limit: Duration,
        /// What the script had printed.
        stdout: String,
        /// What the script had printed to standard error.
        stderr: String,
        /// The console's last lines.
        console: String,
    },
    /// A file operation or the emulator's start failed on the host.
    Io(io::Error),
}

impl Guest {
    /// Four nodes of one CPU and 512 MiB.
    pub fn four_nodes() -> Guest {
        Guest::ring(4, 1, 512)
    }

    /// Four nodes of two CPUs and 512 MiB.
    pub fn eight_cpus() -> Guest {
        Guest::ring(4, 2, 512)
    }

    /// Equal nodes on a ring: distance 10 to the node itself, and 6 more for each hop.
    pub fn ring(nodes: usize, cpus: u32, memory_mib: u32) -> Guest {
        let distance = |from: usize, to: usize| {
            let apart = from.abs_diff(to);
            10 + 6 * apart.min(nodes - apart) as u8
        };
        Guest {
            nodes: vec![GuestNode { cpus, memory_mib }; nodes],
            distances: (0..nodes)
                .map(|from| (0..nodes).map(|to| distance(from, to)).collect())
                .collect(),
        }
    }

    /// The node of a CPU.
    pub fn node_of_cpu(&self, cpu: u32) -> Option<u32> {
        let mut end = 0;
        let mut nodes = self.nodes.iter().enumerate();
        nodes
            .find(|(_, node)| {
                end += node.cpus;
                cpu < end
            })
            .map(|(id, _)| id as u32)
    }

    /// Runs a shell script in a new folder.
    pub fn run(&self, script: &str, limit: Duration) -> Result<GuestOutput, GuestError> {
        self.run_in(&Case::new("guest"), script, limit)
    }

    /// Runs a shell script in the case's folder. Host and guest share the folder, which is the only place that the
    /// guest can write to, apart from `$TMPDIR` in its own memory. `limit` is for the script, without the boot. A guest
    /// that does not boot, or whose kernel dies, gets a second attempt, in the folder as it was before.
    pub fn run_in(
        &self,
        case: &Case,
        script: &str,
        limit: Duration,
    ) -> Result<GuestOutput, GuestError> {
        let folder = case.folder().canonicalize()?;
        let image = Image::find()?;
        // One guest at a time: each keeps as many threads busy as it has CPUs.
        let lock = File::create(image.folder.join("lock"))?;
        lock.lock()?;
        fs::write(folder.join("script"), script)?;
        let mut given = names_in(&folder)?;
        given.retain(|name| !RESULTS.iter().any(|result| name == result));
        let mut tries_left = ATTEMPTS;
        loop {
            tries_left -= 1;
            clear_all_but(&folder, &given)?;
            match self.boot_and_run(&image, &folder, limit) {
                Err(error @ (GuestError::NeverBooted { .. } | GuestError::Died { .. }))
                    if tries_left > 0 =>
                {
                    eprintln!("{error}\n--- trying once more");
                }
                result => return result,
            }
        }
    }

    fn boot_and_run(
        &self,
        image: &Image,
        folder: &Path,
        limit: Duration,
    ) -> Result<GuestOutput, GuestError> {
        let started = Instant::now();
        // The emulator must not outlive a test that is killed.
        let mut machine = Running(
            Command::new("setpriv")
                .args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"])
                .args(self.emulator_arguments(image, folder))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(File::create(folder.join("console"))?)
                .spawn()?,
        );
        let text = |name: &str| {
            String::from_utf8_lossy(&fs::read(folder.join(name)).unwrap_or_default()).into_owned()
        };
        let mut boot = None;
        loop {
            // Checked before the files are read, so that everything an ended guest wrote is seen below.
            let ended = machine.0.try_wait()?.is_some();
            let elapsed = started.elapsed();
            if boot.is_none() && folder.join("booted").exists() {
                boot = Some(elapsed);
            }
            let Some(boot) = boot else {
                if ended || elapsed > BOOT_LIMIT {
                    return Err(GuestError::NeverBooted {
                        console: tail(&folder.join("console")),
                    });
                }
                sleep(Duration::from_millis(50));
                continue;
            };
            if ended {
                let Ok(status) = text("status").trim().parse() else {
                    return Err(GuestError::Died {
                        console: tail(&folder.join("console")),
                    });
                };
                let (stdout, stderr) = (text("stdout"), text("stderr"));
                return Ok(GuestOutput {
                    status,
                    stdout,
                    stderr,
                    boot,
                    script: elapsed - boot,
                });
            }
            if elapsed - boot > limit {
                return Err(GuestError::TooLong {
                    limit,
                    stdout: text("stdout"),
                    stderr: text("stderr"),
                    console: tail(&folder.join("console")),
                });
            }
            sleep(Duration::from_millis(20));
        }
    }

    fn emulator_arguments(&self, image: &Image, folder: &Path) -> Vec<String> {
        let cpus: u32 = self.nodes.iter().map(|node| node.cpus).sum();
        let memory: u32 = self.nodes.iter().map(|node| node.memory_mib).sum();
        let folder = folder.display();
        let mut arguments: Vec<String> = Vec::new();
        let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);

        add("-machine", "q35".into());
        // No KVM: some machines lack it, and on some others it hangs.
        add("-accel", "tcg,thread=multi".into());
        add("-cpu", "max".into());
        add("-smp", cpus.to_string());
        add("-m", memory.to_string());
        let mut first_cpu = 0;
        for (id, node) in self.nodes.iter().enumerate() {
            add(
                "-object",
                format!("memory-backend-ram,id=memory{id},size={}M", node.memory_mib),
            );
            let cpus = match node.cpus {
                0 => String::new(),
                n => format!(",cpus={first_cpu}-{}", first_cpu + n - 1),
            };
            add("-numa", format!("node,nodeid={id}{cpus},memdev=memory{id}"));
            first_cpu += node.cpus;
        }
        for (from, row) in self.distances.iter().enumerate() {
            for (to, distance) in row.iter().enumerate() {
                add("-numa", format!("dist,src={from},dst={to},val={distance}"));
            }
        }
        for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
            arguments.push(flag.into());
        }
        let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
        add("-display", "none".into());
        add("-serial", format!("file:{folder}/console"));
        add("-kernel", image.kernel.display().to_string());
        add("-initrd", image.initramfs.display().to_string());
        add("-append", format!("{KERNEL_PARAMETERS} work={folder}"));
        add(
            "-fsdev",
            "local,id=root,path=/,security_model=none,multidevs=remap,readonly=on".into(),
        );
        add("-device", "virtio-9p-pci,fsdev=root,mount_tag=root".into());
        add(
            "-fsdev",
            format!("local,id=work,path={folder},security_model=none,multidevs=remap"),
        );
        add("-device", "virtio-9p-pci,fsdev=work,mount_tag=work".into());
        arguments
    }
}

/// Files that `tests/setup` prepares.
struct Image {
    folder: PathBuf,
    kernel: PathBuf,
    initramfs: PathBuf,
}

impl Image {
    fn find() -> Result<Image, GuestError> {
        let folder = std::env::var_os("NEARPAGE_GUEST")
            .map_or_else(|| repository().join("target/guest"), PathBuf::from);
        let image = Image {
            kernel: folder.join("vmlinux"),
            initramfs: folder.join("initramfs"),
            folder,
        };
        for file in [&image.kernel, &image.initramfs] {
            if !file.exists() {
                return Err(GuestError::NotSetUp {
                    missing: file.clone(),
                });
            }
        }
        Ok(image)
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn clear_all_but(folder: &Path, kept: &BTreeSet<OsString>) -> io::Result<()> {
    for name in names_in(folder)?.difference(kept) {
        let path = folder.join(name);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path)?;
        } else {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn names_in(folder: &Path) -> io::Result<BTreeSet<OsString>> {
    fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name()))
        .collect()
}

/// The last lines of a file: enough to show what four CPUs were doing.
fn tail(path: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(250)..].join("\n")
}

impl fmt::Display for GuestOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "exit status {} (boot {:?}, script {:?})",
            self.status, self.boot, self.script
        )?;
        writeln!(f, "--- stdout\n{}--- stderr\n{}", self.stdout, self.stderr)
    }
}

impl fmt::Display for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuestError::NotSetUp { missing } => {
                write!(f, "{} is missing: run tests/setup first", missing.display())
            }
            GuestError::NeverBooted { console } => {
                write!(f, "the guest didn't boot\n--- console\n{console}")
            }
            GuestError::Died { console } => {
                write!(
                    f,
                    "the guest went down before the script's end\n--- console\n{console}"
                )
            }
            GuestError::TooLong {
                limit,
                stdout,
                stderr,
                console,
            } => write!(
                f,
                "the script still ran after {limit:?}\n--- stdout\n{stdout}--- stderr\n{stderr}--- console\n{console}"
            ),
            GuestError::Io(error) => write!(f, "running the guest: {error}"),
        }
    }
}

impl std::error::Error for GuestError {}

impl From<io::Error> for GuestError {
    fn from(error: io::Error) -> Self {
        GuestError::Io(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(guest: &Guest) -> String {
        let image = Image {
            folder: "/g".into(),
            kernel: "/g/k".into(),
            initramfs: "/g/i".into(),
        };
        guest.emulator_arguments(&image, Path::new("/w")).join(" ")
    }

    #[test]
    fn a_second_try_finds_what_the_first_found() {
        let case = Case::new("second_try");
        case.write("script", "");
        fs::create_dir_all(case.path("given/inner")).unwrap();
        let given = names_in(case.folder()).unwrap();
        case.write("console", "");
        fs::create_dir_all(case.path("made/inner")).unwrap();
        std::os::unix::fs::symlink("given", case.path("link")).unwrap();
        clear_all_but(case.folder(), &given).unwrap();
        assert_eq!(names_in(case.folder()).unwrap(), given);
        assert!(case.path("given/inner").exists());
    }

    #[test]
    fn a_ring_has_hops() {
        let guest = Guest::ring(4, 1, 512);
        assert_eq!(guest.distances[0], [10, 16, 22, 16]);
        assert_eq!(guest.distances[2], [22, 16, 10, 16]);
    }

    #[test]
    fn cpus_are_numbered_through() {
        let guest = Guest::eight_cpus();
        assert_eq!(
            [0, 1, 2, 7, 8].map(|cpu| guest.node_of_cpu(cpu)),
            [Some(0), Some(0), Some(1), Some(3), None]
        );
    }

    #[test]
    fn every_pair_has_a_distance() {
        let text = arguments(&Guest::eight_cpus());
        assert_eq!(text.matches("dist,src=").count(), 16);
        assert!(text.contains("-smp 8 -m 2048"), "{text}");
        assert!(
            text.contains("node,nodeid=3,cpus=6-7,memdev=memory3"),
            "{text}"
        );
    }

    #[test]
    fn a_node_without_cpus() {
        let mut guest = Guest::ring(2, 2, 256);
        guest.nodes[1].cpus = 0;
        let text = arguments(&guest);
        assert!(
            text.contains("-numa node,nodeid=1,memdev=memory1"),
            "{text}"
        );
        assert!(text.contains("-smp 2 -m 512"), "{text}");
    }
}
