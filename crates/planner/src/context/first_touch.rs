//! What first touch did: the default that every decision has to beat.

use std::borrow::Cow;
use std::collections::BTreeSet;

use nearpage_attribution::{Cell, ObjectGroup, Pattern, Team};
use nearpage_recording::ThreadIndex;

use super::Context;

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
#[derive(Clone, Debug)]
pub(crate) struct FirstTouches<'a> {
    /// Page and thread, by page.
    touches: Cow<'a, [(u32, ThreadIndex)]>,
    /// Pages that one fault may have touched.
    reach: u32,
    /// Whose pages were touched by their owners, by its pattern.
    by_owners: Option<(&'a ObjectGroup, &'a [Team])>,
}

impl<'a> FirstTouches<'a> {
    pub fn of(context: &Context<'a>, group: &'a ObjectGroup) -> Self {
        let affinity = &group.affinity;
        let touches = match group.first_touches.is_empty() {
            true => {
                let filled = affinity.initialisation.iter();
                filled.map(|cell| (cell.page, cell.thread)).collect()
            }
            false => Cow::Borrowed(group.first_touches.as_slice()),
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
            && let Some(owner) = owner(group, page, teams)
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

/// Whose a page is by the group's pattern; where no rule says so, by the samples of the page, or of the nearest pages on either
/// side where both are one thread's.
fn owner(group: &ObjectGroup, page: u32, teams: &[Team]) -> Option<ThreadIndex> {
    if group.pattern != Pattern::Mixed {
        return group.owner(page, teams);
    }
    let cells = &group.affinity.cells;
    let (before, after) = cells.split_at(cells.partition_point(|cell| cell.page < page));
    let [mut before, mut after] =
        [before, after].map(|cells| cells.chunk_by(|a, b| a.page == b.page));
    let next = after.next()?;
    let user = main_user(next)?;
    let is_known = next[0].page == page || main_user(before.next_back()?) == Some(user);
    is_known.then_some(user)
}

/// The thread with most of the accesses to a page.
pub(crate) fn main_user(page: &[Cell]) -> Option<ThreadIndex> {
    let most = page
        .iter()
        .max_by(|a, b| a.accesses().total_cmp(&b.accesses()));
    most.map(|cell| cell.thread)
}

/// Were the pages whose first touch was seen touched by their owners, several ones, a page at a time?
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
        let Some(owner) = owner(group, page, &context.attribution.teams) else {
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
