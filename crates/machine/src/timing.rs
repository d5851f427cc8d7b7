//! Properties of a simulated machine besides nodes, caches and latencies: the speed of its CPUs, TLBs, memory controllers,
//! links, and the cost of moving a page. All are optional in a machine file. [`Timing`] documents their defaults, and
//! [`Machine::timing`] lists which of them were assumed.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use nearpage_amount::time;

use crate::moves::move_ns;
use crate::{
    CacheKind, Coherence, Fault, Machine, MoveCost, MoveSteps, NodeId, Prefetcher, toml_file,
};

/// Maximum number of nodes in a simulation, which keeps sets of nodes in 64 bits.
pub const SIMULATED_NODES_MAX: usize = 64;

/// Speed of a CPU (`[processor]`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Processor {
    /// Clock frequency in GHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_ghz: Option<f64>,
    /// Cycles per instruction without misses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles_per_instruction: Option<f64>,
    /// Misses that a CPU may have outstanding; 1: the CPU waits for each miss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outstanding_misses: Option<u32>,
    /// Instructions that a CPU may be ahead of its oldest outstanding miss (its reorder buffer).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_instructions: Option<u32>,
}

/// One level of a CPU's TLB (`[[tlb]]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tlb {
    /// Level; level 1 is looked up first.
    pub level: u8,
    /// Kind of accesses that the TLB translates.
    pub kind: CacheKind,
    /// Number of entries, including reserved ones.
    pub entries: u32,
    /// Ways; 0: fully associative.
    #[serde(default)]
    pub associativity: u32,
    /// Entries that programs cannot use (the kernel's own, wired ones).
    #[serde(default)]
    pub reserved: u32,
    /// Cycles that a miss costs before the next level or, in the last level, the refill.
    #[serde(default)]
    pub miss_cycles: f64,
}

/// Memory controllers and directories, one of each per node (`[memory]`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// Bytes per second that a node's controller serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Time for which each request occupies the directory controller of the CPU's node and, if it is another, of the
    /// page's node (Verghese §8.3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory_ns: Option<f64>,
}

/// A link between two nodes (`[[link]]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Both ends.
    #[serde(deserialize_with = "toml_file::ends")]
    pub nodes: [NodeId; 2],
    /// Bytes per second in each direction.
    pub bandwidth_bytes_per_s: f64,
}

/// A route from one node to another that is not the shortest (`[[route]]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Nodes of the route, including both ends; consecutive nodes are linked.
    pub nodes: Vec<NodeId>,
}

/// Energy of accesses (`[energy]`), for an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Energy {
    /// An access to local memory, in nanojoules.
    pub local_nj: f64,
    /// An access to remote memory, in nanojoules.
    pub remote_nj: f64,
    /// Copying a page, in nanojoules.
    pub page_copy_nj: f64,
    /// Power of the whole machine while it runs, in watts.
    #[serde(default)]
    pub static_w: f64,
}

/// A machine's figures including all defaults. Matrices and lists are by position in [`Machine::nodes`].
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Clock frequency in GHz. Default 2.
    pub clock_ghz: f64,
    /// Cycles per instruction without misses. Default 1.
    pub cycles_per_instruction: f64,
    /// Misses that a CPU may have outstanding. Default 1: the CPU waits for each miss (Verghese §6.1).
    pub outstanding_misses: u32,
    /// Instructions that a CPU may be ahead of its oldest outstanding miss. Default 128.
    pub window_instructions: u32,
    /// Unloaded latency, `[CPU's node][memory's node]`. Default: distances × 10 ns.
    pub latency_ns: Vec<Vec<f64>>,
    /// Cache hit latency by level, from 1; 0 where unknown: hits of that level take no time.
    pub hit_ns: Vec<f64>,
    /// Cost of a TLB miss, the sum over levels. Default 0.
    pub tlb_miss_ns: f64,
    /// Bytes per second of a node's memory controller. Default: the greatest read bandwidth known for any pair of
    /// nodes, or else no limit.
    pub memory_bandwidth_bytes_per_s: Option<f64>,
    /// Occupancy of a directory controller by a request. Default 0: no directory.
    pub directory_ns: f64,
    /// Bytes that a miss transfers: the line size of the last cache level. Default 64.
    pub line_bytes: u32,
    /// One-way links: from, to, bytes per second. Default: no links, and so no limit.
    pub links: Vec<(usize, usize, f64)>,
    /// Links on the route of data, `routes[from][to]`, as positions in `links`.
    pub routes: Vec<Vec<Vec<u16>>>,
    /// Packets of the coherence protocol, besides data. Default: none.
    pub coherence: Option<Coherence>,
    /// Hardware prefetcher of the CPUs. Default: none.
    pub prefetcher: Option<Prefetcher>,
    /// Cost of moving a page. Default: 8 µs, and copying at 2 GB/s.
    pub moves: MoveCost,
    /// Pages that fit on each node; `None`: no limit.
    pub capacity_pages: Vec<Option<u64>>,
    /// Energy figures. Default: none, and no estimate.
    pub energy: Option<Energy>,
    /// Figures that are missing in the machine file and were assumed, in words.
    pub assumed: Vec<String>,
}

