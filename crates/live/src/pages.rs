//! The hot pages: a table of a size that is set aside at the start (Carrefour §4.4).

use std::ops::Range;

use nearpage_online::fetch_ahead;

use crate::PAGES_MOST;

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

impl Page {
    /// No page: a place for one.
    pub const NONE: Self = Self {
        process: ProcessIndex(u32::MAX),
        address: u64::MAX,
    };
}

/// A page's number in the table: what policies know it by, until it is given to another page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageNumber {
    /// The number.
    pub number: u32,
    /// The number stood for another page before, or for none.
    pub new: bool,
}

impl PageNumber {
    /// No page's.
    const NONE: Self = Self {
        number: u32::MAX,
        new: false,
    };

    /// The page has no number: the table is full of pages that were sampled more often.
    pub fn is_left_out(&self) -> bool {
        self.number == Self::NONE.number
    }
}

/// How many pages are looked at for one to give up. The coldest of sixteen is among the coldest
/// third of all in 998 cases of a thousand.
const CANDIDATES: usize = 16;

/// Pages are looked for so many at a time, so that what memory is slow to give comes for all of them
/// at once.
pub const AT_ONCE: usize = 32;

/// Pages that are about to be touched.
#[derive(Clone, Debug)]
pub struct PageLookup {
    pages: [Page; AT_ONCE],
    hashes: [u64; AT_ONCE],
    /// What numbers they may have.
    numbers: [u32; AT_ONCE],
    len: usize,
}

impl PageLookup {
    /// Nothing is wanted yet.
    pub const NONE: Self = Self {
        pages: [Page::NONE; AT_ONCE],
        hashes: [0; AT_ONCE],
        numbers: [u32::MAX; AT_ONCE],
        len: 0,
    };

    /// One of them.
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
    /// Beside the pages, so that all candidates' are in a cache line or two. Never negative: of signed
    /// numbers every x86-64 finds the least of eight at once.
    heats: Vec<i16>,
    numbers: Numbers,
    free: Vec<u32>,
    hand: usize,
    /// The coldest of the next candidates, as it was.
    expected: Option<Coldest>,
    given_up: u64,
    /// A bit for each hash: such a page was left out in this interval.
    left_out: Vec<u64>,
}

/// The first page of the least heat among some.
#[derive(Clone, Copy, Debug)]
struct Coldest {
    number: u32,
    heat: i16,
}

/// By so many of a hash's upper bits pages that were left out in an interval are told apart.
const LEFT_OUT_SHIFT: u32 = 32 - 17;

fn left_out_bit(hash: u64) -> usize {
    (hash >> LEFT_OUT_SHIFT) as usize
}

/// The number of each page: open addressing with linear probing in an array that is at most half
/// full. A place has the upper half of the page's hash and the number, so that most pages that are
/// others are told apart, and all are moved, without a look at the pages themselves.
#[derive(Debug)]
struct Numbers {
    /// `hash >> 32 << 32 | number`; [`FREE`]: nothing.
    places: Vec<u64>,
    /// A place's position is so many of the hash's upper bits.
    shift: u32,
    len: usize,
}

/// No hash has an upper half of all ones.
const FREE: u64 = u64::MAX;

