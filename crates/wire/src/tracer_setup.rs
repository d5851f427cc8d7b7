//! Setup of the tracer: a text file with one setting per line, a name and its words.
//!
//! ```text
//! nearpage tracer setup 1
//! page_bytes 4096
//! line_bytes 64
//! l1_fetch 32768 2             bytes, ways
//! l1_data 32768 2
//! l2 524288 2                  private to each CPU, contains all lines of its L1s
//! l3 8388608 16                optional: one per node; does not contain all lines of the L2s
//! tlb 64 64 8                  entries, ways, entries reserved for the kernel
//! tlb_fetch 128 8 0            optional: one for fetches; otherwise `tlb` serves them too
//! tlb_second 1536 12 0         optional
//! cpu_nodes 0 0 1 1            node of each CPU, by position
//! thread_cpus 0 1 2 3          thread k of a process runs on CPU position thread_cpus[k mod length]
//! thread_moves 2 5000000 3     optional: thread, virtual time of its process, CPU position, and so on
//! quantum 10000                instructions that threads advance together
//! sample_period 100000         mean references between two samples; 0: no samples
//! keep_hits 0                  1: keep hits of L2 and L3
//! dependences 0                1: record on which earlier misses a miss depends
//! from_mark 0                  1: nothing but first touches before nearpage_begin
//! serial 0                     1: one reference at a time, each written to a log (for tests)
//! ```
//!
//! The first line comes first, the others in any order, each at most once. Settings that are not optional must be
//! present. `sample_period`, `keep_hits`, `dependences`, `from_mark` and `serial` are 0 by default, and no thread
//! moves. Sets, that is bytes ÷ line ÷ ways, are a power of two except in `l3`.

mod parse;

use core::fmt;

/// First line of the file.
pub const FIRST_LINE: &str = "nearpage tracer setup 1";
/// Largest number of CPUs.
pub const CPUS_MAX: usize = 256;
/// Largest number of CPUs and nodes together.
pub const HOLDERS_MAX: usize = 277;
/// Largest number of ways.
pub const WAYS_MAX: u32 = 64;
/// Largest cache.
const CACHE_BYTES_MAX: u64 = 1 << 36;
/// Largest number of entries of a TLB.
const TLB_ENTRIES_MAX: u32 = 1 << 16;

/// A cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Bytes.
    pub bytes: u64,
    /// Ways.
    pub ways: u32,
}

impl Cache {
    /// Number of sets, with lines of this size.
    pub const fn sets(&self, line_bytes: u32) -> u64 {
        self.bytes / (line_bytes as u64 * self.ways as u64)
    }
}

/// A translation look-aside buffer with least-recently-used replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlb {
    /// Entries.
    pub entries: u32,
    /// Ways; a fully associative TLB has as many as entries.
    pub ways: u32,
    /// Entries that the kernel keeps for itself, a multiple of the number of sets.
    pub reserved: u32,
}

impl Tlb {
    /// Number of sets.
    pub const fn sets(&self) -> u32 {
        self.entries / self.ways
    }

    /// Ways that the kernel leaves to the program.
    pub const fn usable_ways(&self) -> u32 {
        self.ways - self.reserved / self.sets()
    }
}

/// Small numbers, separated by spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions<'a>(pub &'a str);

impl<'a> Positions<'a> {
    /// The numbers.
    pub fn iter(&self) -> impl Iterator<Item = usize> + Clone + use<'a> {
        self.0
            .split_ascii_whitespace()
            .filter_map(|word| word.parse().ok())
    }

    fn all_below(&self, end: usize) -> bool {
        let words = self.0.split_ascii_whitespace();
        words.clone().next().is_some()
            && words
                .map(str::parse)
                .all(|number| number.is_ok_and(|number: usize| number < end))
    }
}

/// Moves of threads, three numbers each, separated by spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves<'a>(pub &'a str);

/// A thread's move to another CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The thread, by order of creation in every process.
    pub thread: u32,
    /// Virtual time: the thread moves when a block begins at or after this time.
    pub instructions: u64,
    /// Position of the CPU.
    pub cpu: usize,
}

impl<'a> Moves<'a> {
    /// The moves before the first invalid one.
    pub fn iter(&self) -> impl Iterator<Item = Move> + use<'a> {
        let mut words = self.0.split_ascii_whitespace();
        core::iter::from_fn(move || {
            Some(Move {
                thread: words.next()?.parse().ok()?,
                instructions: words.next()?.parse().ok()?,
                cpu: words.next()?.parse().ok()?,
            })
        })
    }

    fn all_below(&self, end: usize) -> bool {
        self.iter().filter(|step| step.cpu < end).count() * 3
            == self.0.split_ascii_whitespace().count()
    }
}

