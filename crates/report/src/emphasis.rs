//! Emphasis on a terminal: headings stand out, and colour marks good, doubtful and bad results.

use anstyle::{AnsiColor, Style};

/// Headings.
pub const HEADING: Style = Style::new().bold();
/// Results that are good.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Results that have a price or need attention.
pub const DOUBTFUL: Style = AnsiColor::Yellow.on_default();
/// Results that are bad, failed or missing.
pub const BAD: Style = AnsiColor::Red.on_default();

/// Share of remote accesses or lost time that needs attention.
pub const SHARE_DOUBTFUL: f64 = 0.2;
/// Share of remote accesses or lost time that is a problem.
pub const SHARE_BAD: f64 = 0.5;

/// Style for a share of remote accesses or lost time, 0 to 1.
pub fn alarm(share: f64) -> Style {
    match share {
        s if s >= SHARE_BAD => BAD,
        s if s >= SHARE_DOUBTFUL => DOUBTFUL,
        _ => Style::new(),
    }
}

/// Styles each line of `text`, if `colour` is set.
pub fn painted(text: &str, style: Style, colour: bool) -> String {
    if !colour || style.is_plain() {
        return text.to_owned();
    }
    let lines = text.split('\n').map(|line| match line {
        "" => String::new(),
        line => format!("{style}{line}{style:#}"),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_painted_each_and_only_where_wanted() {
        let text = "lost\n\nmore\n";
        assert_eq!(
            painted(text, BAD, true),
            "\x1b[31mlost\x1b[0m\n\n\x1b[31mmore\x1b[0m\n"
        );
        assert_eq!(painted(text, BAD, false), text);
        assert_eq!(painted("19 %", alarm(0.19), true), "19 %");
        assert_eq!(painted("20 %", alarm(0.2), true), "\x1b[33m20 %\x1b[0m");
        assert_eq!(painted("50 %", alarm(0.5), true), "\x1b[31m50 %\x1b[0m");
    }
}