impl Timing {
    /// Time of an instruction without misses.
    pub fn instruction_ns(&self) -> f64 {
        self.cycles_per_instruction / self.clock_ghz
    }

    /// Maximum number of instructions that a CPU executes before a miss's data arrives; 0 if it waits for each miss.
    pub fn run_ahead_instructions(&self) -> u64 {
        u64::from(self.window_instructions) * u64::from(self.outstanding_misses > 1)
    }

    /// Maximum bytes per second of a node's memory, limited by its controller or its directory. `None`: no limit.
    pub fn node_bandwidth_bytes_per_s(&self) -> Option<f64> {
        let of_directory = f64::from(self.line_bytes) / self.directory_ns * 1e9;
        let of_directory = Some(of_directory).filter(|bytes_per_s| bytes_per_s.is_finite());
        let limits = [self.memory_bandwidth_bytes_per_s, of_directory].into_iter();
        limits.flatten().min_by(f64::total_cmp)
    }

    /// Bytes per second of the slowest and the fastest link. `None`: the network has no limit.
    pub fn link_bandwidth_bytes_per_s(&self) -> Option<[f64; 2]> {
        let mut rates: Vec<f64> = self.links.iter().map(|link| link.2).collect();
        rates.sort_by(f64::total_cmp);
        Some([*rates.first()?, *rates.last()?])
    }
}

impl Machine {
    /// The figures for a simulation, including defaults.
    ///
    /// # Errors
    /// Links leave a node unreachable, or there are more nodes than [`SIMULATED_NODES_MAX`].
    pub fn timing(&self) -> Result<Timing, Fault> {
        let nodes = self.nodes.len();
        if nodes > SIMULATED_NODES_MAX {
            return Err(Fault::TooManyNodes(nodes));
        }
        let mut assumed = Vec::new();
        let mut default = |given: Option<f64>, value: f64, words: &str| {
            given.unwrap_or_else(|| {
                assumed.push(words.to_owned());
                value
            })
        };
        let clock_ghz = default(self.processor.clock_ghz, 2.0, "a clock of 2 GHz");
        let cycles_per_instruction = default(
            self.processor.cycles_per_instruction,
            1.0,
            "1 cycle per instruction",
        );
        let moves = match self.moves.steps {
            Some(steps) => MoveCost::Steps(steps),
            None => {
                let moved_ns = move_ns(self.page_bytes);
                let words = format!("{} for each page moved", time(moved_ns));
                MoveCost::Fixed(default(self.moves.fixed_ns, moved_ns, &words))
            }
        };
        let latency_ns = self.simulated_latencies(&mut assumed);
        let (links, routes) = self.routing()?;
        Ok(Timing {
            clock_ghz,
            cycles_per_instruction,
            outstanding_misses: self.processor.outstanding_misses.unwrap_or(1),
            window_instructions: self.processor.window_instructions.unwrap_or(128),
            latency_ns,
            hit_ns: self.hit_times(),
            tlb_miss_ns: self.tlb_miss_cycles() / clock_ghz,
            memory_bandwidth_bytes_per_s: self
                .memory
                .bandwidth_bytes_per_s
                .or_else(|| self.bandwidth.greatest_read_bytes_per_s()),
            directory_ns: self.memory.directory_ns.unwrap_or(0.0),
            line_bytes: self.line_bytes(),
            links,
            routes,
            coherence: self.coherence,
            prefetcher: self.prefetcher,
            moves,
            capacity_pages: self
                .nodes
                .iter()
                .map(|node| node.memory_bytes.map(|bytes| bytes / self.page_bytes))
                .collect(),
            energy: self.energy,
            assumed,
        })
    }

