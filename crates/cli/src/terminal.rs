//! Output on terminals: width, colour, and lines on standard output and standard error.

use std::io::{IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use nearpage_report::{printable, wrapped};

/// A terminal that reports fewer columns does not know its width.
const COLUMNS_MIN: u16 = 20;

/// Width of the output: `COLUMNS` if set, else the width of the terminal on standard output, else 80, or 100 without a
/// terminal, where nothing wraps.
pub fn width() -> usize {
    asked_width()
        .or_else(|| width_of(&std::io::stdout()))
        .unwrap_or_else(|| match std::io::stdout().is_terminal() {
            true => 80,
            false => 100,
        })
}

/// The number in `COLUMNS`.
fn asked_width() -> Option<usize> {
    std::env::var("COLUMNS").ok()?.parse().ok()
}

/// Width of a terminal; `None`: the file is no terminal, or its width is unknown.
pub fn width_of(terminal: &impl AsRawFd) -> Option<usize> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the kernel writes to the struct, which outlives the call.
    let answered = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &mut size) } == 0;
    (answered && size.ws_col >= COLUMNS_MIN).then(|| size.ws_col.into())
}

/// May standard output carry colour? On a terminal: unless `NO_COLOR` is set or the terminal has no colour. Elsewhere:
/// if `CLICOLOR_FORCE` is set.
pub fn colour() -> bool {
    anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
}

/// Prints a line on standard error, where it can't mix with results. Names of files, programs and machines can contain
/// any character, so control characters are replaced. Errors are ignored. Long lines wrap on a terminal, and at
/// `COLUMNS` if set.
pub fn say(line: &str) {
    let line = format!("nearpage: {}", printable(line));
    let line = match asked_width().or_else(|| width_of(&std::io::stderr())) {
        Some(columns) => wrapped(&line, columns.max(COLUMNS_MIN.into())),
        None => line,
    };
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints the command to type next, always as one line: a line that the terminal breaks can be pasted whole.
pub fn next(command: &str) {
    say_plainly(&format!("nearpage: next: {command}"));
}

/// Prints where a page has been written.
pub fn next_page(file: &Path) {
    say(&format!("next: open {} in a browser", file.display()));
}

/// Prints a line of a table on standard error, without the prefix `nearpage:`.
pub fn say_plainly(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(line));
}

/// Prints a text on standard output; errors name standard output.
pub fn print(text: &str) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    let printed = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
    printed.map_err(of_standard_output)
}

/// Prints the argument parser's message: help and version on standard output, mistakes on standard error.
pub fn print_parsed(said: &clap::Error) -> std::io::Result<()> {
    let printed = said.print().and_then(|()| std::io::stdout().flush());
    match said.use_stderr() {
        true => Ok(()),
        false => printed.map_err(of_standard_output),
    }
}

fn of_standard_output(error: std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("standard output: {error}"))
}
