//! What the tracer is told of a machine, and whether a trace that was made with it serves another.

use nearpage_machine::{CacheKind, CpuId, Machine, ThreadPlacement, several, thread_cpus};
use nearpage_wire::tracer_setup::{Cache, Moves, Positions, Setup, SetupError, Tlb};

use super::Tracing;

/// Ways of a cache whose machine file does not say: the usual number.
const WAYS_ASSUMED: u32 = 8;
/// TLB of a machine whose file has none: 64 entries, fully associative, as of the R10000's time and
/// as the first level of current x86.
const TLB_ASSUMED: Tlb = Tlb {
    entries: 64,
    ways: 64,
    reserved: 0,
};

/// A thread that goes on on another CPU while it is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedMove {
    /// Order of creation, in every process.
    pub thread: u32,
    /// When: instructions of virtual time, which goes on while a thread waits for others.
    pub instructions: u64,
    /// Where to.
    pub cpu: CpuId,
}

/// How to trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// How threads are laid over the machine's CPUs, in order of creation; `None` is compact.
    pub threads: ThreadPlacement,
    /// Those that move later.
    pub moves: Vec<TracedMove>,
    /// Instructions that threads advance together.
    pub quantum_instructions: u32,
    /// Mean references between two samples of all; 0: none are taken.
    pub sample_every: u32,
    /// Keep what the second and third level serve.
    pub keep_hits: bool,
    /// Nothing but first touches before `nearpage_begin`.
    pub from_mark: bool,
    /// One reference at a time, each logged (for tests).
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

