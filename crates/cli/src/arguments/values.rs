//! Parsers of option values: percentages, times, sizes, addresses and rates.

use std::ops::Range;

use nearpage_http::Endpoint;

/// Parses a percentage, such as `1` or `0.5%`.
pub fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("expected a percentage above 0, such as 1% or 0.5".to_owned()),
    }
}

/// Thirty years. Larger times overflow a `Duration`, or a clock to which the time is added.
const SECONDS_MAX: f64 = 1e9;

/// Parses a time, such as `2`, `0.5`, `500ms`, `10s`, `3m` or `1h`.
pub fn seconds(text: &str) -> Result<f64, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let unit = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, unit) = unit.unwrap_or((text, &1.0));
    match number.parse::<f64>().map(|number| number * unit) {
        Ok(seconds) if (0.0..=SECONDS_MAX).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds up to a billion, such as 2, 0.5, 10s or 3m".to_owned()),
    }
}

/// Parses a size in mebibytes, such as `512M` or `2G`.
pub fn mib(text: &str) -> Result<u32, String> {
    let units = [("M", 1), ("G", 1024)];
    let unit = units
        .iter()
        .find_map(|(unit, mib)| Some((text.strip_suffix(unit)?, mib)));
    let size = unit.and_then(|(number, mib)| number.parse::<u32>().ok()?.checked_mul(*mib));
    size.filter(|mib| (64..=1 << 20).contains(mib))
        .ok_or_else(|| "expected a size from 64M to 1024G, such as 512M or 2G".to_owned())
}

/// Parses an address range, such as `7f0000000000-7f0000200000`, with or without `0x`.
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

/// Checks an address with a port, such as `127.0.0.1:9464`, `localhost:9464` or `[::1]:9464`.
pub fn socket_address(text: &str) -> Result<String, String> {
    let is_address = text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_bracketed = host.starts_with('[') && host.ends_with(']');
        let is_host = !host.is_empty() && (is_bracketed || !host.contains(':'));
        is_host && port.parse::<u16>().is_ok()
    });
    match is_address {
        true => Ok(text.to_owned()),
        false => Err("expected an address and a port, such as 127.0.0.1:9464".to_owned()),
    }
}

/// Parses the address of an OpenTelemetry collector. The protocol's port and path stand in where the address has none.
pub fn collector(text: &str) -> Result<Endpoint, String> {
    Endpoint::parse(text, 4318, "/v1development/profiles")
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

/// Parses a factor of at least 1, such as `1`, `1.5` or `100`.
pub fn runtime_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(times) if (1.0..=1e6).contains(&times) => Ok(times),
        _ => Err("expected a number between 1 and a million, such as 1.5".to_owned()),
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
        // Times that do not fit into a `Duration` caused an internal error once.
        for bad in [
            "", "s", "-1", "1d", "inf", "nan", "1e999s", "1e30", "300000h",
        ] {
            assert!(super::seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn memory_has_a_unit() {
        assert_eq!(super::mib("512M"), Ok(512));
        assert_eq!(super::mib("2G"), Ok(2048));
        for bad in [
            "",
            "512",
            "M",
            "63M",
            "1025G",
            "-1G",
            "99999999999G",
            "5000000G",
        ] {
            assert!(super::mib(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_to_serve_at_have_a_port() {
        for text in ["127.0.0.1:9464", "localhost:0", "[::1]:9464"] {
            assert_eq!(super::socket_address(text), Ok(text.to_owned()), "{text}");
        }
        for bad in [
            "",
            "foo",
            "foo:",
            ":9464",
            "foo:65536",
            "foo:-1",
            "::1",
            "1:2:3",
        ] {
            assert!(super::socket_address(bad).is_err(), "{bad}");
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
