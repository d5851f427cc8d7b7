//! CRC-32 (IEEE 802.3), eight bytes at a step: closing a block of a log takes a few microseconds.

const TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 {
                value >> 1 ^ 0xedb8_8320
            } else {
                value >> 1
            };
            bit += 1;
        }
        tables[0][byte] = value;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// The checksum of `bytes`.
pub fn crc32(bytes: &[u8]) -> u32 {
    let look_up = |table: usize, value: u64| TABLES[table & 7][(value & 0xff) as usize];
    let mut sum = u32::MAX;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word) ^ u64::from(sum);
        sum = (0..8).fold(0, |sum, byte| sum ^ look_up(7 - byte, word >> (8 * byte)));
    }
    for byte in rest {
        sum = sum >> 8 ^ look_up(0, u64::from(sum) ^ u64::from(*byte));
    }
    !sum
}

#[cfg(test)]
mod tests {
    #[test]
    fn published_check_values() {
        assert_eq!(super::crc32(b""), 0);
        assert_eq!(super::crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(
            super::crc32(b"The quick brown fox jumps over the lazy dog"),
            0x414f_a339
        );
    }
}
