//! A Slurm cluster of two emulated nodes on this host for the duration of a test, without systemd and accounting.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{Case, Finished};

/// Programs of the Debian packages slurmctld, slurmd, munge and slurm-client.
const PROGRAMS: [&str; 5] = ["munged", "slurmctld", "slurmd", "srun", "sbatch"];
/// Time limit for the nodes to come up.
const START: Duration = Duration::from_secs(60);

/// A cluster, whose daemons end when this is dropped.
#[derive(Debug)]
pub struct Slurm {
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl Slurm {
    /// Starts the daemons, with files in the case's folder. Without Slurm or root: none, and a printed line with the
    /// reason.
    ///
    /// # Panics
    /// The daemons don't start.
    pub fn start(case: &Case) -> Option<Self> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let is_there = |name: &&str| {
            let sbin = [PathBuf::from("/usr/sbin")];
            let mut folders = std::env::split_paths(&folders).chain(sbin);
            folders.any(|folder| folder.join(name).exists())
        };
        if let Some(missing) = PROGRAMS.iter().find(|name| !is_there(name)) {
            eprintln!(
                "skipped: there is no {missing} here (Debian's slurmctld, slurmd, munge and slurm-client)"
            );
            return None;
        }
        // SAFETY: the function has no arguments and can't fail.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: the daemons of Slurm want to be root");
            return None;
        }
        // The path of a socket may have at most 107 bytes.
        let folder = std::env::temp_dir().join(format!("nearpage-slurm-{}", std::process::id()));
        for name in ["state", "spool-n1", "spool-n2", "n1", "n2"] {
            fs::create_dir_all(folder.join(name)).expect("a folder");
        }
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("ours");
        let mut cluster = Self {
            folder,
            daemons: Vec::new(),
        };
        cluster.write_key();
        cluster.write_configuration();
        let munge = |file: &str| cluster.folder.join(file).display().to_string();
        let words = [
            "--foreground".to_owned(),
            "--force".to_owned(),
            format!("--key-file={}", munge("munge.key")),
            format!("--socket={}", munge("munge.socket")),
            format!("--pid-file={}", munge("munged.pid")),
            format!("--log-file={}", munge("munged.log")),
            format!("--seed-file={}", munge("munged.seed")),
        ];
        let everywhere = cluster.folder.join("slurm.conf");
        cluster.daemon("munged", &words, &everywhere);
        let socket = cluster.folder.join("munge.socket");
        wait("munged", || socket.exists());
        cluster.daemon("slurmctld", &["-D".to_owned()], &everywhere);
        for node in ["n1", "n2"] {
            let words = ["-D", "-N", node].map(str::to_owned);
            let own = cluster.folder.join(node).join("slurm.conf");
            cluster.daemon("slurmd", &words, &own);
        }
        wait("slurmctld", || {
            let mut sinfo = cluster.command(case, "sinfo");
            sinfo.args(["-h", "-t", "idle", "-o", "%D"]);
            sinfo
                .output()
                .is_ok_and(|output| output.stdout.starts_with(b"2"))
        });
        Some(cluster)
    }

    /// A program of Slurm's that finds this cluster, to run in the case's folder.
    pub fn command(&self, case: &Case, program: &str) -> Command {
        let mut command = case.command(program);
        command.env("SLURM_CONF", self.folder.join("slurm.conf"));
        command
    }

    /// Runs `srun` with arguments.
    pub fn srun(&self, case: &Case, words: &[&str]) -> Finished {
        let mut srun = self.command(case, "srun");
        srun.args(words);
        case.run(srun)
    }

    fn write_key(&self) {
        let mut key = [0; 1024];
        let mut random = File::open("/dev/urandom").expect("random numbers");
        random.read_exact(&mut key).expect("random numbers");
        let path = self.folder.join("munge.key");
        fs::write(&path, key).expect("a folder of ours");
        fs::set_permissions(&path, Permissions::from_mode(0o400)).expect("ours");
    }

    fn write_configuration(&self) {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
        let host = host.trim().split('.').next().unwrap_or_default().to_owned();
        let folder = self.folder.display();
        // Ports derived from this process's id, so that two clusters on a host don't collide.
        let port = 20_000 + 4 * (std::process::id() % 10_000);
        let text = format!(
            "ClusterName=nearpage\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={port}\n\
             AuthType=auth/munge\nAuthInfo=socket={folder}/munge.socket\nCryptoType=crypto/munge\nMpiDefault=none\n\
             ProctrackType=proctrack/linuxproc\nReturnToService=2\nSlurmctldPidFile={folder}/slurmctld.pid\n\
             SlurmdPidFile={folder}/slurmd-%n.pid\nSlurmdSpoolDir={folder}/spool-%n\nSlurmUser=root\nSlurmdUser=root\n\
             StateSaveLocation={folder}/state\nSwitchType=switch/none\nTaskPlugin=task/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n\
             AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\n\
             SlurmctldLogFile={folder}/slurmctld.log\nSlurmdLogFile={folder}/slurmd-%n.log\nKillWait=5\n\
             SlurmdParameters=config_overrides\n\
             NodeName=n1,n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={},{} CPUs=4 RealMemory=100 State=UNKNOWN\n\
             PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP\n",
            port + 1,
            port + 2
        );
        fs::write(self.folder.join("slurm.conf"), &text).expect("a folder of ours");
        // The PMIx plugin names its folder by user and step only: nodes on one host need separate parent folders.
        for node in ["n1", "n2"] {
            let own = self.folder.join(node);
            fs::write(own.join("slurm.conf"), &text).expect("a folder of ours");
            let place = format!("PMIxCliTmpDirBase={}\n", own.display());
            fs::write(own.join("mpi.conf"), place).expect("a folder of ours");
        }
    }

    fn daemon(&mut self, program: &str, words: &[String], configuration: &Path) {
        let output = File::create(
            self.folder
                .join(format!("{program}-{}.out", self.daemons.len())),
        );
        let output = output.expect("a folder of ours");
        let sbin = Path::new("/usr/sbin").join(program);
        let path = if sbin.exists() { sbin } else { program.into() };
        let child = Command::new(path)
            .args(words)
            .env("SLURM_CONF", configuration)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output)
            .spawn();
        self.daemons.push(child.expect("it is there"));
    }
}

fn wait(daemon: &str, is_ready: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_ready() {
        assert!(begun.elapsed() < START, "{daemon} does not start");
        sleep(Duration::from_millis(50));
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
