//! A run of a matrix, and the file that keeps its result.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nearpage_runner::{Error, LabOptions, LabStream, ModelledFrom, lab};
use serde::{Deserialize, Serialize};

use super::file::MatrixFile;
use crate::cells::{self, Attempt};
use crate::lab::LabOutput;

/// Size limit of the kept output of a command, in bytes. The end of the output is kept.
const OUTPUT_BYTES_MAX: usize = 4096;
/// Everything that determines a run. A kept file with other values is ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Name of the command.
    pub command: String,
    /// Name of the machine.
    pub machine: String,
    /// Name of the setting.
    pub setting: String,
    /// Seed of the emulator's random numbers.
    pub seed: u32,
    /// Command to run, with its arguments.
    pub words: Vec<String>,
    /// Line of shell that runs before the command.
    pub before: Option<String>,
    /// Machine, as `--machine` takes it.
    pub modelled: String,
    /// Number of CPUs, as `--cpus` takes it.
    pub cpus: Option<u32>,
    /// Memory of each node.
    pub memory_mib: u32,
    /// Kernel to boot; none: the newest in /boot. Files of before this key have none.
    #[serde(default)]
    pub kernel: Option<PathBuf>,
    /// Word in the output after which the seconds stand.
    pub seconds_after: Option<String>,
}

/// Result of a run, as the file keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    run: Spec,
    /// Why the run has no seconds.
    pub failed: Option<String>,
    /// Guest seconds: the number that the command printed, or the time of the whole command.
    pub seconds: Option<f64>,
    /// End of the command's output.
    output: String,
    /// Result as `lab --json` prints it.
    pub result: Option<LabOutput>,
}

impl Spec {
    /// Name of the run in messages.
    pub fn title(&self) -> String {
        format!(
            "{}, {}, {}, seed {}",
            self.command, self.machine, self.setting, self.seed
        )
    }

    fn path(&self, folder: &Path) -> PathBuf {
        let name = format!(
            "{}+{}+{}+{}.json",
            self.command, self.machine, self.setting, self.seed
        );
        folder.join(name.replace(' ', "_"))
    }

    /// Reads the kept result of this run; `None` without one.
    ///
    /// # Errors
    /// The file cannot be read, or nearpage did not write it.
    pub fn kept(&self, folder: &Path) -> anyhow::Result<Option<Cell>> {
        let cell: Option<Cell> = cells::kept(&self.path(folder), "a run of a matrix")?;
        Ok(cell.filter(|cell| cell.run == *self))
    }

    /// Makes this run and keeps the result, unless another process makes the run.
    ///
    /// # Errors
    /// An interrupt; no emulator or machine; a folder that can't be written.
    pub fn run(&self, folder: &Path, file: &MatrixFile) -> anyhow::Result<Attempt<Cell>> {
        let finished = || Ok(self.kept(folder)?.filter(|cell| cell.failed.is_none()));
        cells::compute(&self.path(folder), finished, || self.run_now(file))
    }

