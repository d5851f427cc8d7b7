//! The part of `perf_event_open(2)`'s interface that the sampler uses: attributes, the call, and
//! the controls on an open event.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nearpage_machine::CpuId;

/// `struct perf_event_attr` as of Linux 5.13 (`PERF_ATTR_SIZE_VER7`). Older kernels take it as
/// long as what they don't know is zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup_watermark: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    pub sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved2: u16,
    aux_sample_size: u32,
    reserved3: u32,
    sig_data: u64,
}

const TYPE_SOFTWARE: u32 = 1;

/// Bits of [`Attributes::sample_type`].
pub(crate) mod sample_type {
    pub const IP: u64 = 1;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const RAW: u64 = 1 << 10;
    pub const REGS_USER: u64 = 1 << 12;
    pub const WEIGHT: u64 = 1 << 14;
    pub const DATA_SRC: u64 = 1 << 15;
    pub const IDENTIFIER: u64 = 1 << 16;
}

/// Bits of [`Attributes::flags`].
pub(crate) mod flag {
    pub const DISABLED: u64 = 1;
    pub const INHERIT: u64 = 1 << 1;
    pub const EXCLUDE_IDLE: u64 = 1 << 7;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HV: u64 = 1 << 6;
    pub const MMAP: u64 = 1 << 8;
    pub const COMM: u64 = 1 << 9;
    /// `sample_period` is samples per second.
    pub const FREQUENCY: u64 = 1 << 10;
    pub const ENABLE_ON_EXEC: u64 = 1 << 12;
    pub const TASK: u64 = 1 << 13;
    pub const WATERMARK: u64 = 1 << 14;
    /// Two bits: how near the sampled instruction is to the one that caused the event.
    pub const PRECISE_SHIFT: u32 = 15;
    pub const MMAP_DATA: u64 = 1 << 17;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub const MMAP2: u64 = 1 << 23;
    pub const COMM_EXEC: u64 = 1 << 24;
    pub const USE_CLOCKID: u64 = 1 << 25;
    /// Build-ids in MMAP2 records, Linux 5.12.
    pub const BUILD_ID: u64 = 1 << 34;
}

/// Events the sampler opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// `PERF_COUNT_SW_CPU_CLOCK`: time on a CPU, in nanoseconds.
    CpuClock,
    /// `PERF_COUNT_SW_PAGE_FAULTS`.
    PageFaults,
}

/// An event is read with the time that it was wanted and the time that it was counting
/// ([`Attributes::read_format`]).
pub(crate) const READ_TIMES: u64 = 3;

impl Attributes {
    /// Attributes of an event of the PMU with number `kind`, stamped with CLOCK_MONOTONIC, in user
    /// mode alone. `config` is `config`, `config1`, `config2`.
    pub fn of_device(kind: u32, config: [u64; 3]) -> Self {
        Self {
            kind,
            size: size_of::<Self>() as u32,
            config: config[0],
            config1: config[1],
            config2: config[2],
            read_format: READ_TIMES,
            flags: flag::DISABLED | flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV | flag::USE_CLOCKID,
            clockid: libc::CLOCK_MONOTONIC,
            ..Self::default()
        }
    }

    /// Attributes of an event that is stamped with CLOCK_MONOTONIC and counts user and kernel mode.
    pub fn new(counted: Counted) -> Self {
        let (kind, config) = match counted {
            Counted::CpuClock => (TYPE_SOFTWARE, 0),
            Counted::PageFaults => (TYPE_SOFTWARE, 2),
        };
        Self {
            kind,
            size: size_of::<Self>() as u32,
            config,
            flags: flag::DISABLED | flag::EXCLUDE_HV | flag::USE_CLOCKID,
            clockid: libc::CLOCK_MONOTONIC,
            ..Self::default()
        }
    }

    #[cfg(test)]
    pub fn kind(&self) -> u32 {
        self.kind
    }

    #[cfg(test)]
    pub fn configuration(&self) -> [u64; 3] {
        [self.config, self.config1, self.config2]
    }
}

