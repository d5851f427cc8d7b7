//! What `fuzz/` calls: parsers that nobody outside this crate sees otherwise.

pub use crate::import::fuzz as import;

/// Names of generated code: functions come by address, and none lies over another.
pub fn jit_map(bytes: &[u8]) {
    let functions = crate::jit::functions(bytes);
    let apart =
        |pair: &[crate::elf::Symbol]| pair[0].address + pair[0].size_bytes <= pair[1].address;
    assert!(functions.windows(2).all(apart));
}
