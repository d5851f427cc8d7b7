//! `migrate-replicate`: migration and replication of hot pages (Verghese, Devine, Gupta and Rosenblum, §3.2).

use nearpage_recording::AccessKind;

use super::{
    Action, ActionKind, Copies, Epoch, Observation, OnlinePolicy, Parameter, ParameterError,
    Reason, Setting, fetch_ahead,
};

/// The policy's five parameters (Table 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Misses of a node without a copy after which the page is hot.
    pub trigger: u64,
    /// If a node with a copy has more misses than this, the page is shared: it may be replicated, but not migrated.
    pub hold: u64,
    /// A page with more stores than this is not replicated until the interval ends.
    pub write: u64,
    /// A page with this number of migrations is not migrated again until the interval ends.
    pub migrate: u64,
    /// Cycles after which all counters are reset.
    pub reset_cycles: u64,
}

impl Default for Thresholds {
    /// The base case of §6.1.
    fn default() -> Self {
        let [trigger, hold, write, migrate, reset_cycles] =
            Self::PARAMETERS.map(|parameter| parameter.default);
        Self {
            trigger,
            hold,
            write,
            migrate,
            reset_cycles,
        }
    }
}

/// Largest threshold. Counters have 16 bits and saturate at the next value, which triggers nothing.
const COUNT_MAX: u64 = u16::MAX as u64 - 1;

impl Thresholds {
    /// Names, published defaults and ranges, in the order of the fields.
    pub const PARAMETERS: [Parameter; 5] = [
        Parameter {
            name: "trigger",
            default: 128,
            least: 1,
            most: COUNT_MAX,
            meaning: "misses of a node that make a page hot",
        },
        Parameter {
            name: "hold",
            default: 32,
            least: 0,
            most: COUNT_MAX,
            meaning: "misses of a node with a copy, above which the page is shared",
        },
        Parameter {
            name: "write",
            default: 1,
            least: 0,
            most: COUNT_MAX,
            meaning: "stores to a page above which it is not replicated",
        },
        Parameter {
            name: "migrate",
            default: 1,
            least: 0,
            most: COUNT_MAX,
            meaning: "migrations of a page after which it is not migrated",
        },
        Parameter {
            name: "reset",
            default: 32_000_000,
            least: 1,
            most: 1_000_000_000_000_000,
            meaning: "cycles after which all counters are reset",
        },
    ];

