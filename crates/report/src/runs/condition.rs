//! Conditions under which a comparison of runs has failed, such as `local<80%` and `time>+5%`.

use std::fmt;
use std::str::FromStr;

use super::{RunsError, Setting};

/// A condition of `--fail-if`.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    figure: Figure,
    is_below: bool,
    limit: Limit,
    /// The condition as typed.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Time,
    Local,
    Remote,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    /// An absolute limit: nanoseconds, or a share.
    Of(f64),
    /// A change against the first setting: a share of the time, or a difference of shares.
    Change(f64),
}

const FORM: &str = "expected time, local or remote, then < or >, then a limit: local<80%, remote>+5% (points more than \
                    before), time>+5%, time>12.5s";

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let at = text.find(['<', '>']).ok_or(FORM)?;
        let figure = match text[..at].trim() {
            "time" => Figure::Time,
            "local" => Figure::Local,
            "remote" => Figure::Remote,
            _ => return Err(FORM.to_owned()),
        };
        let limit = text[at + 1..].trim();
        let is_change = limit.starts_with(['+', '-']);
        let number = |text: &str, unit: f64| {
            let number = text
                .trim()
                .parse::<f64>()
                .ok()
                .filter(|number| number.is_finite());
            number.map(|number| number * unit).ok_or(FORM.to_owned())
        };
        let limit = match (limit.strip_suffix('%'), figure) {
            (Some(percent), _) if is_change => Limit::Change(number(percent, 0.01)?),
            (Some(percent), Figure::Local | Figure::Remote) => Limit::Of(number(percent, 0.01)?),
            (None, Figure::Time) if !is_change => {
                let (digits, unit_ns) = match (limit.strip_suffix("ms"), limit.strip_suffix('s')) {
                    (Some(digits), _) => (digits, 1e6),
                    (None, Some(digits)) => (digits, 1e9),
                    (None, None) => return Err(FORM.to_owned()),
                };
                Limit::Of(number(digits, unit_ns)?)
            }
            _ => return Err(FORM.to_owned()),
        };
        Ok(Self {
            figure,
            is_below: text.as_bytes()[at] == b'<',
            limit,
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Condition {
    /// Does the condition hold for the medians of a setting?
    pub(super) fn holds(&self, before: &Setting, after: &Setting) -> Result<bool, RunsError> {
        let found = self.figure_of(after)?;
        let limit = match (self.limit, self.figure) {
            (Limit::Of(limit), _) => limit,
            (Limit::Change(change), Figure::Time) => (1.0 + change) * self.figure_of(before)?,
            (Limit::Change(change), _) => change + self.figure_of(before)?,
        };
        Ok(if self.is_below {
            found < limit
        } else {
            found > limit
        })
    }

    fn figure_of(&self, setting: &Setting) -> Result<f64, RunsError> {
        if self.figure == Figure::Time {
            return Ok(setting.elapsed_ns.median);
        }
        let unknown = || RunsError::LocalUnknown {
            condition: self.text.clone(),
            recordings: setting.recordings.join(", "),
        };
        let local = setting.local_share.ok_or_else(unknown)?.median;
        Ok(if self.figure == Figure::Local {
            local
        } else {
            1.0 - local
        })
    }
}
