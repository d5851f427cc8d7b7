//! The tracer's setup for a machine, and whether a trace that was made with a setup suits another machine.

use nearpage_amount::counted;
use nearpage_machine::{CacheKind, CpuId, Machine, ThreadPlacement, thread_cpus};
use nearpage_wire::tracer_setup::{Cache, Moves, Positions, Setup, SetupError, Tlb};

use super::Tracing;

/// Ways of a cache if the machine file does not state them: the usual number.
const WAYS_ASSUMED: u32 = 8;
/// TLB of a machine whose file has none: 64 entries, fully associative, as in processors of the R10000's time and in
/// the first level of current x86.
const TLB_ASSUMED: Tlb = Tlb {
    entries: 64,
    ways: 64,
    reserved: 0,
};

/// A thread's move to another CPU while it is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedMove {
    /// The thread, by order of creation in every process.
    pub thread: u32,
    /// Virtual time of the move, in instructions; virtual time goes on while a thread waits for others.
    pub instructions: u64,
    /// The new CPU.
    pub cpu: CpuId,
}

/// Options of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Placement of threads on the machine's CPUs, in order of creation; `None` is compact.
    pub threads: ThreadPlacement,
    /// Moves of threads after their placement.
    pub moves: Vec<TracedMove>,
    /// Instructions of a quantum, in which threads advance together.
    pub quantum_instructions: u32,
    /// Mean number of references between two periodic samples; 0 for no samples.
    pub sample_every: u32,
    /// Whether to keep hits of the second- and third-level cache.
    pub keep_hits: bool,
    /// Whether to keep nothing but first touches before `nearpage_begin`.
    pub from_mark: bool,
    /// Whether references are made one at a time, and each is logged (for tests).
    pub serial: bool,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self {
            threads: ThreadPlacement::Compact,
            moves: Vec::new(),
            quantum_instructions: 10_000,
            sample_every: 100_003,
            keep_hits: false,
            from_mark: false,
            serial: false,
        }
    }
}

/// Why a program can't be traced for a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TracingError {
    /// The machine's latencies or links make no sense.
    #[error("{machine}: {fault}")]
    Timing {
        /// The machine's name.
        machine: String,
        /// The fault, in words.
        fault: String,
    },
    /// The machine has no such cache.
    #[error(
        "{machine}: the machine has no {cache}, so misses can't be told from hits; describe its caches in a \
         machine file (`nearpage machine show {argument} --toml` prints one to begin with)"
    )]
    NoCache {
        /// The machine's name.
        machine: String,
        /// The missing cache, in words.
        cache: &'static str,
        /// The argument of `--machine`.
        argument: String,
    },
    /// A thread is to move to a CPU that the machine does not have.
    #[error("thread {thread} is to move to CPU {cpu}, which {machine} has not")]
    NoCpu {
        /// The machine's name.
        machine: String,
        /// The thread, by order of creation.
        thread: u32,
        /// The CPU to which the thread is to move.
        cpu: CpuId,
    },
    /// The tracer cannot simulate the machine's pages, caches or TLBs.
    #[error("{machine}: {cause}")]
    Setup {
        /// The machine's name.
        machine: String,
        /// What the tracer expects, in words.
        cause: String,
    },
}

/// Why a trace does not suit a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceMismatch {
    /// No program can be traced for the machine.
    #[error(transparent)]
    Machine(#[from] TracingError),
    /// The recording's setup is damaged.
    #[error("the recording does not say what it was made for: {0}")]
    NoSetup(String),
    /// The machine has other caches or TLBs.
    #[error("recorded for {recorded}; {machine} has {found}")]
    Caches {
        /// The machine's name.
        machine: String,
        /// Caches and TLBs of the trace, in words.
        recorded: String,
        /// Caches and TLBs of the machine, in words.
        found: String,
    },
    /// The machine has fewer CPUs than the trace's threads use.
    #[error("recorded on {}; {machine} has {found}", counted(*recorded as u64, "CPU"))]
    CpuCount {
        /// The machine's name.
        machine: String,
        /// Number of CPUs in the trace.
        recorded: usize,
        /// Number of CPUs of the machine.
        found: usize,
    },
    /// The trace uses a CPU number that the machine does not have.
    #[error("recorded on CPU {cpu}, which {machine} has not")]
    Cpu {
        /// The machine's name.
        machine: String,
        /// The CPU.
        cpu: CpuId,
    },
    /// On the machine, other CPUs share last-level caches.
    #[error("recorded with other CPUs at each last-level cache than {machine} has")]
    Sharing {
        /// The machine's name.
        machine: String,
    },
}

