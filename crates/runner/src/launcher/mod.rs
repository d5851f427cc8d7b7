//! Facts that the launcher of a parallel job gives about this process: rank, host and job. Environment variables can
//! contain anything, so numbers are checked, and names are bounded and made fit for file names.

mod output;
mod ranks;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use nearpage_recording::{Binding, Launched, Launcher, Origin, fit_for_a_file};

pub(crate) use self::output::job_folder;
pub use self::output::{OutputError, expand_output};
pub use self::ranks::{RankSelection, RankSelectionError};

/// Larger ranks, sizes and node numbers are not believed.
const NUMBER_MAX: u32 = 1 << 24;

/// Names of a launcher's variables; an empty name means that the launcher has no such variable. `docs/guide/mpi.md`
/// lists the variables with their sources.
struct Variables {
    launcher: Launcher,
    /// A variable that must be set as well, because other launchers set the rank under the same name, or pass the rank
    /// on.
    witness: &'static str,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    node_index: &'static str,
    /// Variable that distinguishes this launch from others.
    launch: &'static str,
}

/// Variables of Hydra, which several MPIs use.
const HYDRA: Variables = Variables {
    launcher: Launcher::Mpich,
    witness: "MPI_LOCALRANKID",
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    node_index: "",
    launch: "",
};

/// Launchers, nearest to the process first: `mpirun` inside a Slurm job passes on the variables that `srun` set for
/// mpirun's daemons.
const LAUNCHERS: [Variables; 8] = [
    Variables {
        launcher: Launcher::OpenMpi,
        witness: "OMPI_COMM_WORLD_SIZE",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        node_index: "",
        launch: "PMIX_NAMESPACE",
    },
    Variables {
        launcher: Launcher::Pals,
        witness: "PALS_APID",
        rank: "PALS_RANKID",
        size: "PMI_SIZE",
        local_rank: "PALS_LOCAL_RANKID",
        node_index: "PALS_NODEID",
        launch: "PALS_APID",
    },
    Variables {
        launcher: Launcher::Flux,
        witness: "FLUX_JOB_ID",
        rank: "FLUX_TASK_RANK",
        size: "FLUX_JOB_SIZE",
        local_rank: "FLUX_TASK_LOCAL_ID",
        node_index: "",
        launch: "FLUX_JOB_ID",
    },
    Variables {
        launcher: Launcher::IntelMpi,
        witness: "I_MPI_MPIRUN",
        ..HYDRA
    },
    HYDRA,
    // A batch script has a SLURM_PROCID too, but no step.
    Variables {
        launcher: Launcher::Slurm,
        witness: "SLURM_STEP_ID",
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        node_index: "SLURM_NODEID",
        launch: "SLURM_STEP_ID",
    },
    Variables {
        launcher: Launcher::Pmix,
        witness: "PMIX_NAMESPACE",
        rank: "PMIX_RANK",
        size: "",
        local_rank: "",
        node_index: "",
        launch: "PMIX_NAMESPACE",
    },
    Variables {
        launcher: Launcher::Pmi,
        witness: "PMI_SIZE",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "PMI_LOCAL_RANK",
        node_index: "",
        launch: "",
    },
];

/// Variables of resource managers with the job's number.
const JOBS: [&str; 3] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];

/// The launcher's facts about this process; `None` without a launcher. They are read once and kept, because the
/// launcher may end before this process.
pub fn launched() -> Option<Launched> {
    static LAUNCHED: OnceLock<Option<Launched>> = OnceLock::new();
    let ask = || {
        let mut launched = launched_among(|name| std::env::var_os(name), &own_host())?;
        if launched.job.is_none() {
            launched.job = launching_process().map(|pid| format!("pid{pid}"));
        }
        Some(launched)
    };
    LAUNCHED.get_or_init(ask).clone()
}

/// Name of this host in the kernel.
pub(crate) fn own_host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Name of this host; empty if a launcher gives the host.
pub(crate) fn host() -> String {
    launched().map_or_else(own_host, |_| String::new())
}

/// Origin of this process, if it is known.
pub(crate) fn origin() -> Option<Origin> {
    Some(Origin::of(Path::new("/proc"), "self")).filter(|origin| *origin != Origin::default())
}

/// CPUs and devices to which this process was bound when it was started.
pub(crate) fn binding() -> Option<Binding> {
    let bound = Binding::of_status(&fs::read_to_string("/proc/self/status").ok()?)?;
    Some(bound.with_gpus(|name| std::env::var_os(name)))
}

fn launched_among(variable: impl Fn(&str) -> Option<OsString>, own_host: &str) -> Option<Launched> {
    let text = |name: &str| match name {
        "" => None,
        name => variable(name)?.into_string().ok(),
    };
    let number = |name: &str| {
        let number: u32 = text(name)?.parse().ok()?;
        (number < NUMBER_MAX).then_some(number)
    };
    let named = |name: &str| fit_for_a_file(&text(name)?);
    let found = LAUNCHERS
        .iter()
        .find(|known| variable(known.witness).is_some() && number(known.rank).is_some())?;
    let of_slurm = named("SLURMD_NODENAME").filter(|_| found.launcher == Launcher::Slurm);
    let managed = JOBS.into_iter().find_map(named);
    let launch = named(found.launch);
    let (job, step) = match managed {
        Some(job) => (Some(job), launch),
        None => (launch, None),
    };
    let rank = number(found.rank)?;
    Some(Launched {
        launcher: found.launcher,
        rank,
        // A size that is not greater than the rank is ignored.
        size: number(found.size).filter(|&size| rank < size),
        local_rank: number(found.local_rank),
        node_index: number(found.node_index),
        host: of_slurm
            .or_else(|| fit_for_a_file(own_host))
            .unwrap_or_else(|| "host".to_owned()),
        job,
        step,
    })
}

