//! Options of every command that decides placement.

use clap::Args;
use nearpage_machine::ThreadPlacement;
use nearpage_planner::Parameters;

use super::Threads;
use super::values::runtime_scale;

#[derive(Clone, Debug, Args)]
pub struct Deciding {
    /// Let `auto` copy objects and code to all nodes. `simulate` models copies; no stock kernel has them, so `run`
    /// interleaves such objects
    #[arg(long)]
    pub replicas: bool,
    /// Let `auto` place objects later than at their allocation: when a second thread starts, or while several
    /// threads run. `run` moves pages once, when the second thread is created
    ///
    /// With a trace, `auto` also looks for long phases, which begin with a parallel region, a task or a thread's
    /// start routine. Pages and threads that are better off elsewhere in a phase move when its function is first
    /// executed, in `simulate` and in `run`.
    #[arg(long)]
    pub phases: bool,
    /// Let `auto` choose online migration, which moves pages while the program runs, as `live --policy auto` does
    ///
    /// It takes a trace. `simulate` and `run` follow the choice. Copies are simulated with --replicas only, as no
    /// stock kernel can make them.
    #[arg(long, alias = "live")]
    pub online_migration: bool,
    /// How many times as long as in the recording the parallel part of the real run takes; `auto` plans for that run
    #[arg(long = "runtime-scale", alias = "longer", value_name = "TIMES", default_value_t = nearpage_planner::RUNTIME_SCALE, value_parser = runtime_scale)]
    pub runtime_scale: f64,
    /// Plan for runs with the recorded input only
    ///
    /// Without this option, `auto` avoids a placement that depends on a size (page runs, block-cyclic) if it would cost
    /// more with an input of another size than it saves with the recorded one. `plan` names such placements.
    #[arg(long)]
    pub same_input: bool,
    /// Where the plan assumes that threads run; none: on the nodes where they were recorded [default: none if the
    /// machine has these nodes, else compact]
    #[arg(long, value_enum)]
    pub threads: Option<Threads>,
}

impl Deciding {
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

    /// The thread layout that `--threads` asks for.
    pub fn threads(&self) -> Option<ThreadPlacement> {
        self.threads.map(Threads::placement)
    }
}

impl Default for Deciding {
    /// The values that clap gives where no option was typed.
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
