//! What a generated program consists of.

use std::fmt;

use super::kind::Kind;
use super::sweep::tile_rows;

/// Lines of which accesses are counted together: a page's.
pub const UNIT_LINES: u64 = 64;
/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;

/// A program, drawn from a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// What it was drawn from.
    pub seed: u64,
    /// How its threads come to be.
    pub style: Style,
    /// Threads that share its work.
    pub team: u64,
    /// How often it goes through all objects.
    pub passes: u64,
    /// In the order in which they are allocated and used.
    pub objects: Vec<Object>,
    /// The machine that plans are for.
    pub machine: &'static str,
    /// How threads are laid out on the machine.
    pub layout: &'static str,
    /// Another size, as a factor, and team, at which its plan is judged.
    pub other: (u64, u64),
}

/// How threads come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One parallel region of OpenMP.
    OpenMp,
    /// A parallel region for each use of an object.
    OpenMpRegions,
    /// The main thread creates all of the team, and waits.
    Workers,
    /// The same for every pass anew.
    WorkersAnew,
    /// The main thread is the first of the team, and creates the others.
    MainAndWorkers,
}

impl Style {
    /// Those that are drawn; of [`Self::Workers`] half become [`Self::WorkersAnew`].
    pub const DRAWN: [Self; 4] = [
        Self::OpenMp,
        Self::OpenMpRegions,
        Self::Workers,
        Self::MainAndWorkers,
    ];

    /// Is the main thread the first of the team?
    pub fn main_is_worker(self) -> bool {
        !matches!(self, Self::Workers | Self::WorkersAnew)
    }

    /// Is this OpenMP's?
    pub fn is_openmp(self) -> bool {
        matches!(self, Self::OpenMp | Self::OpenMpRegions)
    }
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads.
    Load,
    /// Writes.
    Store,
    /// Reads and writes.
    Update,
    /// Writes, before the program's work.
    Initialise,
}

impl Operation {
    /// As the C program calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "LOAD",
            Self::Store => "STORE",
            Self::Update => "UPDATE",
            Self::Initialise => "INITIALISE",
        }
    }
}

/// Where an object's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// `malloc`.
    Heap,
    /// `calloc`.
    Zeroed,
    /// `mmap`.
    Mapping,
    /// An array of the program, as large for every input.
    Static,
}

/// Who writes an object first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initialiser {
    /// The main thread.
    Main,
    /// Each thread what it uses; of what all use, its share.
    Threads,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its name in the program.
    pub name: String,
    /// The function that allocates it is called `allocate_` and this. Objects with the same one have one call site.
    pub site: String,
    /// Who uses which part.
    pub kind: Kind,
    /// Its lines, at size 1.
    pub lines: u64,
    /// Where its memory comes from.
    pub storage: Storage,
    /// What its users do.
    pub operation: Operation,
    /// Who writes it first.
    pub initialiser: Initialiser,
    /// Do other threads than its users read every 32nd line, in turn?
    pub has_noise: bool,
}

impl Object {
    /// By how much it is larger at a size.
    pub fn factor(&self, size: u64) -> u64 {
        match self.storage {
            Storage::Static => 1,
            _ => size,
        }
    }

    /// Pieces that are allocated one by one, and the lines of each.
    pub fn pieces(&self, size: u64, team: u64) -> (u64, u64) {
        let lines = self.lines * self.factor(size);
        match self.kind {
            Kind::Rows { row, .. } => (lines / row, row),
            Kind::Arena { chunk } => ((lines / chunk / team).max(1) * team, chunk),
            Kind::Private { .. } => (team, lines / team),
            _ => (1, lines),
        }
    }

    /// All lines.
    pub fn lines_at(&self, size: u64, team: u64) -> u64 {
        let (pieces, lines) = self.pieces(size, team);
        pieces * lines
    }

    /// Is it allocated by its threads?
    pub fn is_allocated_by_threads(&self) -> bool {
        matches!(
            self.kind,
            Kind::Arena { .. } | Kind::Private { by_user: true }
        )
    }
}

impl Program {
    /// Names of `Pattern`s that an object may have: of its kind, and others where the program leaves nearpage no better
    /// one.
    pub fn patterns(&self, object: &Object) -> Vec<&'static str> {
        let mut names = object.kind.patterns().to_vec();
        if object.kind.are_weights_equal(self.team) {
            names = vec!["Block", "Tiles"];
        }
        let siblings = self.objects.iter().filter(|one| one.site == object.site);
        // What is used in different ways may be told as what it is together.
        let has_siblings = siblings.count() > 1;
        // A team that cannot be arranged in two rows or more has columns.
        if matches!(object.kind, Kind::Tiles { .. }) && tile_rows(self.team) == 1 {
            names.push("BlockCyclic");
        }
        // The main thread and those that it creates are no team, so that no rule is about all of them.
        let has_no_team = self.style == Style::MainAndWorkers && object.kind.is_by_team();
        if has_siblings || has_no_team {
            names.extend(["Segments", "Mixed"]);
        }
        names
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: u64 = self.objects.iter().map(|one| one.lines * LINE_BYTES).sum();
        write!(
            f,
            "seed {}: {:?}, {} threads, {} passes over {} objects of {} MiB, for {} ({})",
            self.seed,
            self.style,
            self.team,
            self.passes,
            self.objects.len(),
            bytes >> 20,
            self.machine,
            self.layout
        )
    }
}