/// Half a word: multiplies (Fibonacci hashing) and keeps the upper half.
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

    /// Where a page of that hash is, unless another one took its place.
    fn first(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// The place of the page with this hash for which `is_it` holds, or the free one where it would be.
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

    /// Frees a place; those after it that were pushed away from theirs move up.
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

/// The least heat of some.
fn least(heats: &[i16]) -> i16 {
    match heats.first_chunk::<CANDIDATES>() {
        Some(all) => all.iter().copied().fold(i16::MAX, i16::min),
        None => heats.iter().copied().fold(i16::MAX, i16::min),
    }
}

/// Where a heat is first among some that have it.
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

    /// Pages in it.
    pub fn len(&self) -> usize {
        self.numbers.len
    }

    /// Pages that had to make way for others so far.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// At most [`AT_ONCE`] pages will be touched, a while after [`expect`](Self::expect): has what tells
    /// their numbers brought into the caches.
    // Inlined into the loop that touches them, this and the next keep registers that it needs.
    #[inline(never)]
    pub fn want(&self, wanted: &mut PageLookup, pages: impl Iterator<Item = Page>) {
        wanted.len = 0;
        let places = wanted.pages.iter_mut().zip(&mut wanted.hashes);
        for ((place, of_place), page) in places.zip(pages) {
            let hash = hash(page);
            fetch_ahead(&self.numbers.places, self.numbers.first(hash));
            (*place, *of_place) = (page, hash);
            wanted.len += 1;
        }
    }

    /// They will be touched soon: has what is known of them brought into the caches, for which `ahead`
    /// is told likely numbers.
    #[inline(never)]
    pub fn expect(&self, wanted: &mut PageLookup, ahead: impl Fn(u32)) {
        let PageLookup {
            hashes,
            numbers,
            len,
            ..
        } = wanted;
        for (hash, number) in hashes[..*len].iter().zip(numbers) {
            let at = self.numbers.find(*hash, |_| true);
            *number = self.numbers.places[at] as u32;
            fetch_ahead(&self.pages, *number as usize);
            fetch_ahead(&self.heats, *number as usize);
            ahead(*number);
        }
    }

    /// The number of a wanted page that was just sampled. `ahead` is told which number may be given to
    /// another page next.
    #[inline]
    pub fn touch(&mut self, wanted: &PageLookup, at: usize, ahead: impl Fn(u32)) -> PageNumber {
        let (page, number) = (wanted.pages[at], wanted.numbers[at]);
        match self.pages.get(number as usize) == Some(&page) {
            true => self.again(number),
            false => self.touch_slowly(page, wanted.hashes[at], ahead),
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
                // What moved up may have left a place nearer to the page's own.
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

    /// Remembers a page that is not in the table; is it for the first time since the last cooling?
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

    /// The next few pages, of which the coldest is to make way; at the end of the table those that are
    /// left.
    fn candidates(&self) -> Range<usize> {
        self.hand..(self.hand + CANDIDATES).min(self.heats.len())
    }

    /// The coldest of the next few.
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

    /// The same, and those after them are the next.
    fn take_coldest(&mut self) -> Coldest {
        let is_still = |coldest: &Coldest| self.heats[coldest.number as usize] == coldest.heat;
        // Until they cool, heats only rise.
        let coldest = self.expected.filter(is_still);
        let coldest = coldest.unwrap_or_else(|| self.coldest());
        let end = self.candidates().end;
        self.hand = if end == self.heats.len() { 0 } else { end };
        coldest
    }

    /// Has what is known of the next coldest brought into the caches.
    fn expect_coldest(&mut self, ahead: impl Fn(u32)) {
        let coldest = self.coldest();
        self.expected = Some(coldest);
        let page = self.pages[coldest.number as usize];
        fetch_ahead(&self.numbers.places, self.numbers.first(hash(page)));
        ahead(coldest.number);
    }

    /// The page that a number stands for.
    pub fn page(&self, number: u32) -> Option<Page> {
        let page = *self.pages.get(number as usize)?;
        (self.number(&page) == Some(number)).then_some(page)
    }

    /// The number that stands for a page.
    pub fn number(&self, page: &Page) -> Option<u32> {
        let is_it = |number: u32| self.pages[number as usize] == *page;
        let at = self.numbers.find(hash(*page), is_it);
        let place = self.numbers.places[at];
        (place != FREE).then_some(place as u32)
    }

    /// An interval has passed: what was hot long ago cools down.
    pub fn cool(&mut self) {
        for heat in &mut self.heats {
            *heat /= 2;
        }
        self.expected = None;
        self.left_out.fill(0);
    }

    /// A process has ended, or has another address space now. The numbers of its pages, ascending.
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
