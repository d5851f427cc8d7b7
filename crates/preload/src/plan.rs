//! Reads a compact plan. Any bytes give a plan or a reason why they are none; [`Plan::pattern`] and [`Plan::frames`]
//! refuse rules that point outside a table.

use core::{fmt, mem};

use nearpage_wire::compact_plan::{
    FrameRange, Header, MAGIC, Module, NONE, PHASES_MAX, Phase, Pin, Rule, Run, Section, Table,
    Weight, subject,
};

use crate::place::pieces::{Pattern, PatternTables, part};

/// Why the bytes are no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// Shorter than a header, or not 8-byte aligned in memory.
    NoHeader,
    /// The magic or the version is another.
    Magic,
    /// The named table is misaligned or reaches beyond the file.
    Table(&'static str),
    /// Page sizes are no powers of two, or the huge page is smaller than the page.
    PageSizes,
}

impl fmt::Display for PlanError {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHeader => text.write_str("it is shorter than a header"),
            Self::Magic => text.write_str("it is no compact plan of this version"),
            Self::Table(name) => write!(text, "its table of {name} lies outside the file"),
            Self::PageSizes => text.write_str("its page sizes are no powers of two"),
        }
    }
}

/// Identifies a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// GNU build-id; empty where there is none.
    pub build_id: &'a [u8],
    /// File name without folders.
    pub name: &'a [u8],
}

/// A compact plan whose tables lie inside the file.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'file> {
    /// The header.
    pub header: &'file Header,
    /// All modules that rules, pins and sections name by index.
    pub modules: &'file [Module],
    sections: &'file [Section],
    rules: &'file [Rule],
    frames: &'file [FrameRange],
    runs: &'file [Run],
    nodes: &'file [u16],
    weights: &'file [Weight],
    pins: &'file [Pin],
    phases: &'file [Phase],
    names: &'file [u8],
}

/// # Safety
/// Every bit pattern is a value, and the alignment is at most 8.
unsafe trait Entry {}
// SAFETY: structs of integers in `repr(C)`, or integers.
unsafe impl Entry for Section {}
// SAFETY: as above.
unsafe impl Entry for Module {}
// SAFETY: as above.
unsafe impl Entry for Rule {}
// SAFETY: as above.
unsafe impl Entry for FrameRange {}
// SAFETY: as above.
unsafe impl Entry for Run {}
// SAFETY: as above.
unsafe impl Entry for Weight {}
// SAFETY: as above.
unsafe impl Entry for Pin {}
// SAFETY: as above.
unsafe impl Entry for Phase {}
// SAFETY: as above.
unsafe impl Entry for u16 {}
// SAFETY: as above.
unsafe impl Entry for u8 {}

fn table<'file, T: Entry>(
    bytes: &'file [u8],
    table: Table,
    name: &'static str,
) -> Result<&'file [T], PlanError> {
    let (offset, count) = (table.offset as usize, table.count as usize);
    let entries = count
        .checked_mul(mem::size_of::<T>())
        .and_then(|length| bytes.get(offset..offset.checked_add(length)?))
        .filter(|_| offset % 8 == 0)
        .ok_or(PlanError::Table(name))?;
    // SAFETY: the range lies inside `bytes`, whose start and whose offset are 8-byte aligned, and
    // any bytes are a `T`.
    Ok(unsafe { core::slice::from_raw_parts(entries.as_ptr().cast(), count) })
}

impl<'file> Plan<'file> {
    /// Checks magic, version, page sizes and tables. `bytes` must be 8-byte aligned.
    pub fn parse(bytes: &'file [u8]) -> Result<Self, PlanError> {
        if bytes.len() < mem::size_of::<Header>() || bytes.as_ptr().align_offset(8) != 0 {
            return Err(PlanError::NoHeader);
        }
        // SAFETY: long enough, aligned, and any bytes are a header.
        let header = unsafe { &*bytes.as_ptr().cast::<Header>() };
        if header.magic != MAGIC {
            return Err(PlanError::Magic);
        }
        if !header.page_bytes.is_power_of_two()
            || header.page_bytes < 4096
            || !header.huge_page_bytes.is_power_of_two()
            || header.huge_page_bytes < header.page_bytes
        {
            return Err(PlanError::PageSizes);
        }
        Ok(Self {
            header,
            sections: table(bytes, header.sections, "sections")?,
            modules: table(bytes, header.modules, "modules")?,
            rules: table(bytes, header.rules, "rules")?,
            frames: table(bytes, header.frames, "frames")?,
            runs: table(bytes, header.runs, "runs")?,
            nodes: table(bytes, header.nodes, "nodes")?,
            weights: table(bytes, header.weights, "weights")?,
            pins: table(bytes, header.pins, "pins")?,
            phases: table(bytes, header.phases, "phases")?,
            names: table(bytes, header.names, "names")?,
        })
    }

