//! What the tracer is told: a text file of one setting a line, a name and its words.
//!
//! ```text
//! nearpage tracer setup 1
//! page_bytes 4096
//! line_bytes 64
//! l1_fetch 32768 2             bytes, ways
//! l1_data 32768 2
//! l2 524288 2                  private to each CPU, holds whatever its L1s hold
//! l3 8388608 16                optional: one per node; does not hold all that the L2s hold
//! tlb 64 64 8                  entries, ways, entries reserved for the kernel
//! tlb_fetch 128 8 0            optional: one for fetches; otherwise `tlb` serves them too
//! tlb_second 1536 12 0         optional
//! cpu_nodes 0 0 1 1            node of each CPU, by position
//! thread_cpus 0 1 2 3          thread k of a process runs on CPU position thread_cpus[k mod length]
//! thread_moves 2 5000000 3     optional: thread, virtual time of its process, CPU position, and so on
//! quantum 10000                instructions that threads advance together
//! sample_period 100000         mean references between two samples; 0: none
//! keep_hits 0                  1: keep what L2 and L3 serve
//! from_mark 0                  1: nothing but first touches before nearpage_begin
//! serial 0                     1: one reference at a time, each written to a log (for tests)
//! ```
//!
//! The first line comes first, the others in any order, each at most once; those that are not
//! optional must be there (`sample_period`, `keep_hits`, `from_mark` and `serial` are 0 otherwise, and no
//! thread moves). Sets, that is bytes ÷ line ÷ ways, are a power of two but for `l3`.

use core::fmt;

/// First line of the file.
pub const FIRST_LINE: &str = "nearpage tracer setup 1";
/// Largest number of CPUs.
pub const CPUS_MAX: usize = 256;
/// Largest number of CPUs and nodes together.
pub const HOLDERS_MAX: usize = 277;
/// Largest number of ways.
pub const WAYS_MAX: u32 = 64;

/// A cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Bytes.
    pub bytes: u64,
    /// Ways.
    pub ways: u32,
}

impl Cache {
    /// Sets, with lines of that size.
    pub const fn sets(&self, line_bytes: u32) -> u64 {
        self.bytes / (line_bytes as u64 * self.ways as u64)
    }
}

/// A translation look-aside buffer with least-recently-used replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlb {
    /// Entries.
    pub entries: u32,
    /// Ways; as many as entries: fully associative.
    pub ways: u32,
    /// Entries that the kernel keeps for itself, a multiple of the number of sets.
    pub reserved: u32,
}

impl Tlb {
    /// Sets.
    pub const fn sets(&self) -> u32 {
        self.entries / self.ways
    }

    /// Ways that the program has.
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

/// A thread that goes on on another CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Order of creation, in every process.
    pub thread: u32,
    /// Virtual time: it moves when a block begins at or after it.
    pub instructions: u64,
    /// Position of the CPU.
    pub cpu: usize,
}

impl<'a> Moves<'a> {
    /// The moves; none from the first that is not one on.
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

/// What the tracer is told.
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
    /// CPU positions; thread k of a process runs on number k mod length.
    pub thread_cpus: Positions<'a>,
    /// Threads that go on on other CPUs.
    pub thread_moves: Moves<'a>,
    /// Instructions that threads advance together.
    pub quantum: u32,
    /// Mean references between two samples; 0: none.
    pub sample_period: u32,
    /// Keep what L2 and L3 serve.
    pub keep_hits: bool,
    /// Nothing but first touches before `nearpage_begin`.
    pub from_mark: bool,
    /// One reference at a time, each logged.
    pub serial: bool,
}

