//! Inputs of a decision: the interval's samples, with the numbers and nodes of their pages.

use nearpage_machine::{CpuId, NodeId};

use super::{Daemon, Estimate, narrow, node_of};
use crate::address_space::AddressSpace;
use crate::decide::{Interval, ObservedAccess, PageRenumbering, ThreadTotals};
use crate::free_memory::FreeMemory;
use crate::kernel::Kernel;
use crate::observer::{Observer, SampledAccess};
use crate::pages::{LOOKUP_BATCH, Page, PageLookup, PageNumber, ProcessIndex};
use crate::process::TargetProcess;
use crate::tally::Tally;

impl Daemon {
    /// The inputs of a decision, and the tally of accesses by node.
    pub(super) fn interval(
        &mut self,
        observer: &Observer,
        kernel: &mut dyn Kernel,
        free: &FreeMemory,
        now_ns: u64,
    ) -> (Interval, Tally) {
        let mut interval = Interval {
            begin_ns: self.interval_begin_ns,
            end_ns: now_ns,
            accesses_per_thousand: self.accesses_per_thousand(observer),
            free_per_10000: free.per_10000(),
            full: (0..self.nodes.len())
                .map(|node| free.is_full(node))
                .collect(),
            settled: self.pending_actions.take_settled(),
            forgotten: std::mem::take(&mut self.forgotten),
            move_ns: self.moves_ns,
            ..Interval::default()
        };
        let (mut placed, answers) = self.find_pages(observer, &mut interval);
        let (nodes, by_pid) = (&self.nodes, observer.processes());
        self.homes.query(
            kernel,
            &answers,
            |process| by_pid[process.0 as usize].pid,
            |node| {
                let node = NodeId(u16::try_from(node).ok()?);
                Some(nodes.iter().position(|id| *id == node)? as u16)
            },
        );
        let mut tally = Tally::of(nodes.len(), observer);
        // Observations without a known home are removed. Renumberings keep their place among the others.
        let mut next_placed = placed.iter_mut().peekable();
        let mut kept = 0;
        for (at, answer) in answers.into_iter().enumerate() {
            while let Some(placed) = next_placed.next_if(|placed| placed.after <= at) {
                placed.after = kept;
            }
            let Some(home) = self.homes.answer(answer) else {
                continue;
            };
            let observed = ObservedAccess {
                home,
                ..interval.observations[at]
            };
            tally.count(&observed);
            self.interleaved.sampled(observed.page, observed.node);
            interval.observations[kept] = observed;
            kept += 1;
        }
        for placed in next_placed {
            placed.after = kept;
        }
        self.without_node += (interval.observations.len() - kept) as u64;
        interval.observations.truncate(kept);
        interval.placed = placed;
        for (number, thread) in observer.threads().iter().enumerate() {
            let node = thread.cpu.and_then(|cpu| node_of(&self.node_of_cpu, cpu));
            let (true, Some(node)) = (thread.live, node) else {
                continue;
            };
            let [reads, writes] = tally.reads_and_writes(number);
            interval.threads.push(ThreadTotals {
                thread: number as u32,
                process: narrow(thread.process),
                node,
                busy_ns: thread.busy_ns,
                reads,
                writes,
            });
        }
        (interval, tally)
    }

    /// Number of memory accesses that a thousand samples of the interval stand for: more if samples are rarer.
    pub(super) fn accesses_per_thousand(&self, observer: &Observer) -> u64 {
        let samples = observer.seen().len().max(1) as f64;
        let accesses = match self.settings.estimate {
            Estimate::TimeLost { latency_ns } => observer.lost_ns() / latency_ns.max(1.0),
            Estimate::Weights => observer.weight(),
        };
        (1000.0 * accesses / samples) as u64
    }

