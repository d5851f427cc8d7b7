#![no_main]
//! A bundle of `doctor` about sampling: choosing a source and decoding must end without a panic.

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
