//! Entry points for `fuzz/` and `tests/mutated`: parsers that are private to this crate, and recordings with false
//! contents.

mod choices;
mod frames;
mod mutation;
mod words;

pub use self::choices::{Choices, Drawn, Seeded};
pub use self::mutation::mutate;
pub use self::words::mutate_words;
pub use crate::import::fuzz as import;

/// Parses names of generated code. Functions must be sorted by address and not overlap.
pub fn jit_map(bytes: &[u8]) {
    let functions = crate::jit::functions(bytes);
    let apart =
        |pair: &[crate::elf::Symbol]| pair[0].address + pair[0].size_bytes <= pair[1].address;
    assert!(functions.windows(2).all(apart));
}

/// Parses lines of imported code. Every line that is kept can be written and read again.
pub fn source_lines(bytes: &[u8]) {
    let lines = crate::source_lines::lines(bytes);
    let frames = lines
        .keys()
        .filter_map(|address| crate::source_lines::frame(&lines, *address));
    assert_eq!(frames.count(), lines.len());
}
