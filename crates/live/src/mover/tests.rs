use super::*;
use crate::pages::ProcessIndex;
use proptest::prelude::*;

const PROCESS: Identity = Identity {
    pid: 42,
    started: 7,
};

/// A kernel in which moves cost time, and some pages cannot be moved.
#[derive(Default)]
struct Fake {
    now_ns: u64,
    page_ns: u64,
    /// Status of pages that cannot be moved.
    stubborn: FxHashMap<u64, i32>,
    /// Pinned pages. The kernel moves pages for one node together, stops after a node with a pinned page, and reports
    /// no status of unfinished pages.
    pinned: Vec<u64>,
    /// Pages because of which whole calls are refused.
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
        let stops_at = pages.iter().position(|page| self.pinned.contains(page));
        let same = |at: usize| {
            (0..=at)
                .rev()
                .take_while(|&other| nodes[other] == nodes[at])
                .count()
        };
        let end = stops_at.map_or(pages.len(), |at| at + 1 - same(at));
        if let Some(at) = stops_at {
            let node = nodes[at];
            for other in (end..pages.len()).take_while(|&other| nodes[other] == node) {
                if !self.pinned.contains(&pages[other]) {
                    self.at.insert(pages[other], node);
                }
            }
        }
        for ((page, node), status) in pages.iter().zip(nodes).zip(status).take(end) {
            *status = self.stubborn.get(page).copied().unwrap_or_else(|| {
                self.at.insert(*page, *node);
                i32::from(node.0)
            });
        }
        Ok(())
    }

    fn page_nodes(&mut self, _: u32, pages: &[u64], nodes: &mut [i32]) -> io::Result<()> {
        for (page, node) in pages.iter().zip(nodes) {
            *node = self.at.get(page).map_or(0, |node| i32::from(node.0));
        }
        Ok(())
    }
}

fn moves(count: u64) -> Vec<PageMove> {
    let page_move = |number: u64| PageMove {
        page: Page {
            process: ProcessIndex(0),
            address: number * 4096,
        },
        bytes: 4096,
        from: NodeId(0),
        to: NodeId(3),
    };
    (0..count).map(page_move).collect()
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
    let round = mover().carry_out(&mut kernel, PROCESS, &moves(10_000), u64::MAX);
    assert_eq!(round.outcomes.moved, 10_000);
    assert_eq!(round.moved.len(), 10_000);
    assert!(round.longest_call_ns <= 20_000_000);
    assert_eq!(kernel.at.len(), 10_000);
    assert_eq!(round.calls as usize, kernel.calls.len());
}

#[test]
fn refused_pages_are_counted_by_reason_and_wait_longer_each_time() {
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
        let mut moves = moves(4);
        moves.retain(|page_move| mover.may_try(&page_move.page));
        let done = mover.carry_out(&mut kernel, PROCESS, &moves, u64::MAX);
        assert_eq!(done.outcomes.moved, 1);
        if done.outcomes.busy > 0 {
            assert_eq!((done.outcomes.shared, done.outcomes.absent), (1, 1));
            tried.push(round);
        } else {
            assert_eq!(moves.len(), 1);
        }
    }
    assert_eq!(tried, [0, 2, 5, 10, 19]);
}

#[test]
fn pinned_pages_are_counted_and_keep_no_other_page_from_moving() {
    let mut moves = moves(100);
    for (at, page_move) in moves.iter_mut().enumerate() {
        page_move.to = NodeId(1 + (at / 25) as u16);
    }
    // Two adjacent pages, a single page, and all pages for the last node.
    let pinned: Vec<u64> = [10, 11, 40].into_iter().chain(75..100).collect();
    let mut kernel = Fake {
        pinned: pinned.iter().map(|number| number * 4096).collect(),
        ..Fake::default()
    };
    let mut mover = mover();
    mover.begin_round();
    let round = mover.carry_out(&mut kernel, PROCESS, &moves, u64::MAX);
    assert_eq!((round.outcomes.pinned, round.outcomes.moved), (28, 72));
    assert_eq!(
        round
            .outcomes
            .by_reason()
            .iter()
            .map(|(_, count)| count)
            .sum::<u64>(),
        100
    );
    assert_eq!(kernel.at.len(), 72);
    assert!(kernel.calls.len() < 20, "{:?}", kernel.calls);
    mover.begin_round();
    let may_try = moves
        .iter()
        .filter(|page_move| mover.may_try(&page_move.page));
    assert_eq!(may_try.count(), 72);
}

