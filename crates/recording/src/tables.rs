//! The tables beside the accesses: objects, threads, modules, call sites; and the events that a
//! recorder sees on the way.

use std::borrow::Cow;
use std::path::Path;

use nearpage_machine::CpuId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Position of a thread in [`Thread`]'s table. Threads of all processes are numbered together in
/// order of creation; a kernel tid that is used again is another thread.
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

/// What an object is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum ObjectKind {
    /// A heap allocation, by call site.
    Heap = 0,
    /// A static symbol (or what lies between symbols in a module's data).
    Static = 1,
    /// A mapping of the program's own.
    Mapping = 2,
    /// A thread's stack.
    Stack = 3,
    /// Thread-local storage.
    Tls = 4,
    /// Executable memory of a module, or generated code.
    Code = 5,
    /// The allocator's memory (break and arenas) as a whole: what lies in it and in no logged
    /// object counts as `heap_unresolved`.
    HeapArea = 6,
}

impl ObjectKind {
    /// The kind with this number, as files have it.
    pub fn from_number(number: u8) -> Option<Self> {
        use ObjectKind::*;
        [Heap, Static, Mapping, Stack, Tls, Code, HeapArea]
            .get(usize::from(number))
            .copied()
    }
}

/// A named address range with a lifetime, in one process.
///
/// Objects lie inside one another: a static symbol in its module's `.data`, thread-local storage at
/// the end of a stack, a heap allocation in the allocator's memory. An address belongs, of the
/// objects alive at the time, to the first kind of: heap, thread-local storage, stack, static, code,
/// mapping, heap area; and within a kind to the smallest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Object {
    /// What it is.
    pub kind: ObjectKind,
    /// Symbol, file name of a mapping, `stack of TID`…; empty for heap objects, which their call
    /// site names.
    pub name: String,
    /// Process.
    pub pid: u32,
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size_bytes: u64,
    /// CLOCK_MONOTONIC when it came to be; 0: before the recording.
    pub born_ns: u64,
    /// When it went; `u64::MAX`: not in this recording.
    pub died_ns: u64,
    /// How many objects of its kind it stands for (1, but for sampled small allocations).
    pub weight: f32,
    /// Heap and mapping: where it was allocated.
    pub call_site: Option<CallSiteId>,
    /// Heap and mapping: thread that allocated it. Stack and TLS: whose it is.
    pub thread: Option<ThreadIndex>,
    /// Heap and mapping: number among the objects of its call site and thread, from 0.
    pub order: u32,
    /// Static and code: module it belongs to.
    pub module: Option<ModuleId>,
    /// Static: virtual address in the module's ELF file.
    pub module_offset: u64,
}

impl Object {
    /// What the kernel calls the heap that `brk` extends.
    pub(crate) const BRK_HEAP: &str = "[heap]";

    /// Is it the heap that `brk` extends, as a whole?
    pub fn is_brk_heap(&self) -> bool {
        self.kind == ObjectKind::HeapArea && self.name == Self::BRK_HEAP
    }
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// Process.
    pub pid: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// Name as the kernel has it (`comm`).
    pub name: String,
    /// CLOCK_MONOTONIC when it began; 0: before the recording.
    pub born_ns: u64,
    /// When it ended; `u64::MAX`: not in this recording.
    pub died_ns: u64,
    /// Order of creation in its process; 0 is the main thread.
    pub order: u32,
    /// Start routine, where the preload library saw it: module and virtual address in its file.
    pub start: Option<(ModuleId, u64)>,
    /// Symbol of the start routine, or of what `std::thread` executes; empty where unknown.
    pub start_function: String,
    /// Number among the threads with this start routine, the lowest that none of those running has: a program that creates
    /// its threads anew for every step uses the same few again. The main thread is 0 of its OpenMP team.
    pub team_index: u32,
    /// Name of the team: `openmp`, the start function's name, or `main`.
    pub team: String,
    /// Samples by CPU, for where it ran.
    pub cpus: Vec<(CpuId, u64)>,
    /// What became of its samples.
    pub counts: SampleCounts,
}

