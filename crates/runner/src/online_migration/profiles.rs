//! Sums of the samples of running programs over some seconds: by object, CPU node and memory node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nearpage_live::{Entry, Head, Report};
use nearpage_machine::NodeId;
use nearpage_recording::{AccessKind, Level, Origin};
use nearpage_report::mappings::{Mapping, mapping_of, mappings};
use nearpage_report::{RunningAccess, RunningProgram, printable, running_profiles};
use rustc_hash::FxHashMap;

use crate::launcher::own_host;

/// Limit of the number of separate sums in a message.
const ROWS_MAX: usize = 20_000;
/// Name that stands for the objects beyond the limit.
const OTHERS: &str = "other objects";
/// Limit of the number of processes whose mappings are read in an interval.
const READ_MAX: usize = 64;

/// Sums up reports until a message is due.
#[derive(Debug)]
pub(super) struct Profiles {
    every: Duration,
    proc_root: PathBuf,
    page_bytes: u64,
    nodes: Vec<NodeId>,
    /// Does each sample stand for many accesses?
    is_weighted: bool,
    begin_unix_ns: u64,
    length_ns: u64,
    /// Process and page for each number in reports.
    numbers: FxHashMap<u32, (u16, u64)>,
    mappings: FxHashMap<u16, ReadMappings>,
    known: FxHashMap<u16, KnownProcess>,
    sums: BTreeMap<u16, FxHashMap<Key, Sum>>,
    rows: usize,
}

#[derive(Clone, Debug)]
struct KnownProcess {
    pid: u32,
    name: String,
    /// Time that a sample of the process stands for, as of the latest interval.
    cost_ns: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    accesses: f64,
    cost_ns: f64,
}

#[derive(Debug, Default)]
struct ReadMappings {
    list: Vec<Mapping>,
    /// Were the mappings read in this interval?
    is_fresh: bool,
}

/// Properties by which samples are summed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    object: String,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    node: u16,
    home: u16,
    level: Level,
    kind: AccessKind,
}

/// Number of samples in an interval: by process, position of the mapping in the process, and place.
type Counts = FxHashMap<(u16, Option<u32>, Place), u64>;

impl Profiles {
    /// Starts for a daemon whose log begins with `head`; a message is due after `every`.
    pub fn new(head: &Head, is_weighted: bool, every: Duration) -> Self {
        Self {
            every,
            proc_root: PathBuf::from("/proc"),
            page_bytes: head.page_bytes,
            nodes: head.nodes.iter().copied().map(NodeId).collect(),
            is_weighted,
            begin_unix_ns: unix_ns(),
            length_ns: 0,
            numbers: FxHashMap::default(),
            mappings: FxHashMap::default(),
            known: FxHashMap::default(),
            sums: BTreeMap::new(),
            rows: 0,
        }
    }

    /// Adds an interval, and returns a message if one is due.
    pub fn take(&mut self, report: &Report) -> Option<Vec<u8>> {
        self.know_processes(report);
        let counts = self.count(&report.entry);
        self.add(report, counts);
        for read in self.mappings.values_mut() {
            read.is_fresh = false;
        }
        let interval = &report.entry.interval;
        self.length_ns += interval.end_ns.saturating_sub(interval.begin_ns);
        match u128::from(self.length_ns) >= self.every.as_nanos() {
            true => self.message(),
            false => None,
        }
    }

    /// A message with the sums so far, if there are any.
    pub fn message(&mut self) -> Option<Vec<u8>> {
        let begin_unix_ns = std::mem::replace(&mut self.begin_unix_ns, unix_ns());
        let length_ns = std::mem::take(&mut self.length_ns);
        // Programs change their mappings, so they are read again for the next message.
        self.mappings.clear();
        self.rows = 0;
        let sums = std::mem::take(&mut self.sums).into_iter();
        let programs = sums.filter_map(|(process, sums)| {
            let known = self.known.get(&process)?;
            Some(RunningProgram {
                pid: known.pid,
                name: known.name.clone(),
                origin: Origin::of(&self.proc_root, &known.pid.to_string()),
                accesses: self.accesses(sums),
            })
        });
        let programs: Vec<RunningProgram> = programs.collect();
        (!programs.is_empty())
            .then(|| running_profiles(&own_host(), begin_unix_ns, length_ns, &programs))
    }

