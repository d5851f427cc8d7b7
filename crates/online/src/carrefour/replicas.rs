//! Which pages have copies, or are to get them, by application; how often each has collapsed.

/// No application.
const NONE: u16 = u16::MAX;

/// Of all pages.
#[derive(Clone, Debug)]
pub struct Replicas {
    /// Application that each page was last replicated for.
    application: Vec<u16>,
    is_replicated: Vec<bool>,
    collapses: Vec<u32>,
    by_application: Vec<ApplicationReplicas>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ApplicationReplicas {
    /// Pages that are replicated.
    pages: u64,
    /// Bit n: its pages are to have copies on node n.
    nodes: u64,
}

impl Replicas {
    /// None.
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

    /// A page is to get copies for an application.
    pub fn add(&mut self, page: u32, application: u16) {
        self.settle(page, false);
        self.application[page as usize] = application;
        self.settle(page, true);
    }

    /// A page has copies, or has none any more.
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

    /// Pages of an application that are replicated.
    pub fn count(&mut self, application: u16) -> u64 {
        self.of(application).pages
    }

    /// These pages.
    pub fn pages(&self, application: u16) -> impl Iterator<Item = u32> {
        let pages = self.application.iter().zip(&self.is_replicated).zip(0..);
        pages
            .filter_map(move |((&other, &has), page)| (has && other == application).then_some(page))
    }

    /// Of these nodes, those that its pages are not to have copies on yet; from now on they are.
    pub fn reach(&mut self, application: u16, nodes: u64) -> u64 {
        let known = &mut self.of(application).nodes;
        let new = nodes & !*known;
        *known |= nodes;
        new
    }

    /// The copies of an application's pages go.
    pub fn leave(&mut self, application: u16) {
        self.of(application).nodes = 0;
    }

    /// A store collapses a page; how often that has happened.
    pub fn collapse(&mut self, page: u32) -> u64 {
        let collapses = &mut self.collapses[page as usize];
        *collapses = collapses.saturating_add(1);
        u64::from(*collapses)
    }

    /// How often stores have collapsed a page.
    pub fn collapses(&self, page: u32) -> u64 {
        u64::from(self.collapses[page as usize])
    }

    /// The page's number stands for another page.
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
