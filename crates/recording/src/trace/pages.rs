//! Finds the page of an address. Pages of a trace are numbered densely, in order of process image, address and time,
//! independent of the order in which the trace is read.
//!
//! A page begins with its first touch. A first touch after the page was unmapped begins another page (a *generation*).
//! Pages of a file that are shared, or mapped without being writable, are one page in all processes; its number is that
//! of the first place in order.

use nearpage_machine::CpuId;
use nearpage_perf_abi::FileId;
use rustc_hash::FxHashMap;

use super::clock::Clock;
use super::{FilePage, PageIndex};
use crate::ThreadIndex;

/// Pages per leaf: 2 MiB of 4 KiB pages, for which one look-up in the upper level suffices.
const LEAF_PAGES: usize = 512;
/// Entry of an address without a page.
const NONE: u32 = u32::MAX;
/// Flag of an entry whose other bits are a position in `generations`.
const GENERATIONS: u32 = 1 << 31;
/// Most pages that a trace can have.
pub(super) const PAGES_MAX: u32 = GENERATIONS - 1;
/// Number of leaves that a look-up remembers.
const CACHED_LEAVES: usize = 64;

/// Place of a page in a process image, and the time since which the page is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRow {
    /// The page.
    pub page: PageIndex,
    /// Position of the process image among the trace's.
    pub image: u32,
    /// First address.
    pub address: u64,
    /// Virtual time from which on the address has this page, in instructions; 0 for the beginning.
    pub since_instructions: u64,
    /// First touch; `None` if it was not seen (memory that the program began with).
    pub first_touch: Option<Touch>,
}

/// The first touch of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Thread that touched the page.
    pub thread: ThreadIndex,
    /// CPU that the thread ran on.
    pub cpu: CpuId,
}

/// Place of a page; the first place if several processes map the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePlace {
    /// Position of the process image among the trace's.
    pub image: u32,
    /// First address.
    pub address: u64,
    /// First touch at this place.
    pub first_touch: Option<Touch>,
}

/// All pages of a trace, for look-ups by address.
#[derive(Clone, Debug, Default)]
pub struct PageTable {
    page_shift: u32,
    images: Vec<ImagePages>,
    places: Vec<PagePlace>,
}

#[derive(Clone, Debug, Default)]
struct ImagePages {
    /// Number of the leaf, by address / page size / [`LEAF_PAGES`].
    leaves: FxHashMap<u64, u32>,
    pages: Vec<[u32; LEAF_PAGES]>,
    /// Pages at addresses that had several: (begin in virtual time, page), ascending.
    generations: Vec<Vec<(u64, u32)>>,
}

impl PageTable {
    /// An empty table for pages of `page_bytes`, a power of two.
    pub(super) fn new(page_bytes: u64, images: usize) -> Self {
        Self {
            page_shift: page_bytes.trailing_zeros(),
            images: vec![ImagePages::default(); images],
            places: Vec::new(),
        }
    }

