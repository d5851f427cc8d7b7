//! Runs the command lines of documentation pages, and compares their output with the pages.
//!
//! In a page, a block that begins with ` ```console ` has command lines after `$ `, and below each the command's
//! standard output and standard error. All commands of a page run in one shell, in an empty folder with the built
//! `nearpage` on PATH, the program `cg` and a link to `workloads`.
//!
//! The printed text may differ from the page only as follows:
//!
//! - Figures, their units, bars of charts and the number of blanks may differ.
//! - A line `…` stands for any number of lines, and `…` within a line for any text.
//! - An indented line continues the line above, so that words may wrap anywhere.
//!
//! The comment `<!-- rows vary: REASON -->` is for tables whose rows depend on how busy the machine was. It applies to
//! the next block: its headings and nearpage's messages without figures must appear in order, among any other lines.
//!
//! A command followed by `# until Ctrl-C` is interrupted after some seconds.
//! The comment `<!-- not run: REASON -->` leaves out the next block.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crate::{Case, nearpage_path, repository, workload};

const NOT_RUN: &str = "<!-- not run: ";
const ROWS_VARY: &str = "<!-- rows vary: ";
const UNTIL_INTERRUPTED: &str = "# until Ctrl-C";
const MARK: &str = "@@command ";
const ELLIPSIS: &str = "…";

/// A command line of a page and the output below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Number of the command's line in the file, from 0.
    pub line: usize,
    /// The command.
    pub command: String,
    /// Lines of output.
    pub output: Vec<String>,
    /// Do the rows of its tables depend on how busy the machine was?
    pub rows_vary: bool,
}

/// The commands of a page to run. Fails for a block with command lines that is neither runnable nor left out for a
/// reason.
///
/// # Errors
/// The line, and how to mend the page.
pub fn commands(page: &str) -> Result<Vec<Shown>, String> {
    let mut shown: Vec<Shown> = Vec::new();
    let mut block = None;
    let mut is_left_out = false;
    let mut rows_vary = false;
    for (line, text) in page.lines().enumerate() {
        match (block, text.strip_prefix("```")) {
            (None, Some(language)) => block = Some(language),
            (Some(_), Some(_)) => {
                block = None;
                (is_left_out, rows_vary) = (false, false);
            }
            (None, None) => {
                is_left_out = text.starts_with(NOT_RUN) || is_left_out && text.is_empty();
                rows_vary = text.starts_with(ROWS_VARY) || rows_vary && text.is_empty();
            }
            (Some(_), None) if is_left_out => {}
            (Some("console"), None) => match text.strip_prefix("$ ") {
                Some(command) => shown.push(Shown {
                    line,
                    command: command.to_owned(),
                    output: Vec::new(),
                    rows_vary,
                }),
                None => shown
                    .last_mut()
                    .ok_or_else(|| format!("line {}: output without a command", line + 1))?
                    .output
                    .push(text.to_owned()),
            },
            (Some(language), None) => {
                if text.starts_with("nearpage ") || text.starts_with("$ ") {
                    return Err(format!(
                        "line {}: a command in a block of `{language}`: make it `console`, with `$ `, so that it is run, or \
                         write `{NOT_RUN}REASON -->` above the block",
                        line + 1
                    ));
                }
            }
        }
    }
    for command in &mut shown {
        while command.output.last().is_some_and(String::is_empty) {
            command.output.pop();
        }
    }
    Ok(shown)
}

