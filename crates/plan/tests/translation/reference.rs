//! A plain reader of the compact form, written from its specification alone: it says which rule takes an object, and on
//! which node each of its pages is. Objects begin at a page boundary here.

use nearpage_plan::{Allocation, Compact, Evaluated, ModuleName, Origin};
use nearpage_wire::compact_plan::{MAGIC, NONE, placement, subject};

/// A decoded compact plan.
#[derive(Debug)]
pub struct Reference {
    compact: Compact,
    bytes: Vec<u8>,
    tables: Vec<(usize, usize)>,
    pub page_bytes: u64,
}

/// Build-id and name of a module.
pub type Module<'a> = (&'a str, &'a str);

/// An object as the library sees it.
#[derive(Clone)]
pub enum ObservedObject<'a> {
    Static {
        module: Module<'a>,
        offset: u64,
    },
    Heap {
        frames: Vec<(Module<'a>, u64)>,
        order: u32,
        thread: u32,
    },
    Mapping,
}

/// A phase, with the offsets of its rules in the file, and its pins.
#[derive(Debug, PartialEq)]
pub struct PhaseAt {
    pub module: u32,
    pub offset: u64,
    pub rules: Vec<usize>,
    pub pins: Vec<PinAt>,
}

/// A pin: module, address in its file, index, CPU.
pub type PinAt = (u32, u64, u32, u32);

/// The rule that took an object, whether by its second key, and where its pages go (none: first touch, or any node of
/// an interleave).
#[derive(Debug, PartialEq)]
pub struct Verdict {
    pub number: u32,
    pub is_weak: bool,
    pub pages: Vec<Option<u32>>,
    pub interleaved: Vec<u32>,
}

/// Where the compared object is.
const ADDRESS: u64 = 0x7000_0000_0000;

const SECTIONS: usize = 0;
const MODULES: usize = 1;
const RULES: usize = 2;
const FRAMES: usize = 3;
const RUNS: usize = 4;
const NODES: usize = 5;
const WEIGHTS: usize = 6;
const PINS: usize = 7;
const NAMES: usize = 8;
const PHASES: usize = 9;
/// Bytes of an entry of each table.
const ENTRY: [usize; 10] = [32, 48, 120, 24, 16, 2, 8, 24, 1, 32];

impl Reference {
    pub fn decode(compact: &Compact) -> Self {
        let bytes = &compact.bytes;
        assert_eq!(bytes[..8], MAGIC);
        let mut reference = Self {
            compact: compact.clone(),
            bytes: bytes.clone(),
            tables: Vec::new(),
            page_bytes: 0,
        };
        reference.page_bytes = u64::from(reference.u32(8));
        for (table, entry_bytes) in ENTRY.into_iter().enumerate() {
            let at = 40 + 8 * table;
            let (offset, count) = (reference.u32(at) as usize, reference.u32(at + 4) as usize);
            assert_eq!(offset % 8, 0);
            assert!(offset >= 120 && offset + count * entry_bytes <= bytes.len());
            reference.tables.push((offset, count));
        }
        reference
    }

    pub fn flags(&self) -> Vec<u32> {
        let rules = 0..self.tables[RULES].1 as u32;
        rules
            .map(|rule| self.u32(self.entry(RULES, rule) + 8))
            .collect()
    }

