//! Where `optimize` keeps plans, and where a later `run` finds them.
//!
//! ```text
//! ROOT/plans/KEY/TIME/command.toml      the command that the plans are for
//!                     plan-0.toml …     one per executable and rank
//!                     lost              exists if the plans lost in a comparison; says why
//! ```
//!
//! `KEY` is the program's build-id, or `name-` and its file name if it has none; `TIME` sorts by age. A folder is
//! filled under another name and renamed, so that concurrent runs see only whole folders. Plans that can't be read (of
//! another version) are skipped and reported.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::on_disk::{read_text, unique, write_new};
use crate::{Error, Plan, Program};

/// Folder of nearpage's state for the user: `$XDG_STATE_HOME/nearpage`, or `~/.local/state/nearpage`; none without a
/// home.
pub fn state_folder() -> Option<PathBuf> {
    let absolute = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state =
        absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("nearpage"))
}

/// Prefix of the names of folders that are still being filled.
const UNFINISHED: &str = ".";

/// A folder of kept plans.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// The plans of one earlier command.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPlans {
    /// The plans, one per executable and rank.
    pub plans: Vec<Plan>,
    /// Folder of the plans.
    pub path: PathBuf,
    /// Arguments of the command that the plans were made with.
    pub arguments: Vec<String>,
    /// True if these are the requested arguments.
    pub same_arguments: bool,
}

#[derive(Deserialize)]
struct CommandFile {
    program: CommandTable,
}

/// As [`Program`], but keys of other versions are ignored.
#[derive(Deserialize)]
struct CommandTable {
    #[serde(default)]
    arguments: Vec<String>,
}

impl Store {
    /// The store in this folder, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The user's store, in [`state_folder`]; none without a home.
    pub fn of_user() -> Option<Self> {
        state_folder().map(Self::new)
    }

    /// Keeps the plans of a command and returns their folder.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn keep(&self, command: &Program, plans: &[Plan]) -> Result<PathBuf, Error> {
        let folder = self.folder(command);
        let name = unique();
        let unfinished = folder.join(format!("{UNFINISHED}{name}"));
        let finished = folder.join(name);
        let written = (|| {
            fs::create_dir_all(&unfinished)?;
            let mut text =
                String::from("# The command that the plans beside this file were made with.\n");
            command.write_toml("", &mut text);
            write_new(&unfinished.join("command.toml"), text.as_bytes())?;
            for (number, plan) in plans.iter().enumerate() {
                let file = unfinished.join(format!("plan-{number}.toml"));
                write_new(&file, plan.to_toml().as_bytes())?;
            }
            fs::rename(&unfinished, &finished)
        })();
        match written {
            Ok(()) => Ok(finished),
            Err(source) => {
                let _ = fs::remove_dir_all(&unfinished);
                Err(Error::Write {
                    path: finished,
                    source,
                })
            }
        }
    }

    /// The newest kept plans that fit a command and have not lost: plans of the same program with the same arguments,
    /// or else with other arguments if the plan is of that program itself (other arguments of a launcher or a script
    /// mean another program). Each unreadable plan is skipped with a warning.
    pub fn newest_fitting(&self, command: &Program) -> (Option<StoredPlans>, Vec<String>) {
        let mut warnings = Vec::new();
        let mut other = None;
        for path in self.newest_first(command) {
            if path.join("lost").exists() {
                continue;
            }
            let kept = match read_kept(&path, command) {
                Ok(kept) => kept,
                Err(error) => {
                    warnings.push(format!("a kept plan is passed over: {error}"));
                    continue;
                }
            };
            if kept.same_arguments {
                return (Some(kept), warnings);
            }
            let is_its_own = |plan: &Plan| plan.program.build_id == command.build_id;
            if other.is_none() && !command.build_id.is_empty() && kept.plans.iter().any(is_its_own)
            {
                other = Some(kept);
            }
        }
        (other, warnings)
    }

    /// Marks plans that lost in a comparison: they are not used again.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn mark_lost(&self, kept: &Path, why: &str) -> Result<(), Error> {
        let path = kept.join("lost");
        fs::write(&path, format!("{why}\n")).map_err(|source| Error::Write { path, source })
    }

    fn folder(&self, command: &Program) -> PathBuf {
        let is_hex = !command.build_id.is_empty()
            && command
                .build_id
                .bytes()
                .all(|byte| byte.is_ascii_hexdigit());
        let key = match is_hex {
            true => command.build_id.clone(),
            // The prefix keeps names such as `..` from leaving the folder.
            false => format!("name-{}", command.executable.replace(['/', '\0'], "_")),
        };
        self.root.join("plans").join(key)
    }

    fn newest_first(&self, command: &Program) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.folder(command)) else {
            return Vec::new();
        };
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_dir())
            .filter(|path| {
                path.file_name()
                    .is_some_and(|name| !name.to_string_lossy().starts_with(UNFINISHED))
            })
            .collect();
        paths.sort_unstable();
        paths.reverse();
        paths
    }
}