    /// Latency from each node's CPUs to each node's memory.
    fn simulated_latencies(&self, assumed: &mut Vec<String>) -> Vec<Vec<f64>> {
        match &self.latency_ns {
            Some(latency_ns) => {
                if latency_ns.iter().flatten().any(Option::is_none) {
                    assumed.push(
                        "latencies that are not known as in the opposite direction, or in \
                        proportion to distances"
                            .to_owned(),
                    );
                }
                self.weights()
            }
            None => {
                assumed.push("latencies of ten times the distances, in ns".to_owned());
                let scale = |row: Vec<f64>| row.into_iter().map(|weight| 10.0 * weight).collect();
                self.weights().into_iter().map(scale).collect()
            }
        }
    }

    /// Bytes that a miss transfers: the line size of the last cache level, or 64 if no cache is known.
    pub(crate) fn line_bytes(&self) -> u32 {
        let last = self.caches.iter().max_by_key(|cache| cache.level);
        last.map_or(64, |cache| cache.line_bytes)
    }

    /// Time of a hit in each cache level.
    fn hit_times(&self) -> Vec<f64> {
        let levels = self.caches.iter().map(|cache| usize::from(cache.level));
        let mut hit_ns = vec![0.0; levels.max().unwrap_or(0) + 1];
        for cache in &self.caches {
            let slot = &mut hit_ns[usize::from(cache.level)];
            *slot = cache.latency_ns.unwrap_or(0.0).max(*slot);
        }
        hit_ns
    }

    /// Sum over the TLB levels that translate data.
    fn tlb_miss_cycles(&self) -> f64 {
        let of_data = |tlb: &&Tlb| tlb.kind != CacheKind::Instruction;
        self.tlbs
            .iter()
            .filter(of_data)
            .map(|tlb| tlb.miss_cycles)
            .sum()
    }

    /// One-way links, and the links on the route of each pair of nodes: a given route, or else the route with the
    /// fewest hops and then the lowest node numbers.
    #[expect(clippy::type_complexity, reason = "two fields of `Timing`")]
    fn routing(&self) -> Result<(Vec<(usize, usize, f64)>, Vec<Vec<Vec<u16>>>), Fault> {
        let nodes = self.nodes.len();
        let mut links = Vec::new();
        for link in &self.links {
            let [a, b] = link
                .nodes
                .map(|node| self.position(node).expect("validated"));
            links.push((a, b, link.bandwidth_bytes_per_s));
            links.push((b, a, link.bandwidth_bytes_per_s));
        }
        let mut routes = vec![vec![Vec::new(); nodes]; nodes];
        if links.is_empty() {
            return Ok((links, routes));
        }
        let link_between = |a: usize, b: usize| {
            let at = links.iter().position(|&(from, to, _)| (from, to) == (a, b));
            at.map(|at| at as u16)
        };
        for (from, ways) in routes.iter_mut().enumerate() {
            let mut came_from = vec![None; nodes];
            let mut queue = VecDeque::from([from]);
            while let Some(at) = queue.pop_front() {
                for (next, before) in came_from.iter_mut().enumerate() {
                    if next != from && before.is_none() && link_between(at, next).is_some() {
                        *before = Some(at);
                        queue.push_back(next);
                    }
                }
            }
            for to in (0..nodes).filter(|&to| to != from) {
                let mut at = to;
                while at != from {
                    let before = came_from[at].ok_or(Fault::NoRoute {
                        from: self.nodes[from].id,
                        to: self.nodes[to].id,
                    })?;
                    ways[to].push(link_between(before, at).expect("it was followed"));
                    at = before;
                }
                ways[to].reverse();
            }
        }
        for route in &self.routes {
            let way: Vec<usize> = route
                .nodes
                .iter()
                .map(|&node| self.position(node).expect("validated"))
                .collect();
            routes[way[0]][way[way.len() - 1]] = way
                .windows(2)
                .map(|pair| link_between(pair[0], pair[1]).expect("validated"))
                .collect();
        }
        Ok((links, routes))
    }

