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
//! What a process did with its section is said in a line of JSON, appended to the file of
//! `NEARPAGE_SUMMARY`; its layout stands in the preload library's `place/summary.rs`.

/// First eight bytes; the last is the version.
pub const MAGIC: [u8; 8] = *b"NPPLAN\0\x09";
/// "No index", "any" in 32-bit fields.
pub const NONE: u32 = u32::MAX;

/// Phases of a section that are carried out: each costs a process tables of its own, and every allocation a look at
/// its rules.
pub const PHASES_MAX: usize = 4;

/// Flag of a header: say at exit what was placed, appended to the file of `NEARPAGE_SUMMARY`.
pub const FLAG_SUMMARY: u32 = 1;

/// How pages come to their nodes.
pub mod mechanism {
    /// The library sets memory policies, and moves pages that are there already.
    pub const BIND: u32 = 0;
    /// A thread on each node touches the pages of its node before anyone else does.
    pub const TOUCH: u32 = 1;
}

/// Where a table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Table {
    /// Offset of its first entry.
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
    /// Mappings that placement may add to a process; beyond it pieces are coarsened.
    pub mappings_max: u32,
    /// One of [`mechanism`].
    pub mechanism: u32,
    /// `touch`: pages that are touched at the most in a process at a time, those of freed objects not counted.
    /// None are while less than twice as much memory is available.
    pub touch_pages_max: u64,
    /// `touch`: heap allocations gathered before the nodes are visited; 1 visits at once. A group
    /// that is not full is visited when a thread is created.
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
    /// Module index of the executable; [`NONE`]: any process of the run.
    pub executable: u32,
    /// Rank ([`crate::RANK_VARIABLES`]); [`NONE`]: any.
    pub rank: u32,
    /// First rule and how many.
    pub rules: [u32; 2],
    /// First pin and how many.
    pub pins: [u32; 2],
    /// First phase and how many, [`PHASES_MAX`] at the most.
    pub phases: [u32; 2],
}

/// Rules that hold from when a function of the program is first executed, before the section's: what they recognise
/// moves to its place then. With [`placement::LEAVE`] it stays where it is. Those of the phase that began last come
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Phase {
    /// Module index of the function.
    pub module: u32,
    /// Zero.
    pub reserved: u32,
    /// Offset of the function (virtual address in the ELF file).
    pub offset: u64,
    /// First rule and how many; no [`subject::UNMATCHED`] among them.
    pub rules: [u32; 2],
    /// First pin and how many: the section's, in their order, with the CPUs that their threads have from then on; none:
    /// threads stay where they are. Since version 5.
    pub pins: [u32; 2],
}

/// A program or library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Module {
    /// GNU build-id, zero-padded.
    pub build_id: [u8; 32],
    /// Its length; 0: compare `name` alone.
    pub build_id_bytes: u32,
    /// File name without folders: offset and length in `names`.
    pub name: [u32; 2],
    /// Zero.
    pub reserved: u32,
}

/// Stands for the whole heap: no heap is longer.
pub const BRK_HEAP_BYTES_MAX: u64 = 1 << 46;

/// What a rule recognises.
pub mod subject {
    /// A static object: `module`, `offset` (virtual address in the ELF file), `size`.
    pub const STATIC: u32 = 1;
    /// A heap object by call site: `frames`, then size, order and thread.
    pub const CALL_SITE: u32 = 2;
    /// Any heap object within the size bounds.
    pub const HEAP: u32 = 3;
    /// Any anonymous mapping of the program's own (`mmap`) within the size bounds.
    pub const MAPPING: u32 = 4;
    /// Memory that no other rule places, by the memory policy of the process. INTERLEAVE, NODE or
    /// LEAVE; the first such rule of a section counts. Since version 3.
    pub const UNMATCHED: u32 = 5;
    /// Memory of the `brk` heap that no rule for an object places: `size` bytes from its start on
    /// ([`super::BRK_HEAP_BYTES_MAX`]: all of it); the first such rule of a section counts, of a phase none. Since
    /// version 6.
    pub const BRK_HEAP: u32 = 6;
}

