//! Compiles the C programs, runs them under the library, and reads what they show.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;

use serde_json::Value;

use crate::library::library;
use crate::messages::{messages_file, messages_in};
use crate::plan_file::{Tables, bytes};

pub const PAGE: usize = 4096;

/// The compiled programs, and a folder of the test's own.
pub struct Programs {
    folder: tempfile::TempDir,
}

fn compile(arguments: &[&str], source: &str, to: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/place_programs")
        .join(source);
    let status = Command::new("gcc")
        .args(["-O1", "-g"])
        .args(arguments)
        .arg(source)
        .arg("-o")
        .arg(to)
        .status();
    assert!(status.expect("gcc").success());
}

fn compiled(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("place_programs")
        .join(name)
}

impl Programs {
    pub fn build() -> Self {
        static COMPILED: Once = Once::new();
        COMPILED.call_once(|| {
            std::fs::create_dir_all(compiled("")).unwrap();
            compile(&["-pthread", "-ldl"], "objects.c", &compiled("objects"));
            compile(&["-fopenmp"], "team.c", &compiled("team"));
            // The runtime is part of the program.
            let whole =
                "-Wl,--as-needed,-Bstatic,--whole-archive,-lgomp,--no-whole-archive,-Bdynamic";
            let linked_in = ["-fopenmp", whole];
            compile(&linked_in, "team.c", &compiled("team_linked_in"));
            let lazy = ["-fopenmp", "-Wl,-z,lazy"];
            compile(&lazy, "phases.c", &compiled("phases"));
            compile(&["-fopenmp"], "places.c", &compiled("places"));
            let now = ["-fopenmp", "-Wl,-z,relro,-z,now"];
            compile(&now, "phases.c", &compiled("phases_now"));
            let fixed = ["-fopenmp", "-fno-plt", "-fno-pie", "-no-pie"];
            compile(&fixed, "phases.c", &compiled("phases_fixed"));
            let second = compiled("libsecond_runtime.so");
            compile(&["-shared", "-fPIC"], "second_runtime.c", &second);
            let two = ["-fopenmp", "-DLLVM", "-Wl,-z,lazy,--no-as-needed"];
            let two = [&two[..], &[second.to_str().unwrap()]].concat();
            compile(&two, "phases.c", &compiled("phases_two"));
            compile(&["-shared", "-fPIC"], "library.c", &compiled("library.so"));
            // Without the library, as whoever starts a container is: what has a filter of its own hands it on to nobody.
            compile(&["-static"], "refuse.c", &compiled("refuse"));
            let only = "-DONLY=SYS_set_mempolicy";
            compile(&["-static", only], "refuse.c", &compiled("refuse_policy"));
            compile(&[], "under.c", &compiled("under"));
            compile(&["-pthread"], "heap.c", &compiled("heap"));
            compile(&["-pthread"], "rest.c", &compiled("rest"));
            // Another program, which does the same.
            compile(&["-pthread"], "rest.c", &compiled("other"));
        });
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// A compiled program.
    pub fn path(&self, name: &str) -> PathBuf {
        compiled(name)
    }

    /// A file of this test alone.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Virtual address and size of a symbol.
    pub fn symbol(&self, file: &str, name: &str) -> (u64, u64) {
        let output = Command::new("nm")
            .arg("-S")
            .arg(self.path(file))
            .output()
            .expect("nm");
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text
            .lines()
            .find(|line| line.ends_with(&format!(" {name}")))
            .expect(name);
        let number = |at| u64::from_str_radix(line.split(' ').nth(at).unwrap(), 16).unwrap();
        (number(0), number(1))
    }

    /// Runs `objects` with these arguments under the library with this plan.
    pub fn run(&self, plan: &Tables, arguments: &[&str]) -> Run {
        self.run_with(plan, arguments, &[], &[])
    }

    /// The same with a command before it and more environment.
    pub fn run_with(
        &self,
        plan: &Tables,
        arguments: &[&str],
        before: &[&str],
        environment: &[(&str, &str)],
    ) -> Run {
        self.run_program(plan, "objects", arguments, before, environment)
    }

    /// Runs another program under the plan.
    pub fn run_program(
        &self,
        plan: &Tables,
        program: &str,
        arguments: &[&str],
        before: &[&str],
        environment: &[(&str, &str)],
    ) -> Run {
        let (file, summary) = (self.scratch("plan"), self.scratch("summary"));
        std::fs::write(&file, bytes(&plan.encode())).unwrap();
        let _ = std::fs::remove_file(&summary);
        let (stdout, said) = self.command(&file, program, arguments, before, environment);
        let summary = std::fs::read_to_string(&summary).unwrap_or_default();
        let summaries = summary
            .lines()
            .map(|line| serde_json::from_str(line).expect(line))
            .filter(|summary: &serde_json::Value| summary["began"].is_null())
            .collect();
        Run {
            shown: stdout,
            said,
            summaries,
        }
    }
}

impl Programs {
    /// Runs with a plan file as it is; what was shown, and what was complained about.
    pub fn run_plan_file(&self, file: &Path, arguments: &[&str]) -> (String, String) {
        self.command(file, "objects", arguments, &[], &[])
    }

