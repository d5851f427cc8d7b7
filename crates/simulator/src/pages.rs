//! The page table: each page's home and replicas, and each node's memory.

use nearpage_online::{Action, ActionKind, Copies, Initial, fetch_ahead};

use crate::Error;
use crate::figures::Figures;
use crate::movements::{MovementKind, MovementLog, Movements};
use crate::page_counts::PageCounts;
use crate::trace::Trace;

/// No node.
const NONE: u8 = u8::MAX;

#[derive(Clone, Copy)]
struct Page {
    /// Bit n is set: node n has a copy. 0: the page is not touched yet.
    copies: u64,
    home: u8,
    /// Home before the last migration.
    before: u8,
    /// Home after the first touch.
    first: u8,
}

pub(crate) struct PageTable<'a> {
    trace: &'a dyn Trace,
    pages: Vec<Page>,
    nodes: usize,
    rule: Initial,
    /// First homes that were decided in advance.
    homes: Option<Vec<Option<u16>>>,
    /// Pages that rule and policy place; `None`: all. Other pages stay on the node of their first touch.
    shared: Option<Vec<bool>>,
    /// Misses of each page by node, where a policy moves pages. All counts of a page are halved when one is full.
    misses: Vec<u16>,
    /// Number of pages touched so far.
    touched: u64,
    used: Vec<u64>,
    used_in_all: u64,
    limit: u64,
    /// Some node, or the whole machine, has limited memory.
    limited: bool,
    /// By page, where memory is limited; bit n is set: the copy on node n was used since the hand passed.
    referenced: Vec<u64>,
    hand: usize,
    /// By page, where stores leave the writer's copy only; bit n is set: node n lost its copy to a store.
    stale: Vec<u64>,
    /// Pages whose replicas were reclaimed.
    given_up: Vec<u32>,
    /// Number of replicas that were reclaimed or refused since the epoch began.
    short: u64,
    /// A search for reclaimable replicas has failed since the epoch began.
    exhausted: bool,
    since: u64,
    pub counts: PageCounts,
    log: MovementLog,
}

impl<'a> PageTable<'a> {
    pub fn new(
        trace: &'a dyn Trace,
        figures: &Figures,
        rule: Initial,
        (homes, shared): (Option<Vec<Option<u16>>>, Option<Vec<bool>>),
        limit: Option<u64>,
        moves: bool,
    ) -> Self {
        let untouched = Page {
            copies: 0,
            home: 0,
            before: NONE,
            first: 0,
        };
        let pages = trace.pages();
        let limited = limit.is_some() || figures.capacity.iter().any(|&pages| pages != u64::MAX);
        Self {
            trace,
            pages: vec![untouched; pages],
            nodes: figures.nodes,
            rule,
            homes,
            shared,
            misses: vec![0; if moves { pages * figures.nodes } else { 0 }],
            touched: 0,
            used: vec![0; figures.nodes],
            used_in_all: 0,
            limit: limit.unwrap_or(u64::MAX),
            referenced: vec![0; if limited && moves { pages } else { 0 }],
            limited,
            hand: 0,
            stale: Vec::new(),
            given_up: Vec::new(),
            short: 0,
            exhausted: false,
            since: 0,
            counts: PageCounts::default(),
            log: MovementLog::default(),
        }
    }

    /// Copies of a page. The first reference, by a CPU on `node`, places the page.
    #[inline]
    pub fn find(
        &mut self,
        page: u32,
        node: u16,
        now: u64,
        figures: &Figures,
    ) -> Result<Copies, Error> {
        let Some(entry) = self.pages.get(page as usize) else {
            let pages = self.pages.len();
            return Err(Error::NoSuchPage { page, pages });
        };
        if entry.copies == 0 {
            self.touch(page, node, now, figures);
        }
        Ok(self.copies(page))
    }

    /// Has a page been touched?
    #[inline]
    pub fn is_touched(&self, page: u32) -> bool {
        let entry = self.pages.get(page as usize);
        entry.is_some_and(|entry| entry.copies != 0)
    }

