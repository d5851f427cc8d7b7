//! The file of a sweep: recordings, machines, policies and parameters, and the cells that they make.

use std::collections::BTreeMap;

use nearpage_simulator::Job;
use serde::Deserialize;

use crate::simulate::policy;

/// Limit of the number of cells that a file may make.
const CELLS_MAX: usize = 1_000_000;

/// Content of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepFile {
    /// Folders of traces.
    recordings: Vec<String>,
    /// Machines, as `--machine` takes them; empty: each trace's own machine.
    #[serde(default)]
    machines: Vec<String>,
    /// Policies, as `--policy` takes them.
    policies: Vec<String>,
    /// Parameters with their values, as `--set` takes them.
    #[serde(default)]
    parameters: BTreeMap<String, Vec<Value>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Value {
    Number(u64),
    Text(String),
}

impl Value {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// One result of a sweep, as the file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Folder of the trace.
    pub recording: String,
    /// Machine, as `--machine` takes it; `None`: the trace's own machine.
    pub machine: Option<String>,
    pub policy: String,
    /// Parameters of the policy that the file sets.
    pub parameters: BTreeMap<String, String>,
}

impl Cell {
    /// Name of the cell in messages.
    pub fn title(&self) -> String {
        let machine = self.machine.as_deref().unwrap_or("own machine");
        let mut title = format!("{}, {machine}, {}", self.recording, self.policy);
        for (name, value) in &self.parameters {
            title += &format!(", {name}={value}");
        }
        title
    }

    /// The policy to simulate.
    ///
    /// # Errors
    /// The policy does not exist, or a parameter cannot have its value.
    pub fn job(&self) -> anyhow::Result<Job> {
        let mut job = Job::new(policy(&self.policy)?);
        for (name, value) in &self.parameters {
            job.set(name, value)?;
        }
        Ok(job)
    }
}

impl SweepFile {
    /// # Errors
    /// A mistake in the file, with the number of its line if it is known.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start.min(text.len()));
            let before = &text.as_bytes()[..before];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            format!("line {line}: {}", error.message().replace('\n', ", "))
        })?;
        for (key, list) in [
            ("recordings", &file.recordings),
            ("policies", &file.policies),
        ] {
            if list.is_empty() {
                return Err(format!("`{key}` is empty"));
            }
        }
        let named = [&file.recordings, &file.machines, &file.policies];
        for list in named {
            let twice = list
                .iter()
                .enumerate()
                .find(|(at, name)| list[..*at].contains(name));
            if let Some((_, name)) = twice {
                return Err(format!("{name:?} is listed twice"));
            }
        }
        if let Some((name, _)) = file.parameters.iter().find(|(_, values)| values.is_empty()) {
            return Err(format!("parameter `{name}` has no values"));
        }
        Ok(file)
    }

    /// All cells, ordered by trace, then by machine.
    ///
    /// # Errors
    /// A policy, parameter or value is invalid; or there are too many cells.
    pub fn cells(&self) -> Result<Vec<Cell>, String> {
        let machines: Vec<Option<String>> = match self.machines.is_empty() {
            true => vec![None],
            false => self.machines.iter().cloned().map(Some).collect(),
        };
        let mut settings = Vec::new();
        let mut used: Vec<&str> = Vec::new();
        for name in &self.policies {
            let mut combinations = vec![BTreeMap::new()];
            for (parameter, values) in &self.parameters {
                if !self.has(name, parameter, values)? {
                    continue;
                }
                used.push(parameter);
                if combinations.len().saturating_mul(values.len()) > CELLS_MAX {
                    return Err(format!("more than {CELLS_MAX} cells"));
                }
                let each = combinations.iter().flat_map(|before| {
                    values.iter().map(|value| {
                        let mut combination = before.clone();
                        combination.insert(parameter.clone(), value.text());
                        combination
                    })
                });
                combinations = each.collect();
            }
            settings.extend(combinations.into_iter().map(|one| (name.clone(), one)));
        }
        if let Some(unused) = self
            .parameters
            .keys()
            .find(|name| !used.contains(&name.as_str()))
        {
            return Err(format!("none of the policies has a parameter `{unused}`"));
        }
        let places = self.recordings.len().saturating_mul(machines.len());
        if places.saturating_mul(settings.len()) > CELLS_MAX {
            return Err(format!("more than {CELLS_MAX} cells"));
        }
        let mut cells = Vec::new();
        for recording in &self.recordings {
            for machine in &machines {
                cells.extend(settings.iter().map(|(policy, parameters)| Cell {
                    recording: recording.clone(),
                    machine: machine.clone(),
                    policy: policy.clone(),
                    parameters: parameters.clone(),
                }));
            }
        }
        Ok(cells)
    }

    /// Does the policy have this parameter? Values that the parameter cannot have are an error.
    fn has(&self, name: &str, parameter: &str, values: &[Value]) -> Result<bool, String> {
        let mut job = Job::new(policy(name).map_err(|error| error.to_string())?);
        let mut is_known = false;
        for value in values {
            is_known |= job
                .set(parameter, &value.text())
                .map_err(|error| error.to_string())?;
        }
        Ok(is_known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "recordings = [\"a\", \"b\"]\nmachines = [\"flash-8\"]\n\
        policies = [\"first-touch\", \"migrate\"]\n[parameters]\ntrigger = [64, 128]\nhold = [4, 16]\n";

    fn titles(text: &str) -> Result<Vec<String>, String> {
        let cells = SweepFile::parse(text)?.cells()?;
        Ok(cells.iter().map(Cell::title).collect())
    }

    #[test]
    fn a_policy_is_combined_with_the_parameters_that_it_has() {
        let titles = titles(FILE).unwrap();
        assert_eq!(titles.len(), 2 * (1 + 4));
        assert_eq!(titles[0], "a, flash-8, first-touch");
        assert_eq!(titles[1], "a, flash-8, migrate, hold=4, trigger=64");
        assert!(titles[5].starts_with("b, "));
    }

    #[test]
    fn mistakes_in_a_sweep_file_are_named() {
        for (from, to, words) in [
            ("\"migrate\"", "\"migrat\"", "no policy `migrat`"),
            (
                "trigger",
                "triger",
                "none of the policies has a parameter `triger`",
            ),
            ("[64, 128]", "[]", "`trigger` has no values"),
            ("[64, 128]", "[\"often\"]", "trigger"),
            ("\"b\"", "\"a\"", "\"a\" is listed twice"),
            ("machines", "machine", "line 2: unknown field `machine`"),
            ("[\"a\", \"b\"]", "[]", "`recordings` is empty"),
        ] {
            let error = titles(&FILE.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
        let many: Vec<String> = (1..2001).map(|number| number.to_string()).collect();
        let many = format!("[{}]", many.join(", "));
        let text = FILE.replace("[64, 128]", &many).replace("[4, 16]", &many);
        assert!(titles(&text).unwrap_err().contains("more than"));
    }
}
