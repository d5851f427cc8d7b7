//! Makes a recording whose patterns are known by construction, of any size, in bounded memory.
//!
//! ```text
//! cargo run -p nearpage-recording --example synthetic -- FOLDER [ACCESSES [THREADS [OBJECTS [FOOTPRINT_GIB [RANKS]]]]]
//! ```
//! Defaults: 100 million accesses, 64 threads, a million objects, 64 GiB, four nodes. With RANKS, the folder is a job
//! with this number of such recordings, 64 per host, whose accesses differ by chance.
//!
//! Three large heap objects share the footprint with the small objects: `block` (each thread its own contiguous share),
//! `cyclic` (pieces of 1 MiB dealt to the threads in turn) and `shared` (all threads everywhere, loads only). Each of
//! the three has its own call site. A tenth of all accesses is spread over the small objects, each of which belongs to
//! one thread. Accesses are exact and in order of time; equal arguments make equal recordings.

use std::path::Path;
use std::time::UNIX_EPOCH;

use nearpage_machine::{CpuId, Machine, NodeId};
use nearpage_recording::{
    Access, AccessBatch, AccessKind, CallSite, CallSiteId, Frame, Launched, Launcher, Level,
    Metadata, Module, ModuleId, ModuleMapping, Object, ObjectKind, Recording, Resolution,
    SampleCounts, Status, Tables, Thread, ThreadIndex,
};

const PID: u32 = 4242;
const TEXT: u64 = 0x5555_5555_0000;
const HEAP: u64 = 0x7f00_0000_0000;
const NODES: u64 = 4;
const PIECE: u64 = 1 << 20;
const SMALL_SITES: u64 = 1000;
const BATCH: u64 = 1 << 18;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments
        .first()
        .ok_or("usage: synthetic FOLDER [ACCESSES [THREADS [OBJECTS [FOOTPRINT_GIB [RANKS]]]]]")?;
    let number = |position: usize, default: u64| {
        arguments
            .get(position)
            .map_or(Ok(default), |text| text.parse())
    };
    let folder = Path::new(folder);
    let ranks = number(5, 0)?;
    let mut synthetic = Synthetic {
        accesses: number(1, 100_000_000)?,
        threads: number(2, 64)?.max(1),
        objects: number(3, 1_000_000)?.max(4),
        footprint_bytes: number(4, 64)? << 30,
        rank: None,
    };
    if ranks == 0 {
        synthetic.write(folder)?;
    }
    for rank in 0..ranks {
        synthetic.rank = Some((rank as u32, ranks as u32));
        synthetic.write(&folder.join(format!("rank-{rank:05}")))?;
    }
    Ok(())
}

struct Synthetic {
    accesses: u64,
    threads: u64,
    objects: u64,
    footprint_bytes: u64,
    /// Rank and number of ranks, if the recording belongs to a job.
    rank: Option<(u32, u32)>,
}

/// Ranks of a job per host.
const RANKS_PER_HOST: u32 = 64;

impl Synthetic {
    fn small_objects(&self) -> u64 {
        self.objects - 3
    }

    /// Small objects take a sixteenth of the footprint in all; each takes whole cache lines.
    fn small_bytes(&self) -> u64 {
        (self.footprint_bytes / 16 / self.small_objects()).max(64) & !63
    }

    fn large_bytes(&self) -> u64 {
        (self.footprint_bytes / 16 * 5) / (self.threads * PIECE) * (self.threads * PIECE)
    }

    fn large_address(&self, number: u64) -> u64 {
        HEAP + number * self.large_bytes()
    }

    fn small_address(&self, number: u64) -> u64 {
        self.large_address(3) + number * self.small_bytes()
    }

