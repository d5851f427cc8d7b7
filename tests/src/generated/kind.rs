//! Kinds of objects: who uses which part, and what that may be called.

use super::program::{Object, Operation};

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

    /// Names of `Pattern`s that say what the kind is, by the names of its variants. Names that do not exist yet are
    /// those that a pattern of this kind could have. To accept another name, add it here.
    pub fn patterns(&self) -> &'static [&'static str] {
        match self {
            Self::Block {
                is_reversed: true, ..
            } => &["Mixed", "BlockReversed", "Reversed", "Runs", "Segments"],
            Self::Block { .. } | Self::Halo { .. } | Self::Padded { .. } | Self::Grown => &["Block"],
            Self::Unequal { .. } => &["Mixed", "Unequal", "Runs", "Segments", "Shares"],
            Self::Extent { .. } => &["Mixed", "Block", "UsedExtent", "Extent", "Runs", "Segments"],
            Self::Columns { .. } => &["BlockCyclic", "Columns", "Tiles"],
            Self::Tiles { .. } => &["Mixed", "Tiles"],
            Self::Cyclic { .. } => &["BlockCyclic"],
            Self::Packed { .. } => &["Mixed", "BlockCyclic", "Packed", "Arrays", "Parts", "Segments"],
            Self::Rows { .. } => &["PrivateEach", "Sequence", "BlockOfAllocations", "Instances"],
            Self::Arena { .. } | Self::Private { .. } => &["PrivateEach", "Sequence", "Instances"],
            Self::Pool { .. } => &["Mixed"],
            Self::PrivateOne { .. } => &["Private"],
            Self::Transposed { .. } => &["Mixed", "Shared", "ReadShared", "Phases", "Transposed"],
            Self::Stolen { .. } => &["Shared", "ReadShared"],
            Self::MasterWorker => &["Block", "Mixed"],
            Self::OneWriter { .. } => &["Shared", "OneWriter"],
            Self::ReadShared => &["ReadShared"],
            Self::Shared => &["Shared"],
        }
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
            Self::Extent { used, .. } => Some(used / team),
            Self::Cyclic { block } => Some(block),
            Self::Columns { row } => Some(row / team),
            _ => None,
        }
    }
}

/// One access to every `stride`-th line of a range of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Number in the team.
    pub thread: u64,
    /// First line.
    pub first: u64,
    /// Line after the last.
    pub end: u64,
    /// Lines from one access to the next.
    pub stride: u64,
    /// What it does.
    pub operation: Operation,
}

/// Where share `number` of `team` begins.
pub fn share(shares: Shares, all: u64, number: u64, team: u64) -> u64 {
    match shares {
        Shares::Even => all * number / team,
        Shares::Full => (all.div_ceil(team) * number).min(all),
    }
}

/// Who owns a chunk, as if by chance.
pub fn owner(chunk: u64, team: u64) -> u64 {
    let mut x = (chunk + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 29)) % team
}

/// Rows of a grid of tiles: the largest divisor of the team up to its root.
pub fn tile_rows(team: u64) -> u64 {
    (1..=team)
        .filter(|rows| rows * rows <= team && team.is_multiple_of(*rows))
        .max()
        .unwrap_or(1)
}

/// What is used of an object at a size.
struct Used<'a> {
    object: &'a Object,
    factor: u64,
    lines: u64,
    team: u64,
}

