//! Progress of long work. A terminal shows a line after two seconds. Elsewhere, standard error gets a line every ten
//! seconds once the work has taken thirty.

use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

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
    pace: Mutex<Pace>,
    end: Option<Sender<()>>,
    line: Option<JoinHandle<()>>,
}

/// Updates a bar before its line is shown.
type Update = Box<dyn FnMut(&ProgressBar) + Send>;

/// When counted work began, and how much was done then.
struct Pace {
    began: Option<(Instant, u64)>,
}

impl Pace {
    /// Of work that is counted from its beginning.
    fn from_now() -> Self {
        Self {
            began: Some((Instant::now(), 0)),
        }
    }

    /// Time that the rest takes, if it goes on as the counted work did; none as long as nothing has been counted.
    fn left(&mut self, done: u64, of_all: u64) -> Option<Duration> {
        let (at, before) = *self.began.get_or_insert((Instant::now(), done));
        let counted = done.checked_sub(before).filter(|&counted| counted > 0)?;
        let share = of_all.saturating_sub(done) as f64 / counted as f64;
        Some(at.elapsed().mul_f64(share))
    }
}

impl Progress {
    /// Shows `doing` after "nearpage: ", such as "reading r.nearpage".
    pub fn new(doing: String) -> Self {
        Self::begin(doing, Some(lines(stderr().is_terminal())), None)
    }

    /// Like `new`; calls `done` for the share of finished work before each line.
    pub fn following(doing: String, done: impl Fn() -> (u64, u64) + Send + 'static) -> Self {
        let mut pace = Pace::from_now();
        let update = move |bar: &ProgressBar| {
            let (done, of_all) = done();
            set(bar, (done, of_all), "", pace.left(done, of_all));
        };
        let lines = lines(stderr().is_terminal());
        Self::begin(doing, Some(lines), Some(Box::new(update)))
    }

    /// Progress of deciding from a recording. A search of placements ends early if no placement is better, so the
    /// remaining time is an upper bound. Steps are counted from the first one that is seen: what comes before takes
    /// longer than any of them.
    pub fn deciding(folder: &Path, search: Arc<SearchProgress>) -> Self {
        let doing = format!("deciding for {}", folder.display());
        let update = {
            let doing = doing.clone();
            let mut pace = Pace { began: None };
            move |bar: &ProgressBar| {
                bar.set_message(printable(&in_search(&doing, search.replayed())));
                let [steps, steps_max] = search.steps();
                if steps_max > 0 {
                    let left = pace.left(steps, steps_max);
                    set(bar, (steps, steps_max), "at most ", left);
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
            return Self {
                bar,
                pace: Mutex::new(Pace::from_now()),
                end: None,
                line: None,
            };
        };
        let (end, ended) = channel();
        let shown = bar.clone();
        let line = spawn(move || {
            let mut update = update;
            each_period(&ended, patience, period, || {
                if let Some(update) = &mut update {
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
            pace: Mutex::new(Pace::from_now()),
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
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        set(&self.bar, (done, of_all), "", pace.left(done, of_all));
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

/// Shows `done`, a number and that of all, and after `bound` the time that is left, if it is known.
fn set(bar: &ProgressBar, done: (u64, u64), bound: &str, left: Option<Duration>) {
    let (done, of_all) = done;
    if bar.length() != Some(of_all) {
        bar.set_length(of_all);
        bar.set_style(style("nearpage: {msg}, {percent} % in {elapsed}{prefix}"));
    }
    let left = left.map(|left| format!(", {bound}{} s left", left.as_secs()));
    bar.set_prefix(left.unwrap_or_default());
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
            "{doing}, {} % in {seconds} s{}",
            100 * bar.position() / all,
            bar.prefix()
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
        set(&progress.bar, (6, 18), "at most ", None);
        let words = in_words(&progress.bar);
        assert_eq!(words, "deciding for r, 34 placements replayed, 33 % in 0 s");
        set(
            &progress.bar,
            (6, 18),
            "at most ",
            Some(Duration::from_secs(200)),
        );
        let words = in_words(&progress.bar);
        assert!(
            words.ends_with("33 % in 0 s, at most 200 s left"),
            "{words}"
        );
    }

    #[test]
    fn the_time_left_is_known_from_the_counted_work_alone() {
        // Half of the work is done before it is counted, in a time that says nothing about the rest.
        let mut pace = Pace { began: None };
        assert_eq!(pace.left(50, 100), None);
        assert_eq!(pace.left(50, 100), None);
        let earlier = Instant::now() - Duration::from_secs(1);
        let mut pace = Pace {
            began: Some((earlier, 50)),
        };
        let left = pace.left(60, 100).expect("ten were counted");
        assert!(left >= Duration::from_secs(4), "{left:?}");
        assert_eq!(pace.left(100, 100), Some(Duration::ZERO));
        assert_eq!(pace.left(40, 100), None);
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
