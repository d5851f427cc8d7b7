//! Makes recordings of samples for tests.

use std::path::Path;

use nearpage_machine::{CpuId, Machine, NodeId, preset};
use nearpage_recording::{
    Access, AccessBatch, AccessKind, Event, Level, LogWriter, Metadata, Module, ModuleId,
    ModuleMapping, Recording, Resolution, SampleCounts, Source, Status, Tables, Thread,
    ThreadIndex,
};

use super::{CODE, CODE_PAGES, HEAP, PAGE, PID, PROGRAM, call_site, grid, metadata};

/// Content of a recording: threads of `program`, each on its CPU, and a grid that the main thread filled and of which
/// each thread uses a block.
pub struct Samples {
    pub machine: Machine,
    pub metadata: Metadata,
    pub tables: Tables,
    /// CPU of each thread.
    pub cpus: Vec<u32>,
    /// Node of the grid's pages.
    pub page_node: Option<NodeId>,
    /// Time per access.
    pub cost_ns: f32,
    /// Pages of the grid for each thread.
    pub share_pages: u64,
    /// A thread's share consists of blocks of this many pages, which go round the team.
    pub block_pages: u64,
    /// True if the shares go to threads in reverse order.
    pub is_reversed: bool,
}

/// Pages of the grid for each thread.
const SHARE_PAGES: u64 = 16;

impl Samples {
    pub fn of(machine: &str, cpus: &[u32]) -> Self {
        let threads = cpus.len() as u32;
        let machine = preset(machine).unwrap();
        let thread = |number: u32| Thread {
            pid: PID,
            tid: PID + number,
            name: "program".to_owned(),
            born_ns: 0,
            died_ns: u64::MAX,
            order: number,
            start: None,
            start_function: String::new(),
            team_index: number,
            team: "openmp".to_owned(),
            cpus: vec![(CpuId(cpus[number as usize]), 1_000)],
            counts: SampleCounts::default(),
        };
        let tables = Tables {
            cached_samples: Vec::new(),
            objects: vec![grid(HEAP, u64::from(threads) * SHARE_PAGES)],
            threads: (0..threads).map(thread).collect(),
            modules: vec![Module {
                path: PROGRAM.to_owned(),
                build_id: "ab".repeat(20),
            }],
            mappings: vec![ModuleMapping {
                pid: PID,
                address: CODE,
                size_bytes: CODE_PAGES * PAGE,
                born_ns: 0,
                died_ns: u64::MAX,
                module: ModuleId(0),
                bias: CODE,
            }],
            call_sites: vec![call_site()],
            first_touches: Vec::new(),
        };
        let metadata = Metadata {
            source: Source::Pmu,
            build_id: "ab".repeat(20),
            begin_ns: 1_000_000_000,
            end_ns: 3_000_000_000,
            nodes: machine.node_ids(),
            ..metadata()
        };
        Self {
            machine,
            metadata,
            tables,
            cpus: cpus.to_vec(),
            page_node: Some(NodeId(0)),
            cost_ns: 100.0,
            share_pages: SHARE_PAGES,
            block_pages: SHARE_PAGES,
            is_reversed: false,
        }
    }

    /// The same samples with an argument, and with shares of `share_pages` pages in blocks of `block_pages`.
    pub fn with_input(mut self, argument: &str, share_pages: u64, block_pages: u64) -> Self {
        let threads = self.tables.threads.len() as u64;
        self.metadata.command = vec!["program".to_owned(), argument.to_owned()];
        self.tables.objects = vec![grid(HEAP, threads * share_pages)];
        (self.share_pages, self.block_pages) = (share_pages, block_pages);
        self
    }

    pub fn write(&self, folder: &Path) {
        let (metadata, tables) = (&self.metadata, &self.tables);
        let written = Recording::write(folder, metadata, &self.machine, tables, |writer| {
            writer.accesses(&self.accesses())
        });
        written.unwrap();
    }

    /// Writes a recorder's log with the same accesses that was never ended.
    pub fn write_unfinished(&self, folder: &Path) {
        let metadata = Metadata {
            status: Status::Incomplete,
            ..self.metadata.clone()
        };
        let mut log = LogWriter::create(folder, metadata, &self.machine).unwrap();
        let begun = self.tables.threads.iter().zip(0..);
        let begun = begun.map(|(thread, number)| Event::Fork {
            time_ns: 10,
            pid: thread.pid,
            tid: thread.tid,
            thread: ThreadIndex(number),
            parent_pid: 1,
        });
        log.events(&begun.collect::<Vec<_>>()).unwrap();
        log.accesses(&self.accesses()).unwrap();
    }

    fn accesses(&self) -> AccessBatch {
        let threads = self.cpus.len() as u64;
        let mut batch = AccessBatch::default();
        for number in 0..1_000 * threads {
            let (thread, step) = (number % threads, number / threads);
            let own = step % self.share_pages;
            let place = match self.is_reversed {
                true => threads - 1 - thread,
                false => thread,
            };
            let block = own / self.block_pages * threads + place;
            let page = block * self.block_pages + own % self.block_pages;
            let cpu = CpuId(self.cpus[thread as usize]);
            batch.push(Access {
                time_ns: 1_000_000_000 + number * 100_000,
                thread: ThreadIndex(thread as u32),
                cpu,
                address: HEAP + page * PAGE + step % 64 * 64,
                instruction: CODE + 0x40,
                kind: AccessKind::Load,
                level: match self.machine.node_of(cpu) == self.page_node {
                    true => Level::LocalMemory,
                    false => Level::RemoteMemory,
                },
                resolution: Resolution::Exact,
                skid_bytes: 0,
                weight: 1.0,
                cost_ns: self.cost_ns,
                page_node: self.page_node,
            });
        }
        batch
    }
}
