//! Facts that a launcher (Slurm, an MPI's `mpirun`) passes to a process that it starts, and the CPUs, memory nodes and
//! GPUs that the process may use.

use std::ffi::OsString;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest name of a job or host, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Makes a part of a file's name from `text`: letters, digits and `-_.+` stay, other characters become `_`. `None` if
/// `text` is empty.
pub fn fit_for_a_file(text: &str) -> Option<String> {
    let fit = |character: char| match character {
        '-' | '_' | '.' | '+' => character,
        _ if character.is_ascii_alphanumeric() => character,
        _ => '_',
    };
    let mut name: String = text.chars().take(NAME_BYTES_MAX).map(fit).collect();
    if name.starts_with('.') {
        name.replace_range(..1, "_");
    }
    (!name.is_empty()).then_some(name)
}

/// Who started the ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Launcher {
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// PALS, of HPE Cray systems.
    Pals,
    /// `flux run` and `flux submit`.
    Flux,
    /// `mpirun` of Intel MPI, which is a Hydra.
    IntelMpi,
    /// Hydra, the `mpirun` of MPICH and its relatives.
    Mpich,
    /// `srun`.
    Slurm,
    /// Another launcher that speaks PMIx.
    Pmix,
    /// Another launcher that speaks PMI.
    Pmi,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "Open MPI",
            Self::Pals => "PALS",
            Self::Flux => "Flux",
            Self::IntelMpi => "Intel MPI",
            Self::Mpich => "MPICH",
            Self::Slurm => "Slurm",
            Self::Pmix => "PMIx",
            Self::Pmi => "PMI",
        })
    }
}

/// A rank of a job, as the launcher's environment variables describe it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launched {
    /// Launcher that set the variables.
    pub launcher: Launcher,
    /// Number of the process in its job, from 0.
    pub rank: u32,
    /// Number of ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// Number of the process among the ranks of its host, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_rank: Option<u32>,
    /// Number of the host in the job, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_index: Option<u32>,
    /// Name of the host; under Slurm, Slurm's name for the host.
    pub host: String,
    /// The resource manager's number of the job, or the launcher's own name for the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Number of this launch within the job, if the resource manager's job may have several launches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

impl Launched {
    /// Job and step, as in the name of a folder: `1234`, `1234.1`. The first step of a job is not named.
    pub fn job_name(&self) -> Option<String> {
        let job = self.job.as_ref()?;
        Some(match self.step.as_deref() {
            None | Some("0") => job.clone(),
            Some(step) => format!("{job}.{step}"),
        })
    }
}

/// CPUs, memory nodes and GPUs that a process was allowed to use when it started, as kernel lists (`0-3,8`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// CPUs: `Cpus_allowed_list` of `/proc/self/status`.
    pub cpus: String,
    /// Memory nodes: `Mems_allowed_list`.
    pub memory_nodes: String,
    /// GPUs, from the first variable of `GPU_VARIABLES` that is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<String>,
}

/// Variables with the GPUs that a process may use: the host's numbers by Slurm, then settings of CUDA, ROCm, HIP and
/// Level Zero.
const GPU_VARIABLES: [&str; 5] = [
    "SLURM_STEP_GPUS",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
];
/// Longest list of GPUs that is kept, in bytes.
const GPUS_BYTES_MAX: usize = 256;

impl Binding {
    /// Parses the text of `/proc/PID/status`; `None` if CPUs or memory nodes are missing.
    pub fn of_status(status: &str) -> Option<Self> {
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim().to_owned())
        };
        Some(Self {
            cpus: value("Cpus_allowed_list:")?,
            memory_nodes: value("Mems_allowed_list:")?,
            gpus: None,
        })
    }

    /// Adds the GPUs that the environment names.
    pub fn with_gpus(mut self, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let mut lists = GPU_VARIABLES
            .iter()
            .filter_map(|name| variable(name)?.into_string().ok());
        self.gpus = lists.find(|list| !list.is_empty() && list.len() <= GPUS_BYTES_MAX);
        self
    }

    /// Numbers of the GPUs; `None` if they have other names (`GPU-8932f937…`, `MIG-…`), or are unknown.
    pub fn gpu_numbers(&self) -> Option<Vec<u32>> {
        // Level Zero writes a part of a GPU as `NUMBER.PART`.
        let number = |gpu: &str| gpu.split('.').next()?.trim().parse().ok();
        self.gpus.as_ref()?.split(',').map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_is_what_the_kernel_allows() {
        let status = "Name:\tcat\nCpus_allowed:\t03\nCpus_allowed_list:\t0-1,8\nMems_allowed:\t1\nMems_allowed_list:\t0\n";
        let binding = Binding::of_status(status).unwrap();
        assert_eq!((&*binding.cpus, &*binding.memory_nodes), ("0-1,8", "0"));
        assert_eq!(Binding::of_status("Cpus_allowed_list:\t0\n"), None);
        let gpus = |variables: &[(&str, &str)]| {
            let find = |name: &str| {
                let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
                Some(OsString::from(value))
            };
            let bound = binding.clone().with_gpus(find);
            (bound.gpus.clone(), bound.gpu_numbers())
        };
        let cuda = "CUDA_VISIBLE_DEVICES";
        assert_eq!(gpus(&[]), (None, None));
        assert_eq!(
            gpus(&[(cuda, "0"), ("SLURM_STEP_GPUS", "2,3")]).1,
            Some(vec![2, 3])
        );
        assert_eq!(gpus(&[("ZE_AFFINITY_MASK", "1.0,1.1")]).1, Some(vec![1, 1]));
        let named = gpus(&[(cuda, "GPU-8932f937")]);
        assert_eq!(named, (Some("GPU-8932f937".to_owned()), None));
        assert_eq!(gpus(&[(cuda, &"1,".repeat(200))]).0, None);
    }

    #[test]
    fn the_first_step_of_a_job_has_no_number() {
        let launched = |job: Option<&str>, step: Option<&str>| Launched {
            launcher: Launcher::Slurm,
            rank: 0,
            size: None,
            local_rank: None,
            node_index: None,
            host: "n1".to_owned(),
            job: job.map(str::to_owned),
            step: step.map(str::to_owned),
        };
        let name = |job, step| launched(job, step).job_name();
        assert_eq!(name(Some("12"), Some("0")).as_deref(), Some("12"));
        assert_eq!(name(Some("12"), Some("1")).as_deref(), Some("12.1"));
        assert_eq!(name(Some("12"), None).as_deref(), Some("12"));
        assert_eq!(name(None, Some("1")), None);
    }
}
