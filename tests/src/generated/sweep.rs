//! Computes which lines of an object each thread uses.

use super::kind::{Kind, Shares};
use super::program::{Object, Operation};

/// One access to every `stride`-th line of a range of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Number of the thread in the team.
    pub thread: u64,
    /// First line.
    pub first: u64,
    /// Line after the last.
    pub end: u64,
    /// Lines from one access to the next.
    pub stride: u64,
    /// Kind of the accesses.
    pub operation: Operation,
}

/// First line of share `number` of `team`.
pub fn share(shares: Shares, all: u64, number: u64, team: u64) -> u64 {
    match shares {
        Shares::Even => all * number / team,
        Shares::Full => (all.div_ceil(team) * number).min(all),
    }
}

/// The pseudo-random owner of a chunk.
pub fn owner(chunk: u64, team: u64) -> u64 {
    let mut x = (chunk + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 29)) % team
}

/// Rows of a grid of tiles: the largest divisor of the team's size up to its square root.
pub fn tile_rows(team: u64) -> u64 {
    (1..=team)
        .filter(|rows| rows * rows <= team && team.is_multiple_of(*rows))
        .max()
        .unwrap_or(1)
}

/// An object at a size, used by a team.
struct UsedObject<'a> {
    object: &'a Object,
    factor: u64,
    lines: u64,
    team: u64,
}

impl UsedObject<'_> {
    /// Ranges of a thread in a pass; for objects that all threads use, an equal share.
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
            Kind::Tiles { row } => self.tile(row, me),
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

    /// A thread's tile of rows and columns.
    fn tile(&self, row: u64, me: u64) -> Vec<(u64, u64)> {
        let down = tile_rows(self.team);
        let across = self.team / down;
        let of = |all, number, parts| share(Shares::Even, all, number, parts);
        let [top, bottom] = [0, 1].map(|more| of(self.lines / row, me / across + more, down));
        let [left, right] = [0, 1].map(|more| of(row, me % across + more, across));
        (top..bottom)
            .map(|number| (number * row + left, number * row + right))
            .collect()
    }

    /// Accesses of a thread in a pass.
    fn uses(&self, me: u64, pass: u64) -> Vec<Sweep> {
        let (team, lines) = (self.team, self.lines);
        let sweep = |(first, end), stride, operation| Sweep {
            thread: me,
            first,
            end,
            stride,
            operation,
        };
        let everywhere =
            |stride: u64, operation| sweep(((me + pass) % stride, lines), stride, operation);
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
                own.map(|own| sweep(own, 1, self.object.operation))
                    .collect()
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
    fn used(&self, size: u64, team: u64) -> UsedObject<'_> {
        UsedObject {
            object: self,
            factor: self.factor(size),
            lines: self.lines_at(size, team),
            team,
        }
    }

    /// Accesses of the team in a pass.
    pub fn uses(&self, size: u64, team: u64, pass: u64) -> Vec<Sweep> {
        let used = self.used(size, team);
        (0..team).flat_map(|me| used.uses(me, pass)).collect()
    }

    /// First writes by the threads, for objects that threads initialise.
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

    /// First used line, and the line after the last used one.
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
