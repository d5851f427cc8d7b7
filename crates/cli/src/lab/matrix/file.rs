//! The file of `nearpage lab matrix`: commands, machines, settings, and the runs that they make.

use std::path::PathBuf;

use serde::Deserialize;

use super::cell::Spec;

/// Default memory of each node.
const MEMORY_MIB: u32 = 512;
/// Limit of the number of runs that a file may make.
const RUNS_MAX: usize = 10_000;

/// Content of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixFile {
    /// Seeds of the emulator's random numbers. Each seed makes a run.
    #[serde(default = "one_seed")]
    seeds: Vec<u32>,
    /// Memory of each node.
    #[serde(default = "memory")]
    memory_mib: u32,
    /// Kernel to boot, as `--kernel` takes it.
    pub kernel: Option<PathBuf>,
    /// Time limit of a run on this host, without the boot.
    pub time_limit_s: Option<f64>,
    /// Processor time limit of the boot.
    pub boot_limit_s: Option<f64>,
    #[serde(rename = "command")]
    commands: Vec<Command>,
    #[serde(rename = "machine")]
    machines: Vec<Machine>,
    #[serde(rename = "setting")]
    settings: Vec<Setting>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    name: String,
    /// The command and its arguments.
    command: Vec<String>,
    /// Machines on which the command runs; all machines by default.
    machines: Option<Vec<String>>,
    /// Word in the output after which the seconds stand; by default, the seconds are the guest time of the whole
    /// command.
    seconds_after: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Machine {
    name: String,
    /// Machine as `--machine` takes it; the name by default.
    machine: Option<String>,
    /// Number of CPUs, as `--cpus` takes it.
    cpus: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    name: String,
    /// Line of shell that the guest runs before the command. Its time does not count.
    before: Option<String>,
    /// Words that precede the command. `{command}` and `{machine}` stand for the names.
    #[serde(default)]
    prefix: Vec<String>,
    /// Machines on which the setting applies; all machines by default.
    machines: Option<Vec<String>>,
}

fn one_seed() -> Vec<u32> {
    vec![1]
}

fn memory() -> u32 {
    MEMORY_MIB
}

