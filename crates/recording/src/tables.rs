//! Tables of a recording beside the accesses (objects, threads, modules, call sites), and the events that a recorder
//! sees.

use std::borrow::Cow;
use std::path::Path;

use nearpage_machine::CpuId;
use nearpage_perf_abi::FileId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Position of a thread in [`Thread`]'s table. Threads of all processes are numbered together in order of creation. A
/// kernel tid that is used again is another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ThreadIndex(pub u32);

/// Position of an object in the object table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ObjectId(pub u32);

/// Position of a call site in the call-site table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallSiteId(pub u32);

/// Position of a module in the module table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ModuleId(pub u32);

/// Kind of an object.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum ObjectKind {
    /// A heap allocation, by call site.
    Heap = 0,
    /// A static symbol (or memory between symbols in a module's data).
    Static = 1,
    /// A mapping of the program's own.
    Mapping = 2,
    /// A thread's stack.
    Stack = 3,
    /// Thread-local storage.
    Tls = 4,
    /// Executable memory of a module, or generated code.
    Code = 5,
    /// The allocator's memory (break and arenas) as a whole; accesses to it outside of logged objects count as
    /// `heap_unresolved`.
    HeapArea = 6,
}

impl ObjectKind {
    /// Decodes the number that files store.
    pub fn from_number(number: u8) -> Option<Self> {
        use ObjectKind::*;
        [Heap, Static, Mapping, Stack, Tls, Code, HeapArea]
            .get(usize::from(number))
            .copied()
    }
}

/// A named address range with a lifetime, in one process.
///
/// Objects may contain other objects: a module's `.data` contains static symbols, a stack contains thread-local storage
/// at its end, the allocator's memory contains heap allocations. An address belongs to one object of those alive at the
/// time: of the first kind among heap, thread-local storage, stack, static, code, mapping and heap area, and within the
/// kind to the smallest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Object {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Symbol, file name of a mapping, `stack of TID`…; empty for heap objects, which get their name from the call
    /// site.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size_bytes: u64,
    /// CLOCK_MONOTONIC when the object was created; 0 if before the recording.
    pub born_ns: u64,
    /// CLOCK_MONOTONIC when the object went away; `u64::MAX` if not within the recording.
    pub died_ns: u64,
    /// Number of objects that this object stands for: 1, except for sampled small allocations.
    pub weight: f32,
    /// Heap and mapping: call site that allocated the object.
    pub call_site: Option<CallSiteId>,
    /// Heap and mapping: thread that allocated the object. Stack and TLS: owner.
    pub thread: Option<ThreadIndex>,
    /// Heap and mapping: number among the objects of its call site and thread, from 0.
    pub order: u32,
    /// Static and code: module that contains the object.
    pub module: Option<ModuleId>,
    /// Static: virtual address in the module's ELF file.
    pub module_offset: u64,
    /// Mapping: the object of another process that is the same memory, byte for byte, and at least as large. It stands
    /// for this one; it stands for itself.
    pub same_memory_as: Option<ObjectId>,
}

impl Object {
    /// The kernel's name for the heap that `brk` extends.
    pub(crate) const BRK_HEAP: &str = "[heap]";

    /// Whether the object is the whole heap that `brk` extends.
    pub fn is_brk_heap(&self) -> bool {
        self.kind == ObjectKind::HeapArea && self.name == Self::BRK_HEAP
    }
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// Process id.
    pub pid: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// Name in the kernel (`comm`).
    pub name: String,
    /// CLOCK_MONOTONIC when the thread began; 0 if before the recording.
    pub born_ns: u64,
    /// CLOCK_MONOTONIC when the thread ended; `u64::MAX` if not within the recording.
    pub died_ns: u64,
    /// Order of creation in its process; 0 is the main thread.
    pub order: u32,
    /// Start routine, if the preload library saw it: module, and virtual address in the module's file.
    pub start: Option<(ModuleId, u64)>,
    /// Symbol of the start routine, or of the function that `std::thread` executes; empty if unknown.
    pub start_function: String,
    /// Number among the threads with this start routine: the lowest that none of those running has. A program that
    /// creates new threads for every step uses the same few numbers again. The main thread is number 0 of its OpenMP
    /// team.
    pub team_index: u32,
    /// Name of the team: `openmp`, the start function's name, or `main`.
    pub team: String,
    /// Number of accesses by CPU that the thread ran on.
    pub cpus: Vec<(CpuId, u64)>,
    /// Counts of the thread's samples.
    pub counts: SampleCounts,
}

/// Counts of samples by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SampleCounts {
    /// Samples taken in user mode.
    pub samples: u64,
    /// Samples that became an access.
    pub accesses: u64,
    /// Samples at an instruction without a memory access: computation.
    pub compute: u64,
    /// Samples at a memory instruction whose address could not be recovered, or whose code bytes are unknown.
    pub undecoded: u64,
    /// Samples in the kernel on the thread's behalf, which are not accesses.
    pub kernel: u64,
    /// Samples that the kernel reported as lost.
    pub lost: u64,
}

/// A program, library or piece of generated code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Path as mapped, `[vdso]` or `[jit]`; the file name only if paths are left out. [`nearpage_files::path_to_text`]
    /// encodes bytes that are not UTF-8.
    pub path: String,
    /// GNU build-id, lower-case hexadecimal; empty where there is none.
    pub build_id: String,
}

impl Module {
    /// Name of the module's file, without folders.
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Path of the module's file.
    pub fn file(&self) -> Cow<'_, Path> {
        nearpage_files::path_from_text(&self.path)
    }
}

