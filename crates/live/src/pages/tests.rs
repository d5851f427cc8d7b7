use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn page(address: u64) -> Page {
    Page {
        process: ProcessIndex((address % 3) as u32),
        address,
    }
}

fn touch(pages: &mut HotPages, page: Page) -> PageNumber {
    let lookup = expected(pages, &[page]);
    pages.touch(&lookup, 0, |_| ())
}

fn expected(pages: &HotPages, all: &[Page]) -> PageLookup {
    let mut lookup = PageLookup::NONE;
    pages.prefetch_entries(&mut lookup, all.iter().copied());
    pages.prefetch_state(&mut lookup, |_| ());
    lookup
}

#[test]
fn a_hot_page_stays_while_cold_ones_pass_through() {
    let mut pages = HotPages::new(100);
    let hot: Vec<PageNumber> = (0..10)
        .map(|address| touch(&mut pages, page(address)))
        .collect();
    for round in 0..100u64 {
        for address in 0..10 {
            assert!(!touch(&mut pages, page(address)).new, "round {round}");
        }
        // Cold pages are sampled in several rounds, so that they count as recently sampled when others come.
        for cold in 0..200 {
            touch(&mut pages, page(1000 + 50 * round + cold));
        }
        pages.cool();
    }
    assert_eq!(pages.len(), 100);
    let given_up = pages.given_up();
    assert!((4000..100 * 200 / 2).contains(&given_up), "{given_up}");
    for (address, touched) in hot.iter().enumerate() {
        assert_eq!(pages.page(touched.number), Some(page(address as u64)));
    }
}

#[test]
fn a_process_that_ends_leaves_its_numbers_to_others() {
    let mut pages = HotPages::new(6);
    for address in 0..6 {
        touch(&mut pages, page(address));
    }
    assert_eq!(pages.forget_process(ProcessIndex(1)), [1, 4]);
    assert_eq!(pages.len(), 4);
    assert_eq!(pages.page(1), None);
    let (first, second) = (touch(&mut pages, page(9)), touch(&mut pages, page(12)));
    assert_eq!((first.number, second.number), (1, 4));
    assert!(first.new && second.new);
    assert_eq!(pages.given_up(), 0);
}

#[test]
fn pages_sampled_once_do_not_evict_recent_ones() {
    let mut pages = HotPages::new(64);
    let all = |pages: &mut HotPages| {
        let left_out = (0..128).filter(|at| touch(pages, page(*at)).is_left_out());
        left_out.count()
    };
    assert_eq!(all(&mut pages), 64);
    assert_eq!(pages.given_up(), 0);
    // This is the second sample of each page in the interval.
    assert_eq!(all(&mut pages), 0);
    let given_up = pages.given_up();
    assert!(given_up > 0);
    // No page was sampled recently, so new pages are admitted.
    (0..17).for_each(|_| pages.cool());
    assert!(!touch(&mut pages, page(1000)).is_left_out());
}

/// Reference model of the table, with a map from pages to numbers.
struct Model {
    capacity: usize,
    numbers: HashMap<Page, u32>,
    heats: Vec<i16>,
    free: Vec<u32>,
    hand: usize,
    left_out: std::collections::HashSet<usize>,
}

impl Model {
    fn touch(&mut self, page: Page) -> PageNumber {
        if let Some(&number) = self.numbers.get(&page) {
            self.heats[number as usize] = self.heats[number as usize].saturating_add(1);
            return PageNumber { number, new: false };
        }
        let number = if let Some(number) = self.free.pop() {
            number
        } else if self.heats.len() < self.capacity {
            self.heats.push(0);
            self.heats.len() as u32 - 1
        } else {
            let end = (self.hand + CANDIDATES).min(self.capacity);
            let coldest = (self.hand..end).min_by_key(|&at| self.heats[at]);
            self.hand = if end == self.capacity { 0 } else { end };
            let coldest = coldest.expect("one");
            let bit = left_out_bit(hash(page));
            if self.heats[coldest] > 0 && self.left_out.insert(bit) {
                return PageNumber::NONE;
            }
            self.numbers.retain(|_, number| *number as usize != coldest);
            coldest as u32
        };
        self.heats[number as usize] = 1;
        self.numbers.insert(page, number);
        PageNumber { number, new: true }
    }

