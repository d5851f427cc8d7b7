//! Black-box runs: one folder per test, paths of the programs under test, and results of commands.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The top folder of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is inside the repository")
}

/// Cargo's target folder that this program was built into.
pub fn target() -> PathBuf {
    let own = std::env::current_exe().expect("a running program has a path");
    // TARGET/PROFILE/deps/test-1234 or TARGET/PROFILE/program.
    let profile = profile_folder(&own);
    profile
        .parent()
        .map_or_else(|| repository().join("target"), Path::to_path_buf)
}

fn profile_folder(program: &Path) -> &Path {
    let folder = program.parent().unwrap_or(Path::new("."));
    if folder.file_name() == Some(OsStr::new("deps")) {
        folder.parent().unwrap_or(folder)
    } else {
        folder
    }
}

/// The `nearpage` under test: `NEARPAGE_BIN`, or the binary built with the same profile as this test.
pub fn nearpage_path() -> PathBuf {
    if let Some(path) = std::env::var_os("NEARPAGE_BIN") {
        return path.into();
    }
    let own = std::env::current_exe().expect("a running program has a path");
    let path = profile_folder(&own).join("nearpage");
    assert!(
        path.exists(),
        "{} isn't built: run `cargo build` first, or set NEARPAGE_BIN",
        path.display()
    );
    path
}

/// Path of a program from `workloads/`. The first call builds all of them.
pub fn workload(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = target().join("workloads");
        fs::create_dir_all(&folder).expect("the target folder is writable");
        // Test programs that run in parallel must not link the same file at once.
        let lock = File::create(folder.join(".lock")).expect("the target folder is writable");
        lock.lock().expect("locking a file of ours");
        let made = Command::new("make")
            .args(["-s", "-C"])
            .arg(repository().join("workloads"))
            .arg(format!("OUT={}", folder.display()))
            .status()
            .expect("make is installed");
        assert!(made.success(), "building workloads/ failed");
        folder
    });
    let path = folder.join(name);
    assert!(path.exists(), "workloads/ has no program called {name}");
    path
}

/// A test's own folder. It is deleted with the `Case`, but stays if the test panics.
#[derive(Debug)]
pub struct Case {
    folder: PathBuf,
    limit: Duration,
}

impl Case {
    /// An empty folder whose name starts with `name`.
    pub fn new(name: &str) -> Case {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = target()
            .join("cases")
            .join(format!("{name}-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("the target folder is writable");
        Case {
            folder,
            limit: Duration::from_secs(120),
        }
    }

    /// Sets the time limit of each command, instead of two minutes.
    pub fn limit(mut self, limit: Duration) -> Case {
        self.limit = limit;
        self
    }

    /// The folder's absolute path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.join(name)
    }

    /// Text of a file in the folder.
    pub fn read(&self, name: impl AsRef<Path>) -> String {
        let path = self.path(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Compiles a C program of that name into the folder, with `-g -O1` and these options, and returns its path.
    pub fn compile(&self, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let file = self.write(format!("{name}.c"), source);
        let program = self.path(name);
        let mut compiler = self.command("cc");
        compiler.args(["-g", "-O1"]).args(options);
        compiler.arg("-o").arg(&program).arg(file);
        self.run(compiler).success();
        program
    }

    /// Writes an executable file and returns its path. A child process writes the file: if this process
    /// opened it for writing, children that other tests fork would inherit the descriptor, and the
    /// kernel would refuse to execute the file (ETXTBSY) until each of them has called exec.
    pub fn program(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let plain = self.write(".program", content);
        self.program_copy(plain, name)
    }

    /// Copies a program into the folder and returns its path. A child copies, for the reason at [`Case::program`].
    pub fn program_copy(&self, from: impl AsRef<Path>, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        let status = Command::new("install")
            .args(["-m", "755", "--"])
            .args([from.as_ref(), &path])
            .status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "{}",
            path.display()
        );
        path
    }

    /// A command that runs in the folder with the folder as its home, without settings of nearpage or
    /// OpenMP from the surrounding environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["NEARPAGE_", "OMP_", "GOMP_", "XDG_", "WORKLOAD_"]
                .iter()
                .any(|prefix| text.starts_with(prefix))
            {
                command.env_remove(&name);
            }
        }
        command.env("HOME", &self.folder);
        command
    }