/// Whose time an event counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope {
    /// A process (0: the caller's thread) and what it starts, while on one CPU.
    ProcessOn(libc::pid_t, CpuId),
    /// The calling thread, wherever it runs.
    ThisThread,
    /// Whatever runs on a CPU.
    MachineOn(CpuId),
    /// What runs on a CPU and is in the control group whose folder is open as this file.
    CgroupOn(libc::c_int, CpuId),
}

/// An open event.
#[derive(Debug)]
pub(crate) struct PerfEvent(OwnedFd);

impl PerfEvent {
    /// Opens an event; the error is the kernel's.
    pub fn open(attributes: &Attributes, scope: Scope) -> io::Result<Self> {
        Self::open_led(attributes, scope, None)
    }

    /// Opens an event, in the group of `leader` where there is one.
    pub fn open_led(
        attributes: &Attributes,
        scope: Scope,
        leader: Option<&PerfEvent>,
    ) -> io::Result<Self> {
        const FLAG_PID_CGROUP: libc::c_ulong = 4;
        const FLAG_FD_CLOEXEC: libc::c_ulong = 8;
        let on = |cpu: CpuId| cpu.0 as libc::c_int;
        let (pid, cpu, flags) = match scope {
            Scope::ProcessOn(pid, cpu) => (pid, on(cpu), 0),
            Scope::ThisThread => (0, -1, 0),
            Scope::MachineOn(cpu) => (-1, on(cpu), 0),
            Scope::CgroupOn(folder, cpu) => (folder, on(cpu), FLAG_PID_CGROUP),
        };
        // SAFETY: the attributes are a valid `perf_event_attr` whose size field says how long it
        // is; the kernel only reads them.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                std::ptr::from_ref(attributes),
                pid,
                cpu,
                leader.map_or(-1, PerfEvent::raw),
                flags | FLAG_FD_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just returned this descriptor, nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) }))
    }

    /// Lets the event and its copies in other threads count.
    pub fn enable(&self) -> io::Result<()> {
        self.control(ENABLE, 0)
    }

    /// Stops the event and its copies in other threads.
    pub fn disable(&self) -> io::Result<()> {
        self.control(DISABLE, 0)
    }

    /// Writes this event's records to the ring of `other`, an event on the same CPU.
    pub fn write_to(&self, other: &PerfEvent) -> io::Result<()> {
        self.control(SET_OUTPUT, other.raw() as libc::c_ulong)
    }

    /// The number that this event's records carry, and those of its copies in other threads.
    pub fn id(&self) -> io::Result<u64> {
        let mut id = 0u64;
        self.control(ID, std::ptr::from_mut(&mut id) as libc::c_ulong)?;
        Ok(id)
    }

    /// Nanoseconds that the event and its copies were counting; for events opened with
    /// [`READ_TIMES`].
    pub fn running_ns(&self) -> io::Result<u64> {
        let mut values = [0u64; 3];
        // SAFETY: the buffer is as long as said, and any bytes are integers.
        let read =
            unsafe { libc::read(self.raw(), values.as_mut_ptr().cast(), size_of_val(&values)) };
        match read {
            24 => Ok(values[2]),
            0.. => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Another file of the same event: the event lives as long as either.
    pub fn again(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    pub fn raw(&self) -> libc::c_int {
        self.0.as_raw_fd()
    }

    fn control(&self, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<()> {
        // SAFETY: every request above takes an integer, or (ID) a pointer to a u64 that lives
        // through the call.
        match unsafe { libc::ioctl(self.raw(), request, argument) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;
const SET_OUTPUT: libc::c_ulong = 0x2405;
const ID: libc::c_ulong = 0x8008_2407;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_the_size_they_claim() {
        assert_eq!(size_of::<Attributes>(), 128);
        assert_eq!(std::mem::offset_of!(Attributes, sample_regs_user), 80);
        assert_eq!(std::mem::offset_of!(Attributes, clockid), 92);
        assert_eq!(std::mem::offset_of!(Attributes, config1), 56);
        assert_eq!(std::mem::offset_of!(Attributes, aux_watermark), 104);
    }
}
