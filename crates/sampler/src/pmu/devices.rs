//! PMUs and their events, as the kernel describes them in `/sys/bus/event_source/devices`.
//!
//! ```text
//! DEVICE/type            number for perf_event_attr.type
//! DEVICE/events/NAME     terms, such as `event=0xcd,umask=0x1,ldlat=3`
//! DEVICE/format/FIELD    bits of a term's value, such as `config:0-7,32-35` or `config1:0-15`
//! DEVICE/caps/NAME       a number
//! DEVICE/cpus, cpumask   CPUs of the PMU; all if both files are missing
//! ```
//!
//! Source: Documentation/ABI/testing/sysfs-bus-event_source-devices-{events,format,caps}. CPU models that are unknown
//! to this code work as soon as the kernel supports them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nearpage_machine::{CpuId, CpuList};

/// `config`, `config1`, `config2` of an event.
pub(crate) type Config = [u64; 3];

/// A PMU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub name: String,
    pub kind: u32,
    /// Terms by event.
    pub events: BTreeMap<String, String>,
    pub format: BTreeMap<String, Field>,
    pub caps: BTreeMap<String, u64>,
    /// CPUs of the device; `None` means all.
    pub cpus: Option<Vec<CpuId>>,
}

/// Bits of a term's value in the configuration: the lowest bits go to the first range, and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Index in [`Config`].
    word: usize,
    /// First and last bit of each range.
    ranges: Vec<(u32, u32)>,
}

impl Field {
    /// Parses `config1:0-7,32`; `None` for other texts, including `config3` of later kernels.
    pub fn parse(text: &str) -> Option<Self> {
        let (word, ranges) = text.trim().split_once(':')?;
        let word = ["config", "config1", "config2"]
            .iter()
            .position(|name| *name == word)?;
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last && last < 64).then_some((first, last))
        };
        let ranges = ranges.split(',').map(range).collect::<Option<_>>()?;
        Some(Self { word, ranges })
    }

    /// Sets the field to `value`; false if the value does not fit.
    fn set(&self, config: &mut Config, mut value: u64) -> bool {
        for &(first, last) in &self.ranges {
            let mask = u64::MAX >> (63 - (last - first));
            let word = &mut config[self.word];
            *word = *word & !(mask << first) | (value & mask) << first;
            value = value.checked_shr(last - first + 1).unwrap_or(0);
        }
        value == 0
    }
}

impl Device {
    /// All devices under `sys_root` by name; none if the folder is missing. Unreadable or invalid files are skipped.
    pub fn all(sys_root: &Path) -> Vec<Self> {
        let folder = sys_root.join("bus/event_source/devices");
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut devices: Vec<_> = entries
            .filter_map(|entry| Self::read(&entry.path()))
            .collect();
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        devices
    }

    fn read(folder: &Path) -> Option<Self> {
        let cpus = ["cpus", "cpumask"].iter().find_map(|name| {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            let cpus: CpuList = text.trim().parse().ok()?;
            Some(cpus.as_slice().to_vec())
        });
        Some(Self {
            name: folder.file_name()?.to_str()?.to_owned(),
            kind: fs::read_to_string(folder.join("type"))
                .ok()?
                .trim()
                .parse()
                .ok()?,
            events: files(&folder.join("events"), |text| Some(text.to_owned())),
            format: files(&folder.join("format"), Field::parse),
            caps: files(&folder.join("caps"), |text| text.parse().ok()),
            cpus,
        })
    }

    /// Configuration of the terms: `name=value`, or `name` alone for the value 1. The error names a wrong term.
    pub fn config(&self, terms: &str) -> Result<Config, String> {
        let mut config = Config::default();
        for term in terms.trim().split(',').filter(|term| !term.is_empty()) {
            let (name, value) = term.split_once('=').unwrap_or((term, "1"));
            let set = number(value).is_some_and(|value| match self.format.get(name) {
                Some(field) => field.set(&mut config, value),
                // Every PMU accepts the whole words, too.
                None => match ["config", "config1", "config2"]
                    .iter()
                    .position(|word| *word == name)
                {
                    Some(word) => {
                        config[word] = value;
                        true
                    }
                    None => false,
                },
            });
            if !set {
                return Err(format!(
                    "{}: the kernel's formats have no `{term}`",
                    self.name
                ));
            }
        }
        Ok(config)
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn files<T>(folder: &Path, parse: impl Fn(&str) -> Option<T>) -> BTreeMap<String, T> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path()).ok()?;
            Some((entry.file_name().into_string().ok()?, parse(text.trim())?))
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A `/sys` with these files under `bus/event_source/devices`.
    pub(crate) fn sys(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join("bus/event_source/devices").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        root
    }

    #[test]
    fn terms_go_where_the_formats_say() {
        let root = sys(&[
            ("cpu/type", "4"),
            ("cpu/format/event", "config:0-7"),
            ("cpu/format/umask", "config:8-15"),
            ("cpu/format/ldlat", "config1:0-15"),
            // Two ranges, as on AMD.
            ("cpu/format/wide", "config:0-7,32-35"),
            ("cpu/format/later", "config3:0-7"),
            ("cpu/caps/max_precise", "3"),
            ("cpu/caps/pmu_name", "skylake"),
            ("broken/type", "four"),
        ]);
        let devices = Device::all(root.path());
        let [cpu] = devices.as_slice() else {
            panic!("{devices:?}")
        };
        assert_eq!(
            cpu.config("event=0xcd,umask=0x1,ldlat=3").unwrap(),
            [0x1cd, 3, 0]
        );
        assert_eq!(cpu.config("wide=0xabc").unwrap(), [0xa_0000_00bc, 0, 0]);
        assert_eq!(cpu.config("umask").unwrap(), [0x100, 0, 0]);
        assert_eq!(cpu.config("config1=0x10").unwrap(), [0, 0x10, 0]);
        assert_eq!(cpu.config("").unwrap(), [0; 3]);
        // The later of two values counts.
        assert_eq!(cpu.config("ldlat=3,ldlat=30").unwrap(), [0, 30, 0]);
        for bad in ["later=1", "event=0x100", "event=x", "ldlat=65536", "=1"] {
            assert!(cpu.config(bad).is_err(), "{bad}");
        }
        assert_eq!(cpu.caps, BTreeMap::from([("max_precise".to_owned(), 3)]));
        assert_eq!(cpu.cpus, None);
    }

    #[test]
    fn no_devices_are_no_error() {
        assert_eq!(Device::all(Path::new("/nowhere")), []);
    }

    proptest! {
        #[test]
        fn formats_and_terms_survive_any_text(format in ".{0,40}", terms in ".{0,40}", word in "config[12]?:[0-9,-]{0,12}") {
            for format in [format, word] {
                let mut device = Device::default();
                device.format.extend(Field::parse(&format).map(|field| ("a".to_owned(), field)));
                let _ = (device.config(&terms), device.config("a=0xffffffffffffffff"), device.config("a"));
            }
        }

        #[test]
        fn a_field_holds_what_fits(first in 0u32..64, length in 1u32..64, value: u64) {
            let last = (first + length - 1).min(63);
            let field = Field::parse(&format!("config2:{first}-{last}")).unwrap();
            let mut config = [0, 0, u64::MAX];
            let fits = value.checked_shr(last - first + 1).unwrap_or(0) == 0;
            prop_assert_eq!(field.set(&mut config, value), fits);
            let mask = u64::MAX >> (63 - (last - first));
            prop_assert_eq!(config[2] >> first & mask, value & mask);
            prop_assert_eq!(config[2] | mask << first, u64::MAX);
        }
    }
}
