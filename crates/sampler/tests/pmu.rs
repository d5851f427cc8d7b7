//! Follows a hardware sample from the kernel to an access without the hardware. A fake sysfs names the kernel's page
//! faults as loads and stores, as their samples have addresses, too.

use std::fs;
use std::io;
use std::path::Path;

use nearpage_recording::{Access, AccessKind, Event, Level, Source};
use nearpage_sampler::{
    Error, Options, PmuOptions, RequestedSource, Sampler, Sink, State, Summary,
};

#[derive(Default)]
struct Kept {
    accesses: Vec<Access>,
    maps: Vec<(u64, u64)>,
}

impl Sink for Kept {
    fn accesses(&mut self, accesses: &[Access]) -> io::Result<()> {
        self.accesses.extend(accesses);
        Ok(())
    }

    fn events(&mut self, events: &[Event]) -> io::Result<()> {
        self.maps
            .extend(events.iter().filter_map(|event| match event {
                Event::Map {
                    address, length, ..
                } => Some((*address, *length)),
                _ => None,
            }));
        Ok(())
    }
}

/// A `/sys` with this machine's CPUs and a PMU of type 1, the kernel's software events: 0 is the clock, 2 page faults,
/// 5 minor faults.
fn fake_sys(events: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let online = "devices/system/cpu/online";
    let devices = "bus/event_source/devices/cpu";
    let mut files = vec![
        (
            online.to_owned(),
            fs::read_to_string(Path::new("/sys").join(online)).unwrap(),
        ),
        (format!("{devices}/type"), "1".to_owned()),
        (format!("{devices}/format/event"), "config:0-7".to_owned()),
        (format!("{devices}/format/ldlat"), "config1:0-15".to_owned()),
    ];
    for (name, terms) in events {
        files.push((format!("{devices}/events/{name}"), (*terms).to_owned()));
    }
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn options(sys: &Path, source: RequestedSource, min_latency_cycles: u32) -> Options {
    let mut options = Options::new(["sh", "-c", ": $(:)"].map(Into::into).to_vec());
    options.sys_root = sys.to_owned();
    options.source = source;
    // The kernel writes one identifier into the samples of all software events that a fault triggers with the same
    // count, so first touches would be mistaken for these events.
    options.fault_period = 0;
    options.pmu = PmuOptions {
        min_latency_cycles: Some(min_latency_cycles),
        period: Some(1),
        ..PmuOptions::default()
    };
    options
}

fn record(options: &Options) -> (Kept, Summary, nearpage_sampler::SourceChoice) {
    let mut kept = Kept::default();
    let sampler = Sampler::start(options).unwrap();
    let choice = sampler.choice().clone();
    let summary = sampler.run(&mut kept).unwrap();
    assert_eq!(
        summary.state,
        State::Ended(std::process::ExitStatus::default())
    );
    (kept, summary, choice)
}

#[test]
fn samples_of_all_events_become_accesses_of_their_threads() {
    let events = [
        ("mem-loads", "event=2,ldlat=3"),
        ("mem-loads-aux", "event=0"),
        ("mem-stores", "event=5"),
    ];
    let sys = fake_sys(&events);
    let (kept, summary, choice) = record(&options(sys.path(), RequestedSource::Auto, 0));
    assert_eq!(choice.source, Source::Pmu);
    assert_eq!(
        choice.line,
        "source pmu: cpu/mem-loads,ldlat=3/, cpu/mem-stores/"
    );
    assert!(choice.fixed_period);
    let loads = kept.accesses.iter().filter(|a| a.kind == AccessKind::Load);
    let (loads, all) = (loads.count(), kept.accesses.len());
    // A shell starts with dozens of faults, nearly all of them minor.
    assert!(loads >= 20 && all - loads >= 20, "{loads} of {all}");
    let threads: std::collections::BTreeSet<_> = kept.accesses.iter().map(|a| a.thread.0).collect();
    assert!(threads.len() >= 2, "the subshell's too: {threads:?}");
    for access in &kept.accesses {
        assert_eq!((access.level, access.weight), (Level::Unknown, 1.0));
        assert!(access.address != 0 && access.instruction != 0);
    }
    let counts = summary.threads.iter().map(|thread| thread.counts);
    assert_eq!(
        counts.map(|counts| counts.accesses).sum::<u64>(),
        all as u64
    );
    // The kernel's software events are not multiplexed.
    assert!(summary.counting_share > 0.9, "{}", summary.counting_share);
    assert_eq!(summary.records.malformed, 0);
    let mapped = |access: &&Access| {
        let within = |(begin, length): &(u64, u64)| access.address.wrapping_sub(*begin) < *length;
        kept.maps.iter().any(within)
    };
    let known = kept.accesses.iter().filter(mapped).count();
    assert!(2 * known > all, "{known} of {all} in a mapping");
}

#[test]
fn quick_loads_are_left_out_and_stores_are_not() {
    let sys = fake_sys(&[("mem-loads", "event=2"), ("mem-stores", "event=5")]);
    let (kept, summary, _) = record(&options(sys.path(), RequestedSource::Pmu, 30));
    assert!(!kept.accesses.is_empty());
    assert!(kept.accesses.iter().all(|a| a.kind == AccessKind::Store));
    let compute: u64 = summary.threads.iter().map(|t| t.counts.compute).sum();
    assert!(compute >= 20, "{compute}");
}

#[test]
fn an_event_that_is_listed_and_refused_is_no_reason_to_fail() {
    // The kernel has no such software event.
    let sys = fake_sys(&[("mem-loads", "event=200")]);
    let (_, summary, choice) = record(&options(sys.path(), RequestedSource::Auto, 30));
    assert_eq!(
        (choice.source, summary.counting_share),
        (Source::Clock, 1.0)
    );
    assert_eq!(
        choice.line,
        "source clock, not pmu: cpu/mem-loads,ldlat=30/ is listed and refused (ENOENT): \
         hypervisors do so that pass on a part of the PMU"
    );
    let refused = Sampler::start(&options(sys.path(), RequestedSource::Pmu, 30));
    let Err(Error::NoSource(line)) = refused.map(drop) else {
        panic!()
    };
    assert!(line.starts_with("source pmu: cpu/mem-loads,ldlat=30/ is listed"));
}