    /// Checks the figures that only simulations use.
    pub(crate) fn validate_timing(&self) -> Result<(), Fault> {
        let positive = |key: &'static str, value: Option<f64>| match value {
            Some(value) if !(value > 0.0 && value.is_finite()) => Err(Fault::Figure { key, value }),
            _ => Ok(()),
        };
        let at_least_0 = |key: &'static str, value: f64| match value {
            value if value >= 0.0 && value.is_finite() => Ok(()),
            value => Err(Fault::Figure { key, value }),
        };
        positive("processor.clock_ghz", self.processor.clock_ghz)?;
        positive(
            "processor.cycles_per_instruction",
            self.processor.cycles_per_instruction,
        )?;
        for (key, value) in [
            (
                "processor.outstanding_misses",
                self.processor.outstanding_misses,
            ),
            (
                "processor.window_instructions",
                self.processor.window_instructions,
            ),
        ] {
            positive(key, value.map(f64::from))?;
        }
        positive(
            "memory.bandwidth_bytes_per_s",
            self.memory.bandwidth_bytes_per_s,
        )?;
        at_least_0(
            "memory.directory_ns",
            self.memory.directory_ns.unwrap_or(0.0),
        )?;
        for cache in &self.caches {
            at_least_0("cache.latency_ns", cache.latency_ns.unwrap_or(0.0))?;
        }
        for tlb in &self.tlbs {
            at_least_0("tlb.miss_cycles", tlb.miss_cycles)?;
            let usable = tlb.entries.saturating_sub(tlb.reserved);
            if tlb.level == 0 || usable == 0 || tlb.associativity > tlb.entries {
                return Err(Fault::Tlb);
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        for link in &self.links {
            positive(
                "link.bandwidth_bytes_per_s",
                Some(link.bandwidth_bytes_per_s),
            )?;
            let [a, b] = link.nodes;
            let known = |node| self.position(node).is_some();
            if a == b || !known(a) || !known(b) || !seen.insert((a.min(b), a.max(b))) {
                return Err(Fault::Link(a, b));
            }
        }
        for route in &self.routes {
            let linked =
                |pair: &[NodeId]| seen.contains(&(pair[0].min(pair[1]), pair[0].max(pair[1])));
            if route.nodes.len() < 2 || !route.nodes.windows(2).all(linked) {
                return Err(Fault::Route(
                    route
                        .nodes
                        .iter()
                        .map(NodeId::to_string)
                        .collect::<Vec<_>>()
                        .join(", "),
                ));
            }
        }
        self.prefetcher.iter().try_for_each(Prefetcher::validate)?;
        at_least_0("moves.fixed_ns", self.moves.fixed_ns.unwrap_or(0.0))?;
        for (key, value) in self.moves.steps.iter().flat_map(MoveSteps::pairs) {
            at_least_0(key, value)?;
        }
        for (key, value) in self.energy.iter().flat_map(Energy::pairs) {
            at_least_0(key, value)?;
        }
        Ok(())
    }
}

impl Energy {
    /// Keys in the machine file, and values.
    pub(crate) fn pairs(&self) -> [(&'static str, f64); 4] {
        [
            ("local_nj", self.local_nj),
            ("remote_nj", self.remote_nj),
            ("page_copy_nj", self.page_copy_nj),
            ("static_w", self.static_w),
        ]
    }
}

#[cfg(test)]
mod tests;
