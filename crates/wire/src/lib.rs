#![no_std]
//! Byte layouts that cross a process boundary, such as the allocation log and the samples that the preload library
//! writes inside other people's programs, and the compact form of a plan that the library reads there.
//!
//! This crate is all that the preload library and the tracer know of nearpage. It has no dependencies, allocates
//! nothing and does no I/O. Every layout is specified word by word at the top of the module that defines it, next to
//! the version number that a change must bump.
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
pub mod lab;
pub mod messages;
pub mod pieces;
pub mod replicas;
pub mod samples;
pub mod sanitizer;
pub mod trace;
pub mod tracer_setup;

/// Environment variable: folder that the preload library writes allocation-log segments to.
/// Absent: nothing is logged.
pub const LOG_DIRECTORY_VARIABLE: &str = "NEARPAGE_LOG";
/// Environment variable: path of the file for the preload library's messages to people ([`messages`]). Absent: the
/// library says nothing.
pub const MESSAGES_VARIABLE: &str = "NEARPAGE_MESSAGES";
/// Environment variable: path of a compact plan. Absent: nothing is placed.
pub const PLAN_VARIABLE: &str = "NEARPAGE_PLAN";
/// Environment variable: path of a file to which each process appends its placement summary.
pub const SUMMARY_VARIABLE: &str = "NEARPAGE_SUMMARY";
/// Environment variable: the memory policy that `nearpage run` itself was launched with, as
/// `set_mempolicy` has it: the mode in decimal, a colon, and the nodes in decimal between commas
/// (`3:0,1`). Absent: the default.
pub const POLICY_VARIABLE: &str = "NEARPAGE_POLICY";
/// Environment variable: mean number of bytes between two sampled small allocations; `1` logs every allocation.
pub const SMALL_SAMPLE_BYTES_VARIABLE: &str = "NEARPAGE_SMALL_SAMPLE_BYTES";
/// Environment variable: nanoseconds that a process may unwind stacks for, in addition to a share of the elapsed time;
/// 50 ms when absent.
pub const UNWINDING_VARIABLE: &str = "NEARPAGE_UNWINDING_NS";
/// Environment variable: bytes of allocation log that one process may write; 1 GiB when absent.
pub const LOG_BYTES_MAX_VARIABLE: &str = "NEARPAGE_LOG_BYTES_MAX";
/// Environment variable: folder for samples that the preload library itself takes ([`samples`]). Absent: it takes none.
pub const SAMPLES_DIRECTORY_VARIABLE: &str = "NEARPAGE_SAMPLES";
/// Environment variable: time between two such samples, in nanoseconds of a thread's time in user mode.
pub const SAMPLE_PERIOD_VARIABLE: &str = "NEARPAGE_SAMPLE_PERIOD_NS";
/// Environment variable: `monotonic` takes samples by the wall clock, as often as asked for and during sleep, too. This
/// interrupts system calls: for benchmarks only.
pub const SAMPLE_CLOCK_VARIABLE: &str = "NEARPAGE_SAMPLE_CLOCK";
/// Environment variable: number of slots in the ring of samples, a power of two.
pub const SAMPLE_SLOTS_VARIABLE: &str = "NEARPAGE_SAMPLE_SLOTS";
/// Environment variable: `1` turns the preload library off.
pub const DISABLE_VARIABLE: &str = "NEARPAGE_DISABLE";

/// Environment variables in which MPI launchers number their processes; the first variable that is set counts.
pub const RANK_VARIABLES: [&str; 4] = [
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
];

/// Each allocation of this many bytes or more is logged, except at call sites that make short-lived allocations at a
/// high rate, which are sampled.
pub const LARGE_ALLOCATION_BYTES: usize = 4096;

/// Each allocation of this many bytes or more is logged, whatever its call site does.
pub const EXACT_ALLOCATION_BYTES: usize = 1 << 20;

/// Most frames of a call site that are kept, innermost first.
pub const CALL_SITE_DEPTH_MAX: usize = 32;

/// Whether this is one of nearpage's libraries, by file name, whose contents are not the program's.
pub fn is_own_module(file_name: &[u8]) -> bool {
    file_name.starts_with(b"libnearpage")
}