    /// Sets a parameter by name; `false`: there is no parameter of that name.
    ///
    /// # Errors
    /// A value outside its range.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ParameterError> {
        let fields = [
            &mut self.trigger,
            &mut self.hold,
            &mut self.write,
            &mut self.migrate,
            &mut self.reset_cycles,
        ];
        for (field, parameter) in fields.into_iter().zip(&Self::PARAMETERS) {
            if parameter.name == name {
                *field = parameter.read(value)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Names and values.
    pub fn values(&self) -> [(&'static str, u64); 5] {
        let values = [
            self.trigger,
            self.hold,
            self.write,
            self.migrate,
            self.reset_cycles,
        ];
        std::array::from_fn(|at| (Self::PARAMETERS[at].name, values[at]))
    }

    /// Checks the thresholds together.
    ///
    /// # Errors
    /// "The hold threshold is always less than the trigger threshold" (§3.2).
    pub fn check(&self) -> Result<(), ParameterError> {
        if self.hold >= self.trigger {
            let Self { trigger, hold, .. } = self;
            return Err(ParameterError(format!(
                "hold={hold} is not below trigger={trigger}: every hot page would count as unshared"
            )));
        }
        Ok(())
    }

    /// Thresholds for sampled references, one in `every` (§7.2: 128 becomes 13 at one in ten). All migrations count.
    pub fn sampled(&self, every: u32) -> Self {
        let every = u64::from(every.max(1));
        let scaled = |count: u64| (count + every / 2) / every;
        Self {
            trigger: scaled(self.trigger).max(1),
            hold: scaled(self.hold),
            write: scaled(self.write),
            ..*self
        }
    }
}

/// Positions of the parts in a page's row of counters; the epoch takes two.
const EPOCH: usize = 0;
const WRITES: usize = 2;
const MIGRATIONS: usize = 3;
const COUNTS: usize = 4;
/// Number of counters in a [`Chunk`].
const CHUNK: usize = 16;

/// A page's row consists of whole chunks, so that with up to twelve nodes it is in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Chunk([u16; CHUNK]);

/// `migrate-replicate`, and its variants `migrate` and `replicate`, each of which ignores pages that the other would
/// act on.
///
/// The paper counts by processor and has one processor per node; here counts are by node. A counter triggers when it
/// reaches the threshold, and again at each multiple of it.
#[derive(Clone, Debug)]
pub struct MigrateReplicate {
    migrates: bool,
    replicates: bool,
    trigger: u16,
    hold: u16,
    write: u16,
    migrate: u16,
    epoch_ns: u64,
    nodes: usize,
    epoch: u32,
    /// Number of chunks per row.
    row_length: usize,
    /// A row for each page: the epoch of its last use (two counters), stores, migrations, a count for each node.
    rows: Vec<Chunk>,
}

/// A counter in a page's row.
#[inline]
fn counter(row: &mut [Chunk], at: usize) -> &mut u16 {
    &mut row[at / CHUNK].0[at % CHUNK]
}

/// A page's counts by node.
fn counts(row: &[Chunk], nodes: usize) -> impl Iterator<Item = u16> {
    let all = row.iter().flat_map(|chunk| chunk.0);
    all.skip(COUNTS).take(nodes)
}

impl MigrateReplicate {
    /// The full policy, which migrates and replicates.
    ///
    /// # Errors
    /// Thresholds contradict each other.
    pub fn new(thresholds: &Thresholds, setting: &Setting) -> Result<Self, ParameterError> {
        thresholds.check()?;
        let Thresholds {
            trigger,
            hold,
            write,
            migrate,
            reset_cycles,
        } = thresholds.sampled(setting.every);
        let row_length = (COUNTS + setting.nodes).div_ceil(CHUNK);
        let narrow = |count: u64| u16::try_from(count).unwrap_or(u16::MAX);
        Ok(Self {
            migrates: true,
            replicates: true,
            trigger: narrow(trigger),
            hold: narrow(hold),
            write: narrow(write),
            migrate: narrow(migrate),
            epoch_ns: ((reset_cycles as f64 / setting.clock_ghz) as u64).max(1),
            nodes: setting.nodes,
            epoch: 0,
            row_length,
            rows: vec![Chunk([0; CHUNK]); row_length * setting.pages],
        })
    }

    /// The variant `migrate`.
    pub fn migrate_only(self) -> Self {
        Self {
            replicates: false,
            ..self
        }
    }

    /// The variant `replicate`.
    pub fn replicate_only(self) -> Self {
        Self {
            migrates: false,
            ..self
        }
    }

    /// Observations of a node without a copy after which the page is hot.
    pub(super) fn trigger(&self) -> u16 {
        self.trigger
    }

    pub(super) fn set_trigger(&mut self, trigger: u16) {
        self.trigger = trigger;
    }

    /// The decision tree of Figure 3.1, for a page that is hot on a node without a copy.
    #[cold]
    fn decide(&mut self, observation: &Observation) -> Option<Action> {
        let &Observation {
            page,
            node,
            copies,
            pressure,
            ..
        } = observation;
        let row = &mut self.rows[page as usize * self.row_length..][..self.row_length];
        let shared = counts(row, self.nodes)
            .zip(0..)
            .any(|(count, holder)| holder != node && copies.on(holder) && count > self.hold);
        let header = &mut row[0].0;
        let (kind, rule) = if shared {
            if !self.replicates || header[WRITES] > self.write || pressure {
                return None;
            }
            (
                ActionKind::Replicate,
                "hot on a node without a copy, a holder above hold, few stores",
            )
        } else {
            if !self.migrates || header[MIGRATIONS] >= self.migrate {
                return None;
            }
            (
                ActionKind::Migrate,
                "hot on a node without a copy, no holder above hold, few migrations",
            )
        };
        let (writes, migrations) = (header[WRITES], header[MIGRATIONS]);
        if kind == ActionKind::Migrate {
            header[MIGRATIONS] = migrations.saturating_add(1);
        }
        let reason = Reason {
            rule,
            counts: counts(row, self.nodes).map(u32::from).collect(),
            writes: writes.into(),
            migrations: migrations.into(),
        };
        Some(Action {
            page,
            kind,
            node,
            reason,
        })
    }
}

impl OnlinePolicy for MigrateReplicate {
    fn epoch_ns(&self) -> Option<u64> {
        Some(self.epoch_ns)
    }

    #[inline]
    fn observe(&mut self, observation: &Observation, actions: &mut Vec<Action>) {
        let start = observation.page as usize * self.row_length;
        let row = &mut self.rows[start..start + self.row_length];
        let epoch = [self.epoch as u16, (self.epoch >> 16) as u16];
        if row[0].0[EPOCH..EPOCH + 2] != epoch {
            row.fill(Chunk([0; CHUNK]));
            row[0].0[EPOCH..EPOCH + 2].copy_from_slice(&epoch);
        }
        if observation.kind == AccessKind::Store {
            let writes = counter(row, WRITES);
            *writes = writes.saturating_add(1);
        }
        let count = counter(row, COUNTS + usize::from(observation.node));
        *count = count.saturating_add(1);
        let count = *count;
        if count >= self.trigger
            && !observation.copies.on(observation.node)
            && count.is_multiple_of(self.trigger)
            && count < u16::MAX
        {
            actions.extend(self.decide(observation));
        }
    }

    fn end_epoch(&mut self, _: &Epoch<'_>, _: &mut Vec<Action>) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    fn forget(&mut self, page: u32) {
        self.rows[page as usize * self.row_length..][..self.row_length].fill(Chunk([0; CHUNK]));
    }

    // A migration that was not made does not count towards the limit.
    fn refused(&mut self, action: &Action, _: Copies) {
        if action.kind == ActionKind::Migrate {
            let row = &mut self.rows[action.page as usize * self.row_length..];
            let migrations = counter(row, MIGRATIONS);
            *migrations = migrations.saturating_sub(1);
        }
    }

    #[inline]
    fn fetch_ahead(&self, page: u32) {
        fetch_ahead(&self.rows, page as usize * self.row_length);
    }
}

#[cfg(test)]
mod tests;