/// Runs the commands in one shell and returns each command's output.
pub fn run(name: &str, commands: &[Shown]) -> Vec<Vec<String>> {
    let case = Case::new(name).limit(Duration::from_secs(600));
    let bin = case.path(".bin");
    fs::create_dir(&bin).expect("a folder of ours");
    symlink(nearpage_path(), bin.join("nearpage")).expect("a link of ours");
    symlink(repository().join("workloads"), case.path("workloads")).expect("a link of ours");
    case.program_copy(workload("cg"), "cg");
    let mut script = "status=0\n".to_owned();
    for (number, shown) in commands.iter().enumerate() {
        let command = match shown.command.strip_suffix(UNTIL_INTERRUPTED) {
            Some(command) => format!("timeout --signal=INT 5 {command}"),
            None => shown.command.clone(),
        };
        let _ = write!(
            script,
            "printf '{MARK}{number}\\n'\n(exit $status)\n{command}\nstatus=$?\n"
        );
    }
    case.write(".script", script);
    let mut shell = case.command("bash");
    let path = std::env::var("PATH").unwrap_or_default();
    shell
        .args(["-c", "exec bash .script >.printed 2>&1"])
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("COLUMNS", "100")
        // In containers, tests may run as root, which Open MPI refuses by default.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    case.run(shell);
    let printed = case.read(".printed");
    let printed = printed.replace(&case.folder().display().to_string(), "/home/you");
    let mut outputs = vec![Vec::new(); commands.len()];
    for part in printed.split(MARK).skip(1) {
        let (number, output) = part.split_once('\n').expect("a mark of ours");
        let mut lines: Vec<String> = output
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        outputs[number.parse::<usize>().expect("a number of ours")] = lines;
    }
    outputs
}

impl Shown {
    /// Does printed output match the page, apart from permitted differences?
    pub fn is(&self, printed: &[String]) -> bool {
        if !self.rows_vary {
            return is_as_shown(&self.output, printed);
        }
        let mut printed = printed.iter().map(|line| plain(line));
        let constant = self.output.iter().filter(|line| is_constant(line));
        constant
            .map(|line| plain(line))
            .all(|line| printed.any(|other| other == line))
    }
}

/// Is the line a table's heading or a message without figures?
fn is_constant(line: &str) -> bool {
    let is_heading = line.trim().contains("  ");
    let has_figures = plain(line).contains('#') || line.contains(ELLIPSIS);
    (is_heading || line.starts_with("nearpage: ")) && !has_figures
}

fn is_as_shown(shown: &[String], printed: &[String]) -> bool {
    let shown: Vec<String> = joined(shown);
    let printed: Vec<String> = joined(printed);
    lines_match(&shown, &printed)
}

/// Lines joined with their continuations, without figures.
fn joined(lines: &[String]) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    for line in lines {
        match joined.last_mut() {
            Some(last) if line.starts_with(' ') && line.trim() != ELLIPSIS => {
                *last += " ";
                *last += &plain(line);
            }
            _ => joined.push(plain(line)),
        }
    }
    joined.retain(|line| !line.is_empty());
    joined
}

/// A line with `#` in place of its figures.
fn plain(line: &str) -> String {
    const UNITS: [&str; 17] = [
        "ns", "µs", "ms", "s", "B", "KiB", "MiB", "GiB", "k", "M", "G", "%", "Hz", "h", "min", "x",
        "×",
    ];
    let is_bar = |character: char| "█▓▒░·".contains(character);
    let bars = line.replace(is_bar, " ");
    let mut words = Vec::new();
    for word in bars.split_whitespace() {
        let trimmed = word.trim_matches(['(', ')', ',', ';', ':', '<', '+', '-', '~', '…']);
        let is_figure = trimmed.starts_with(|c: char| c.is_ascii_digit())
            && trimmed
                .trim_end_matches(|c: char| c.is_alphabetic() || c == '%')
                .chars()
                .all(|c| c.is_ascii_digit() || ".,".contains(c));
        let is_unit = words.last().is_some_and(|last| last == "#") && UNITS.contains(&trimmed);
        match (is_figure, is_unit) {
            (true, _) => {
                if words.last().is_none_or(|last| last != "#") {
                    words.push("#".to_owned());
                }
            }
            (_, true) => {}
            _ => words.push(word.to_owned()),
        }
    }
    words.join(" ")
}

fn lines_match(shown: &[String], printed: &[String]) -> bool {
    match (shown.split_first(), printed.split_first()) {
        (None, printed) => printed.is_none(),
        (Some((line, rest)), _) if line == ELLIPSIS => {
            (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..]))
        }
        (Some((line, rest)), Some((other, others))) => {
            line_matches(line, other) && lines_match(rest, others)
        }
        (Some(_), None) => false,
    }
}

fn line_matches(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split(ELLIPSIS);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first.trim_end()) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.split_once(part.trim()) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last.trim_start())
}

