use std::os::unix::process::ExitStatusExt;

use nearpage_recording::{Event, SampleCounts, ThreadIndex};
use nearpage_sampler::{
    Calibration, RateChange, RecordCounts, SampledThread, SignalLosses, UndecodedCounts,
};

use super::*;

fn options(target: Target) -> ObserveOptions {
    ObserveOptions::new("r".into(), target)
}

fn choice(source: Source) -> SourceChoice {
    SourceChoice {
        source,
        line: "the line about it".to_owned(),
        fixed_period: false,
    }
}

/// Summary of two threads that were sampled for a second.
fn summary() -> Summary {
    let thread = |tid, samples| SampledThread {
        pid: 1,
        tid,
        counts: SampleCounts {
            samples,
            accesses: samples / 2,
            lost: 1,
            ..SampleCounts::default()
        },
        cpus: Vec::new(),
    };
    Summary {
        state: State::Ended(ExitStatus::default()),
        threads: vec![thread(1, 100), thread(2, 40)],
        undecoded: UndecodedCounts::default(),
        undecoded_places: Vec::new(),
        records: RecordCounts::default(),
        rates: vec![RateChange {
            time_ns: 0,
            rate_hz: 997.0,
        }],
        sample_ns: None,
        sampling_ns: None,
        signal_losses: SignalLosses::default(),
        notes: Vec::new(),
        counting_share: 1.0,
        begin_ns: 1_000,
        end_ns: 1_000_001_000,
    }
}

#[test]
fn metadata_says_how_the_command_was_sampled() {
    let machine = nearpage_machine::preset("opteron-4").unwrap();
    let mut options = options(Target::Command(vec!["cg".into()]));
    options.redact = true;
    options.thread_placement = ThreadPinning::Scatter;
    let program = ObservedProgram {
        command: vec!["cg".to_owned(), "-n".to_owned()],
        build_id: "c0ffee".to_owned(),
        ..ObservedProgram::default()
    };
    let mut sampling = Options::new(options.target.clone());
    sampling.rate_hz = Some(500.0);
    let made = |sampling: &Options, choice: &SourceChoice| {
        metadata::at_start(&options, sampling, choice, &program, &machine)
    };

    let clock = made(&sampling, &choice(Source::Clock));
    assert_eq!(clock.command, ["cg", "-n"]);
    assert_eq!(clock.build_id, "c0ffee");
    assert_eq!(clock.thread_placement, ThreadPinning::Scatter);
    assert!(clock.redacted && clock.attached.is_none());
    assert_eq!(clock.nodes, machine.node_ids());
    assert_eq!((clock.source, clock.rate_hz), (Source::Clock, 500.0));
    assert_eq!(clock.calibration, Calibration::default().to_string());

    // A PMU measures latency itself, so its capabilities take the place of a calibration.
    let by_period = SourceChoice {
        fixed_period: true,
        ..choice(Source::Pmu)
    };
    let pmu = made(&sampling, &by_period);
    assert_eq!((pmu.source, pmu.rate_hz), (Source::Pmu, 0.0));
    assert_eq!(pmu.calibration, "the line about it");
}

#[test]
fn metadata_names_what_was_attached_to() {
    let machine = nearpage_machine::preset("opteron-4").unwrap();
    let target = Target::Processes(vec![std::process::id()]);
    let mut notes = Vec::new();
    let program = ObservedProgram::of(&target, &mut notes).unwrap();
    assert!(notes.is_empty());
    assert!(program.library.is_none() && program.without_library.is_some());
    let sampling = Options::new(target.clone());
    let options = options(target);
    let choice = choice(Source::Clock);
    let metadata = metadata::at_start(&options, &sampling, &choice, &program, &machine);
    let attached = metadata.attached.unwrap().target;
    assert_eq!(attached, format!("process {}", std::process::id()));
    assert!(!metadata.command.is_empty(), "of this very process");
    assert_eq!(metadata.rate_hz, nearpage_sampler::UNMEASURED_RATE_HZ);
}

#[test]
fn targets_that_run_already_are_named() {
    let named = |target| {
        let program = ObservedProgram::of(&target, &mut Vec::new()).unwrap();
        program.attached_to.unwrap()
    };
    let several = Target::Processes(vec![u32::MAX, u32::MAX - 1]);
    assert_eq!(named(several), "processes 4294967295, 4294967294");
    assert_eq!(
        named(Target::Cgroup("/db.slice".into())),
        "cgroup /db.slice"
    );
    assert_eq!(named(Target::All), "all processes");
}

#[test]
fn commands_that_are_not_there_are_refused() {
    let of = |words: &[&str]| {
        let command = words.iter().map(Into::into).collect();
        ObservedProgram::of(&Target::Command(command), &mut Vec::new()).unwrap_err()
    };
    assert!(matches!(of(&[]), Error::NoCommand));
    assert!(matches!(
        of(&["/no/such/command"]),
        Error::Plan(nearpage_plan::Error::CommandNotFound { .. })
    ));
    let mut notes = Vec::new();
    let command = vec!["sh".into(), "-c".into(), "true".into()];
    let started = ObservedProgram::of(&Target::Command(command), &mut notes).unwrap();
    assert_eq!(started.command, ["sh", "-c", "true"]);
    assert_eq!(started.attached_to, None);
    assert_eq!(started.library.is_none(), !notes.is_empty());
}

