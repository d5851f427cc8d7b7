//! What first touch did: the default that every decision has to beat.

use std::collections::BTreeSet;

use nearpage_attribution::{ObjectGroup, Team};
use nearpage_recording::ThreadIndex;

use crate::context::Context;

/// How it is known who touched an object's pages first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstTouchBasis {
    /// From page faults.
    Observed,
    /// Assumed: by the thread that allocated it, or the main thread for static objects.
    Assumed,
}

/// A fault on a transparent huge page touches all of it.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// So many of the pages whose first touch was seen were touched by their owner, where owners touched all.
const BY_OWNERS: f64 = 0.9;

/// Pages whose first touch and owner are known, from which on that is no chance.
const KNOWN_MIN: f64 = 8.0;

/// Faults for each huge page that they lie in, from which on they are of small pages.
const FAULTS_A_HUGE_PAGE: f64 = 1.5;

/// Who touched a group's pages first, as far as it is known: from page faults, else from who used
/// the object before any other thread did.
pub(crate) struct FirstTouches<'a> {
    /// Page and thread, by page.
    touches: Vec<(u32, ThreadIndex)>,
    /// Pages that one fault may have touched.
    reach: u32,
    /// Whose pages were touched by their owners, by its pattern.
    by_owners: Option<(&'a ObjectGroup, &'a [Team])>,
}

impl<'a> FirstTouches<'a> {
    pub fn of(context: &Context<'a>, group: &'a ObjectGroup) -> Self {
        let affinity = &group.affinity;
        let touches = if group.first_touches.is_empty() {
            affinity
                .initialisation
                .iter()
                .map(|cell| (cell.page, cell.thread))
                .collect()
        } else {
            group.first_touches.clone()
        };
        let reach = HUGE_PAGE_BYTES / affinity.page_bytes.max(1);
        let reach = u32::try_from(reach.max(1)).unwrap_or(u32::MAX);
        let is_by_owners = are_by_owners(context, group, reach);
        Self {
            touches,
            reach,
            by_owners: is_by_owners.then_some((group, context.attribution.teams.as_slice())),
        }
    }

    /// Did several threads touch the pages that the group's pattern gives them?
    pub fn are_by_owners(&self) -> bool {
        self.by_owners.is_some()
    }

    /// Who touched a page first. Faults may be sampled, and one may map a huge page: a page without a
    /// fault is its owner's where owners touched what was seen, and else goes with the fault before it, where that one is near
    /// or the one after it is by the same thread.
    pub fn toucher(&self, page: u32) -> Option<ThreadIndex> {
        let after = self.touches.partition_point(|touch| touch.0 <= page);
        let before = after.checked_sub(1).map(|at| self.touches[at]);
        let is_seen = before.is_some_and(|touch| touch.0 == page);
        if let Some((group, teams)) = self.by_owners
            && !is_seen
            && let Some(owner) = group.owner(page, teams)
        {
            return Some(owner);
        }
        let before = before?;
        let near = page - before.0 < self.reach;
        let between = self
            .touches
            .get(after)
            .is_some_and(|next| next.1 == before.1);
        (near || between).then_some(before.1)
    }
}

/// Were the pages whose first touch was seen touched by those that the pattern gives them to, several ones, a page at a time?
/// What one thread filled is known without a pattern. `reach`: pages of a huge one.
fn are_by_owners(context: &Context, group: &ObjectGroup, reach: u32) -> bool {
    let (mut seen, mut all, mut by_owners) = (0.0, 0.0, 0.0);
    let mut places = BTreeSet::new();
    let mut huge_pages = BTreeSet::new();
    for &(page, toucher) in &group.first_touches {
        let Some(place) = context.places.of(toucher) else {
            continue;
        };
        huge_pages.insert(page / reach);
        seen += 1.0;
        let Some(owner) = group.owner(page, &context.attribution.teams) else {
            continue;
        };
        all += 1.0;
        let is_own = context.places.of(owner) == Some(place);
        by_owners += f64::from(u8::from(is_own));
        places.insert(place);
    }
    let are_small = seen >= FAULTS_A_HUGE_PAGE * huge_pages.len() as f64;
    places.len() > 1 && are_small && all >= KNOWN_MIN && by_owners >= BY_OWNERS * all
}
