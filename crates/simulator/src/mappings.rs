//! The copy of a replicated page that each thread's page table maps.

/// The mapped copy by page and thread. Verghese §8.3: "When a process is rescheduled to a different node, which has a
/// local copy of a page, it may take a while before the page-table entry is changed to reflect this. Currently we only
/// change mappings when a page or one of its replicas is processed after crossing the trigger threshold."
pub(crate) struct Mappings {
    threads: usize,
    /// Node of the mapped copy, `[page × threads + thread]`.
    copies: Vec<u8>,
}

/// The thread has no mapping of the page since the page was last processed.
const NONE: u8 = u8::MAX;

impl Mappings {
    pub fn new(pages: usize, threads: usize) -> Self {
        Self {
            threads,
            copies: vec![NONE; pages * threads],
        }
    }

    fn row(&mut self, page: u32) -> &mut [u8] {
        let start = page as usize * self.threads;
        &mut self.copies[start..start + self.threads]
    }

    /// Node of the copy that a thread maps: the nearest copy, unless an older mapping still exists.
    #[inline]
    pub fn copy(&mut self, page: u32, thread: usize, nearest: u16, copies: u64) -> u16 {
        let mapped = &mut self.row(page)[thread];
        if *mapped == NONE || copies >> *mapped & 1 == 0 {
            *mapped = nearest as u8;
        }
        (*mapped).into()
    }

    /// Does a thread map a copy on a node other than `node`?
    pub fn leads_elsewhere(&mut self, page: u32, thread: usize, node: u16) -> bool {
        let mapped = self.row(page)[thread];
        mapped != NONE && u16::from(mapped) != node
    }

    /// Drops all mappings of a page, so that each thread maps its nearest copy at its next reference.
    pub fn process(&mut self, page: u32) {
        self.row(page).fill(NONE);
    }
}
