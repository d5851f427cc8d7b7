//! The cost of a sample on this machine, kept for later runs. A measurement takes a tenth of a second, and a busy machine
//! makes samples look more expensive than they are. So the first few runs measure, and the lowest cost counts.
//!
//! The file is `$XDG_CACHE_HOME/nearpage/samples.json` (`~/.cache/nearpage`). Kernel, processors and boot time identify a
//! machine, as the kernel's parameters change the cost of an interrupt. Entries that cannot be read or are not
//! plausible are measured again.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nearpage_files::{own_user, read_text, replace};
use nearpage_sampler::{Calibration, Error, RequestedSource, SkidSide, calibrate_for, clock_opens};
use serde::{Deserialize, Serialize};

/// In version 1, the cost of a sample may be a fiftieth of what it is.
const VERSION: u32 = 2;
const BYTES_MAX: u64 = 64 << 10;
/// Limit of the machines that share a home directory.
const MACHINES_MAX: usize = 64;
/// Number of runs that measure.
const MEASUREMENTS: u32 = 3;
const DAYS_MAX: u64 = 30;

/// Cost and skid of samples on this machine, from the file or a measurement.
pub(crate) fn calibration(source: RequestedSource) -> Result<Calibration, Error> {
    let measure = || calibrate_for(source);
    // Without the clock source, the signal source is measured.
    let by_signals = source == RequestedSource::Signal || !clock_opens();
    let Some((file, machine)) = file().zip(Machine::here(Path::new("/proc"), by_signals)) else {
        return measure();
    };
    remembered(&file, &machine, now_days(), measure)
}

fn remembered(
    file: &Path,
    machine: &Machine,
    now_days: u64,
    measure: impl FnOnce() -> Result<Calibration, Error>,
) -> Result<Calibration, Error> {
    let mut known = MeasuredCosts::read(file).unwrap_or_default();
    known.machines.retain(|one| one.is_valid(now_days));
    let at = known
        .machines
        .iter()
        .position(|one| one.machine == *machine);
    let before = at.map(|at| known.machines.swap_remove(at));
    if let Some(before) = &before
        && before.measurements >= MEASUREMENTS
    {
        return Ok(before.calibration());
    }
    let mut newest = measure()?;
    let mut measurements = 1;
    if let Some(before) = before {
        newest = newest.or_less(before.calibration());
        measurements += before.measurements;
    }
    if let Some(one) = MachineSampleCost::new(machine, newest, measurements, now_days) {
        known.machines.push(one);
        let surplus = known.machines.len().saturating_sub(MACHINES_MAX);
        known.machines.drain(..surplus);
        // If the file cannot be written, the next run measures again.
        let _ = known.write(file);
    }
    Ok(newest)
}

/// Path of the file in the user's cache folder; `None` without a home.
fn file() -> Option<PathBuf> {
    let absolute = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("nearpage/samples.json"))
}

fn now_days() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() / 86_400)
}

/// Contents of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct MeasuredCosts {
    version: u32,
    machines: Vec<MachineSampleCost>,
}

/// Identity of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Machine {
    kernel: String,
    processor: String,
    boot: String,
    by_signals: bool,
}

/// Costs of samples on a machine.
#[derive(Debug, Serialize, Deserialize)]
struct MachineSampleCost {
    #[serde(flatten)]
    machine: Machine,
    /// Day of the measurement, since 1970.
    measured_days: u64,
    measurements: u32,
    side: String,
    samples: u32,
    share: f32,
    sample_cost_ns: f64,
    close_cost_ns: f64,
}

impl Machine {
    fn here(proc_root: &Path, by_signals: bool) -> Option<Self> {
        let line = |path: &str| -> Option<String> {
            let text = fs::read_to_string(proc_root.join(path)).ok()?;
            Some(text.trim().to_owned())
        };
        let processors = line("cpuinfo").unwrap_or_default();
        let name = |line: &str| line.split_once(':').map(|(_, name)| name.trim().to_owned());
        let model = processors
            .lines()
            .find(|line| line.starts_with("model name") || line.starts_with("CPU part"));
        Some(Self {
            kernel: line("sys/kernel/osrelease")?,
            processor: model.and_then(name).unwrap_or_default(),
            boot: line("sys/kernel/random/boot_id")?,
            by_signals,
        })
    }
}

impl MachineSampleCost {
    /// `None` if the measurement is incomplete.
    fn new(machine: &Machine, found: Calibration, measurements: u32, days: u64) -> Option<Self> {
        Some(Self {
            machine: machine.clone(),
            measured_days: days,
            measurements,
            side: found.side.to_string(),
            samples: found.samples,
            share: found.share,
            sample_cost_ns: found.sample_cost_ns?,
            close_cost_ns: found.close_cost_ns.or(found.sample_cost_ns)?,
        })
    }

    /// Is the entry plausible, and not too old?
    fn is_valid(&self, now_days: u64) -> bool {
        let costs = [self.close_cost_ns, self.sample_cost_ns];
        let is_recent =
            (self.measured_days..self.measured_days.saturating_add(DAYS_MAX)).contains(&now_days);
        let are_costs = costs
            .iter()
            .all(|cost_ns| (100.0..=200_000.0).contains(cost_ns));
        is_recent
            && are_costs
            && (0.0..=1.0).contains(&self.share)
            && self.side.parse::<SkidSide>().is_ok()
    }

