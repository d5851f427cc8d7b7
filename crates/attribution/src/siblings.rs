//! Siblings: a few large objects of one call site, which may be used in different ways.
//!
//! `for k in arrays: a[k] = malloc(n)` allocates arrays at one call site, but a program may use one in ascending and
//! another in descending blocks. Laid over each other, both look shared by all threads. Siblings with different
//! patterns get a row each; otherwise they share a row, like all objects of a call site.

use std::collections::BTreeMap;

use crate::{
    Affinity, Pattern, Team,
    groups::{Group, Groups},
    part::GroupPart,
    summary::{Details, affinity},
};

/// Largest relative difference of equal block sizes.
const SAME_BLOCK: f64 = 0.05;

/// A group before it becomes a row: its number, sums, and details.
pub(crate) struct Row {
    pub number: u32,
    pub part: GroupPart,
    pub details: Details,
}

/// Merges siblings that are used alike.
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

/// Whether the objects' parts belong to threads in different ways. Unknown and private patterns agree with any other.
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
        // Both are shares of the whole object, so sizes may differ.
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