#[test]
fn counts_are_those_of_all_threads_and_losses_the_larger_of_two() {
    let mut summary = summary();
    let counts = metadata::counts(&summary);
    assert_eq!((counts.samples, counts.accesses, counts.lost), (140, 70, 2));
    summary.records.lost = 30;
    summary.signal_losses.dropped = 4;
    assert_eq!(metadata::counts(&summary).lost, 34);
}

#[test]
fn rates_are_kept_only_where_the_rate_changed() {
    let mut summary = summary();
    assert!(metadata::rates(&summary).is_empty());
    summary.rates.push(RateChange {
        time_ns: 500,
        rate_hz: 400.0,
    });
    let rates = metadata::rates(&summary);
    assert_eq!(rates.len(), 2);
    assert_eq!((rates[1].time_ns, rates[1].rate_hz), (500, 400.0));
}

#[test]
fn a_recording_without_losses_has_no_notes_of_losses() {
    let summary = summary();
    let counts = metadata::counts(&summary);
    assert_eq!(
        warnings(&summary, &counts, &UnsampledPrograms::default()),
        Vec::<String>::new()
    );
}

#[test]
fn losses_are_reported_with_the_remedy() {
    let mut summary = summary();
    summary.records.lost = 3;
    summary.records.throttled = 1;
    (
        summary.records.unknown_sources,
        summary.records.unknown_source,
    ) = (2, 0x8000_0000_0000_0102);
    summary.counting_share = 0.5;
    summary.sample_ns = Some(2_500.0);
    summary.rates.push(RateChange {
        time_ns: 500,
        rate_hz: 400.0,
    });
    let said = warnings(
        &summary,
        &metadata::counts(&summary),
        &UnsampledPrograms::default(),
    );
    assert_eq!(
        said,
        [
            "3 records lost because buffers were full; a lower --rate loses fewer",
            "the kernel stopped sampling 1 time (kernel.perf_event_max_sample_rate or perf_cpu_time_max_percent); a \
             lower --rate avoids it",
            "2 samples with a data_src that this version of nearpage does not know, so what served them is unknown; the \
             last is 0x8000000000000102",
            "the hardware was counting 50 % of the time: its events took turns, or something else uses the PMU",
            "the rate went from 997 to 400 Hz in 1 step, to keep --max-overhead: a sample costs 2.5 µs",
        ]
    );
    // Samples that were dropped inside the program count among the lost samples, and are reported once.
    summary.records.lost = 0;
    summary.signal_losses.dropped = 2;
    let said = warnings(
        &summary,
        &metadata::counts(&summary),
        &UnsampledPrograms::default(),
    );
    assert_eq!(
        said[0],
        "2 samples lost because buffers were full; a lower --rate loses fewer"
    );
    assert!(!said.concat().contains("record"), "{said:?}");
}

#[test]
fn a_recording_without_samples_says_why() {
    let mut summary = summary();
    summary.threads.clear();
    let mut unsampled = UnsampledPrograms::default();
    let said = warnings(&summary, &SampleCounts::default(), &unsampled);
    assert_eq!(said.len(), 1);
    assert!(said[0].starts_with("no samples:"), "{said:?}");
    // The kernel reported the start of the program and nothing afterwards.
    unsampled.event(&Event::Name {
        time_ns: 1,
        pid: 7,
        thread: ThreadIndex(0),
        name: "ping".to_owned(),
        exec: true,
    });
    let said = warnings(&summary, &SampleCounts::default(), &unsampled);
    assert_eq!(said.len(), 1);
    assert!(said[0].starts_with("no samples of ping (7):"), "{said:?}");
    assert!(!said[0].contains("CPU time"), "{said:?}");
}

#[test]
fn the_sampler_is_told_what_was_asked_for() {
    let mut options = options(Target::All);
    options.max_overhead = Some(0.02);
    options.after = Duration::from_secs(2);
    options.duration = Some(Duration::from_secs(3));
    options.environment = vec![("NEARPAGE_PLAN".into(), "/plan".into())];
    let mut sampling = Options::new(Target::All);
    let one_node = nearpage_machine::Machine {
        nodes: nearpage_machine::preset("opteron-4").unwrap().nodes[..1].to_vec(),
        ..nearpage_machine::preset("opteron-4").unwrap()
    };
    add_timing_and_environment(&mut sampling, &options, &one_node);
    assert_eq!(sampling.max_overhead, Some(0.02));
    assert_eq!(sampling.after, Duration::from_secs(2));
    assert_eq!(sampling.duration, Some(Duration::from_secs(3)));
    assert_eq!(sampling.environment, options.environment);
    assert!(!sampling.page_nodes, "on one node there is nothing to ask");
    let four_nodes = nearpage_machine::preset("opteron-4").unwrap();
    add_timing_and_environment(&mut sampling, &options, &four_nodes);
    assert!(sampling.page_nodes);
}

#[test]
fn attached_processes_continue_and_the_command_succeeds() {
    let observed = |state, attached| Observed {
        source: Source::Clock,
        state,
        counts: SampleCounts::default(),
        rate_hz: 97.0,
        rates: Vec::new(),
        sampling: None,
        elapsed: Duration::ZERO,
        notes: Vec::new(),
        finished: Finished::Converted,
        attached,
    };
    let ended = |state, attached| shell_status(observed(state, attached).exit_status());
    let failed = State::Ended(ExitStatus::from_raw(3 << 8));
    assert_eq!(ended(failed, false), 3);
    assert_eq!(ended(State::Detached, false), 130);
    for state in [State::Detached, State::TargetEnded, State::Running] {
        assert_eq!(ended(state, true), 0);
    }
}
