//! The `nearpage` command: argument definitions and one file per subcommand, which connect the crates that do the work.

mod analysis;
mod arguments;
mod cells;
mod compare;
mod doctor;
mod downsample;
mod evaluate;
mod export;
mod generate;
mod history;
mod import;
mod job;
mod json;
mod lab;
mod live;
mod machine;
mod optimize;
mod plan;
mod progress;
mod record;
mod report;
mod run;
mod schema;
mod shell;
mod shown;
mod simulate;
mod stack;
mod sweep;
mod terminal;
mod top;
mod trace;
mod view;
mod whole_file;

use std::process::ExitCode;

use arguments::Command;
use nearpage_runner::signals;

/// A usage mistake that only shows after parsing: exit status 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        nearpage_screen::leave();
        eprintln!("nearpage: internal error: {panic}");
        eprintln!("nearpage: please report it, with the command line");
        std::process::exit(1);
    }));
    signals::restore_sigpipe();
    signals::survive_file_size_limit();
    stack::with_enough(what_was_typed)
}

fn what_was_typed() -> ExitCode {
    let result = arguments::parse().map_or_else(
        |said| print_parser_result(&said),
        |typed| run_command(typed.command),
    );
    match result {
        Ok(status) => status,
        Err(error) => {
            terminal::say(&in_one_line(&error));
            ExitCode::from(exit_status(&error))
        }
    }
}

fn exit_status(error: &anyhow::Error) -> u8 {
    let of_runner = error
        .downcast_ref()
        .map(nearpage_runner::Error::exit_status);
    // Whether a rule is wrong usage depends on the machine, so the function that parses the rule reports wrong usage.
    let of_plan = error
        .downcast_ref()
        .map(nearpage_plan::Error::exit_status)
        .filter(|&status| status != 2);
    match error.is::<Usage>() {
        true => 2,
        false => of_runner.or(of_plan).unwrap_or(1),
    }
}

/// Prints help, the version, or a parser error.
fn print_parser_result(said: &clap::Error) -> anyhow::Result<ExitCode> {
    terminal::print_parsed(said)?;
    Ok(ExitCode::from(if said.use_stderr() { 2 } else { 0 }))
}

fn run_command(command: Command) -> anyhow::Result<ExitCode> {
    use Command::{Lab, Live, Optimize, Record, Run, Top, Trace};
    if matches!(
        command,
        Record(_) | Trace(_) | Run(_) | Optimize(_) | Live(_) | Top(_) | Lab(_)
    ) {
        signals::survive_closed_pipes();
    }
    match command {
        Command::Record(arguments) => record::main(arguments),
        Command::Trace(arguments) => trace::main(arguments),
        Command::Report(arguments) => report::main(arguments),
        Command::View(arguments) => view::main(arguments),
        Command::Plan(arguments) => plan::main(arguments),
        Command::Run(arguments) => run::main(arguments),
        Command::Optimize(arguments) => optimize::main(arguments),
        Command::History(arguments) => history::main(arguments),
        Command::Import(arguments) => import::main(arguments),
        Command::Export(arguments) => export::main(arguments),
        Command::Merge(arguments) => job::merge_jobs(&arguments),
        Command::Downsample(arguments) => downsample::main(arguments),
        Command::Compare(arguments) => compare::main(arguments),
        Command::Evaluate(arguments) => evaluate::main(arguments),
        Command::Simulate(arguments) => simulate::main(arguments),
        Command::Sweep(arguments) => sweep::main(&arguments),
        Command::Live(arguments) => live::main(arguments),
        Command::Top(arguments) => top::main(arguments),
        Command::Lab(arguments) => lab::main(arguments),
        Command::Machine(arguments) => machine::main(arguments),
        Command::Doctor(arguments) => doctor::main(arguments),
        Command::Generate(arguments) => generate::main(arguments),
    }
}

/// An error with its causes in one line. A cause that the line contains already is not repeated.
fn in_one_line(error: &anyhow::Error) -> String {
    error
        .chain()
        .skip(1)
        .map(ToString::to_string)
        .fold(error.to_string(), |line, cause| {
            if line.contains(&cause) {
                line
            } else {
                format!("{line}: {cause}")
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_usage_exits_with_status_2() {
        let source = nearpage_runner::ReplicaSource::parse("text").unwrap_err();
        assert_eq!(exit_status(&source.into()), 2);
        assert_eq!(exit_status(&Usage("--set".to_owned()).into()), 2);
        assert_eq!(exit_status(&nearpage_runner::Error::Interrupted.into()), 1);
    }

    #[test]
    fn causes_are_printed_once() {
        let error = anyhow::anyhow!("no space")
            .context("log: no space")
            .context("the recording is incomplete");
        assert_eq!(
            in_one_line(&error),
            "the recording is incomplete: log: no space"
        );
    }
}
