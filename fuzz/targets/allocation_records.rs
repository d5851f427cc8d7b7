#![no_main]
//! Records of one block of an allocation log.

use libfuzzer_sys::fuzz_target;
use nearpage_wire::allocation_log::Records;

fuzz_target!(|data: &[u8]| {
    let mut records = Records::new(data);
    let mut read = 0;
    for record in &mut records {
        read += 8 * (1 + record.len());
        for index in 0..=record.len() {
            record.word(index);
        }
    }
    assert_eq!(read + records.rest(), data.len());
});
