//! The simulated program and kernel.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nearpage_machine::{CpuId, CpuList, NodeId};
use nearpage_recording::{Access, AccessKind, Event, Level, Resolution, SampleCounts, ThreadIndex};
use nearpage_sampler::Sink;
use rustc_hash::FxHashMap;

use super::{PAGE, PERIOD_NS, PID, SECOND};
use crate::address_space::AddressSpace;
use crate::kernel::Kernel;
use crate::observer::Observer;

/// A kernel with the pages of one process.
pub(super) struct World {
    pub(super) now_ns: u64,
    /// Time of moving a page.
    pub(super) page_ns: u64,
    pub(super) space: AddressSpace,
    /// Affinities of pinned threads.
    pub(super) affinities: FxHashMap<u32, CpuList>,
    pub(super) homes: FxHashMap<u64, NodeId>,
    pub(super) moves: u64,
    /// Are all pages shared with other processes, so that none may move?
    pub(super) shared: bool,
    pub(super) alive: bool,
    /// Start time of the process, which differs between tests because claims are machine-wide.
    pub(super) started: u64,
}

impl Kernel for World {
    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn sleep_ns(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    fn started(&mut self, pid: u32) -> Option<u64> {
        (self.alive && pid == PID).then_some(self.started)
    }

    fn address_space(&mut self, pid: u32) -> AddressSpace {
        assert_eq!(pid, PID);
        self.space.clone()
    }

    fn affinity(&mut self, _: u32, tid: u32) -> Option<CpuList> {
        let anywhere = || "0-3".parse().expect("a list");
        Some(self.affinities.get(&tid).cloned().unwrap_or_else(anywhere))
    }

    fn set_affinity(&mut self, pid: u32, tid: u32, cpus: &CpuList) -> bool {
        assert!(pid == PID && (PID..PID + 4).contains(&tid));
        self.affinities.insert(tid, cpus.clone());
        true
    }

    fn page_nodes(&mut self, pid: u32, pages: &[u64], nodes: &mut [i32]) -> io::Result<()> {
        assert_eq!(pid, PID);
        for (page, node) in pages.iter().zip(nodes) {
            let home = self.homes.get(page);
            *node = home.map_or(-libc::ENOENT, |home| i32::from(home.0));
        }
        Ok(())
    }

    fn move_pages(
        &mut self,
        pid: u32,
        pages: &[u64],
        nodes: &[NodeId],
        status: &mut [i32],
    ) -> io::Result<()> {
        assert_eq!(pid, PID);
        for ((page, node), status) in pages.iter().zip(nodes).zip(status) {
            assert_eq!(page % PAGE, 0);
            if self.shared {
                *status = -libc::EACCES;
                continue;
            }
            self.moves += 1;
            self.homes.insert(*page, *node);
            *status = i32::from(node.0);
        }
        self.now_ns += self.page_ns * pages.len() as u64;
        Ok(())
    }
}

/// A program of four threads, one on each node, with samples.
pub(super) struct Program {
    pub(super) observer: Observer,
    /// Number of samples of each thread so far.
    pub(super) samples: u64,
    pub(super) draws: u64,
}

impl Program {
    pub(super) fn new() -> Self {
        let mut observer = Observer::new(PERIOD_NS);
        let forks: Vec<Event> = (0..4)
            .map(|thread| Event::Fork {
                time_ns: 0,
                pid: PID,
                tid: PID + thread,
                thread: ThreadIndex(thread),
                parent_pid: 1,
            })
            .collect();
        observer.events(&forks).expect("taken");
        Self {
            observer,
            samples: 0,
            draws: 7,
        }
    }

    /// SplitMix64.
    pub(super) fn draw(&mut self, below: u64) -> u64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.draws;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    /// `count` loads of the first thread, in samples that are `rarer` by this factor.
    pub(super) fn loads(&mut self, count: usize, rarer: f32) {
        let one = access(0, 0, PAGE, AccessKind::Load);
        let one = Access {
            weight: rarer * one.weight,
            cost_ns: rarer * one.cost_ns,
            ..one
        };
        self.observer.accesses(&vec![one; count]).expect("taken");
    }

    /// Runs each thread for a second: `lost` of a thousand samples are accesses, to the page that `page` chooses.
    pub(super) fn run(
        &mut self,
        world: &mut World,
        lost: u64,
        page: impl Fn(&mut Self, u32) -> (u64, AccessKind),
    ) {
        let mut batch = Vec::new();
        let begin_ns = world.now_ns;
        for sample in 0..lost {
            for thread in 0..4 {
                let (number, kind) = page(self, thread);
                let address = number * PAGE + 8;
                world.homes.entry(number * PAGE).or_insert(NodeId(0));
                let time_ns = begin_ns + sample * PERIOD_NS;
                batch.push(access(time_ns, thread, address, kind));
            }
        }
        self.observer.accesses(&batch).expect("taken");
        self.samples += 1000;
        let counts: Vec<Event> = (0..4)
            .map(|thread| Event::Counts {
                thread: ThreadIndex(thread),
                counts: SampleCounts {
                    samples: self.samples,
                    ..SampleCounts::default()
                },
            })
            .collect();
        self.observer.events(&counts).expect("taken");
        world.now_ns += SECOND;
    }
}

fn access(time_ns: u64, thread: u32, address: u64, kind: AccessKind) -> Access {
    Access {
        time_ns,
        thread: ThreadIndex(thread),
        cpu: CpuId(thread),
        address,
        instruction: 0x40_0000,
        kind,
        level: Level::Unknown,
        resolution: Resolution::Exact,
        skid_bytes: 0,
        weight: 1.0,
        cost_ns: PERIOD_NS as f32,
        page_node: None,
    }
}

pub(super) fn world() -> World {
    static WORLDS: AtomicU64 = AtomicU64::new(0);
    World {
        started: u64::from(std::process::id()) << 20 | WORLDS.fetch_add(1, Ordering::Relaxed),
        now_ns: SECOND,
        page_ns: 2000,
        space: AddressSpace::default(),
        affinities: FxHashMap::default(),
        homes: FxHashMap::default(),
        moves: 0,
        shared: false,
        alive: true,
    }
}