    /// Adds a row. Rows of one address come in order of time, and pages first appear in order of their numbers. Returns
    /// `None` if the row does not fit earlier rows.
    pub(super) fn push(&mut self, row: &PageRow) -> Option<()> {
        let number = row.page.0;
        if number as usize == self.places.len() && number < PAGES_MAX {
            self.places.push(PagePlace {
                image: row.image,
                address: row.address,
                first_touch: row.first_touch,
            });
        } else if number as usize > self.places.len() {
            return None;
        }
        let image = self.images.get_mut(row.image as usize)?;
        let page = row.address >> self.page_shift;
        let leaf = *image
            .leaves
            .entry(page / LEAF_PAGES as u64)
            .or_insert_with(|| {
                image.pages.push([NONE; LEAF_PAGES]);
                image.pages.len() as u32 - 1
            });
        let entry = &mut image.pages[leaf as usize][page as usize % LEAF_PAGES];
        if *entry == NONE && row.since_instructions == 0 {
            *entry = number;
        } else if *entry != NONE && *entry & GENERATIONS != 0 {
            let list = &mut image.generations[(*entry & !GENERATIONS) as usize];
            let (since, _) = list.last()?;
            if *since >= row.since_instructions {
                return None;
            }
            list.push((row.since_instructions, number));
        } else if *entry != NONE && row.since_instructions > 0 {
            let list = vec![(0, *entry), (row.since_instructions, number)];
            *entry = GENERATIONS | image.generations.len() as u32;
            image.generations.push(list);
        } else {
            return None;
        }
        Some(())
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no pages.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Page size in bytes.
    pub fn page_bytes(&self) -> u64 {
        1 << self.page_shift
    }

    /// Place of a page. Panics if there is no such page.
    pub fn place(&self, page: PageIndex) -> PagePlace {
        self.places[page.0 as usize]
    }

    /// Pages of files that other processes may map, too, by number. `files` has the ranges of each image, in any order.
    pub(super) fn of_files(&self, files: &[Vec<FileRange>]) -> Vec<(u32, FilePage)> {
        let generations = self.images.iter().flat_map(|image| &image.generations);
        let since: FxHashMap<u32, u64> = generations
            .flatten()
            .map(|&(since, page)| (page, since))
            .collect();
        let mut found = Vec::new();
        for (page, place) in (0..).zip(&self.places) {
            let since = since.get(&page).copied().unwrap_or(0);
            let here = files.get(place.image as usize).into_iter().flatten();
            let mut here =
                here.filter(|file| (file.range.0..file.range.1).contains(&place.address));
            // A page from the beginning has no time of its own, so the file that was mapped first counts.
            let file = if since == 0 {
                here.min_by_key(|file| file.mapped.0)
            } else {
                here.find(|file| (file.mapped.0..file.mapped.1).contains(&since))
            };
            found.extend(file.map(|file| (page, file.page(place.address, self.page_shift))));
        }
        found
    }

    /// The page of `address` in a process image at a virtual time. For many look-ups, use a [`PageLookup`].
    pub fn find(&self, image: usize, address: u64, instructions: u64) -> Option<PageIndex> {
        PageLookup::new(image).find(self, address, instructions)
    }
}

/// Looks up addresses of one process image, and remembers the leaves found last.
#[derive(Clone, Debug)]
pub struct PageLookup {
    image: usize,
    /// Upper part of the address, and number of the leaf; indexed by the upper part modulo [`CACHED_LEAVES`].
    remembered: [(u64, u32); CACHED_LEAVES],
}

impl PageLookup {
    /// Makes a look-up for the image at this position among the trace's.
    pub fn new(image: usize) -> Self {
        Self {
            image,
            remembered: [(u64::MAX, 0); CACHED_LEAVES],
        }
    }

    /// The page of `address` at a virtual time; `None` if it is not in the table.
    #[inline]
    pub fn find(
        &mut self,
        table: &PageTable,
        address: u64,
        instructions: u64,
    ) -> Option<PageIndex> {
        let image = table.images.get(self.image)?;
        let page = address >> table.page_shift;
        let upper = page / LEAF_PAGES as u64;
        let slot = &mut self.remembered[upper as usize % CACHED_LEAVES];
        if slot.0 != upper {
            *slot = (upper, *image.leaves.get(&upper)?);
        }
        let entry = image.pages[slot.1 as usize][page as usize % LEAF_PAGES];
        if entry & GENERATIONS == 0 {
            Some(PageIndex(entry))
        } else if entry == NONE {
            None
        } else {
            let list = &image.generations[(entry & !GENERATIONS) as usize];
            let after = list.partition_point(|(since, _)| *since <= instructions);
            Some(PageIndex(list[after - 1].1))
        }
    }
}

/// A range of a process image's memory whose pages other processes may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileRange {
    /// First address, and the address after the last.
    pub range: (u64, u64),
    /// Virtual times between which the range was mapped.
    pub mapped: (u64, u64),
    pub file: FileId,
    /// Offset of the first address in the file.
    pub offset: u64,
}

impl FileRange {
    /// The file's page at an address in the range.
    fn page(&self, address: u64, page_shift: u32) -> FilePage {
        FilePage {
            device: u64::from(self.file.device.0) << 32 | u64::from(self.file.device.1),
            inode: self.file.inode,
            page: (address - self.range.0).wrapping_add(self.offset) >> page_shift,
        }
    }
}

/// Pages of one process image that the survey saw, in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenPages {
    /// Bit per page, by page / [`LEAF_PAGES`].
    seen: FxHashMap<u64, [u64; LEAF_PAGES / 64]>,
    touches: Vec<SeenTouch>,
}

