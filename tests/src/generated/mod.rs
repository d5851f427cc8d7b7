//! Programs whose accesses are known: drawn from a seed, recorded and planned as any other, and judged by what each
//! thread fetches of each page.
//!
//! A [`Program`] is drawn (`draw`), and says what it does in two ways that share no code: as C (`source`, with
//! `program.h`), and as a table of cache lines by page and thread ([`Truth`]). [`Run::record`] records it, `plan`
//! decides, `placed` says where the decided plan puts each page of the recorded objects, and [`judge()`] compares that
//! with the best node for each page. A [`Trial`] is all of that for one program, a [`Summary`] the figures over several.

mod draw;
mod judge;
mod kind;
mod placed;
mod program;
mod public;
mod run;
mod source;
mod summary;
mod sweep;
mod trial;
mod truth;

pub use judge::{JudgedObject, Judgement, Setting, judge};
pub use kind::{Kind, Shares};
pub use program::{Initialiser, Object, Operation, Program, Storage, Style};
pub use public::{PublicTrial, kernels};
pub use run::{How, Run};
pub use source::{HEADER, source};
pub use summary::Summary;
pub use trial::Trial;
pub use truth::{Truth, Unit};
