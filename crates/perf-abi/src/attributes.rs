//! Interface by which an event is opened and controlled: `struct perf_event_attr`, flags of the call, `ioctl` requests,
//! the ring's control page.

use crate::{Malformed, u32_at, u64_at};

/// `struct perf_event_attr` as of Linux 5.13 (`PERF_ATTR_SIZE_VER7`). Older kernels accept the structure as long as the
/// fields that they don't know are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "names of the kernel's header")]
pub struct Attributes {
    /// `type`: one of [`event`], or the number of a PMU in sysfs.
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    /// Samples per second with [`flag::FREQ`].
    pub sample_period: u64,
    /// Bits of [`sample_type`](crate::sample_type).
    pub sample_type: u64,
    /// Bits of [`read_format`].
    pub read_format: u64,
    /// Bits of [`flag`].
    pub flags: u64,
    pub wakeup_watermark: u32,
    pub bp_type: u32,
    pub config1: u64,
    pub config2: u64,
    /// Bits of [`branch`].
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clockid: i32,
    pub sample_regs_intr: u64,
    pub aux_watermark: u32,
    pub sample_max_stack: u16,
    pub reserved2: u16,
    pub aux_sample_size: u32,
    pub reserved3: u32,
    pub sig_data: u64,
}

/// Event types (`PERF_TYPE_…`) and the software events' `config` (`PERF_COUNT_SW_…`).
#[expect(missing_docs, reason = "names of the kernel's header")]
pub mod event {
    pub const TYPE_SOFTWARE: u32 = 1;
    /// Time on a CPU, in nanoseconds.
    pub const CPU_CLOCK: u64 = 0;
    pub const PAGE_FAULTS: u64 = 2;
    pub const PAGE_FAULTS_MIN: u64 = 5;
    pub const PAGE_FAULTS_MAJ: u64 = 6;
}

/// Bits of [`Attributes::read_format`] (`PERF_FORMAT_…`).
#[expect(missing_docs, reason = "names of the kernel's header")]
pub mod read_format {
    pub const TOTAL_TIME_ENABLED: u64 = 1;
    pub const TOTAL_TIME_RUNNING: u64 = 1 << 1;
    pub const ID: u64 = 1 << 2;
    pub const GROUP: u64 = 1 << 3;
    pub const LOST: u64 = 1 << 4;
}

/// Bits of [`Attributes::branch_sample_type`] (`PERF_SAMPLE_BRANCH_…`) that lengthen a sample.
#[expect(missing_docs, reason = "names of the kernel's header")]
pub mod branch {
    pub const HW_INDEX: u64 = 1 << 17;
    pub const COUNTERS: u64 = 1 << 19;
}

/// Bits of [`Attributes::flags`], which is a bit field in the kernel's header.
#[expect(missing_docs, reason = "names of the kernel's header")]
pub mod flag {
    pub const DISABLED: u64 = 1;
    pub const INHERIT: u64 = 1 << 1;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HV: u64 = 1 << 6;
    pub const EXCLUDE_IDLE: u64 = 1 << 7;
    pub const MMAP: u64 = 1 << 8;
    pub const COMM: u64 = 1 << 9;
    pub const FREQ: u64 = 1 << 10;
    pub const ENABLE_ON_EXEC: u64 = 1 << 12;
    pub const TASK: u64 = 1 << 13;
    pub const WATERMARK: u64 = 1 << 14;
    /// Two bits: how near the sampled instruction is to the instruction that caused the event.
    pub const PRECISE_IP_SHIFT: u32 = 15;
    pub const MMAP_DATA: u64 = 1 << 17;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub const MMAP2: u64 = 1 << 23;
    pub const COMM_EXEC: u64 = 1 << 24;
    pub const USE_CLOCKID: u64 = 1 << 25;
    /// Since Linux 5.12.
    pub const BUILD_ID: u64 = 1 << 34;
}

/// Flags of the system call (`PERF_FLAG_…`).
#[expect(missing_docs, reason = "names of the kernel's header")]
pub mod open {
    pub const PID_CGROUP: u64 = 1 << 2;
    pub const FD_CLOEXEC: u64 = 1 << 3;
}

/// Requests to an open event (`PERF_EVENT_IOC_…`).
#[expect(missing_docs, reason = "names of the kernel's header")]
pub mod ioctl {
    pub const ENABLE: u64 = 0x2400;
    pub const DISABLE: u64 = 0x2401;
    pub const SET_OUTPUT: u64 = 0x2405;
    /// Writes the event's id as a `u64` to the address in the argument.
    pub const ID: u64 = 0x8008_2407;
}

/// Offsets in a ring's first page (`struct perf_event_mmap_page`).
#[expect(missing_docs, reason = "names of the kernel's header")]
pub mod control_page {
    pub const DATA_HEAD: usize = 1024;
    pub const DATA_TAIL: usize = 1032;
    pub const AUX_HEAD: usize = 1056;
    pub const AUX_TAIL: usize = 1064;
    pub const AUX_OFFSET: usize = 1072;
    pub const AUX_SIZE: usize = 1080;
}

impl Attributes {
    /// Attributes of an event, with all other fields zero.
    pub fn new(kind: u32, config: u64) -> Self {
        Self {
            kind,
            size: size_of::<Self>() as u32,
            config,
            ..Self::default()
        }
    }

    /// Reads the fields that say what was sampled and how samples are laid out. `bytes` are as long as the structure of
    /// the recording's kernel; fields beyond their end are zero.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(Self {
            sample_period: u64_at(bytes, 16)?,
            sample_type: u64_at(bytes, 24)?,
            read_format: u64_at(bytes, 32)?,
            flags: u64_at(bytes, 40)?,
            branch_sample_type: u64_at(bytes, 72).unwrap_or(0),
            sample_regs_user: u64_at(bytes, 80).unwrap_or(0),
            ..Self::new(u32_at(bytes, 0)?, u64_at(bytes, 8)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn attributes_lie_as_in_the_header() {
        assert_eq!(size_of::<Attributes>(), 128);
        assert_eq!(offset_of!(Attributes, flags), 40);
        assert_eq!(offset_of!(Attributes, config1), 56);
        assert_eq!(offset_of!(Attributes, branch_sample_type), 72);
        assert_eq!(offset_of!(Attributes, sample_regs_user), 80);
        assert_eq!(offset_of!(Attributes, clockid), 92);
        assert_eq!(offset_of!(Attributes, aux_watermark), 104);
    }

    #[test]
    fn attributes_of_older_kernels_are_shorter() {
        let bytes: Vec<u8> = (0..10u64).flat_map(u64::to_le_bytes).collect();
        let read = Attributes::parse(&bytes).unwrap();
        assert_eq!((read.kind, read.config, read.flags), (0, 1, 5));
        assert_eq!((read.branch_sample_type, read.sample_regs_user), (9, 0));
        assert_eq!(Attributes::parse(&bytes[..47]), Err(Malformed));
    }
}
