//! The hot pages: a table of fixed size that is allocated at the start (Carrefour §4.4).

use std::ops::Range;

use nearpage_online::fetch_ahead;

use crate::PAGES_MOST;

/// A process of the daemon, as a position among all that it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessIndex(pub u32);

/// A page of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Page {
    /// Process of the page.
    pub process: ProcessIndex,
    /// Address of the page's first byte.
    pub address: u64,
}

impl Page {
    /// A placeholder that equals no page.
    pub const NONE: Self = Self {
        process: ProcessIndex(u32::MAX),
        address: u64::MAX,
    };
}

/// Number of a page in the table, by which policies know the page until the number is given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageNumber {
    /// The number.
    pub number: u32,
    /// The number stood for another page before, or for none.
    pub new: bool,
}

impl PageNumber {
    /// No number.
    const NONE: Self = Self {
        number: u32::MAX,
        new: false,
    };

    /// Has the page no number, because the table is full of pages with more samples?
    pub fn is_left_out(&self) -> bool {
        self.number == Self::NONE.number
    }
}

/// Number of pages from which the coldest is evicted. The coldest of sixteen is among the coldest third of all pages in
/// 998 cases of a thousand.
const CANDIDATES: usize = 16;

/// Number of pages that are looked up together, so that their memory accesses overlap.
pub const LOOKUP_BATCH: usize = 32;

/// Pages that are about to be looked up.
#[derive(Clone, Debug)]
pub struct PageLookup {
    pages: [Page; LOOKUP_BATCH],
    hashes: [u64; LOOKUP_BATCH],
    /// Likely numbers of the pages, which may be other pages with equal hashes.
    numbers: [u32; LOOKUP_BATCH],
    len: usize,
}

impl PageLookup {
    /// An empty look-up.
    pub const NONE: Self = Self {
        pages: [Page::NONE; LOOKUP_BATCH],
        hashes: [0; LOOKUP_BATCH],
        numbers: [u32::MAX; LOOKUP_BATCH],
        len: 0,
    };

    /// The page at a position.
    pub fn page(&self, at: usize) -> Page {
        self.pages[at]
    }
}

/// Pages by number. Takes about 50 bytes a page, allocated at the start.
///
/// While the table is full of recently sampled pages, a page that is sampled for the first time in an interval is not
/// admitted. Otherwise pages that are used once would evict those with counters, and be evicted before enough is known of
/// them (as the doorkeeper of Einziger, Friedman and Manes, TinyLFU, ACM Transactions on Storage 13, 2017).
#[derive(Debug)]
pub struct HotPages {
    capacity: usize,
    pages: Vec<Page>,
    /// Sample counts, kept apart from the pages so that all candidates' are in one or two cache lines. They are never
    /// negative; every x86-64 finds the minimum of eight signed numbers at once.
    heats: Vec<i16>,
    numbers: Numbers,
    free: Vec<u32>,
    hand: usize,
    /// The coldest of the next candidates when last determined.
    expected: Option<Coldest>,
    given_up: u64,
    /// By hash: a page with this hash was left out in this interval.
    left_out: Vec<u64>,
}

/// The coldest page of several; of equal ones, the first.
#[derive(Clone, Copy, Debug)]
struct Coldest {
    number: u32,
    heat: i16,
}

/// The upper bits of the hash, from this bit on, index `left_out`.
const LEFT_OUT_SHIFT: u32 = 32 - 17;

fn left_out_bit(hash: u64) -> usize {
    (hash >> LEFT_OUT_SHIFT) as usize
}

/// Numbers of pages: a hash table with linear probing that is at most half full. An entry has the upper half of the
/// page's hash and the number, so that moving entries and recognising most different pages need no access to the pages.
#[derive(Debug)]
struct Numbers {
    /// `hash >> 32 << 32 | number`; [`FREE`] if unused.
    places: Vec<u64>,
    /// Shift of a hash to the position of its entry.
    shift: u32,
    len: usize,
}

/// Marks an unused entry; no hash has an upper half of all ones.
const FREE: u64 = u64::MAX;

/// Hash of 32 bits: the upper half of a multiplication (Fibonacci hashing).
fn hash(page: Page) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let process = u64::from(page.process.0).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let mixed = ((page.address >> 12) ^ page.address << 52 ^ process).wrapping_mul(GOLDEN);
    (mixed >> 32).min(u64::from(u32::MAX) - 1)
}

impl Numbers {
    fn new(capacity: usize) -> Self {
        let places = (2 * capacity).next_power_of_two();
        Self {
            places: vec![FREE; places],
            shift: 32 - places.trailing_zeros(),
            len: 0,
        }
    }

