//! Filters of system calls that the program installs for itself (seccomp(2)).
//!
//! A filter permits the calls that the program makes; another call of this library could end the process. The hooks notice
//! a filter before it is installed, and from then on the library makes no system call.

use crate::sys::number;

/// `PR_SET_SECCOMP`.
pub const PRCTL_OPTION: usize = 22;
/// `SECCOMP_MODE_STRICT`.
const MODE_STRICT: usize = 1;
/// `SECCOMP_MODE_FILTER`.
const MODE_FILTER: usize = 2;
/// `SECCOMP_SET_MODE_STRICT`.
const SET_STRICT: u32 = 0;
/// `SECCOMP_SET_MODE_FILTER`.
const SET_FILTER: u32 = 1;

/// Does `prctl` install a filter, given its second and third argument? A call that only asks for the kernel's abilities
/// passes no filter.
pub fn is_installed_by_prctl(mode: usize, filter: usize) -> bool {
    mode == MODE_STRICT || mode == MODE_FILTER && filter != 0
}

/// Does a bare system call with these first arguments install a filter?
pub fn is_installed_by(call: usize, [first, second, third]: [usize; 3]) -> bool {
    match call {
        number::PRCTL if first as u32 as usize == PRCTL_OPTION => {
            is_installed_by_prctl(second, third)
        }
        number::SECCOMP => match first as u32 {
            SET_STRICT => second as u32 == 0 && third == 0,
            SET_FILTER => third != 0,
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installing_a_filter_is_told_from_asking_about_filters() {
        const PR_GET_SECCOMP: usize = 21;
        const GET_ACTION_AVAILABLE: usize = 2;
        const TSYNC: usize = 1;
        let filter = 0x1000;
        for arguments in [
            [SET_STRICT as usize, 0, 0],
            [SET_FILTER as usize, 0, filter],
            [SET_FILTER as usize, TSYNC, filter],
        ] {
            assert!(is_installed_by(number::SECCOMP, arguments));
            assert!(!is_installed_by(number::FUTEX, arguments));
        }
        // Libraries make these calls to find out what the kernel supports.
        for arguments in [
            [SET_STRICT as usize, 1, 0],
            [SET_FILTER as usize, TSYNC, 0],
            [GET_ACTION_AVAILABLE, 0, filter],
        ] {
            assert!(!is_installed_by(number::SECCOMP, arguments));
        }
        let by_prctl = |arguments| is_installed_by(number::PRCTL, arguments);
        assert!(by_prctl([PRCTL_OPTION, MODE_STRICT, 0]));
        assert!(by_prctl([PRCTL_OPTION, MODE_FILTER, filter]));
        assert!(!by_prctl([PRCTL_OPTION, MODE_FILTER, 0]));
        assert!(!by_prctl([PR_GET_SECCOMP, MODE_FILTER, filter]));
    }
}
