//! Runs real programs under the preload library and checks that they behave as they do without
//! it, and that the log says what they did.

mod harness;
mod log;
mod observing;
mod sampling;
mod surviving;
