#![no_main]
//! A trace's headers, records and events. Readable records must be the same after they are written and read again.

use libfuzzer_sys::fuzz_target;
use nearpage_wire::trace::{
    Decoder, EVENT_BYTES_MAX, Encoder, Events, FileHeader, FrameHeader, RECORD_BYTES_MAX,
};

fuzz_target!(|data: &[u8]| {
    FileHeader::from_bytes(data);
    FrameHeader::from_bytes(data);
    FrameHeader::intact(data);

    let records: Vec<_> = Decoder::new(data).map_while(Result::ok).collect();
    let mut encoder = Encoder::new();
    let mut bytes = Vec::new();
    for (since, record) in &records {
        let mut room = [0; RECORD_BYTES_MAX];
        let length = encoder.encode(&mut room, *since, record);
        bytes.extend(&room[..length]);
    }
    let again: Result<Vec<_>, _> = Decoder::new(&bytes).collect();
    assert_eq!(again, Ok(records));

    for event in Events::new(data).map_while(Result::ok) {
        let mut room = [0; EVENT_BYTES_MAX];
        let length = event.encode(&mut room);
        if length > 0 {
            let again = Events::new(&room[..length]).next();
            assert!(again.is_some_and(|again| again.is_ok()));
        }
    }
});
