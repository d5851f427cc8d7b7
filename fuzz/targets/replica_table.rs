#![no_main]
//! The table of files' copies that the preload library reads.

use libfuzzer_sys::fuzz_target;
use nearpage_wire::replicas::{ENTRY_BYTES, Entry, read_header};

fuzz_target!(|table: &[u8]| {
    let Some((_, entries)) = read_header(table) else {
        return;
    };
    for index in 0..entries {
        let entry = Entry::read(table, index).expect("as many as the header says");
        assert!(table.windows(ENTRY_BYTES).any(|bytes| bytes == entry.to_bytes()));
    }
    assert_eq!(Entry::read(table, usize::MAX), None);
});