/// Positions of CPUs, nodes and threads on a machine, in the form of the setup's text.
struct SetupPositions {
    cpus: Vec<CpuId>,
    cpu_nodes: String,
    thread_cpus: String,
    thread_moves: String,
}

impl SetupPositions {
    fn new(machine: &Machine, options: &TraceOptions) -> Result<Self, TracingError> {
        let cpus = machine.cpus().as_slice().to_vec();
        let placement = match options.threads {
            ThreadPlacement::None => ThreadPlacement::Compact,
            placement => placement,
        };
        let position_of = |cpu: &CpuId| cpus.iter().position(|other| other == cpu);
        let positions = thread_cpus(machine, cpus.len(), placement, None);
        let positions = positions.iter().filter_map(position_of);
        let node_of = |cpu| machine.node_of(cpu).and_then(|node| machine.position(node));
        let nodes = cpus.iter().map(|cpu| node_of(*cpu).unwrap_or_default());
        let moves = options.moves.iter().map(|step| {
            let (thread, cpu) = (step.thread, step.cpu);
            let position = position_of(&cpu).ok_or_else(|| TracingError::NoCpu {
                machine: machine.name.clone(),
                thread,
                cpu,
            })?;
            Ok(format!("{thread} {} {position}", step.instructions))
        });
        Ok(Self {
            cpu_nodes: joined(nodes),
            thread_cpus: joined(positions),
            thread_moves: moves.collect::<Result<Vec<_>, _>>()?.join(" "),
            cpus,
        })
    }
}

fn joined(numbers: impl Iterator<Item = usize>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    numbers.join(" ")
}

/// The caches of a machine that the tracer simulates.
struct Caches<'a> {
    l1_fetch: &'a nearpage_machine::Cache,
    l1_data: &'a nearpage_machine::Cache,
    l2: &'a nearpage_machine::Cache,
    l3: Option<&'a nearpage_machine::Cache>,
}

impl<'a> Caches<'a> {
    fn find(machine: &'a Machine, argument: &str) -> Result<Self, TracingError> {
        let find = |level: u8, kind: CacheKind| {
            let fits = |cache: &&nearpage_machine::Cache| {
                cache.level == level && (cache.kind == kind || cache.kind == CacheKind::Unified)
            };
            machine.caches.iter().find(fits)
        };
        let without = |cache| TracingError::NoCache {
            machine: machine.name.clone(),
            cache,
            argument: argument.to_owned(),
        };
        let first = match machine.caches.is_empty() {
            true => "caches",
            false => "first-level data cache",
        };
        Ok(Self {
            l1_data: find(1, CacheKind::Data).ok_or_else(|| without(first))?,
            l1_fetch: find(1, CacheKind::Instruction)
                .ok_or_else(|| without("first-level instruction cache"))?,
            l2: find(2, CacheKind::Data).ok_or_else(|| without("second-level cache"))?,
            l3: find(3, CacheKind::Data),
        })
    }

    /// The one last-level cache that is simulated per node, as large as all such caches of the node's CPUs together.
    fn l3_of_node(&self, machine: &Machine) -> Option<Cache> {
        let l3 = self.l3?;
        let traced = traced_cache(l3);
        let cpus = machine.nodes.iter().map(|node| node.cpus.len() as u64);
        let most = cpus.max().unwrap_or(1);
        let share = u64::from(l3.shared_by_cpus).max(1);
        let set_bytes = u64::from(self.l1_data.line_bytes) * u64::from(traced.ways);
        let bytes = traced.bytes * most / share / set_bytes * set_bytes;
        Some(Cache {
            bytes: bytes.max(set_bytes),
            ..traced
        })
    }

