#![no_std]
//! Byte layouts that cross a process boundary: the allocation log and the samples that the preload
//! library writes inside other people's programs, and the compact form of a plan, which it reads
//! there.
//!
//! This crate is all that the preload library and the tracer know of nearpage. It has no
//! dependencies, allocates nothing and does no I/O; every layout stands, word by word, at the top
//! of the module that defines it, next to the version number that a change must bump.
//!
//! ```
//! use nearpage_wire::allocation_log::{Kind, Records, head};
//!
//! // What a thread wrote: at 100 ns call site 7 allocated 4096 bytes at 0x1000.
//! let words = [head(Kind::Allocate, 5, 0, 7), 100, 0x1000, 4096, 1000];
//! let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
//!
//! let record = Records::new(&bytes).next().unwrap();
//! assert_eq!((record.kind, record.argument), (Kind::Allocate, 7));
//! assert_eq!((record.word(1), record.word(2)), (0x1000, 4096));
//! ```

pub mod allocation_log;
pub mod checksum;
pub mod compact_plan;
pub mod pieces;
pub mod replicas;
pub mod samples;
pub mod trace;
pub mod tracer_setup;

/// Environment variable: folder that the preload library writes allocation-log segments to.
/// Absent: nothing is logged.
pub const LOG_DIRECTORY_VARIABLE: &str = "NEARPAGE_LOG";
/// Environment variable: path of a compact plan. Absent: nothing is placed.
pub const PLAN_VARIABLE: &str = "NEARPAGE_PLAN";
/// Environment variable: path of a file to which each process appends its placement summary.
pub const SUMMARY_VARIABLE: &str = "NEARPAGE_SUMMARY";
/// Environment variable: the memory policy that `nearpage run` itself was launched with, as
/// `set_mempolicy` has it: the mode in decimal, a colon, and the nodes in decimal between commas
/// (`3:0,1`). Absent: the default.
pub const POLICY_VARIABLE: &str = "NEARPAGE_POLICY";
/// Environment variable: mean number of bytes between two sampled small allocations; `1` logs all,
/// of whatever size and rate.
pub const SMALL_SAMPLE_BYTES_VARIABLE: &str = "NEARPAGE_SMALL_SAMPLE_BYTES";
/// Environment variable: nanoseconds that a process may unwind stacks for, beside a share of the
/// elapsed time; 50 ms when absent.
pub const UNWINDING_VARIABLE: &str = "NEARPAGE_UNWINDING_NS";
/// Environment variable: bytes of allocation log that one process may write; 1 GiB when absent.
pub const LOG_BYTES_MAX_VARIABLE: &str = "NEARPAGE_LOG_BYTES_MAX";
/// Environment variable: folder in which the preload library puts samples of its own
/// ([`samples`]). Absent: it takes none.
pub const SAMPLES_DIRECTORY_VARIABLE: &str = "NEARPAGE_SAMPLES";
/// Environment variable: time between two of them, in nanoseconds of a thread's time in user mode.
pub const SAMPLE_PERIOD_VARIABLE: &str = "NEARPAGE_SAMPLE_PERIOD_NS";
/// Environment variable: `monotonic` lets samples come by the wall clock, as often as asked for and
/// in sleep too. That interrupts system calls: for benchmarks only.
pub const SAMPLE_CLOCK_VARIABLE: &str = "NEARPAGE_SAMPLE_CLOCK";
/// Environment variable: places in the ring of samples, a power of two.
pub const SAMPLE_SLOTS_VARIABLE: &str = "NEARPAGE_SAMPLE_SLOTS";
/// Environment variable: `1` turns the preload library off.
pub const DISABLE_VARIABLE: &str = "NEARPAGE_DISABLE";

/// Environment variables in which MPI launchers number their processes; the first one that is set
/// counts.
pub const RANK_VARIABLES: [&str; 4] = [
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
];

/// Allocations of this many bytes or more are each logged, except those of call sites that make
/// short-lived ones at a high rate, which are sampled too.
pub const LARGE_ALLOCATION_BYTES: usize = 4096;

/// An allocation of this many bytes or more is logged whatever its site does.
pub const EXACT_ALLOCATION_BYTES: usize = 1 << 20;

/// Deepest stack kept of a call site, in frames, innermost first.
pub const CALL_SITE_DEPTH_MAX: usize = 32;

/// Is this one of nearpage's libraries, by file name? What is in it is none of the program's.
pub fn is_own_module(file_name: &[u8]) -> bool {
    file_name.starts_with(b"libnearpage")
}

/// Is this a module (by file name) whose frames say nothing about *which* object is allocated:
/// the C and C++ runtimes, allocators, the loader, the OpenMP and thread runtimes, and nearpage itself?
///
/// Call sites are compared without such frames, so that a plan survives an update of the C library.
pub fn is_runtime_module(file_name: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 15] = [
        b"libc.so",
        b"libc-",
        b"ld-linux",
        b"ld-",
        b"libpthread",
        b"libstdc++",
        b"libc++",
        b"libgcc_s",
        b"libgomp",
        b"libomp",
        b"libiomp",
        b"libdl",
        b"libjemalloc",
        b"libtcmalloc",
        b"libmimalloc",
    ];
    is_own_module(file_name) || PREFIXES.iter().any(|prefix| file_name.starts_with(prefix))
}
