//! What standard output and standard error are connected to.

use std::io::{IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use nearpage_report::{printable, wrapped};

/// Fewer columns than this are a terminal that does not know.
const COLUMNS_MIN: u16 = 20;

/// Columns of the terminal on standard output, `COLUMNS` where there is none, else 80 (100 in a
/// pipe, where nothing wraps).
pub fn width() -> usize {
    asked_width()
        .or_else(|| width_of(&std::io::stdout()))
        .unwrap_or_else(|| match std::io::stdout().is_terminal() {
            true => 80,
            false => 100,
        })
}

/// `COLUMNS`, where it says a number.
fn asked_width() -> Option<usize> {
    std::env::var("COLUMNS").ok()?.parse().ok()
}

/// Columns of a terminal; `None`: it is none, or does not know.
pub fn width_of(terminal: &impl AsRawFd) -> Option<usize> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the kernel fills in the struct that is passed.
    let answered = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &mut size) } == 0;
    (answered && size.ws_col >= COLUMNS_MIN).then(|| size.ws_col.into())
}

/// May standard output carry colour? On a terminal that has it, unless `NO_COLOR` is set, and elsewhere where
/// `CLICOLOR_FORCE` is.
pub fn colour() -> bool {
    anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
}

/// Says a line on standard error, where it can't mix with results. Names in it, of files, programs and machines, may
/// have any character, and move no cursor. Whether anybody reads it or not. Words wrap on a terminal, and where
/// `COLUMNS` says how wide lines are.
pub fn say(line: &str) {
    let line = format!("nearpage: {}", printable(line));
    let line = match asked_width().or_else(|| width_of(&std::io::stderr())) {
        Some(columns) => wrapped(&line, columns.max(COLUMNS_MIN.into())),
        None => line,
    };
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Says which command to type next, in one line whatever its length: a line that a terminal breaks is pasted whole.
pub fn next(command: &str) {
    say_plainly(&format!("nearpage: next: {command}"));
}

/// Says where a page has been written.
pub fn next_page(file: &Path) {
    say(&format!("next: open {} in a browser", file.display()));
}

/// A line on standard error without nearpage's name before it: one of a table.
pub fn say_plainly(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(line));
}

/// Prints all of a text on standard output, which an error names.
pub fn print(text: &str) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    let printed = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
    printed.map_err(of_standard_output)
}

/// Prints what the parser of arguments has to say: help and the version on standard output, what
/// was wrong on standard error.
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