    fn count(&mut self, entry: &Entry) -> Counts {
        let interval = &entry.interval;
        for number in &interval.forgotten {
            self.numbers.remove(number);
        }
        let mut counts = Counts::default();
        let mut reads_left = READ_MAX;
        let mut placed = interval.placed.iter().peekable();
        for (at, seen) in interval.observations.iter().enumerate() {
            while let Some(now) = placed.next_if(|placed| placed.after <= at) {
                self.numbers.insert(now.page, (now.process, now.number));
            }
            let Some(&(process, page)) = self.numbers.get(&seen.page) else {
                continue;
            };
            let address = page.saturating_mul(self.page_bytes);
            let mapping = self.mapping(process, address, &mut reads_left);
            let place = Place {
                node: seen.node,
                home: seen.home,
                level: seen.level,
                kind: seen.kind,
            };
            *counts.entry((process, mapping, place)).or_default() += 1;
        }
        for now in placed {
            self.numbers.insert(now.page, (now.process, now.number));
        }
        counts
    }

    /// Notes the processes of an interval. A process that has ended keeps its last values.
    fn know_processes(&mut self, report: &Report) {
        for (logged, time) in report.entry.processes.iter().zip(&report.process_times) {
            let before = self
                .known
                .get(&time.process)
                .map_or(0.0, |known| known.cost_ns);
            let known = KnownProcess {
                pid: logged.pid,
                name: printable(&logged.name),
                // Each sample stands for an equal share of the lost time.
                cost_ns: match logged.accesses {
                    0 => before,
                    accesses => time.lost_ns / accesses as f64,
                },
            };
            self.known.insert(time.process, known);
        }
    }

    /// Position of an address's mapping among the mappings of its process.
    fn mapping(&mut self, process: u16, address: u64, reads_left: &mut usize) -> Option<u32> {
        let read = self.mappings.entry(process).or_default();
        let position = |list: &[Mapping]| {
            let mapping = mapping_of(list, address)?;
            list.binary_search_by_key(&mapping.start, |other| other.start)
                .ok()
        };
        let mut found = position(&read.list);
        // An unknown address may have been mapped after the last reading.
        if found.is_none()
            && !read.is_fresh
            && *reads_left > 0
            && let Some(known) = self.known.get(&process)
        {
            *reads_left -= 1;
            read.list = mappings(&self.proc_root, known.pid);
            read.is_fresh = true;
            found = position(&read.list);
        }
        found.map(|at| at as u32)
    }

    fn add(&mut self, report: &Report, counts: Counts) {
        let weight = match self.is_weighted {
            true => report.entry.interval.accesses_per_thousand as f64 / 1000.0,
            false => 1.0,
        };
        for ((process, mapping, place), count) in counts {
            let Some(known) = self.known.get(&process) else {
                continue;
            };
            let list = self.mappings.get(&process).map(|read| &read.list);
            let mapping = mapping.and_then(|at| list?.get(at as usize));
            let object = mapping.map_or("unknown".into(), Mapping::lasting_name);
            let mut key = Key {
                object: object.into_owned(),
                place,
            };
            let sums = self.sums.entry(process).or_default();
            if self.rows >= ROWS_MAX && !sums.contains_key(&key) {
                OTHERS.clone_into(&mut key.object);
            }
            let sum = sums.entry(key).or_insert_with(|| {
                self.rows += 1;
                Sum::default()
            });
            sum.accesses += count as f64 * weight;
            sum.cost_ns += count as f64 * known.cost_ns;
        }
    }

    /// The sums with node numbers, ordered by cost.
    fn accesses(&self, sums: FxHashMap<Key, Sum>) -> Vec<RunningAccess> {
        let node = |at: u16| self.nodes.get(usize::from(at)).copied();
        let mut accesses: Vec<RunningAccess> = sums
            .into_iter()
            .filter_map(|(Key { object, place }, sum)| {
                Some(RunningAccess {
                    object,
                    node: node(place.home)?,
                    cpu_node: node(place.node)?,
                    level: place.level,
                    kind: place.kind,
                    accesses: sum.accesses,
                    cost_ns: sum.cost_ns,
                })
            })
            .collect();
        accesses.sort_by(|a, b| b.cost_ns.total_cmp(&a.cost_ns));
        accesses
    }
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