    /// Do rule and policy place the page? Other pages stay on the node of their first touch.
    #[inline]
    pub fn may_move(&self, page: u32) -> bool {
        let shared = self.shared.as_ref();
        shared.is_none_or(|shared| shared[page as usize])
    }

    /// Copies of a page that has been touched.
    pub fn copies(&self, page: u32) -> Copies {
        let entry = &self.pages[page as usize];
        Copies {
            home: entry.home.into(),
            nodes: entry.copies,
        }
    }

    /// Counts a miss from `node` that the copy on node `from` served.
    #[inline]
    pub fn served(&mut self, page: u32, node: u16, from: u16) {
        if let Some(referenced) = self.referenced.get_mut(page as usize) {
            *referenced |= 1 << from;
        }
        let row = page as usize * self.nodes;
        if let Some(count) = self.misses.get_mut(row + usize::from(node)) {
            *count += 1;
            if *count == u16::MAX {
                self.misses[row..row + self.nodes]
                    .iter_mut()
                    .for_each(|count| *count /= 2);
            }
        }
    }

    /// Prefetches the state of a page into the CPU's caches.
    #[inline]
    pub fn fetch_ahead(&self, page: u32) {
        fetch_ahead(&self.pages, page as usize);
        fetch_ahead(&self.misses, page as usize * self.nodes);
    }

    #[cold]
    fn touch(&mut self, page: u32, node: u16, now: u64, figures: &Figures) {
        let given = self
            .homes
            .as_ref()
            .and_then(|homes| homes.get(page as usize).copied().flatten());
        let order = self.touched;
        let by_rule = || {
            let number = self.trace.page_number(page);
            self.rule.home(number, order, node, &figures.memory_nodes)
        };
        let wanted = match self.may_move(page) {
            true => given.unwrap_or_else(by_rule),
            false => node,
        };
        let near = figures.nearest[usize::from(wanted)].iter().copied();
        let home = near
            .clone()
            .find(|&near| self.has_room(near, figures))
            .unwrap_or_else(|| {
                self.counts.overcommitted += 1;
                near.clone()
                    .find(|&near| figures.capacity[usize::from(near)] > 0)
                    .unwrap_or(wanted)
            });
        self.touched += 1;
        // New pages take precedence over replicas.
        if self.used_in_all >= self.limit {
            self.reclaim(home, now, figures);
        }
        self.take(home, now);
        let entry = &mut self.pages[page as usize];
        entry.copies = 1 << home;
        (entry.home, entry.first) = (home as u8, home as u8);
    }

    fn has_room(&self, node: u16, figures: &Figures) -> bool {
        self.used[usize::from(node)] < figures.capacity[usize::from(node)]
    }

    /// Did a search for reclaimable replicas fail in this epoch, and is there still no memory for one on `node`?
    #[inline]
    pub fn pressure(&self, node: u16, figures: &Figures) -> bool {
        self.limited
            && self.exhausted
            && (self.used_in_all >= self.limit || !self.has_room(node, figures))
    }

    /// Starts a new epoch, in which a search for reclaimable replicas may succeed again. Returns the number of replicas
    /// that were reclaimed or refused in the last epoch.
    pub fn end_epoch(&mut self) -> u64 {
        self.exhausted = false;
        std::mem::take(&mut self.short)
    }

    /// Starts the log of movements; `most`: maximum number of movements to keep.
    pub fn keep_movements(&mut self, most: usize) {
        self.log = MovementLog::new(most);
    }

    /// Sets the time of the following movements.
    pub fn set_now(&mut self, now: u64) {
        self.log.set_now(now);
    }

    /// Returns the log of movements; `None` if no movements were to be kept.
    pub fn movements(&mut self) -> Option<Movements> {
        let pages = self.pages.iter();
        let homes = pages.map(|page| (page.copies != 0).then_some((page.first, page.home)));
        self.log.finish(self.trace, homes)
    }

    /// Has the node lost its copy of the page to a store, without getting a new copy since?
    #[inline]
    pub fn is_stale(&self, page: u32, node: u16) -> bool {
        self.stale(page) >> node & 1 == 1
    }

    /// Bits of the nodes that get a fresh copy of the page at their next reference.
    #[inline]
    pub fn stale(&self, page: u32) -> u64 {
        self.stale.get(page as usize).copied().unwrap_or(0)
    }