/// Where a module (or generated code) was in a process's memory, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleMapping {
    /// Process id.
    pub pid: u32,
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size_bytes: u64,
    /// CLOCK_MONOTONIC when the module was mapped; 0 if before the recording.
    pub born_ns: u64,
    /// CLOCK_MONOTONIC when the mapping ended; `u64::MAX` if not within the recording.
    pub died_ns: u64,
    /// The mapped module.
    pub module: ModuleId,
    /// Load bias: address − bias is the virtual address in the module's ELF file (wrapping).
    pub bias: u64,
}

impl ModuleMapping {
    /// Virtual address of `address` in the module's file, if `address` is in this mapping at `time_ns`.
    pub fn offset(&self, pid: u32, time_ns: u64, address: u64) -> Option<u64> {
        let here = self.pid == pid
            && address.wrapping_sub(self.address) < self.size_bytes
            && (self.born_ns..self.died_ns).contains(&time_ns);
        here.then(|| address.wrapping_sub(self.bias))
    }
}

/// First touch of a page, as far as page faults were sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstTouch {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Thread that touched the page.
    pub thread: ThreadIndex,
    /// CPU that the thread ran on.
    pub cpu: CpuId,
    /// Address that faulted.
    pub address: u64,
}

/// Everything of a recording except its accesses and its metadata.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables {
    /// By [`ObjectId`].
    pub objects: Vec<Object>,
    /// By [`ThreadIndex`].
    pub threads: Vec<Thread>,
    /// By [`ModuleId`].
    pub modules: Vec<Module>,
    /// Sorted by process, then address, then time.
    pub mappings: Vec<ModuleMapping>,
    /// By [`CallSiteId`].
    pub call_sites: Vec<CallSite>,
    /// In order of time.
    pub first_touches: Vec<FirstTouch>,
    /// By [`ThreadIndex`]: number of samples of accesses that a cache served, found by the samples when a recording is
    /// opened and not stored; empty if there are none.
    pub cached_samples: Vec<u64>,
}

/// One frame of a call site. An inlined function is a frame of its own with `inlined` set, before the function that
/// contains it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Module, absent for generated code.
    pub module: Option<ModuleId>,
    /// Return address as a virtual address in the module's ELF file.
    pub offset: u64,
    /// Function, demangled; empty where unknown.
    pub function: String,
    /// Source file; empty where unknown.
    pub file: String,
    /// Line; 0 where unknown.
    pub line: u32,
    /// Whether the function was inlined into the function of the next frame.
    pub inlined: bool,
}

/// A stack of calls that allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSite {
    /// Frames, innermost first.
    pub frames: Vec<Frame>,
}

/// Begin or end of the stable phase, as the program marked it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Process that marked.
    pub pid: u32,
    /// `true` for begin, `false` for end.
    pub begin: bool,
}

/// An event that the kernel reports besides samples. Events are appended to the recorder's log as they come, in order
/// of time; object, thread and module tables are built from them.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A file or anonymous executable memory was mapped.
    Map {
        /// CLOCK_MONOTONIC.
        time_ns: u64,
        /// Process.
        pid: u32,
        /// First address.
        address: u64,
        /// Bytes.
        length: u64,
        /// Offset in the file.
        file_offset: u64,
        /// `PROT_…` bits.
        protection: u32,
        /// File whose pages the mapping shares with other processes ([`nearpage_perf_abi::Map::shared_file`]).
        shared: Option<FileId>,
        /// Path ([`nearpage_files::path_to_text`]), `//anon`, `[vdso]`, `[heap]`, `[stack]`.
        path: String,
        /// GNU build-id, lower-case hexadecimal; empty: none or not known.
        build_id: String,
    },
    /// The recorder looked here and found that nothing is mapped any more.
    Unmap {
        /// CLOCK_MONOTONIC.
        time_ns: u64,
        /// Process.
        pid: u32,
        /// First address.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// A thread's name. With `exec`, the process began another program, and all its mappings are gone.
    Name {
        /// CLOCK_MONOTONIC.
        time_ns: u64,
        /// Process.
        pid: u32,
        /// Thread.
        thread: ThreadIndex,
        /// `comm`.
        name: String,
        /// The process began another program.
        exec: bool,
    },
    /// A thread or process began.
    Fork {
        /// CLOCK_MONOTONIC.
        time_ns: u64,
        /// Process of the new thread.
        pid: u32,
        /// Kernel id of the new thread.
        tid: u32,
        /// Number of the new thread.
        thread: ThreadIndex,
        /// Process of the creator. If it is another process, the event is a `fork`, and mappings are copied.
        parent_pid: u32,
    },
    /// A thread ended.
    Exit {
        /// CLOCK_MONOTONIC.
        time_ns: u64,
        /// The thread.
        thread: ThreadIndex,
    },
    /// First touch of a page (page fault), as far as faults are sampled.
    FirstTouch {
        /// CLOCK_MONOTONIC.
        time_ns: u64,
        /// Thread that touched the page.
        thread: ThreadIndex,
        /// CPU that the thread ran on.
        cpu: CpuId,
        /// Address that faulted.
        address: u64,
    },
    /// Counts of a thread's samples so far; the last event of a thread counts.
    Counts {
        /// The thread.
        thread: ThreadIndex,
        /// Totals.
        counts: SampleCounts,
    },
    /// The kernel dropped this many records.
    Lost {
        /// CLOCK_MONOTONIC.
        time_ns: u64,
        /// Records that were lost.
        records: u64,
    },
}