    fn run_now(&self, file: &MatrixFile) -> anyhow::Result<Cell> {
        let options = LabOptions {
            command: self.words.iter().map(Into::into).collect(),
            before: self.before.clone(),
            machine: self.modelled.clone(),
            cpus: self.cpus,
            memory_mib: self.memory_mib,
            kernel: self.kernel.clone(),
            share: None,
            modelled_from: ModelledFrom::Command,
            warm_up_instructions: 0,
            seed: self.seed,
            boot_limit: file.boot_limit_s.map(Duration::from_secs_f64),
            time_limit: file.time_limit_s.map(Duration::from_secs_f64),
        };
        let output = std::cell::RefCell::new((Vec::new(), Vec::new()));
        let keep = |stream: LabStream, bytes: &[u8]| {
            let mut output = output.borrow_mut();
            match stream {
                LabStream::Output => output.0.extend_from_slice(bytes),
                LabStream::Error => output.1.extend_from_slice(bytes),
            }
        };
        let run = lab(&options, &keep);
        let (printed, said) = output.into_inner();
        let printed = String::from_utf8_lossy(&printed);
        let mut cell = Cell {
            run: self.clone(),
            failed: None,
            seconds: None,
            output: end_of(&(printed.clone() + String::from_utf8_lossy(&said))),
            result: None,
        };
        let run = match run {
            Ok(run) => run,
            // The failure is this guest's result. Other errors would occur in all runs.
            Err(Error::Lab(error)) if error.is_of_guest() => {
                cell.failed = Some(error.to_string());
                return Ok(cell);
            }
            Err(error) => return Err(error.into()),
        };
        let result = LabOutput::from(run);
        cell.seconds = match &self.seconds_after {
            Some(word) => number_after(&printed, word),
            None => result.counts.as_ref().map(|counts| counts.guest_s),
        };
        cell.failed = match (result.exit_status, cell.seconds) {
            (0, Some(_)) => None,
            (0, None) => Some("the seconds are not in what the command printed".to_owned()),
            (status, _) => Some(format!("exit status {status}")),
        };
        cell.result = Some(result);
        Ok(cell)
    }
}

/// Last [`OUTPUT_BYTES_MAX`] bytes of a text, from the start of a character.
fn end_of(text: &str) -> String {
    let from = text.len().saturating_sub(OUTPUT_BYTES_MAX);
    let from = (from..text.len()).find(|at| text.is_char_boundary(*at));
    text[from.unwrap_or(0)..].to_owned()
}

/// The number that follows a word, if it is finite and not negative.
fn number_after(text: &str, word: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    words.find(|found| *found == word)?;
    let number: f64 = words.next()?.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn spec() -> Spec {
        Spec {
            command: "cg".to_owned(),
            machine: "a".to_owned(),
            setting: "first touch".to_owned(),
            seed: 1,
            words: vec!["./cg".to_owned()],
            before: None,
            modelled: "carrefour-a".to_owned(),
            cpus: Some(4),
            memory_mib: 512,
            kernel: None,
            seconds_after: None,
        }
    }

    #[test]
    fn a_kept_run_is_taken_for_the_same_run_alone() {
        let folder = tempfile::tempdir().unwrap();
        let run = spec();
        assert!(run.kept(folder.path()).unwrap().is_none());
        let cell = Cell {
            run: run.clone(),
            failed: None,
            seconds: Some(2.5),
            output: String::new(),
            result: None,
        };
        let text = serde_json::to_string(&cell).unwrap();
        fs::write(folder.path().join("cg+a+first_touch+1.json"), text).unwrap();
        assert_eq!(run.kept(folder.path()).unwrap().unwrap().seconds, Some(2.5));
        let changed = Spec {
            words: vec!["./cg".to_owned(), "5".to_owned()],
            ..run.clone()
        };
        assert!(changed.kept(folder.path()).unwrap().is_none());
        fs::write(folder.path().join("cg+a+first_touch+1.json"), "{}").unwrap();
        assert!(run.kept(folder.path()).is_err());
    }

    #[test]
    fn seconds_are_the_number_behind_the_word() {
        let line = "cg checksum 5 init 0.100 s compute 1.250 s\n";
        assert_eq!(number_after(line, "compute"), Some(1.25));
        assert_eq!(number_after(line, "total"), None);
        assert_eq!(number_after("compute soon", "compute"), None);
        assert_eq!(number_after("compute inf", "compute"), None);
    }

    #[test]
    fn the_end_of_an_output_begins_with_a_whole_character() {
        let text = "ä".repeat(OUTPUT_BYTES_MAX) + "x";
        let end = end_of(&text);
        assert!(end.len() <= OUTPUT_BYTES_MAX && end.ends_with("äx"));
        assert_eq!(end_of("short"), "short");
    }
}