    /// Assumptions about the caches, in words.
    fn assumptions(&self, machine: &Machine) -> Vec<String> {
        let named = [
            (Some(self.l1_fetch), "first-level instruction cache"),
            (Some(self.l1_data), "first-level data cache"),
            (Some(self.l2), "second-level cache"),
            (self.l3, "last-level cache"),
        ];
        let known = named
            .into_iter()
            .filter_map(|(cache, name)| Some((cache?, name)));
        let without_ways = known.clone().filter(|(cache, _)| cache.associativity == 0);
        let mut assumed: Vec<String> = without_ways
            .map(|(_, name)| format!("{WAYS_ASSUMED} ways of the {name}"))
            .collect();
        let line_bytes = self.l1_data.line_bytes;
        let mut caches = known.map(|(cache, _)| cache);
        if caches.any(|cache| cache.line_bytes != line_bytes) {
            assumed.push(format!("lines of {line_bytes} bytes in all caches"));
        }
        if self.l2.shared_by_cpus > 1 {
            assumed.push(format!(
                "a second-level cache for each CPU (here {} share one)",
                self.l2.shared_by_cpus
            ));
        }
        let is_shared_otherwise = |l3: &nearpage_machine::Cache| {
            let mut counts = machine.nodes.iter().map(|node| node.cpus.len());
            counts.any(|cpus| cpus != 0 && cpus != l3.shared_by_cpus as usize)
        };
        if self.l3.is_some_and(is_shared_otherwise) {
            assumed.push("one last-level cache for each node".to_owned());
        }
        assumed
    }
}

fn traced_cache(cache: &nearpage_machine::Cache) -> Cache {
    Cache {
        bytes: cache.size_bytes,
        ways: match cache.associativity {
            0 => WAYS_ASSUMED,
            ways => ways,
        },
    }
}

/// A machine's TLBs: for data (or unified), for instructions alone, and of the second level.
struct Tlbs {
    data: Option<Tlb>,
    fetch: Option<Tlb>,
    second: Option<Tlb>,
}

impl Tlbs {
    fn find(machine: &Machine) -> Self {
        let find = |fits: &dyn Fn(&nearpage_machine::Tlb) -> bool| {
            machine.tlbs.iter().find(|tlb| fits(tlb)).map(|tlb| Tlb {
                entries: tlb.entries,
                ways: match tlb.associativity {
                    0 => tlb.entries,
                    ways => ways,
                },
                reserved: tlb.reserved,
            })
        };
        let first = |kind| find(&|tlb| tlb.level == 1 && tlb.kind == kind);
        Self {
            data: first(CacheKind::Unified).or_else(|| first(CacheKind::Data)),
            fetch: first(CacheKind::Instruction),
            second: find(&|tlb| tlb.level == 2 && tlb.kind != CacheKind::Instruction),
        }
    }
}

