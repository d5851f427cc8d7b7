//! Setup of the tracer for the lab ([`LabSetup`]), and its counts there ([`LabLine`]): text files with a setting or
//! count per line, a name and its numbers. Caches, TLBs and CPUs are in the [tracer's setup](crate::tracer_setup).
//!
//! ```text
//! nearpage lab setup 1
//! instruction_fs 434783        time of an instruction that does not miss
//! quantum_ns 1000              how far a CPU may be ahead of another in guest time
//! pause_ns 40                  time of the instruction `pause`
//! hit_fs 5778000 15110000      hits of the second and the third level
//! tlb_miss_fs 0
//! latency_fs 87000000 …        for each CPU's node, for each memory's node
//! controller_fs 5000000        service of a line by a memory controller; 0: no limit
//! directory_fs 0               service of a request by a directory
//! link_fs 16000000 …           service of a line by each link; may be empty
//! routes - 0 2 0,2 …           links from the memory to the CPU, in the order of latency_fs; -: none
//! memory_bytes 536870912 …     of each node, in the order of the emulator's memory backends
//! begin_marks 1                begin marks before which nothing takes longer than its instructions
//! warm_up_instructions 0       instructions of all CPUs from there until counting begins
//! stop_booted 0                1: the guest stops for good where it says that it has booted
//! ```
//!
//! Each line comes once. The first line comes first, the others in any order.

mod counts;

use core::fmt;
use core::str::SplitAsciiWhitespace;

pub use counts::{COUNTS_FIRST_LINE, LabCount, LabLine};

/// First line of a lab's setup.
pub const SETUP_FIRST_LINE: &str = "nearpage lab setup 1";
/// Shortest and longest time that an instruction may take.
const INSTRUCTION_FS: core::ops::RangeInclusive<u64> = 10_000..=1_000_000_000;

/// Numbers, separated by spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers<'a>(pub &'a str);

impl<'a> Numbers<'a> {
    /// The numbers.
    pub fn iter(&self) -> impl Iterator<Item = u64> + Clone + use<'a> {
        self.0
            .split_ascii_whitespace()
            .filter_map(|word| word.parse().ok())
    }

    fn is_valid(&self) -> bool {
        let mut words = self.0.split_ascii_whitespace();
        words.all(|word| word.parse::<u64>().is_ok())
    }
}

/// Lists of links, separated by spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routes<'a>(pub &'a str);

impl<'a> Routes<'a> {
    /// The links of each pair of nodes.
    pub fn iter(&self) -> impl Iterator<Item = impl Iterator<Item = u16> + use<'a>> + use<'a> {
        let routes: SplitAsciiWhitespace<'a> = self.0.split_ascii_whitespace();
        routes.map(|route| {
            let links = route.split(',');
            links.filter_map(|link| link.parse().ok())
        })
    }
}

/// Setup of the tracer for the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabSetup<'a> {
    /// Time of an instruction that does not miss.
    pub instruction_fs: u64,
    /// How far a CPU may be ahead of another in guest time.
    pub quantum_ns: u64,
    /// Time of the instruction `pause`.
    pub pause_ns: u64,
    /// Times of hits of the second and the third level.
    pub hit_fs: [u64; 2],
    /// Time of a miss of all TLBs.
    pub tlb_miss_fs: u64,
    /// Latency for each CPU's node and each memory's node.
    pub latency_fs: Numbers<'a>,
    /// Time in which a memory controller serves a line; 0 for no limit.
    pub controller_fs: u64,
    /// Time in which a directory serves a request.
    pub directory_fs: u64,
    /// Time in which each link serves a line.
    pub link_fs: Numbers<'a>,
    /// Links from the memory to the CPU, in the order of `latency_fs`.
    pub routes: Routes<'a>,
    /// Bytes of each node's memory.
    pub memory_bytes: Numbers<'a>,
    /// Number of begin marks before which nothing takes longer than its instructions.
    pub begin_marks: u64,
    /// Instructions of all CPUs from there until counting begins.
    pub warm_up_instructions: u64,
    /// Whether the guest stops for good where it says that it has booted.
    pub stop_booted: bool,
}

/// A fault in a lab's setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabSetupError<'a> {
    /// The text does not begin with [`SETUP_FIRST_LINE`].
    NoSetup,
    /// A line has an unknown name, or invalid numbers.
    Line(&'a str),
    /// A setting is missing, or does not fit the number of nodes or links.
    Setting(&'static str),
}

impl fmt::Display for LabSetupError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSetup => write!(f, "the file does not begin with '{SETUP_FIRST_LINE}'"),
            Self::Line(line) => write!(f, "unknown or malformed line '{line}'"),
            Self::Setting(name) => write!(f, "{name} is missing or out of range"),
        }
    }
}

impl core::error::Error for LabSetupError<'_> {}

