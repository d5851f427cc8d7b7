//! Reads the size that the header of a Parquet page claims, as the decoder allocates this size before it reads the
//! page.

/// Deepest nesting of structures that is followed; a valid header has three levels.
const DEPTH_MAX: usize = 8;
/// Number of the field with a page's size (`PageHeader.uncompressed_page_size`).
const UNCOMPRESSED_BYTES: i64 = 2;

/// Uncompressed size that a page's header (Thrift's compact protocol) claims, in bytes; `None` if the header cannot be
/// read. If a header has several sizes, the largest counts.
pub(super) fn uncompressed_bytes(header: &[u8]) -> Option<u64> {
    let mut claimed = None;
    let mut left = header;
    structure(&mut left, DEPTH_MAX, &mut |number, value| {
        if number == UNCOMPRESSED_BYTES {
            claimed = claimed.max(u64::try_from(value).ok());
        }
    })?;
    claimed
}

/// Skips a structure, and calls `each` with number and value of its integer fields.
fn structure(left: &mut &[u8], depth: usize, each: &mut dyn FnMut(i64, i64)) -> Option<()> {
    let mut number = 0i64;
    loop {
        let (step, kind) = halves(byte(left)?);
        if kind == 0 {
            return Some(());
        }
        number = match step {
            0 => integer(left)?,
            step => number.checked_add(step.into())?,
        };
        match kind {
            // The kind of a boolean field is its value.
            1 | 2 => {}
            4..=6 => each(number, integer(left)?),
            kind => value(left, kind, depth.checked_sub(1)?)?,
        }
    }
}

/// Skips a value of type `kind`.
fn value(left: &mut &[u8], kind: u8, depth: usize) -> Option<()> {
    match kind {
        1..=3 => byte(left).map(drop),
        4..=6 => integer(left).map(drop),
        7 => left.split_off(..8).map(drop),
        8 => {
            let bytes = usize::try_from(varint(left)?).ok()?;
            left.split_off(..bytes).map(drop)
        }
        9 | 10 => {
            let (count, kind) = halves(byte(left)?);
            let count = match count {
                15 => varint(left)?,
                count => count.into(),
            };
            (0..count).try_for_each(|_| value(left, kind, depth.checked_sub(1)?))
        }
        12 => structure(left, depth, &mut |_, _| {}),
        _ => None,
    }
}

fn halves(byte: u8) -> (u8, u8) {
    (byte >> 4, byte & 15)
}

fn byte(left: &mut &[u8]) -> Option<u8> {
    left.split_off_first().copied()
}

fn varint(left: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let next = byte(left)?;
        value |= u64::from(next & 127) << shift;
        if next < 128 {
            return Some(value);
        }
    }
    None
}

/// Decodes a number in zigzag order: 0, -1, 1, -2 ….
fn integer(left: &mut &[u8]) -> Option<i64> {
    let value = varint(left)?;
    Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::uncompressed_bytes;

    #[test]
    fn the_largest_size_that_a_header_claims_is_found_wherever_it_stands() {
        let plain: &[u8] = &[0x15, 0, 0x15, 200, 1, 0x15, 40, 0];
        assert_eq!(uncompressed_bytes(plain), Some(100));
        // The size comes after a structure with a list, texts, a number and a boolean; it has an explicit number, and
        // occurs twice.
        let odd: &[u8] = &[
            0x5c, 0x18, 2, b'a', b'b', 0x19, 0x26, 4, 6, 0x11, 0x17, 0, 0, 0, 0, 0, 0, 0, 0,
            0, //
            0x05, 4, 20, 0x05, 4, 0x80, 0x80, 0x80, 0x80, 8, 0,
        ];
        assert_eq!(uncompressed_bytes(odd), Some(1 << 30));
        for (header, why) in [
            (&plain[..6], "it is cut short"),
            (&[0x15, 0, 0][..], "it has no size"),
            (&[0x15, 0, 0x15, 1, 0], "its size is negative"),
            (&[0x1d, 0, 0], "no such kind"),
            (&[0x18, 0xff, 0xff, 0xff, 0x7f, 0], "a text beyond the end"),
            (&[0x1c; 100], "structures without end"),
        ] {
            assert_eq!(uncompressed_bytes(header), None, "{why}");
        }
    }
}
