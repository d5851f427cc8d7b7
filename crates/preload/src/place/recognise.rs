//! Finds the rule of an object: the first rule that fits wins.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use nearpage_wire::CALL_SITE_DEPTH_MAX;
use nearpage_wire::compact_plan::{FrameRange, NONE, Rule, subject};

use super::counters::RuleCounters;
use super::memory::Zeroed;
use super::order::{Orders, Threads, spread};
use crate::modules::{Modules, Place};
use crate::plan::Plan;

/// Most call sites whose rules are cached; for further call sites, all rules are tried every time.
const SITES_MAX: usize = 1 << 12;
/// Most rules cached per call site; for a site with more, all rules are tried every time.
const RULES_MAX: usize = 29;
const PROBES: usize = 8;

/// Where an object's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The heap.
    Heap,
    /// A mapping of the program's own.
    Mapping,
}

/// The rules that may fit objects of a call site, in order.
#[derive(Clone, Copy)]
struct Candidates {
    rules: [u32; RULES_MAX],
    /// A number above [`RULES_MAX`]: any rule may fit.
    count: u32,
}

/// Candidates by call site. Zeroed memory has none.
pub struct CallSites {
    sites: [CallSite; SITES_MAX],
}

struct CallSite {
    /// [`FREE`], [`BEING_WRITTEN`], or a hash of the return addresses.
    key: AtomicU64,
    count: AtomicU32,
    rules: [AtomicU32; RULES_MAX],
}

const FREE: u64 = 0;
const BEING_WRITTEN: u64 = 1;

// SAFETY: atomics only.
unsafe impl Zeroed for CallSites {}

impl CallSites {
    fn slots(&self, key: u64) -> impl Iterator<Item = &CallSite> {
        let start = spread(key);
        (0..PROBES).map(move |probe| &self.sites[(start + probe) % SITES_MAX])
    }

    fn find(&self, key: u64) -> Option<Candidates> {
        let site = self.slots(key).find(|site| site.key.load(Acquire) == key)?;
        let mut candidates = Candidates {
            rules: [0; RULES_MAX],
            count: site.count.load(Relaxed),
        };
        for (to, from) in candidates
            .rules
            .iter_mut()
            .zip(&site.rules)
            .take(candidates.count as usize)
        {
            *to = from.load(Relaxed);
        }
        Some(candidates)
    }

    fn remember(&self, key: u64, candidates: &Candidates) {
        let claimed = self.slots(key).find(|site| {
            site.key.load(Relaxed) == FREE
                && site
                    .key
                    .compare_exchange(FREE, BEING_WRITTEN, Relaxed, Relaxed)
                    .is_ok()
        });
        if let Some(site) = claimed {
            site.count.store(candidates.count, Relaxed);
            for (to, from) in site.rules.iter().zip(candidates.rules) {
                to.store(from, Relaxed);
            }
            site.key.store(key, Release);
        }
    }
}

/// A call site as the plan's rules see it: runtime modules' frames left out.
struct Stack<'table> {
    frames: [Option<Place<'table>>; CALL_SITE_DEPTH_MAX],
    depth: usize,
}

impl<'table> Stack<'table> {
    fn of(frames: &[usize], modules: &'table Modules) -> Self {
        let mut stack = Self {
            frames: [None; CALL_SITE_DEPTH_MAX],
            depth: 0,
        };
        let own = frames.iter().map(|frame| modules.find(*frame));
        let own = own.filter(|place| !place.is_some_and(|place| place.module.is_runtime()));
        for (to, from) in stack.frames.iter_mut().zip(own) {
            *to = from;
            stack.depth += 1;
        }
        stack
    }

    /// Are the rule's frames the innermost of the stack? A frame in no known module fits no rule.
    fn fits(&self, ranges: &[FrameRange]) -> bool {
        ranges.len() <= self.depth
            && ranges.iter().zip(&self.frames).all(|(range, place)| {
                place.is_some_and(|place| {
                    (range.low..=range.high).contains(&place.file_address)
                        && place.module.is(range.module)
                })
            })
    }
}

/// The plan and this process, as far as they decide which rule an object has.
#[derive(Clone, Copy)]
pub struct Recogniser<'a> {
    /// The plan.
    pub plan: &'a Plan<'a>,
    /// The section's rules.
    pub rules: &'a [Rule],
    /// Their counters.
    pub counters: &'a [RuleCounters],
    /// Loaded modules.
    pub modules: &'a Modules,
    /// The cache.
    pub sites: &'a CallSites,
    /// Allocations so far.
    pub orders: &'a Orders,
    /// Threads so far.
    pub threads: &'a Threads,
}