    /// Runs `nearpage` with these arguments.
    pub fn nearpage<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Finished {
        let mut command = self.command(nearpage_path());
        command.args(arguments);
        self.run(command)
    }

    /// Runs a command to its end. A test that hangs fails after two minutes, or [`Case::limit`].
    pub fn run(&self, mut command: Command) -> Finished {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (stdout, stderr) = (format!(".stdout-{number}"), format!(".stderr-{number}"));
        // Into files, not pipes: a leftover child would keep a pipe open.
        let open =
            |name: &str| File::create(self.path(name)).expect("the case's folder is writable");
        let started = Instant::now();
        let mut child = command
            .stdout(open(&stdout))
            .stderr(open(&stderr))
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", command.get_program().to_string_lossy()));
        let status = loop {
            if let Some(status) = child.try_wait().expect("waiting for a child of ours") {
                break status;
            }
            if started.elapsed() > self.limit {
                let _ = child.kill();
                panic!("{command:?} still ran after {:?}", self.limit);
            }
            sleep(Duration::from_millis(5));
        };
        let text = |name: &str| {
            String::from_utf8_lossy(&fs::read(self.path(name)).unwrap_or_default()).into_owned()
        };
        let finished = Finished {
            command: format!("{command:?}"),
            code: status.code(),
            signal: status.signal(),
            stdout: text(&stdout),
            stderr: text(&stderr),
            elapsed: started.elapsed(),
        };
        for name in [stdout, stderr] {
            let _: io::Result<()> = fs::remove_file(self.path(name));
        }
        finished
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the case's files are in {}", self.folder.display());
        } else {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// A command that has ended. Its `Display` shows everything, for messages of assertions.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The command line.
    pub command: String,
    /// The exit code, unless a signal ended the command.
    pub code: Option<i32>,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// Complete standard output.
    pub stdout: String,
    /// Complete standard error.
    pub stderr: String,
    /// Wall time.
    pub elapsed: Duration,
}

impl Finished {
    /// Returns itself if the command succeeded.
    #[track_caller]
    pub fn success(self) -> Finished {
        self.exits(0)
    }

    /// Returns itself if the exit code is `code`.
    #[track_caller]
    pub fn exits(self, code: i32) -> Finished {
        assert_eq!(self.code, Some(code), "{self}");
        self
    }

    /// Returns itself if this signal ended the command.
    #[track_caller]
    pub fn is_ended_by(self, signal: i32) -> Finished {
        assert_eq!(self.signal, Some(signal), "{self}");
        self
    }

    /// Returns itself if the exit code is `code` and standard error is one line that contains all of `words`.
    #[track_caller]
    pub fn says(self, code: i32, words: &[&str]) -> Finished {
        let finished = self.exits(code);
        assert_eq!(finished.stderr.lines().count(), 1, "one line:\n{finished}");
        for word in words {
            assert!(
                finished.stderr.contains(word),
                "expected {word:?}:\n{finished}"
            );
        }
        finished
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} (exit code {:?}, signal {:?}, {:?})",
            self.command, self.code, self.signal, self.elapsed
        )?;
        writeln!(f, "--- stdout\n{}--- stderr\n{}", self.stdout, self.stderr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_leaves_code_and_output() {
        let case = Case::new("a_command");
        let mut command = case.command("sh");
        command.args(["-c", "echo out; echo err >&2; pwd >where; exit 3"]);
        let finished = case.run(command).exits(3);
        assert_eq!(
            (finished.stdout.as_str(), finished.stderr.as_str()),
            ("out\n", "err\n")
        );
        assert_eq!(
            Path::new(case.read("where").trim()),
            case.folder().canonicalize().unwrap()
        );
    }

    #[test]
    fn the_folder_goes_with_the_case() {
        let case = Case::new("goes");
        let folder = case.folder().to_path_buf();
        case.write("file", "content");
        drop(case);
        assert!(!folder.exists());
    }

    #[test]
    fn profile_folder_of_tests_and_programs() {
        assert_eq!(
            profile_folder(Path::new("/t/debug/deps/x-1")),
            Path::new("/t/debug")
        );
        assert_eq!(
            profile_folder(Path::new("/t/release/guest")),
            Path::new("/t/release")
        );
    }
}
