//! What decisions may do, for every command that decides.

use clap::Args;
use nearpage_machine::ThreadPlacement;
use nearpage_planner::Parameters;

use super::Threads;
use super::values::runtime_scale;

#[derive(Clone, Debug, Args)]
pub struct Deciding {
    /// `auto` may decide to copy objects and code to all nodes, for `simulate`: no stock kernel can, and
    /// `run` interleaves objects
    #[arg(long)]
    pub replicas: bool,
    /// `auto` may decide that an object is placed when a second thread runs, or while several do, not
    /// while one thread fills it: `simulate` does all of that, `run` moves pages when the second thread is
    /// created, and not back
    ///
    /// Of a trace it looks for long phases, too, which begin with a parallel region, a task or a thread's
    /// start routine: what had better be elsewhere from then on, pages or threads, is so when that function is first
    /// executed, in `run` too.
    #[arg(long)]
    pub phases: bool,
    /// `auto` may decide for online migration: pages move while the program runs, by `live --policy auto`. `simulate`
    /// and `run` both do that
    ///
    /// Only where a trace is replayed. Copies that `live` would make are simulated with --replicas; no stock
    /// kernel can make them.
    #[arg(long, alias = "live")]
    pub online_migration: bool,
    /// How many times as long as recorded the parallel part of the real run is, in which several threads run. `auto`
    /// decides for such a run
    #[arg(long = "runtime-scale", alias = "longer", value_name = "TIMES", default_value_t = nearpage_planner::RUNTIME_SCALE, value_parser = runtime_scale)]
    pub runtime_scale: f64,
    /// `auto` weighs the recorded input alone: for runs with that input, and no other size
    ///
    /// Otherwise a placement with a size (page runs, block-cyclic) is passed over where it would cost more with an input of
    /// another size than it saves with the recorded one. `plan` says which.
    #[arg(long)]
    pub same_input: bool,
    /// Where threads are taken to run: none leaves each on the node where it was recorded [default: none where the machine
    /// has the recorded nodes, else compact]
    #[arg(long, value_enum)]
    pub threads: Option<Threads>,
}

impl Deciding {
    /// What the planner takes.
    pub fn parameters(&self) -> Parameters {
        Parameters {
            replicas: self.replicas,
            phases: self.phases,
            online_migration: self.online_migration,
            runtime_scale: self.runtime_scale,
            errors: crate::history::errors(),
            same_input: self.same_input,
            ..Parameters::default()
        }
    }

    /// The layout that was asked for.
    pub fn threads(&self) -> Option<ThreadPlacement> {
        self.threads.map(Threads::placement)
    }
}

impl Default for Deciding {
    /// As if nothing was typed.
    fn default() -> Self {
        Self {
            replicas: false,
            phases: false,
            online_migration: false,
            runtime_scale: nearpage_planner::RUNTIME_SCALE,
            same_input: false,
            threads: None,
        }
    }
}
