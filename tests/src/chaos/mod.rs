//! Runs real programs under nearpage while things go wrong around them. Whatever happens to the observer, a program's
//! output, files and exit status must equal those of a native run.
//!
//! A seed and a number determine an [`Event`]: a program (`programs`), limits or namespaces around it (`surroundings`),
//! a nearpage command, and a fault (`event`). [`Harness::run`] runs the program natively and observed, and reports
//! differences ([`BrokenRules`]). The moment of a signal depends on the machine; the rules hold at any moment.

mod event;
mod harness;
mod programs;
pub(crate) mod random;
mod surroundings;

pub use event::{Event, Observer, ObserverFault};
pub use harness::{BrokenRules, Harness, Outcome};
pub use programs::{Program, available};
