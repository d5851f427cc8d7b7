//! The modelled machine: its description for the guest, and its setup for the tracer.

use nearpage_machine::{Machine, Timing};
use nearpage_recording::trace::{TraceOptions, Tracing};
use nearpage_wire::lab::{LabSetup, Numbers, Routes};
use nearpage_wire::tracer_setup::Setup;

use super::error::LabError;
use crate::error::Error;

/// Default limit of the number of a guest's CPUs.
const CPUS_DEFAULT: u32 = 16;
/// Maximum number of a guest's CPUs. The firmware can't start more without another interrupt controller.
const CPUS_MAX: u32 = 128;
const FS_PER_NS: f64 = 1e6;
/// How far a CPU may be ahead of others in guest time.
const QUANTUM_NS: u64 = 1000;
/// Time of a `pause` instruction. Intel's optimisation manual gives 140 cycles from Skylake on, and 10 before.
const PAUSE_NS: u64 = 40;
/// Distances in the ACPI SLIT: local, and the maximum.
const LOCAL_DISTANCE: u32 = 10;
const DISTANCE_MAX: f64 = 254.0;

/// Start of the model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ModelStart {
    /// Number of begin marks before the model starts.
    pub begin_marks: u64,
    /// Instructions from the start that warm the caches and are not counted.
    pub warm_up_instructions: u64,
}

/// The modelled machine, reduced to the guest's CPUs and memory.
pub(super) struct LabMachine {
    machine: Machine,
    timing: Timing,
    /// Caches, TLBs and CPUs, as text for the tracer.
    pub setup: String,
    /// Latencies and queues, as text for the tracer.
    pub lab_setup: String,
    /// Assumptions about the machine.
    pub assumed: Vec<String>,
    memory_mib: u32,
}