impl Used<'_> {
    /// Ranges that belong to a thread in a pass; of what all use, its share.
    fn own(&self, me: u64, pass: u64) -> Vec<(u64, u64)> {
        let (team, lines) = (self.team, self.lines);
        let even = |all: u64, number: u64| share(Shares::Even, all, number, team);
        let chunks = |chunk: u64, is_mine: &dyn Fn(u64) -> bool| {
            let mine = (0..lines.div_ceil(chunk)).filter(|&number| is_mine(number));
            mine.map(|number| (number * chunk, ((number + 1) * chunk).min(lines)))
                .collect()
        };
        let columns = |row: u64| {
            let begin = (0..lines / row).map(|number| number * row);
            begin
                .map(|begin| (begin + even(row, me), begin + even(row, me + 1)))
                .collect()
        };
        let rows = |row: u64| {
            let [first, end] = [me, me + 1].map(|number| even(lines / row, number));
            (first * row, end * row)
        };
        match self.object.kind {
            Kind::Block {
                shares,
                is_reversed,
            } => {
                let number = if is_reversed { team - 1 - me } else { me };
                vec![(
                    share(shares, lines, number, team),
                    share(shares, lines, number + 1, team),
                )]
            }
            Kind::Unequal { ref weights } => {
                let before = |number: u64| -> u64 {
                    let weights = weights.iter().cycle();
                    weights.take(number as usize).sum()
                };
                let at = |number: u64| lines * before(number) / before(team);
                vec![(at(me), at(me + 1))]
            }
            Kind::Extent { head, used } => {
                let [head, used] = [head, used].map(|part| part * self.factor);
                vec![(head + even(used, me), head + even(used, me + 1))]
            }
            Kind::Padded { row, used } => (even(lines / row, me)..even(lines / row, me + 1))
                .map(|number| (number * row, number * row + used))
                .collect(),
            Kind::Halo { row } => vec![rows(row)],
            Kind::Columns { row } => columns(row),
            Kind::Tiles { row } => {
                let down = tile_rows(team);
                let across = team / down;
                let of = |all, number, parts| share(Shares::Even, all, number, parts);
                let [top, bottom] =
                    [0, 1].map(|more| of(lines / row, me / across + more, down));
                let [left, right] = [0, 1].map(|more| of(row, me % across + more, across));
                (top..bottom)
                    .map(|number| (number * row + left, number * row + right))
                    .collect()
            }
            Kind::Cyclic { block } => chunks(block, &|number| number % team == me),
            Kind::Packed { ref parts } => {
                let mut begin = 0;
                let mut own = Vec::new();
                for part in parts.iter().map(|part| part * self.factor) {
                    own.push((begin + even(part, me), begin + even(part, me + 1)));
                    begin += part;
                }
                own
            }
            Kind::Rows {
                row,
                is_cyclic: true,
            } => chunks(row, &|number| number % team == me),
            Kind::Rows { row, .. } => vec![rows(row)],
            Kind::Pool { chunk } => chunks(chunk, &|number| owner(number, team) == me),
            Kind::Stolen { chunk } => {
                chunks(chunk, &|number| (owner(number, team) + pass) % team == me)
            }
            Kind::PrivateOne { thread } if thread % team == me => vec![(0, lines)],
            Kind::PrivateOne { .. } => Vec::new(),
            Kind::Transposed { row } if pass % 2 == 1 => columns(row),
            Kind::Transposed { row } => vec![rows(row)],
            Kind::Grown
            | Kind::Arena { .. }
            | Kind::Private { .. }
            | Kind::MasterWorker
            | Kind::OneWriter { .. }
            | Kind::ReadShared
            | Kind::Shared => vec![(even(lines, me), even(lines, me + 1))],
        }
    }

    /// What a thread does in a pass.
    fn uses(&self, me: u64, pass: u64) -> Vec<Sweep> {
        let (team, lines) = (self.team, self.lines);
        let sweep = |(first, end), stride, operation| Sweep {
            thread: me,
            first,
            end,
            stride,
            operation,
        };
        let everywhere = |stride: u64, operation| {
            sweep(((me + pass) % stride, lines), stride, operation)
        };
        let mut uses: Vec<Sweep> = match self.object.kind {
            Kind::OneWriter { thread } => {
                let writes = (thread % team == me).then(|| sweep((0, lines), 1, Operation::Store));
                let reads = everywhere((team / 4).max(1), Operation::Load);
                writes.into_iter().chain([reads]).collect()
            }
            Kind::ReadShared | Kind::Shared => {
                vec![everywhere((team / 2).max(1), self.object.operation)]
            }
            Kind::MasterWorker => {
                let fills = (me == 0).then(|| sweep((0, lines), 1, Operation::Store));
                let own = self.own(me, pass)[0];
                let reads = [sweep(own, 1, Operation::Load); 2];
                fills.into_iter().chain(reads).collect()
            }
            _ => {
                let own = self.own(me, pass).into_iter();
                own.map(|own| sweep(own, 1, self.object.operation)).collect()
            }
        };
        if let Kind::Halo { row } = self.object.kind {
            let own = self.own(me, pass)[0];
            let above = (own.0 > 0).then(|| (own.0 - row, own.0));
            let below = (own.1 < lines).then_some((own.1, own.1 + row));
            let beside = above.into_iter().chain(below);
            uses.extend(beside.map(|range| sweep(range, 1, Operation::Load)));
        }
        if self.object.has_noise && pass % team == me {
            let (first, end) = self.object.extent_of(self.factor, lines);
            uses.push(sweep((first + pass * 7 % 32, end), 32, Operation::Load));
        }
        uses.retain(|sweep| sweep.first < sweep.end);
        uses
    }
}

impl Object {
    fn used(&self, size: u64, team: u64) -> Used<'_> {
        Used {
            object: self,
            factor: self.factor(size),
            lines: self.lines_at(size, team),
            team,
        }
    }

    /// What the team does to it in a pass.
    pub fn uses(&self, size: u64, team: u64, pass: u64) -> Vec<Sweep> {
        let used = self.used(size, team);
        (0..team).flat_map(|me| used.uses(me, pass)).collect()
    }

    /// What each thread writes first, where threads initialise it.
    pub fn initialised_by_threads(&self, size: u64, team: u64) -> Vec<Sweep> {
        let used = self.used(size, team);
        let of = |me: u64| {
            let own = used.own(me, 0).into_iter();
            own.map(move |(first, end)| Sweep {
                thread: me,
                first,
                end,
                stride: 1,
                operation: Operation::Initialise,
            })
        };
        (0..team).flat_map(of).collect()
    }

    /// First line that is used at all, and the line after the last one.
    pub fn extent(&self, size: u64, team: u64) -> (u64, u64) {
        self.extent_of(self.factor(size), self.lines_at(size, team))
    }

    fn extent_of(&self, factor: u64, lines: u64) -> (u64, u64) {
        match self.kind {
            Kind::Extent { head, used } => (head * factor, (head + used) * factor),
            _ => (0, lines),
        }
    }
}