/// The launcher's process on this host: the nearest ancestor without a rank. It stands in for a job number, which Hydra
/// does not give.
fn launching_process() -> Option<u32> {
    const ANCESTORS_MAX: usize = 32;
    let mut pid = std::os::unix::process::parent_id();
    for _ in 0..ANCESTORS_MAX {
        let process = Path::new("/proc").join(pid.to_string());
        let environment = nearpage_files::read(&process.join("environ"), 8 << 20).ok()?;
        let has_rank = environment
            .split(|byte| *byte == 0)
            .any(|entry| entry.starts_with(b"PMI_RANK="));
        if !has_rank {
            return Some(pid);
        }
        let status = fs::read_to_string(process.join("status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        pid = parent.trim().parse().ok()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among(variables: &[(&str, &str)]) -> Option<Launched> {
        let find = |name: &str| {
            let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
            Some(OsString::from(value))
        };
        launched_among(find, "vm")
    }

    const SLURM: [(&str, &str); 7] = [
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NODEID", "0"),
        ("SLURMD_NODENAME", "n1"),
    ];

    #[test]
    fn a_task_of_srun_is_what_slurm_says() {
        let found = among(&SLURM).unwrap();
        let expected = Launched {
            launcher: Launcher::Slurm,
            rank: 1,
            size: Some(4),
            local_rank: Some(1),
            node_index: Some(0),
            host: "n1".to_owned(),
            job: Some("77".to_owned()),
            step: Some("0".to_owned()),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn mpirun_inside_a_slurm_job_is_nearer_than_srun() {
        let mut variables = SLURM.to_vec();
        variables.extend([
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("PMIX_RANK", "3"),
            ("PMIX_NAMESPACE", "prterun-vm-12@1"),
        ]);
        let found = among(&variables).unwrap();
        assert_eq!((found.launcher, found.rank), (Launcher::OpenMpi, 3));
        assert_eq!(found.host, "vm");
        assert_eq!(found.job_name().as_deref(), Some("77.prterun-vm-12_1"));
        let mut variables = SLURM.to_vec();
        let hydra = [
            ("PMI_RANK", "3"),
            ("PMI_SIZE", "4"),
            ("MPI_LOCALRANKID", "3"),
        ];
        variables.extend(hydra);
        assert_eq!(among(&variables).unwrap().launcher, Launcher::Mpich);
        // `srun --mpi=pmi2` sets PMI variables too, but not Hydra's local rank.
        variables.pop();
        assert_eq!(among(&variables).unwrap().launcher, Launcher::Slurm);
    }

    #[test]
    fn a_batch_script_is_no_rank() {
        let without_step: Vec<_> = SLURM
            .into_iter()
            .filter(|(name, _)| *name != "SLURM_STEP_ID")
            .collect();
        assert_eq!(among(&without_step), None);
        assert_eq!(among(&[]), None);
    }

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        for known in &LAUNCHERS {
            let all = [known.witness, known.rank, known.size, known.launch];
            let mut variables: Vec<_> = all.iter().map(|name| (*name, "5")).collect();
            variables.retain(|(name, _)| !name.is_empty() && *name != known.size);
            variables.push((known.size, "6"));
            if known.witness == known.size {
                variables.retain(|(name, value)| *name != known.size || *value == "6");
            }
            let found = among(&variables).unwrap();
            assert_eq!((found.launcher, found.rank), (known.launcher, 5));
            let size = (!known.size.is_empty()).then_some(6);
            assert_eq!(found.size, size, "{}", known.launcher);
        }
    }

    #[test]
    fn invalid_environment_variables_are_ignored() {
        let with = |name: &str, value: &str| {
            let mut variables = SLURM.to_vec();
            variables.retain(|(known, _)| *known != name);
            variables.push((name, value));
            among(&variables)
        };
        for rank in ["-1", "", "1x", "4294967295", "99999999999"] {
            assert_eq!(with("SLURM_PROCID", rank), None, "{rank:?}");
        }
        assert_eq!(with("SLURM_STEP_NUM_TASKS", "1").unwrap().size, None);
        assert_eq!(with("SLURM_LOCALID", "x").unwrap().local_rank, None);
        let job = |value: &str| with("SLURM_JOB_ID", value).unwrap().job.unwrap();
        assert_eq!(job("../../etc"), "_._.._etc");
        assert_eq!(job("12[3].host"), "12_3_.host");
        assert_eq!(job(&"9".repeat(1000)).len(), 64);
        assert_eq!(with("SLURMD_NODENAME", "").unwrap().host, "vm");
        assert_eq!(with("SLURMD_NODENAME", "/").unwrap().host, "_");
    }
}