/// Setup of the tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup<'a> {
    /// Bytes of a page, a power of two.
    pub page_bytes: u32,
    /// Bytes of a line of every cache, a power of two from 32.
    pub line_bytes: u32,
    /// First-level instruction cache of each CPU.
    pub l1_fetch: Cache,
    /// First-level data cache of each CPU.
    pub l1_data: Cache,
    /// Second-level cache of each CPU.
    pub l2: Cache,
    /// Last-level cache of each node.
    pub l3: Option<Cache>,
    /// TLB of each CPU, for data and, without `tlb_fetch`, for fetches.
    pub tlb: Tlb,
    /// TLB for fetches.
    pub tlb_fetch: Option<Tlb>,
    /// Second-level TLB.
    pub tlb_second: Option<Tlb>,
    /// Node of each CPU, by position.
    pub cpu_nodes: Positions<'a>,
    /// CPU positions; thread k of a process runs on entry k mod length.
    pub thread_cpus: Positions<'a>,
    /// Moves of threads to other CPUs.
    pub thread_moves: Moves<'a>,
    /// Instructions of a quantum, in which threads advance together.
    pub quantum: u32,
    /// Mean references between two samples; 0 for no samples.
    pub sample_period: u32,
    /// Whether to keep hits of L2 and L3.
    pub keep_hits: bool,
    /// Whether to record on which earlier misses a miss depends.
    pub dependences: bool,
    /// Whether to keep nothing but first touches before `nearpage_begin`.
    pub from_mark: bool,
    /// Whether references are made one at a time, and each is logged.
    pub serial: bool,
}

/// A fault in a setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupError<'a> {
    /// The text does not begin with [`FIRST_LINE`].
    NoSetup,
    /// A line has an unknown name, a wrong number of words, an invalid value, or a setting that came before.
    Line(&'a str),
    /// A required setting is missing.
    Missing(&'static str),
    /// A number is out of range.
    Number {
        /// The setting.
        name: &'static str,
        /// The value.
        value: u64,
        /// Values that are in range.
        expected: &'static str,
    },
    /// A cache does not divide into sets.
    Cache {
        /// The setting.
        name: &'static str,
        /// The cache.
        cache: Cache,
        /// Bytes of the cache's lines.
        line_bytes: u32,
        /// Numbers of sets that would fit.
        sets_expected: &'static str,
    },
    /// A TLB does not divide into sets.
    Tlb {
        /// The setting.
        name: &'static str,
        /// The TLB.
        tlb: Tlb,
    },
    /// There are too many CPUs, or CPUs and nodes together.
    Cpus {
        /// Number of CPUs.
        cpus: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// A word is no position of a CPU or node.
    Positions {
        /// The setting.
        name: &'static str,
        /// Valid positions are below this number.
        end: usize,
    },
}

impl SetupError<'_> {
    /// Error for pages of a size that can't be traced.
    pub const fn page_bytes(value: u64) -> Self {
        Self::Number {
            name: "page_bytes",
            value,
            expected: "a power of two from 512 to 1073741824",
        }
    }
}

impl fmt::Display for SetupError<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSetup => write!(formatter, "it does not begin with '{FIRST_LINE}'"),
            Self::Line(line) => write!(formatter, "it has the line '{line}'"),
            Self::Missing(name) => write!(formatter, "it does not say {name}"),
            Self::Number {
                name,
                value,
                expected,
            } => write!(formatter, "{name} is {value}; expected {expected}"),
            Self::Cache {
                name,
                cache: Cache { bytes, ways },
                line_bytes,
                sets_expected,
            } => write!(
                formatter,
                "{name} is {bytes} bytes, {ways}-way, in lines of {line_bytes} bytes; expected 1 to {WAYS_MAX} ways, at \
                 most {CACHE_BYTES_MAX} bytes, and bytes ÷ line ÷ ways {sets_expected}"
            ),
            Self::Tlb {
                name,
                tlb:
                    Tlb {
                        entries,
                        ways,
                        reserved,
                    },
            } => write!(
                formatter,
                "{name} is {entries} entries, {ways}-way, {reserved} of them reserved; expected 1 to {TLB_ENTRIES_MAX} \
                 entries, entries ÷ ways, the sets, a power of two, and fewer reserved than there are, a multiple of the sets"
            ),
            Self::Cpus { cpus, nodes } => write!(
                formatter,
                "CPUs: {cpus}, nodes: {nodes}; expected at most {CPUS_MAX} CPUs, and at most {HOLDERS_MAX} of both"
            ),
            Self::Positions { name, end } => {
                write!(formatter, "{name}: expected positions below {end}")
            }
        }
    }
}

impl core::error::Error for SetupError<'_> {}