impl LabMachine {
    /// `argument`: the value of `--machine`; `cpus`: the total number, spread evenly; `memory_mib`: the size of each
    /// node.
    pub fn new(
        machine: &Machine,
        argument: &str,
        cpus: Option<u32>,
        memory_mib: u32,
        warmth: ModelStart,
    ) -> Result<Self, Error> {
        let given = machine;
        let machine = with_cpus(given, cpus)?;
        let (tracing, mut assumed) = Tracing::new(&machine, argument, &TraceOptions::default())
            .map_err(Error::MachineNotTraceable)?;
        assumed.extend(machine.notes.iter().skip(given.notes.len()).cloned());
        let timing = machine.timing().map_err(|fault| Error::NoTiming {
            machine: machine.name.clone(),
            fault,
        })?;
        assumed.extend(timing.assumed.iter().cloned());
        let refused = |cause: String| LabError::Setup {
            machine: machine.name.clone(),
            cause,
        };
        let setup = Setup::parse(&tracing.setup).map_err(|error| refused(error.to_string()))?;
        let lab_setup =
            lab_setup(&machine, &timing, setup.line_bytes, memory_mib, warmth).map_err(refused)?;
        let nodes = machine.nodes.len() as u32;
        let needed = u64::from(nodes) * u64::from(memory_mib);
        if let Some(free_mib) = free_mib().filter(|free| needed > *free) {
            return Err(LabError::Memory {
                nodes,
                mib: memory_mib,
                free_mib,
            }
            .into());
        }
        Ok(Self {
            machine,
            timing,
            setup: tracing.setup,
            lab_setup,
            assumed,
            memory_mib,
        })
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub fn cpus(&self) -> u32 {
        self.machine
            .nodes
            .iter()
            .map(|node| node.cpus.len() as u32)
            .sum()
    }

    /// Time of an instruction without a miss.
    pub fn instruction_ns(&self) -> f64 {
        self.timing.instruction_ns()
    }

    /// Lines of the setup on instructions and quanta, which determine the time of an unmodelled guest.
    pub fn timing_lines(&self) -> Vec<&str> {
        let lines = self.lab_setup.lines();
        let names = ["instruction_fs", "quantum_ns", "pause_ns"];
        lines
            .filter(|line| names.iter().any(|name| line.starts_with(name)))
            .collect()
    }

    /// Memory of each node, in MiB.
    pub fn memory_mib(&self) -> u32 {
        self.memory_mib
    }

    /// Emulator options for nodes, CPUs, memory, distances (SLIT), latencies and bandwidths (HMAT).
    pub fn emulator_arguments(&self) -> Vec<String> {
        let nodes = self.machine.nodes.len();
        let cpus = self.cpus();
        let memory_mib = self.memory_mib;
        let mut arguments = Vec::new();
        let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
        add("-smp", format!("{cpus},sockets={cpus},cores=1,threads=1"));
        add("-m", format!("{}M", nodes as u32 * memory_mib));
        let mut first_cpu = 0;
        for (id, node) in self.machine.nodes.iter().enumerate() {
            add(
                "-object",
                format!("memory-backend-ram,id=memory{id},size={memory_mib}M"),
            );
            let cpus = match node.cpus.len() {
                0 => String::new(),
                count => format!(",cpus={first_cpu}-{}", first_cpu + count - 1),
            };
            let initiator = match node.cpus.len() {
                0 => format!(",initiator={}", self.nearest(id)),
                _ => String::new(),
            };
            add(
                "-numa",
                format!("node,nodeid={id}{cpus},memdev=memory{id}{initiator}"),
            );
            first_cpu += node.cpus.len();
        }
        for from in 0..nodes {
            for to in 0..nodes {
                let value = self.distance(from, to);
                add("-numa", format!("dist,src={from},dst={to},val={value}"));
            }
        }
        for from in (0..nodes).filter(|from| !self.machine.nodes[*from].cpus.is_empty()) {
            for to in 0..nodes {
                let pair = format!("hmat-lb,initiator={from},target={to},hierarchy=memory");
                let latency = self.timing.latency_ns[from][to].round().max(1.0);
                add(
                    "-numa",
                    format!("{pair},data-type=access-latency,latency={latency}"),
                );
                if let Some(bytes_per_s) = self.timing.memory_bandwidth_bytes_per_s {
                    add(
                        "-numa",
                        format!(
                            "{pair},data-type=access-bandwidth,bandwidth={}M",
                            hmat_mib_per_s(bytes_per_s)
                        ),
                    );
                }
            }
        }
        arguments
    }

    /// The node with CPUs that is nearest to a node without CPUs.
    fn nearest(&self, memory: usize) -> usize {
        let with_cpus = self.machine.nodes.iter().enumerate();
        let with_cpus = with_cpus.filter(|(_, node)| !node.cpus.is_empty());
        let nearest = with_cpus.min_by(|(one, _), (other, _)| {
            let latency = |node: usize| self.timing.latency_ns[node][memory];
            latency(*one).total_cmp(&latency(*other))
        });
        nearest.map_or(0, |(node, _)| node)
    }

    /// Distance in the SLIT: the machine's own, or else in proportion to latencies.
    fn distance(&self, from: usize, to: usize) -> u32 {
        if from == to {
            return LOCAL_DISTANCE;
        }
        if let Some(distance) = &self.machine.distance {
            return distance[from][to].clamp(LOCAL_DISTANCE + 1, DISTANCE_MAX as u32);
        }
        let latency = &self.timing.latency_ns;
        let local = latency.iter().enumerate().map(|(node, row)| row[node]);
        let local = local.fold(f64::INFINITY, f64::min);
        let distance = (latency[from][to] / local * f64::from(LOCAL_DISTANCE)).round();
        distance.clamp(f64::from(LOCAL_DISTANCE + 1), DISTANCE_MAX) as u32
    }
}

/// A bandwidth in MiB/s that the HMAT can encode: a 16-bit entry times a unit that is a power of two.
fn hmat_mib_per_s(bytes_per_s: f64) -> u64 {
    const ENTRY_MAX: f64 = 65534.0;
    let mib = (bytes_per_s / f64::from(1 << 20)).max(1.0);
    let mut unit = 1;
    while mib / unit as f64 > ENTRY_MAX {
        unit *= 2;
    }
    (mib / unit as f64).round() as u64 * unit
}

/// The machine with the guest's CPUs, numbered as the emulator numbers them.
fn with_cpus(machine: &Machine, wanted: Option<u32>) -> Result<Machine, LabError> {
    let (nodes, cpus) = machine.cpu_counts().into_inner();
    let most = cpus.min(CPUS_MAX);
    let wanted = wanted.unwrap_or_else(|| most.min(CPUS_DEFAULT.max(nodes)));
    let cut = (wanted <= most).then(|| machine.with_cpus(wanted));
    cut.flatten().ok_or_else(|| LabError::Cpus {
        given: wanted,
        machine: machine.name.clone(),
        cpus,
        nodes,
        most,
    })
}

fn joined<T: ToString>(values: impl Iterator<Item = T>) -> String {
    let words: Vec<String> = values.map(|value| value.to_string()).collect();
    words.join(" ")
}

fn lab_setup(
    machine: &Machine,
    timing: &Timing,
    line_bytes: u32,
    memory_mib: u32,
    warmth: ModelStart,
) -> Result<String, String> {
    let fs = |ns: f64| (ns * FS_PER_NS).round() as u64;
    let line_fs = |bytes_per_s: f64| fs(f64::from(line_bytes) / bytes_per_s * 1e9);
    let nodes = machine.nodes.len();
    let latency = joined(timing.latency_ns.iter().flatten().map(|ns| fs(*ns)));
    let links = joined(timing.links.iter().map(|link| line_fs(link.2)));
    let routes = joined((0..nodes * nodes).map(|pair| {
        let route = &timing.routes[pair % nodes][pair / nodes];
        match route.is_empty() {
            true => "-".to_owned(),
            false => joined(route.iter()).replace(' ', ","),
        }
    }));
    let memory = joined((0..nodes).map(|_| u64::from(memory_mib) << 20));
    let hit = |level: usize| fs(timing.hit_ns.get(level).copied().unwrap_or(0.0));
    let setup = LabSetup {
        instruction_fs: fs(timing.instruction_ns()),
        quantum_ns: QUANTUM_NS,
        pause_ns: PAUSE_NS,
        hit_fs: [hit(2), hit(3)],
        tlb_miss_fs: fs(timing.tlb_miss_ns),
        latency_fs: Numbers(&latency),
        controller_fs: timing.memory_bandwidth_bytes_per_s.map_or(0, line_fs),
        directory_fs: fs(timing.directory_ns),
        link_fs: Numbers(&links),
        routes: Routes(&routes),
        memory_bytes: Numbers(&memory),
        begin_marks: warmth.begin_marks,
        warm_up_instructions: warmth.warm_up_instructions,
        stop_booted: false,
    };
    setup.check().map_err(|error| error.to_string())?;
    Ok(setup.to_string())
}

/// Available memory of this machine, in MiB.
fn free_mib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib >> 10)
}

