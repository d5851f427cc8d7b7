//! `nearpage record`: run a command and record it.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nearpage_machine::several;
use nearpage_recording::Finished;
use nearpage_runner::{
    ObserveOptions, Observed, Placing, SmallAllocations, default_output, observe,
};
use nearpage_sampler::{
    DEFAULT_MAX_OVERHEAD, PmuEvent, PmuOptions, SourceWish, State, Target, Wanted,
};

use crate::Usage;
use crate::arguments::{Record, SampledEvent, Source, Threads};
use crate::{terminal, trace};

pub fn main(arguments: Record) -> anyhow::Result<ExitCode> {
    let pmu = pmu_options(&arguments)?;
    let wanted = wanted(&arguments)?;
    let target = arguments.target();
    let output = arguments
        .output
        .clone()
        .unwrap_or_else(|| default_output(&target));
    let source = match arguments.source {
        // The clock knows of no TLB.
        Source::Auto if pmu.event == PmuEvent::DtlbMiss => SourceWish::Pmu,
        Source::Auto => SourceWish::Auto,
        Source::Pmu => SourceWish::Pmu,
        Source::Clock => SourceWish::Clock,
        Source::Signal => SourceWish::Signal,
        Source::Full if !matches!(target, Target::Command(_)) => {
            let wording =
                "--source full runs a command in emulation: it can't attach to what is running";
            return Err(Usage(wording.to_owned()).into());
        }
        Source::Full => return trace::main(&arguments, &output),
    };
    arguments.refuse_tracing()?;
    let pins = match arguments.threads {
        Threads::None => None,
        threads => Some(Placing::pins_only(threads.placement())?),
    };
    let options = ObserveOptions {
        output,
        replace: arguments.force,
        source,
        pmu,
        wanted,
        rate_hz: arguments.rate,
        max_overhead: match arguments.max_overhead {
            Some(percent) => Some(percent / 100.0),
            // Whoever asks for a rate or a period has it.
            None if arguments.rate.is_some() || arguments.period.is_some() => None,
            None => Some(DEFAULT_MAX_OVERHEAD),
        },
        after: Duration::from_secs_f64(arguments.after.unwrap_or(0.0)),
        duration: arguments.duration.map(Duration::from_secs_f64),
        small_allocations: small_allocations(&arguments),
        redact: arguments.redact,
        thread_placement: arguments.threads.pinning(),
        environment: pins.as_ref().map(Placing::environment).unwrap_or_default(),
        target,
    };
    let observed = observe(&options, &terminal::say)?;
    if !arguments.quiet {
        say(&observed, &options.output);
    }
    Ok(ExitCode::from(observed.exit_status()))
}

/// What to sample with a PMU, which only some sources have.
fn pmu_options(arguments: &Record) -> Result<PmuOptions, Usage> {
    let pmu = PmuOptions {
        min_latency_cycles: arguments.min_latency,
        period: arguments.period,
        event: match arguments.event {
            SampledEvent::Access => PmuEvent::Access,
            SampledEvent::DtlbMiss => PmuEvent::DtlbMiss,
        },
    };
    let without_pmu = [Source::Clock, Source::Signal, Source::Full];
    if without_pmu.contains(&arguments.source) && pmu != PmuOptions::default() {
        let wording = "--min-latency, --period and --event are for hardware samples: not with --source clock, signal or full";
        return Err(Usage(wording.to_owned()));
    }
    Ok(pmu)
}

/// Which accesses to keep, of those that are sampled.
fn wanted(arguments: &Record) -> Result<Wanted, Usage> {
    let wanted = Wanted {
        ranges: arguments.range.clone(),
        objects: arguments.object.clone(),
    };
    if arguments.source == Source::Full && !wanted.all() {
        let wording = "--range and --object are for samples: --source full keeps every miss";
        return Err(Usage(wording.to_owned()));
    }
    Ok(wanted)
}

/// Which small allocations to log.
pub fn small_allocations(arguments: &Record) -> SmallAllocations {
    match arguments.all_allocations {
        true => SmallAllocations::All,
        false => SmallAllocations::Sampled,
    }
}

/// What was recorded, in a few lines on standard error, where it can't mix with the command's
/// output.
fn say(observed: &Observed, output: &Path) {
    for note in &observed.notes {
        terminal::say(note);
    }
    let counts = &observed.counts;
    let of_samples = |count: u64| 100.0 * count as f64 / counts.samples.max(1) as f64;
    let pace = match observed.rate_hz {
        0.0 => "by period".to_owned(),
        rate_hz => format!("at {rate_hz} Hz"),
    };
    terminal::say(&format!(
        "recorded {:.1} s {pace}, {} in user mode: {} ({:.0} %), {} compute, {} undecoded; {} lost",
        observed.elapsed.as_secs_f64(),
        several(counts.samples, "sample"),
        several(counts.accesses, "access"),
        of_samples(counts.accesses),
        counts.compute,
        counts.undecoded,
        counts.lost
    ));
    match observed.state {
        State::Ended(status) if status >= 128 => {
            terminal::say(&format!("the command was ended by signal {}", status - 128));
        }
        State::Running | State::Detached if observed.attached => {}
        State::Running | State::Detached => terminal::say("interrupted; the command goes on"),
        State::TargetEnded => terminal::say("what was observed has ended"),
        State::Ended(_) => {}
    }
    let later = match observed.finished {
        Finished::Converted => "",
        Finished::Deferred => " (its tables are made when it is first opened)",
    };
    terminal::say(&format!("the recording is in {}{later}", output.display()));
    terminal::say(&format!(
        "next: nearpage report {}",
        quoted(&output.to_string_lossy())
    ));
}

/// As it can be pasted into a shell.
pub fn quoted(text: &str) -> String {
    let plain = |character: char| character.is_alphanumeric() || "/._-+:,@".contains(character);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn names_are_quoted_where_a_shell_needs_it() {
        assert_eq!(quoted("cg.nearpage"), "cg.nearpage");
        assert_eq!(quoted("my run"), "'my run'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
