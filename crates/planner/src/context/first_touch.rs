//! The threads that touched pages first. First touch is the kernel's default placement, which every decision has to
//! beat.

use std::borrow::Cow;
use std::collections::BTreeSet;

use nearpage_attribution::{Cell, ObjectGroup, Pattern, Team};
use nearpage_recording::ThreadIndex;

use super::Context;

/// How it is known which threads touched an object's pages first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstTouchBasis {
    /// From page faults, or from accesses before a second thread used the object.
    Observed,
    /// Assumed: by the thread that allocated the object, or the main thread for static objects.
    Assumed,
}

/// Size of a transparent huge page: one fault on it touches all of it.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// If owners touched this share of the pages with a known first touch, they are taken to have touched all of their
/// pages.
const BY_OWNERS: f64 = 0.9;

/// Pages with known first touch and owner from which on [`BY_OWNERS`] is no chance.
const KNOWN_MIN: f64 = 8.0;

/// Faults per huge page from which on faults are of small pages.
const FAULTS_A_HUGE_PAGE: f64 = 1.5;

/// Threads that touched a group's pages first, as far as they are known: from page faults, else from the accesses
/// before a second thread used the object.
#[derive(Clone, Debug)]
pub(crate) struct FirstTouches<'a> {
    /// Page and thread, ascending by page.
    touches: Cow<'a, [(u32, ThreadIndex)]>,
    /// Number of pages that one fault may have touched.
    reach: u32,
    /// The group and the teams of its pattern, if owners touched their own pages.
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

    /// True if several threads touched the pages that the group's pattern gives them.
    pub fn are_by_owners(&self) -> bool {
        self.by_owners.is_some()
    }

    /// The thread that touched a page first. Faults may be sampled, and one fault may map a huge page, so some pages
    /// have no fault. Such a page goes to its owner if owners touched the pages that were seen. Otherwise it goes with
    /// the fault before it, if this fault is near or the next fault is by the same thread.
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

/// The owner of a page by the group's pattern. For a mixed pattern, the main user of the page, or of the nearest
/// sampled pages on both sides if they have the same main user.
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

/// True if the pages whose first touch was seen were touched by their owners, at several places, one small page at a
/// time. A page in which two owners meet may belong to either, so that pages between others of their owner suffice.
/// Pages that one thread filled are known without a pattern. `reach`: small pages in a huge page.
fn are_by_owners(context: &Context, group: &ObjectGroup, reach: u32) -> bool {
    let mut seen = 0.0;
    // Numbers of pages with an owner, and of those that their owners touched: all, and pages between others of the owner.
    let mut owned = [[0.0; 2]; 2];
    let mut places = BTreeSet::new();
    let mut huge_pages = BTreeSet::new();
    for &(page, toucher) in &group.first_touches {
        let Some(place) = context.places.of(toucher) else {
            continue;
        };
        huge_pages.insert(page / reach);
        seen += 1.0;
        let owner_of = |page| owner(group, page, &context.attribution.teams);
        let Some(owner) = owner_of(page) else {
            continue;
        };
        let is_own = context.places.of(owner) == Some(place);
        let is_between =
            owner_of(page + 1) == Some(owner) && page > 0 && owner_of(page - 1) == Some(owner);
        for [all, by_owners] in &mut owned[..1 + usize::from(is_between)] {
            *all += 1.0;
            *by_owners += f64::from(u8::from(is_own));
        }
        places.insert(place);
    }
    let are_small = seen >= FAULTS_A_HUGE_PAGE * huge_pages.len() as f64;
    let are_own = |&[all, by_owners]: &[f64; 2]| all >= KNOWN_MIN && by_owners >= BY_OWNERS * all;
    places.len() > 1 && are_small && owned.iter().any(are_own)
}