impl Tracing {
    /// Setup with which the tracer traces for `machine`, which `--machine` named `argument`; and assumptions about the
    /// machine, in words.
    ///
    /// # Errors
    /// Why no program can be traced for the machine.
    pub fn new(
        machine: &Machine,
        argument: &str,
        options: &TraceOptions,
    ) -> Result<(Self, Vec<String>), TracingError> {
        // Readers of the recording need valid latencies and links of its machine.
        machine.timing().map_err(|fault| TracingError::Timing {
            machine: machine.name.clone(),
            fault: fault.to_string(),
        })?;
        let positions = SetupPositions::new(machine, options)?;
        let caches = Caches::find(machine, argument)?;
        let tlbs = Tlbs::find(machine);
        let mut assumed = caches.assumptions(machine);
        if tlbs.data.is_none() {
            assumed.push("a TLB of 64 entries".to_owned());
        }
        let refused = |error: SetupError<'_>| TracingError::Setup {
            machine: machine.name.clone(),
            cause: error.to_string(),
        };
        let setup = Setup {
            page_bytes: u32::try_from(machine.page_bytes)
                .map_err(|_| refused(SetupError::page_bytes(machine.page_bytes)))?,
            line_bytes: caches.l1_data.line_bytes,
            l1_fetch: traced_cache(caches.l1_fetch),
            l1_data: traced_cache(caches.l1_data),
            l2: traced_cache(caches.l2),
            l3: caches.l3_of_node(machine),
            tlb: tlbs.data.unwrap_or(TLB_ASSUMED),
            tlb_fetch: tlbs.fetch,
            tlb_second: tlbs.second,
            cpu_nodes: Positions(&positions.cpu_nodes),
            thread_cpus: Positions(&positions.thread_cpus),
            thread_moves: Moves(&positions.thread_moves),
            quantum: options.quantum_instructions,
            sample_period: options.sample_every,
            keep_hits: options.keep_hits,
            // CPUs that wait for each miss do not run ahead, so that dependences don't matter.
            dependences: machine.processor.outstanding_misses.unwrap_or(1) > 1,
            from_mark: options.from_mark,
            serial: options.serial,
        };
        setup.check().map_err(refused)?;
        let tracing = Self {
            machine: argument.to_owned(),
            setup: setup.to_string(),
            cpus: positions.cpus,
            ..Self::default()
        };
        Ok((tracing, assumed))
    }

    /// Checks that the trace suits a simulation of `machine`. Misses depend on caches, TLBs and which threads share
    /// them, and on nothing else of the machine.
    ///
    /// # Errors
    /// The difference.
    pub fn serves(&self, machine: &Machine) -> Result<(), TraceMismatch> {
        let parse =
            |setup| Setup::parse(setup).map_err(|error| TraceMismatch::NoSetup(error.to_string()));
        let recorded = parse(&self.setup)?;
        let options = TraceOptions {
            quantum_instructions: recorded.quantum,
            ..TraceOptions::default()
        };
        let (other, _) = Self::new(machine, &machine.name, &options)?;
        let asked = parse(&other.setup)?;
        let name = || machine.name.clone();
        if caches_and_tlbs(&recorded) != caches_and_tlbs(&asked) {
            return Err(TraceMismatch::Caches {
                machine: name(),
                recorded: geometry(&recorded),
                found: geometry(&asked),
            });
        }
        let moved_to = recorded.thread_moves.iter().map(|step| step.cpu);
        let used: Vec<usize> = recorded.thread_cpus.iter().chain(moved_to).collect();
        let cpus = |setup: &Setup| setup.cpu_nodes.iter().count();
        if used.iter().any(|position| *position >= cpus(&asked)) {
            return Err(TraceMismatch::CpuCount {
                machine: name(),
                recorded: cpus(&recorded),
                found: cpus(&asked),
            });
        }
        let mut recorded_on = used.iter().filter_map(|position| self.cpus.get(*position));
        if let Some(cpu) = recorded_on.find(|cpu| machine.node_of(**cpu).is_none()) {
            return Err(TraceMismatch::Cpu {
                machine: name(),
                cpu: *cpu,
            });
        }
        if recorded.l3.is_some() && recorded.cpu_nodes != asked.cpu_nodes {
            return Err(TraceMismatch::Sharing { machine: name() });
        }
        Ok(())
    }
}

/// Properties on which misses depend: page and line size, caches, TLBs.
fn caches_and_tlbs(setup: &Setup<'_>) -> impl PartialEq + use<> {
    (
        (
            [setup.page_bytes, setup.line_bytes],
            [setup.l1_fetch, setup.l1_data, setup.l2],
        ),
        (
            setup.l3,
            [Some(setup.tlb), setup.tlb_fetch, setup.tlb_second],
        ),
    )
}

/// Caches and TLBs in a line, for people.
fn geometry(setup: &Setup) -> String {
    let cache =
        |name: &str, cache: Cache| format!("{name} {} KiB {}-way", cache.bytes >> 10, cache.ways);
    let tlb = |name: &str, tlb: Tlb| format!("{name} of {} entries", tlb.entries);
    let mut parts = vec![
        cache("L1i", setup.l1_fetch),
        cache("L1d", setup.l1_data),
        cache("L2", setup.l2),
    ];
    parts.extend(setup.l3.map(|l3| cache("L3", l3)));
    parts.push(format!("lines of {} bytes", setup.line_bytes));
    parts.push(tlb("TLB", setup.tlb));
    parts.extend(setup.tlb_fetch.map(|found| tlb("fetch TLB", found)));
    parts.extend(setup.tlb_second.map(|found| tlb("second TLB", found)));
    parts.join(", ")
}

#[cfg(test)]
mod tests;
