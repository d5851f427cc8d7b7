//! Unmatched memory: all memory that no rule for an object places, such as small objects. It is placed by a memory policy
//! of the process (`set_mempolicy`), which the kernel follows wherever memory has no policy of its own.
//!
//! # Which threads have the policy
//! The kernel keeps this policy per thread, and a new thread inherits its creator's. The first thread sets it when the
//! library starts, before `main`. If the rule is [`RULE_LATER`], the creator of the second thread sets it. Any other thread
//! without it sets it at its next hooked call. A thread to which the program gave a policy keeps that one.
//!
//! # Memory that is kept out
//! Objects that rules place have policies of their own. MPOL_LOCAL keeps other memory out: objects that rules leave to
//! first touch, objects that wait, objects that are placed by touching them, and pieces planned for nodes that
//! do not exist. It also keeps out stacks: the first thread's, and those of threads whose creation is seen. The creator of
//! a thread touches the first pages of its stack, with the thread's control block, so it creates threads under MPOL_LOCAL.
//! A stack takes one or two mappings, within the plan's limit; memory around it stays as it is.
//!
//! # Programs that must not inherit the policy
//! A forked process should inherit the policy, an executed program should not. Therefore the policy with which the process
//! was launched is restored before every `exec` and around `posix_spawn`, `system` and `popen`. If the `exec` fails, the
//! thread gets the policy again at its next hooked call. A program that is executed by a bare system call inherits the
//! policy, and this library removes it there: the policy is marked by MPOL_F_STATIC_NODES, which `numactl` does not use.
//! If `nearpage run` itself was launched with another policy than the default, [`POLICY_VARIABLE`] holds that policy.
//!
//! # Limits
//! The kernel follows the same policy for pages of files that the process reads, and for page tables.
//! Automatic NUMA balancing does not move memory with any of these policies.

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

/// The process has a policy that its threads are to have.
static IS_ACTIVE: AtomicBool = AtomicBool::new(false);

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
    /// The kernel refused the policy, or its removal.
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

/// The placement of unmatched memory in this process.
pub struct UnmatchedMemory {
    /// Position of its rule in the section.
    pub index: usize,
    /// The policy that threads get; `None`: unmatched memory is left to first touch.
    wanted: Option<MemoryPolicy>,
    /// The policy with which the process was launched, or why the kernel does not tell it.
    launched: Result<MemoryPolicy, Errno>,
    status: AtomicU32,
}

impl UnmatchedMemory {
    /// Reads the section's first rule about unmatched memory, if that rule is sound.
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

    /// What became of unmatched memory.
    pub fn status(&self) -> Status {
        let number = self.status.load(Relaxed);
        [Status::Waits, Status::Set, Status::Failed]
            .into_iter()
            .find(|status| *status as u32 == number)
            .unwrap_or(Status::Left)
    }

    fn is(&self, status: Status) {
        self.status.store(status as u32, Relaxed);
        IS_ACTIVE.store(status == Status::Set, Release);
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

    /// Does `work` under the policy `other` if the calling thread has the policy of unmatched memory, and tells `work` so.
    fn under_other_policy<T>(&self, other: &MemoryPolicy, work: impl FnOnce(bool) -> T) -> T {
        let is_aside = self.is_followed() && bind::set_policy(other).is_ok();
        let done = work(is_aside);
        if is_aside {
            resume();
        }
        done
    }
}

/// Removes a policy of unmatched memory that the process inherited from an earlier program.
pub(super) fn drop_inherited(plan: &Plan<'_>) {
    if plan.places_unmatched() && bind::policy().is_ok_and(|found| found.is_marked()) {
        let launched = environment::variable(POLICY_VARIABLE).and_then(MemoryPolicy::parse);
        let _ = bind::set_policy(&launched.unwrap_or(MemoryPolicy::DEFAULT));
    }
}

fn unmatched() -> Option<&'static UnmatchedMemory> {
    state()?.unmatched.as_ref()
}

/// Is there a policy that threads are to have?
#[inline]
pub fn is_active() -> bool {
    IS_ACTIVE.load(Relaxed)
}

/// Gives the calling thread the policy of unmatched memory, unless the program gave it one.
#[cold]
pub fn follow() {
    if let Some(unmatched) = unmatched() {
        let _ = unmatched.follow();
    }
}

/// Gives the calling thread the policy of unmatched memory, which its creator had set aside.
pub fn resume() {
    if let Some(unmatched) = unmatched()
        && let Some(wanted) = &unmatched.wanted
    {
        let _ = bind::set_policy(wanted);
    }
}

/// Restores the policy with which this process was launched: the calling thread is about to execute another program. That
/// may be the child of a `vfork`, which shares its parent's memory but has a policy of its own.
pub fn leave() {
    if is_active()
        && let Some(unmatched) = unmatched()
        && let Ok(launched) = &unmatched.launched
        && unmatched.is_followed()
    {
        let _ = bind::set_policy(launched);
        // SAFETY: the calling thread's own state; one word is written.
        unsafe { (*Thread::current()).follows_unmatched = false };
    }
}

/// Makes no system call for policies from now on: the program filters its system calls.
pub fn stop() {
    IS_ACTIVE.store(false, Release);
}

/// Does `work`, which starts another program, under the policy with which this process was launched.
pub fn launching<T>(work: impl FnOnce() -> T) -> T {
    match unmatched() {
        Some(unmatched) if is_active() => match &unmatched.launched {
            Ok(launched) => unmatched.under_other_policy(launched, |_| work()),
            Err(_) => work(),
        },
        _ => work(),
    }
}

