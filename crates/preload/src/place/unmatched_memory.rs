//! The rest: what no rule for an object places, small objects among it. Where it goes is a memory policy
//! of the process (`set_mempolicy`), which the kernel asks wherever memory has none of its own.
//!
//! # Who has the policy
//! The kernel keeps it per thread, and a new thread has its creator's. The first thread sets it in the
//! library's start, before `main`; the creator of the second one, where the rule is [`RULE_LATER`]; any
//! other thread that is without it, at its next event. A thread that the program gave a policy keeps that.
//!
//! # What is not unmatched memory
//! Objects that rules place have policies of their own, and those that rules leave to first touch get
//! MPOL_LOCAL, as do those that wait, those that are placed by touching them, and pieces planned for nodes that are
//! not there. Stacks get it too: the first thread's, and those of threads whose creation is seen. A stack's
//! first pages, with the thread's control block, are touched by its creator, which is why that one creates
//! threads under MPOL_LOCAL. Only what was mapped for a stack is bound, a mapping or two at most, within the plan's limit.
//!
//! # Who must not have it
//! A policy survives `fork`, which is right, and `exec`, which is not. The policy that the process was launched
//! with is set before every `exec` (again ours, at the next event, where that fails) and around `posix_spawn`, `system`
//! and `popen`. What comes by another way (a bare system call) is set right by the library in the program
//! that starts: ours is marked by MPOL_F_STATIC_NODES, which `numactl` does not use.
//! What `nearpage run` itself was launched with is in [`POLICY_VARIABLE`] where it is not the default.
//!
//! # What cannot be kept apart
//! The kernel asks the same policy for pages of files that the process reads in, and for page tables.
//! Automatic NUMA balancing leaves memory with any of these policies where it is.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use nearpage_wire::POLICY_VARIABLE;
use nearpage_wire::compact_plan::{RULE_LATER, Rule, subject};

use super::bind::{self, MemoryPolicy};
use super::counters::{Request, RuleCounters, Switch};
use super::pieces::{Extent, NodeSet, Pattern};
use super::remap::each_mapping;
use super::{State, state};
use crate::plan::Plan;
use crate::sys::{self, Errno};
use crate::thread::Thread;
use crate::{bounds, environment, message};

const EINVAL: Errno = Errno(22);

/// Threads of the process are to have its policy.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// What became of unmatched memory in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// Left to first touch, as planned.
    Left,
    /// Left to first touch until the second thread is created.
    Waits,
    /// The process has its policy.
    Set,
    /// The policy was refused, or could not be taken back.
    Failed,
}

impl Status {
    /// Its name in the summary.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Waits => "waits",
            Self::Set => "set",
            Self::Failed => "failed",
        }
    }
}

/// The rule about unmatched memory, and what of this process matters to it.
pub struct UnmatchedMemory {
    /// Position of its rule in the section.
    pub index: usize,
    /// What the process gets; none: it is left to first touch.
    wanted: Option<MemoryPolicy>,
    /// What it was launched with, unless the kernel does not say.
    launched: Result<MemoryPolicy, Errno>,
    status: AtomicU32,
}

impl UnmatchedMemory {
    /// The section's first rule about unmatched memory, if it makes sense.
    pub(super) fn read(plan: &Plan<'_>, rules: &[Rule], allowed: &NodeSet) -> Option<Self> {
        let is_sound = |rule: &Rule| rule.subject == subject::UNMATCHED && plan.is_sound(rule);
        let index = rules.iter().position(is_sound)?;
        let pattern = plan.pattern(&rules[index])?;
        let nodes = pattern.nodes().intersection(allowed);
        let wanted = match pattern {
            Pattern::Interleave(_) => Some(MemoryPolicy::interleave(nodes)),
            Pattern::Node(_) => Some(MemoryPolicy::preferred(nodes)),
            _ => None,
        };
        Some(Self {
            index,
            wanted: wanted.map(MemoryPolicy::marked),
            launched: bind::policy(),
            status: AtomicU32::new(Status::Left as u32),
        })
    }

    /// What became of it.
    pub fn status(&self) -> Status {
        let number = self.status.load(Relaxed);
        [Status::Waits, Status::Set, Status::Failed]
            .into_iter()
            .find(|status| *status as u32 == number)
            .unwrap_or(Status::Left)
    }

    fn is(&self, status: Status) {
        self.status.store(status as u32, Relaxed);
        IS_WANTED.store(status == Status::Set, Release);
    }

    /// Gives the calling thread the policy, unless the program gave it one.
    fn follow(&self) -> Result<(), Errno> {
        if let Some(wanted) = &self.wanted
            && bind::policy()? == self.launched?
        {
            bind::set_policy(wanted)?;
        }
        Ok(())
    }

