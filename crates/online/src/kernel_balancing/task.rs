//! State of a thread and of a group of threads: statistics of hinting faults in `task_struct` and `numa_group`, and the
//! scan period that follows from them.

use super::parameters::KernelBalancingParameters;

/// Kind of a fault: shared if the page's last fault was another thread's, otherwise private.
pub const SHARED: usize = 0;
pub const PRIVATE: usize = 1;

/// Index of moves that failed for lack of memory in [`Task::locality`].
pub const FAILED: usize = 2;
/// `NUMA_PERIOD_SLOTS`, `NUMA_PERIOD_THRESHOLD`: "Aim for 70% local accesses".
const PERIOD_SLOTS: u64 = 10;
const PERIOD_THRESHOLD: u64 = 7;
/// `MAX_SCAN_WINDOW`, in megabytes per second.
const SCAN_WINDOW_MOST_MB: u64 = 2560;
/// `ACTIVE_NODE_FRACTION`.
pub const ACTIVE_NODE_FRACTION: u64 = 3;

/// Faults by node of the memory, and by node of the thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// `[node][SHARED or PRIVATE]`.
    pub memory: Vec<[u64; 2]>,
    /// `[node][SHARED or PRIVATE]`, weighted by the run time of threads.
    pub cpu: Vec<[u64; 2]>,
}

impl Faults {
    pub fn new(nodes: usize) -> Self {
        Self {
            memory: vec![[0; 2]; nodes],
            cpu: vec![[0; 2]; nodes],
        }
    }

    /// `group_faults`, `task_faults`.
    pub fn on_memory(&self, node: u16) -> u64 {
        self.memory[usize::from(node)].iter().sum()
    }

    /// `group_faults_cpu`.
    pub fn on_cpu(&self, node: u16) -> u64 {
        self.cpu[usize::from(node)].iter().sum()
    }

    pub fn total(&self) -> u64 {
        self.memory.iter().flatten().sum()
    }

    /// `task_weight`, `group_weight` on a machine with equal distances: faults in thousandths of all faults.
    pub fn weight(&self, node: u16) -> i64 {
        match self.total() {
            0 => 0,
            total => (1000 * self.on_memory(node) / total) as i64,
        }
    }

    fn of_kind(&self, kind: usize) -> u64 {
        self.memory.iter().map(|faults| faults[kind]).sum()
    }

    pub fn add(&mut self, other: &Self) {
        for (sums, parts) in [
            (&mut self.memory, &other.memory),
            (&mut self.cpu, &other.cpu),
        ] {
            for (sum, part) in sums.iter_mut().flatten().zip(parts.iter().flatten()) {
                *sum += part;
            }
        }
    }

    pub fn subtract(&mut self, other: &Self) {
        for (sums, parts) in [
            (&mut self.memory, &other.memory),
            (&mut self.cpu, &other.cpu),
        ] {
            for (sum, part) in sums.iter_mut().flatten().zip(parts.iter().flatten()) {
                *sum = sum.saturating_sub(*part);
            }
        }
    }
}

/// Threads of one process that fault on each other's pages.
#[derive(Clone, Debug, Default)]
pub struct Group {
    pub faults: Faults,
    pub members: u64,
}

impl Group {
    /// `numa_is_active_node`: does the node have more than a third of the busiest node's faults?
    pub fn is_active(&self, node: u16) -> bool {
        let nodes = 0..self.faults.cpu.len() as u16;
        let most = nodes.map(|node| self.faults.on_cpu(node)).max();
        self.faults.on_cpu(node) * ACTIVE_NODE_FRACTION > most.unwrap_or(0)
    }

    pub fn active_nodes(&self) -> usize {
        let nodes = 0..self.faults.cpu.len() as u16;
        nodes.filter(|&node| self.is_active(node)).count()
    }

    /// A period, scaled by the group's size and its share of shared faults.
    fn scaled(&self, period_ms: u64) -> u64 {
        let shared = self.faults.of_kind(SHARED);
        let private = self.faults.of_kind(PRIVATE);
        let product = u128::from(period_ms) * u128::from(self.members) * u128::from(shared + 1);
        (product / u128::from(private + shared + 1)) as u64
    }
}

/// Bounds of a thread's scan period, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub least_ms: u64,
    pub start_ms: u64,
    pub most_ms: u64,
}

