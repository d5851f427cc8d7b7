//! Effect of a translated plan on objects that are described, not in memory: which rule takes an object, and where its
//! pages go. Rules are read as the preload library reads them, and pages are computed by the same code
//! ([`nearpage_wire::pieces`]).

use std::collections::HashMap;

use nearpage_machine::NodeId;
use nearpage_wire::compact_plan::{NONE, RULE_LATER, RULE_WEAK, Rule, share_of_object, subject};
use nearpage_wire::pieces::{Extent, Pattern, PatternTables, Pieces, Target, part};

use crate::Compact;

/// Most pieces of one object: twice the quarter of Linux's usual 65,530 mappings that the preload library keeps to. A
/// recording may name objects of any size.
const PIECES_MAX: u64 = 1 << 15;

/// A program or library in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleName<'a> {
    /// GNU build-id, lower-case hexadecimal; empty where there is none.
    pub build_id: &'a str,
    /// File name without folders.
    pub file_name: &'a str,
}

/// How an object came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin<'a> {
    /// It is part of a module.
    Static {
        /// The module.
        module: ModuleName<'a>,
        /// Virtual address in the module's file.
        offset: u64,
    },
    /// It was allocated on the heap.
    Heap(Allocation<'a>),
    /// It is a mapping of the program's own.
    Mapping(Allocation<'a>),
    /// The heap that `brk` extends, as a whole, for pages that no object in it has placed.
    BrkHeap,
}

/// Call stack and thread of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation<'a> {
    /// Return addresses as virtual addresses in their modules' files, innermost first, without frames of runtime
    /// modules ([`nearpage_wire::is_runtime_module`]); `None` for a frame in no module.
    pub frames: &'a [Option<(ModuleName<'a>, u64)>],
    /// Order of creation of the allocating thread in its process.
    pub thread: u32,
}

/// Consecutive pages that go to the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedPages {
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    target: Target,
}

impl PlacedPages {
    /// The node of the page at an address. Interleaved pages go by their number in the address space, as Linux does
    /// with anonymous memory.
    pub fn node(&self, address: u64, page_bytes: u64) -> Option<NodeId> {
        let number = match self.target {
            Target::Node(node) => node,
            Target::Interleave(nodes) => nodes.in_turn((address / page_bytes.max(1)) as usize)?,
        };
        u16::try_from(number).ok().map(NodeId)
    }
}

/// Placement of an object by a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluated {
    /// Number of the rule: a position in [`Compact::rule_names`].
    pub rule: usize,
    /// True if the object was recognised by its second, weaker key.
    pub is_weak: bool,
    /// Where its pages go, ascending; empty for objects that are left to first touch or smaller than two pages.
    pub pages: Vec<PlacedPages>,
}

/// The rules of a plan for one process. They count the objects they see.
#[derive(Debug)]
pub struct ProcessRules<'a> {
    compact: &'a Compact,
    rules: &'a [Rule],
    /// By rule: the first rule that numbers the same objects.
    groups: Vec<usize>,
    /// Number of objects so far, by group of rules that number the same objects, and by thread.
    orders: HashMap<(usize, u32), u32>,
    /// The same numbers at the moment when the process creates its second thread.
    orders_then: HashMap<(usize, u32), u32>,
    page_bytes: u64,
}

impl Compact {
    /// The rules for a process, from the section that says most about it.
    pub fn process(
        &self,
        executable: ModuleName<'_>,
        rank: Option<u32>,
        page_bytes: u64,
    ) -> ProcessRules<'_> {
        let tables = &self.tables;
        let rules = self.rules(executable, rank);
        let frames = |rule: &Rule| part(&tables.frames, rule.frames);
        let alike = |rule: &Rule, other: &Rule| {
            other.subject == subject::CALL_SITE
                && other.is_numbered()
                && other.size_bounds_bytes == rule.size_bounds_bytes
                && frames(other) == frames(rule)
        };
        let group = |(index, rule): (usize, &Rule)| {
            rules[..index]
                .iter()
                .position(|other| alike(rule, other))
                .unwrap_or(index)
        };
        ProcessRules {
            compact: self,
            rules,
            groups: rules.iter().enumerate().map(group).collect(),
            orders: HashMap::new(),
            orders_then: HashMap::new(),
            page_bytes,
        }
    }
}

