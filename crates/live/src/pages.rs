//! The hot pages: a table of a size that is set aside at the start (Carrefour §4.4).

use rustc_hash::FxHashMap;

/// A process that the daemon looks at: its position among all that it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessIndex(pub u32);

/// A page of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Page {
    /// Whose.
    pub process: ProcessIndex,
    /// Where it begins.
    pub address: u64,
}

/// A page's number in the table: what policies know it by, until it is given to another page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Touched {
    /// The number.
    pub number: u32,
    /// The number stood for another page before, or for none.
    pub new: bool,
}

/// How many pages are looked at for one to give up. The coldest of sixteen is among the coldest
/// third of all in 998 cases of a thousand.
const CANDIDATES: usize = 16;

/// Pages by number. Takes about 64 bytes a page, all of them at the start; never more.
#[derive(Debug)]
pub struct HotPages {
    capacity: usize,
    slots: Vec<Page>,
    /// Beside the pages, so that all candidates' are in a cache line or two.
    heats: Vec<u16>,
    numbers: FxHashMap<Page, u32>,
    free: Vec<u32>,
    hand: usize,
    given_up: u64,
}

impl HotPages {
    /// A table of `capacity` pages, at least one.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, u32::MAX as usize);
        Self {
            capacity,
            slots: Vec::with_capacity(capacity),
            heats: Vec::with_capacity(capacity),
            numbers: FxHashMap::with_capacity_and_hasher(capacity, Default::default()),
            free: Vec::with_capacity(capacity),
            hand: 0,
            given_up: 0,
        }
    }

    /// Pages in it.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Pages that had to make way for others so far.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// The number of a page that was just sampled.
    pub fn touch(&mut self, page: Page) -> Touched {
        if let Some(&number) = self.numbers.get(&page) {
            let heat = &mut self.heats[number as usize];
            *heat = heat.saturating_add(1);
            return Touched { number, new: false };
        }
        let number = if let Some(number) = self.free.pop() {
            self.slots[number as usize] = page;
            number
        } else if self.slots.len() < self.capacity {
            self.slots.push(page);
            self.heats.push(0);
            (self.slots.len() - 1) as u32
        } else {
            let number = self.coldest();
            let old = std::mem::replace(&mut self.slots[number as usize], page);
            self.numbers.remove(&old);
            self.given_up += 1;
            number
        };
        self.heats[number as usize] = 1;
        self.numbers.insert(page, number);
        Touched { number, new: true }
    }

    /// The coldest of the next few; at the end of the table of those that are left.
    fn coldest(&mut self) -> u32 {
        let begin = self.hand;
        let end = (begin + CANDIDATES).min(self.heats.len());
        self.hand = if end == self.heats.len() { 0 } else { end };
        let candidates = begin..end;
        let coldest = candidates.min_by_key(|&at| self.heats[at]);
        coldest.expect("the table is full, and not empty") as u32
    }

    /// The page that a number stands for.
    pub fn page(&self, number: u32) -> Option<Page> {
        let page = *self.slots.get(number as usize)?;
        (self.numbers.get(&page) == Some(&number)).then_some(page)
    }

    /// The number that stands for a page.
    pub fn number(&self, page: &Page) -> Option<u32> {
        self.numbers.get(page).copied()
    }

    /// An interval has passed: what was hot long ago cools down.
    pub fn cool(&mut self) {
        for heat in &mut self.heats {
            *heat /= 2;
        }
    }

    /// A process has ended, or has another address space now. The numbers of its pages, ascending.
    pub fn forget_process(&mut self, process: ProcessIndex) -> Vec<u32> {
        let mut forgotten = Vec::new();
        self.numbers.retain(|page, number| {
            let keep = page.process != process;
            if !keep {
                forgotten.push(*number);
            }
            keep
        });
        forgotten.sort_unstable();
        self.free.extend(forgotten.iter().rev());
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(address: u64) -> Page {
        Page {
            process: ProcessIndex((address % 3) as u32),
            address,
        }
    }

    #[test]
    fn a_hot_page_stays_while_cold_ones_pass_through() {
        let mut pages = HotPages::new(100);
        let hot: Vec<Touched> = (0..10).map(|address| pages.touch(page(address))).collect();
        for round in 0..100u64 {
            for address in 0..10 {
                assert!(!pages.touch(page(address)).new, "round {round}");
            }
            for cold in 0..200 {
                pages.touch(page(1000 + 200 * round + cold));
            }
            pages.cool();
        }
        assert_eq!(pages.len(), 100);
        assert_eq!(pages.given_up(), 100 * 200 - 90);
        for (address, touched) in hot.iter().enumerate() {
            assert_eq!(pages.page(touched.number), Some(page(address as u64)));
        }
    }

    #[test]
    fn a_process_that_ends_leaves_its_numbers_to_others() {
        let mut pages = HotPages::new(6);
        for address in 0..6 {
            pages.touch(page(address));
        }
        assert_eq!(pages.forget_process(ProcessIndex(1)), [1, 4]);
        assert_eq!(pages.len(), 4);
        assert_eq!(pages.page(1), None);
        let (first, second) = (pages.touch(page(9)), pages.touch(page(12)));
        assert_eq!((first.number, second.number), (1, 4));
        assert!(first.new && second.new);
        assert_eq!(pages.given_up(), 0);
    }

    proptest! {
        #[test]
        fn numbers_stand_for_one_page_each(
            capacity in 1usize..20,
            steps in prop::collection::vec((0u64..60, 0u8..20), 1..400),
        ) {
            let mut pages = HotPages::new(capacity);
            let mut standing: FxHashMap<u32, Page> = FxHashMap::default();
            for (address, what) in steps {
                match what {
                    0 => {
                        pages.forget_process(ProcessIndex((address % 3) as u32));
                        standing.retain(|_, page| page.process != ProcessIndex((address % 3) as u32));
                    }
                    1 => pages.cool(),
                    _ => {
                        let touched = pages.touch(page(address));
                        let before = standing.insert(touched.number, page(address));
                        prop_assert_eq!(before != Some(page(address)), touched.new);
                    }
                }
                prop_assert!(pages.len() <= capacity);
                prop_assert_eq!(pages.len(), standing.len());
                for (number, page) in &standing {
                    prop_assert_eq!(pages.page(*number), Some(*page));
                }
            }
        }
    }
}
