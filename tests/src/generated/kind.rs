//! Kinds of objects: who uses which part, and what that may be called.

/// How a team divides something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shares {
    /// Shares differ by one at the most.
    Even,
    /// All are as large, but the last ones.
    Full,
}

/// Who uses which part of an object. Lengths are in cache lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each thread a share of its own, in order of the team or the reverse.
    Block {
        /// How it is divided.
        shares: Shares,
        /// The last thread has the first share.
        is_reversed: bool,
    },
    /// Shares as large as these weights, which repeat.
    Unequal {
        /// Weights.
        weights: Vec<u64>,
    },
    /// Only `used` lines from `head` on are used, each thread a share of them.
    Extent {
        /// Lines before.
        head: u64,
        /// Lines used.
        used: u64,
    },
    /// Rows in shares, of which only the first lines are used.
    Padded {
        /// Lines of a row.
        row: u64,
        /// Of these, used.
        used: u64,
    },
    /// Rows in shares; each thread reads the rows beside its own, too.
    Halo {
        /// Lines of a row.
        row: u64,
    },
    /// Each thread a share of each row.
    Columns {
        /// Lines of a row.
        row: u64,
    },
    /// Tiles of rows and columns, as many as threads.
    Tiles {
        /// Lines of a row.
        row: u64,
    },
    /// Blocks go round the threads.
    Cyclic {
        /// Lines of a block.
        block: u64,
    },
    /// Several arrays in one allocation, each in shares.
    Packed {
        /// Their lines at size 1.
        parts: Vec<u64>,
    },
    /// Rows allocated one by one.
    Rows {
        /// Lines of a row.
        row: u64,
        /// They go round the threads, instead of in shares.
        is_cyclic: bool,
    },
    /// One array that `realloc` makes larger, in shares.
    Grown,
    /// Chunks that threads map for themselves.
    Arena {
        /// Lines of a chunk.
        chunk: u64,
    },
    /// Chunks of one mapping, each with an owner that nobody can tell from its place.
    Pool {
        /// Lines of a chunk.
        chunk: u64,
    },
    /// An allocation for each thread, from one call site.
    Private {
        /// Each thread allocates its own.
        by_user: bool,
    },
    /// One thread uses all of it.
    PrivateOne {
        /// Which, of so many as there are.
        thread: u64,
    },
    /// Rows in shares and shares of each row in turn.
    Transposed {
        /// Lines of a row.
        row: u64,
    },
    /// Chunks that go to another thread each time.
    Stolen {
        /// Lines of a chunk.
        chunk: u64,
    },
    /// The first thread fills it; each thread reads its share twice.
    MasterWorker,
    /// One thread writes what all read.
    OneWriter {
        /// Which, of so many as there are.
        thread: u64,
    },
    /// All threads read everywhere.
    ReadShared,
    /// All threads write everywhere.
    Shared,
}

impl Kind {
    /// Its name in results.
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

    /// Names of `Pattern`s that say what the kind is, by the names of its variants. To accept another name, add it here.
    pub fn patterns(&self) -> &'static [&'static str] {
        match self {
            Self::Block {
                is_reversed: true, ..
            } => &["Segments", "Mixed"],
            // `Tiles` of one share are dealt to the main thread and a team.
            Self::Block { .. } | Self::Padded { .. } | Self::Grown => &["Block", "Tiles"],
            Self::Halo { .. } => &["Block", "PartialBlock", "Tiles"],
            Self::Unequal { .. } => &["Segments", "Mixed"],
            // Blocks of the part's size are dealt once, if the part is the object's beginning.
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
            // Of one thread alone is what it allocated by another stack than the others.
            Self::Arena { .. } | Self::Private { .. } => &["PrivateEach", "PrivateRuns", "Private"],
            Self::Pool { .. } => &["Mixed", "Segments", "PrivateEach", "PrivateRuns"],
            Self::PrivateOne { .. } => &["Private"],
            Self::Transposed { .. } => &["InTurn", "Mixed", "Shared", "ReadShared"],
            Self::Stolen { .. } => &["Shared", "ReadShared"],
            Self::MasterWorker => &["InTurn", "Block", "Mixed"],
            Self::OneWriter { .. } => &["Shared"],
            Self::ReadShared => &["ReadShared"],
            // Samples of time see few of the stores to what has just been loaded.
            Self::Shared => &["Shared", "ReadShared"],
        }
    }

    /// Are the weights of a team's shares drawn equal?
    pub fn are_weights_equal(&self, team: u64) -> bool {
        match self {
            Self::Unequal { weights } => {
                let used = &weights[..weights.len().min(team as usize)];
                used.iter().all(|one| *one == used[0])
            }
            _ => false,
        }
    }

    /// The patterns that are found in turn, where the kind has two.
    pub fn in_turn(&self) -> [&'static str; 2] {
        match self {
            Self::MasterWorker => ["Private", "Block"],
            _ => ["Block", "BlockCyclic"],
        }
    }

    /// Do its parts belong to threads by a rule about their numbers in the team?
    pub fn is_by_team(&self) -> bool {
        self.block_lines(1, 1).is_some() || matches!(self, Self::Tiles { .. })
    }

    /// Lines of a thread's block, where a `Pattern` of this kind has to say how many.
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