    /// Kind of subject of each rule.
    pub fn subjects(&self) -> Vec<u32> {
        let rules = 0..self.tables[RULES].1 as u32;
        rules
            .map(|rule| self.u32(self.entry(RULES, rule)))
            .collect()
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("4"))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("8"))
    }

    /// Offset of entry `index` of a table.
    fn entry(&self, table: usize, index: u32) -> usize {
        let (offset, count) = self.tables[table];
        assert!(
            (index as usize) < count,
            "entry {index} of {count} in table {table}"
        );
        offset + index as usize * ENTRY[table]
    }

    /// Offsets of the entries of a part `[first, count]`, which is stored at `at`.
    fn part(&self, table: usize, at: usize) -> Vec<usize> {
        let (first, count) = (self.u32(at), self.u32(at + 4));
        (first..first + count)
            .map(|index| self.entry(table, index))
            .collect()
    }

    fn is_module(&self, index: u32, (build_id, name): Module<'_>) -> bool {
        let at = self.entry(MODULES, index);
        let length = self.u32(at + 32) as usize;
        if length > 0 {
            let hex: String = self.bytes[at..at + length]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            return hex == build_id;
        }
        let name_at = self.part(NAMES, at + 36);
        name_at.iter().map(|&at| self.bytes[at]).eq(name.bytes())
    }

    fn section(&self, executable: Module<'_>, rank: Option<u32>) -> Option<usize> {
        let count = self.tables[SECTIONS].1 as u32;
        let mut best: Option<(u32, usize)> = None;
        for at in (0..count).map(|index| self.entry(SECTIONS, index)) {
            let (program, number) = (self.u32(at), self.u32(at + 4));
            let fits = (program == NONE || self.is_module(program, executable))
                && (number == NONE || Some(number) == rank);
            let score = 2 * u32::from(program != NONE) + u32::from(number != NONE);
            if fits && best.is_none_or(|(known, _)| score > known) {
                best = Some((score, at));
            }
        }
        best.map(|(_, at)| at)
    }

    /// The pins of a process.
    pub fn pins(&self, executable: Module<'_>, rank: Option<u32>) -> Vec<PinAt> {
        let section = self.section(executable, rank);
        section.map_or(Vec::new(), |section| self.pins_at(section + 16))
    }

    fn pins_at(&self, part_at: usize) -> Vec<PinAt> {
        let pin = |at: usize| {
            (
                self.u32(at),
                self.u64(at + 8),
                self.u32(at + 4),
                self.u32(at + 16),
            )
        };
        self.part(PINS, part_at).into_iter().map(pin).collect()
    }

    /// The phases of a process.
    pub fn phases(&self, executable: Module<'_>, rank: Option<u32>) -> Vec<PhaseAt> {
        let Some(section) = self.section(executable, rank) else {
            return Vec::new();
        };
        let phase = |at: usize| PhaseAt {
            module: self.u32(at),
            offset: self.u64(at + 8),
            rules: self.part(RULES, at + 16),
            pins: self.pins_at(at + 24),
        };
        let phases = self.part(PHASES, section + 24);
        phases.into_iter().map(phase).collect()
    }

    /// True if the plan's module `index` is this module.
    pub fn names_module(&self, index: u32, module: Module<'_>) -> bool {
        self.is_module(index, module)
    }

    /// The first of a phase's rules that takes the object.
    pub fn evaluate_phase(
        &self,
        phase: &PhaseAt,
        seen: &ObservedObject<'_>,
        size: u64,
    ) -> Option<Verdict> {
        let mut rules = phase.rules.iter();
        let rule = rules.find(|&&rule| self.takes(rule, seen, size))?;
        Some(self.verdict(*rule, size))
    }

    /// The first rule of the process that takes the object; the crate's own evaluation agrees.
    pub fn evaluate(
        &self,
        executable: Module<'_>,
        rank: Option<u32>,
        seen: &ObservedObject<'_>,
        size: u64,
    ) -> Option<Verdict> {
        let verdict = self.section(executable, rank).and_then(|section| {
            let mut rules = self.part(RULES, section + 8).into_iter();
            let rule = rules.find(|&rule| self.takes(rule, seen, size))?;
            Some(self.verdict(rule, size))
        });
        self.agrees(executable, rank, seen, size, verdict.as_ref());
        verdict
    }

    fn agrees(
        &self,
        executable: Module<'_>,
        rank: Option<u32>,
        seen: &ObservedObject<'_>,
        size: u64,
        verdict: Option<&Verdict>,
    ) {
        let name = |(build_id, file_name)| ModuleName {
            build_id,
            file_name,
        };
        let mut process = self
            .compact
            .process(name(executable), rank, self.page_bytes);
        let frames: Vec<_> = match seen {
            ObservedObject::Heap { frames, .. } => frames
                .iter()
                .map(|(module, offset)| Some((name(*module), *offset)))
                .collect(),
            _ => Vec::new(),
        };
        let allocation = |thread| Allocation {
            frames: &frames,
            thread,
        };
        let (origin, order) = match *seen {
            ObservedObject::Static { module, offset } => (
                Origin::Static {
                    module: name(module),
                    offset,
                },
                0,
            ),
            ObservedObject::Heap { thread, order, .. } => (Origin::Heap(allocation(thread)), order),
            ObservedObject::Mapping => (Origin::Mapping(allocation(0)), 0),
        };
        // Objects of the same call site that are allocated before.
        for _ in 0..order {
            process.place(&origin, ADDRESS, size);
        }
        let found = process.place(&origin, ADDRESS, size);
        let shown = |found: &Evaluated| (found.rule as u32, found.is_weak);
        assert_eq!(
            found.as_ref().map(shown),
            verdict.map(|verdict| (verdict.number, verdict.is_weak))
        );
        let (Some(found), Some(verdict)) = (found, verdict) else {
            return;
        };
        if size < 2 * self.page_bytes {
            assert_eq!(found.pages, []);
            return;
        }
        for (number, expected) in (0..).zip(&verdict.pages) {
            let address = ADDRESS + number * self.page_bytes;
            let placed = found
                .pages
                .iter()
                .find(|pages| (pages.start..pages.end).contains(&address));
            let node = placed.and_then(|pages| pages.node(address, self.page_bytes));
            let node = node.map(|node| u32::from(node.0));
            match (node, expected) {
                // An end of less than half a page belongs to the neighbour.
                (None, Some(_)) => assert!(size - number * self.page_bytes <= self.page_bytes / 2),
                (Some(node), None) => assert!(verdict.interleaved.contains(&node)),
                (node, expected) => assert_eq!(node, *expected, "page {number}"),
            }
        }
    }

    fn takes(&self, rule: usize, seen: &ObservedObject<'_>, size: u64) -> bool {
        let kind = self.u32(rule);
        let in_bounds = (self.u64(rule + 48)..=self.u64(rule + 56)).contains(&size);
        match seen {
            ObservedObject::Static { module, offset } => {
                kind == subject::STATIC
                    && self.u64(rule + 32) == *offset
                    && self.is_module(self.u32(rule + 16), *module)
            }
            ObservedObject::Heap { .. } if kind == subject::HEAP => in_bounds,
            ObservedObject::Mapping if kind == subject::MAPPING => in_bounds,
            ObservedObject::Heap {
                frames,
                order,
                thread,
            } if kind == subject::CALL_SITE && in_bounds => {
                let wanted = self.part(FRAMES, rule + 64);
                let by = self.u32(rule + 20);
                let frame = |(at, (module, address)): (&usize, &(Module<'_>, u64))| {
                    self.is_module(self.u32(*at), *module)
                        && (self.u64(at + 8)..=self.u64(at + 16)).contains(address)
                };
                (by == NONE || by == *thread)
                    && (self.u32(rule + 24)..=self.u32(rule + 28)).contains(order)
                    && order % self.u32(rule + 108) == self.u32(rule + 104)
                    && wanted.len() <= frames.len()
                    && wanted.iter().zip(frames).all(frame)
            }
            _ => false,
        }
    }

    /// The nodes that each page of a row goes round, for an object of `whole` pages.
    fn weighted_row(&self, weighted: &[(u32, u32)], whole: u64) -> Vec<Vec<u32>> {
        let sum: u64 = weighted.iter().map(|one| u64::from(one.1)).sum();
        let most = weighted.iter().map(|one| one.1).max().unwrap_or(0);
        let longer = (256 / sum.max(1)).min(whole / sum.max(1) / 16).max(1);
        let mut row = Vec::new();
        for level in 1..=most {
            let heavy = weighted.iter().filter(|one| one.1 >= level);
            let mut nodes: Vec<u32> = heavy.map(|one| one.0).collect();
            nodes.sort_unstable();
            for _ in 0..nodes.len() as u64 * longer {
                row.push(nodes.clone());
            }
        }
        row
    }

    fn verdict(&self, rule: usize, size: u64) -> Verdict {
        let pages = size.div_ceil(self.page_bytes);
        let block_bytes = self.u64(rule + 72);
        let nodes: Vec<u32> = self
            .part(NODES, rule + 80)
            .into_iter()
            .map(|at| u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]).into())
            .collect();
        let runs: Vec<(u64, u32)> = self
            .part(RUNS, rule + 88)
            .into_iter()
            .map(|at| (self.u64(at), self.u32(at + 12)))
            .collect();
        assert!(
            runs.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "{runs:?}"
        );
        let weighted = self.part(WEIGHTS, rule + 96).into_iter();
        let weighted: Vec<(u32, u32)> = weighted
            .map(|at| (self.u32(at), self.u32(at + 4)))
            .collect();
        // Pages of the object: an end of half a page or less belongs to the neighbour.
        let whole = (size + self.page_bytes / 2 - 1) / self.page_bytes;
        let row = self.weighted_row(&weighted, whole);
        let node = |page: u64| {
            // A page goes to the node that has its middle.
            let middle = page * self.page_bytes + self.page_bytes / 2;
            let count = nodes.len() as u64;
            match self.u32(rule + 4) {
                placement::BLOCK => Some(
                    nodes[(u128::from(middle) * u128::from(count) / u128::from(size))
                        .min(u128::from(count - 1)) as usize],
                ),
                placement::BLOCK_CYCLIC => Some(nodes[(middle / block_bytes % count) as usize]),
                placement::TILES => {
                    let columns = u64::from(self.u32(rule + 112));
                    let (row, column) = (
                        middle / block_bytes,
                        middle % block_bytes * columns / block_bytes,
                    );
                    let (rows, shares) = (size.div_ceil(block_bytes), count / columns);
                    // The last share that begins with this row or an earlier one.
                    let share = (0..shares).rev().find(|share| rows * share / shares <= row);
                    Some(nodes[(share.unwrap_or(0) * columns + column) as usize])
                }
                placement::NODE => Some(nodes[0]),
                placement::RUNS => runs
                    .iter()
                    .rev()
                    .find(|run| run.0 <= page)
                    .or(runs.first())
                    .map(|run| run.1),
                placement::WEIGHTED_INTERLEAVE => {
                    let nodes = &row[(page % row.len() as u64) as usize];
                    Some(nodes[((ADDRESS / self.page_bytes + page) % nodes.len() as u64) as usize])
                }
                placement::INTERLEAVE | placement::LEAVE => None,
                other => panic!("placement {other}"),
            }
        };
        Verdict {
            number: self.u32(rule + 12),
            is_weak: self.u32(rule + 8) & 1 == 1,
            pages: (0..pages).map(node).collect(),
            interleaved: if self.u32(rule + 4) == placement::INTERLEAVE {
                nodes.clone()
            } else {
                Vec::new()
            },
        }
    }
}