/// Where the pages of a recognised object go.
pub mod placement {
    /// Round-robin by page over `nodes`.
    pub const INTERLEAVE: u32 = 1;
    /// `nodes` are the owners' nodes in order: share k of the object (size ÷ count, at whole
    /// pages) goes to nodes\[k\].
    pub const BLOCK: u32 = 2;
    /// Pieces of `block_bytes`, dealt to `nodes` in order, over and over.
    pub const BLOCK_CYCLIC: u32 = 3;
    /// All of it to nodes\[0\].
    pub const NODE: u32 = 4;
    /// Explicit page runs in ascending order of `first_page`; pages between runs follow the run
    /// before them, pages before the first run follow that one.
    pub const RUNS: u32 = 5;
    /// Interleave by `weights`.
    pub const WEIGHTED_INTERLEAVE: u32 = 6;
    /// Left to first touch: recognised so that no later, wider rule takes it.
    pub const LEAVE: u32 = 7;
    /// Rows of `block_bytes`, of which `nodes` has one node for each tile: `columns` for each share of the rows, from the
    /// first share on. The rows that fit the object are divided into equal shares, and each row into equal columns. Since
    /// version 8.
    pub const TILES: u32 = 8;
}

/// The rule is the second, weaker key of a rebuilt program: its use is reported.
pub const RULE_WEAK: u32 = 1;
/// The rule's objects are left to first touch until the process creates its second thread, and moved to
/// their places then; those that come later are placed at their allocation. Since version 2. Of
/// [`subject::UNMATCHED`]: the process has its policy from then on.
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
    /// Number that the summary reports it under; [`NONE`]: not at all.
    pub number: u32,
    /// STATIC: module index.
    pub module: u32,
    /// CALL_SITE: the allocating thread's creation order in its process; [`NONE`]: any.
    pub thread: u32,
    /// CALL_SITE: first and last order of the allocation among those of this call site, size range
    /// and thread, from 0. `[0, NONE]`: any.
    pub order: [u32; 2],
    /// STATIC: virtual address in the ELF file.
    pub offset: u64,
    /// STATIC, BRK_HEAP: bytes. CALL_SITE: bytes of the object the plan was made from.
    pub size_bytes: u64,
    /// CALL_SITE, HEAP, MAPPING: least and greatest size in bytes.
    pub size_bounds_bytes: [u64; 2],
    /// CALL_SITE: first frame and how many; compared innermost first against the stack without
    /// frames of runtime modules ([`crate::is_runtime_module`]).
    pub frames: [u32; 2],
    /// BLOCK_CYCLIC: bytes of one piece. TILES: bytes of a row.
    pub block_bytes: u64,
    /// First entry in `nodes` and how many.
    pub nodes: [u32; 2],
    /// RUNS: first run and how many.
    pub runs: [u32; 2],
    /// WEIGHTED_INTERLEAVE: first weight and how many.
    pub weights: [u32; 2],
    /// CALL_SITE: of the numbers in `order` it takes those that leave the first when divided by the second. `[0, 1]`: all.
    pub turn: [u32; 2],
    /// TILES: tiles in a row; `nodes` has a multiple of them.
    pub columns: u32,
    /// CALL_SITE: not 0: `turn` is a share of the numbers instead, of which there were so many when the plan was made. All
    /// rules of one decision follow each other in order of their shares. Where there are others when the process creates its
    /// second thread, the objects are dealt anew. Since version 9.
    pub objects: u32,
}

/// The share that has an object's number, of `shares` equal ones of `objects` objects; the last one has what is beyond.
pub const fn share_of_object(number: u32, objects: u32, shares: u32) -> u32 {
    if objects == 0 || shares == 0 {
        return 0;
    }
    // By the ends of shares as arrays have them: share k begins with number k * objects / shares.
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
    /// Does it take some of the objects of its call site alone, by their numbers?
    pub fn is_numbered(&self) -> bool {
        self.order != [0, NONE] || self.turn != [0, 1] || self.objects != 0
    }

    /// Does it take the object of this number?
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
    /// Highest. A module that was rebuilt is matched by 0 to `u64::MAX`.
    pub high: u64,
}

/// Consecutive pages of an object (units of `page_bytes`) on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Run {
    /// First page, from the page that holds the object's first byte.
    pub first_page: u64,
    /// Number of pages.
    pub pages: u32,
    /// Node.
    pub node: u32,
}

/// A node's part in a weighted interleave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Weight {
    /// Node.
    pub node: u32,
    /// Pages in a row, at least 1.
    pub pages: u32,
}

/// A thread to pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Pin {
    /// Module index of the start routine; [`NONE`]: threads are counted whatever they start
    /// (`--threads` without a plan, and the main thread).
    pub module: u32,
    /// Number among the threads with that start routine, in order of creation; with `module`
    /// [`NONE`] among all threads of the process, of which the main thread is 0.
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
