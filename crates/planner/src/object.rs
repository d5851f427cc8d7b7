//! Placement by pattern, one decision for an object: NumaMMA, section 4.1.3, done by a program
//! instead of by looking at pictures.
//!
//! | pattern | placement |
//! | --- | --- |
//! | block | `block`: share k of T to thread k, for any number T of threads |
//! | block over a part | `block` over the part, which grows with the object |
//! | block-cyclic | `block-cyclic` with the block found, in whole pages; `block` over each of a few whole rounds; `tiles` of one share of the rows where a round is a row of constant size and a piece is not |
//! | one thread | `thread k` |
//! | shared, read-only or not | `interleave` over all nodes |
//! | each instance used by one thread | `thread k`, for runs of instances (`instances`) |
//! | tiles | `tiles`; if the threads are no team, page runs |
//! | segments | page runs, each segment near its users; `block` if these are a team's threads in order or reversed |
//! | two in turn | placement of the pattern whose owners make more of the accesses |
//! | mixed | page runs by Eq. 2 |
//! | unknown | left to first touch |
//!
//! Objects that first touch already made local to their threads are left to first touch. So the plan stays short, and
//! the objects follow their threads.
//!
//! # Whole pages
//! A block smaller than a page becomes one page: NumaMMA's 0.625 MiB becomes 2 MiB under huge pages. A larger block
//! becomes the nearest number of whole pages if the pieces stay in step with the object to its end (off by half a piece
//! at most). Otherwise the block keeps its exact size, and enforcement moves every boundary to the nearest page.
//! NumaMMA deals blocks to *nodes*: its 20 MiB for `cvar` are the 5 MiB of four threads in a row. Here blocks are dealt
//! to threads, and neighbours on one node make the 20 MiB.

use nearpage_amount::{counted, percent};
use nearpage_attribution::{ObjectGroup, Pattern, find_segments};
use nearpage_plan::{Owner, Placement, REVERSED};

use crate::affinity::Equation;
use crate::arrays::arrays;
use crate::blocks::{by_owner, cyclic, over_part, tiles};
use crate::context::Context;
use crate::effect::share_near;
use crate::parameters::Parameters;
use crate::{affinity, interleave};

/// The first of two patterns in turn is taken if its owners make this share of the accesses that the other's owners
/// make.
const FIRST_PATTERN_RATIO_MIN: f64 = 0.6;

/// The placement of an object's pages, and the rule in words; none: left to first touch.
pub(crate) fn place(
    context: &Context,
    group: &ObjectGroup,
    parameters: &Parameters,
) -> Option<(Placement, String)> {
    let has_owners = !group.pattern.is_shared();
    let touches = context.first_touches(group);
    let by_toucher = share_near(context, group, true, |page| touches.toucher(page));
    if has_owners && by_toucher.is_some_and(|share| share >= parameters.first_touch_local_min) {
        return None;
    }
    by_pattern(context, group, &group.pattern, parameters)
}

/// The placement that a pattern gives an object, and the rule in words.
fn by_pattern(
    context: &Context,
    group: &ObjectGroup,
    pattern: &Pattern,
    parameters: &Parameters,
) -> Option<(Placement, String)> {
    match *pattern {
        Pattern::InTurn(ref patterns) => {
            let of = |one| by_pattern(context, group, one, parameters);
            let found: Vec<_> = patterns.iter().filter_map(of).collect();
            let owned = |one: &(Placement, String)| by_owner(context, group, &one.0).unwrap_or(0.0);
            let most = found.iter().map(owned).fold(0.0, f64::max);
            // If accesses are about equal, the pattern with the simpler rule is taken, which comes first.
            let mut found = found.into_iter();
            let (placement, rule) =
                found.find(|one| owned(one) >= FIRST_PATTERN_RATIO_MIN * most)?;
            Some((
                placement,
                format!(
                    "used in two ways in turn, of which the one with more of the accesses counts: {rule}"
                ),
            ))
        }
        // Instances with users of their own were placed before.
        Pattern::Unknown | Pattern::PrivateEach | Pattern::PrivateRuns(_) => None,
        Pattern::Private { thread } => {
            let owner = context.owner(thread)?;
            let Owner::Thread { team, index } = &owner else {
                return None;
            };
            let rule = format!("thread {index} of {team} is the only one to use it");
            Some((Placement::Whole(owner), rule))
        }
        Pattern::Block { team, block_bytes } => {
            let placement = Placement::Block {
                team: context.team_name(team)?,
            };
            let rule = format!(
                "each of {} uses a share of its own, {} now",
                context.team_words(team),
                nearpage_plan::print_size(block_bytes),
            );
            Some(with_own_share(context, group, placement, rule))
        }
        Pattern::BlockCyclic {
            team,
            block_bytes,
            period_bytes,
        } => in_rounds(context, group, team, [block_bytes, period_bytes]),
        Pattern::PartialBlock { .. } | Pattern::Tiles { .. } | Pattern::Segments(_) => {
            parts(context, group, parameters)
        }
        Pattern::Shared => Some((
            interleave::unless_users_share_a_node(context, group)?,
            "all its threads use all of it".to_owned(),
        )),
        Pattern::ReadShared => Some((
            interleave::unless_users_share_a_node(context, group)?,
            "all its threads read all of it".to_owned(),
        )),
        Pattern::Mixed => {
            // Arrays of a large team have more segments than a pattern can have.
            if let Some(placement) = arrays(context, group, &find_segments(&group.affinity)) {
                let rule = one_after_the_other("contiguous parts", &placement);
                return Some(with_own_share(context, group, placement, rule));
            }
            let (placement, found) =
                affinity::place(context, group, Equation::HopSensitive, parameters)?;
            Some((
                placement,
                format!("parts belong to threads in no regular order ({found})"),
            ))
        }
    }
}

