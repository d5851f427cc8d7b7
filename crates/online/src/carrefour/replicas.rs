//! Replicated pages by application, and the number of collapses of each page.

/// No application.
const NONE: u16 = u16::MAX;

/// Replication state of all pages.
#[derive(Clone, Debug)]
pub struct Replicas {
    /// Application for which each page was last replicated.
    application: Vec<u16>,
    is_replicated: Vec<bool>,
    collapses: Vec<u32>,
    by_application: Vec<ApplicationReplicas>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ApplicationReplicas {
    /// Number of replicated pages.
    pages: u64,
    /// Bit n is set: the application's pages are to have copies on node n.
    nodes: u64,
}

impl Replicas {
    pub fn new(pages: usize) -> Self {
        Self {
            application: vec![NONE; pages],
            is_replicated: vec![false; pages],
            collapses: vec![0; pages],
            by_application: Vec::new(),
        }
    }

    /// Has the page copies, or is it to get them?
    pub fn has(&self, page: u32) -> bool {
        self.is_replicated[page as usize]
    }

    /// Marks a page for replication for an application.
    pub fn add(&mut self, page: u32, application: u16) {
        self.settle(page, false);
        self.application[page as usize] = application;
        self.settle(page, true);
    }

    /// Notes whether a page has copies.
    pub fn settle(&mut self, page: u32, is_replicated: bool) {
        let at = page as usize;
        let application = self.application[at];
        if application == NONE || self.is_replicated[at] == is_replicated {
            return;
        }
        self.is_replicated[at] = is_replicated;
        let pages = &mut self.of(application).pages;
        *pages = match is_replicated {
            true => *pages + 1,
            false => *pages - 1,
        };
    }

    /// Number of an application's replicated pages.
    pub fn count(&mut self, application: u16) -> u64 {
        self.of(application).pages
    }

    /// Replicated pages of an application.
    pub fn pages(&self, application: u16) -> impl Iterator<Item = u32> {
        let pages = self.application.iter().zip(&self.is_replicated).zip(0..);
        pages
            .filter_map(move |((&other, &has), page)| (has && other == application).then_some(page))
    }

    /// Adds nodes to those on which the application's pages are to have copies; returns the nodes that are new.
    pub fn reach(&mut self, application: u16, nodes: u64) -> u64 {
        let known = &mut self.of(application).nodes;
        let new = nodes & !*known;
        *known |= nodes;
        new
    }

    /// Notes that the copies of an application's pages are removed.
    pub fn leave(&mut self, application: u16) {
        self.of(application).nodes = 0;
    }

    /// Counts a collapse of a page by a store; returns the number of collapses so far.
    pub fn collapse(&mut self, page: u32) -> u64 {
        let collapses = &mut self.collapses[page as usize];
        *collapses = collapses.saturating_add(1);
        u64::from(*collapses)
    }

    /// Number of times that stores have collapsed a page.
    pub fn collapses(&self, page: u32) -> u64 {
        u64::from(self.collapses[page as usize])
    }

    /// Resets a page, because its number stands for another page.
    pub fn forget(&mut self, page: u32) {
        self.settle(page, false);
        self.application[page as usize] = NONE;
        self.collapses[page as usize] = 0;
    }

    fn of(&mut self, application: u16) -> &mut ApplicationReplicas {
        let at = usize::from(application);
        if self.by_application.len() <= at {
            self.by_application
                .resize(at + 1, ApplicationReplicas::default());
        }
        &mut self.by_application[at]
    }
}