    /// Returns the pages whose replicas were reclaimed since the last call.
    pub fn take_given_up(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.given_up)
    }

    /// Handles a store by a CPU on `writer`: leaves the writer's copy only or, if the writer's node has none, the
    /// home's copy. If `fresh`, nodes that lose their copy get a fresh copy at their next reference.
    pub fn collapse_to(&mut self, page: u32, writer: u16, fresh: bool, now: u64) {
        let Page { copies, home, .. } = self.pages[page as usize];
        let left = match copies >> writer & 1 {
            1 => writer,
            _ => home.into(),
        };
        let lost = copies & !(1 << left);
        self.give_back(lost, now);
        self.stale.resize(self.pages.len(), 0);
        let stale = &mut self.stale[page as usize];
        *stale = if fresh { *stale | lost } else { 0 };
        let entry = &mut self.pages[page as usize];
        (entry.copies, entry.home) = (1 << left, left as u8);
        self.counts.collapsed += 1;
        self.log.note(page, MovementKind::Collapse, home, left);
    }

    /// Gives a node with a stale copy a fresh copy; `false`: there is no memory for it.
    pub fn refresh(&mut self, page: u32, node: u16, now: u64, figures: &Figures) -> bool {
        self.stale[page as usize] &= !(1 << node);
        if !self.has_room(node, figures) || self.used_in_all >= self.limit {
            return false;
        }
        self.take(node, now);
        let entry = &mut self.pages[page as usize];
        entry.copies |= 1 << node;
        self.counts.refreshed += 1;
        let home = entry.home;
        self.log.note(page, MovementKind::Refresh, home, node);
        true
    }

    /// Share of all memory that is free.
    pub fn free_share(&self, figures: &Figures) -> f64 {
        let capacity = figures
            .capacity
            .iter()
            .fold(0u64, |sum, &pages| sum.saturating_add(pages));
        let capacity = capacity.min(self.limit);
        if capacity == u64::MAX {
            1.0
        } else {
            1.0 - self.used_in_all as f64 / capacity.max(1) as f64
        }
    }

    fn pass_time(&mut self, now: u64) {
        let passed = now.saturating_sub(self.since);
        self.counts.page_time += u128::from(passed) * u128::from(self.used_in_all);
        self.since = self.since.max(now);
    }

    fn take(&mut self, node: u16, now: u64) {
        self.pass_time(now);
        self.used[usize::from(node)] += 1;
        self.used_in_all += 1;
        self.counts.pages_max = self.counts.pages_max.max(self.used_in_all);
    }

    fn give_back(&mut self, nodes: u64, now: u64) {
        self.pass_time(now);
        for node in bits(nodes) {
            self.used[usize::from(node)] -= 1;
            self.used_in_all -= 1;
        }
    }

    /// Restarts the counts, for a new marked phase.
    pub fn restart(&mut self, now: u64) {
        self.counts = PageCounts {
            pages_max: self.used_in_all,
            ..PageCounts::default()
        };
        self.since = now;
    }

    /// Counts up to `now`.
    pub fn counted(&mut self, now: u64) -> PageCounts {
        self.pass_time(now);
        self.counts
    }

    /// Node whose copy an action would be made from; `None` where the action has nothing to do.
    pub fn source(&self, action: &Action, figures: &Figures) -> Option<u16> {
        let Page { copies, home, .. } = self.pages[action.page as usize];
        let (done, node) = match action.kind {
            ActionKind::Migrate | ActionKind::Interleave => {
                (copies == 1 << action.node, action.node)
            }
            // Collapsing also cancels the fresh copies that nodes with stale copies would get.
            ActionKind::Collapse => {
                let single = copies.is_power_of_two() && self.stale(action.page) == 0;
                (single, home.into())
            }
            ActionKind::Replicate => (copies >> action.node & 1 == 1, action.node),
        };
        (!done && copies != 0).then(|| figures.nearest_copy(node, copies))
    }

    /// Carries out an action; `false`: the action has nothing to do, or there is no memory for it.
    pub fn apply(&mut self, action: &Action, now: u64, figures: &Figures) -> bool {
        if self.source(action, figures).is_none() {
            return false;
        }
        let &Action { page, kind, .. } = action;
        let Page {
            copies,
            home,
            before,
            ..
        } = self.pages[page as usize];
        let node = match kind {
            ActionKind::Collapse => home.into(),
            _ => action.node,
        };
        let is_new = copies >> node & 1 == 0;
        let short = is_new
            && (!self.has_room(node, figures)
                || kind == ActionKind::Replicate && self.used_in_all >= self.limit)
            && !self.reclaim(node, now, figures);
        self.short += u64::from(short);
        if short {
            return false;
        }
        if let Some(stale) = self.stale.get_mut(page as usize) {
            *stale &= match kind {
                ActionKind::Replicate => !(1 << node),
                _ => 0,
            };
        }
        // `reclaim` may have freed a replica of this page.
        let copies = self.pages[page as usize].copies;
        if is_new {
            self.take(node, now);
        }
        if kind == ActionKind::Replicate {
            self.counts.replicated += 1;
            self.pages[page as usize].copies |= 1 << node;
            self.log.note(page, MovementKind::Replicate, home, node);
            return true;
        }
        self.give_back(copies & !(1 << node), now);
        let entry = &mut self.pages[page as usize];
        entry.copies = 1 << node;
        entry.home = node as u8;
        let counts = &mut self.counts;
        let (count, done) = match kind {
            ActionKind::Collapse => (&mut counts.collapsed, MovementKind::Collapse),
            ActionKind::Interleave => (&mut counts.interleaved, MovementKind::Interleave),
            _ => (&mut counts.migrated, MovementKind::Migrate),
        };
        *count += 1;
        self.log.note(page, done, home, node);
        if kind != ActionKind::Collapse {
            entry.before = home;
            counts.multiple += u64::from(before != NONE);
            counts.ping_pong += u64::from(before == node as u8);
            let row = page as usize * self.nodes;
            let misses = |node: usize| self.misses.get(row + node).copied().unwrap_or(0);
            counts.incorrect += u64::from(misses(home.into()) > misses(node.into()));
        }
        true
    }

    /// Frees replicas that were not used since the hand last passed, until `node` has room for one more page. Frees
    /// some more pages as well, to make such searches rarer (Verghese §6.2.2, memory pressure).
    fn reclaim(&mut self, node: u16, now: u64, figures: &Figures) -> bool {
        if self.exhausted {
            return false;
        }
        let wanted = 1 + self.used_in_all / 128;
        let mut found = 0;
        // The first round may only clear reference bits.
        for _ in 0..2 * self.pages.len() {
            let page = self.hand;
            self.hand = (self.hand + 1) % self.pages.len();
            let Page { copies, home, .. } = self.pages[page];
            if copies.count_ones() < 2 {
                continue;
            }
            let referenced = std::mem::take(&mut self.referenced[page]);
            let unused = copies & !referenced & !(1 << home);
            self.pages[page].copies &= !unused;
            self.give_back(unused, now);
            if unused != 0 {
                self.given_up.push(page as u32);
            }
            found += u64::from(unused.count_ones());
            if found >= wanted && self.has_room(node, figures) {
                break;
            }
        }
        self.counts.reclaimed += found;
        self.short += found;
        self.exhausted = !self.has_room(node, figures) || self.used_in_all >= self.limit;
        !self.exhausted
    }

    /// Checks that each touched page has a copy at its home, and that the page counts are consistent.
    #[cfg(test)]
    pub fn check(&self) {
        let mut used = vec![0; self.nodes];
        for page in self.pages.iter().filter(|page| page.copies != 0) {
            assert_eq!(page.copies >> page.home & 1, 1);
            bits(page.copies).for_each(|node| used[usize::from(node)] += 1);
        }
        assert_eq!(used, self.used);
        assert_eq!(used.iter().sum::<u64>(), self.used_in_all);
    }
}

/// Positions of the bits that are set.
fn bits(mut set: u64) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let lowest = set.trailing_zeros() as u16;
        set &= set.wrapping_sub(1);
        (lowest < 64).then_some(lowest)
    })
}
