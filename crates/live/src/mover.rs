//! Carries out moves in batches, and counts the results.

use std::io;

use nearpage_machine::NodeId;
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batches::{Batches, Limits};
use crate::kernel::Kernel;
use crate::pages::Page;

/// Results of moves, as numbers of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Outcomes {
    /// Pages that are now on the requested node.
    pub moved: u64,
    /// Pages that do not exist (ENOENT): never touched, or unmapped.
    pub absent: u64,
    /// Pages in use by the kernel, or being written back (EBUSY).
    pub busy: u64,
    /// Pages pinned by a device or the kernel (RDMA, vfio, io_uring buffers), which did not move in two calls.
    pub pinned: u64,
    /// Pages mapped by several processes (EACCES).
    pub shared: u64,
    /// Not memory of the program, or the zero page (EFAULT).
    pub no_page: u64,
    /// Pages for which the node has no room (ENOMEM).
    pub node_full: u64,
    /// Pages for a node that the target's cpuset excludes or that is offline (ENODEV); most are not tried.
    pub node_not_allowed: u64,
    /// Pages of a target that nearpage may not move (EPERM).
    pub not_permitted: u64,
    /// Pages of a process that ended first (ESRCH).
    pub process_gone: u64,
    /// Pages with any other error.
    pub other: u64,
    /// Pages that did not move lately and were not tried again.
    pub put_off: u64,
    /// Pages that were not tried because their mapping has a memory policy.
    pub own_policy: u64,
    /// Huge pages that take longer to move than a call may stall the program.
    pub too_long: u64,
}

impl Outcomes {
    /// Adds the results of another round.
    pub fn add(&mut self, other: &Self) {
        let theirs = other.by_reason().map(|(_, count)| count);
        for (ours, theirs) in self.fields().into_iter().zip(theirs) {
            *ours += theirs;
        }
    }

    /// Counts by name, in the order of the fields.
    pub fn by_reason(&self) -> [(&'static str, u64); 14] {
        let mut copy = *self;
        let counts = copy.fields().map(|count| *count);
        const NAMES: [&str; 14] = [
            "moved",
            "absent",
            "busy",
            "pinned",
            "shared",
            "no-page",
            "node-full",
            "node-not-allowed",
            "not-permitted",
            "process-gone",
            "other",
            "put-off",
            "own-policy",
            "too-long",
        ];
        std::array::from_fn(|at| (NAMES[at], counts[at]))
    }

    fn fields(&mut self) -> [&mut u64; 14] {
        [
            &mut self.moved,
            &mut self.absent,
            &mut self.busy,
            &mut self.pinned,
            &mut self.shared,
            &mut self.no_page,
            &mut self.node_full,
            &mut self.node_not_allowed,
            &mut self.not_permitted,
            &mut self.process_gone,
            &mut self.other,
            &mut self.put_off,
            &mut self.own_policy,
            &mut self.too_long,
        ]
    }

    /// The count for an `errno`.
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

/// A page and its target node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMove {
    /// The page.
    pub page: Page,
    /// Size of the page.
    pub bytes: u64,
    /// Current node.
    pub from: NodeId,
    /// Target node.
    pub to: NodeId,
}

/// Identity of a process, which distinguishes it from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Number of the process.
    pub pid: u32,
    /// Start time by [`Kernel::started`].
    pub started: u64,
}

/// When a page that could not be moved may be tried again, in rounds.
#[derive(Clone, Copy, Debug)]
struct RetryAfter {
    until_round: u64,
    failures: u32,
}

/// Results of one round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// Numbers of pages by result.
    pub outcomes: Outcomes,
    /// Pages that moved.
    pub moved: Vec<PageMove>,
    /// Bytes that moved.
    pub moved_bytes: u64,
    /// Number of calls.
    pub calls: u64,
    /// Total time of all calls.
    pub in_calls_ns: u64,
    /// Time of the longest call.
    pub longest_call_ns: u64,
    /// Number of moves that were not tried for lack of time.
    pub left: u64,
}