/// Names of the settings.
const NAMES: [&str; 14] = [
    "instruction_fs",
    "quantum_ns",
    "pause_ns",
    "hit_fs",
    "tlb_miss_fs",
    "latency_fs",
    "controller_fs",
    "directory_fs",
    "link_fs",
    "routes",
    "memory_bytes",
    "begin_marks",
    "warm_up_instructions",
    "stop_booted",
];

impl<'a> LabSetup<'a> {
    /// Reads a setup.
    ///
    /// # Errors
    /// The first fault.
    pub fn parse(text: &'a str) -> Result<Self, LabSetupError<'a>> {
        let mut lines = text.lines();
        if lines.next() != Some(SETUP_FIRST_LINE) {
            return Err(LabSetupError::NoSetup);
        }
        let mut settings: [Option<&'a str>; NAMES.len()] = [None; NAMES.len()];
        for line in lines {
            let (name, words) = line.split_once(' ').unwrap_or((line, ""));
            let place = NAMES.iter().position(|known| *known == name);
            let place = place.ok_or(LabSetupError::Line(line))?;
            let valid = name == "routes" || Numbers(words).is_valid();
            if !valid || settings[place].replace(words.trim_end()).is_some() {
                return Err(LabSetupError::Line(line));
            }
        }
        let get = |name: &'static str| {
            let place = NAMES.iter().position(|known| *known == name);
            let found = place.and_then(|place| settings[place]);
            found.ok_or(LabSetupError::Setting(name))
        };
        let number = |name| {
            let mut numbers = Numbers(get(name)?).iter();
            numbers.next().ok_or(LabSetupError::Setting(name))
        };
        let mut hits = Numbers(get("hit_fs")?).iter();
        let hit_fs =
            [hits.next(), hits.next()].map(|fs| fs.ok_or(LabSetupError::Setting("hit_fs")));
        let setup = Self {
            instruction_fs: number("instruction_fs")?,
            quantum_ns: number("quantum_ns")?,
            pause_ns: number("pause_ns")?,
            hit_fs: [hit_fs[0]?, hit_fs[1]?],
            tlb_miss_fs: number("tlb_miss_fs")?,
            latency_fs: Numbers(get("latency_fs")?),
            controller_fs: number("controller_fs")?,
            directory_fs: number("directory_fs")?,
            link_fs: Numbers(get("link_fs")?),
            routes: Routes(get("routes")?),
            memory_bytes: Numbers(get("memory_bytes")?),
            begin_marks: number("begin_marks")?,
            warm_up_instructions: number("warm_up_instructions")?,
            stop_booted: number("stop_booted")? != 0,
        };
        setup.check()?;
        Ok(setup)
    }

    /// Number of nodes of the machine.
    pub fn nodes(&self) -> usize {
        self.memory_bytes.iter().count()
    }

    /// Checks that the figures fit together.
    ///
    /// # Errors
    /// The first setting that does not fit.
    pub fn check(&self) -> Result<(), LabSetupError<'a>> {
        let nodes = self.nodes();
        let links = self.link_fs.iter().count();
        let is_known = |link: u16| usize::from(link) < links;
        let checks = [
            (
                INSTRUCTION_FS.contains(&self.instruction_fs),
                "instruction_fs",
            ),
            ((100..=1_000_000).contains(&self.quantum_ns), "quantum_ns"),
            (self.pause_ns <= 10_000, "pause_ns"),
            (self.begin_marks <= 2, "begin_marks"),
            ((1..=64).contains(&nodes), "memory_bytes"),
            (
                self.latency_fs.iter().count() == nodes * nodes,
                "latency_fs",
            ),
            (
                self.routes.iter().count() == nodes * nodes
                    && self.routes.iter().flatten().all(is_known),
                "routes",
            ),
        ];
        match checks.iter().find(|(fits, _)| !fits) {
            Some((_, name)) => Err(LabSetupError::Setting(name)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for LabSetup<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{SETUP_FIRST_LINE}")?;
        writeln!(out, "instruction_fs {}", self.instruction_fs)?;
        writeln!(out, "quantum_ns {}", self.quantum_ns)?;
        writeln!(out, "pause_ns {}", self.pause_ns)?;
        writeln!(out, "hit_fs {} {}", self.hit_fs[0], self.hit_fs[1])?;
        writeln!(out, "tlb_miss_fs {}", self.tlb_miss_fs)?;
        writeln!(out, "latency_fs {}", self.latency_fs.0)?;
        writeln!(out, "controller_fs {}", self.controller_fs)?;
        writeln!(out, "directory_fs {}", self.directory_fs)?;
        writeln!(out, "link_fs {}", self.link_fs.0)?;
        writeln!(out, "routes {}", self.routes.0)?;
        writeln!(out, "memory_bytes {}", self.memory_bytes.0)?;
        writeln!(out, "begin_marks {}", self.begin_marks)?;
        writeln!(out, "warm_up_instructions {}", self.warm_up_instructions)?;
        writeln!(out, "stop_booted {}", u8::from(self.stop_booted))
    }
}

#[cfg(test)]
mod tests;
