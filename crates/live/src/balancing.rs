//! The kernel's automatic NUMA balancing, which moves the same pages by its own rules.

use std::path::Path;

/// Is automatic balancing on? `proc_root` is `/proc` outside of tests; a kernel without balancing has it off.
pub fn is_on(proc_root: &Path) -> bool {
    let path = proc_root.join("sys/kernel/numa_balancing");
    std::fs::read_to_string(path).is_ok_and(|text| !matches!(text.trim(), "" | "0"))
}

/// Keeps automatic balancing off programs that this thread starts from now on. The thread gets the memory policy `local`,
/// which children inherit: pages are placed as by default, and balancing skips memory with a policy that lacks the flag
/// `MPOL_F_MOF` (mm/mempolicy.c, `vma_policy_mof`; set_mempolicy(2)). `false`: the thread keeps another policy that it
/// has already, or the kernel has no policies.
///
/// Running processes have no such switch.
pub fn hold_off() -> bool {
    if !is_unbound() {
        return false;
    }
    let nodes = std::ptr::null_mut::<libc::c_ulong>();
    // SAFETY: the call takes no pointers but null.
    unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_LOCAL, nodes, 0) == 0 }
}

const MPOL_DEFAULT: libc::c_int = 0;
const MPOL_LOCAL: libc::c_int = 4;

/// Are this thread's pages, and those of its children, placed by first touch? `false` if the kernel has no policies.
pub fn is_unbound() -> bool {
    let mut mode: libc::c_int = -1;
    let nodes = std::ptr::null_mut::<libc::c_ulong>();
    // SAFETY: the call writes one integer, and no nodes because their pointer is null.
    let known =
        unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, nodes, 0, nodes, 0) };
    known == 0 && matches!(mode, MPOL_DEFAULT | MPOL_LOCAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_setting_of_balancing_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(!is_on(folder.path()));
        let file = folder.path().join("sys/kernel");
        std::fs::create_dir_all(&file).expect("made");
        for (text, on) in [("0\n", false), ("1\n", true), ("2\n", true), ("", false)] {
            std::fs::write(file.join("numa_balancing"), text).expect("written");
            assert_eq!(is_on(folder.path()), on, "{text:?}");
        }
    }

    #[test]
    fn a_thread_is_held_off_and_stays_so() {
        // The thread is a new one, so that no other test shares its policy.
        std::thread::spawn(|| assert_eq!(hold_off(), hold_off()))
            .join()
            .expect("the same twice");
    }
}