    /// Is the plan's module `index` the one of this identity? By build-id where the plan has one,
    /// otherwise by name.
    pub fn module_is(&self, index: u32, identity: Identity<'_>) -> bool {
        let Some(module) = self.modules.get(index as usize) else {
            return false;
        };
        match module.build_id.get(..module.build_id_bytes as usize) {
            Some([]) => part(self.names, module.name) == Some(identity.name),
            Some(build_id) => build_id == identity.build_id,
            None => false,
        }
    }

    /// The section for this executable and rank: the most specific one that fits, the first of several equal ones.
    pub fn section(&self, executable: Identity<'_>, rank: Option<u32>) -> Option<&'file Section> {
        let score = |section: &Section| {
            let program = match section.executable {
                NONE => Some(0),
                index => self.module_is(index, executable).then_some(2),
            };
            let number = match section.rank {
                NONE => Some(0),
                wanted => (Some(wanted) == rank).then_some(1),
            };
            Some(program? + number?)
        };
        let best = self.sections.iter().filter_map(score).max()?;
        self.sections
            .iter()
            .find(|section| score(section) == Some(best))
    }

    /// The rules of a section, in order; empty if the section points outside the table.
    pub fn rules(&self, section: &Section) -> &'file [Rule] {
        part(self.rules, section.rules).unwrap_or_default()
    }

    /// The pins of a section.
    pub fn pins(&self, section: &Section) -> &'file [Pin] {
        part(self.pins, section.pins).unwrap_or_default()
    }

    /// The phases of a section, at most `PHASES_MAX`.
    pub fn phases(&self, section: &Section) -> &'file [Phase] {
        let phases = part(self.phases, section.phases).unwrap_or_default();
        phases.get(..PHASES_MAX).unwrap_or(phases)
    }

    /// The rules of a phase, in order.
    pub fn phase_rules(&self, phase: &Phase) -> &'file [Rule] {
        part(self.rules, phase.rules).unwrap_or_default()
    }

    /// The pins that threads have from when a phase begins.
    pub fn phase_pins(&self, phase: &Phase) -> &'file [Pin] {
        part(self.pins, phase.pins).unwrap_or_default()
    }

    /// The frames of a rule, innermost first; `None` for a call site without frames, or outside the table.
    pub fn frames(&self, rule: &Rule) -> Option<&'file [FrameRange]> {
        part(self.frames, rule.frames).filter(|frames| !frames.is_empty())
    }

    /// Where the objects of a rule go; `None` if the rule is not sound.
    pub fn pattern(&self, rule: &Rule) -> Option<Pattern<'file>> {
        let tables = PatternTables {
            nodes: self.nodes,
            runs: self.runs,
            weights: self.weights,
            page_bytes: self.header.page_bytes.into(),
        };
        Pattern::of(rule, &tables)
    }

    /// Can the rule ever recognise and place something?
    pub fn is_sound(&self, rule: &Rule) -> bool {
        let recognises = match rule.subject {
            subject::STATIC => (rule.module as usize) < self.modules.len() && rule.size_bytes > 0,
            subject::CALL_SITE => self.frames(rule).is_some(),
            subject::HEAP | subject::MAPPING => true,
            subject::BRK_HEAP => rule.size_bytes > 0,
            subject::UNMATCHED => {
                return matches!(
                    self.pattern(rule),
                    Some(Pattern::Interleave(_) | Pattern::Node(_) | Pattern::Leave)
                );
            }
            _ => false,
        };
        recognises && self.pattern(rule).is_some()
    }

    /// Has any section a rule about unmatched memory?
    pub fn places_unmatched(&self) -> bool {
        self.rules
            .iter()
            .any(|rule| rule.subject == subject::UNMATCHED)
    }
}

/// The encoder that the black-box tests use.
#[cfg(test)]
#[path = "../tests/place_programs/plan_file.rs"]
pub(crate) mod plan_file;

