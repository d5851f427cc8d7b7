//! The compact form of a plan: what `nearpage run` hands to the preload library.
//!
//! The command has already turned threads into nodes for the machine at hand, symbols into module
//! offsets, and size units into bytes, so that the library only compares numbers. The file is
//! written once, read-only, and mapped by every process of the run.
//!
//! # Layout (version 9), little-endian, every table 8-byte aligned
//! [`Header`], then the tables it points to, each an array of one `repr(C)` struct of this module
//! whose fields are stored in order. Offsets are from the start of the file.
//!
//! A reader checks magic, version, page sizes and that every table lies inside the file; a rule that
//! points outside a table is ignored and named in the summary.
//!
//! Each process appends a line of JSON about its section to the file of `NEARPAGE_SUMMARY`; the preload library's
//! `place/summary.rs` specifies the line.

/// First eight bytes; the last is the version.
pub const MAGIC: [u8; 8] = *b"NPPLAN\0\x09";
/// "No index", "any" in 32-bit fields.
pub const NONE: u32 = u32::MAX;

/// Most phases of a section that are carried out. Each phase costs a process tables of its own, and every allocation a
/// look at the phase's rules.
pub const PHASES_MAX: usize = 4;

/// Flag of a header: at exit, append a summary of the placement to the file of `NEARPAGE_SUMMARY`.
pub const FLAG_SUMMARY: u32 = 1;

/// How pages get to their nodes.
pub mod mechanism {
    /// The library sets memory policies, and moves pages that exist already.
    pub const BIND: u32 = 0;
    /// A thread on each node touches the pages of its node before any other thread does.
    pub const TOUCH: u32 = 1;
}

/// Place of a table in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Table {
    /// Offset of the first entry.
    pub offset: u32,
    /// Number of entries.
    pub count: u32,
}

/// The first bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// Granularity of placement for ordinary mappings, in bytes (the system's page size); a power of
    /// two, as is `huge_page_bytes`.
    pub page_bytes: u32,
    /// Granularity where transparent or explicit huge pages are in use.
    pub huge_page_bytes: u32,
    /// Most mappings that placement may add to a process; beyond this number, pieces are coarsened.
    pub mappings_max: u32,
    /// One of [`mechanism`].
    pub mechanism: u32,
    /// `touch`: most pages of living objects that are touched in a process. No pages are touched while less than twice
    /// this amount of memory is available.
    pub touch_pages_max: u64,
    /// `touch`: number of heap allocations gathered before the nodes are visited; 1 visits at once. A group that is not
    /// full is visited when a thread is created.
    pub touch_group: u32,
    /// [`FLAG_SUMMARY`].
    pub flags: u32,
    /// [`Section`]s.
    pub sections: Table,
    /// [`Module`]s.
    pub modules: Table,
    /// [`Rule`]s.
    pub rules: Table,
    /// [`FrameRange`]s.
    pub frames: Table,
    /// [`Run`]s.
    pub runs: Table,
    /// Node sequences: `u16` node numbers.
    pub nodes: Table,
    /// [`Weight`]s.
    pub weights: Table,
    /// [`Pin`]s.
    pub pins: Table,
    /// Names: bytes, not terminated.
    pub names: Table,
    /// [`Phase`]s. Since version 4.
    pub phases: Table,
}

/// The rules, pins and phases of one executable, and of one rank where a launcher numbers processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Section {
    /// Module index of the executable; [`NONE`] for any process of the run.
    pub executable: u32,
    /// Rank ([`crate::RANK_VARIABLES`]); [`NONE`] for any rank.
    pub rank: u32,
    /// First rule, and number of rules.
    pub rules: [u32; 2],
    /// First pin, and number of pins.
    pub pins: [u32; 2],
    /// First phase, and number of phases, at most [`PHASES_MAX`].
    pub phases: [u32; 2],
}

/// Rules that hold from the first execution of a function on, and come before the section's rules. Objects that the
/// rules recognise then move to their new places; with [`placement::LEAVE`], they stay. The rules of the phase that
/// began last come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Phase {
    /// Module index of the function.
    pub module: u32,
    /// Zero.
    pub reserved: u32,
    /// Offset of the function (virtual address in the ELF file).
    pub offset: u64,
    /// First rule, and number of rules; none is of [`subject::UNMATCHED`].
    pub rules: [u32; 2],
    /// First pin, and number of pins: the section's pins in their order, with the CPUs that the threads have from then
    /// on. Without pins, threads stay where they are. Since version 5.
    pub pins: [u32; 2],
}

