//! What `fuzz/` and `tests/mutated` call: parsers that nobody outside this crate sees otherwise, and recordings that lie.

mod choices;
mod frames;
mod mutation;
mod words;

pub use self::choices::{Choices, Drawn, Seeded};
pub use self::mutation::mutate;
pub use self::words::mutate_words;
pub use crate::import::fuzz as import;

/// Names of generated code: functions come by address, and none lies over another.
pub fn jit_map(bytes: &[u8]) {
    let functions = crate::jit::functions(bytes);
    let apart =
        |pair: &[crate::elf::Symbol]| pair[0].address + pair[0].size_bytes <= pair[1].address;
    assert!(functions.windows(2).all(apart));
}

/// Lines of imported code: every line that is kept can be written and read again.
pub fn source_lines(bytes: &[u8]) {
    let lines = crate::source_lines::lines(bytes);
    let frames = lines
        .keys()
        .filter_map(|address| crate::source_lines::frame(&lines, *address));
    assert_eq!(frames.count(), lines.len());
}