#[test]
fn a_node_that_is_not_allowed_spoils_its_own_pages_only() {
    let mut kernel = Fake {
        poison: FxHashMap::from_iter([(5 * 4096, libc::EACCES), (6 * 4096, libc::ENODEV)]),
        ..Fake::default()
    };
    let round = mover().carry_out(&mut kernel, PROCESS, &moves(100), u64::MAX);
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
        let round = mover().carry_out(&mut kernel, PROCESS, &moves(100), u64::MAX);
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
    let round = mover().carry_out(&mut kernel, PROCESS, &moves(100), u64::MAX);
    assert_eq!(kernel.calls.len(), 2);
    assert_eq!(round.outcomes.moved + round.outcomes.process_gone, 100);
    let other = Identity { pid: 43, ..PROCESS };
    let round = mover().carry_out(&mut Fake::default(), other, &moves(3), u64::MAX);
    assert_eq!(round.outcomes.process_gone, 3);
}

#[test]
fn huge_pages_count_for_as_much_as_they_are() {
    const HUGE: u64 = 2 << 20;
    let mut kernel = Fake {
        page_ns: 500_000,
        ..Fake::default()
    };
    let mut moves = moves(64);
    moves
        .iter_mut()
        .for_each(|page_move| page_move.bytes = HUGE);
    let round = mover().carry_out(&mut kernel, PROCESS, &moves, u64::MAX);
    assert_eq!(round.outcomes.moved, 64);
    assert_eq!(round.moved_bytes, 64 * HUGE);
    // Half of 20 ms is enough for 20 pages at half a millisecond each, but a call has at most 16 MiB.
    assert_eq!(kernel.calls[..4], [1, 2, 4, 8]);
    assert!(kernel.calls.iter().all(|&pages| pages <= 8));
    // Pages move at the rate limit, and no faster.
    assert!(kernel.now_ns >= 63 * HUGE * 1_000_000_000 / (1 << 30));
}

#[test]
fn huge_pages_that_would_stall_the_program_for_too_long_stay() {
    let mut kernel = Fake {
        page_ns: 30_000_000,
        ..Fake::default()
    };
    let mut moves = moves(8);
    moves
        .iter_mut()
        .for_each(|page_move| page_move.bytes = 2 << 20);
    let mut mover = mover();
    let round = mover.carry_out(&mut kernel, PROCESS, &moves, u64::MAX);
    assert_eq!((round.outcomes.moved, round.outcomes.too_long), (1, 7));
    assert_eq!(kernel.calls, [1]);
    assert!(!mover.may_try(&moves[7].page));
}

#[test]
fn moving_ends_within_its_budget() {
    let mut kernel = Fake {
        page_ns: 1_000_000,
        ..Fake::default()
    };
    let round = mover().carry_out(&mut kernel, PROCESS, &moves(10_000), 500_000_000);
    assert!(kernel.now_ns < 530_000_000, "{}", kernel.now_ns);
    assert_eq!(round.left + round.outcomes.moved, 10_000);
    assert!(round.left > 9000);
}

proptest! {
    #[test]
    fn every_requested_move_is_counted_once(
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
        let round = mover().carry_out(&mut kernel, PROCESS, &moves(count), deadline_ns);
        let counted: u64 = round.outcomes.by_reason().iter().map(|(_, count)| count).sum();
        prop_assert_eq!(counted + round.left, count);
        prop_assert_eq!(round.moved.len() as u64, round.outcomes.moved);
    }
}