/// Does `work`, which creates a thread, under MPOL_LOCAL. `work` is told whether the thread has to [`resume`].
pub fn creating_thread<T>(work: impl FnOnce(bool) -> T) -> T {
    match unmatched() {
        Some(unmatched) if is_active() => unmatched.under_other_policy(&MemoryPolicy::LOCAL, work),
        _ => work(false),
    }
}

/// Keeps the calling thread's stack, given by [`bounds::stack_pages`], local.
pub fn stack_begins(pages: impl FnOnce(usize) -> Option<(usize, usize)>) {
    if let Some(state) = state()
        && state.spreads()
        && let Some((start, end)) = pages(state.plan.header.page_bytes as usize)
    {
        state.keep_stack(start, end);
    }
}

impl State {
    /// Is unmatched memory spread by a policy, or will it be?
    pub(super) fn spreads(&self) -> bool {
        let spreads =
            |unmatched: &UnmatchedMemory| matches!(unmatched.status(), Status::Set | Status::Waits);
        self.unmatched.as_ref().is_some_and(spreads)
    }

    /// Is memory at an address spread by a policy of the process or of the heap?
    pub(super) fn spreads_at(&self, address: usize) -> bool {
        self.spreads() || self.is_in_placed_heap(address)
    }

    fn unmatched_counters(&self, unmatched: &UnmatchedMemory) -> Option<&'static RuleCounters> {
        self.section.counters.get(unmatched.index)
    }

    fn unmatched_is_later(&self, unmatched: &UnmatchedMemory) -> bool {
        let rule = self.section.rules.get(unmatched.index);
        rule.is_some_and(|rule| rule.flags & RULE_LATER != 0)
    }

    /// Sets the policy, or has it wait for the second thread. To be called before objects are placed.
    pub(super) fn start_unmatched(&self) {
        let Some(unmatched) = &self.unmatched else {
            return;
        };
        let Some(wanted) = &unmatched.wanted else {
            return unmatched.is(Status::Left);
        };
        if let Some(error) = bind::refusal() {
            // Without memory policies, no memory can be kept local.
            self.refused(error);
            return self.unmatched_failed(unmatched, Request::Bind, error);
        }
        if wanted.nodes.is_empty() {
            message::line(format_args!(
                "unmatched memory stays where it is first touched: this process may have memory on none of its nodes \
                 (see Mems_allowed_list in /proc/self/status)"
            ));
            return self.unmatched_failed(unmatched, Request::MemoryPolicy, EINVAL);
        }
        if let Err(error) = unmatched.launched {
            return self.unmatched_refused(unmatched, error);
        }
        unmatched.is(Status::Waits);
        if sys::gettid() == sys::getpid()
            && let Some((start, end)) = bounds::main_stack_mapping()
        {
            self.keep_stack(start, end);
        }
        if !self.unmatched_is_later(unmatched) {
            self.spread(unmatched);
        }
    }

    fn spread(&self, unmatched: &UnmatchedMemory) {
        match unmatched.follow() {
            Ok(()) => unmatched.is(Status::Set),
            Err(error) => self.unmatched_refused(unmatched, error),
        }
    }

    fn unmatched_refused(&self, unmatched: &UnmatchedMemory, error: Errno) {
        message::line(format_args!(
            "unmatched memory stays where it is first touched: set_mempolicy gives error {}, perhaps by a container's \
             seccomp profile",
            error.0
        ));
        self.unmatched_failed(unmatched, Request::MemoryPolicy, error);
    }

    fn unmatched_failed(&self, unmatched: &UnmatchedMemory, request: Request, error: Errno) {
        unmatched.is(Status::Failed);
        if let Some(counters) = self.unmatched_counters(unmatched) {
            counters.failures.add(request, error, 1);
        }
    }

    /// Sets a policy that waited for the second thread, and moves the present pages of anonymous memory without a policy of
    /// its own. To be called after waiting objects have been placed.
    pub(super) fn spread_later(&self) {
        let Some(unmatched) = self
            .unmatched
            .as_ref()
            .filter(|unmatched| unmatched.status() == Status::Waits)
        else {
            return;
        };
        let Some(counters) = self.unmatched_counters(unmatched) else {
            return self.spread(unmatched);
        };
        let switch = Switch::begin(counters);
        self.spread(unmatched);
        let (Status::Set, Some(pattern)) = (
            unmatched.status(),
            self.section
                .rules
                .get(unmatched.index)
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

    /// In a forked process, a policy that waits for the second thread waits again, for this process's own second thread.
    pub(super) fn forked_unmatched(&self) {
        if let Some(unmatched) = &self.unmatched
            && unmatched.status() == Status::Set
            && self.unmatched_is_later(unmatched)
            && let Ok(launched) = &unmatched.launched
        {
            if unmatched.is_followed() {
                let _ = bind::set_policy(launched);
            }
            unmatched.is(Status::Waits);
        }
    }

    /// Leaves an object to first touch, by MPOL_LOCAL where unmatched memory is spread.
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
            // These are explicit huge pages: the kernel does not split a mapping within one.
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

    /// Leaves a stack to first touch. A stack that the C library reuses has this policy from an earlier thread, and the
    /// program may have set one of its own.
    fn keep_stack(&self, start: usize, end: usize) {
        if !bind::has_no_policy(start) && !bind::has_no_policy(end - 1) {
            return;
        }
        let Some(counters) = self
            .unmatched
            .as_ref()
            .and_then(|unmatched| self.unmatched_counters(unmatched))
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