/// A first touch whose CLOCK_MONOTONIC is not known yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenTouch {
    /// Address / page size.
    pub page: u64,
    /// Virtual time of the touch.
    pub instructions: u64,
    /// The latest CLOCK_MONOTONIC that the thread knew before the touch.
    pub own_before_ns: u64,
    pub thread: ThreadIndex,
    pub cpu: CpuId,
}

impl SeenPages {
    #[inline]
    pub(super) fn see(&mut self, page: u64) {
        let bits = self.seen.entry(page / LEAF_PAGES as u64).or_default();
        let bit = page as usize % LEAF_PAGES;
        bits[bit / 64] |= 1 << (bit % 64);
    }

    pub(super) fn touch(&mut self, touch: SeenTouch) {
        self.see(touch.page);
        self.touches.push(touch);
    }

    pub(super) fn append(&mut self, other: Self) {
        for (upper, bits) in other.seen {
            let own = self.seen.entry(upper).or_default();
            for (own, other) in own.iter_mut().zip(bits) {
                *own |= other;
            }
        }
        self.touches.extend(other.touches);
    }

    fn pages(&self) -> Vec<u64> {
        let mut uppers: Vec<u64> = self.seen.keys().copied().collect();
        uppers.sort_unstable();
        let mut pages = Vec::new();
        for upper in uppers {
            let bits = &self.seen[&upper];
            pages.extend(
                (0..LEAF_PAGES as u64)
                    .filter(|bit| bits[*bit as usize / 64] >> (bit % 64) & 1 == 1)
                    .map(|bit| upper * LEAF_PAGES as u64 + bit),
            );
        }
        pages
    }
}

/// Numbers the pages of all images. `files` and `clocks` are by image; ranges of files are in any order. Returns `None`
/// if there are more pages than numbers.
pub(super) fn number(
    page_bytes: u64,
    seen: Vec<SeenPages>,
    files: &[Vec<FileRange>],
    clocks: &[Clock],
) -> Option<Vec<PageRow>> {
    let shift = page_bytes.trailing_zeros();
    let mut next = 0u32;
    let mut shared: FxHashMap<FilePage, u32> = FxHashMap::default();
    let mut rows = Vec::new();
    for (image, mut seen) in seen.into_iter().enumerate() {
        seen.touches
            .sort_unstable_by_key(|touch| (touch.page, touch.instructions, touch.thread));
        let time_ns = |touch: &SeenTouch| {
            let mut since = clocks[image].seek(touch.instructions);
            clocks[image]
                .time_ns(touch.instructions, &mut since)
                .max(touch.own_before_ns)
        };
        let mut touches = seen.touches.iter().peekable();
        let mut files = files.get(image).cloned().unwrap_or_default();
        files.sort_unstable_by_key(|file| (file.range.0, file.mapped.0));
        let mut coming = files.iter().peekable();
        let mut here: Vec<&FileRange> = Vec::new();
        for page in seen.pages() {
            let address = page << shift;
            while let Some(file) = coming.next_if(|file| file.range.0 <= address) {
                here.push(file);
            }
            here.retain(|file| address < file.range.1);
            // Begin in virtual time and first touch of each generation.
            let mut generations: Vec<(u64, Option<SeenTouch>)> = vec![(0, None)];
            while let Some(touch) = touches.next_if(|touch| touch.page == page) {
                match generations.last_mut() {
                    Some((_, first @ None)) => *first = Some(*touch),
                    Some((_, Some(last))) if touch.instructions > last.instructions => {
                        generations.push((touch.instructions, Some(*touch)));
                    }
                    _ => {}
                }
            }
            for (since, first) in generations {
                let file = here.iter().find(|file| {
                    first.is_none_or(|touch| {
                        (file.mapped.0..file.mapped.1).contains(&touch.instructions)
                    })
                });
                let identity = file.map(|file| file.page(address, shift));
                let known = identity.and_then(|identity| shared.get(&identity).copied());
                let number = known.unwrap_or_else(|| {
                    next += 1;
                    next - 1
                });
                if next > PAGES_MAX {
                    return None;
                }
                if let Some(identity) = identity {
                    shared.insert(identity, number);
                }
                rows.push(PageRow {
                    page: PageIndex(number),
                    image: image as u32,
                    address,
                    since_instructions: since,
                    first_touch: first.map(|touch| Touch {
                        time_ns: time_ns(&touch),
                        thread: touch.thread,
                        cpu: touch.cpu,
                    }),
                });
            }
        }
    }
    Some(rows)
}