impl Compact {
    fn rules(&self, executable: ModuleName<'_>, rank: Option<u32>) -> &[Rule] {
        let tables = &self.tables;
        let mut best: Option<(u32, &[Rule])> = None;
        for section in &tables.sections {
            let named = section.executable != NONE;
            let fits = (!named || tables.is_module(section.executable, executable))
                && (section.rank == NONE || Some(section.rank) == rank);
            let score = 2 * u32::from(named) + u32::from(section.rank != NONE);
            if fits && best.is_none_or(|(known, _)| score > known) {
                best = Some((
                    score,
                    part(&tables.rules, section.rules).unwrap_or_default(),
                ));
            }
        }
        best.map_or(&[], |(_, rules)| rules)
    }

    /// The nodes over which a process's memory policy interleaves unmatched memory, ascending; none if the plan has no
    /// rule for unmatched memory, or leaves it to first touch.
    ///
    /// Linux interleaves anonymous memory by page number in the address space, whichever thread touches a page first:
    /// page `n` goes to `nodes[n % nodes.len()]` (`get_vma_policy` and `interleave_nid` in mm/mempolicy.c).
    pub fn unmatched_nodes(
        &self,
        executable: ModuleName<'_>,
        rank: Option<u32>,
    ) -> Option<Vec<NodeId>> {
        let rules = self.rules(executable, rank);
        let rule = rules
            .iter()
            .find(|rule| rule.subject == subject::UNMATCHED)?;
        let mut nodes: Vec<NodeId> = part(&self.tables.nodes, rule.nodes)?
            .iter()
            .map(|&node| NodeId(node))
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        (!nodes.is_empty()).then_some(nodes)
    }
}

