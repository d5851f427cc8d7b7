//! Parsers for `fuzz/` that are private to this crate otherwise.

use crate::libraries::parse_cache;

/// Reads a dynamic loader's cache; returns its number of libraries.
pub fn loader_cache(bytes: &[u8]) -> usize {
    parse_cache(bytes).len()
}