/// A program or library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Module {
    /// GNU build-id, zero-padded.
    pub build_id: [u8; 32],
    /// Length of the build-id; 0 to compare `name` alone.
    pub build_id_bytes: u32,
    /// File name without folders: offset and length in `names`.
    pub name: [u32; 2],
    /// Zero.
    pub reserved: u32,
}

/// Size that stands for the whole heap, as no heap is longer.
pub const BRK_HEAP_BYTES_MAX: u64 = 1 << 46;

/// Objects that a rule recognises.
pub mod subject {
    /// A static object: `module`, `offset` (virtual address in the ELF file), `size`.
    pub const STATIC: u32 = 1;
    /// A heap object by call site: `frames`, then size, order and thread.
    pub const CALL_SITE: u32 = 2;
    /// Any heap object within the size bounds.
    pub const HEAP: u32 = 3;
    /// Any anonymous mapping of the program's own (`mmap`) within the size bounds.
    pub const MAPPING: u32 = 4;
    /// Memory that no other rule places, by the memory policy of the process. The placement is INTERLEAVE, NODE or
    /// LEAVE. The first such rule of a section counts. Since version 3.
    pub const UNMATCHED: u32 = 5;
    /// Memory of the `brk` heap that no rule for an object places: the first `size_bytes` bytes, or all of it with
    /// [`super::BRK_HEAP_BYTES_MAX`]. The first such rule of a section counts; none of a phase does. Since version 6.
    pub const BRK_HEAP: u32 = 6;
}

/// Where the pages of a recognised object go.
pub mod placement {
    /// Round-robin by page over `nodes`.
    pub const INTERLEAVE: u32 = 1;
    /// `nodes` are the owners' nodes in order: share k of the object (size ÷ number of nodes, at whole pages) goes to
    /// nodes\[k\].
    pub const BLOCK: u32 = 2;
    /// Pieces of `block_bytes`, which go to `nodes` in turn.
    pub const BLOCK_CYCLIC: u32 = 3;
    /// The whole object goes to nodes\[0\].
    pub const NODE: u32 = 4;
    /// Explicit page runs in ascending order of `first_page`. Pages between runs go with the run before them; pages
    /// before the first run go with the first run.
    pub const RUNS: u32 = 5;
    /// Interleave by `weights` ([`crate::pieces::Pattern::Weighted`]).
    pub const WEIGHTED_INTERLEAVE: u32 = 6;
    /// Left to first touch: the rule keeps later, wider rules from taking the object.
    pub const LEAVE: u32 = 7;
    /// Tiles of an array with rows of `block_bytes`. The rows that fit the object are divided into equal shares, and
    /// each row into `columns` equal columns. `nodes` has a node for each tile: `columns` nodes for each share of the
    /// rows, from the first share on. Since version 8.
    pub const TILES: u32 = 8;
}

/// The rule is the second, weaker key for a rebuilt program; its use is reported.
pub const RULE_WEAK: u32 = 1;
/// The rule's objects are left to first touch until the process creates its second thread, and are then moved to their
/// places. Later objects are placed when they are allocated. For [`subject::UNMATCHED`], the process has the policy
/// from then on. Since version 2.
pub const RULE_LATER: u32 = 2;

/// Recognises objects and says where their pages go. The first rule that fits wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    /// One of [`subject`].
    pub subject: u32,
    /// One of [`placement`].
    pub placement: u32,
    /// [`RULE_WEAK`], [`RULE_LATER`].
    pub flags: u32,
    /// Number under which the summary reports the rule; [`NONE`] for no report.
    pub number: u32,
    /// STATIC: module index.
    pub module: u32,
    /// CALL_SITE: order of creation of the allocating thread in its process; [`NONE`] for any thread.
    pub thread: u32,
    /// CALL_SITE: first and last number of the allocation, from 0, among those of this call site, size range and
    /// thread. `[0, NONE]` for any.
    pub order: [u32; 2],
    /// STATIC: virtual address in the ELF file.
    pub offset: u64,
    /// STATIC, BRK_HEAP: bytes. CALL_SITE: bytes of the object from which the plan was made.
    pub size_bytes: u64,
    /// CALL_SITE, HEAP, MAPPING: least and greatest size in bytes.
    pub size_bounds_bytes: [u64; 2],
    /// CALL_SITE: first frame, and number of frames; compared innermost first with the stack without
    /// frames of runtime modules ([`crate::is_runtime_module`]).
    pub frames: [u32; 2],
    /// BLOCK_CYCLIC: bytes of one piece. TILES: bytes of a row.
    pub block_bytes: u64,
    /// First entry in `nodes`, and number of entries.
    pub nodes: [u32; 2],
    /// RUNS: first run, and number of runs.
    pub runs: [u32; 2],
    /// WEIGHTED_INTERLEAVE: first weight, and number of weights.
    pub weights: [u32; 2],
    /// CALL_SITE: of the numbers in `order`, the rule takes those that leave the first value when divided by the
    /// second. `[0, 1]` for all.
    pub turn: [u32; 2],
    /// TILES: number of tiles in a row, which divides the number of `nodes`.
    pub columns: u32,
    /// CALL_SITE: if not 0, `turn` is a share of the numbers instead, and this is their count when the plan was made.
    /// All rules of one decision follow each other in order of their shares. If the count is another one when the
    /// process creates its second thread, the objects are divided anew. Since version 9.
    pub objects: u32,
}

