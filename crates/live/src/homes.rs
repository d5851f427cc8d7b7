//! Nodes of the sampled pages. The kernel is asked once per interval, in batches, and only about pages that are due. A
//! query takes 0.1 µs (huge pages) to 0.4 µs per page, more than all other work on a sample.

use std::cmp::Reverse;

use nearpage_online::fetch_ahead;

use crate::kernel::Kernel;
use crate::pages::ProcessIndex;

/// The node is unknown.
const NONE: u16 = u16::MAX;
/// Number of intervals after which a page is queried again, because others than the daemon move pages too.
const REQUERY_INTERVALS: u32 = 4;
/// Maximum number of queries per interval, for the pages with the most samples. Samples of other pages count as without
/// a node unless an earlier answer is known.
pub const QUESTIONS_MAX: usize = 8192;

/// State of the page with a number.
#[derive(Clone, Copy, Debug)]
struct Home {
    node: u16,
    /// Interval of the kernel's last answer; 0: there was none.
    queried_at: u32,
    /// Interval of the last sample, and the position of its answer.
    sampled: u32,
    answer: u32,
}

const UNKNOWN: Home = Home {
    node: NONE,
    queried_at: 0,
    sampled: 0,
    answer: 0,
};

#[derive(Clone, Copy, Debug)]
struct Question {
    process: ProcessIndex,
    address: u64,
    number: u32,
    answer: u32,
}

/// Nodes of pages, by their number in the table. Takes 16 bytes per page.
#[derive(Debug)]
pub struct Homes {
    by_number: Vec<Home>,
    /// Position of the only node with memory: no queries are needed.
    only: Option<u16>,
    interval: u32,
    /// Nodes of the pages sampled in the interval; a page whose number changes gets a new entry.
    answers: Vec<u16>,
    questions: Vec<Question>,
}

impl Homes {
    /// Nodes of `pages` pages. `only`: the node that has all memory, if there is one.
    pub fn new(pages: usize, only: Option<u16>) -> Self {
        Self {
            by_number: vec![UNKNOWN; pages],
            only,
            interval: 0,
            answers: Vec::new(),
            questions: Vec::new(),
        }
    }

    /// Begins an interval.
    pub fn begin(&mut self) {
        self.interval += 1;
        self.answers.clear();
        self.questions.clear();
    }

    /// Drops the state of a number that stands for another page from now on.
    pub fn forget(&mut self, number: u32) {
        self.by_number[number as usize] = UNKNOWN;
    }

    /// Notes a sample of the page with this number, at `address`. Returns the position of its answer after
    /// [`query`](Self::query).
    #[inline]
    pub fn sampled(&mut self, number: u32, process: ProcessIndex, address: u64) -> u32 {
        let home = &self.by_number[number as usize];
        match home.sampled == self.interval {
            true => home.answer,
            false => self.sampled_first(number, process, address),
        }
    }

    /// Notes the first sample of a page in the interval.
    fn sampled_first(&mut self, number: u32, process: ProcessIndex, address: u64) -> u32 {
        let home = &mut self.by_number[number as usize];
        home.sampled = self.interval;
        home.answer = self.answers.len() as u32;
        let is_due = home.queried_at == 0 || self.interval - home.queried_at >= REQUERY_INTERVALS;
        // The earlier node is used unless the kernel reports another.
        let node = self.only.unwrap_or(home.node);
        if is_due && self.only.is_none() {
            self.questions.push(Question {
                process,
                address,
                number,
                answer: home.answer,
            });
        }
        self.answers.push(node);
        self.answers.len() as u32 - 1
    }

    /// Prefetches the state of a page that is about to be sampled.
    #[inline]
    pub fn fetch_ahead(&self, number: u32) {
        fetch_ahead(&self.by_number, number as usize);
    }

    /// Asks the kernel about due pages, within the limit. `samples` has the position of each sample's answer; `pid`
    /// returns a process's number, and `position` a node's position.
    pub fn query(
        &mut self,
        kernel: &mut dyn Kernel,
        samples: &[u32],
        pid: impl Fn(ProcessIndex) -> u32,
        position: impl Fn(i32) -> Option<u16>,
    ) {
        let Self {
            by_number,
            interval,
            answers,
            questions,
            ..
        } = self;
        if questions.len() > QUESTIONS_MAX {
            let mut counts = vec![0u32; answers.len()];
            for &answer in samples {
                counts[answer as usize] += 1;
            }
            questions.select_nth_unstable_by_key(QUESTIONS_MAX, |question| {
                Reverse(counts[question.answer as usize])
            });
            questions.truncate(QUESTIONS_MAX);
        }
        // The kernel finds pages twice as fast in order of address.
        questions.sort_unstable_by_key(|question| (question.process, question.address));
        for of_process in questions.chunk_by(|a, b| a.process == b.process) {
            let pages: Vec<u64> = of_process.iter().map(|question| question.address).collect();
            let mut status = vec![-libc::ENOENT; pages.len()];
            if kernel
                .page_nodes(pid(of_process[0].process), &pages, &mut status)
                .is_err()
            {
                continue;
            }
            for (question, status) in of_process.iter().zip(status) {
                let node = position(status).unwrap_or(NONE);
                answers[question.answer as usize] = node;
                let home = &mut by_number[question.number as usize];
                // The number may stand for another page by now.
                if home.sampled == *interval && home.answer == question.answer {
                    (home.node, home.queried_at) = (node, *interval);
                }
            }
        }
    }

    /// Position of the node in an answer.
    #[inline]
    pub fn answer(&self, at: u32) -> Option<u16> {
        known(self.answers[at as usize])
    }

