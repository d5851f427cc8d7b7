//! Sizes as people write them: `4096`, `64K`, `20M`, `2.5M`, `1G`; units are powers of 1024.

use crate::error::SyntaxError;

const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// Reads a size in bytes. `K`, `KB` and `KiB` all mean 1024, and so on up to `T`; case does not
/// matter; a fraction is rounded to the nearest byte.
///
/// # Errors
/// The text has another form; the message says what was expected.
pub fn parse_size(text: &str) -> Result<u64, SyntaxError> {
    bytes_of(text).map_err(SyntaxError)
}

pub(crate) fn bytes_of(text: &str) -> Result<u64, String> {
    let expected =
        || format!("`{text}` is not a size; expected bytes or a unit, as in `4096`, `64K`, `2.5M`");
    let digits = text
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start().to_ascii_uppercase();
    let unit = unit
        .strip_suffix("IB")
        .filter(|unit| !unit.is_empty())
        .or(unit.strip_suffix('B'))
        .unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        _ => UNITS
            .iter()
            .find(|(letter, _)| unit.len() == 1 && unit.starts_with(*letter))
            .map(|&(_, shift)| shift)
            .ok_or_else(expected)?,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(fraction) || (number.contains('.') && fraction.is_empty()) {
        return Err(expected());
    }
    // Twelve decimals are finer than a byte of a terabyte.
    let fraction = &fraction[..fraction.len().min(12)];
    let scale = 10u128.pow(fraction.len() as u32);
    let whole: u64 = whole.parse().map_err(|_| expected())?;
    let part: u128 = if fraction.is_empty() {
        0
    } else {
        fraction.parse().map_err(|_| expected())?
    };
    let bytes = (u128::from(whole) << shift) + ((part << shift) + scale / 2) / scale;
    u64::try_from(bytes).map_err(|_| format!("`{text}` is more than 64 bits can address"))
}

/// Writes a size with the greatest unit that needs no fraction.
pub fn print_size(bytes: u64) -> String {
    for (letter, shift) in UNITS {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{letter}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_every_way_of_writing() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("20M", 20 << 20),
            ("20MiB", 20 << 20),
            ("20 mb", 20 << 20),
            ("2.5M", 5 << 19),
            ("0.625MiB", 655_360),
            ("1G", 1 << 30),
            ("3T", 3 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            "M",
            "iB",
            ".5M",
            "5.M",
            "1.2.3M",
            "-1",
            "0x10",
            "5X",
            "5 KK",
            "1e3",
            "99999999999999999999",
            "16777216T",
            "4KiBi",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn survives_printing(bytes: u64, shift in 0u32..50) {
            let bytes = bytes >> 10 << shift;
            prop_assert_eq!(parse_size(&print_size(bytes)), Ok(bytes));
        }

        #[test]
        fn never_panics(text in "\\PC{0,40}") {
            let _ = parse_size(&text);
        }

        #[test]
        fn never_panics_on_numbers(text in "[0-9.]{0,40}[KMGTiB]{0,3}") {
            let _ = parse_size(&text);
        }
    }
}
