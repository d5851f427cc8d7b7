//! Limits and namespaces around a program, with and without nearpage.

use std::fmt;

use super::random::Random;

/// The environment of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Surroundings {
    /// No limits.
    Plain,
    /// A limit of the shell's `ulimit`.
    Limit(String),
    /// Separate namespaces, by options of `unshare`.
    Namespaces(&'static str),
    /// A seccomp filter that refuses these system calls, as in containers.
    Refused(Vec<&'static str>),
}

/// System calls that containers refuse and that the programs don't need.
const REFUSABLE: [(&str, u32); 8] = [
    ("perf_event_open", 298),
    ("mbind", 237),
    ("set_mempolicy", 238),
    ("get_mempolicy", 239),
    ("move_pages", 279),
    ("timer_create", 222),
    ("memfd_create", 319),
    ("userfaultfd", 323),
];
/// Options of `unshare`, up to the command.
const NAMESPACES: [&str; 6] = [
    "--pid --fork --kill-child",
    "--pid --fork --mount-proc",
    "--user --map-root-user",
    "--net --ipc",
    "--mount --uts",
    // A clock years ahead.
    "--time --monotonic 100000000 --boottime 100000000 --fork",
];
/// Installs a filter that makes the system calls with these numbers fail with EPERM, then executes the command.
const FILTER: &str = "
import ctypes, os, struct, sys
numbers = [int(number) for number in sys.argv[1].split(',')]
lines = [(0x20, 0, 0, 0)]
for at, number in enumerate(numbers):
    lines.append((0x15, len(numbers) - at, 0, number))
lines += [(6, 0, 0, 0x7fff0000), (6, 0, 0, 0x00050001)]
code = b''.join(struct.pack('HBBI', *line) for line in lines)
buffer = ctypes.create_string_buffer(code)
program = struct.pack('HxxxxxxQ', len(lines), ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execvp(sys.argv[2], sys.argv[2:])
";

impl Surroundings {
    /// Draws an environment; half of the environments have no limits.
    pub fn draw(random: &mut Random) -> Self {
        match random.below(8) {
            0 => {
                let limit = match random.below(5) {
                    0 => format!("-n {}", 16 + random.below(48)),
                    1 => format!("-v {}", 400_000 + 1000 * random.below(600)),
                    2 => format!("-s {}", 512 << random.below(6)),
                    3 => format!("-f {}", 10_000 + random.below(100_000)),
                    _ => "-l 0".to_owned(),
                };
                Self::Limit(limit)
            }
            1 => Self::Namespaces(random.of(&NAMESPACES)),
            2 | 3 if cfg!(target_arch = "x86_64") => {
                let calls = REFUSABLE.iter().filter(|_| random.below(2) == 0);
                Self::Refused(calls.map(|call| call.0).collect())
            }
            _ => Self::Plain,
        }
    }

    /// Words of the command line before the program's own.
    pub fn words(&self) -> Vec<String> {
        match self {
            Self::Plain => Vec::new(),
            Self::Limit(limit) => {
                let script = format!("ulimit {limit} && exec \"$@\"");
                ["sh", "-c", &script, "limited"].map(str::to_owned).to_vec()
            }
            Self::Namespaces(options) => std::iter::once("unshare")
                .chain(options.split(' '))
                .chain(["--"])
                .map(str::to_owned)
                .collect(),
            Self::Refused(calls) => {
                let numbers = REFUSABLE.iter().filter(|call| calls.contains(&call.0));
                let numbers: Vec<String> = numbers.map(|call| call.1.to_string()).collect();
                match numbers.is_empty() {
                    true => Vec::new(),
                    false => ["/usr/bin/python3", "-Ic", FILTER, &numbers.join(",")]
                        .map(str::to_owned)
                        .to_vec(),
                }
            }
        }
    }
}

impl fmt::Display for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => Ok(()),
            Self::Limit(limit) => write!(f, ", ulimit {limit}"),
            Self::Namespaces(options) => write!(f, ", unshare {options}"),
            Self::Refused(calls) => write!(f, ", without {}", calls.join(" ")),
        }
    }
}