#[cfg(test)]
mod tests {
    use super::plan_file::{RULE, Tables, bytes, module};
    use super::*;
    use nearpage_wire::compact_plan::placement;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn example() -> Tables {
        let mut names = Vec::new();
        let modules = std::vec![
            module(&mut names, &[1, 2, 3], b"cg"),
            module(&mut names, &[], b"libm.so.6")
        ];
        let section = |executable, rank, first| Section {
            executable,
            rank,
            rules: [first, 1],
            pins: [0, 0],
            phases: [0, 2],
        };
        let phase = |first| Phase {
            module: 0,
            reserved: 0,
            offset: 0x1200,
            rules: [first, 2],
            pins: [0, 0],
        };
        let rule = |number, placement| Rule {
            subject: subject::HEAP,
            placement,
            number,
            nodes: [0, 2],
            ..RULE
        };
        Tables {
            sections: std::vec![
                section(NONE, NONE, 0),
                section(0, NONE, 1),
                section(0, 3, 2),
                section(1, NONE, 7)
            ],
            modules,
            rules: std::vec![
                rule(0, placement::BLOCK),
                rule(1, placement::INTERLEAVE),
                rule(2, placement::RUNS)
            ],
            nodes: std::vec![4, 2],
            phases: std::vec![phase(1), phase(7)],
            names,
            ..Tables::default()
        }
    }

    #[test]
    fn the_section_that_says_most_is_chosen() {
        let words = example().encode();
        let plan = Plan::parse(bytes(&words)).unwrap();
        let number = |build_id: &[u8], name: &[u8], rank| {
            let section = plan.section(Identity { build_id, name }, rank)?;
            plan.rules(section).first().map(|rule| rule.number)
        };
        assert_eq!(number(&[1, 2, 3], b"renamed", None), Some(1));
        assert_eq!(number(&[1, 2, 3], b"cg", Some(3)), Some(2));
        assert_eq!(
            number(&[1, 2, 4], b"cg", Some(3)),
            Some(0),
            "another build: the section for any"
        );
        assert_eq!(
            number(&[9], b"libm.so.6", None),
            None,
            "by name, but its rules lie outside the table"
        );
    }

    #[test]
    fn phases_have_rules_of_their_own() {
        let words = example().encode();
        let plan = Plan::parse(bytes(&words)).unwrap();
        let numbers = plan.phases(&plan.sections[0]).iter().map(|phase| {
            plan.phase_rules(phase)
                .iter()
                .map(|rule| rule.number)
                .collect()
        });
        let numbers: Vec<Vec<u32>> = numbers.collect();
        assert_eq!(numbers, [std::vec![1, 2], std::vec![]], "outside the table");
        let many = Tables {
            phases: std::vec![plan.phases[0]; 9],
            sections: std::vec![Section {
                phases: [0, 9],
                ..plan.sections[0]
            }],
            ..example()
        };
        let words = many.encode();
        let plan = Plan::parse(bytes(&words)).unwrap();
        assert_eq!(plan.phases(&plan.sections[0]).len(), PHASES_MAX);
    }

    #[test]
    fn rules_resolve_or_are_refused() {
        let words = example().encode();
        let plan = Plan::parse(bytes(&words)).unwrap();
        assert_eq!(plan.pattern(&plan.rules[0]), Some(Pattern::Block(&[4, 2])));
        assert_eq!(plan.pattern(&plan.rules[2]), None, "no runs");
        assert_eq!(
            plan.pattern(&Rule {
                nodes: [1, 2],
                ..plan.rules[0]
            }),
            None,
            "beyond the table"
        );
        assert_eq!(
            plan.pattern(&Rule {
                nodes: [u32::MAX, u32::MAX],
                ..plan.rules[0]
            }),
            None
        );
        assert!(
            !plan.is_sound(&Rule {
                subject: subject::CALL_SITE,
                ..plan.rules[0]
            }),
            "no frames"
        );
        assert!(plan.is_sound(&plan.rules[0]));
        let rest = |rule: Rule| Rule {
            subject: subject::UNMATCHED,
            ..rule
        };
        assert!(plan.is_sound(&rest(plan.rules[1])));
        assert!(
            !plan.is_sound(&rest(plan.rules[0])),
            "what is no object has no shares"
        );
    }

    proptest! {
        #[test]
        fn damage_never_panics(at in 0usize..400, value in any::<u64>(), length in 0usize..400) {
            let mut words = example().encode();
            let place = at % words.len();
            words[place] = value;
            let damaged = bytes(&words);
            if let Ok(plan) = Plan::parse(&damaged[..length.min(damaged.len())]) {
                for section in plan.sections {
                    plan.pins(section);
                    let phases = plan.phases(section).iter();
                    phases.clone().for_each(|phase| _ = plan.phase_pins(phase));
                    let of_phases = phases.flat_map(|phase| plan.phase_rules(phase));
                    for rule in plan.rules(section).iter().chain(of_phases) {
                        plan.is_sound(rule);
                        plan.frames(rule);
                    }
                }
                plan.section(Identity { build_id: &[1, 2, 3], name: b"cg" }, Some(3));
            }
        }
    }
}
