//! Assumed bandwidth of memory controllers, for machines whose description has no figures.
//!
//! The kernel reports nodes, CPUs and distances, but no bandwidths. Without an assumption, a planner would leave shared
//! data on one node, as if the node's memory had no limit. So a controller is assumed to be half busy when all CPUs of
//! its node wait for it: at its unloaded latency, the controller serves two lines at a time for each of these CPUs.
//!
//! By the published figures of `carrefour-a`, `carrefour-b`, `xeon-2` and `epyc-8`, a controller serves 3 to 8 lines at
//! a time for each CPU, and a CPU can request 8 to 22. The number that a waiting CPU has requested depends on the
//! program: one line where the program follows pointers, all where it streams. So a waiting CPU requests between 0.1
//! and 4 times its share of the controller. The assumption is half a share, about the geometric mean of these bounds.
//! Links get no assumed bandwidth, because the kernel does not report which links exist.

use nearpage_amount::bandwidth;

use crate::Machine;

/// Lines that a controller serves at a time for each CPU of its node.
const LINES_A_CPU: f64 = 2.0;

/// A machine with an assumed memory bandwidth.
#[derive(Clone, Debug, PartialEq)]
pub struct Assumed {
    /// The machine, including the assumed bandwidth.
    pub machine: Machine,
    /// The assumption, and the way to replace it by a measured figure.
    pub words: String,
}

impl Machine {
    /// The machine with an assumed memory bandwidth. `None` if the description has any figure about CPU speed,
    /// controllers, directories, links or bandwidths: then a missing figure means "no limit" ([`Machine::timing`]).
    pub fn with_assumed_bandwidth(&self) -> Option<Assumed> {
        let described = self.processor != Default::default()
            || self.memory != Default::default()
            || self.bandwidth != Default::default()
            || !self.links.is_empty();
        let timing = self.timing().ok().filter(|_| !described)?;
        let local = (0..self.nodes.len()).map(|node| timing.latency_ns[node][node]);
        let local_ns = local.fold(f64::INFINITY, f64::min);
        let cpus = self.nodes.iter().map(|node| node.cpus.as_slice().len());
        let cpus = cpus.max().unwrap_or(0).max(1);
        let lines = LINES_A_CPU * cpus as f64;
        let bytes_per_s = lines * f64::from(timing.line_bytes) / local_ns * 1e9;
        let mut machine = self.clone();
        machine.memory.bandwidth_bytes_per_s = Some(bytes_per_s);
        let words = format!(
            "no bandwidths are known of {}; its memory is assumed to be half busy when all CPUs of a node \
             wait for it ({} a node): measure it with `nearpage machine measure`",
            self.name,
            bandwidth(bytes_per_s)
        );
        Some(Assumed { machine, words })
    }
}

#[cfg(test)]
mod tests {
    use crate::{Machine, preset};

    fn discovered(more: &str) -> Machine {
        let text = format!(
            "name = \"two\"\npage_bytes = 4096\ndistance = [[10, 20], [20, 10]]\n\
             [[node]]\nid = 0\ncpus = \"0-5\"\n[[node]]\nid = 1\n{more}"
        );
        Machine::from_toml(&text, "two").expect("reads")
    }

    #[test]
    fn all_cpus_of_a_node_keep_its_memory_half_busy() {
        // Twelve lines of 64 bytes per 100 ns; the latency is ten times the distance.
        let assumed = discovered("")
            .with_assumed_bandwidth()
            .expect("nothing is known");
        let timing = assumed.machine.timing().expect("timing");
        assert_eq!(timing.memory_bandwidth_bytes_per_s, Some(7.68e9));
        assert!(assumed.words.contains("7.68 GB/s"), "{}", assumed.words);
        assert_eq!(assumed.machine.with_assumed_bandwidth(), None);
    }

    #[test]
    fn described_figures_are_not_assumed() {
        for more in [
            "[processor]\nclock_ghz = 2\n",
            "[memory]\ndirectory_ns = 1\n",
            "[bandwidth]\nread_bytes_per_s = [[5e9, 2e9], [nan, nan]]\n",
            "[[link]]\nnodes = [0, 1]\nbandwidth_bytes_per_s = 1e9\n",
        ] {
            assert_eq!(discovered(more).with_assumed_bandwidth(), None, "{more}");
        }
        assert_eq!(
            preset("flash-8").expect("preset").with_assumed_bandwidth(),
            None
        );
    }

    /// On every machine with published figures, a CPU that follows pointers requests less than its share of a
    /// controller, and a CPU that streams requests more.
    #[test]
    fn the_assumption_lies_within_what_is_published() {
        for name in ["carrefour-a", "carrefour-b", "xeon-2", "epyc-8"] {
            let machine = preset(name).expect("preset");
            let timing = machine.timing().expect("timing");
            let bytes_per_s = timing.memory_bandwidth_bytes_per_s.expect("published");
            let cpus = machine.nodes[0].cpus.as_slice().len() as f64;
            let lines = bytes_per_s / 1e9 * timing.latency_ns[0][0] / f64::from(timing.line_bytes);
            let share = lines / cpus;
            let most = f64::from(timing.outstanding_misses);
            assert!((2.5..8.5).contains(&share), "{name}: {share}");
            assert!(1.0 < share && share < most, "{name}: {share} of {most}");
        }
    }
}