/// Moves pages, and remembers those that could not be moved.
#[derive(Debug)]
pub struct Mover {
    batches: Batches,
    page_bytes: u64,
    put_off: FxHashMap<Page, RetryAfter>,
    put_off_max: usize,
    round: u64,
}

/// Maximum wait in rounds of a page that could not be moved; waits double from one round.
const ROUNDS_MAX: u64 = 256;
/// Maximum number of calls for what is left of an unfinished batch. Each pinned range of pages takes two calls.
const CALLS_MAX: usize = 16;
/// A status that the kernel never writes.
const NOT_REACHED: i32 = i32::MIN;

impl Mover {
    /// A mover of pages of `page_bytes` that remembers at most `put_off_max` pages that could not be moved.
    pub fn new(limits: Limits, page_bytes: u64, put_off_max: usize, now_ns: u64) -> Self {
        Self {
            batches: Batches::new(limits, now_ns),
            page_bytes,
            put_off: FxHashMap::default(),
            put_off_max,
            round: 0,
        }
    }

    /// Begins an interval.
    pub fn begin_round(&mut self) {
        self.round += 1;
        self.batches.begin_round();
        let round = self.round;
        // Failures are forgotten some time after the wait, so that old ones do not lengthen the next wait.
        self.put_off
            .retain(|_, put_off| put_off.until_round + ROUNDS_MAX > round);
    }

    /// May a page be tried now? A page that could not be moved waits.
    pub fn may_try(&self, page: &Page) -> bool {
        let put_off = self.put_off.get(page);
        put_off.is_none_or(|put_off| put_off.until_round <= self.round)
    }