fn read_kept(path: &Path, command: &Program) -> Result<StoredPlans, Error> {
    let file = path.join("command.toml");
    let kept: CommandFile = toml::from_str(&read_text(&file)?).map_err(|error| Error::Syntax {
        origin: file.display().to_string(),
        line: 1,
        message: error.message().to_owned(),
    })?;
    let mut plans = Vec::new();
    loop {
        let file = path.join(format!("plan-{}.toml", plans.len()));
        if !file.exists() {
            break;
        }
        plans.push(Plan::read(&file)?);
    }
    let arguments = kept.program.arguments;
    let same_arguments = arguments == command.arguments;
    Ok(StoredPlans {
        plans,
        path: path.to_owned(),
        arguments,
        same_arguments,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(build_id: &str, arguments: &[&str]) -> Program {
        Program {
            executable: "cg".to_owned(),
            build_id: build_id.to_owned(),
            arguments: arguments
                .iter()
                .map(|&argument| argument.to_owned())
                .collect(),
            rank: None,
        }
    }

    fn plan(build_id: &str, policy: &str) -> Plan {
        Plan {
            program: program(build_id, &[]),
            policy: policy.to_owned(),
            machine: "local".to_owned(),
            page_bytes: 4096,
            threads: None,
            teams: Vec::new(),
            decisions: Vec::new(),
            predicted: None,
            online_migration: None,
            phases: Vec::new(),
        }
    }

    fn newest(store: &Store, build_id: &str, arguments: &[&str]) -> Option<(String, bool)> {
        let (kept, warnings) = store.newest_fitting(&program(build_id, arguments));
        assert_eq!(warnings, Vec::<String>::new());
        kept.map(|kept| (kept.plans[0].policy.clone(), kept.same_arguments))
    }

    #[test]
    fn the_newest_that_fits_is_found() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Store::new(folder.path().join("state"));
        assert_eq!(newest(&store, "ab", &["1"]), None);
        store
            .keep(&program("ab", &["1"]), &[plan("ab", "old")])
            .expect("kept");
        let new = store
            .keep(&program("ab", &["1"]), &[plan("ab", "new")])
            .expect("kept");
        let two = store
            .keep(&program("ab", &["2"]), &[plan("ab", "two")])
            .expect("kept");
        assert_eq!(newest(&store, "ab", &["1"]), Some(("new".to_owned(), true)));
        assert_eq!(
            newest(&store, "ab", &["3"]),
            Some(("two".to_owned(), false))
        );
        assert_eq!(newest(&store, "cd", &["1"]), None);
        store
            .mark_lost(&new, "placed 1.2 s, unplaced 1.1 s")
            .expect("marked");
        assert_eq!(newest(&store, "ab", &["1"]), Some(("old".to_owned(), true)));
        store.mark_lost(&two, "slower").expect("marked");
        assert_eq!(
            newest(&store, "ab", &["3"]),
            Some(("old".to_owned(), false))
        );
    }

    #[test]
    fn a_launchers_other_arguments_are_another_program() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Store::new(folder.path());
        store
            .keep(
                &program("ab", &["./cg"]),
                &[plan("cd", "rank 0"), plan("cd", "rank 1")],
            )
            .expect("kept");
        assert_eq!(
            newest(&store, "ab", &["./cg"]),
            Some(("rank 0".to_owned(), true))
        );
        assert_eq!(newest(&store, "ab", &["./lu"]), None);
        store
            .keep(&program("", &["./cg"]), &[plan("", "script")])
            .expect("kept");
        assert_eq!(newest(&store, "", &["./lu"]), None);
        assert_eq!(
            newest(&store, "", &["./cg"]),
            Some(("script".to_owned(), true))
        );
    }

    #[test]
    fn unreadable_plans_are_skipped_and_reported() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Store::new(folder.path());
        let command = program("ab", &[]);
        store.keep(&command, &[plan("ab", "good")]).expect("kept");
        let bad = store.keep(&command, &[plan("ab", "bad")]).expect("kept");
        fs::write(bad.join("plan-0.toml"), "version = 99\n").expect("written");
        fs::create_dir_all(bad.with_file_name(".unfinished")).expect("folder");
        let (kept, warnings) = store.newest_fitting(&command);
        assert_eq!(kept.expect("kept").plans[0].policy, "good");
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("version 99"), "{}", warnings[0]);
    }

    #[test]
    fn many_at_once_do_not_disturb_each_other() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Store::new(folder.path());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..8 {
                        store
                            .keep(&program("ab", &[]), &[plan("ab", "p"), plan("ab", "q")])
                            .expect("kept");
                        let (kept, warnings) = store.newest_fitting(&program("ab", &[]));
                        assert_eq!(kept.map(|kept| kept.plans.len()), Some(2));
                        assert_eq!(warnings.len(), 0);
                    }
                });
            }
        });
        assert_eq!(store.newest_first(&program("ab", &[])).len(), 32);
    }

    #[test]
    fn hostile_names_stay_inside() {
        let store = Store::new("root");
        let command = Program {
            executable: "../../x".to_owned(),
            ..program("..", &[])
        };
        assert_eq!(store.folder(&command), Path::new("root/plans/name-.._.._x"));
    }
}
