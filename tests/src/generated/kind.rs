//! Kinds of objects: which thread uses which part, and acceptable names of the pattern.

/// Ways to divide lines or rows among threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shares {
    /// Shares differ by at most one line or row.
    Even,
    /// All shares are equally large, except that the last ones may be smaller or empty.
    Full,
}

/// Which thread uses which part of an object. Lengths are in cache lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A share for each thread, in the order of the team or in reverse.
    Block {
        /// How the object is divided.
        shares: Shares,
        /// Reverse order: the last thread has the first share.
        is_reversed: bool,
    },
    /// A share for each thread, proportional to weights that repeat.
    Unequal {
        /// Weights of the first threads.
        weights: Vec<u64>,
    },
    /// A share for each thread of the only used part.
    Extent {
        /// Unused lines before the used part.
        head: u64,
        /// Lines of the used part.
        used: u64,
    },
    /// A share of rows for each thread; only the first lines of each row are used.
    Padded {
        /// Lines of a row.
        row: u64,
        /// Used lines of a row.
        used: u64,
    },
    /// A share of rows for each thread, which also reads the neighbouring rows.
    Halo {
        /// Lines of a row.
        row: u64,
    },
    /// A share of each row for each thread.
    Columns {
        /// Lines of a row.
        row: u64,
    },
    /// A tile of rows and columns for each thread.
    Tiles {
        /// Lines of a row.
        row: u64,
    },
    /// Blocks that go round the threads.
    Cyclic {
        /// Lines of a block.
        block: u64,
    },
    /// Several arrays in one allocation; each thread has a share of each array.
    Packed {
        /// Lines of the arrays at size 1.
        parts: Vec<u64>,
    },
    /// Rows that are allocated one by one.
    Rows {
        /// Lines of a row.
        row: u64,
        /// Rows go round the threads, instead of a share of consecutive rows for each.
        is_cyclic: bool,
    },
    /// A share for each thread of an array that `realloc` enlarges.
    Grown,
    /// Chunks that threads map for themselves.
    Arena {
        /// Lines of a chunk.
        chunk: u64,
    },
    /// Chunks of one mapping, each with an owner that does not follow from the chunk's place.
    Pool {
        /// Lines of a chunk.
        chunk: u64,
    },
    /// An allocation for each thread, from one call site.
    Private {
        /// Does each thread allocate its own memory, rather than the main thread?
        by_user: bool,
    },
    /// An object that one thread uses alone.
    PrivateOne {
        /// Number of the thread, modulo the size of the team.
        thread: u64,
    },
    /// Alternately a share of rows and a share of each row for each thread.
    Transposed {
        /// Lines of a row.
        row: u64,
    },
    /// Chunks that change threads in every pass.
    Stolen {
        /// Lines of a chunk.
        chunk: u64,
    },
    /// The first thread fills the object; then each thread reads its share twice.
    MasterWorker,
    /// One thread writes the object and all threads read it.
    OneWriter {
        /// Number of the writing thread, modulo the size of the team.
        thread: u64,
    },
    /// All threads read all of the object.
    ReadShared,
    /// All threads write all of the object.
    Shared,
}