#[cfg(test)]
mod tests {
    use nearpage_machine::preset;

    use super::*;

    fn lab(name: &str, cpus: Option<u32>) -> Result<LabMachine, Error> {
        LabMachine::new(
            &preset(name).unwrap(),
            name,
            cpus,
            64,
            ModelStart::default(),
        )
    }

    #[test]
    fn cpus_are_spread_over_the_nodes() {
        let machine = lab("epyc-8", Some(10)).unwrap();
        let nodes = machine.machine().nodes.iter();
        assert_eq!(
            nodes.map(|node| node.cpus.len()).collect::<Vec<_>>(),
            [2, 2, 1, 1, 1, 1, 1, 1]
        );
        assert!(
            machine
                .assumed
                .iter()
                .any(|words| words.starts_with("10 of its 128 CPUs, each with its share of caches"))
        );
        assert!(
            machine.setup.contains("cpu_nodes 0 0 1 1 2 3 4 5 6 7"),
            "{}",
            machine.setup
        );
        for cpus in [0, 7, 129] {
            let error = lab("epyc-8", Some(cpus)).err().unwrap();
            assert!(error.is_usage(), "{error}");
            assert!(error.to_string().contains("8 to 128"), "{error}");
        }
    }

    #[test]
    fn emulator_and_tracer_agree_on_the_nodes_of_cpus() {
        // Of `intel32`, node 0 has CPUs 0 to 7 and 16 to 23.
        let machine = lab("intel32", Some(32)).unwrap();
        let setup = Setup::parse(&machine.setup).unwrap();
        let nodes: Vec<usize> = setup.cpu_nodes.iter().collect();
        assert_eq!(nodes, [[0; 16], [1; 16]].concat());
        let arguments = machine.emulator_arguments().join(" ");
        for (node, cpus) in [(0, "0-15"), (1, "16-31")] {
            assert!(
                arguments.contains(&format!("nodeid={node},cpus={cpus},")),
                "{arguments}"
            );
        }
    }

