//! Emphasis on a terminal, where it carries meaning: headings stand out, and what is bad does.

use anstyle::{AnsiColor, Style};

/// Headings.
pub const HEADING: Style = Style::new().bold();
/// What works.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// What has its price, or should be known.
pub const DOUBTFUL: Style = AnsiColor::Yellow.on_default();
/// What loses, fails or is missing.
pub const BAD: Style = AnsiColor::Red.on_default();

/// From this share on, remote accesses and lost time are worth a look…
pub const SHARE_DOUBTFUL: f64 = 0.2;
/// …and are what is wrong with the program.
pub const SHARE_BAD: f64 = 0.5;

/// The style of a share of remote accesses, or of lost time, 0 to 1.
pub fn alarm(share: f64) -> Style {
    match share {
        s if s >= SHARE_BAD => BAD,
        s if s >= SHARE_DOUBTFUL => DOUBTFUL,
        _ => Style::new(),
    }
}

/// Each line of `text` in a style, where colour is wanted.
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