    /// Position of the entry for this hash, if no other page has taken it.
    fn first(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// Position of the page with this hash for which `is_it` holds, or the free position for it.
    fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> usize {
        let mut at = self.first(hash);
        loop {
            let place = self.places[at];
            if place == FREE || place >> 32 == hash && is_it(place as u32) {
                return at;
            }
            at = self.after(at);
        }
    }

    fn insert(&mut self, at: usize, hash: u64, number: u32) {
        self.places[at] = hash << 32 | u64::from(number);
        self.len += 1;
    }

    /// Frees an entry, and moves up following entries that were displaced.
    fn remove(&mut self, mut at: usize) {
        self.len -= 1;
        let mut next = at;
        loop {
            self.places[at] = FREE;
            loop {
                next = self.after(next);
                let place = self.places[next];
                if place == FREE {
                    return;
                }
                let mask = self.places.len() - 1;
                let pushed = next.wrapping_sub(self.first(place >> 32)) & mask;
                if pushed >= next.wrapping_sub(at) & mask {
                    self.places[at] = place;
                    at = next;
                    break;
                }
            }
        }
    }
}

/// Minimum of several sample counts.
fn least(heats: &[i16]) -> i16 {
    match heats.first_chunk::<CANDIDATES>() {
        Some(all) => all.iter().copied().fold(i16::MAX, i16::min),
        None => heats.iter().copied().fold(i16::MAX, i16::min),
    }
}

/// Position of the first sample count that equals `heat`.
fn position(heats: &[i16], heat: i16) -> usize {
    heats.iter().position(|one| *one == heat).unwrap_or(0)
}

impl HotPages {
    /// A table of `capacity` pages, at least one.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, PAGES_MOST);
        Self {
            capacity,
            pages: Vec::with_capacity(capacity),
            heats: Vec::with_capacity(capacity),
            numbers: Numbers::new(capacity),
            free: Vec::with_capacity(capacity),
            hand: 0,
            expected: None,
            given_up: 0,
            left_out: vec![0; 1 << (32 - LEFT_OUT_SHIFT - 6)],
        }
    }

    /// Number of pages in the table.
    pub fn len(&self) -> usize {
        self.numbers.len
    }

    /// Number of pages that were evicted so far.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Prefetches the entries of at most [`LOOKUP_BATCH`] pages, which will be looked up after
    /// [`prefetch_state`](Self::prefetch_state).
    // Not inlined: in the caller's loop, this function and the next would take registers that `touch` needs.
    #[inline(never)]
    pub fn prefetch_entries(&self, lookup: &mut PageLookup, pages: impl Iterator<Item = Page>) {
        lookup.len = 0;
        let places = lookup.pages.iter_mut().zip(&mut lookup.hashes);
        for ((place, of_place), page) in places.zip(pages) {
            let hash = hash(page);
            fetch_ahead(&self.numbers.places, self.numbers.first(hash));
            (*place, *of_place) = (page, hash);
            lookup.len += 1;
        }
    }

    /// Prefetches the state of pages that will be looked up soon; calls `ahead` with their likely numbers.
    #[inline(never)]
    pub fn prefetch_state(&self, lookup: &mut PageLookup, ahead: impl Fn(u32)) {
        let PageLookup {
            hashes,
            numbers,
            len,
            ..
        } = lookup;
        for (hash, number) in hashes[..*len].iter().zip(numbers) {
            let at = self.numbers.find(*hash, |_| true);
            *number = self.numbers.places[at] as u32;
            fetch_ahead(&self.pages, *number as usize);
            fetch_ahead(&self.heats, *number as usize);
            ahead(*number);
        }
    }

    /// Number of a page that was just sampled. Calls `ahead` with the number that may be given to another page next.
    #[inline]
    pub fn touch(&mut self, lookup: &PageLookup, at: usize, ahead: impl Fn(u32)) -> PageNumber {
        let (page, number) = (lookup.pages[at], lookup.numbers[at]);
        match self.pages.get(number as usize) == Some(&page) {
            true => self.again(number),
            false => self.touch_slowly(page, lookup.hashes[at], ahead),
        }
    }

    fn again(&mut self, number: u32) -> PageNumber {
        let heat = &mut self.heats[number as usize];
        *heat = heat.saturating_add(1);
        PageNumber { number, new: false }
    }