/// Whether anonymous memory with this protection belongs to the preload library: it is writable without being readable,
/// as no other memory is.
pub fn is_own_memory(protection: u32) -> bool {
    const READ_WRITE_EXECUTE: u32 = 7;
    const WRITE: u32 = 2;
    protection & READ_WRITE_EXECUTE == WRITE
}

/// Whether this is the name of a function or object as a compiler of C++ or Rust encodes it. A demangler takes other
/// names for the encoding of a type: an array `n` in C would be `__int128`.
pub fn is_mangled(name: &str) -> bool {
    ["_Z", "__Z", "_R", "_GLOBAL_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Whether frames of this module (by file name) say nothing about *which* object is allocated: the C and C++ runtimes,
/// allocators, the loader, the OpenMP and thread runtimes, and nearpage itself.
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

/// Whether functions of this module (by file name) allocate on behalf of their caller: allocators, the runtimes of C
/// and C++, and nearpage itself. The loader and OpenMP runtimes allocate for themselves.
pub fn is_allocator_module(file_name: &[u8]) -> bool {
    const FOR_THEMSELVES: [&[u8]; 7] = [
        b"ld-",
        b"libpthread",
        b"libgcc_s",
        b"libgomp",
        b"libomp",
        b"libiomp",
        b"libdl",
    ];
    is_runtime_module(file_name)
        && !FOR_THEMSELVES
            .iter()
            .any(|prefix| file_name.starts_with(prefix))
}

/// Whether this demangled name is a function of the standard library of C++ or Rust. Many of these are templates, which
/// lie in the program's own module and allocate for their caller.
pub fn is_runtime_function(name: &str) -> bool {
    const NAMESPACES: [&str; 4] = ["std::", "__gnu_cxx::", "core::", "alloc::"];
    let is_runtime = |path: &str| NAMESPACES.iter().any(|space| path.starts_with(space));
    // Rust: `<type as trait>::method`, where the type may be a parameter's name.
    if let Some(implementation) = name.strip_prefix('<') {
        let (of_type, of_trait) = match implementation.split_once(" as ") {
            Some((of_type, of_trait)) => (of_type, of_trait),
            None => (implementation, ""),
        };
        return is_runtime(of_type) || !of_type.contains("::") && is_runtime(of_trait);
    }
    name.starts_with("operator new") || is_runtime(without_return_type(name))
}

/// A demangled name of C++ from the function's own name on; names of templates begin with the return type.
pub fn without_return_type(name: &str) -> &str {
    let mut depth = 0;
    let mut start = 0;
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' => depth -= 1,
            b' ' if depth == 0 => start = at + 1,
            b'(' if depth == 0 => break,
            _ => {}
        }
    }
    name.get(start..).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::is_runtime_function;

    #[test]
    fn functions_of_standard_libraries_are_known_by_their_names() {
        for name in [
            "std::__new_allocator<double>::allocate(unsigned long, void const*)",
            "void std::vector<double, std::allocator<double> >::_M_realloc_insert<double>(double&&)",
            "__gnu_cxx::new_allocator<double>::allocate(unsigned long, void const*)",
            "operator new(unsigned long)",
            "alloc::vec::Vec<T>::with_capacity_in",
            "<T as alloc::vec::spec_from_elem::SpecFromElem>::from_elem",
            "<core::iter::adapters::map::Map<I,F> as core::iter::traits::iterator::Iterator>::fold",
            "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
        ] {
            assert!(is_runtime_function(name), "{name}");
        }
        for name in [
            "",
            "main",
            "alloc",
            "mesh::Field<double>::Field(unsigned long)",
            "mesh::operator<(mesh::Cell const&, std::string const&)",
            "std::vector<double, std::allocator<double> > grid<double>(unsigned long)",
            "Arena::operator new(unsigned long)",
            "(anonymous namespace)::fill(std::vector<double>&)",
            "<mesh::Grid as core::clone::Clone>::clone",
            "<T as mesh::Fill>::fill",
            "mesh::alloc::grid",
        ] {
            assert!(!is_runtime_function(name), "{name}");
        }
    }
}
