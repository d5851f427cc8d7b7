//! Programs drawn from seeds.

use super::kind::{Kind, Shares};
use super::program::{Initialiser, Object, Operation, Program, Storage, Style, UNIT_LINES};
use super::truth::Truth;
use crate::chaos::random::Random;

/// Cache lines per MiB.
const MIB: u64 = (1 << 20) / 64;
/// Fewest cache lines of all objects at size 1: several times what caches hold, so that each pass misses.
const LINES_MIN: u64 = 160 * MIB;
/// Most cache lines of all objects: small machines have room for twice the size.
const LINES_MAX: u64 = 400 * MIB;
/// Approximate number of lines that all passes fetch together: less than two seconds on two CPUs.
const FETCHED: u64 = 400_000_000;
const NAMES: [&str; 12] = [
    "grid", "matrix", "vector", "field", "flux", "density", "pressure", "table", "cells", "nodes",
    "edges", "spare",
];
/// Team sizes; powers of two are more frequent.
const TEAMS: [u64; 16] = [2, 2, 3, 4, 4, 4, 5, 6, 7, 8, 8, 8, 10, 12, 16, 16];

impl Program {
    /// Draws the program of a seed.
    pub fn draw(seed: u64) -> Self {
        let random = &mut Random::new(seed, 27);
        let style = match random.of(&Style::DRAWN) {
            // Chosen by the seed and not by a random number, so that all other programs stay the same.
            Style::Workers if seed.is_multiple_of(2) => Style::WorkersAnew,
            style => style,
        };
        let team = random.of(&TEAMS);
        let (machine, layout, nodes) = machine(random, team);
        let mixed = random.below(3);
        let has_noise = random.below(3) == 0;
        let count = 3 + random.below(5) as usize;
        let mut objects: Vec<Object> = Vec::new();
        let lines = |objects: &[Object]| objects.iter().map(|one| one.lines).sum::<u64>();
        while objects.len() < NAMES.len() && (objects.len() < count || lines(&objects) < LINES_MIN)
        {
            let mut object = object(random, NAMES[objects.len()]);
            if lines(&objects) + object.lines > LINES_MAX {
                break;
            }
            object.initialiser = match (&object.kind, mixed) {
                (Kind::Grown, _) => Initialiser::Main,
                (Kind::Arena { .. } | Kind::Private { by_user: true }, _) => Initialiser::Threads,
                (_, 0) => Initialiser::Main,
                (_, 1) => Initialiser::Threads,
                _ => random.of(&[Initialiser::Main, Initialiser::Threads]),
            };
            object.has_noise = has_noise && random.below(2) == 0;
            let is_pair = matches!(object.kind, Kind::Block { .. })
                && object.storage != Storage::Static
                && random.below(2) == 0;
            objects.push(object);
            let siblings = if is_pair { 1 + random.below(2) } else { 0 };
            for _ in 0..siblings {
                let before = &objects[objects.len() - 1];
                let is_too_much = lines(&objects) + before.lines > LINES_MAX;
                if let Some(name) = NAMES.get(objects.len()).filter(|_| !is_too_much) {
                    let next = sibling(before, name);
                    objects.push(next);
                }
            }
        }
        let size = 2;
        // At least as many threads as nodes, so that every node has something to place.
        let others: Vec<u64> = TEAMS
            .into_iter()
            .filter(|&other| other != team && other >= nodes)
            .collect();
        let other_team = random.of(&others);
        // The thread that alone uses or writes an object must exist in both teams.
        for object in &mut objects {
            if let Kind::PrivateOne { thread } | Kind::OneWriter { thread } = &mut object.kind {
                *thread %= team.min(other_team);
            }
        }
        let mut program = Self {
            seed,
            style,
            team,
            passes: 2,
            objects,
            machine,
            layout,
            other: (size, other_team),
        };
        let twice = Truth::of(&program, 1, team, 2).fetched();
        program.passes = program.whole_rounds((FETCHED * 2 / twice.max(1)).clamp(4, 200), team);
        program
    }
}

impl Program {
    /// About `passes`, rounded to whole rounds of stolen chunks: after a round, each thread has had every other
    /// thread's chunks equally often. An even round also gives objects with two alternating uses both uses equally
    /// often.
    pub fn whole_rounds(&self, passes: u64, team: u64) -> u64 {
        let round = if team.is_multiple_of(2) {
            team
        } else {
            2 * team
        };
        (passes / round).max(1) * round
    }
}

/// Another object of the same call site, used in the opposite order.
fn sibling(first: &Object, name: &str) -> Object {
    let kind = match first.kind {
        Kind::Block {
            shares,
            is_reversed,
        } => Kind::Block {
            shares,
            is_reversed: !is_reversed,
        },
        ref other => other.clone(),
    };
    Object {
        name: name.to_owned(),
        kind,
        ..first.clone()
    }
}

