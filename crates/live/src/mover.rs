//! Carries moves out, batch by batch, and counts what became of them.

use std::io;

use nearpage_machine::NodeId;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::batches::{Batches, Limits};
use crate::kernel::Kernel;
use crate::pages::Page;

/// What became of pages that were to move, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Outcomes {
    /// Are now on the node that was asked for.
    pub moved: u64,
    /// Not there (ENOENT): never touched, or given back.
    pub absent: u64,
    /// In use by the kernel, pinned, or written back just then (EBUSY).
    pub busy: u64,
    /// Mapped by several processes (EACCES).
    pub shared: u64,
    /// No memory of the program, or the page of zeroes (EFAULT).
    pub no_page: u64,
    /// The node has no room (ENOMEM).
    pub node_full: u64,
    /// The target may not use the node (its cpuset), or it is offline (ENODEV); most are not tried.
    pub node_not_allowed: u64,
    /// Nearpage may not move pages of the target (EPERM).
    pub not_permitted: u64,
    /// The process ended first (ESRCH).
    pub process_gone: u64,
    /// Anything else.
    pub other: u64,
    /// Did not move lately and were not tried again.
    pub put_off: u64,
    /// A policy of their mapping says where they are to be, so they were not tried.
    pub own_policy: u64,
}

impl Outcomes {
    /// Adds those of another round.
    pub fn add(&mut self, other: &Self) {
        let theirs = other.by_reason().map(|(_, count)| count);
        for (ours, theirs) in self.fields().into_iter().zip(theirs) {
            *ours += theirs;
        }
    }

    /// Counts by name, in the order of the fields.
    pub fn by_reason(&self) -> [(&'static str, u64); 12] {
        let mut copy = *self;
        let counts = copy.fields().map(|count| *count);
        const NAMES: [&str; 12] = [
            "moved",
            "absent",
            "busy",
            "shared",
            "no-page",
            "node-full",
            "node-not-allowed",
            "not-permitted",
            "process-gone",
            "other",
            "put-off",
            "own-policy",
        ];
        std::array::from_fn(|at| (NAMES[at], counts[at]))
    }

    fn fields(&mut self) -> [&mut u64; 12] {
        [
            &mut self.moved,
            &mut self.absent,
            &mut self.busy,
            &mut self.shared,
            &mut self.no_page,
            &mut self.node_full,
            &mut self.node_not_allowed,
            &mut self.not_permitted,
            &mut self.process_gone,
            &mut self.other,
            &mut self.put_off,
            &mut self.own_policy,
        ]
    }

    /// Where an `errno` is counted.
    fn refused(&mut self, errno: i32) -> &mut u64 {
        match errno {
            libc::ENOENT => &mut self.absent,
            libc::EBUSY | libc::EAGAIN => &mut self.busy,
            libc::EACCES => &mut self.shared,
            libc::EFAULT => &mut self.no_page,
            libc::ENOMEM => &mut self.node_full,
            libc::ENODEV => &mut self.node_not_allowed,
            libc::EPERM => &mut self.not_permitted,
            libc::ESRCH => &mut self.process_gone,
            _ => &mut self.other,
        }
    }
}

/// A page and where it is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The page.
    pub page: Page,
    /// Its size.
    pub bytes: u64,
    /// Where it is.
    pub from: NodeId,
    /// Where it should be.
    pub to: NodeId,
}

/// A process, as it can be told from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// [`Kernel::started`].
    pub started: u64,
}

/// A page that would not move: when it may be tried again, in rounds.
#[derive(Clone, Copy, Debug)]
struct PutOff {
    until_round: u64,
    failures: u32,
}

/// What one round did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// What became of the pages.
    pub outcomes: Outcomes,
    /// Those that moved.
    pub moved: Vec<Wish>,
    /// How much memory they are.
    pub moved_bytes: u64,
    /// Calls made, and the time of the longest of them.
    pub calls: u64,
    /// Time in all calls.
    pub in_calls_ns: u64,
    /// The longest call.
    pub longest_call_ns: u64,
    /// Wishes that time did not suffice for.
    pub left: u64,
}

/// Moves pages.
#[derive(Debug)]
pub struct Mover {
    batches: Batches,
    page_bytes: u64,
    put_off: FxHashMap<Page, PutOff>,
    put_off_max: usize,
    round: u64,
}

/// A page that would not move waits one round, then two, then four, up to so many.
const ROUNDS_MAX: u64 = 256;