    fn touch_slowly(&mut self, page: Page, hash: u64, ahead: impl Fn(u32)) -> PageNumber {
        let pages = &self.pages;
        let at = self
            .numbers
            .find(hash, |number| pages[number as usize] == page);
        if self.numbers.places[at] != FREE {
            return self.again(self.numbers.places[at] as u32);
        }
        let number = if let Some(number) = self.free.pop() {
            self.pages[number as usize] = page;
            self.heats[number as usize] = 1;
            self.numbers.insert(at, hash, number);
            number
        } else if self.pages.len() < self.capacity {
            self.pages.push(page);
            self.heats.push(1);
            let number = self.pages.len() as u32 - 1;
            self.numbers.insert(at, hash, number);
            number
        } else {
            let Coldest { number, heat } = self.take_coldest();
            let is_left_out = heat > 0 && self.comes_first(hash);
            if !is_left_out {
                let old = std::mem::replace(&mut self.pages[number as usize], page);
                self.heats[number as usize] = 1;
                self.remove(old, number);
                // Removing the old page may have freed an entry nearer to the new page's position.
                let at = self.numbers.find(hash, |_| false);
                self.numbers.insert(at, hash, number);
                self.given_up += 1;
            }
            self.expect_coldest(ahead);
            if is_left_out {
                return PageNumber::NONE;
            }
            number
        };
        PageNumber { number, new: true }
    }

    /// Remembers a page that is not in the table; is this its first sample since the last cooling?
    fn comes_first(&mut self, hash: u64) -> bool {
        let bit = left_out_bit(hash);
        let word = &mut self.left_out[bit / 64];
        let came = *word >> (bit % 64) & 1 == 1;
        *word |= 1 << (bit % 64);
        !came
    }

    fn remove(&mut self, page: Page, number: u32) {
        let at = self.numbers.find(hash(page), |other| other == number);
        self.numbers.remove(at);
    }

    /// The next candidates for eviction; fewer at the end of the table.
    fn candidates(&self) -> Range<usize> {
        self.hand..(self.hand + CANDIDATES).min(self.heats.len())
    }

    /// The coldest of the next candidates.
    fn coldest(&self) -> Coldest {
        let candidates = self.candidates();
        let begin = candidates.start;
        let heats = &self.heats[candidates];
        let heat = least(heats);
        Coldest {
            number: (begin + position(heats, heat)) as u32,
            heat,
        }
    }

    /// Returns the coldest of the next candidates, and advances to the following ones.
    fn take_coldest(&mut self) -> Coldest {
        let is_still = |coldest: &Coldest| self.heats[coldest.number as usize] == coldest.heat;
        // Between two coolings, counts only rise: an unchanged count is still the lowest.
        let coldest = self.expected.filter(is_still);
        let coldest = coldest.unwrap_or_else(|| self.coldest());
        let end = self.candidates().end;
        self.hand = if end == self.heats.len() { 0 } else { end };
        coldest
    }

    /// Determines the next coldest page and prefetches its state.
    fn expect_coldest(&mut self, ahead: impl Fn(u32)) {
        let coldest = self.coldest();
        self.expected = Some(coldest);
        let page = self.pages[coldest.number as usize];
        fetch_ahead(&self.numbers.places, self.numbers.first(hash(page)));
        ahead(coldest.number);
    }

    /// The page with a number.
    pub fn page(&self, number: u32) -> Option<Page> {
        let page = *self.pages.get(number as usize)?;
        (self.number(&page) == Some(number)).then_some(page)
    }

    /// The number of a page.
    pub fn number(&self, page: &Page) -> Option<u32> {
        let is_it = |number: u32| self.pages[number as usize] == *page;
        let at = self.numbers.find(hash(*page), is_it);
        let place = self.numbers.places[at];
        (place != FREE).then_some(place as u32)
    }

    /// Halves all counts at the end of an interval.
    pub fn cool(&mut self) {
        for heat in &mut self.heats {
            *heat /= 2;
        }
        self.expected = None;
        self.left_out.fill(0);
    }

    /// Drops the pages of a process that has ended or has another address space. Returns their numbers, ascending.
    pub fn forget_process(&mut self, process: ProcessIndex) -> Vec<u32> {
        let of_process = |number: &u32| {
            let page = self.pages[*number as usize];
            page.process == process && self.number(&page) == Some(*number)
        };
        let forgotten: Vec<u32> = (0..self.pages.len() as u32).filter(of_process).collect();
        for &number in &forgotten {
            self.remove(self.pages[number as usize], number);
        }
        self.free.extend(forgotten.iter().rev());
        self.expected = None;
        forgotten
    }
}

#[cfg(test)]
mod tests;