impl Bounds {
    /// `task_scan_min`, `task_scan_start`, `task_scan_max` for a process of `resident_mb`.
    pub fn new(
        resident_mb: u64,
        group: Option<&Group>,
        parameters: &KernelBalancingParameters,
    ) -> Self {
        let size = parameters.scan_size_mb;
        let windows = resident_mb.max(1).div_ceil(size);
        let windows_a_second = match size < SCAN_WINDOW_MOST_MB {
            true => SCAN_WINDOW_MOST_MB / size,
            false => 1,
        };
        let floor = 1000 / windows_a_second;
        let least_ms = floor.max(parameters.scan_period_min_ms / windows).max(1);
        let most = parameters.scan_period_max_ms / windows;
        let scaled = |period| group.map_or(period, |group| group.scaled(period));
        Self {
            least_ms,
            start_ms: scaled(least_ms).max(least_ms),
            most_ms: scaled(most).max(most).max(least_ms),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Task {
    pub application: u16,
    pub node: u16,
    /// Time for which the thread has run.
    pub runtime_ns: u64,
    /// Run time at which the thread's last scan was due.
    pub stamp_ns: u64,
    pub scan_period_ms: u64,
    /// Passes over the process's memory when the thread was last placed.
    pub scan_sequence: u64,
    pub preferred: Option<u16>,
    pub in_group: bool,
    pub faults: Faults,
    /// Faults since the thread was last placed.
    pub recent: Faults,
    /// Numbers of remote and local faults, and of [`FAILED`] moves, since the thread was last placed.
    pub locality: [u64; 3],
    /// Time and run time when the thread was last placed.
    pub placed: Option<(u64, u64)>,
    /// Earliest time of the next attempt to reach the preferred node.
    pub retry_ns: u64,
}

impl Task {
    pub fn new(application: u16, node: u16, nodes: usize, scan_period_ms: u64) -> Self {
        Self {
            application,
            node,
            runtime_ns: 0,
            stamp_ns: 0,
            scan_period_ms,
            scan_sequence: 0,
            preferred: None,
            in_group: false,
            faults: Faults::new(nodes),
            recent: Faults::new(nodes),
            locality: [0; 3],
            placed: None,
            retry_ns: 0,
        }
    }

    /// `task_numa_placement`, first half: halves past faults and adds those since the last pass, with faults by CPU
    /// weighted by the share of time that the thread ran. Returns the numbers of recent shared and private faults.
    pub fn decay(&mut self, now_ns: u64) -> [u64; 2] {
        let (runtime, period) = match self.placed {
            Some((then, ran)) => (self.runtime_ns - ran, now_ns.saturating_sub(then)),
            None => (1, 0),
        };
        self.placed = Some((now_ns, self.runtime_ns));
        let weight = (u128::from(runtime) << 16) / u128::from(period + 1);
        let total = self.locality[0] + self.locality[1];
        let mut kinds = [0; 2];
        for node in 0..self.faults.memory.len() {
            for (kind, sum) in kinds.iter_mut().enumerate() {
                let memory = std::mem::take(&mut self.recent.memory[node][kind]);
                let cpu = std::mem::take(&mut self.recent.cpu[node][kind]);
                *sum += memory;
                let old = &mut self.faults.memory[node][kind];
                *old = *old - *old / 2 + memory;
                let old = &mut self.faults.cpu[node][kind];
                let weighted = (weight * u128::from(cpu) / u128::from(total + 1)) as u64;
                *old = *old - *old / 2 + weighted;
            }
        }
        kinds
    }

    /// `update_task_scan_period`; `true`: the process's next scan is delayed by the period.
    pub fn update_scan_period(&mut self, kinds: [u64; 2], bounds: &Bounds) -> bool {
        let [shared, private] = kinds;
        let [remote, local, failed] = self.locality;
        if local + shared == 0 || failed > 0 {
            self.scan_period_ms = bounds.most_ms.min(2 * self.scan_period_ms);
            return true;
        }
        let slot = self.scan_period_ms.div_ceil(PERIOD_SLOTS);
        let local_ratio = local * PERIOD_SLOTS / (local + remote).max(1);
        let private_ratio = private * PERIOD_SLOTS / (private + shared).max(1);
        let slower = |ratio: u64| {
            (ratio >= PERIOD_THRESHOLD).then(|| (ratio - PERIOD_THRESHOLD).max(1) * slot)
        };
        let period = match slower(private_ratio).or_else(|| slower(local_ratio)) {
            Some(more) => self.scan_period_ms + more,
            None => {
                let less = (PERIOD_THRESHOLD - local_ratio.max(private_ratio)) * slot;
                self.scan_period_ms.saturating_sub(less)
            }
        };
        self.scan_period_ms = period.clamp(bounds.least_ms, bounds.most_ms);
        self.locality = [0; 3];
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        least_ms: 1000,
        start_ms: 1000,
        most_ms: 60_000,
    };

    fn period(remote: u64, local: u64, shared: u64, private: u64) -> u64 {
        let mut task = Task::new(0, 0, 4, 10_000);
        task.locality = [remote, local, 0];
        task.update_scan_period([shared, private], &BOUNDS);
        task.scan_period_ms
    }

    #[test]
    fn the_scan_period_follows_locality_and_sharing() {
        // Slots are one second. Private faults: one slot more from 70 % on, one at 80 %, two at 90 %.
        assert_eq!(period(100, 0, 30, 70), 11_000);
        assert_eq!(period(100, 0, 20, 80), 11_000);
        assert_eq!(period(100, 0, 10, 90), 12_000);
        // Local faults in spite of sharing: more slots from 70 % on.
        assert_eq!(period(30, 70, 100, 0), 11_000);
        assert_eq!(period(0, 100, 100, 0), 13_000);
        // Below 70 %: shorter by seven slots less the greater of the two ratios.
        assert_eq!(period(31, 69, 100, 0), 9_000);
        assert_eq!(period(100, 0, 31, 69), 9_000);
        assert_eq!(period(100, 0, 100, 0), 3_000);
        // No local and no shared faults: the period doubles.
        assert_eq!(period(0, 0, 0, 0), 20_000);
    }

    #[test]
    fn the_scan_period_has_bounds() {
        let mut task = Task::new(0, 0, 4, 40_000);
        assert!(task.update_scan_period([0, 0], &BOUNDS));
        assert_eq!(task.scan_period_ms, 60_000);
        task.scan_period_ms = 1200;
        task.locality = [100, 0, 0];
        assert!(!task.update_scan_period([100, 0], &BOUNDS));
        assert_eq!((task.scan_period_ms, task.locality), (1000, [0; 3]));
    }

    #[test]
    fn bounds_shrink_with_size_and_grow_with_sharing() {
        let parameters = KernelBalancingParameters::default();
        let bounds = |resident_mb| Bounds::new(resident_mb, None, &parameters);
        let expected = |least_ms, most_ms| Bounds {
            least_ms,
            start_ms: least_ms,
            most_ms,
        };
        assert_eq!(bounds(256), expected(1000, 60_000));
        assert_eq!(bounds(257), expected(500, 30_000));
        // The rate is at most 2560 MB per second.
        assert_eq!(bounds(256 * 100), expected(100, 600));
        let mut group = Group {
            faults: Faults::new(4),
            members: 8,
        };
        group.faults.memory[1] = [299, 100];
        // Eight threads with three quarters shared faults scale the period by six.
        assert_eq!(
            Bounds::new(1, Some(&group), &parameters),
            Bounds {
                least_ms: 1000,
                start_ms: 6000,
                most_ms: 360_000,
            }
        );
    }

    #[test]
    fn faults_decay_by_half() {
        let mut task = Task::new(0, 0, 2, 1000);
        task.recent.memory[1][SHARED] = 10;
        task.recent.memory[0][PRIVATE] = 5;
        assert_eq!(task.decay(0), [10, 5]);
        assert_eq!((task.faults.on_memory(1), task.faults.total()), (10, 15));
        assert_eq!((task.faults.weight(1), task.faults.weight(0)), (666, 333));
        assert_eq!(task.decay(1000), [0, 0]);
        assert_eq!(task.faults.on_memory(1), 5);
    }

    #[test]
    fn active_nodes_have_over_a_third_of_the_busiest() {
        let mut group = Group {
            faults: Faults::new(3),
            members: 2,
        };
        group.faults.cpu = vec![[90, 0], [30, 0], [15, 16]];
        assert_eq!(
            [0, 1, 2].map(|node| group.is_active(node)),
            [true, false, true]
        );
        assert_eq!(group.active_nodes(), 2);
    }
}
