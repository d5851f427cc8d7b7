//! CPUs that are online.

use std::path::Path;

use nearpage_machine::{CpuId, CpuList};

use crate::error::Error;

/// CPUs that are online, ascending, from `devices/system/cpu/online` under `sys_root`.
pub(crate) fn online_cpus(sys_root: &Path) -> Result<Vec<CpuId>, Error> {
    let path = sys_root.join("devices/system/cpu/online");
    let fault = |reason: String| Error::Cpus {
        path: path.clone(),
        reason,
    };
    let text = std::fs::read_to_string(&path).map_err(|error| fault(error.to_string()))?;
    let cpus: CpuList = text
        .trim()
        .parse()
        .map_err(|error| fault(format!("{error}")))?;
    match cpus.as_slice() {
        [] => Err(fault("none".to_owned())),
        cpus => Ok(cpus.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lists_and_refuses_others() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("devices/system/cpu");
        assert!(online_cpus(root.path()).is_err());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("online"), "0-1,4\n").unwrap();
        assert_eq!(
            online_cpus(root.path()).unwrap(),
            [CpuId(0), CpuId(1), CpuId(4)]
        );
        std::fs::write(folder.join("online"), "x").unwrap();
        assert!(online_cpus(root.path()).is_err());
    }
}
