//! Finds the child whose end made a `wait4` or `waitid` return.

use std::fs::File;
use std::os::unix::fs::FileExt;

const P_PID: u64 = 1;
const WNOHANG: u64 = 1;
/// `WUNTRACED` (`WSTOPPED` of `waitid`) and `WCONTINUED`: the call also returns when a child stops or continues.
const NOT_ONLY_ENDS: u64 = 2 | 8;
/// Offsets in a `siginfo_t`.
const SI_CODE: u64 = 8;
const SI_PID: u64 = 16;
/// `CLD_EXITED`, `CLD_KILLED`, `CLD_DUMPED`.
const ENDS: std::ops::RangeInclusive<u32> = 1..=3;

/// The child that ended, if a `wait4` with these arguments returned `result` for that; `memory` reads a word of the
/// program's memory.
pub fn of_wait4(
    [_, status, options, ..]: [u64; 6],
    result: i64,
    memory: impl Fn(u64) -> Option<u32>,
) -> Option<u32> {
    let child = u32::try_from(result).ok().filter(|child| *child > 0)?;
    if options & NOT_ONLY_ENDS != 0 {
        let status = memory(status)?;
        let (stopped, continued) = (status & 0x7f == 0x7f, status == 0xffff);
        if stopped || continued {
            return None;
        }
    }
    Some(child)
}

/// The child that ended, if a `waitid` returned for that.
pub fn of_waitid(
    [kind, id, info, options, ..]: [u64; 6],
    result: i64,
    memory: impl Fn(u64) -> Option<u32>,
) -> Option<u32> {
    if result != 0 {
        return None;
    }
    if info == 0 {
        let surely = kind == P_PID && options & (NOT_ONLY_ENDS | WNOHANG) == 0;
        return u32::try_from(id).ok().filter(|_| surely);
    }
    let child = memory(info + SI_PID).filter(|child| *child > 0)?;
    ENDS.contains(&memory(info + SI_CODE)?).then_some(child)
}

/// Reads a word of the program's memory; `None`, never a fault, if the address is not mapped.
pub fn word(address: u64, guest_base: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    let memory = File::open("/proc/thread-self/mem").ok()?;
    memory
        .read_exact_at(&mut bytes, address.wrapping_add(guest_base))
        .ok()?;
    Some(u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_children_are_told_from_stops() {
        let wait4 = |options, result, status| {
            of_wait4([0, 0x100, options, 0, 0, 0], result, |address| {
                (address == 0x100).then_some(status)
            })
        };
        // Exited with 3, killed by 9, stopped by 19, continued.
        for options in [0, NOT_ONLY_ENDS] {
            assert_eq!(wait4(options, 77, 3 << 8), Some(77));
            assert_eq!(wait4(options, 77, 9), Some(77));
        }
        assert_eq!(wait4(NOT_ONLY_ENDS, 77, 19 << 8 | 0x7f), None);
        assert_eq!(wait4(NOT_ONLY_ENDS, 77, 0xffff), None);
        assert_eq!(wait4(WNOHANG, 0, 0), None);
        assert_eq!(wait4(0, -10, 0), None);

        let waitid = |arguments: [u64; 4], result, code| {
            let [kind, id, info, options] = arguments;
            of_waitid(
                [kind, id, info, options, 0, 0],
                result,
                |address| match address {
                    0x208 => Some(code),
                    0x210 => Some(78),
                    _ => None,
                },
            )
        };
        for code in ENDS {
            assert_eq!(waitid([0, 0, 0x200, 4], 0, code), Some(78));
        }
        assert_eq!(waitid([0, 0, 0x200, 6], 0, 5), None, "stopped");
        assert_eq!(waitid([0, 0, 0x200, 4], -10, 1), None);
        assert_eq!(waitid([0, 0, 0x300, 5], 0, 1), None, "none has ended");
        assert_eq!(waitid([P_PID, 78, 0, 4], 0, 1), Some(78));
        assert_eq!(waitid([P_PID, 78, 0, 5], 0, 1), None);
    }

    #[test]
    fn memory_is_read_where_there_is_some() {
        let word_here = 0x1234_5678_u32;
        let address = &raw const word_here as u64;
        assert_eq!(word(address, 0), Some(word_here));
        assert_eq!(word(address - 16, 16), Some(word_here));
        assert_eq!(word(8, 0), None);
    }
}