    fn forget(&mut self, process: ProcessIndex) -> Vec<u32> {
        let of_process = self
            .numbers
            .iter()
            .filter(|(page, _)| page.process == process);
        let mut forgotten: Vec<u32> = of_process.map(|(_, number)| *number).collect();
        forgotten.sort_unstable();
        self.numbers.retain(|page, _| page.process != process);
        self.free.extend(forgotten.iter().rev());
        forgotten
    }
}

#[test]
fn pages_whose_hashes_are_alike_push_each_other_along() {
    // After each removal the other pages are still found, also around the end of the table.
    let order = [[0, 1, 2, 3], [3, 1, 0, 2], [1, 2, 0, 3], [2, 3, 1, 0]];
    for (upper, gone) in [0, u64::from(u32::MAX) - 1]
        .into_iter()
        .zip(order)
        .chain([(1, order[2]), (1 << 31, order[3])])
    {
        let mut numbers = Numbers::new(4);
        let hashes = [upper, upper, upper ^ 1, upper];
        for (number, hash) in hashes.into_iter().enumerate() {
            let at = numbers.find(hash, |_| false);
            numbers.insert(at, hash, number as u32);
        }
        for (after, number) in gone.into_iter().enumerate() {
            let find = |numbers: &Numbers, number: u32| {
                numbers.find(hashes[number as usize], |other| other == number)
            };
            let at = find(&numbers, number);
            numbers.remove(at);
            assert_eq!(numbers.places[find(&numbers, number)], FREE);
            for stays in &gone[after + 1..] {
                assert_eq!(numbers.places[find(&numbers, *stays)] as u32, *stays);
            }
        }
        assert!(numbers.places.iter().all(|place| *place == FREE));
    }
}

proptest! {
    #[test]
    fn the_table_is_what_a_map_would_be(
        capacity in 1usize..70,
        steps in prop::collection::vec((prop::collection::vec(0u64..100, 0..=LOOKUP_BATCH), 0u8..12), 1..60),
    ) {
        let mut pages = HotPages::new(capacity);
        let mut model = Model {
            capacity,
            numbers: HashMap::new(),
            heats: Vec::new(),
            free: Vec::new(),
            hand: 0,
            left_out: Default::default(),
        };
        // Pages that are expected now and touched after the next are expected.
        let mut waiting: Option<(PageLookup, Vec<Page>)> = None;
        for (addresses, what) in steps {
            // Some cases have few hashes, which collide in any table, and others many.
            let all: Vec<Page> = addresses
                .iter()
                .map(|at| page(if what < 6 { *at } else { at << 12 }))
                .collect();
            let next = (what > 1).then(|| (expected(&pages, &all), all));
            if let Some((lookup, all)) = std::mem::replace(&mut waiting, next) {
                for (at, page) in all.iter().enumerate() {
                    prop_assert_eq!(lookup.page(at), *page);
                    prop_assert_eq!(pages.touch(&lookup, at, |_| ()), model.touch(*page));
                }
            }
            match what {
                0 => {
                    let process = ProcessIndex(addresses.len() as u32 % 3);
                    prop_assert_eq!(pages.forget_process(process), model.forget(process));
                }
                1 => {
                    pages.cool();
                    model.heats.iter_mut().for_each(|heat| *heat /= 2);
                    model.left_out.clear();
                }
                _ => (),
            }
            prop_assert_eq!(&pages.heats, &model.heats);
            prop_assert_eq!(pages.len(), model.numbers.len());
            for (page, number) in &model.numbers {
                prop_assert_eq!(pages.number(page), Some(*number));
                prop_assert_eq!(pages.page(*number), Some(*page));
            }
            for number in &model.free {
                prop_assert_eq!(pages.page(*number), None);
            }
        }
    }
}