/// Share that contains object `number` if `objects` objects are divided into equal `shares`; the last share also has
/// all numbers beyond.
pub const fn share_of_object(number: u32, objects: u32, shares: u32) -> u32 {
    if objects == 0 || shares == 0 {
        return 0;
    }
    // Shares are divided as those of arrays: share k begins with number k * objects / shares.
    let (number, objects, shares) = (number as u64, objects as u64, shares as u64);
    let share = ((number + 1) * shares - 1) / objects;
    let last = shares - 1;
    if share < last {
        share as u32
    } else {
        last as u32
    }
}

impl Rule {
    /// Whether the rule takes only some of the objects of its call site, by their numbers.
    pub fn is_numbered(&self) -> bool {
        self.order != [0, NONE] || self.turn != [0, 1] || self.objects != 0
    }

    /// Whether the rule takes the object with this number.
    pub fn takes_number(&self, number: u32) -> bool {
        let [first, last] = self.order;
        let [turn, count] = self.turn;
        let own = match self.objects {
            0 => number.checked_rem(count),
            objects => Some(share_of_object(number, objects, count)),
        };
        (first..=last).contains(&number) && own == Some(turn)
    }
}

/// A frame of a call site: a return address in `module` between `low` and `high`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FrameRange {
    /// Module index.
    pub module: u32,
    /// Zero.
    pub reserved: u32,
    /// Lowest offset (virtual address in the ELF file).
    pub low: u64,
    /// Highest offset. For a module that was rebuilt, the range is 0 to `u64::MAX`.
    pub high: u64,
}

/// Consecutive pages of an object (units of `page_bytes`) on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Run {
    /// First page, counted from the page that holds the object's first byte.
    pub first_page: u64,
    /// Number of pages.
    pub pages: u32,
    /// Node.
    pub node: u32,
}

/// A node's share in a weighted interleave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Weight {
    /// Node.
    pub node: u32,
    /// Number of consecutive pages, at least 1.
    pub pages: u32,
}

/// A thread to pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Pin {
    /// Module index of the start routine; [`NONE`] counts threads with any start routine (`--threads` without a plan,
    /// and the main thread).
    pub module: u32,
    /// Number among the threads with this start routine, in order of creation. With `module` [`NONE`], number among all
    /// threads of the process, of which the main thread is 0.
    pub index: u32,
    /// Offset of the start routine (virtual address in the ELF file).
    pub offset: u64,
    /// CPU.
    pub cpu: u32,
    /// Zero.
    pub reserved: u32,
}

#[cfg(test)]
mod tests {
    use super::share_of_object;

    /// Objects are divided as an array of as many elements is: share k begins with number k * objects / shares.
    #[test]
    fn objects_are_divided_as_arrays_are() {
        for shares in 1..9 {
            for objects in 1..60 {
                for number in 0..objects {
                    let share = share_of_object(number, objects, shares);
                    let begin = |share: u32| share * objects / shares;
                    assert!(share < shares);
                    assert!((begin(share)..begin(share + 1)).contains(&number));
                }
                assert_eq!(share_of_object(objects, objects, shares), shares - 1);
                assert_eq!(share_of_object(u32::MAX, objects, shares), shares - 1);
            }
        }
        assert_eq!(share_of_object(7, 0, 3), 0);
        assert_eq!(share_of_object(7, 3, 0), 0);
    }
}
