#![no_main]
//! What a bundle of `doctor` says of sampling: whatever it is, choosing and decoding end, and nothing panics.

use libfuzzer_sys::fuzz_target;
use nearpage_sampler::{PerfBundle, replay};

fuzz_target!(|data: &[u8]| {
    if let Ok(bundle) = PerfBundle::from_json(data)
        && let Ok(replayed) = replay(&bundle)
    {
        for source in replayed.sources {
            let told = source.accesses + source.compute + source.undecoded + source.malformed;
            assert!(told <= source.records && source.to_data <= source.accesses);
        }
    }
});