impl Recogniser<'_> {
    /// Marks rules that make no sense, and gives rules with an order the counter they share with
    /// others of the same call site and size range.
    pub fn prepare(&self) {
        for (index, (rule, counters)) in self.rules.iter().zip(self.counters).enumerate() {
            counters
                .ignored
                .store((!self.plan.is_sound(rule)).into(), Relaxed);
            if rule.subject == subject::CALL_SITE && rule.is_numbered() {
                let alike = |other: &&Rule| {
                    other.subject == subject::CALL_SITE
                        && other.is_numbered()
                        && other.size_bounds_bytes == rule.size_bounds_bytes
                        && (other.frames == rule.frames
                            || self.plan.frames(other) == self.plan.frames(rule))
                };
                let group = self
                    .rules
                    .iter()
                    .take(index)
                    .position(|other| alike(&other))
                    .unwrap_or(index);
                counters.group.store(group as u32, Relaxed);
            }
        }
    }

    /// The size of the smallest heap object or mapping that any rule concerns.
    pub fn size_bytes_min(&self) -> usize {
        let asked = |rule: &Rule| {
            // Smaller objects are never placed, but they count where a rule numbers allocations.
            let least = if rule.is_numbered() {
                1
            } else {
                u64::from(self.plan.header.page_bytes)
            };
            rule.size_bounds_bytes[0].max(least)
        };
        let rules = self.rules.iter().zip(self.counters);
        rules
            .filter(|(rule, counters)| {
                matches!(
                    rule.subject,
                    subject::CALL_SITE | subject::HEAP | subject::MAPPING
                ) && counters.ignored.load(Relaxed) == 0
            })
            .map(|(rule, _)| usize::try_from(asked(rule)).unwrap_or(usize::MAX))
            .min()
            .unwrap_or(usize::MAX)
    }

    /// Finds the rule of a new object, and counts the object at its call site.
    pub fn recognise(&self, origin: Origin, size_bytes: usize, frames: &[usize]) -> Option<usize> {
        let candidates = self.candidates(frames);
        let listed = candidates.rules.get(..candidates.count as usize);
        // The stack is needed only if the cache does not list all rules.
        let stack = listed.is_none().then(|| Stack::of(frames, self.modules));
        let all = if listed.is_none() {
            0..self.rules.len()
        } else {
            0..0
        };
        let indices = listed
            .unwrap_or_default()
            .iter()
            .map(|index| *index as usize)
            .chain(all);

        let mut winner = None;
        let mut thread = None;
        let mut numbered = [(NONE, None); 16];
        for index in indices {
            let (Some(rule), Some(counters)) = (self.rules.get(index), self.counters.get(index))
            else {
                break;
            };
            let [least, greatest] = rule.size_bounds_bytes;
            let fits = (least..=greatest).contains(&(size_bytes as u64))
                && counters.ignored.load(Relaxed) == 0
                && match (rule.subject, origin) {
                    (subject::HEAP, Origin::Heap) | (subject::MAPPING, Origin::Mapping) => true,
                    (subject::CALL_SITE, _) => stack.as_ref().is_none_or(|stack| {
                        self.plan.frames(rule).is_some_and(|own| stack.fits(own))
                    }),
                    _ => false,
                };
            if !fits {
                continue;
            }
            let is_site = rule.subject == subject::CALL_SITE;
            if !is_site || (rule.thread == NONE && !rule.is_numbered()) {
                winner = winner.or(Some(index));
                continue;
            }
            let thread = *thread.get_or_insert_with(|| self.threads.current().unwrap_or(NONE));
            let number = if rule.is_numbered() {
                self.number(counters.group.load(Relaxed), thread, &mut numbered)
            } else {
                Some(0)
            };
            if (rule.thread == NONE || rule.thread == thread)
                && number.is_some_and(|number| rule.takes_number(number))
            {
                winner = winner.or(Some(index));
            }
        }
        winner
    }

    /// The allocation's number in a group of rules; counted once, however many rules ask for it.
    fn number(
        &self,
        group: u32,
        thread: u32,
        numbered: &mut [(u32, Option<u32>); 16],
    ) -> Option<u32> {
        let slot = numbered
            .iter()
            .position(|(known, _)| *known == group || *known == NONE)?;
        if numbered[slot].0 == NONE {
            numbered[slot] = (group, self.orders.next(group, thread));
        }
        numbered[slot].1
    }

    fn candidates(&self, frames: &[usize]) -> Candidates {
        let key = frames
            .iter()
            .fold(u64::from(self.modules.generation()), |hash, frame| {
                (hash.rotate_left(5) ^ *frame as u64).wrapping_mul(0x517c_c1b7_2722_0a95)
            })
            .max(BEING_WRITTEN + 1);
        if let Some(known) = self.sites.find(key) {
            return known;
        }
        let stack = Stack::of(frames, self.modules);
        let mut candidates = Candidates {
            rules: [0; RULES_MAX],
            count: 0,
        };
        for (index, rule) in self.rules.iter().enumerate() {
            let fits = match rule.subject {
                subject::HEAP | subject::MAPPING => true,
                subject::CALL_SITE => self
                    .plan
                    .frames(rule)
                    .is_some_and(|ranges| stack.fits(ranges)),
                _ => false,
            };
            if fits {
                if let Some(slot) = candidates.rules.get_mut(candidates.count as usize) {
                    *slot = index as u32;
                }
                candidates.count += 1;
            }
            if candidates.count as usize > RULES_MAX {
                break;
            }
        }
        self.sites.remember(key, &candidates);
        candidates
    }
}

#[cfg(test)]
mod tests;
