//! Siblings: a few large objects of one call site, which may be used in different ways.
//!
//! `for k in arrays: a[k] = malloc(n)` makes arrays of one call site that a program uses as it likes: one in ascending
//! blocks, one in descending. Laid over each other both look shared by all threads. Where siblings differ in their
//! patterns, each is a row of its own; where they don't, they are one row, as all objects of a call site are.

use std::collections::BTreeMap;

use crate::{
    Affinity, Pattern, Team,
    groups::{Group, Groups},
    part::GroupPart,
    summary::{Details, affinity},
};

/// Blocks differ by less than this share where they are the same.
const SAME_BLOCK: f64 = 0.05;

/// A row to be: the group that it is called by, its sums, and what else was found of it.
pub(crate) struct Row {
    pub number: u32,
    pub part: GroupPart,
    pub details: Details,
}

/// Puts siblings together where they are used alike.
pub(crate) fn rows(groups: &Groups, rows: Vec<Row>, page_bytes: u64, teams: &[Team]) -> Vec<Row> {
    let mut families: BTreeMap<u32, Vec<Row>> = BTreeMap::new();
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        match groups.groups[row.number as usize].parent {
            Some(parent) => families.entry(parent).or_default().push(row),
            None => found.push(row),
        }
    }
    for (parent, mut siblings) in families {
        let pattern = |row: &Row| {
            let group = &groups.groups[row.number as usize];
            crate::find_pattern(&of(group, &row.part, page_bytes), group.size_bytes, teams)
        };
        let patterns: Vec<Pattern> = siblings.iter().map(pattern).collect();
        if differ(&patterns) {
            found.append(&mut siblings);
            continue;
        }
        let together = siblings.into_iter().reduce(|mut sum, row| {
            sum.part.overlay(&row.part);
            sum.details.merge(row.details);
            sum
        });
        found.extend(together.map(|row| Row {
            number: parent,
            ..row
        }));
    }
    found
}

fn of(group: &Group, part: &GroupPart, page_bytes: u64) -> Affinity {
    let (cells, initialisation) = part.cells.phases();
    Affinity {
        sample_weight: part.sample_weight(),
        ..affinity(page_bytes, group.size_bytes, cells, initialisation)
    }
}

/// Do parts of the objects belong to threads, but not in one way? What too little is known of is like any other.
fn differ(patterns: &[Pattern]) -> bool {
    let has_parts = |pattern: &&Pattern| {
        matches!(
            pattern,
            Pattern::Block { .. }
                | Pattern::PartialBlock { .. }
                | Pattern::BlockCyclic { .. }
                | Pattern::Tiles { .. }
                | Pattern::InTurn(_)
                | Pattern::Segments(_)
        )
    };
    let Some(first) = patterns.iter().find(has_parts) else {
        return false;
    };
    let is_known =
        |pattern: &&Pattern| !matches!(pattern, Pattern::Unknown | Pattern::Private { .. });
    patterns
        .iter()
        .filter(is_known)
        .any(|other| !alike(first, other))
}

fn alike(one: &Pattern, other: &Pattern) -> bool {
    let close = |a: u64, b: u64| a.abs_diff(b) as f64 <= SAME_BLOCK * a.max(b) as f64;
    match (one, other) {
        // Shares of what each has.
        (Pattern::Block { team: a, .. }, Pattern::Block { team: b, .. }) => a == b,
        (
            Pattern::PartialBlock { block_bytes: a, .. },
            Pattern::PartialBlock { block_bytes: b, .. },
        )
        | (Pattern::Tiles { block_bytes: a, .. }, Pattern::Tiles { block_bytes: b, .. })
        | (
            Pattern::BlockCyclic { block_bytes: a, .. },
            Pattern::BlockCyclic { block_bytes: b, .. },
        ) => close(*a, *b),
        (Pattern::InTurn(a), Pattern::InTurn(b)) => {
            a == b || alike(&a[0], &b[0]) && alike(&a[1], &b[1])
        }
        (Pattern::Segments(a), Pattern::Segments(b)) => {
            let users = |segments: &[crate::Segment]| -> Vec<_> {
                segments.iter().map(|segment| segment.user).collect()
            };
            users(a) == users(b)
        }
        _ => false,
    }
}
