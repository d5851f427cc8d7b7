//! Frequencies of the CPUs, as the hardware gives latencies in cycles.

use std::fs;
use std::path::Path;

use nearpage_machine::CpuId;

/// Frequency that is assumed if no file has one.
const ASSUMED_GHZ: f32 = 2.5;

/// Nominal cycles per nanosecond of each CPU.
///
/// Cores run faster than the nominal frequency while there is thermal room, and slower to save energy. Costs in
/// nanoseconds are off by this factor, up to 1.5 on today's servers. It is the same for all accesses of a core, so
/// shares hold.
#[derive(Clone, Debug, Default)]
pub struct Frequencies {
    ghz: Vec<f32>,
    /// Whether some CPU has the assumed frequency.
    assumed: bool,
}

impl Frequencies {
    /// Reads the nominal frequency of each of `cpus` from the first of these files: `cpufreq/base_frequency`
    /// (intel_pstate; kHz), `acpi_cppc/nominal_freq` (AMD, Arm; MHz), `cpufreq/cpuinfo_max_freq` (kHz) under
    /// `devices/system/cpu/cpuN` of `sys_root`, and `cpu MHz` in `cpuinfo` of `proc_root`.
    pub fn read(sys_root: &Path, proc_root: &Path, cpus: &[CpuId]) -> Self {
        let proc_ghz = cpu_info(proc_root);
        let mut frequencies = Self::default();
        for cpu in cpus {
            let folder = sys_root.join(format!("devices/system/cpu/cpu{}", cpu.0));
            let ghz = [
                ("cpufreq/base_frequency", 1e6),
                ("acpi_cppc/nominal_freq", 1e3),
                ("cpufreq/cpuinfo_max_freq", 1e6),
            ]
            .iter()
            .find_map(|(file, unit)| {
                let text = fs::read_to_string(folder.join(file)).ok()?;
                plausible(text.trim().parse::<f32>().ok()? / unit)
            })
            .or(proc_ghz);
            frequencies.assumed |= ghz.is_none();
            let index = cpu.0 as usize;
            if frequencies.ghz.len() <= index {
                frequencies.ghz.resize(index + 1, ASSUMED_GHZ);
            }
            frequencies.ghz[index] = ghz.unwrap_or(ASSUMED_GHZ);
        }
        frequencies
    }

    /// Nominal frequency of `cpu` in GHz.
    pub fn ghz(&self, cpu: CpuId) -> f32 {
        self.ghz.get(cpu.0 as usize).copied().unwrap_or(ASSUMED_GHZ)
    }

    /// Converts cycles of `cpu` into nanoseconds.
    pub fn nanoseconds(&self, cpu: CpuId, cycles: u32) -> f32 {
        cycles as f32 / self.ghz(cpu)
    }

    /// A note for the user if a frequency was assumed.
    pub fn note(&self) -> Option<String> {
        self.assumed.then(|| {
            format!(
                "no file says how fast the CPUs run: latencies are converted at {ASSUMED_GHZ} GHz"
            )
        })
    }
}

fn cpu_info(proc_root: &Path) -> Option<f32> {
    let text = fs::read_to_string(proc_root.join("cpuinfo")).ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    plausible(line.split_once(':')?.1.trim().parse::<f32>().ok()? / 1e3)
}

fn plausible(ghz: f32) -> Option<f32> {
    (0.1..=20.0).contains(&ghz).then_some(ghz)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nominal_frequency_is_found_where_it_is() {
        let root = tempfile::tempdir().unwrap();
        let cpu = |number: u32, file: &str, text: &str| {
            let path = root
                .path()
                .join(format!("devices/system/cpu/cpu{number}/{file}"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        // Hybrid cores have frequencies of their own, and the base frequency counts, not the limit.
        cpu(0, "cpufreq/base_frequency", "2100000\n");
        cpu(0, "cpufreq/cpuinfo_max_freq", "4800000\n");
        cpu(1, "acpi_cppc/nominal_freq", "1500\n");
        cpu(2, "cpufreq/cpuinfo_max_freq", "3000000\n");
        cpu(3, "cpufreq/base_frequency", "0\n");
        let cpus = [0, 1, 2, 3].map(CpuId);
        fs::write(root.path().join("cpuinfo"), "cpu MHz\t\t: 2000.000\n").unwrap();
        let known = Frequencies::read(root.path(), root.path(), &cpus);
        let ns = cpus.map(|cpu| known.nanoseconds(cpu, 4200).round());
        assert_eq!(ns, [2000.0, 2800.0, 1400.0, 2100.0]);
        assert_eq!(known.note(), None);
        fs::remove_file(root.path().join("cpuinfo")).unwrap();
        let assumed = Frequencies::read(root.path(), root.path(), &cpus);
        assert!(assumed.note().unwrap().contains("2.5 GHz"));
        assert_eq!(assumed.nanoseconds(CpuId(3), 2500), 1000.0);
        assert_eq!(assumed.nanoseconds(CpuId(77), 2500), 1000.0);
    }
}