impl Mover {
    /// Moves pages of `page_bytes`; remembers at most `put_off_max` that would not move.
    pub fn new(limits: Limits, page_bytes: u64, put_off_max: usize, now_ns: u64) -> Self {
        Self {
            batches: Batches::new(limits, now_ns),
            page_bytes,
            put_off: FxHashMap::default(),
            put_off_max,
            round: 0,
        }
    }

    /// An interval has passed.
    pub fn begin_round(&mut self) {
        self.round += 1;
        let round = self.round;
        // Twice as long as it waits: failures of long ago are not held against a page.
        self.put_off
            .retain(|_, put_off| put_off.until_round + ROUNDS_MAX > round);
    }

    /// May a page be tried now? One that would not move waits.
    pub fn may_try(&self, page: &Page) -> bool {
        let put_off = self.put_off.get(page);
        put_off.is_none_or(|put_off| put_off.until_round <= self.round)
    }

    /// Carries out wishes of one process that [may be tried](Self::may_try), until `deadline_ns`.
    pub fn carry_out(
        &mut self,
        kernel: &mut dyn Kernel,
        process: Identity,
        wishes: &[Wish],
        deadline_ns: u64,
    ) -> Round {
        let mut done = Round::default();
        let mut rest = wishes;
        while !rest.is_empty() {
            let now_ns = kernel.now_ns();
            let (pages, wait_ns) = self.batches.next(self.page_bytes, now_ns);
            if now_ns.saturating_add(wait_ns) >= deadline_ns {
                break;
            }
            if wait_ns > 0 {
                kernel.sleep_ns(wait_ns);
            }
            let (batch, after) = rest.split_at(self.fitting(rest, pages));
            // As late as can be: the number may have been given to another process.
            if kernel.started(process.pid) != Some(process.started) {
                done.outcomes.process_gone += rest.len() as u64;
                return done;
            }
            if let Err(errno) = self.call(kernel, process.pid, batch, &mut done) {
                *done.outcomes.refused(errno) += after.len() as u64;
                return done;
            }
            rest = after;
        }
        done.left = rest.len() as u64;
        done
    }

    /// How many of the wishes are as much memory as so many pages of the usual size; at least one.
    fn fitting(&self, wishes: &[Wish], pages: usize) -> usize {
        let most_bytes = pages as u64 * self.page_bytes;
        let mut bytes = 0;
        let fitting = wishes.iter().take_while(|wish| {
            bytes += wish.bytes;
            bytes <= most_bytes
        });
        fitting.count().max(1)
    }

    /// One call.
    ///
    /// # Errors
    /// The `errno` after which there is no use in another.
    fn call(
        &mut self,
        kernel: &mut dyn Kernel,
        pid: u32,
        batch: &[Wish],
        done: &mut Round,
    ) -> Result<(), i32> {
        let pages: Vec<u64> = batch.iter().map(|wish| wish.page.address).collect();
        let nodes: Vec<NodeId> = batch.iter().map(|wish| wish.to).collect();
        // A page that the call does not come to keeps this.
        let mut status = vec![-libc::EAGAIN; batch.len()];
        let began_ns = kernel.now_ns();
        let result = kernel.move_pages(pid, &pages, &nodes, &mut status);
        let elapsed_ns = kernel.now_ns().saturating_sub(began_ns);
        let bytes: u64 = batch.iter().map(|wish| wish.bytes).sum();
        let pages = (bytes / self.page_bytes) as usize;
        self.batches.done(pages, self.page_bytes, elapsed_ns);
        done.calls += 1;
        done.in_calls_ns += elapsed_ns;
        done.longest_call_ns = done.longest_call_ns.max(elapsed_ns);
        if let Err(error) = result {
            return self.refused(kernel, pid, batch, &error, done);
        }
        for (wish, status) in batch.iter().zip(status) {
            match status {
                node if node == i32::from(wish.to.0) => {
                    done.outcomes.moved += 1;
                    done.moved_bytes += wish.bytes;
                    done.moved.push(*wish);
                    self.put_off.remove(&wish.page);
                }
                errno if errno < 0 => {
                    *done.outcomes.refused(-errno) += 1;
                    self.put_off(wish.page);
                }
                _ => {
                    done.outcomes.other += 1;
                    self.put_off(wish.page);
                }
            }
        }
        Ok(())
    }