    /// Finds the numbers of all sampled pages. Adds observations with unknown homes, and returns for each of them the
    /// position of the answer about its home. Samples of pages without room in the table are counted.
    fn find_pages(
        &mut self,
        observer: &Observer,
        interval: &mut Interval,
    ) -> (Vec<PageRenumbering>, Vec<u32>) {
        let Self {
            settings,
            node_of_cpu,
            pages,
            homes,
            interleaved,
            processes,
            without_node,
            ..
        } = self;
        let page_bytes = settings.page_bytes;
        let length_ns = interval.end_ns - interval.begin_ns;
        let (seen, threads) = (observer.seen(), observer.threads());
        let mut placed = Vec::new();
        let mut answers = Vec::with_capacity(seen.len());
        interval.observations.reserve(seen.len());
        homes.begin();
        // Samples of a process are often consecutive, so its address space is looked up once.
        let mut of_process: Option<(ProcessIndex, Option<&AddressSpace>)> = None;
        let mut page = |seen: &SampledAccess| {
            let process = threads[seen.thread.0 as usize].process;
            let space = match of_process {
                Some((last, space)) if last == process => space,
                _ => {
                    let space = processes.get(&process).map(TargetProcess::space);
                    of_process = Some((process, space));
                    space
                }
            };
            let address = page_address(space, seen.address, page_bytes);
            Page { process, address }
        };
        let some = |at: usize| {
            let begin = (at * LOOKUP_BATCH).min(seen.len());
            &seen[begin..(begin + LOOKUP_BATCH).min(seen.len())]
        };
        // Three stages run in parallel: prefetching hashes, prefetching page state, and taking samples in.
        let mut lookups = [PageLookup::NONE; 3];
        let mut latest_ns = 0;
        for at in 0..seen.len().div_ceil(LOOKUP_BATCH) + 2 {
            pages.prefetch_entries(&mut lookups[at % 3], some(at).iter().map(&mut page));
            pages.prefetch_state(&mut lookups[(at + 2) % 3], |number| {
                homes.fetch_ahead(number)
            });
            let Some(at) = at.checked_sub(2) else {
                continue;
            };
            let here = &lookups[at % 3];
            for (of_here, seen) in some(at).iter().enumerate() {
                let Some(node) = node_of(node_of_cpu, CpuId(seen.cpu.into())) else {
                    continue;
                };
                // Times of samples are made monotonic: the kernel's order of time has a few exceptions.
                latest_ns = seen
                    .time_ns
                    .saturating_sub(interval.begin_ns)
                    .max(latest_ns);
                let touched = pages.touch(here, of_here, |number| homes.fetch_ahead(number));
                if touched.is_left_out() {
                    *without_node += 1;
                    continue;
                }
                let PageNumber { number, new } = touched;
                let Page { process, address } = here.page(of_here);
                if new {
                    homes.forget(number);
                    interleaved.forget(number);
                    placed.push(PageRenumbering {
                        after: answers.len(),
                        page: number,
                        process: narrow(process),
                        number: address / page_bytes,
                    });
                }
                let after_ns = latest_ns.min(length_ns);
                interval
                    .observations
                    .push(observed(seen, number, node, after_ns));
                // The kernel is asked about the sampled small page, which exists even if the huge page is not whole.
                let small = seen.address & !(page_bytes - 1);
                answers.push(homes.sampled(number, process, small));
            }
        }
        (placed, answers)
    }
}

/// Address of the page that contains an address.
#[inline]
fn page_address(space: Option<&AddressSpace>, address: u64, page_bytes: u64) -> u64 {
    match space {
        Some(space) => space.page(address, page_bytes).0,
        None => address & !(page_bytes - 1),
    }
}

/// An observation of a page whose home is not known yet.
#[inline]
fn observed(seen: &SampledAccess, page: u32, node: u16, after_ns: u64) -> ObservedAccess {
    ObservedAccess {
        after_ns,
        page,
        node,
        home: 0,
        thread: seen.thread.0,
        kind: seen.kind,
        level: seen.level,
    }
}