impl<'a> Setup<'a> {
    /// Checks that the figures fit together.
    ///
    /// # Errors
    /// The first figure that does not fit, and what was expected.
    pub fn check(&self) -> Result<(), SetupError<'static>> {
        let line_bytes = self.line_bytes;
        if !self.page_bytes.is_power_of_two() || !(512..=1 << 30).contains(&self.page_bytes) {
            return Err(SetupError::page_bytes(self.page_bytes.into()));
        }
        if !line_bytes.is_power_of_two() || !(32..=512).contains(&line_bytes) {
            return Err(SetupError::Number {
                name: "line_bytes",
                value: line_bytes.into(),
                expected: "a power of two from 32 to 512",
            });
        }
        let cache = |name, cache: Cache, any_sets: bool| {
            let set_bytes = u64::from(line_bytes) * u64::from(cache.ways);
            let fits = (1..=WAYS_MAX).contains(&cache.ways)
                && (1..=CACHE_BYTES_MAX).contains(&cache.bytes)
                && cache.bytes.is_multiple_of(set_bytes)
                && (any_sets || cache.sets(line_bytes).is_power_of_two());
            let wrong = SetupError::Cache {
                name,
                cache,
                line_bytes,
                sets_expected: match any_sets {
                    true => "a whole number",
                    false => "a power of two",
                },
            };
            if fits { Ok(()) } else { Err(wrong) }
        };
        cache("l1_fetch", self.l1_fetch, false)?;
        cache("l1_data", self.l1_data, false)?;
        cache("l2", self.l2, false)?;
        self.l3.map_or(Ok(()), |l3| cache("l3", l3, true))?;
        let tlb = |name, tlb: Tlb| {
            let fits = (1..=TLB_ENTRIES_MAX).contains(&tlb.entries)
                && (1..=tlb.entries).contains(&tlb.ways)
                && tlb.entries.is_multiple_of(tlb.ways)
                && tlb.sets().is_power_of_two()
                && tlb.reserved < tlb.entries
                && tlb.reserved.is_multiple_of(tlb.sets());
            if fits {
                Ok(())
            } else {
                Err(SetupError::Tlb { name, tlb })
            }
        };
        tlb("tlb", self.tlb)?;
        let optional_tlb =
            |name, other: Option<Tlb>| other.map_or(Ok(()), |other| tlb(name, other));
        optional_tlb("tlb_fetch", self.tlb_fetch)?;
        optional_tlb("tlb_second", self.tlb_second)?;
        let cpus = self.cpu_nodes.iter().count();
        let positions = [
            (self.cpu_nodes.all_below(CPUS_MAX), "cpu_nodes", CPUS_MAX),
            (self.thread_cpus.all_below(cpus), "thread_cpus", cpus),
            (self.thread_moves.all_below(cpus), "thread_moves", cpus),
        ];
        if let Some(&(_, name, end)) = positions.iter().find(|(fits, ..)| !fits) {
            return Err(SetupError::Positions { name, end });
        }
        let nodes = self.cpu_nodes.iter().max().map_or(0, |last| last + 1);
        if cpus > CPUS_MAX || cpus + nodes > HOLDERS_MAX {
            return Err(SetupError::Cpus { cpus, nodes });
        }
        if !(100..=1 << 30).contains(&self.quantum) {
            return Err(SetupError::Number {
                name: "quantum",
                value: self.quantum.into(),
                expected: "100 to 1073741824 instructions",
            });
        }
        Ok(())
    }
}

impl fmt::Display for Setup<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{FIRST_LINE}")?;
        writeln!(out, "page_bytes {}", self.page_bytes)?;
        writeln!(out, "line_bytes {}", self.line_bytes)?;
        let caches = [
            ("l1_fetch", Some(self.l1_fetch)),
            ("l1_data", Some(self.l1_data)),
            ("l2", Some(self.l2)),
            ("l3", self.l3),
        ];
        for (name, cache) in caches {
            if let Some(Cache { bytes, ways }) = cache {
                writeln!(out, "{name} {bytes} {ways}")?;
            }
        }
        let tlbs = [
            ("tlb", Some(self.tlb)),
            ("tlb_fetch", self.tlb_fetch),
            ("tlb_second", self.tlb_second),
        ];
        for (name, tlb) in tlbs {
            if let Some(tlb) = tlb {
                let Tlb {
                    entries,
                    ways,
                    reserved,
                } = tlb;
                writeln!(out, "{name} {entries} {ways} {reserved}")?;
            }
        }
        writeln!(out, "cpu_nodes {}", self.cpu_nodes.0)?;
        writeln!(out, "thread_cpus {}", self.thread_cpus.0)?;
        if !self.thread_moves.0.is_empty() {
            writeln!(out, "thread_moves {}", self.thread_moves.0)?;
        }
        writeln!(out, "quantum {}", self.quantum)?;
        writeln!(out, "sample_period {}", self.sample_period)?;
        writeln!(out, "keep_hits {}", u8::from(self.keep_hits))?;
        if self.dependences {
            writeln!(out, "dependences 1")?;
        }
        writeln!(out, "from_mark {}", u8::from(self.from_mark))?;
        writeln!(out, "serial {}", u8::from(self.serial))
    }
}

#[cfg(test)]
mod tests;