/// The page with differing outputs replaced.
pub fn renewed(page: &str, commands: &[Shown], outputs: &[Vec<String>]) -> String {
    let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
    for (shown, printed) in commands.iter().zip(outputs).rev() {
        if shown.is(printed) {
            continue;
        }
        let first = shown.line + 1;
        lines.splice(first..first + shown.output.len(), printed.iter().cloned());
    }
    lines.join("\n") + "\n"
}

/// Runs a page's commands and compares the output. `NEARPAGE_RENEW_DOCUMENTS=1` writes the new output into the page.
///
/// # Errors
/// The differences, command by command.
pub fn check(path: &Path) -> Result<(), String> {
    let page = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let at = |message| format!("{}: {message}", path.display());
    let commands = commands(&page).map_err(at)?;
    if commands.is_empty() {
        return Ok(());
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let outputs = run(&format!("document {name}"), &commands);
    if std::env::var_os("NEARPAGE_RENEW_DOCUMENTS").is_some() {
        let text = renewed(&page, &commands, &outputs);
        return fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()));
    }
    let mut differences = String::new();
    for (shown, printed) in commands.iter().zip(&outputs) {
        if !shown.is(printed) {
            let _ = write!(
                differences,
                "{}:{}: $ {}\n--- shown\n{}\n--- printed\n{}\n\n",
                path.display(),
                shown.line + 1,
                shown.command,
                shown.output.join("\n"),
                printed.join("\n")
            );
        }
    }
    match differences.is_empty() {
        true => Ok(()),
        false => Err(differences),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn figures_may_differ_and_words_may_not() {
        let shown = lines(
            "recorded 1.9 s at 3542 Hz: 20.2k accesses (79 %)\n…\ncost   time\n34 %  702 ms  main …",
        );
        let same = lines(
            "recorded 850 ms at 12 Hz: 812 accesses (7.5 %)\nx\ny\ncost time\n3.4 %  1.2 s  main cg.c (a)",
        );
        assert!(is_as_shown(&shown, &same));
        let other = lines(
            "recorded 850 ms at 12 Hz: 812 accesses (7.5 %)\ncost time\n3.4 %  1.2 s  other cg.c (a)",
        );
        assert!(!is_as_shown(&shown, &other));
        assert!(!is_as_shown(&shown, &same[..3]));
        assert!(!is_as_shown(&[], &same));
    }

    #[test]
    fn headings_stay_where_rows_vary() {
        let page = format!(
            "{ROWS_VARY}it samples -->\n\n```console\n$ x\n7 accesses\ncost  object\n5 %  a\nlast\n```\n"
        );
        let commands = commands(&page).unwrap();
        assert!(commands[0].is(&lines("9 accesses\ncost object\n7 %  b\n2 %  a\nnew")));
        assert!(!commands[0].is(&lines("9 accesses\n7 %  b\nlast")));
    }

    #[test]
    fn wrapped_words_are_one_line() {
        let shown = lines("a long line that\n  wraps 3 times");
        assert!(is_as_shown(
            &shown,
            &lines("a long line that wraps 11 times")
        ));
    }

    #[test]
    fn commands_that_nobody_runs_need_a_reason() {
        assert!(commands("```\nnearpage doctor\n```\n").is_err());
        assert!(commands("```sh\n$ nearpage doctor\n```\n").is_err());
        let left_out = format!("{NOT_RUN}no such launcher -->\n\n```sh\nnearpage doctor\n```\n");
        assert_eq!(commands(&left_out), Ok(Vec::new()));
        let after = format!("{left_out}\n```\nnearpage doctor\n```\n");
        assert!(commands(&after).is_err());
    }

    #[test]
    fn renewing_replaces_what_differs_alone() {
        let page = "a\n```console\n$ one\n5 s\n$ two\nold\n\n$ three\n```\nb\n";
        let commands = commands(page).unwrap();
        assert_eq!(commands.len(), 3);
        let outputs = [lines("6 s"), lines("new\nlines"), lines("x")];
        assert_eq!(
            renewed(page, &commands, &outputs),
            "a\n```console\n$ one\n5 s\n$ two\nnew\nlines\n\n$ three\nx\n```\nb\n"
        );
    }
}