/// Name of a machine, thread layout, and number of nodes, at most the number of threads.
fn machine(random: &mut Random, team: u64) -> (&'static str, &'static str, u64) {
    let mut machines = vec![("xeon-2", "scatter", 2)];
    if team >= 4 {
        machines.extend([("opteron-4", "compact", 4), ("opteron-4", "compact", 4)]);
    }
    if team >= 8 {
        machines.extend([
            ("flash-8", "compact", 8),
            ("amd48", "scatter", 8),
            ("carrefour-a", "scatter", 4),
        ]);
    }
    random.of(&machines)
}

/// An object, without its initialiser.
fn object(random: &mut Random, name: &str) -> Object {
    // Sizes and rows are chosen so that shares don't end at page boundaries.
    let lines = (8 + random.below(72)) * MIB + random.below(MIB);
    let row = random.of(&[512, 1024, 1000, 2048, 3000, 4096]);
    let (kind, lines) = kind(random, lines, row);
    let operation = match kind {
        Kind::ReadShared => Operation::Load,
        Kind::Shared => Operation::Update,
        Kind::Stolen { .. } | Kind::Transposed { .. } => {
            random.of(&[Operation::Load, Operation::Update])
        }
        _ => random.of(&[
            Operation::Load,
            Operation::Load,
            Operation::Store,
            Operation::Update,
        ]),
    };
    let storage = match kind {
        Kind::Grown | Kind::Rows { .. } | Kind::Private { .. } => Storage::Heap,
        Kind::Arena { .. } | Kind::Pool { .. } => Storage::Mapping,
        Kind::Extent { .. } => random.of(&[Storage::Static, Storage::Static, Storage::Zeroed]),
        _ => random.of(&[
            Storage::Heap,
            Storage::Heap,
            Storage::Zeroed,
            Storage::Mapping,
            Storage::Static,
        ]),
    };
    Object {
        name: name.to_owned(),
        site: name.to_owned(),
        kind,
        lines,
        storage,
        operation,
        initialiser: Initialiser::Main,
        has_noise: false,
    }
}

/// A kind, and a number of lines near `lines` that suits the kind.
fn kind(random: &mut Random, lines: u64, row: u64) -> (Kind, u64) {
    let rows = lines / row * row;
    let chunk = random.of(&[8, 16, 24, 32, 64]) * UNIT_LINES;
    match random.below(23) {
        0..3 => {
            let kind = Kind::Block {
                shares: random.of(&[Shares::Even, Shares::Full]),
                is_reversed: random.below(4) == 0,
            };
            (kind, lines)
        }
        3 => {
            let count = 2 + random.below(4);
            let weights = (0..count).map(|_| 1 + random.below(4)).collect();
            (Kind::Unequal { weights }, lines)
        }
        4 => {
            let head = random.of(&[0, 0, lines / 8, lines / 4]);
            let used = (lines - head) * (20 + random.below(70)) / 100;
            (Kind::Extent { head, used }, lines)
        }
        5 => {
            let used = row * (40 + random.below(50)) / 100;
            (Kind::Padded { row, used }, rows)
        }
        6 => (Kind::Halo { row }, rows),
        7 => {
            let row = 4096 * (1 + random.below(3));
            (Kind::Columns { row }, lines / row * row)
        }
        8 | 9 => {
            let row = 2048 * (1 + random.below(3));
            (Kind::Tiles { row }, lines / row * row)
        }
        10 => {
            let block = random.of(&[1, 2, 4, 5, 16, 24, 64]) * UNIT_LINES;
            (Kind::Cyclic { block }, lines)
        }
        11 => {
            let count = 2 + random.below(4);
            let parts: Vec<u64> = match random.below(2) {
                0 => (0..count).map(|_| lines / count).collect(),
                _ => (0..count)
                    .map(|_| lines / count / 4 * (1 + random.below(7)))
                    .collect(),
            };
            let lines = parts.iter().sum();
            (Kind::Packed { parts }, lines)
        }
        12 => {
            let is_cyclic = random.below(3) == 0;
            (Kind::Rows { row, is_cyclic }, rows)
        }
        13 => (Kind::Grown, lines / 8 * 8),
        14 => (Kind::Arena { chunk: 4 * chunk }, lines),
        15 => (Kind::Pool { chunk: 8 * chunk }, lines),
        16 => {
            let by_user = random.below(2) == 0;
            (Kind::Private { by_user }, lines)
        }
        17 => {
            let thread = random.below(16);
            (Kind::PrivateOne { thread }, lines / 4)
        }
        18 => (Kind::Transposed { row: 4096 }, lines / 4096 * 4096),
        19 => (Kind::Stolen { chunk }, lines),
        20 => (Kind::MasterWorker, lines / 2),
        21 => {
            let thread = random.below(16);
            (Kind::OneWriter { thread }, lines / 2)
        }
        _ if random.below(2) == 0 => (Kind::ReadShared, lines / 2),
        _ => (Kind::Shared, lines / 2),
    }
}