    /// Has the calling thread the policy?
    fn is_followed(&self) -> bool {
        self.status() == Status::Set && bind::policy().is_ok_and(|now| now.is_marked())
    }

    /// Does `work` under another policy where the calling thread has that of unmatched memory; says whether.
    fn aside<T>(&self, other: &MemoryPolicy, work: impl FnOnce(bool) -> T) -> T {
        let is_aside = self.is_followed() && bind::set_policy(other).is_ok();
        let done = work(is_aside);
        if is_aside {
            resume();
        }
        done
    }
}

/// Takes back a policy of unmatched memory that an earlier program left behind, which had no occasion to.
pub(super) fn shed(plan: &Plan<'_>) {
    if plan.places_rest() && bind::policy().is_ok_and(|found| found.is_marked()) {
        let launched = environment::variable(POLICY_VARIABLE).and_then(MemoryPolicy::parse);
        let _ = bind::set_policy(&launched.unwrap_or(MemoryPolicy::DEFAULT));
    }
}

fn rest() -> Option<&'static UnmatchedMemory> {
    state()?.rest.as_ref()
}

/// Is there a policy that threads are to have?
#[inline]
pub fn is_wanted() -> bool {
    IS_WANTED.load(Relaxed)
}

/// Gives the calling thread the policy of unmatched memory, unless the program gave it one.
#[cold]
pub fn follow() {
    if let Some(rest) = rest() {
        let _ = rest.follow();
    }
}

/// Gives the calling thread the policy of unmatched memory: its creator had it, and put it aside.
pub fn resume() {
    if let Some(rest) = rest()
        && let Some(wanted) = &rest.wanted
    {
        let _ = bind::set_policy(wanted);
    }
}

/// The calling thread is about to become another program: what that is launched with is what this one
/// was. In the child of a `vfork` too, which has a policy of its own and its parent's memory.
pub fn leave() {
    if is_wanted()
        && let Some(rest) = rest()
        && let Ok(launched) = &rest.launched
        && rest.is_followed()
    {
        let _ = bind::set_policy(launched);
        // SAFETY: the calling thread's own state; one word is written.
        unsafe { (*Thread::current()).follows_unmatched = false };
    }
}

/// No thread gets or leaves the policy from here on: system calls are filtered.
pub fn stop() {
    IS_WANTED.store(false, Release);
}

/// Does `work`, which starts another program.
pub fn launching<T>(work: impl FnOnce() -> T) -> T {
    match rest() {
        Some(rest) if is_wanted() => match &rest.launched {
            Ok(launched) => rest.aside(launched, |_| work()),
            Err(_) => work(),
        },
        _ => work(),
    }
}

/// Does `work`, which creates a thread and learns whether that has to [`resume`].
pub fn creating_thread<T>(work: impl FnOnce(bool) -> T) -> T {
    match rest() {
        Some(rest) if is_wanted() => rest.aside(&MemoryPolicy::LOCAL, work),
        _ => work(false),
    }
}

/// A stack was mapped for the calling thread, or given to it: see [`bounds::stack_pages`].
pub fn stack_begins(pages: impl FnOnce(usize) -> Option<(usize, usize)>) {
    if let Some(state) = state()
        && state.spreads()
        && let Some((start, end)) = pages(state.plan.header.page_bytes as usize)
    {
        state.keep_stack(start, end);
    }
}

impl State {
    /// Is memory without a policy of its own spread, or will it be?
    pub(super) fn spreads(&self) -> bool {
        let spreads = |rest: &UnmatchedMemory| matches!(rest.status(), Status::Set | Status::Waits);
        self.rest.as_ref().is_some_and(spreads)
    }

    /// The same of memory at an address, which may be of a heap with a policy.
    pub(super) fn spreads_at(&self, address: usize) -> bool {
        self.spreads() || self.is_in_placed_heap(address)
    }