    fn write(&self, folder: &Path) -> Result<(), nearpage_recording::Error> {
        Recording::write(
            folder,
            &self.metadata(),
            &self.machine(),
            &self.tables(),
            |writer| {
                let mut batch = AccessBatch::default();
                let rank = self.rank.map_or(0, |(rank, _)| u64::from(rank));
                let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (rank << 20));
                for first in (0..self.accesses).step_by(BATCH as usize) {
                    batch.clear();
                    for number in first..(first + BATCH).min(self.accesses) {
                        batch.push(self.access(number, &mut random));
                    }
                    writer.accesses(&batch)?;
                }
                Ok(())
            },
        )
    }

    fn access(&self, number: u64, random: &mut Random) -> Access {
        let thread = random.below(self.threads);
        let share = self.large_bytes() / self.threads;
        let tenth = random.below(10);
        let (address, kind, site) = match tenth {
            0 => {
                // A small object that belongs to this thread.
                let of_thread = self.small_objects() / self.threads;
                let object =
                    (random.below(of_thread.max(1)) * self.threads + thread) % self.small_objects();
                (
                    self.small_address(object) + random.below(self.small_bytes() / 8) * 8,
                    AccessKind::Store,
                    3,
                )
            }
            1..4 => (
                self.large_address(0) + thread * share + random.below(share / 8) * 8,
                AccessKind::Store,
                0,
            ),
            4..7 => {
                let piece = random.below(share / PIECE) * self.threads + thread;
                (
                    self.large_address(1) + piece * PIECE + random.below(PIECE / 8) * 8,
                    AccessKind::Load,
                    1,
                )
            }
            _ => (
                self.large_address(2) + random.below(self.large_bytes() / 8) * 8,
                AccessKind::Load,
                2,
            ),
        };
        Access {
            time_ns: 1_000_000_000 + number * 1000 + random.below(900),
            thread: ThreadIndex(thread as u32),
            cpu: CpuId(thread as u32),
            address,
            instruction: TEXT + 0x1000 + site * 0x100 + random.below(16) * 4,
            kind,
            level: Level::Unknown,
            resolution: Resolution::Exact,
            skid_bytes: 4 + random.below(4) as i8,
            weight: 1.0,
            cost_ns: 1_003_009.0,
            page_node: Some(NodeId(random.below(NODES) as u16)),
        }
    }

    fn tables(&self) -> Tables {
        let large = (0..3).map(|number| {
            self.object(self.large_address(number), self.large_bytes(), 0, number, 0)
        });
        let small = (0..self.small_objects()).map(|number| {
            let (thread, site) = (number % self.threads, 3 + number % SMALL_SITES);
            self.object(
                self.small_address(number),
                self.small_bytes(),
                thread,
                site,
                number / self.threads / SMALL_SITES,
            )
        });
        let module = ModuleId(0);
        let site = |number| CallSite {
            frames: vec![Frame {
                module: Some(module),
                offset: 0x2000 + 16 * number,
                function: ["make_block", "make_cyclic", "make_shared"]
                    .get(number as usize)
                    .map_or_else(|| format!("make_small_{number}"), |name| (*name).to_owned()),
                file: "synthetic.c".into(),
                line: number as u32 + 1,
                inlined: false,
            }],
        };
        let thread = |number: u64| Thread {
            pid: PID,
            tid: PID + number as u32,
            name: "synthetic".into(),
            born_ns: 0,
            died_ns: u64::MAX,
            order: number as u32,
            start: None,
            start_function: String::new(),
            team_index: number as u32,
            team: "openmp".into(),
            cpus: vec![(CpuId(number as u32), self.accesses / self.threads)],
            counts: SampleCounts {
                samples: self.accesses / self.threads,
                accesses: self.accesses / self.threads,
                ..Default::default()
            },
        };
        let mapping = ModuleMapping {
            pid: PID,
            address: TEXT,
            size_bytes: 1 << 20,
            born_ns: 0,
            died_ns: u64::MAX,
            module,
            bias: TEXT,
        };
        Tables {
            cached_samples: Vec::new(),
            objects: large.chain(small).collect(),
            threads: (0..self.threads).map(thread).collect(),
            modules: vec![Module {
                path: "/nonexistent/synthetic".into(),
                build_id: "00".into(),
            }],
            mappings: vec![mapping],
            call_sites: (0..3 + SMALL_SITES).map(site).collect(),
            first_touches: Vec::new(),
        }
    }

    fn object(&self, address: u64, size_bytes: u64, thread: u64, site: u64, order: u64) -> Object {
        Object {
            kind: ObjectKind::Heap,
            name: String::new(),
            pid: PID,
            address,
            size_bytes,
            born_ns: 1000,
            died_ns: u64::MAX,
            weight: 1.0,
            call_site: Some(CallSiteId(site as u32)),
            thread: Some(ThreadIndex(thread as u32)),
            order: order as u32,
            module: None,
            module_offset: 0,
            same_memory_as: None,
        }
    }

    /// Made from TOML, so that a field added to [`Machine`] takes its default here.
    fn machine(&self) -> Machine {
        let per_node = self.threads.div_ceil(NODES);
        let mut text =
            String::from("name = \"synthetic\"\npage_bytes = 4096\nhuge_page_bytes = 2097152\n");
        for node in 0..NODES {
            let cpus: Vec<u64> = (node * per_node..(node + 1) * per_node).collect();
            text += &format!(
                "[[node]]\nid = {node}\ncpus = {cpus:?}\nmemory_bytes = {}\n",
                self.footprint_bytes / 2
            );
        }
        toml::from_str(&text).expect("a machine as this crate's reader wants it")
    }

    fn metadata(&self) -> Metadata {
        Metadata {
            version: nearpage_recording::folder::FORMAT_VERSION,
            status: Status::Complete,
            recorder: "synthetic".into(),
            command: vec!["synthetic".into()],
            build_id: "00".into(),
            exit_status: Some(0),
            begin_ns: 1_000_000_000,
            end_ns: 1_000_000_000 + self.accesses * 1000,
            rate_hz: 997.0,
            calibration: "before".into(),
            counts: SampleCounts {
                samples: self.accesses,
                accesses: self.accesses,
                ..Default::default()
            },
            allocations: self.objects,
            launched: self.rank.map(|(rank, size)| Launched {
                launcher: Launcher::Slurm,
                rank,
                size: Some(size),
                local_rank: Some(rank % RANKS_PER_HOST),
                node_index: Some(rank / RANKS_PER_HOST),
                host: format!("n{}", rank / RANKS_PER_HOST),
                job: Some("1".to_owned()),
                step: None,
            }),
            ..Metadata::begun(
                nearpage_recording::Source::Clock,
                UNIX_EPOCH,
                (0..NODES).map(|node| NodeId(node as u16)).collect(),
            )
        }
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(value) * u128::from(bound)) >> 64) as u64
    }
}
