//! Sentences about bad bindings, and the launcher's options that correct them.

use nearpage_attribution::BindingFinding;
use nearpage_recording::{Launcher, rank_words};

use super::nodes;
use crate::printable;
use nearpage_amount::percent;

/// Correction that a launcher's option makes.
#[derive(Clone, Copy)]
enum Remedy {
    /// CPUs of its own for each rank.
    OwnCpus,
    /// All CPUs of a rank on one node.
    OneNode,
    /// Memory on the node of the CPUs.
    LocalMemory,
    /// CPUs on the node of the GPU.
    LocalGpu,
}

/// Identifier of the kind of finding, for JSON.
pub(super) fn kind(finding: &BindingFinding) -> &'static str {
    match finding {
        BindingFinding::Unbound { .. } => "unbound",
        BindingFinding::SharedCpus { .. } => "shared-cpus",
        BindingFinding::SharedCores { .. } => "shared-cores",
        BindingFinding::Straddling { .. } => "straddling",
        BindingFinding::MemoryForbidden { .. } => "memory-forbidden",
        BindingFinding::MemoryElsewhere { .. } => "memory-elsewhere",
        BindingFinding::GpuElsewhere { .. } => "gpu-elsewhere",
    }
}

/// Host and ranks of a finding.
pub(super) fn host_and_ranks(finding: &BindingFinding) -> (&str, &[u32]) {
    match finding {
        BindingFinding::Unbound { host, ranks }
        | BindingFinding::SharedCpus { host, ranks, .. }
        | BindingFinding::SharedCores { host, ranks, .. }
        | BindingFinding::Straddling { host, ranks, .. }
        | BindingFinding::MemoryForbidden { host, ranks, .. }
        | BindingFinding::MemoryElsewhere { host, ranks, .. }
        | BindingFinding::GpuElsewhere { host, ranks, .. } => (host, ranks),
    }
}

/// Sentence about a finding.
pub(super) fn sentence(finding: &BindingFinding) -> String {
    let (host, ranks) = host_and_ranks(finding);
    let who = match host {
        "" => rank_words(ranks),
        host => format!("{} on {}", rank_words(ranks), printable(host)),
    };
    match finding {
        BindingFinding::Unbound { .. } => {
            format!("{who}: not bound; the kernel may move them to any CPU of any node")
        }
        BindingFinding::SharedCpus { cpus, .. } => match cpus.as_slice() {
            [cpu] => format!("{who}: share CPU {cpu}"),
            _ => format!("{who}: share CPUs {cpus}"),
        },
        BindingFinding::SharedCores { cpus, .. } => {
            format!("{who}: share cores, by CPUs {cpus}")
        }
        BindingFinding::Straddling { nodes: list, .. } => {
            format!(
                "{who}: bound across {}, though one has CPUs enough",
                nodes(list)
            )
        }
        BindingFinding::MemoryForbidden {
            cpu_nodes,
            memory_nodes,
            ..
        } => format!(
            "{who}: CPUs on {}, but memory is allowed on {} only",
            nodes(cpu_nodes),
            nodes(memory_nodes)
        ),
        BindingFinding::MemoryElsewhere {
            cpu_nodes,
            memory_nodes,
            share,
            ..
        } => format!(
            "{who}: CPUs on {}, but up to {} of the accesses are to memory on {}",
            nodes(cpu_nodes),
            percent(*share),
            nodes(memory_nodes)
        ),
        BindingFinding::GpuElsewhere {
            cpu_nodes,
            gpu_nodes,
            ..
        } => format!(
            "{who}: CPUs on {}, but the GPU is next to {}",
            nodes(cpu_nodes),
            nodes(gpu_nodes)
        ),
    }
}

/// The launcher's option that corrects a finding; `None` for launchers whose options are not known here.
pub(super) fn remedy(finding: &BindingFinding, launcher: Option<Launcher>) -> Option<&'static str> {
    let mend = match finding {
        BindingFinding::Unbound { .. }
        | BindingFinding::SharedCpus { .. }
        | BindingFinding::SharedCores { .. } => Remedy::OwnCpus,
        BindingFinding::Straddling { .. } => Remedy::OneNode,
        BindingFinding::MemoryForbidden { .. } | BindingFinding::MemoryElsewhere { .. } => {
            Remedy::LocalMemory
        }
        BindingFinding::GpuElsewhere { .. } => Remedy::LocalGpu,
    };
    Some(match (launcher?, mend) {
        (Launcher::Slurm, Remedy::OwnCpus) => {
            "srun --cpus-per-task=THREADS --cpu-bind=cores --hint=nomultithread"
        }
        (Launcher::Slurm, Remedy::OneNode) => {
            "srun --cpus-per-task=THREADS --cpu-bind=cores --distribution=block:block"
        }
        (Launcher::Slurm, Remedy::LocalMemory) => "srun --cpu-bind=cores --mem-bind=local",
        (Launcher::Slurm, Remedy::LocalGpu) => "srun --gpu-bind=closest --cpu-bind=cores",
        (Launcher::OpenMpi, Remedy::OwnCpus) => "mpirun --map-by slot:PE=THREADS --bind-to core",
        (Launcher::OpenMpi, Remedy::OneNode) => "mpirun --map-by numa:PE=THREADS --bind-to core",
        (Launcher::OpenMpi, Remedy::LocalMemory) => {
            "mpirun --map-by numa:PE=THREADS --bind-to core --mca hwloc_base_mem_alloc_policy local_only"
        }
        (Launcher::Mpich, Remedy::OwnCpus) => "mpiexec -bind-to core:THREADS",
        (Launcher::Mpich, Remedy::OneNode) => "mpiexec -bind-to core:THREADS -map-by numa",
        (Launcher::Mpich, Remedy::LocalMemory) => {
            "mpiexec -bind-to numa -map-by numa -membind numa"
        }
        _ => return None,
    })
}
