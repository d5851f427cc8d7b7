#![no_main]
//! The Parquet tables of a recording: the first byte chooses the table that the remaining bytes replace.

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::Scratch;
use nearpage_recording::Recording;

const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../crates/recording/tests/fixtures/version-1-tables"
);
const TABLES: [&str; 8] = [
    "accesses",
    "call_sites",
    "first_touches",
    "mappings",
    "modules",
    "objects",
    "thread_cpus",
    "threads",
];

fn sound(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(FIXTURE).join(name)).expect("fixture")
}

thread_local!(static SCRATCH: Scratch = {
    let scratch = Scratch::default();
    for name in ["machine.toml", "recording.json"] {
        scratch.write(name, &sound(name));
    }
    for table in TABLES {
        let name = format!("{table}.parquet");
        scratch.write(&name, &sound(&name));
    }
    scratch
});

fuzz_target!(|data: &[u8]| {
    let Some((first, contents)) = data.split_first() else {
        return;
    };
    SCRATCH.with(|scratch| {
        let name = format!("{}.parquet", TABLES[usize::from(*first) % TABLES.len()]);
        scratch.write(&name, contents);
        if let Ok(recording) = Recording::open(scratch.folder()) {
            for batch in recording.accesses() {
                let _ = batch;
            }
        }
        scratch.write(&name, &sound(&name));
    });
});