    /// Carries out moves of one process that [may be tried](Self::may_try), until `deadline_ns`.
    pub fn carry_out(
        &mut self,
        kernel: &mut dyn Kernel,
        process: Identity,
        moves: &[PageMove],
        deadline_ns: u64,
    ) -> Round {
        let mut done = Round::default();
        let mut rest = moves;
        while let Some(first) = rest.first() {
            if self.batches.is_too_long(self.usual_pages(&rest[..1])) {
                done.outcomes.too_long += 1;
                self.put_off(first.page);
                rest = &rest[1..];
                continue;
            }
            let now_ns = kernel.now_ns();
            let (pages, wait_ns) = self.batches.next(self.page_bytes, now_ns);
            if now_ns.saturating_add(wait_ns) >= deadline_ns {
                break;
            }
            if wait_ns > 0 {
                kernel.sleep_ns(wait_ns);
            }
            let (batch, after) = rest.split_at(self.fitting(rest, pages));
            // The check is as late as possible, because the number may have been reused by another process.
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

    /// Size of the moves in pages of the usual size.
    pub fn usual_pages(&self, moves: &[PageMove]) -> usize {
        let bytes: u64 = moves.iter().map(|page_move| page_move.bytes).sum();
        (bytes / self.page_bytes) as usize
    }

    /// Number of moves that fit into the size of `pages` usual pages; at least one.
    pub fn fitting(&self, moves: &[PageMove], pages: usize) -> usize {
        let most_bytes = pages as u64 * self.page_bytes;
        let mut bytes = 0;
        let fitting = moves.iter().take_while(|page_move| {
            bytes += page_move.bytes;
            bytes <= most_bytes
        });
        fitting.count().max(1).min(moves.len())
    }

    /// Makes as many calls as a batch takes: the kernel stops at pages that it cannot move, and reports no status after
    /// them.
    ///
    /// # Errors
    /// The `errno`, if further calls would fail, too.
    fn call(
        &mut self,
        kernel: &mut dyn Kernel,
        pid: u32,
        batch: &[PageMove],
        done: &mut Round,
    ) -> Result<(), i32> {
        let mut left = self.call_once(kernel, pid, batch, done)?;
        for _ in 0..CALLS_MAX {
            let Some(node) = left.first().map(|page_move| page_move.to) else {
                return Ok(());
            };
            let again = self.call_once(kernel, pid, &left, done)?;
            // If nothing moved, the first pages are pinned: those for one node, which the kernel moves together.
            let pinned = match again.len() == left.len() {
                true => again
                    .iter()
                    .take_while(|page_move| page_move.to == node)
                    .count(),
                false => 0,
            };
            let (pinned, after) = again.split_at(pinned);
            done.outcomes.pinned += pinned.len() as u64;
            for page_move in pinned {
                self.put_off(page_move.page);
            }
            left = after.to_vec();
        }
        done.outcomes.busy += left.len() as u64;
        for page_move in left {
            self.put_off(page_move.page);
        }
        Ok(())
    }

    /// Makes one call. Returns the moves at which the kernel stopped, or that it did not reach.
    fn call_once(
        &mut self,
        kernel: &mut dyn Kernel,
        pid: u32,
        batch: &[PageMove],
        done: &mut Round,
    ) -> Result<Vec<PageMove>, i32> {
        let pages: Vec<u64> = batch
            .iter()
            .map(|page_move| page_move.page.address)
            .collect();
        let nodes: Vec<NodeId> = batch.iter().map(|page_move| page_move.to).collect();
        let mut status = vec![NOT_REACHED; batch.len()];
        let began_ns = kernel.now_ns();
        let result = kernel.move_pages(pid, &pages, &nodes, &mut status);
        let elapsed_ns = kernel.now_ns().saturating_sub(began_ns);
        let pages = self.usual_pages(batch);
        self.batches
            .done_moves(batch.len(), pages, self.page_bytes, elapsed_ns);
        done.calls += 1;
        done.in_calls_ns += elapsed_ns;
        done.longest_call_ns = done.longest_call_ns.max(elapsed_ns);
        if let Err(error) = result {
            self.refused(kernel, pid, batch, &error, done)?;
            return Ok(Vec::new());
        }
        let mut left = Vec::new();
        self.ask_where(kernel, pid, batch, &mut status);
        for (page_move, status) in batch.iter().zip(status) {
            match status {
                node if node == i32::from(page_move.to.0) => {
                    done.outcomes.moved += 1;
                    done.moved_bytes += page_move.bytes;
                    done.moved.push(*page_move);
                    self.put_off.remove(&page_move.page);
                }
                NOT_REACHED => left.push(*page_move),
                errno if errno < 0 => {
                    *done.outcomes.refused(-errno) += 1;
                    self.put_off(page_move.page);
                }
                _ => {
                    done.outcomes.other += 1;
                    self.put_off(page_move.page);
                }
            }
        }
        Ok(left)
    }

    /// Asks for the nodes of pages without a status: some may have moved together with one that could not.
    fn ask_where(&self, kernel: &mut dyn Kernel, pid: u32, batch: &[PageMove], status: &mut [i32]) {
        let unknown: Vec<usize> = (0..batch.len())
            .filter(|&at| status[at] == NOT_REACHED)
            .collect();
        if unknown.is_empty() {
            return;
        }
        let pages: Vec<u64> = unknown.iter().map(|&at| batch[at].page.address).collect();
        let mut nodes = vec![NOT_REACHED; pages.len()];
        if kernel.page_nodes(pid, &pages, &mut nodes).is_ok() {
            for (at, node) in unknown.into_iter().zip(nodes) {
                if node < 0 || node == i32::from(batch[at].to.0) {
                    status[at] = node;
                }
            }
        }
    }

    /// Handles a call that was refused as a whole: if one page may be the reason, tries both halves of the batch.
    fn refused(
        &mut self,
        kernel: &mut dyn Kernel,
        pid: u32,
        batch: &[PageMove],
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
        // For a whole call, EACCES means that the target may not use the node.
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
        let put_off = self.put_off.entry(page).or_insert(RetryAfter {
            until_round: 0,
            failures: 0,
        });
        let rounds = (1u64 << put_off.failures.min(32)).min(ROUNDS_MAX);
        put_off.failures += 1;
        put_off.until_round = self.round + 1 + rounds;
    }
}

#[cfg(test)]
mod tests;
