//! Programs whose accesses are known. Each is drawn from a seed, recorded and planned as any other program, and judged
//! by the lines that each thread fetches from each page.
//!
//! A [`Program`] is drawn (`draw`) and described twice, by code that shares nothing: as C (`source`, with `program.h`),
//! and as a table of cache lines by page and thread ([`Truth`]). [`Run::record`] records the program, `plan` decides,
//! and `placed` computes the node of each page of the recorded objects. [`judge()`] compares this node with the page's
//! best node. A [`Trial`] does all of this for one program; a [`Summary`] has the figures over several programs.
//! A [`Replay`] compares a plan's predicted time with a replay of every miss.

mod draw;
mod judge;
mod kind;
mod placed;
mod program;
mod public;
mod replay;
mod run;
mod source;
mod summary;
mod sweep;
mod trial;
mod truth;

pub use judge::{JudgedObject, Judgement, Setting, judge};
pub use kind::{Kind, Shares};
pub use program::{Initialiser, Object, Operation, Program, Storage, Style};
pub use public::{Kernel, PublicTrial, kernels};
pub use replay::{Replay, replays_to_json};
pub use run::{RecordingOptions, Run};
pub use source::{HEADER, source};
pub use summary::Summary;
pub use trial::Trial;
pub use truth::{Truth, Unit};