impl ProcessRules<'_> {
    /// Counts the objects that are made until the process creates its second thread, in order, without placing them.
    /// Objects that are dealt to threads in shares are dealt anew at that moment, if their number differs from the
    /// plan's. [`Self::place`] begins with the first object again.
    pub fn count<'o>(&mut self, objects: impl Iterator<Item = (Origin<'o>, u64)>) {
        if self.rules.iter().all(|rule| rule.objects == 0) {
            return;
        }
        for (origin, size_bytes) in objects {
            match origin {
                Origin::Heap(allocation) => self.allocated(subject::HEAP, &allocation, size_bytes),
                Origin::Mapping(allocation) => {
                    self.allocated(subject::MAPPING, &allocation, size_bytes)
                }
                Origin::Static { .. } | Origin::BrkHeap => None,
            };
        }
        self.orders_then = std::mem::take(&mut self.orders);
    }

    /// The rule that takes an object of the process, and where its pages go; none if no rule takes the object. Objects
    /// come in the order in which they were made.
    pub fn place(
        &mut self,
        origin: &Origin<'_>,
        address: u64,
        size_bytes: u64,
    ) -> Option<Evaluated> {
        let winner = match origin {
            Origin::Static { module, offset } => self.rules.iter().position(|rule| {
                rule.subject == subject::STATIC
                    && rule.offset == *offset
                    && self.compact.tables.is_module(rule.module, *module)
            }),
            Origin::Heap(allocation) => self.allocated(subject::HEAP, allocation, size_bytes),
            Origin::Mapping(allocation) => self.allocated(subject::MAPPING, allocation, size_bytes),
            Origin::BrkHeap => self
                .rules
                .iter()
                .position(|rule| rule.subject == subject::BRK_HEAP),
        }?;
        let rule = &self.rules[winner];
        let tables = PatternTables {
            nodes: &self.compact.tables.nodes,
            runs: &self.compact.tables.runs,
            weights: &self.compact.tables.weights,
            page_bytes: self.compact.tables.page_bytes,
        };
        let pattern = Pattern::of(rule, &tables)?;
        let page_bytes = self.page_bytes as usize;
        let extent = Extent {
            address: address as usize,
            size_bytes: match origin {
                Origin::Static { .. } | Origin::BrkHeap => rule.size_bytes as usize,
                _ => size_bytes as usize,
            },
            page_bytes,
            unit_bytes: page_bytes,
        };
        let pieces = Pieces::new(extent, pattern);
        let pieces = match origin {
            // The heap ends where it ends in this run.
            Origin::BrkHeap => pieces.within(0, address.saturating_add(size_bytes) as usize),
            _ => pieces,
        };
        let (pieces, _) = pieces.at_most(PIECES_MAX);
        let pages = pieces.map(|piece| PlacedPages {
            start: piece.start as u64,
            end: piece.end as u64,
            target: piece.target,
        });
        Some(Evaluated {
            rule: rule.number as usize,
            is_weak: rule.flags & RULE_WEAK != 0,
            pages: pages.collect(),
        })
    }

    /// The first rule that takes a new object. Every group of rules that numbers the object counts it.
    fn allocated(
        &mut self,
        anything: u32,
        allocation: &Allocation<'_>,
        size_bytes: u64,
    ) -> Option<usize> {
        let mut winner = None;
        let mut numbered: Vec<(usize, u32)> = Vec::new();
        for (index, rule) in self.rules.iter().enumerate() {
            let [least, greatest] = rule.size_bounds_bytes;
            let is_site = rule.subject == subject::CALL_SITE;
            if !(least..=greatest).contains(&size_bytes)
                || !(rule.subject == anything || is_site && self.leads(rule, allocation))
            {
                continue;
            }
            let mut fits = !is_site || [NONE, allocation.thread].contains(&rule.thread);
            if is_site && rule.is_numbered() {
                let group = self.groups[index];
                let known = numbered.iter().find(|(other, _)| *other == group);
                let number = known.map(|(_, number)| *number).unwrap_or_else(|| {
                    let count = self.orders.entry((group, allocation.thread)).or_default();
                    *count += 1;
                    numbered.push((group, *count - 1));
                    *count - 1
                });
                fits &= rule.takes_number(number);
            }
            if fits {
                winner = winner.or(Some(index));
            }
        }
        winner.map(|winner| self.dealt_anew(winner, allocation.thread, &numbered))
    }

    /// The final rule of an object, from the rule that took it at its allocation.
    fn dealt_anew(&self, rule: usize, thread: u32, numbered: &[(usize, u32)]) -> usize {
        let group = self.groups[rule];
        let number = numbered.iter().find(|(other, _)| *other == group);
        let Rule {
            turn,
            objects,
            flags,
            ..
        } = self.rules[rule];
        match (number, self.orders_then.get(&(group, thread))) {
            (Some(&(_, number)), Some(&then))
                if objects != 0 && flags & RULE_LATER == 0 && number < then =>
            {
                rule - turn[0] as usize + share_of_object(number, then, turn[1]) as usize
            }
            _ => rule,
        }
    }

    /// True if the rule's frames are the innermost frames of the stack.
    fn leads(&self, rule: &Rule, allocation: &Allocation<'_>) -> bool {
        let tables = &self.compact.tables;
        let Some(ranges) = part(&tables.frames, rule.frames).filter(|ranges| !ranges.is_empty())
        else {
            return false;
        };
        ranges.len() <= allocation.frames.len()
            && ranges.iter().zip(allocation.frames).all(|(range, frame)| {
                frame.is_some_and(|(module, offset)| {
                    (range.low..=range.high).contains(&offset)
                        && tables.is_module(range.module, module)
                })
            })
    }
}
