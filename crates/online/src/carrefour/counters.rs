//! Statistics of an [`Epoch`] (Table 2).

use crate::Epoch;

/// Standard deviation over mean (§2.1); 0 if the mean is 0.
pub fn imbalance(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / count;
    if mean > 0.0 {
        variance.sqrt() / mean
    } else {
        0.0
    }
}

/// Imbalance of the memory controllers, by the requests that they served. Only nodes with memory (bits of
/// `memory_nodes`) count, because others have no controller.
pub fn controller_imbalance(requests: &[u64], memory_nodes: u64) -> f64 {
    let by_node = requests.iter().enumerate();
    let has_memory = |node: usize| memory_nodes >> node.min(63) & 1 == 1;
    let of_memory: Vec<f64> = by_node
        .filter(|&(node, _)| has_memory(node))
        .map(|(_, &requests)| requests as f64)
        .collect();
    imbalance(&of_memory)
}

/// Statistics of an epoch. Statistics of pages are in [`super::profile`].
#[derive(Clone, Debug, PartialEq)]
pub struct Counters {
    /// MC-IMB: imbalance of the controllers of nodes that have memory.
    pub imbalance: f64,
    /// LAR: share of memory accesses that are local; 1 without any.
    pub local_share: f64,
    /// MAPTU of each node's memory: requests per microsecond.
    pub node_maptu: Vec<f64>,
    /// Nodes that have memory.
    pub memory_nodes: u32,
    /// Share of memory that is free.
    pub free_share: f64,
    /// Statistics of each application, by its number.
    pub applications: Vec<ApplicationCounters>,
}

/// Statistics of an application.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ApplicationCounters {
    /// MAPTU: accesses to memory per microsecond.
    pub maptu: f64,
    /// MRR: share of the accesses that are reads, "fraction of DRAM accesses that are reads" (Table 2); 1 without accesses.
    pub read_share: f64,
    /// CPU%: share of the time for which the application's threads ran.
    pub busy_share: f64,
    /// Bit n is set: a thread of the application is on node n.
    pub nodes: u64,
}

impl Counters {
    /// Statistics of an epoch; bit n of `memory_nodes` is set if node n has memory.
    pub fn new(epoch: &Epoch<'_>, memory_nodes: u64) -> Self {
        let microseconds = epoch.duration_ns.max(1) as f64 / 1000.0;
        let requests = epoch.controller_requests;
        let local: u64 = epoch.local.iter().sum();
        let remote: u64 = epoch.remote.iter().sum();
        let share = |part: u64, whole: u64| match whole {
            0 => 1.0,
            _ => part as f64 / whole as f64,
        };
        let applications = epoch.threads.iter().map(|thread| thread.application);
        let count = applications
            .max()
            .map_or(0, |largest| usize::from(largest) + 1);
        let application = |number: usize| {
            let threads = epoch
                .threads
                .iter()
                .filter(|thread| usize::from(thread.application) == number);
            let (mut reads, mut writes, mut busy_ns, mut alive, mut nodes) = (0, 0, 0, 0, 0);
            for thread in threads {
                reads += thread.reads;
                writes += thread.writes;
                busy_ns += thread.busy_ns;
                alive += 1;
                nodes |= 1 << thread.node;
            }
            ApplicationCounters {
                maptu: (reads + writes) as f64 / microseconds,
                read_share: share(reads, reads + writes),
                busy_share: busy_ns as f64 / (epoch.duration_ns.max(1) * alive.max(1)) as f64,
                nodes,
            }
        };
        Self {
            imbalance: controller_imbalance(requests, memory_nodes),
            memory_nodes: memory_nodes.count_ones(),
            local_share: share(local, local + remote),
            node_maptu: requests
                .iter()
                .map(|&requests| requests as f64 / microseconds)
                .collect(),
            free_share: epoch.free_share,
            applications: (0..count).map(application).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use nearpage_recording::ThreadIndex;

    use super::*;
    use crate::ThreadCounts;

    #[test]
    fn imbalance_is_deviation_over_mean() {
        assert_eq!(imbalance(&[5.0, 5.0, 5.0, 5.0]), 0.0);
        // All on one of four nodes: sqrt(3).
        assert!((imbalance(&[8.0, 0.0, 0.0, 0.0]) - 3f64.sqrt()).abs() < 1e-12);
        assert_eq!(imbalance(&[0.0, 0.0]), 0.0);
    }

    #[test]
    fn nodes_without_memory_do_not_count_as_idle_controllers() {
        let requests = [4_670_000, 4_650_000, 0, 0];
        assert!(controller_imbalance(&requests, 0b0011) < 0.01);
        assert!((controller_imbalance(&requests, 0b1111) - 1.0).abs() < 0.01);
        let counters = Counters::new(
            &Epoch {
                controller_requests: &requests,
                ..Epoch::default()
            },
            0b0011,
        );
        assert!(counters.imbalance < 0.01);
        assert_eq!(counters.memory_nodes, 2);
    }

    #[test]
    fn table_2_is_measured() {
        let thread = |thread, application, node, reads, writes, busy_ns| ThreadCounts {
            thread: ThreadIndex(thread),
            application,
            node,
            busy_ns,
            reads,
            writes,
        };
        let epoch = Epoch {
            duration_ns: 10_000,
            controller_requests: &[600, 200],
            local: &[200, 100],
            remote: &[50, 50],
            free_share: 0.5,
            threads: &[
                thread(0, 0, 0, 90, 10, 10_000),
                thread(1, 0, 1, 100, 0, 5_000),
                thread(2, 1, 1, 50, 150, 10_000),
            ],
            ..Epoch::default()
        };
        let counters = Counters::new(&epoch, 0b11);
        assert_eq!(counters.imbalance, 0.5);
        assert_eq!(counters.local_share, 0.75);
        assert_eq!(counters.node_maptu, [60.0, 20.0]);
        let expected = [
            ApplicationCounters {
                maptu: 20.0,
                read_share: 0.95,
                busy_share: 0.75,
                nodes: 0b11,
            },
            ApplicationCounters {
                maptu: 20.0,
                read_share: 0.25,
                busy_share: 1.0,
                nodes: 0b10,
            },
        ];
        assert_eq!(counters.applications, expected);
        let nothing = Counters::new(&Epoch::default(), 0b11);
        assert_eq!((nothing.local_share, nothing.applications.len()), (1.0, 0));
    }
}