    #[test]
    fn the_guest_is_told_distances_and_latencies() {
        let machine = lab("carrefour-a", None).unwrap();
        assert_eq!(machine.cpus(), 16);
        let arguments = machine.emulator_arguments().join(" ");
        assert!(
            arguments.contains("-smp 16,sockets=16,cores=1,threads=1 -m 256M"),
            "{arguments}"
        );
        assert!(
            arguments.contains("node,nodeid=1,cpus=4-7,memdev=memory1 "),
            "{arguments}"
        );
        assert!(arguments.contains("dist,src=0,dst=3,val=13"), "{arguments}");
        let latency = "initiator=0,target=3,hierarchy=memory,data-type=access-latency,latency=113";
        assert!(arguments.contains(latency), "{arguments}");
        // Values for 2.3 GHz; 64 bytes at 12.8 GB/s and 4 GB/s; and two links from node 3 to node 0.
        let setup = LabSetup::parse(&machine.lab_setup).unwrap();
        assert_eq!(
            (setup.instruction_fs, setup.controller_fs),
            (434_783, 5_000_000)
        );
        assert_eq!(setup.link_fs.iter().next(), Some(16_000_000));
        assert_eq!(setup.routes.iter().nth(3).unwrap().count(), 2);
    }

    #[test]
    fn a_cpu_keeps_its_share_of_a_cache() {
        for (cpus, bytes) in [(4, 6 << 18), (16, 6 << 20)] {
            let machine = lab("carrefour-a", Some(cpus)).unwrap();
            let setup = Setup::parse(&machine.setup).unwrap();
            assert_eq!(setup.l3.unwrap().bytes, bytes, "{cpus} CPUs");
        }
    }

    #[test]
    fn bandwidths_fit_into_the_hmat() {
        assert_eq!(hmat_mib_per_s(12.8e9), 12207);
        assert_eq!(hmat_mib_per_s(1.0), 1);
        // 101.2919e9 bytes/s are 96599 MiB/s, which is encoded in units of 2.
        assert_eq!(hmat_mib_per_s(101.2919e9), 96600);
        let machine = lab("epyc-9224-cxl", Some(4)).unwrap();
        let arguments = machine.emulator_arguments().join(" ");
        assert!(arguments.contains("bandwidth=96600M"), "{arguments}");
    }

    #[test]
    fn a_node_without_cpus_is_reached_from_the_nearest() {
        let mut machine = preset("carrefour-a").unwrap();
        machine.nodes[3].cpus.clear();
        let machine = LabMachine::new(&machine, "cut", Some(3), 64, ModelStart::default()).unwrap();
        let arguments = machine.emulator_arguments().join(" ");
        assert!(
            arguments.contains("node,nodeid=3,memdev=memory3,initiator=1"),
            "{arguments}"
        );
        assert!(!arguments.contains("hmat-lb,initiator=3"), "{arguments}");
    }

    #[test]
    fn a_machine_without_caches_is_refused() {
        let mut machine = preset("carrefour-a").unwrap();
        machine.caches.clear();
        let error = LabMachine::new(&machine, "mine.toml", None, 64, ModelStart::default())
            .err()
            .unwrap();
        assert!(error.to_string().contains("no caches"), "{error}");
    }
}