    /// Runs another of the programs; what it shows.
    pub fn run_other(&self, plan: &Tables, program: &str, environment: &[(&str, &str)]) -> String {
        let file = self.scratch("plan");
        std::fs::write(&file, bytes(&plan.encode())).unwrap();
        self.command(&file, program, &[], &[], environment).0
    }

    fn command(
        &self,
        plan: &Path,
        program: &str,
        arguments: &[&str],
        before: &[&str],
        environment: &[(&str, &str)],
    ) -> (String, String) {
        let program = self.path(program);
        let mut words: Vec<&str> = before.to_vec();
        words.push(program.to_str().unwrap());
        let messages = self.scratch("messages");
        std::fs::write(&messages, messages_file()).unwrap();
        let output = Command::new(words[0])
            .args(&words[1..])
            .args(arguments)
            .env("LD_PRELOAD", library())
            .env("NEARPAGE_PLAN", plan)
            .env("NEARPAGE_SUMMARY", self.scratch("summary"))
            .env("NEARPAGE_MESSAGES", &messages)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let (stdout, stderr) = (
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        );
        assert!(output.status.success(), "{:?}: {stderr}", output.status);
        assert_eq!(stderr, "", "the program's standard error is its own");
        (stdout, messages_in(&std::fs::read(&messages).unwrap()))
    }
}

/// What a program showed.
pub struct Run {
    pub shown: String,
    /// What the library had to say.
    pub said: String,
    pub summaries: Vec<Value>,
}

/// Where an object is.
pub struct Object {
    pub address: usize,
    pub size: usize,
}

impl Object {
    /// Addresses of the pages that it covers the larger part of.
    pub fn pages(&self) -> Range<usize> {
        let nearest = |address: usize| (address + PAGE / 2 - 1) / PAGE * PAGE;
        nearest(self.address)..nearest(self.address + self.size)
    }
}

impl Run {
    /// The words after `key` on the line that starts with it.
    pub fn words(&self, key: &str) -> Vec<&str> {
        let line = self
            .shown
            .lines()
            .find(|line| line.starts_with(&format!("{key} ")));
        line.unwrap_or_else(|| panic!("{key} in {}{}", self.shown, self.said))
            .split(' ')
            .skip(key.split(' ').count())
            .collect()
    }

    pub fn object(&self, name: &str) -> Object {
        let words = self.words(&format!("OBJECT {name}"));
        Object {
            address: words[0].parse().unwrap(),
            size: words[1].parse().unwrap(),
        }
    }

    fn file(&self, path: &str) -> impl Iterator<Item = &str> {
        let header = format!("FILE {path}");
        self.shown
            .lines()
            .skip_while(move |line| *line != header)
            .skip(1)
            .take_while(|line| !line.starts_with("FILE "))
    }

    /// The policy of every mapping, by its range.
    fn mappings(&self) -> BTreeMap<usize, (usize, &str)> {
        let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
        let policies: BTreeMap<usize, &str> = self
            .file("/proc/self/numa_maps")
            .filter_map(|line| Some((number(line.split(' ').next()?), line.split(' ').nth(1)?)))
            .collect();
        self.file("/proc/self/maps")
            .filter_map(|line| {
                let (start, end) = line.split(' ').next()?.split_once('-')?;
                Some((number(start), (number(end), *policies.get(&number(start))?)))
            })
            .collect()
    }

    pub fn policy(&self, address: usize) -> &str {
        policy(&self.mappings(), address)
    }

    /// The policies of an object's pages in order, with how many pages in a row have each.
    pub fn policies(&self, name: &str) -> Vec<(usize, &str)> {
        let mappings = self.mappings();
        in_a_row(
            self.object(name)
                .pages()
                .step_by(PAGE)
                .map(|page| policy(&mappings, page)),
        )
    }

    /// What the summary says of a rule.
    pub fn rule(&self, number: usize) -> Value {
        let summary = self
            .summaries
            .last()
            .unwrap_or_else(|| panic!("no summary; {}", self.said));
        summary["rules"][number].clone()
    }
}

fn policy<'a>(mappings: &BTreeMap<usize, (usize, &'a str)>, address: usize) -> &'a str {
    let (_, (end, policy)) = mappings.range(..=address).next_back().expect("a mapping");
    assert!(address < *end, "{address:#x} is not mapped");
    policy
}

/// Equal neighbours with their number.
pub fn in_a_row<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<(usize, &'a str)> {
    let mut rows: Vec<(usize, &str)> = Vec::new();
    for word in words {
        match rows.last_mut() {
            Some((count, last)) if *last == word => *count += 1,
            _ => rows.push((1, word)),
        }
    }
    rows
}