    /// Last known node of the page with this number.
    pub fn of(&self, number: u32) -> Option<u16> {
        self.only
            .or_else(|| known(self.by_number.get(number as usize)?.node))
    }

    /// Notes that the page with this number was moved.
    pub fn moved(&mut self, number: u32, node: u16) {
        let home = &mut self.by_number[number as usize];
        (home.node, home.queried_at) = (node, self.interval);
    }
}

fn known(node: u16) -> Option<u16> {
    (node != NONE).then_some(node)
}

#[cfg(test)]
mod tests {
    use std::io;

    use nearpage_machine::NodeId;

    use super::*;

    /// Places a page on the node of its address over 16 pages; higher addresses have no page.
    #[derive(Default)]
    struct QueriedPages(Vec<u64>);

    impl Kernel for QueriedPages {
        fn now_ns(&mut self) -> u64 {
            0
        }

        fn sleep_ns(&mut self, _: u64) {}

        fn started(&mut self, _: u32) -> Option<u64> {
            None
        }

        fn page_nodes(&mut self, pid: u32, pages: &[u64], nodes: &mut [i32]) -> io::Result<()> {
            assert_eq!(pid, 70);
            assert!(pages.is_sorted());
            self.0.extend(pages);
            for (page, node) in pages.iter().zip(nodes) {
                *node = match page >> 16 {
                    node @ 0..4 => node as i32,
                    _ => -libc::ENOENT,
                };
            }
            Ok(())
        }

        fn move_pages(&mut self, _: u32, _: &[u64], _: &[NodeId], _: &mut [i32]) -> io::Result<()> {
            unreachable!("nothing moves")
        }
    }

    /// Takes in an interval's samples, as (number, new, address).
    fn homes_of(
        homes: &mut Homes,
        kernel: &mut QueriedPages,
        samples: &[(u32, bool, u64)],
    ) -> Vec<Option<u16>> {
        homes.begin();
        let answers: Vec<u32> = samples
            .iter()
            .map(|&(number, new, address)| {
                if new {
                    homes.forget(number);
                }
                homes.sampled(number, ProcessIndex(0), address)
            })
            .collect();
        homes.query(
            kernel,
            &answers,
            |_| 70,
            |node| u16::try_from(node).ok().filter(|node| *node < 4),
        );
        answers.into_iter().map(|at| homes.answer(at)).collect()
    }

    #[test]
    fn a_page_is_queried_once_and_again_after_some_intervals() {
        let (mut homes, mut kernel) = (Homes::new(10, None), QueriedPages::default());
        let samples = [
            (3, true, 0x2_1000),
            (4, true, 0x9_0000),
            (3, false, 0x2_1000),
        ];
        for interval in 0..REQUERY_INTERVALS {
            let samples = samples.map(|(number, new, at)| (number, new && interval == 0, at));
            let found = homes_of(&mut homes, &mut kernel, &samples);
            assert_eq!(found, [Some(2), None, Some(2)], "{interval}");
            assert_eq!(kernel.0, [0x2_1000, 0x9_0000], "{interval}");
        }
        homes.moved(3, 1);
        // All pages are due by now, except the moved one.
        let found = homes_of(
            &mut homes,
            &mut kernel,
            &samples.map(|(n, _, at)| (n, false, at)),
        );
        assert_eq!(found, [Some(1), None, Some(1)]);
        assert_eq!(kernel.0[2..], [0x9_0000]);
        assert_eq!(
            (homes.of(3), homes.of(4), homes.of(5)),
            (Some(1), None, None)
        );
    }

    #[test]
    fn a_number_that_changes_hands_within_an_interval_has_two_answers() {
        let (mut homes, mut kernel) = (Homes::new(10, None), QueriedPages::default());
        let samples = [
            (3, true, 0x2_1000),
            (3, true, 0x1_1000),
            (3, false, 0x1_1000),
        ];
        let found = homes_of(&mut homes, &mut kernel, &samples);
        assert_eq!(found, [Some(2), Some(1), Some(1)]);
        assert_eq!(homes.of(3), Some(1));
    }

    #[test]
    fn the_hottest_pages_are_queried_first() {
        let pages = QUESTIONS_MAX as u32 + 100;
        let (mut homes, mut kernel) = (Homes::new(pages as usize, None), QueriedPages::default());
        let mut samples: Vec<_> = (0..pages)
            .map(|page| (page, true, u64::from(page)))
            .collect();
        samples.extend((pages - 100..pages).map(|page| (page, false, u64::from(page))));
        let found = homes_of(&mut homes, &mut kernel, &samples);
        assert_eq!(kernel.0.len(), QUESTIONS_MAX);
        assert!(found[pages as usize..].iter().all(|home| *home == Some(0)));
        // Then the others are asked about; from then on all are known, due or not.
        let again: Vec<_> = samples.iter().map(|&(n, _, at)| (n, false, at)).collect();
        for _ in 0..3 * REQUERY_INTERVALS {
            let found = homes_of(&mut homes, &mut kernel, &again);
            assert!(found.iter().all(|home| *home == Some(0)));
        }
    }

    #[test]
    fn a_single_memory_node_needs_no_query() {
        let (mut homes, mut kernel) = (Homes::new(10, Some(1)), QueriedPages::default());
        let found = homes_of(&mut homes, &mut kernel, &[(3, true, 0x2_1000)]);
        assert_eq!((found, homes.of(9)), (vec![Some(1)], Some(1)));
        assert!(kernel.0.is_empty());
    }
}
