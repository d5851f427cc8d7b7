//! Runs a script in a multi-node Linux guest by hand.

use std::process::ExitCode;
use std::time::Duration;

use nearpage_tests::{Case, Guest};

const USAGE: &str = "\
usage: guest [--nodes N] [--cpus-per-node N] [--mib-per-node N] [--limit SECONDS] -- COMMAND…

Runs a shell command in a Linux guest with several memory nodes (4 of 1 CPU and 512 MiB),
over this machine's files, which it can read but not write. It can write to its current
folder, which goes at the end, and to $TMPDIR. Run tests/setup first.";

fn main() -> ExitCode {
    match run() {
        Ok(status) => ExitCode::from(status),
        Err(message) => {
            eprintln!("guest: {message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<u8, String> {
    let mut arguments = std::env::args().skip(1);
    let (mut nodes, mut cpus, mut mib, mut seconds) = (4, 1, 512, 300);
    while let Some(option) = arguments.next() {
        let number = match option.as_str() {
            "--nodes" => &mut nodes,
            "--cpus-per-node" => &mut cpus,
            "--mib-per-node" => &mut mib,
            "--limit" => &mut seconds,
            "--" => break,
            _ => return Err(USAGE.into()),
        };
        let value = arguments.next().and_then(|value| value.parse().ok());
        *number = value
            .filter(|&value: &u32| value > 0)
            .ok_or_else(|| format!("{option} takes a number"))?;
    }
    let script = arguments.collect::<Vec<_>>().join(" ");
    if script.is_empty() {
        return Err(USAGE.into());
    }
    let output = Guest::ring(nodes as usize, cpus, mib)
        .run_in(
            &Case::new("by-hand"),
            &script,
            Duration::from_secs(seconds.into()),
        )
        .map_err(|error| error.to_string())?;
    print!("{}", output.stdout);
    eprint!("{}", output.stderr);
    eprintln!(
        "guest: up after {:.1} s, script {:.1} s",
        output.boot.as_secs_f64(),
        output.script.as_secs_f64()
    );
    Ok(output.status.clamp(0, 255) as u8)
}