    /// The call as a whole was refused. For one page's sake? Then half of the batch may do.
    fn refused(
        &mut self,
        kernel: &mut dyn Kernel,
        pid: u32,
        batch: &[Wish],
        error: &io::Error,
        done: &mut Round,
    ) -> Result<(), i32> {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        if matches!(errno, libc::EPERM | libc::ESRCH) {
            *done.outcomes.refused(errno) += batch.len() as u64;
            return Err(errno);
        }
        if batch.len() > 1 {
            let (first, second) = batch.split_at(batch.len() / 2);
            if let Err(errno) = self.call(kernel, pid, first, done) {
                *done.outcomes.refused(errno) += second.len() as u64;
                return Err(errno);
            }
            return self.call(kernel, pid, second, done);
        }
        // For a whole call EACCES means that the target may not use the node.
        let counted = match errno {
            libc::EACCES => &mut done.outcomes.node_not_allowed,
            errno => done.outcomes.refused(errno),
        };
        *counted += 1;
        self.put_off(batch[0].page);
        Ok(())
    }

    fn put_off(&mut self, page: Page) {
        if self.put_off.len() >= self.put_off_max && !self.put_off.contains_key(&page) {
            return;
        }
        let put_off = self.put_off.entry(page).or_insert(PutOff {
            until_round: 0,
            failures: 0,
        });
        let rounds = (1u64 << put_off.failures.min(32)).min(ROUNDS_MAX);
        put_off.failures += 1;
        put_off.until_round = self.round + 1 + rounds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::ProcessIndex;
    use proptest::prelude::*;

    const PROCESS: Identity = Identity {
        pid: 42,
        started: 7,
    };

    /// Pages are moved at a cost; some won't.
    #[derive(Default)]
    struct Fake {
        now_ns: u64,
        page_ns: u64,
        /// Status of pages that won't move.
        stubborn: FxHashMap<u64, i32>,
        /// Pages for whose sake whole calls are refused.
        poison: FxHashMap<u64, i32>,
        ends_after_calls: Option<usize>,
        calls: Vec<usize>,
        at: FxHashMap<u64, NodeId>,
    }

    impl Kernel for Fake {
        fn now_ns(&mut self) -> u64 {
            self.now_ns
        }

        fn sleep_ns(&mut self, ns: u64) {
            self.now_ns += ns;
        }

        fn started(&mut self, pid: u32) -> Option<u64> {
            let over = self
                .ends_after_calls
                .is_some_and(|calls| self.calls.len() >= calls);
            (pid == PROCESS.pid).then_some(PROCESS.started + u64::from(over))
        }

        fn move_pages(
            &mut self,
            _: u32,
            pages: &[u64],
            nodes: &[NodeId],
            status: &mut [i32],
        ) -> io::Result<()> {
            self.calls.push(pages.len());
            self.now_ns += self.page_ns * pages.len() as u64;
            if let Some(errno) = pages.iter().find_map(|page| self.poison.get(page)) {
                return Err(io::Error::from_raw_os_error(*errno));
            }
            for ((page, node), status) in pages.iter().zip(nodes).zip(status) {
                *status = self.stubborn.get(page).copied().unwrap_or_else(|| {
                    self.at.insert(*page, *node);
                    i32::from(node.0)
                });
            }
            Ok(())
        }
    }

    fn wishes(count: u64) -> Vec<Wish> {
        let wish = |number: u64| Wish {
            page: Page {
                process: ProcessIndex(0),
                address: number * 4096,
            },
            bytes: 4096,
            from: NodeId(0),
            to: NodeId(3),
        };
        (0..count).map(wish).collect()
    }

    fn mover() -> Mover {
        let limits = Limits {
            stall_ns: 20_000_000,
            bytes_per_second: 1 << 30,
        };
        Mover::new(limits, 4096, 1000, 0)
    }

    #[test]
    fn all_pages_move_and_no_call_takes_too_long() {
        let mut kernel = Fake {
            page_ns: 10_000,
            ..Fake::default()
        };
        let round = mover().carry_out(&mut kernel, PROCESS, &wishes(10_000), u64::MAX);
        assert_eq!(round.outcomes.moved, 10_000);
        assert_eq!(round.moved.len(), 10_000);
        assert!(round.longest_call_ns <= 20_000_000);
        assert_eq!(kernel.at.len(), 10_000);
        assert_eq!(round.calls as usize, kernel.calls.len());
    }

    #[test]
    fn what_will_not_move_is_counted_by_reason_and_waits_longer_each_time() {
        let mut kernel = Fake {
            stubborn: FxHashMap::from_iter([
                (4096, -libc::EBUSY),
                (2 * 4096, -libc::EACCES),
                (3 * 4096, -libc::ENOENT),
            ]),
            ..Fake::default()
        };
        let mut mover = mover();
        let mut tried = Vec::new();
        for round in 0..20 {
            mover.begin_round();
            let mut wishes = wishes(4);
            wishes.retain(|wish| mover.may_try(&wish.page));
            let done = mover.carry_out(&mut kernel, PROCESS, &wishes, u64::MAX);
            assert_eq!(done.outcomes.moved, 1);
            if done.outcomes.busy > 0 {
                assert_eq!((done.outcomes.shared, done.outcomes.absent), (1, 1));
                tried.push(round);
            } else {
                assert_eq!(wishes.len(), 1);
            }
        }
        assert_eq!(tried, [0, 2, 5, 10, 19]);
    }

    #[test]
    fn a_node_that_is_not_allowed_spoils_its_own_pages_only() {
        let mut kernel = Fake {
            poison: FxHashMap::from_iter([(5 * 4096, libc::EACCES), (6 * 4096, libc::ENODEV)]),
            ..Fake::default()
        };
        let round = mover().carry_out(&mut kernel, PROCESS, &wishes(100), u64::MAX);
        assert_eq!(round.outcomes.node_not_allowed, 2);
        assert_eq!(round.outcomes.moved, 98);
    }

    #[test]
    fn no_permission_and_no_process_end_it_at_once() {
        for errno in [libc::EPERM, libc::ESRCH] {
            let mut kernel = Fake {
                poison: FxHashMap::from_iter([(0, errno)]),
                ..Fake::default()
            };
            let round = mover().carry_out(&mut kernel, PROCESS, &wishes(100), u64::MAX);
            assert_eq!(kernel.calls.len(), 1);
            assert_eq!(round.outcomes.moved, 0);
            assert!(round.outcomes.not_permitted + round.outcomes.process_gone == 100);
        }
    }

    #[test]
    fn a_process_with_the_same_number_is_left_alone() {
        let mut kernel = Fake {
            ends_after_calls: Some(2),
            ..Fake::default()
        };
        let round = mover().carry_out(&mut kernel, PROCESS, &wishes(100), u64::MAX);
        assert_eq!(kernel.calls.len(), 2);
        assert_eq!(round.outcomes.moved + round.outcomes.process_gone, 100);
        let other = Identity { pid: 43, ..PROCESS };
        let round = mover().carry_out(&mut Fake::default(), other, &wishes(3), u64::MAX);
        assert_eq!(round.outcomes.process_gone, 3);
    }

    #[test]
    fn huge_pages_count_for_as_much_as_they_are() {
        const HUGE: u64 = 2 << 20;
        let mut kernel = Fake {
            page_ns: 500_000,
            ..Fake::default()
        };
        let mut wishes = wishes(64);
        wishes.iter_mut().for_each(|wish| wish.bytes = HUGE);
        let round = mover().carry_out(&mut kernel, PROCESS, &wishes, u64::MAX);
        assert_eq!(round.outcomes.moved, 64);
        assert_eq!(round.moved_bytes, 64 * HUGE);
        // Half of 20 ms at half a millisecond each is 20 of them, but no call has more than 16 MiB.
        assert_eq!(kernel.calls[..4], [1, 2, 4, 8]);
        assert!(kernel.calls.iter().all(|&pages| pages <= 8));
        // As fast as pages may move, and no faster.
        assert!(kernel.now_ns >= 63 * HUGE * 1_000_000_000 / (1 << 30));
    }

    #[test]
    fn it_ends_in_time() {
        let mut kernel = Fake {
            page_ns: 1_000_000,
            ..Fake::default()
        };
        let round = mover().carry_out(&mut kernel, PROCESS, &wishes(10_000), 500_000_000);
        assert!(kernel.now_ns < 530_000_000, "{}", kernel.now_ns);
        assert_eq!(round.left + round.outcomes.moved, 10_000);
        assert!(round.left > 9000);
    }

    proptest! {
        #[test]
        fn every_wish_is_counted_once(
            count in 0u64..300,
            stubborn in prop::collection::hash_map(0u64..300, 1i32..40, 0..40),
            poison in prop::collection::hash_set(0u64..300, 0..5),
            deadline_ns in 1_000_000u64..1_000_000_000,
        ) {
            let mut kernel = Fake {
                page_ns: 100_000,
                stubborn: stubborn.into_iter().map(|(page, errno)| (page * 4096, -errno)).collect(),
                poison: poison.into_iter().map(|page| (page * 4096, libc::EACCES)).collect(),
                ..Fake::default()
            };
            let round = mover().carry_out(&mut kernel, PROCESS, &wishes(count), deadline_ns);
            let counted: u64 = round.outcomes.by_reason().iter().map(|(_, count)| count).sum();
            prop_assert_eq!(counted + round.left, count);
            prop_assert_eq!(round.moved.len() as u64, round.outcomes.moved);
        }
    }
}