/// Placement of pieces that go round a team, from the bytes of a piece and of a round.
fn in_rounds(
    context: &Context,
    group: &ObjectGroup,
    team: usize,
    [block_bytes, period_bytes]: [u64; 2],
) -> Option<(Placement, String)> {
    let placement = cyclic(context, group, team, block_bytes)?;
    let print = nearpage_plan::print_size;
    let rounded = match &placement {
        Placement::BlockCyclic {
            block_bytes: whole, ..
        } if *whole != block_bytes => {
            format!(", {} in whole pages", print(*whole))
        }
        Placement::Tiles { tiles, .. } => {
            format!(", columns of rows of {},", print(tiles.row_bytes()))
        }
        _ => String::new(),
    };
    let rule = format!(
        "blocks of {}{rounded} go round {} every {}",
        print(block_bytes),
        context.team_words(team),
        print(period_bytes),
    );
    Some(with_own_share(context, group, placement, rule))
}

/// Placement of patterns whose parts are runs of pages, and the rule in words.
fn parts(
    context: &Context,
    group: &ObjectGroup,
    parameters: &Parameters,
) -> Option<(Placement, String)> {
    let print = nearpage_plan::print_size;
    let (placement, rule) = match &group.pattern {
        Pattern::PartialBlock {
            team,
            block_bytes,
            part_bytes,
        } => (
            over_part(context, *team, *block_bytes, part_bytes, group.size_bytes)?,
            format!(
                "each of {} uses {} of its own between {} and {}",
                context.team_words(*team),
                print(*block_bytes),
                print(part_bytes.start),
                print(part_bytes.end),
            ),
        ),
        Pattern::Tiles {
            block_bytes,
            shares,
        } => {
            let columns = print(*block_bytes);
            let rule = match shares.as_slice() {
                [one] => format!(
                    "blocks of {columns} go round {}, the main thread first",
                    counted(one.threads.len() as u64, "thread")
                ),
                _ => format!(
                    "tiles: columns of {columns} in {}",
                    counted(shares.len() as u64, "row share"),
                ),
            };
            let runs_max = parameters.runs_max;
            (tiles(context, group, *block_bytes, shares, runs_max)?, rule)
        }
        Pattern::Segments(segments) => {
            let parts = counted(segments.len() as u64, "contiguous part");
            if let Some(placement) = arrays(context, group, segments) {
                let rule = one_after_the_other(&parts, &placement);
                return Some(with_own_share(context, group, placement, rule));
            }
            let found = affinity::by_segments(context, group, Equation::HopSensitive)?;
            (found.0, format!("each of {parts} is near its users"))
        }
        _ => return None,
    };
    Some(with_own_share(context, group, placement, rule))
}

/// Rule for parts that belong to a team's threads in order.
fn one_after_the_other(parts: &str, placement: &Placement) -> String {
    let order = match placement {
        Placement::Block { team } | Placement::Parts { team, .. } if team.ends_with(REVERSED) => {
            ", the last one first"
        }
        _ => "",
    };
    let sizes = match placement {
        Placement::Parts { parts, .. } if parts.proportions().is_some() => " of unequal sizes",
        _ => "",
    };
    format!("{parts}{sizes}, one after the other of a team's threads{order}")
}

/// Adds to the rule the share of accesses that are by the owner.
fn with_own_share(
    context: &Context,
    group: &ObjectGroup,
    placement: Placement,
    rule: String,
) -> (Placement, String) {
    match by_owner(context, group, &placement) {
        Some(own) => (
            placement,
            format!("{rule} ({} of the accesses are by the owner)", percent(own)),
        ),
        None => (placement, rule),
    }
}