impl Tracing {
    /// What to tell the tracer so that it traces for `machine`, which `--machine` named `argument`;
    /// and what had to be assumed, in words.
    ///
    /// # Errors
    /// Why that machine can't be traced for, in words.
    pub fn new(
        machine: &Machine,
        argument: &str,
        options: &TraceOptions,
    ) -> Result<(Self, Vec<String>), String> {
        // What the recording says of latencies and ways between nodes is read with it.
        machine
            .timing()
            .map_err(|fault| format!("{}: {fault}", machine.name))?;
        let mut assumed = Vec::new();
        let cpus = machine.cpus();
        let cpus = cpus.as_slice();
        let node_of = |cpu| machine.node_of(cpu).and_then(|node| machine.position(node));
        let placement = match options.threads {
            ThreadPlacement::None => ThreadPlacement::Compact,
            placement => placement,
        };
        let position_of = |cpu: &CpuId| cpus.iter().position(|other| other == cpu);
        let positions: Vec<String> = thread_cpus(machine, cpus.len(), placement, None)
            .iter()
            .filter_map(position_of)
            .map(|position| position.to_string())
            .collect();
        let nodes: Vec<String> = cpus
            .iter()
            .map(|cpu| node_of(*cpu).unwrap_or_default().to_string())
            .collect();
        let (nodes, positions) = (nodes.join(" "), positions.join(" "));
        let moves: Vec<String> = options
            .moves
            .iter()
            .map(|step| {
                let position = position_of(&step.cpu).ok_or_else(|| {
                    format!(
                        "thread {} is to move to CPU {}, which {} has not",
                        step.thread, step.cpu, machine.name
                    )
                })?;
                Ok(format!("{} {} {position}", step.thread, step.instructions))
            })
            .collect::<Result<_, String>>()?;
        let moves = moves.join(" ");

        let find = |level: u8, kind: CacheKind| {
            let fits = |cache: &&nearpage_machine::Cache| {
                cache.level == level && (cache.kind == kind || cache.kind == CacheKind::Unified)
            };
            machine.caches.iter().find(fits)
        };
        let without = |what: &str| {
            format!(
                "{}: the machine has no {what}, so misses can't be told from hits; describe its caches in a \
                 machine file (`nearpage machine --machine {argument} --toml` prints one to begin with)",
                machine.name
            )
        };
        let l1_data = find(1, CacheKind::Data).ok_or_else(|| {
            without(if machine.caches.is_empty() {
                "caches"
            } else {
                "first-level data cache"
            })
        })?;
        let l1_fetch = find(1, CacheKind::Instruction)
            .ok_or_else(|| without("first-level instruction cache"))?;
        let l2 = find(2, CacheKind::Data).ok_or_else(|| without("second-level cache"))?;
        let l3 = find(3, CacheKind::Data);
        let line_bytes = l1_data.line_bytes;
        let mut cache = |cache: &nearpage_machine::Cache, name: &str| {
            if cache.associativity == 0 {
                assumed.push(format!("{WAYS_ASSUMED} ways of the {name}"));
            }
            Cache {
                bytes: cache.size_bytes,
                ways: if cache.associativity == 0 {
                    WAYS_ASSUMED
                } else {
                    cache.associativity
                },
            }
        };
        let (l1_fetch_told, l1_data_told) = (
            cache(l1_fetch, "first-level instruction cache"),
            cache(l1_data, "first-level data cache"),
        );
        let l2_told = cache(l2, "second-level cache");
        let l3_told = l3.map(|l3| {
            let told = cache(l3, "last-level cache");
            // One to a node, as large as all that its CPUs have together.
            let most = machine
                .nodes
                .iter()
                .map(|node| node.cpus.len() as u64)
                .max();
            let share = u64::from(l3.shared_by_cpus).max(1);
            let set_bytes = u64::from(line_bytes) * u64::from(told.ways);
            let bytes = told.bytes * most.unwrap_or(1) / share / set_bytes * set_bytes;
            Cache {
                bytes: bytes.max(set_bytes),
                ..told
            }
        });
        let line_sizes = [Some(l1_fetch), Some(l2), l3];
        if line_sizes
            .into_iter()
            .flatten()
            .any(|cache| cache.line_bytes != line_bytes)
        {
            assumed.push(format!("lines of {line_bytes} bytes in all caches"));
        }
        if l2.shared_by_cpus > 1 {
            assumed.push(format!(
                "a second-level cache for each CPU (here {} share one)",
                l2.shared_by_cpus
            ));
        }
        if let Some(l3) = l3
            && machine
                .nodes
                .iter()
                .any(|node| !node.cpus.is_empty() && node.cpus.len() != l3.shared_by_cpus as usize)
        {
            assumed.push("one last-level cache for each node".to_owned());
        }

        let level_one = |kind| {
            machine
                .tlbs
                .iter()
                .find(|tlb| tlb.level == 1 && tlb.kind == kind)
        };
        let told = |tlb: &nearpage_machine::Tlb| Tlb {
            entries: tlb.entries,
            ways: if tlb.associativity == 0 {
                tlb.entries
            } else {
                tlb.associativity
            },
            reserved: tlb.reserved,
        };
        let data = level_one(CacheKind::Unified).or_else(|| level_one(CacheKind::Data));
        if data.is_none() {
            assumed.push("a TLB of 64 entries".to_owned());
        }
        let second = machine
            .tlbs
            .iter()
            .find(|tlb| tlb.level == 2 && tlb.kind != CacheKind::Instruction);
        let refused = |error: SetupError<'_>| format!("{}: {error}", machine.name);
        let setup = Setup {
            page_bytes: u32::try_from(machine.page_bytes)
                .map_err(|_| refused(SetupError::page_bytes(machine.page_bytes)))?,
            line_bytes,
            l1_fetch: l1_fetch_told,
            l1_data: l1_data_told,
            l2: l2_told,
            l3: l3_told,
            tlb: data.map_or(TLB_ASSUMED, told),
            tlb_fetch: level_one(CacheKind::Instruction).map(told),
            tlb_second: second.map(told),
            cpu_nodes: Positions(&nodes),
            thread_cpus: Positions(&positions),
            thread_moves: Moves(&moves),
            quantum: options.quantum_instructions,
            sample_period: options.sample_every,
            keep_hits: options.keep_hits,
            from_mark: options.from_mark,
            serial: options.serial,
        };
        setup.check().map_err(refused)?;
        let tracing = Self {
            machine: argument.to_owned(),
            setup: setup.to_string(),
            cpus: cpus.to_vec(),
            ..Self::default()
        };
        Ok((tracing, assumed))
    }

    /// Does the trace serve a simulation of `machine`? Misses depend on caches, TLBs and on which
    /// threads share them; nothing else of the machine matters.
    ///
    /// # Errors
    /// What differs, in words.
    pub fn serves(&self, machine: &Machine) -> Result<(), String> {
        let recorded = Setup::parse(&self.setup)
            .map_err(|error| format!("the recording does not say what it was made for: {error}"))?;
        let options = TraceOptions {
            quantum_instructions: recorded.quantum,
            ..TraceOptions::default()
        };
        let (other, _) = Self::new(machine, &machine.name, &options)?;
        let asked = Setup::parse(&other.setup).map_err(|error| error.to_string())?;
        let caches = |setup: &Setup| {
            (
                (
                    setup.page_bytes,
                    setup.line_bytes,
                    setup.l1_fetch,
                    setup.l1_data,
                    setup.l2,
                ),
                (setup.l3, setup.tlb, setup.tlb_fetch, setup.tlb_second),
            )
        };
        if caches(&recorded) != caches(&asked) {
            return Err(format!(
                "recorded for {}; {} has {}",
                geometry(&recorded),
                machine.name,
                geometry(&asked)
            ));
        }
        let moved_to = recorded.thread_moves.iter().map(|step| step.cpu);
        let used: Vec<usize> = recorded.thread_cpus.iter().chain(moved_to).collect();
        let cpus = |setup: &Setup| setup.cpu_nodes.iter().count();
        if used.iter().any(|position| *position >= cpus(&asked)) {
            return Err(format!(
                "recorded on {}; {} has {}",
                several(cpus(&recorded) as u64, "CPU"),
                machine.name,
                cpus(&asked)
            ));
        }
        let mut recorded_on = used.iter().filter_map(|position| self.cpus.get(*position));
        if let Some(cpu) = recorded_on.find(|cpu| machine.node_of(**cpu).is_none()) {
            return Err(format!(
                "recorded on CPU {cpu}, which {} has not",
                machine.name
            ));
        }
        if recorded.l3.is_some() && recorded.cpu_nodes != asked.cpu_nodes {
            return Err(format!(
                "recorded with other CPUs at each last-level cache than {} has",
                machine.name
            ));
        }
        Ok(())
    }
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
mod tests {
    use super::*;
    use nearpage_machine::preset;

