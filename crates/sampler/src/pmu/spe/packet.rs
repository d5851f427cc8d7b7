//! Parses one packet of Arm's SPE: its kind from the header, and its payload.

/// A packet, as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// End of a record.
    End,
    Instruction(u64),
    DataAddress(u64),
    Latency(u32),
    Memory(u8),
    Events(u64),
    Other,
}

/// The packet at the beginning of `bytes`, and its length; `None` if it is invalid or cut off. `offset` is the
/// distance of `bytes` from an aligned address.
pub(super) fn packet(bytes: &[u8], offset: usize) -> Option<(Packet, usize)> {
    let first = *bytes.first()?;
    match first {
        0x00 => return Some((Packet::Other, 1)),
        0x01 => return Some((Packet::End, 1)),
        _ => {}
    }
    let (header, index, header_bytes) = if first & 0xfc == 0x20 && bytes.get(1) == Some(&0) {
        let alignment = 2usize << (first & 3);
        let length = alignment - offset % alignment;
        return (length <= bytes.len() && length >= 2).then_some((Packet::Other, length));
    } else if first & 0xfc == 0x20 {
        let second = *bytes.get(1)?;
        (second, first << 3 & 0x18 | second & 7, 2)
    } else {
        (first, first & 7, 1)
    };
    let length = header_bytes + (1 << (header >> 4 & 3));
    let mut payload = [0; 8];
    payload[..length - header_bytes].copy_from_slice(bytes.get(header_bytes..length)?);
    let payload = u64::from_le_bytes(payload);
    let packet = match header {
        // Only addresses and counters have a long form.
        _ if header & 0xf8 == 0xb0 => match index {
            // The uppermost byte has the exception level and the security state.
            0 => Packet::Instruction(canonical(payload)),
            // The uppermost byte may have a tag.
            2 => Packet::DataAddress(canonical(payload)),
            _ => Packet::Other,
        },
        _ if header & 0xf8 == 0x98 => match index {
            0 => Packet::Latency(payload as u32),
            _ => Packet::Other,
        },
        _ if header_bytes > 1 => return None,
        0x71 => Packet::End,
        0x49 => Packet::Memory(payload as u8),
        _ if header & 0xcf == 0x42 => Packet::Events(payload),
        _ if header & 0xcf == 0x43 || header & 0xfc == 0x48 || header & 0xfc == 0x64 => {
            Packet::Other
        }
        _ => return None,
    };
    Some((packet, length))
}

/// The address with its uppermost byte replaced by copies of bit 55.
fn canonical(address: u64) -> u64 {
    ((address << 8) as i64 >> 8) as u64
}
