//! The system call `perf_event_open(2)`, the sampler's attributes, and the controls of open events.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nearpage_machine::CpuId;
use nearpage_perf_abi::{Attributes, event, flag, ioctl, open, read_format};

/// Reading an event also returns the time for which it was enabled, and the time for which it counted
/// ([`Attributes::read_format`]).
pub(crate) const READ_TIMES: u64 =
    read_format::TOTAL_TIME_ENABLED | read_format::TOTAL_TIME_RUNNING;

/// Attributes of the software event `config` ([`event`]), stamped with CLOCK_MONOTONIC, in user and kernel mode.
pub(crate) fn software_attributes(config: u64) -> Attributes {
    Attributes {
        flags: flag::DISABLED | flag::EXCLUDE_HV | flag::USE_CLOCKID,
        clockid: libc::CLOCK_MONOTONIC,
        ..Attributes::new(event::TYPE_SOFTWARE, config)
    }
}

/// Attributes of an event of the PMU with number `kind`, stamped with CLOCK_MONOTONIC, in user mode only. The array is
/// `config`, `config1`, `config2`.
pub(crate) fn device_attributes(kind: u32, [config, config1, config2]: [u64; 3]) -> Attributes {
    Attributes {
        config1,
        config2,
        read_format: READ_TIMES,
        flags: flag::DISABLED | flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV | flag::USE_CLOCKID,
        clockid: libc::CLOCK_MONOTONIC,
        ..Attributes::new(kind, config)
    }
}

/// Tasks and CPUs that an event covers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope {
    /// A process (0: the calling thread) and its children, while on one CPU.
    ProcessOn(libc::pid_t, CpuId),
    /// The calling thread on any CPU.
    ThisThread,
    /// All tasks on a CPU.
    MachineOn(CpuId),
    /// All tasks on a CPU in the control group whose folder has this file descriptor.
    CgroupOn(libc::c_int, CpuId),
}

/// An open event.
#[derive(Debug)]
pub(crate) struct PerfEvent(OwnedFd);

impl PerfEvent {
    /// Opens an event. The error is the kernel's.
    pub fn open(attributes: &Attributes, scope: Scope) -> io::Result<Self> {
        Self::open_led(attributes, scope, None)
    }

    /// Opens an event, in the group of `leader` if there is one.
    pub fn open_led(
        attributes: &Attributes,
        scope: Scope,
        leader: Option<&PerfEvent>,
    ) -> io::Result<Self> {
        let on = |cpu: CpuId| cpu.0 as libc::c_int;
        let (pid, cpu, flags) = match scope {
            Scope::ProcessOn(pid, cpu) => (pid, on(cpu), 0),
            Scope::ThisThread => (0, -1, 0),
            Scope::MachineOn(cpu) => (-1, on(cpu), 0),
            Scope::CgroupOn(folder, cpu) => (folder, on(cpu), open::PID_CGROUP),
        };
        // SAFETY: the attributes are a valid `perf_event_attr` with its length in the size field; the kernel only
        // reads them.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                std::ptr::from_ref(attributes),
                pid,
                cpu,
                leader.map_or(-1, PerfEvent::raw),
                flags | open::FD_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just returned this descriptor, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) }))
    }

    /// Starts the event and its copies in other threads.
    pub fn enable(&self) -> io::Result<()> {
        self.control(ioctl::ENABLE, 0)
    }

    /// Stops the event and its copies in other threads.
    pub fn disable(&self) -> io::Result<()> {
        self.control(ioctl::DISABLE, 0)
    }

    /// Writes this event's records to the ring of `other`, an event on the same CPU.
    pub fn write_to(&self, other: &PerfEvent) -> io::Result<()> {
        self.control(ioctl::SET_OUTPUT, other.raw() as u64)
    }

    /// The identifier in the records of this event and of its copies in other threads.
    pub fn id(&self) -> io::Result<u64> {
        let mut id = 0u64;
        self.control(ioctl::ID, std::ptr::from_mut(&mut id) as u64)?;
        Ok(id)
    }

    /// Nanoseconds for which the event and its copies counted, for events opened with [`READ_TIMES`].
    pub fn running_ns(&self) -> io::Result<u64> {
        let mut values = [0u64; 3];
        // SAFETY: the buffer has the given length, and any bytes are valid integers.
        let read =
            unsafe { libc::read(self.raw(), values.as_mut_ptr().cast(), size_of_val(&values)) };
        match read {
            24 => Ok(values[2]),
            0.. => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Another descriptor of the same event, which lives until both are closed.
    pub fn again(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    pub fn raw(&self) -> libc::c_int {
        self.0.as_raw_fd()
    }

    fn control(&self, request: u64, argument: u64) -> io::Result<()> {
        // SAFETY: every request takes an integer, or (ID) a pointer to a u64 that outlives the call.
        match unsafe { libc::ioctl(self.raw(), request as _, argument) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