/// What is wrong with a setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupError<'a> {
    /// It does not begin with [`FIRST_LINE`].
    NoSetup,
    /// A line that says nothing known, or not in that many words, or says it again.
    Line(&'a str),
    /// A setting that must be there.
    Missing(&'static str),
    /// A setting whose figures do not fit together.
    Impossible(&'static str),
}

impl fmt::Display for SetupError<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSetup => write!(formatter, "it does not begin with '{FIRST_LINE}'"),
            Self::Line(line) => write!(formatter, "it has the line '{line}'"),
            Self::Missing(name) => write!(formatter, "it does not say {name}"),
            Self::Impossible(name) => write!(formatter, "no machine has such a {name}"),
        }
    }
}

impl core::error::Error for SetupError<'_> {}

impl<'a> Setup<'a> {
    /// Reads a setup.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &'a str) -> Result<Self, SetupError<'a>> {
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(SetupError::NoSetup);
        }
        const NAMES: [&str; 14] = [
            "page_bytes",
            "line_bytes",
            "l1_fetch",
            "l1_data",
            "l2",
            "l3",
            "tlb",
            "tlb_fetch",
            "tlb_second",
            "quantum",
            "sample_period",
            "keep_hits",
            "from_mark",
            "serial",
        ];
        let mut numbers: [Option<[u64; 3]>; NAMES.len()] = [None; NAMES.len()];
        let (mut cpu_nodes, mut thread_cpus, mut thread_moves) = (None, None, None);
        for line in lines {
            let wrong = SetupError::Line(line);
            let (name, words) = line.split_once(' ').ok_or(wrong)?;
            let list = match name {
                "cpu_nodes" => Some(&mut cpu_nodes),
                "thread_cpus" => Some(&mut thread_cpus),
                "thread_moves" => Some(&mut thread_moves),
                _ => None,
            };
            if let Some(list) = list {
                // What ends a line may be written again as another end of it.
                if list.replace(words.trim_end()).is_some() {
                    return Err(wrong);
                }
                continue;
            }
            let place = NAMES.iter().position(|known| *known == name).ok_or(wrong)?;
            let expected = match name {
                "l1_fetch" | "l1_data" | "l2" | "l3" => 2,
                "tlb" | "tlb_fetch" | "tlb_second" => 3,
                _ => 1,
            };
            let mut values = [0; 3];
            let mut count = 0;
            for word in words.split_ascii_whitespace() {
                *values.get_mut(count).ok_or(wrong)? = word.parse().map_err(|_| wrong)?;
                count += 1;
            }
            if count != expected || numbers[place].replace(values).is_some() {
                return Err(wrong);
            }
        }
        let get = |name: &'static str| {
            let place = NAMES.iter().position(|known| *known == name);
            place.and_then(|place| numbers[place])
        };
        let must = |name| get(name).ok_or(SetupError::Missing(name));
        let number = |name, values: [u64; 3]| {
            u32::try_from(values[0]).map_err(|_| SetupError::Impossible(name))
        };
        let flag = |name| match get(name) {
            None => Ok(false),
            Some([value @ (0 | 1), ..]) => Ok(value == 1),
            Some(_) => Err(SetupError::Impossible(name)),
        };
        let cache = |name, [bytes, ways, _]: [u64; 3]| {
            let ways = u32::try_from(ways).map_err(|_| SetupError::Impossible(name))?;
            Ok(Cache { bytes, ways })
        };
        let tlb = |name, values: [u64; 3]| {
            let [entries, ways, reserved] = values.map(u32::try_from);
            match (entries, ways, reserved) {
                (Ok(entries), Ok(ways), Ok(reserved)) => Ok(Tlb {
                    entries,
                    ways,
                    reserved,
                }),
                _ => Err(SetupError::Impossible(name)),
            }
        };
        let optional_tlb = |name| get(name).map(|values| tlb(name, values)).transpose();
        let setup = Self {
            page_bytes: number("page_bytes", must("page_bytes")?)?,
            line_bytes: number("line_bytes", must("line_bytes")?)?,
            l1_fetch: cache("l1_fetch", must("l1_fetch")?)?,
            l1_data: cache("l1_data", must("l1_data")?)?,
            l2: cache("l2", must("l2")?)?,
            l3: get("l3").map(|values| cache("l3", values)).transpose()?,
            tlb: tlb("tlb", must("tlb")?)?,
            tlb_fetch: optional_tlb("tlb_fetch")?,
            tlb_second: optional_tlb("tlb_second")?,
            cpu_nodes: Positions(cpu_nodes.ok_or(SetupError::Missing("cpu_nodes"))?),
            thread_cpus: Positions(thread_cpus.ok_or(SetupError::Missing("thread_cpus"))?),
            thread_moves: Moves(thread_moves.unwrap_or_default()),
            quantum: number("quantum", must("quantum")?)?,
            sample_period: number("sample_period", get("sample_period").unwrap_or_default())?,
            keep_hits: flag("keep_hits")?,
            from_mark: flag("from_mark")?,
            serial: flag("serial")?,
        };
        setup.check()?;
        Ok(setup)
    }

    /// Do the figures fit together?
    ///
    /// # Errors
    /// [`SetupError::Impossible`] with the first that does not.
    pub fn check(&self) -> Result<(), SetupError<'static>> {
        let line_bytes = self.line_bytes;
        let cache = |cache: &Cache, any_sets: bool| {
            let set_bytes = u64::from(line_bytes) * u64::from(cache.ways);
            (1..=WAYS_MAX).contains(&cache.ways)
                && (1..=1 << 36).contains(&cache.bytes)
                && cache.bytes.is_multiple_of(set_bytes)
                && (any_sets || cache.sets(line_bytes).is_power_of_two())
        };
        let tlb = |tlb: &Tlb| {
            (1..=1 << 16).contains(&tlb.entries)
                && (1..=tlb.entries).contains(&tlb.ways)
                && tlb.entries.is_multiple_of(tlb.ways)
                && tlb.sets().is_power_of_two()
                && tlb.reserved < tlb.entries
                && tlb.reserved.is_multiple_of(tlb.sets())
        };
        let cpus = self.cpu_nodes.iter().count();
        let nodes = self
            .cpu_nodes
            .iter()
            .max()
            .map_or(0, |last| last.saturating_add(1));
        let checks = [
            (
                self.page_bytes.is_power_of_two() && (512..=1 << 30).contains(&self.page_bytes),
                "page_bytes",
            ),
            (
                line_bytes.is_power_of_two() && (32..=512).contains(&line_bytes),
                "line_bytes",
            ),
        ];
        if let Some((_, name)) = checks.iter().find(|(fits, _)| !fits) {
            return Err(SetupError::Impossible(name));
        }
        let checks = [
            (cache(&self.l1_fetch, false), "l1_fetch"),
            (cache(&self.l1_data, false), "l1_data"),
            (cache(&self.l2, false), "l2"),
            (self.l3.is_none_or(|l3| cache(&l3, true)), "l3"),
            (tlb(&self.tlb), "tlb"),
            (self.tlb_fetch.as_ref().is_none_or(tlb), "tlb_fetch"),
            (self.tlb_second.as_ref().is_none_or(tlb), "tlb_second"),
            (
                self.cpu_nodes.all_below(CPUS_MAX)
                    && cpus <= CPUS_MAX
                    && cpus.saturating_add(nodes) <= HOLDERS_MAX,
                "cpu_nodes",
            ),
            (self.thread_cpus.all_below(cpus), "thread_cpus"),
            (self.thread_moves.all_below(cpus), "thread_moves"),
            ((100..=1 << 30).contains(&self.quantum), "quantum"),
        ];
        match checks.iter().find(|(fits, _)| !fits) {
            Some((_, name)) => Err(SetupError::Impossible(name)),
            None => Ok(()),
        }
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
        writeln!(out, "from_mark {}", u8::from(self.from_mark))?;
        writeln!(out, "serial {}", u8::from(self.serial))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::{String, ToString};

    use super::*;

    /// CC-NUMA of Verghese et al.
    const FLASH: Setup<'static> = Setup {
        page_bytes: 4096,
        line_bytes: 128,
        l1_fetch: Cache {
            bytes: 32 << 10,
            ways: 2,
        },
        l1_data: Cache {
            bytes: 32 << 10,
            ways: 2,
        },
        l2: Cache {
            bytes: 512 << 10,
            ways: 2,
        },
        l3: None,
        tlb: Tlb {
            entries: 64,
            ways: 64,
            reserved: 8,
        },
        tlb_fetch: None,
        tlb_second: None,
        cpu_nodes: Positions("0 1 2 3 4 5 6 7"),
        thread_cpus: Positions("7 0"),
        thread_moves: Moves("1 5000000000 7 0 20000 1"),
        quantum: 10_000,
        sample_period: 100_003,
        keep_hits: true,
        from_mark: false,
        serial: true,
    };

    #[test]
    fn a_setup_comes_back_as_written() {
        let full = Setup {
            l3: Some(Cache {
                bytes: 30 << 20,
                ways: 20,
            }),
            tlb_fetch: Some(Tlb {
                entries: 128,
                ways: 8,
                reserved: 0,
            }),
            tlb_second: Some(Tlb {
                entries: 1536,
                ways: 12,
                reserved: 0,
            }),
            ..FLASH
        };
        for setup in [FLASH, full] {
            assert_eq!(Setup::parse(&setup.to_string()), Ok(setup));
        }
        assert_eq!(FLASH.tlb.usable_ways(), 56);
        assert_eq!(FLASH.l2.sets(128), 2048);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let text = FLASH.to_string();
        let change = |from: &str, to: &str| -> String {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        };
        let cases = [
            ("setup 1", "setup 2", SetupError::NoSetup),
            ("quantum 10000\n", "", SetupError::Missing("quantum")),
            (
                "quantum 10000",
                "quantum 0",
                SetupError::Impossible("quantum"),
            ),
            ("l2 524288 2", "l2 524288 3", SetupError::Impossible("l2")),
            ("l2 524288 2", "l2 524288 0", SetupError::Impossible("l2")),
            ("tlb 64 64 8", "tlb 64 64 64", SetupError::Impossible("tlb")),
            ("tlb 64 64 8", "tlb 64 0 8", SetupError::Impossible("tlb")),
            (
                "thread_cpus 7 0",
                "thread_cpus 8",
                SetupError::Impossible("thread_cpus"),
            ),
            (
                "cpu_nodes 0",
                "cpu_nodes 18446744073709551615",
                SetupError::Impossible("cpu_nodes"),
            ),
            (
                "thread_moves 1 5000000000 7",
                "thread_moves 1 5000000000 8",
                SetupError::Impossible("thread_moves"),
            ),
            (
                "thread_moves 1 5000000000 7",
                "thread_moves 1 5000000000",
                SetupError::Impossible("thread_moves"),
            ),
            (
                "line_bytes 128",
                "line_bytes 0",
                SetupError::Impossible("line_bytes"),
            ),
            ("serial 1", "serial 2", SetupError::Impossible("serial")),
            ("serial 1", "serial", SetupError::Line("serial")),
            (
                "serial 1",
                "serial 1\nserial 1",
                SetupError::Line("serial 1"),
            ),
            ("l2 524288 2", "l2 524288", SetupError::Line("l2 524288")),
            (
                "l2 524288 2",
                "l4 524288 2",
                SetupError::Line("l4 524288 2"),
            ),
        ];
        for (from, to, error) in cases {
            assert_eq!(Setup::parse(&change(from, to)), Err(error), "{from} → {to}");
        }
        let spaced = change("thread_cpus 7 0", "thread_cpus 7 0 \r\r");
        let read = Setup::parse(&spaced).map(|setup| setup.thread_cpus.0);
        assert_eq!(read, Ok("7 0"));
    }
}
