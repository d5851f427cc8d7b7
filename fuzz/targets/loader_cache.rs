#![no_main]
//! The dynamic loader's cache.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    nearpage_plan::fuzz::loader_cache(data);
});
