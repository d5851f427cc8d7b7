//! Owner of a process, for fleets: its control group, and the job or pod after which a resource manager named the
//! group.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// Longest `/proc/PID/cgroup` that is read, in bytes.
const CGROUP_BYTES_MAX: u64 = 64 << 10;

/// Owner of a process; fields are empty where unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Path of the control group in the unified hierarchy, else in the first hierarchy listed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cgroup: String,
    /// Number of the job: Slurm names the group of a job `job_NUMBER`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub job: String,
    /// Identifier of the pod: Kubernetes names the group of a pod `pod…` or `kubepods-…-pod….slice`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
}

impl Origin {
    /// Origin of a process, from the kernel's files below `proc_root`; `self` is this process.
    pub fn of(proc_root: &Path, process: &str) -> Self {
        let file = proc_root.join(process).join("cgroup");
        let text = nearpage_files::read_text(&file, CGROUP_BYTES_MAX).unwrap_or_default();
        Self::of_text(&text)
    }

    fn of_text(text: &str) -> Self {
        let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
        let unified = text.lines().find(|line| line.starts_with("0::"));
        // A process in the root of the unified hierarchy may be in a group of an older hierarchy.
        let unified = unified.and_then(path).filter(|path| path != "/");
        let cgroup = unified.or_else(|| text.lines().find_map(path));
        // The root group does not tell an owner.
        let cgroup = cgroup.filter(|path| path != "/").unwrap_or_default();
        let find =
            |of: fn(&str) -> Option<&str>| cgroup.split('/').find_map(of).unwrap_or_default();
        Self {
            job: find(job).to_owned(),
            pod: find(pod).to_owned(),
            cgroup,
        }
    }
}

fn job(group: &str) -> Option<&str> {
    let number = group.strip_prefix("job_")?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(number)
}

fn pod(group: &str) -> Option<&str> {
    let group = group.strip_suffix(".slice").unwrap_or(group);
    let name = group.rsplit_once("-pod").map_or(group, |(_, name)| name);
    let name = name.strip_prefix("pod").unwrap_or(name);
    // 8-4-4-4-12 hexadecimal digits, with `_` for `-` under systemd.
    let is_identifier = name.len() == 36
        && name
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'_'));
    is_identifier.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_jobs_and_pods_are_known() {
        let of = |text: &str| {
            let origin = Origin::of_text(text);
            (origin.cgroup, origin.job, origin.pod)
        };
        let expected = |cgroup: &str, job: &str, pod: &str| {
            (cgroup.to_owned(), job.to_owned(), pod.to_owned())
        };
        let slurm = "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0";
        assert_eq!(of(&format!("0::{slurm}\n")), expected(slurm, "12", ""));
        let old = "/slurm/uid_0/job_7/step_batch";
        assert_eq!(
            of(&format!("4:memory:{old}\n0::/\n")),
            expected(old, "7", "")
        );
        let uid = "2f3b9c1e_4f53_4c58_9a5c_0c2f9d0a7b11";
        let pod = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice/cri-1.scope"
        );
        assert_eq!(of(&format!("0::{pod}\n")), expected(&pod, "", uid));
        let other = "/user.slice/job_x/podman-1.scope";
        assert_eq!(of(&format!("0::{other}")), expected(other, "", ""));
        assert_eq!(of(""), expected("", "", ""));
        assert_eq!(of("0::/\n"), expected("", "", ""));
    }

    #[test]
    fn a_process_is_looked_up_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("9")).unwrap();
        std::fs::write(root.path().join("9/cgroup"), "0::/a:b\n").unwrap();
        assert_eq!(Origin::of(root.path(), "9").cgroup, "/a:b");
        assert_eq!(Origin::of(root.path(), "8"), Origin::default());
    }
}