    fn unmatched_counters(&self, rest: &UnmatchedMemory) -> Option<&'static RuleCounters> {
        self.section.counters.get(rest.index)
    }

    fn unmatched_is_later(&self, rest: &UnmatchedMemory) -> bool {
        let rule = self.section.rules.get(rest.index);
        rule.is_some_and(|rule| rule.flags & RULE_LATER != 0)
    }

    /// Sets the policy, or has it wait for the second thread. Before objects are placed.
    pub(super) fn start_rest(&self) {
        let Some(rest) = &self.rest else { return };
        let Some(wanted) = &rest.wanted else {
            return rest.is(Status::Left);
        };
        if let Some(error) = bind::refusal() {
            // Memory that is to stay local could not be kept local.
            self.refused(error);
            return self.unmatched_failed(rest, Request::Bind, error);
        }
        if wanted.nodes.is_empty() {
            message::line(format_args!(
                "unmatched memory stays where it is first touched: this process may have memory on none of its nodes \
                 (see Mems_allowed_list in /proc/self/status)"
            ));
            return self.unmatched_failed(rest, Request::MemoryPolicy, EINVAL);
        }
        if let Err(error) = rest.launched {
            return self.unmatched_refused(rest, error);
        }
        rest.is(Status::Waits);
        if sys::gettid() == sys::getpid()
            && let Some((start, end)) = bounds::main_stack_mapping()
        {
            self.keep_stack(start, end);
        }
        if !self.unmatched_is_later(rest) {
            self.spread(rest);
        }
    }

    fn spread(&self, rest: &UnmatchedMemory) {
        match rest.follow() {
            Ok(()) => rest.is(Status::Set),
            Err(error) => self.unmatched_refused(rest, error),
        }
    }

    fn unmatched_refused(&self, rest: &UnmatchedMemory, error: Errno) {
        message::line(format_args!(
            "unmatched memory stays where it is first touched: set_mempolicy gives error {}, perhaps by a container's \
             seccomp profile",
            error.0
        ));
        self.unmatched_failed(rest, Request::MemoryPolicy, error);
    }

    fn unmatched_failed(&self, rest: &UnmatchedMemory, request: Request, error: Errno) {
        rest.is(Status::Failed);
        if let Some(counters) = self.unmatched_counters(rest) {
            counters.failures.add(request, error, 1);
        }
    }

    /// The second thread is about to be created, or was met, and objects that waited have their places: sets
    /// the policy and moves what is there of anonymous memory that has none of its own.
    pub(super) fn spread_later(&self) {
        let Some(rest) = self
            .rest
            .as_ref()
            .filter(|rest| rest.status() == Status::Waits)
        else {
            return;
        };
        let Some(counters) = self.unmatched_counters(rest) else {
            return self.spread(rest);
        };
        let switch = Switch::begin(counters);
        self.spread(rest);
        let (Status::Set, Some(pattern)) = (
            rest.status(),
            self.section
                .rules
                .get(rest.index)
                .and_then(|rule| self.plan.pattern(rule)),
        ) else {
            return;
        };
        let known = each_mapping(|mapping| {
            if mapping.is_private_memory && bind::has_no_policy(mapping.start) {
                let extent = self.extent(mapping.start, mapping.end - mapping.start);
                bind::move_present(extent, &pattern, &self.allowed, counters);
            }
        });
        if let Err(error) = known {
            counters.failures.add(Request::Move, error, 1);
        }
        super::count(&counters.switched);
        switch.end();
    }

    /// A forked process whose rest waits for the second thread waits for its own.
    pub(super) fn forked_rest(&self) {
        if let Some(rest) = &self.rest
            && rest.status() == Status::Set
            && self.unmatched_is_later(rest)
            && let Ok(launched) = &rest.launched
        {
            if rest.is_followed() {
                let _ = bind::set_policy(launched);
            }
            rest.is(Status::Waits);
        }
    }

    /// Leaves an object to whoever touches it first, where memory without a policy is spread.
    pub(super) fn keep_local(
        &self,
        extent: Extent,
        counters: &RuleCounters,
        origin: Option<super::Origin>,
    ) {
        let spreads = self.spreads_at(extent.address);
        let Some(pages) = extent.pages().filter(|_| spreads) else {
            return;
        };
        let Some(granted) = self.claim(extent.address, pages, 2, counters, origin) else {
            return;
        };
        let (start, end) = pages;
        let huge = self.plan.header.huge_page_bytes as usize;
        let kept = match bind::keep_local(start, end) {
            // Explicit huge pages, of which the kernel splits no mapping.
            Err(EINVAL) => bind::keep_local(start, end.next_multiple_of(huge)),
            kept => kept,
        };
        if let Err(error) = kept {
            counters.failures.add(Request::Bind, error, 1);
            if origin.is_some() {
                self.placed.remove(extent.address);
            }
            self.mappings.give_back(granted);
        }
    }

    /// The same for a stack. One that the C library kept has its policy from the thread before, and the
    /// program may have given it one.
    fn keep_stack(&self, start: usize, end: usize) {
        if !bind::has_no_policy(start) && !bind::has_no_policy(end - 1) {
            return;
        }
        let Some(counters) = self
            .rest
            .as_ref()
            .and_then(|rest| self.unmatched_counters(rest))
        else {
            return;
        };
        let granted = self.mappings.take(2, 2);
        if granted < 2 {
            return super::count(&counters.no_room);
        }
        if let Err(error) = bind::keep_local(start, end) {
            counters.failures.add(Request::Bind, error, 1);
            self.mappings.give_back(granted);
        }
    }
}
