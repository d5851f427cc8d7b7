//! The daemon.
mod batches;
mod care;
mod decide;
mod kernel;
mod mover;
mod pages;
