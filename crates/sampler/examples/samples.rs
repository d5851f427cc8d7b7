//! Records a command and prints a summary of its samples, for work on the sampler itself: `samples [--rate HZ] [--top
//! N] [--after S] [--for S] [--fault-period N] [--max-overhead PERCENT] COMMAND…`. With `NEARPAGE_PRELOAD_LIBRARY`
//! set, the preload library takes the samples: the signal source.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use nearpage_recording::{Access, Event, SampleCounts};
use nearpage_sampler::{Options, RequestedSource, Sampler, Sink, State, shell_status};

#[derive(Default)]
struct Tally {
    accesses: usize,
    cost_ns: f64,
    megabytes: HashMap<u64, f64>,
    instructions: HashMap<(u64, i8), f64>,
    events: HashMap<&'static str, usize>,
    dump: Option<BufWriter<File>>,
    times: Option<BufWriter<File>>,
    maps: Vec<(u64, u64, u64, String)>,
}

impl Sink for Tally {
    fn accesses(&mut self, accesses: &[Access]) -> io::Result<()> {
        for access in accesses {
            self.accesses += 1;
            self.cost_ns += f64::from(access.cost_ns);
            let weight = f64::from(access.weight);
            *self.megabytes.entry(access.address >> 20).or_default() += weight;
            *self
                .instructions
                .entry((access.instruction, access.skid_bytes))
                .or_default() += weight;
            if let Some(dump) = &mut self.dump {
                writeln!(dump, "{} {weight}", access.address)?;
            }
            if let Some(times) = &mut self.times {
                writeln!(times, "{}", access.time_ns)?;
            }
        }
        Ok(())
    }

    fn events(&mut self, events: &[Event]) -> io::Result<()> {
        for event in events {
            let kind = match event {
                Event::Map {
                    address,
                    length,
                    file_offset,
                    path,
                    ..
                } => {
                    self.maps
                        .push((*address, *length, *file_offset, path.clone()));
                    "map"
                }
                Event::Unmap { .. } => "unmap",
                Event::Name { .. } => "name",
                Event::Fork { .. } => "fork",
                Event::Exit { .. } => "exit",
                Event::FirstTouch { .. } => "first touch",
                Event::Counts { .. } => "counts",
                Event::Lost { .. } => "lost",
            };
            *self.events.entry(kind).or_default() += 1;
        }
        Ok(())
    }
}

/// Options from the command line and the environment, and the number of places to print.
fn options(folder: &Path) -> (Options, usize) {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut option =
        |name: &str, default: f64| match arguments.iter().position(|argument| argument == name) {
            Some(at) => {
                let value = arguments.remove(at + 1);
                arguments.remove(at);
                value
                    .to_str()
                    .and_then(|text| text.parse().ok())
                    .expect("a number")
            }
            None => default,
        };
    let rate_hz = option("--rate", 0.0);
    let top = option("--top", 12.0) as usize;
    let after = option("--after", 0.0);
    let duration = option("--for", 0.0);
    let fault_period = option(
        "--fault-period",
        nearpage_sampler::DEFAULT_FAULT_PERIOD as f64,
    ) as u64;
    let max_overhead = option("--max-overhead", 0.0);
    let mut options = Options::new(arguments);
    options.max_overhead = (max_overhead > 0.0).then_some(max_overhead / 100.0);
    if let Some(library) = std::env::var_os("NEARPAGE_PRELOAD_LIBRARY") {
        std::fs::create_dir(folder).expect("a new folder");
        options.source = RequestedSource::Signal;
        options.preload = Ok(());
        options.samples_folder = folder.to_owned();
        options.environment.push(("LD_PRELOAD".into(), library));
    }
    options.rate_hz = (rate_hz > 0.0).then_some(rate_hz);
    options.fault_period = fault_period;
    options.after = Duration::from_secs_f64(after);
    options.duration = (duration > 0.0).then(|| Duration::from_secs_f64(duration));
    (options, top)
}

