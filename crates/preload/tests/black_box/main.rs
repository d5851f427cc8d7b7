//! Runs real programs under the preload library and checks that they behave as they do without
//! it, and that the log says what they did.

mod harness;
#[path = "../shared/library.rs"]
mod library;
mod log;
#[path = "../shared/messages.rs"]
mod messages;
mod observing;
mod sampling;
mod surviving;
mod unharmed;
