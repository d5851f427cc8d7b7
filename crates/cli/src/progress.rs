//! Progress of long work. A terminal shows a line after two seconds. Elsewhere, standard error gets a line every ten
//! seconds once the work has taken thirty.

use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nearpage_amount::counted;
use nearpage_planner::auto::SearchProgress;
use nearpage_report::printable;

use crate::terminal;

/// Shorter work shows nothing on a terminal.
const QUIET_TIME: Duration = Duration::from_secs(2);
/// Shorter work writes nothing to a log.
const QUIET_TIME_OF_LOGS: Duration = Duration::from_secs(30);
/// Time between two lines on a terminal and, below, in a log.
const PERIOD: Duration = Duration::from_secs(1);
const PERIOD_OF_LOGS: Duration = Duration::from_secs(10);

/// Shows the work and its elapsed time until dropped.
pub struct Progress {
    bar: ProgressBar,
    end: Option<Sender<()>>,
    line: Option<JoinHandle<()>>,
}

/// Updates a bar before its line is shown.
type Update = Box<dyn Fn(&ProgressBar) + Send>;

impl Progress {
    /// Shows `doing` after "nearpage: ", such as "reading r.nearpage".
    pub fn new(doing: String) -> Self {
        Self::begin(doing, Some(lines(stderr().is_terminal())), None)
    }

    /// Like `new`; calls `done` for the share of finished work before each line.
    pub fn following(doing: String, done: impl Fn() -> (u64, u64) + Send + 'static) -> Self {
        let update = move |bar: &ProgressBar| {
            let (done, of_all) = done();
            set(bar, done, of_all);
        };
        let lines = lines(stderr().is_terminal());
        Self::begin(doing, Some(lines), Some(Box::new(update)))
    }

    /// Progress of deciding from a recording. A search of placements ends early if no placement is better, so the
    /// remaining time is an upper bound.
    pub fn deciding(folder: &Path, search: Arc<SearchProgress>) -> Self {
        let doing = format!("deciding for {}", folder.display());
        let update = {
            let doing = doing.clone();
            move |bar: &ProgressBar| {
                bar.set_message(printable(&in_search(&doing, search.replayed())));
                let [steps, steps_max] = search.steps();
                if steps > 0 {
                    bar.set_prefix("at most ");
                    set(bar, steps, steps_max);
                }
            }
        };
        let lines = lines(stderr().is_terminal());
        Self::begin(doing, Some(lines), Some(Box::new(update)))
    }

    /// Like `new`, for work during which a user's command runs. Without a terminal nothing is shown, because the lines
    /// would mix with the command's standard error.
    pub fn beside_command(doing: String) -> Self {
        let is_watched = stderr().is_terminal();
        Self::begin(doing, is_watched.then_some((QUIET_TIME, PERIOD)), None)
    }

    /// `lines`: the wait before the first line and before each further line; `None` shows nothing.
    fn begin(doing: String, lines: Option<(Duration, Duration)>, update: Option<Update>) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(style("nearpage: {msg}, {elapsed}"));
        bar.set_message(printable(&doing));
        let Some((patience, period)) = lines else {
            let (end, line) = (None, None);
            return Self { bar, end, line };
        };
        let (end, ended) = channel();
        let shown = bar.clone();
        let line = spawn(move || {
            each_period(&ended, patience, period, || {
                if let Some(update) = &update {
                    update(&shown);
                }
                if stderr().is_terminal() {
                    if shown.is_hidden() {
                        shown.set_draw_target(ProgressDrawTarget::stderr());
                    }
                    shown.tick();
                } else {
                    terminal::say(&in_words(&shown));
                }
            });
            shown.finish_and_clear();
        });
        Self {
            bar,
            end: Some(end),
            line: Some(line),
        }
    }

    /// Replaces the text.
    pub fn say(&self, doing: String) {
        self.bar.set_message(printable(&doing));
    }

    /// Sets the finished share of the work, in any unit.
    pub fn done(&self, done: u64, of_all: u64) {
        set(&self.bar, done, of_all);
    }
}

/// Calls `show` after `patience` and then after each `period`, until the work has ended.
fn each_period(ended: &Receiver<()>, patience: Duration, period: Duration, mut show: impl FnMut()) {
    let mut wait = patience;
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(wait) {
        show();
        wait = period;
    }
}

/// The wait before the first line and before each further line.
fn lines(is_terminal: bool) -> (Duration, Duration) {
    match is_terminal {
        true => (QUIET_TIME, PERIOD),
        false => (QUIET_TIME_OF_LOGS, PERIOD_OF_LOGS),
    }
}

fn in_search(doing: &str, replayed: u64) -> String {
    match replayed {
        0 => doing.to_owned(),
        _ => format!("{doing}, {} replayed", counted(replayed, "placement")),
    }
}

fn set(bar: &ProgressBar, done: u64, of_all: u64) {
    if bar.length() != Some(of_all) {
        bar.set_length(of_all);
        bar.set_style(style("nearpage: {msg}, {percent} %, {prefix}{eta} left"));
    }
    bar.set_position(done);
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("a template of ours")
}

/// Line of text for a log.
fn in_words(bar: &ProgressBar) -> String {
    let (doing, seconds) = (bar.message(), bar.elapsed().as_secs());
    match bar.length() {
        Some(all) if all > 0 => format!(
            "{doing}, {} % in {seconds} s, {}{} s left",
            100 * bar.position() / all,
            bar.prefix(),
            bar.eta().as_secs()
        ),
        _ => format!("{doing}, {seconds} s"),
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(line) = self.line.take() {
            let _ = line.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_says_how_far_it_is() {
        assert_eq!(in_search("deciding for r", 0), "deciding for r");
        let words = in_search("deciding for r", 34);
        assert_eq!(words, "deciding for r, 34 placements replayed");
        let progress = Progress::beside_command(words);
        progress.bar.set_prefix("at most ");
        progress.done(6, 18);
        let words = in_words(&progress.bar);
        let begin = "deciding for r, 34 placements replayed, 33 % in 0 s, at most ";
        assert!(words.starts_with(begin), "{words}");
    }

    #[test]
    fn logs_get_a_line_every_ten_seconds_of_work_that_takes_thirty() {
        let seconds =
            |(patience, period): (Duration, Duration)| (patience.as_secs(), period.as_secs());
        assert_eq!(seconds(lines(false)), (30, 10));
        assert_eq!(seconds(lines(true)), (2, 1));
        // With times of zero: further lines follow the first, and no line follows the end.
        let (end, ended) = channel();
        let mut end = Some(end);
        let mut shown = 0;
        each_period(&ended, Duration::ZERO, Duration::ZERO, || {
            shown += 1;
            if shown == 3 {
                drop(end.take());
            }
        });
        assert_eq!(shown, 3);
    }

    #[test]
    fn logs_have_the_share_where_it_is_known() {
        let progress = Progress::beside_command("reading r\x1b[2J".to_owned());
        assert_eq!(in_words(&progress.bar), "reading r\u{fffd}[2J, 0 s");
        progress.done(1, 4);
        let words = in_words(&progress.bar);
        assert!(
            words.starts_with("reading r\u{fffd}[2J, 25 % in 0 s, "),
            "{words}"
        );
    }
}
