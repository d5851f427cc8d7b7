//! Real programs under nearpage while things go wrong around them: what a program prints, leaves and ends with is what
//! it does without nearpage, whatever happens to the observer.
//!
//! An [`Event`] is drawn from a seed and a number, and is the same whenever it is drawn again: a program
//! (`programs`), what it is wrapped in (`surroundings`), who observes it, and a mishap (`event`). [`Harness::run`]
//! runs the program as it is and observed, and says what differs ([`Harm`]). When a signal arrives depends on the
//! machine; what must hold does not.

mod event;
mod harness;
mod programs;
pub(crate) mod random;
mod surroundings;

pub use event::{Event, Mishap, Observer};
pub use harness::{Harm, Harness, Outcome};
pub use programs::{Program, available};