impl MatrixFile {
    /// # Errors
    /// A mistake in the file, with the number of its line if it is known.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = 1 + text.as_bytes()[..before]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count();
            format!("line {line}: {}", error.message().replace('\n', ", "))
        })?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        let names = [
            (
                "command",
                self.commands
                    .iter()
                    .map(|command| &command.name)
                    .collect::<Vec<_>>(),
            ),
            (
                "machine",
                self.machines.iter().map(|machine| &machine.name).collect(),
            ),
            (
                "setting",
                self.settings.iter().map(|setting| &setting.name).collect(),
            ),
        ];
        for (what, names) in &names {
            if names.is_empty() {
                return Err(format!("no [[{what}]]"));
            }
            for (number, name) in names.iter().enumerate() {
                let plain =
                    |letter: char| letter.is_ascii_alphanumeric() || " ._+=-".contains(letter);
                if name.is_empty()
                    || name.len() > 60
                    || name.starts_with('.')
                    || !name.chars().all(plain)
                {
                    return Err(format!(
                        "{what} {name:?}: expected a name of letters, digits, spaces and . _ + = -"
                    ));
                }
                if names[..number].contains(name) {
                    return Err(format!("two {what}s have the name {name:?}"));
                }
            }
        }
        if let Some(command) = self
            .commands
            .iter()
            .find(|command| command.command.is_empty())
        {
            return Err(format!("command {:?}: no words", command.name));
        }
        let of_commands = self
            .commands
            .iter()
            .filter_map(|command| command.machines.as_ref());
        let of_settings = self
            .settings
            .iter()
            .filter_map(|setting| setting.machines.as_ref());
        let known = |name: &&String| self.machines.iter().any(|machine| machine.name == **name);
        if let Some(name) = of_commands
            .chain(of_settings)
            .flatten()
            .find(|name| !known(name))
        {
            return Err(format!("machines: no machine has the name {name:?}"));
        }
        for limit in [self.time_limit_s, self.boot_limit_s].into_iter().flatten() {
            if !(limit > 0.0 && limit <= 1e9) {
                return Err(format!("{limit}: expected a time limit in seconds"));
            }
        }
        let most = [
            self.seeds.len(),
            self.commands.len(),
            self.machines.len(),
            self.settings.len(),
        ];
        let most = most
            .iter()
            .fold(1_usize, |all, count| all.saturating_mul(*count));
        if most > RUNS_MAX {
            return Err(format!("{most} runs are more than {RUNS_MAX}"));
        }
        Ok(())
    }

    /// All runs, ordered by seed, so that each row of the table has a result soon.
    pub fn runs(&self) -> Vec<Spec> {
        let mut runs = Vec::new();
        for seed in &self.seeds {
            for command in &self.commands {
                for machine in &self.machines {
                    let on = |machines: &Option<Vec<String>>| {
                        machines
                            .as_ref()
                            .is_none_or(|names| names.contains(&machine.name))
                    };
                    if !on(&command.machines) {
                        continue;
                    }
                    let settings = self.settings.iter().filter(|setting| on(&setting.machines));
                    runs.extend(
                        settings.map(|setting| self.spec(*seed, command, machine, setting)),
                    );
                }
            }
        }
        runs
    }

    fn spec(&self, seed: u32, command: &Command, machine: &Machine, setting: &Setting) -> Spec {
        let filled = |text: &String| {
            text.replace("{command}", &command.name)
                .replace("{machine}", &machine.name)
        };
        Spec {
            command: command.name.clone(),
            machine: machine.name.clone(),
            setting: setting.name.clone(),
            seed,
            words: setting
                .prefix
                .iter()
                .map(filled)
                .chain(command.command.iter().cloned())
                .collect(),
            before: setting.before.as_ref().map(filled),
            modelled: machine
                .machine
                .clone()
                .unwrap_or_else(|| machine.name.clone()),
            cpus: machine.cpus,
            memory_mib: self.memory_mib,
            kernel: self.kernel.clone(),
            seconds_after: command.seconds_after.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        seeds = [1, 2]
        [[command]]
        name = "cg"
        command = ["./cg", "{machine}"]
        seconds_after = "compute"
        [[machine]]
        name = "a"
        machine = "carrefour-a"
        cpus = 4
        [[machine]]
        name = "epyc-8"
        [[setting]]
        name = "first touch"
        before = "echo 0 >/proc/sys/kernel/numa_balancing"
        [[setting]]
        name = "plan"
        prefix = ["nearpage", "run", "--plan", "{command}-{machine}.toml", "--"]
        machines = ["a"]
    "#;

    #[test]
    fn every_seed_runs_every_setting_of_a_machine() {
        let runs = MatrixFile::parse(FILE).unwrap().runs();
        let names: Vec<_> = runs
            .iter()
            .map(|run| (run.seed, &*run.machine, &*run.setting))
            .collect();
        let once = |seed| {
            [
                (seed, "a", "first touch"),
                (seed, "a", "plan"),
                (seed, "epyc-8", "first touch"),
            ]
        };
        assert_eq!(names, [once(1), once(2)].concat());
        // Placeholders in the command's own words are not replaced.
        assert_eq!(
            runs[1].words,
            [
                "nearpage",
                "run",
                "--plan",
                "cg-a.toml",
                "--",
                "./cg",
                "{machine}"
            ]
        );
        assert_eq!((&*runs[1].modelled, runs[1].cpus), ("carrefour-a", Some(4)));
        assert_eq!(
            (&*runs[2].modelled, runs[2].memory_mib),
            ("epyc-8", MEMORY_MIB)
        );
    }

    #[test]
    fn runs_name_the_kernel_that_they_boot() {
        let kernel = |text: &str| MatrixFile::parse(text).unwrap().runs().remove(0).kernel;
        assert_eq!(kernel(FILE), None);
        let with_kernel = format!("kernel = \"vmlinuz\"{FILE}");
        assert_eq!(kernel(&with_kernel), Some(PathBuf::from("vmlinuz")));
    }

    #[test]
    fn faults_of_a_file_are_named() {
        for (from, to, message) in [
            ("cpus = 4", "cpu = 4", "line 10: unknown field `cpu`"),
            ("\"plan\"", "\"first touch\"", "two settings have the name"),
            ("\"plan\"", "\"../plan\"", "expected a name of"),
            (
                "machines = [\"a\"]",
                "machines = [\"b\"]",
                "no machine has the name \"b\"",
            ),
            ("[\"./cg\", \"{machine}\"]", "[]", "\"cg\": no words"),
            (
                "seeds = [1, 2]",
                "time_limit_s = -1.0",
                "expected a time limit",
            ),
        ] {
            let error = MatrixFile::parse(&FILE.replace(from, to)).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
        assert!(MatrixFile::parse("").is_err());
    }
}