impl Kind {
    /// Name in results.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Block {
                is_reversed: true, ..
            } => "block-reversed",
            Self::Block { .. } => "block",
            Self::Unequal { .. } => "unequal",
            Self::Extent { .. } => "extent",
            Self::Padded { .. } => "padded",
            Self::Halo { .. } => "halo",
            Self::Columns { .. } => "columns",
            Self::Tiles { .. } => "tiles",
            Self::Cyclic { .. } => "cyclic",
            Self::Packed { .. } => "packed",
            Self::Rows {
                is_cyclic: true, ..
            } => "rows-cyclic",
            Self::Rows { .. } => "rows",
            Self::Grown => "grown",
            Self::Arena { .. } => "arena",
            Self::Pool { .. } => "pool",
            Self::Private { .. } => "private",
            Self::PrivateOne { .. } => "private-one",
            Self::Transposed { .. } => "transposed",
            Self::Stolen { .. } => "stolen",
            Self::MasterWorker => "master-worker",
            Self::OneWriter { .. } => "one-writer",
            Self::ReadShared => "read-shared",
            Self::Shared => "shared",
        }
    }

    /// Acceptable names of the detected `Pattern`, by its variants. To accept another name, add it here.
    pub fn patterns(&self) -> &'static [&'static str] {
        match self {
            Self::Block {
                is_reversed: true, ..
            } => &["Segments", "Mixed"],
            // Where the main thread works beside a team, shares may be found as `Tiles`, one for each thread.
            Self::Block { .. } | Self::Padded { .. } | Self::Grown => &["Block", "Tiles"],
            Self::Halo { .. } => &["Block", "PartialBlock", "Tiles"],
            Self::Unequal { .. } => &["Segments", "Mixed"],
            // If the used part begins the object, blocks of a share each, dealt once, describe it as well.
            Self::Extent { .. } => &[
                "PartialBlock",
                "Block",
                "BlockCyclic",
                "Tiles",
                "Segments",
                "Mixed",
            ],
            Self::Columns { .. } => &["BlockCyclic", "Tiles"],
            Self::Tiles { .. } => &["Tiles", "Mixed"],
            Self::Cyclic { .. } => &["BlockCyclic", "Tiles"],
            Self::Packed { .. } => &["Segments", "BlockCyclic", "Mixed"],
            Self::Rows { .. } => &["PrivateEach", "PrivateRuns"],
            // Memory allocated from another stack than the others' belongs to a single thread.
            Self::Arena { .. } | Self::Private { .. } => &["PrivateEach", "PrivateRuns", "Private"],
            Self::Pool { .. } => &["Mixed", "Segments", "PrivateEach", "PrivateRuns"],
            Self::PrivateOne { .. } => &["Private"],
            Self::Transposed { .. } => &["InTurn", "Mixed", "Shared", "ReadShared"],
            Self::Stolen { .. } => &["Shared", "ReadShared"],
            Self::MasterWorker => &["InTurn", "Block", "Mixed"],
            Self::OneWriter { .. } => &["Shared"],
            Self::ReadShared => &["ReadShared"],
            // Clock samples see few of the stores to lines that were just loaded.
            Self::Shared => &["Shared", "ReadShared"],
        }
    }

    /// Are all weights that the team uses equal?
    pub fn are_weights_equal(&self, team: u64) -> bool {
        match self {
            Self::Unequal { weights } => {
                let used = &weights[..weights.len().min(team as usize)];
                used.iter().all(|one| *one == used[0])
            }
            _ => false,
        }
    }

    /// The two alternating patterns, for kinds with two.
    pub fn in_turn(&self) -> [&'static str; 2] {
        match self {
            Self::MasterWorker => ["Private", "Block"],
            _ => ["Block", "BlockCyclic"],
        }
    }

    /// Does a thread's number in the team determine its part?
    pub fn is_by_team(&self) -> bool {
        self.block_lines(1, 1).is_some() || matches!(self, Self::Tiles { .. })
    }

    /// Lines of a thread's block, for kinds whose detected `Pattern` must have the right block size.
    pub fn block_lines(&self, lines: u64, team: u64) -> Option<u64> {
        match *self {
            Self::Block {
                is_reversed: false, ..
            }
            | Self::Halo { .. }
            | Self::Padded { .. }
            | Self::Grown
            | Self::MasterWorker => Some(lines / team),
            Self::Unequal { .. } if self.are_weights_equal(team) => Some(lines / team),
            Self::Extent { used, .. } => Some(used / team),
            Self::Cyclic { block } => Some(block),
            Self::Columns { row } => Some(row / team),
            _ => None,
        }
    }
}