    #[test]
    fn a_machine_becomes_what_the_tracer_is_told() {
        let flash = preset("flash-8").unwrap();
        let (tracing, assumed) = Tracing::new(&flash, "flash-8", &TraceOptions::default()).unwrap();
        assert_eq!(assumed, [] as [&str; 0]);
        let setup = Setup::parse(&tracing.setup).unwrap();
        assert_eq!(
            setup.l2,
            Cache {
                bytes: 512 << 10,
                ways: 2
            }
        );
        assert_eq!(
            setup.tlb,
            Tlb {
                entries: 64,
                ways: 64,
                reserved: 8
            }
        );
        assert_eq!(setup.cpu_nodes.0, "0 1 2 3 4 5 6 7");
        assert_eq!(setup.thread_cpus.0, "0 1 2 3 4 5 6 7");
    }

    #[test]
    fn a_trace_serves_machines_with_its_caches() {
        let flash = preset("flash-8").unwrap();
        let (tracing, _) = Tracing::new(&flash, "flash-8", &TraceOptions::default()).unwrap();
        assert_eq!(tracing.serves(&flash), Ok(()));
        let mut other = preset("now-8").unwrap();
        assert_eq!(tracing.serves(&other), Ok(()), "latencies don't matter");
        other.caches[2].size_bytes *= 2;
        let difference = tracing.serves(&other).unwrap_err();
        assert!(
            difference.contains("512 KiB") && difference.contains("1024 KiB"),
            "{difference}"
        );
        let mut fewer = preset("flash-8").unwrap();
        fewer.nodes.truncate(4);
        assert!(tracing.serves(&fewer).unwrap_err().contains("8 CPUs"));
        // As many, with other numbers: threads of the trace would have no CPU there.
        let mut others = preset("flash-8").unwrap();
        others.nodes[3].cpus = vec![CpuId(13)];
        assert_eq!(
            tracing.serves(&others).unwrap_err(),
            "recorded on CPU 3, which flash-8 has not"
        );
    }

    #[test]
    fn a_machine_without_caches_is_refused() {
        let machine = preset("opteron-4").unwrap();
        let error = Tracing::new(&machine, "opteron-4", &TraceOptions::default()).unwrap_err();
        assert!(
            error.contains("opteron-4: the machine has no caches"),
            "{error}"
        );
    }

    #[test]
    fn what_of_a_machine_cannot_be_traced_for_is_told_with_what_could() {
        let refused = |change: fn(&mut Machine)| {
            let mut flash = preset("flash-8").unwrap();
            change(&mut flash);
            Tracing::new(&flash, "flash.toml", &TraceOptions::default()).unwrap_err()
        };
        assert_eq!(
            refused(|flash| flash.caches[2].associativity = 3),
            "flash-8: l2 is 524288 bytes, 3-way, in lines of 64 bytes; expected 1 to 64 ways, at most 68719476736 bytes, \
             and bytes ÷ line ÷ ways a power of two"
        );
        assert_eq!(
            refused(|flash| flash.page_bytes = 1 << 32),
            "flash-8: page_bytes is 4294967296; expected a power of two from 512 to 1073741824"
        );
    }

    #[test]
    fn a_machine_whose_nodes_are_not_all_linked_is_refused_before_it_is_traced_for() {
        let text = preset("flash-8").unwrap().to_toml()
            + "[[link]]\nnodes = [0, 1]\nbandwidth_bytes_per_s = 1e9\n";
        let machine = Machine::from_toml(&text, "parted.toml").unwrap();
        let error = Tracing::new(&machine, "parted.toml", &TraceOptions::default()).unwrap_err();
        assert!(
            error.contains("no way over the links from node 0 to node 2"),
            "{error}"
        );
    }
}