    fn calibration(&self) -> Calibration {
        Calibration {
            side: self.side.parse().unwrap_or(Calibration::default().side),
            samples: self.samples,
            share: self.share,
            sample_cost_ns: Some(self.sample_cost_ns),
            close_cost_ns: Some(self.close_cost_ns),
        }
    }
}

impl MeasuredCosts {
    fn read(file: &Path) -> Option<Self> {
        Self::parse(&read_text(file, BYTES_MAX).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let known: Self = serde_json::from_str(text).ok()?;
        (known.version == VERSION).then_some(known)
    }

    fn write(&mut self, file: &Path) -> io::Result<()> {
        self.version = VERSION;
        let Some(folder) = file.parent() else {
            return Ok(());
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let there = fs::symlink_metadata(folder)?;
        if !there.is_dir() || there.uid() != own_user() || there.mode() & 0o022 != 0 {
            // Another user can write to the folder, as with another user's home under sudo.
            return Ok(());
        }
        replace(file, &serde_json::to_vec(self)?)
    }
}

/// For `fuzz/`: values from a file are plausible, and can be written and read again.
pub fn fuzz(bytes: &[u8]) {
    const DAY: u64 = 20_000;
    let known = std::str::from_utf8(bytes)
        .ok()
        .and_then(MeasuredCosts::parse);
    let Some(mut known) = known else {
        return;
    };
    known.machines.retain(|one| one.is_valid(DAY));
    let found = |known: &MeasuredCosts| -> Vec<Calibration> {
        known
            .machines
            .iter()
            .map(MachineSampleCost::calibration)
            .collect()
    };
    let before = found(&known);
    for one in &before {
        let cost_ns = one.sample_cost_ns.unwrap_or_default();
        assert!(cost_ns >= 100.0 && (0.0..=1.0).contains(&one.share));
    }
    let text = serde_json::to_string(&known).expect("numbers and text");
    let again = MeasuredCosts::parse(&text).expect("it was written here");
    assert_eq!(found(&again).len(), before.len());
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn found(sample_cost_ns: f64, close_cost_ns: f64) -> Calibration {
        Calibration {
            samples: 60,
            share: 0.9,
            sample_cost_ns: Some(sample_cost_ns),
            close_cost_ns: Some(close_cost_ns),
            ..Calibration::default()
        }
    }

    fn machine(boot: &str) -> Machine {
        Machine {
            kernel: "6.1".to_owned(),
            processor: "Example".to_owned(),
            boot: boot.to_owned(),
            by_signals: false,
        }
    }

    fn unmeasured() -> Result<Calibration, Error> {
        panic!("it is known")
    }

    #[test]
    fn the_least_of_three_measurements_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nearpage/samples.json");
        for (cost_ns, least_ns) in [(30e3, 30e3), (12e3, 12e3), (73e3, 12e3)] {
            let got = remembered(&file, &machine("a"), 100, || Ok(found(cost_ns, cost_ns)));
            assert_eq!(got.unwrap().sample_cost_ns, Some(least_ns));
        }
        let got = remembered(&file, &machine("a"), 129, unmeasured).unwrap();
        assert_eq!(got, found(12e3, 12e3));
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Costs are measured again on another machine, and after a month.
        for (boot, days) in [("b", 129), ("a", 130), ("a", 99)] {
            let got = remembered(&file, &machine(boot), days, || Ok(found(9e3, 9e3)));
            assert_eq!(got.unwrap().sample_cost_ns, Some(9e3));
        }
    }

    #[test]
    fn implausible_values_are_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nearpage/samples.json");
        let write = |change: &dyn Fn(&mut MachineSampleCost)| {
            let mut one = MachineSampleCost::new(&machine("a"), found(9e3, 9e3), 3, 100).unwrap();
            change(&mut one);
            MeasuredCosts {
                version: VERSION,
                machines: vec![one],
            }
            .write(&file)
            .unwrap();
        };
        let measured = || {
            let got = remembered(&file, &machine("a"), 100, || Ok(found(5e3, 5e3)));
            got.unwrap().sample_cost_ns == Some(5e3)
        };
        write(&|_| ());
        assert!(!measured());
        let changes: [&dyn Fn(&mut MachineSampleCost); 5] = [
            &|one| one.sample_cost_ns = 1e9,
            &|one| one.close_cost_ns = -1.0,
            &|one| one.share = 7.0,
            &|one| one.side = "beside".to_owned(),
            &|one| one.measured_days = u64::MAX,
        ];
        for change in changes {
            write(change);
            assert!(measured());
        }
        for text in ["", "{", "[]", r#"{"version":1,"machines":[]}"#] {
            fs::write(&file, text).unwrap();
            assert!(measured(), "{text}");
        }
    }

    #[test]
    fn a_folder_of_others_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("nearpage");
        fs::create_dir(&inside).unwrap();
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o777)).unwrap();
        let file = inside.join("samples.json");
        remembered(&file, &machine("a"), 100, || Ok(found(9e3, 9e3))).unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn costs_that_were_not_measured_are_not_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nearpage/samples.json");
        remembered(&file, &machine("a"), 100, || Ok(Calibration::default())).unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn a_machine_is_identified_by_kernel_processor_and_boot() {
        let here = Machine::here(Path::new("/proc"), false).unwrap();
        assert!(!here.kernel.is_empty() && !here.boot.is_empty());
        assert_ne!(
            here,
            Machine {
                by_signals: true,
                ..here.clone()
            }
        );
    }
}
