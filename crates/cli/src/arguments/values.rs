//! Values that are more than numbers and names.

use std::ops::Range;

/// `1`, `0.5%`.
pub fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("expected a percentage above 0, such as 1% or 0.5".to_owned()),
    }
}

/// `2`, `0.5`, `500ms`, `10s`, `3m`, `1h`.
pub fn seconds(text: &str) -> Result<f64, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let unit = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, unit) = unit.unwrap_or((text, &1.0));
    match number.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number * unit),
        _ => Err("expected seconds, such as 2, 0.5, 10s or 3m".to_owned()),
    }
}

/// `7f0000000000-7f0000200000`, with or without `0x`.
pub fn address_range(text: &str) -> Result<Range<u64>, String> {
    let address = |text: &str| {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let only_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        only_digits
            .then(|| u64::from_str_radix(digits, 16).ok())
            .flatten()
    };
    let range = text.split_once('-');
    let range = range.and_then(|(start, end)| Some(address(start)?..address(end)?));
    range.filter(|range| !range.is_empty()).ok_or_else(|| {
        "expected two hexadecimal addresses, the smaller first, such as 7f0000000000-7f0000200000"
            .to_owned()
    })
}

pub fn cycles(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(cycles) if cycles.is_finite() && cycles >= 0.0 => Ok(cycles),
        _ => Err("expected cycles, such as 128".to_owned()),
    }
}

pub fn overhead(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim_end().parse() {
        Ok(percent) if (0.01..=100.0).contains(&percent) => Ok(percent),
        _ => Err("expected a share in percent, 0.01 to 100".to_owned()),
    }
}

pub fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (1.0..=100_000.0).contains(&rate) => Ok(rate),
        _ => Err("expected samples per second between 1 and 100000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn seconds_have_units() {
        for (text, seconds) in [
            ("2", 2.0),
            ("0.5", 0.5),
            ("10s", 10.0),
            ("3m", 180.0),
            ("250ms", 0.25),
        ] {
            assert_eq!(super::seconds(text), Ok(seconds), "{text}");
        }
        for bad in ["", "s", "-1", "1d", "inf", "nan", "1e999s"] {
            assert!(super::seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_are_hexadecimal() {
        for text in ["1000-2000", "0x1000-0x2000", "0x1000-2000"] {
            assert_eq!(super::address_range(text), Ok(0x1000..0x2000), "{text}");
        }
        for bad in [
            "",
            "1000",
            "2000-1000",
            "1000-1000",
            "+1000-2000",
            "g-h",
            "-",
            "1000-2000-3000",
        ] {
            assert!(super::address_range(bad).is_err(), "{bad}");
        }
    }
}