/// What became of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SampleCounts {
    /// Samples taken in user mode.
    pub samples: u64,
    /// Of these: became an access.
    pub accesses: u64,
    /// No memory instruction at the sampled place: computation.
    pub compute: u64,
    /// A memory instruction whose address could not be recovered, or whose code bytes are unknown.
    pub undecoded: u64,
    /// In the kernel on the thread's behalf (not accesses).
    pub kernel: u64,
    /// Lost: the kernel said so.
    pub lost: u64,
}

/// A program, library or piece of generated code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Path as mapped; `[vdso]`, `[jit]`; the file name alone where paths are left out. What is not UTF-8 in it stands as
    /// [`nearpage_files::path_to_text`] has it.
    pub path: String,
    /// GNU build-id, lower-case hexadecimal; empty where there is none.
    pub build_id: String,
}

impl Module {
    /// Its file's name without folders.
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Its file.
    pub fn file(&self) -> Cow<'_, Path> {
        nearpage_files::path_from_text(&self.path)
    }
}

/// Where a module (or generated code) was in a process's memory, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleMapping {
    /// Process.
    pub pid: u32,
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size_bytes: u64,
    /// CLOCK_MONOTONIC when it was mapped; 0: before the recording.
    pub born_ns: u64,
    /// When it went; `u64::MAX`: not in this recording.
    pub died_ns: u64,
    /// What was mapped.
    pub module: ModuleId,
    /// Load bias: address − bias is the virtual address in the module's ELF file (wrapping).
    pub bias: u64,
}

impl ModuleMapping {
    /// Virtual address in the module's file of `address`, if it lies here at `time_ns`.
    pub fn offset(&self, pid: u32, time_ns: u64, address: u64) -> Option<u64> {
        let here = self.pid == pid
            && address.wrapping_sub(self.address) < self.size_bytes
            && (self.born_ns..self.died_ns).contains(&time_ns);
        here.then(|| address.wrapping_sub(self.bias))
    }
}

/// A page that was touched first, as far as page faults were sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstTouch {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The thread that touched.
    pub thread: ThreadIndex,
    /// The CPU that it ran on.
    pub cpu: CpuId,
    /// Address that faulted.
    pub address: u64,
}

/// Everything of a recording but its accesses and what holds for the whole.
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
}

/// One frame of a call site, innermost first; an inlined function is a frame of its own with
/// `inlined` set, before the function it was inlined into.
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
    /// Inlined into the next frame.
    pub inlined: bool,
}

/// A stack that allocated.
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
    /// `true`: begin.
    pub begin: bool,
}

/// What the kernel reports besides samples. Appended to the recorder's log as they come, in order
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
        /// Path ([`nearpage_files::path_to_text`]), `//anon`, `[vdso]`, `[heap]`, `[stack]`.
        path: String,
        /// GNU build-id, lower-case hexadecimal; empty: none or not known.
        build_id: String,
    },
    /// Nothing is mapped here any more, as a recorder found that looked.
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
    /// A thread's name; `exec`: the process began another program, all its mappings are gone.
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
        /// The new thread.
        tid: u32,
        /// Its number.
        thread: ThreadIndex,
        /// Process of the creator; another one: `fork`, mappings are copied.
        parent_pid: u32,
    },
    /// A thread ended.
    Exit {
        /// CLOCK_MONOTONIC.
        time_ns: u64,
        /// The thread.
        thread: ThreadIndex,
    },
    /// A page was touched first (page fault), as far as faults are sampled.
    FirstTouch {
        /// CLOCK_MONOTONIC.
        time_ns: u64,
        /// The thread that touched.
        thread: ThreadIndex,
        /// The CPU that it ran on.
        cpu: CpuId,
        /// Address that faulted.
        address: u64,
    },
    /// What became of a thread's samples so far (totals; the last one counts).
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
