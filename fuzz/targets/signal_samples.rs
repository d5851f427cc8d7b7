#![no_main]
//! A ring of samples taken inside a process, decoded up to records: the first bytes of its header, slots, and the text
//! of its mappings.

use libfuzzer_sys::fuzz_target;
use nearpage_wire::samples::{HEADER_BYTES, SLOT_BYTES, offset};

fuzz_target!(|data: &[u8]| {
    // Sets the header's checked fields, so that mutations reach the slots.
    let (head, rest) = data.split_at(data.len().min(48));
    let slots = rest.len() / (SLOT_BYTES + 64) * SLOT_BYTES;
    let (slots, text) = rest.split_at(slots);
    let mut bytes = head.to_vec();
    bytes.resize(HEADER_BYTES, 0);
    if data.first().is_none_or(|first| first % 8 != 0) {
        bytes[..8].copy_from_slice(&nearpage_wire::samples::MAGIC);
        bytes[offset::SLOTS..][..4].copy_from_slice(&64u32.to_le_bytes());
        bytes[offset::SLOT_BYTES..][..4].copy_from_slice(&(SLOT_BYTES as u32).to_le_bytes());
    }
    bytes.extend(slots);
    nearpage_sampler::fuzz::signal_samples(&bytes, text);
});
