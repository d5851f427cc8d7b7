//! What `fuzz/` calls: parsers that nobody outside this crate sees otherwise.

pub use crate::import::fuzz as import;
