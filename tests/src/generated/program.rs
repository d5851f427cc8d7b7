//! Parts of a generated program.

use std::fmt;

use super::kind::Kind;
use super::sweep::tile_rows;

/// Cache lines of a unit, for which accesses are counted: one page.
pub const UNIT_LINES: u64 = 64;
/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;

/// A program, drawn from a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Seed of the program.
    pub seed: u64,
    /// How the program creates threads.
    pub style: Style,
    /// Threads that share the work.
    pub team: u64,
    /// Passes over all objects.
    pub passes: u64,
    /// Objects in the order of allocation and use.
    pub objects: Vec<Object>,
    /// Name of the machine that plans are for.
    pub machine: &'static str,
    /// Thread layout on the machine.
    pub layout: &'static str,
    /// Size factor and team of the second run in which plans are judged.
    pub other: (u64, u64),
}

/// How a program creates threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One OpenMP parallel region.
    OpenMp,
    /// An OpenMP parallel region for each use of an object.
    OpenMpRegions,
    /// The main thread creates the whole team and waits.
    Workers,
    /// The main thread creates a new team for every pass and waits.
    WorkersAnew,
    /// The main thread is the first of the team and creates the others.
    MainAndWorkers,
}

impl Style {
    /// Styles that are drawn; half of the [`Self::Workers`] become [`Self::WorkersAnew`].
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

    /// Does the program use OpenMP?
    pub fn is_openmp(self) -> bool {
        matches!(self, Self::OpenMp | Self::OpenMpRegions)
    }
}

/// Kinds of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Load.
    Load,
    /// Store.
    Store,
    /// Load, then store.
    Update,
    /// Store before the program's work.
    Initialise,
}

impl Operation {
    /// Name in the C program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "LOAD",
            Self::Store => "STORE",
            Self::Update => "UPDATE",
            Self::Initialise => "INITIALISE",
        }
    }
}

/// Source of an object's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// `malloc`.
    Heap,
    /// `calloc`.
    Zeroed,
    /// `mmap`.
    Mapping,
    /// A static array, of the same size for every input.
    Static,
}

/// The thread that first writes a part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initialiser {
    /// The main thread.
    Main,
    /// Each thread for the parts that it uses; its share of parts that all use.
    Threads,
}

/// Data of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Name in the program.
    pub name: String,
    /// The allocating function is `allocate_` with this suffix; objects with equal `site` have one call site.
    pub site: String,
    /// Which thread uses which part.
    pub kind: Kind,
    /// Cache lines at size 1.
    pub lines: u64,
    /// Source of the memory.
    pub storage: Storage,
    /// Accesses by the users of a part.
    pub operation: Operation,
    /// The thread that first writes a part.
    pub initialiser: Initialiser,
    /// Do other threads read every 32nd line of a part, in turn?
    pub has_noise: bool,
}

impl Object {
    /// The object's growth at a size: its lines are this many times those at size 1.
    pub fn factor(&self, size: u64) -> u64 {
        match self.storage {
            Storage::Static => 1,
            _ => size,
        }
    }

    /// Number of separately allocated pieces, and lines of a piece.
    pub fn pieces(&self, size: u64, team: u64) -> (u64, u64) {
        let lines = self.lines * self.factor(size);
        match self.kind {
            Kind::Rows { row, .. } => (lines / row, row),
            Kind::Arena { chunk } => ((lines / chunk / team).max(1) * team, chunk),
            Kind::Private { .. } => (team, lines / team),
            _ => (1, lines),
        }
    }

    /// All lines of the object.
    pub fn lines_at(&self, size: u64, team: u64) -> u64 {
        let (pieces, lines) = self.pieces(size, team);
        pieces * lines
    }

    /// Do threads of the team allocate the object?
    pub fn is_allocated_by_threads(&self) -> bool {
        matches!(
            self.kind,
            Kind::Arena { .. } | Kind::Private { by_user: true }
        )
    }
}

impl Program {
    /// Acceptable names of an object's `Pattern`: those of its kind, and others where the program's structure allows no
    /// better one.
    pub fn patterns(&self, object: &Object) -> Vec<&'static str> {
        let mut names = object.kind.patterns().to_vec();
        if object.kind.are_weights_equal(self.team) {
            names = vec!["Block", "Tiles"];
        }
        let siblings = self.objects.iter().filter(|one| one.site == object.site);
        // Objects of one call site form one group, which may have a pattern that covers their different uses.
        let has_siblings = siblings.count() > 1;
        // The tiles of a team without two or more rows are columns.
        if matches!(object.kind, Kind::Tiles { .. }) && tile_rows(self.team) == 1 {
            names.push("BlockCyclic");
        }
        // The main thread and the threads that it creates form no team, so no rule by team numbers covers all of them.
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