fn main() {
    let folder = std::env::temp_dir().join(format!("samples-{}", std::process::id()));
    let (options, top) = options(&folder);
    let file = |variable| {
        std::env::var_os(variable)
            .map(|path| BufWriter::new(File::create(path).expect("a new file")))
    };
    let mut tally = Tally {
        // Each address with its weight, one per line.
        dump: file("SAMPLES_DUMP"),
        // Time of each access, CLOCK_MONOTONIC.
        times: file("SAMPLES_TIMES"),
        ..Tally::default()
    };
    // CPU time of rounds with samples only: watching an idle program and closing the events cost the same at any rate.
    let mut recorder_ns = 0.0;
    let result = Sampler::start(&options).and_then(|mut sampler| {
        eprintln!(
            "calibration: {}; rate: {:.0} Hz; notes: {:?}",
            sampler.calibration(),
            1e9 / sampler.period_ns() as f64,
            sampler.notes()
        );
        let mut taken = 0;
        let state = loop {
            let began_ns = own_time_ns();
            let state = sampler.drain(Duration::from_millis(200), &mut tally)?;
            let counts = sampler.threads().iter().map(|thread| thread.counts);
            let now = counts.map(|counts| counts.samples + counts.kernel).sum();
            if std::mem::replace(&mut taken, now) != now {
                recorder_ns += own_time_ns() - began_ns;
            }
            if state != State::Running {
                break state;
            }
        };
        sampler.finish(state, &mut tally)
    });
    let _ = std::fs::remove_dir_all(&folder);
    let summary = match result {
        Ok(summary) => summary,
        Err(error) => {
            eprintln!("samples: {error}");
            std::process::exit(1);
        }
    };
    // `exit` drops no values, so buffers are flushed here.
    for file in [&mut tally.dump, &mut tally.times].into_iter().flatten() {
        file.flush().expect("room for what was sampled");
    }
    print(&tally, &summary, top);
    eprintln!("recorder: {:.3} ms of CPU time", recorder_ns / 1e6);
    if let State::Ended(status) = summary.state {
        std::process::exit(shell_status(status).into());
    }
}

fn own_time_ns() -> f64 {
    // SAFETY: zero is a valid timespec, which the call fills in.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time);
        time
    };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn print(tally: &Tally, summary: &nearpage_sampler::Summary, top: usize) {
    let mut total = SampleCounts::default();
    for thread in &summary.threads {
        total.samples += thread.counts.samples;
        total.accesses += thread.counts.accesses;
        total.compute += thread.counts.compute;
        total.undecoded += thread.counts.undecoded;
        total.kernel += thread.counts.kernel;
        total.lost += thread.counts.lost;
    }
    eprintln!(
        "{:?} after {:.3} s",
        summary.state,
        (summary.end_ns - summary.begin_ns) as f64 / 1e9
    );
    eprintln!("threads {}, {total:?}", summary.threads.len());
    eprintln!("{:?}\n{:?}", summary.undecoded, summary.records);
    if let Some(sample_ns) = summary.sample_ns {
        eprintln!("sample: {sample_ns:.0} ns");
    }
    eprintln!(
        "events {:?}, {} rows, {:.3} s of cost",
        tally.events,
        tally.accesses,
        tally.cost_ns / 1e9
    );
    let place = |address: u64| {
        let map = tally
            .maps
            .iter()
            .rev()
            .find(|map| (map.0..map.0 + map.1).contains(&address));
        map.map_or(String::new(), |map| {
            format!("{}+{:#x}", map.3, address - map.0 + map.2)
        })
    };
    for undecoded in summary.undecoded_places.iter().take(top) {
        eprintln!(
            "  {:10} undecoded at {:#x} {}",
            undecoded.samples,
            undecoded.sampled,
            place(undecoded.sampled)
        );
    }
    for ((instruction, distance), weight) in largest(&tally.instructions, top) {
        eprintln!(
            "  {weight:10.1} at {instruction:#x} (sample {distance:+}) {}",
            place(instruction)
        );
    }
    for (megabyte, weight) in largest(&tally.megabytes, top) {
        eprintln!(
            "  {weight:10.1} in {:#x}… {}",
            megabyte << 20,
            place(megabyte << 20)
        );
    }
}

fn largest<K: Copy + Ord>(table: &HashMap<K, f64>, top: usize) -> Vec<(K, f64)> {
    let mut rows: Vec<_> = table.iter().map(|(key, weight)| (*key, *weight)).collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    rows.truncate(top);
    rows
}
