#![doc = include_str!("../../../docs/reference/layouts/samples.md")]

/// First eight bytes; the last is the version.
pub const MAGIC: [u8; 8] = *b"NPSMPLS\x01";
/// Offset of the first slot.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 192;
/// General registers of a sample.
pub const REGISTERS: usize = 16;
/// Most slots that a file has, 12 MiB.
pub const SLOTS_MAX: usize = 1 << 16;

/// Clock of the calling thread's time in user mode: `CPUCLOCK_VIRT` of thread 0, as in `posix-timers_types.h`. The
/// clock advances at the tick that finds the thread in user mode, so a timer on it expires just then.
pub const THREAD_USER_CLOCK: i32 = !0 << 3 | 4 | 1;

/// Offsets in the header.
#[allow(missing_docs)]
pub mod offset {
    pub const PID: usize = 8;
    pub const PARENT: usize = 12;
    pub const START_NS: usize = 16;
    pub const SLOTS: usize = 24;
    pub const SLOT_BYTES: usize = 28;
    pub const SIGNAL: usize = 32;
    pub const FORKED: usize = 36;
    pub const ENDED: usize = 40;
    pub const HEAD: usize = 64;
    pub const DROPPED: usize = 72;
    pub const BLOCKED_NS: usize = 80;
    pub const NO_TIMER: usize = 88;
    pub const TAIL: usize = 128;
    pub const PERIOD_NS: usize = 136;
}

/// Offsets in a slot.
#[allow(missing_docs)]
pub mod slot {
    pub const SEQUENCE: usize = 0;
    pub const KIND: usize = 8;
    pub const TID: usize = 12;
    pub const TIME_NS: usize = 16;
    pub const CPU: usize = 24;
    pub const MISSED: usize = 28;
    pub const PERIOD_NS: usize = 32;
    pub const INSTRUCTION: usize = 40;
    pub const REGISTERS: usize = 48;
    pub const THREAD_POINTER: usize = 176;
}

/// Kind of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A sample.
    Sample = 1,
    /// The thread began.
    ThreadBegins = 2,
    /// The thread ended.
    ThreadEnds = 3,
}

/// Why sampling stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum StopReason {
    /// The program installed a handler of its own for the signal.
    SignalTaken = 1,
    /// The program uses all realtime signals.
    NoSignal = 2,
}

impl StopReason {
    /// The reason with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::SignalTaken, Self::NoSignal]
            .into_iter()
            .find(|reason| *reason as u32 == number)
    }
}

/// The fields of the header that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Process id.
    pub pid: u32,
    /// Process id of the parent.
    pub parent_pid: u32,
    /// CLOCK_MONOTONIC when sampling of the process began.
    pub start_ns: u64,
    /// Number of slots: a power of two, at most [`SLOTS_MAX`].
    pub slots: u32,
    /// Whether the process is a forked copy of its parent.
    pub forked: bool,
}

impl Header {
    /// Parses the first [`HEADER_BYTES`] of a file of `file_bytes`. `None` if they are no header of this version, or if
    /// the file is shorter than they say.
    pub fn parse(bytes: &[u8], file_bytes: u64) -> Option<Self> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        let slots = u32_at(bytes, offset::SLOTS)?;
        let usable = bytes.get(..8)? == MAGIC
            && u32_at(bytes, offset::SLOT_BYTES)? as usize == SLOT_BYTES
            && slots.is_power_of_two()
            && slots as usize <= SLOTS_MAX
            && (HEADER_BYTES + slots as usize * SLOT_BYTES) as u64 <= file_bytes;
        usable.then_some(Self {
            pid: u32_at(bytes, offset::PID)?,
            parent_pid: u32_at(bytes, offset::PARENT)?,
            start_ns: u64_at(bytes, offset::START_NS)?,
            slots,
            forked: u32_at(bytes, offset::FORKED)? == 1,
        })
    }
}

/// Contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Kind of the slot.
    pub kind: Kind,
    /// Thread id.
    pub tid: u32,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// CPU that the thread was on.
    pub cpu: u32,
    /// Number of periods before this one that were not sampled because the signal was blocked.
    pub missed: u32,
    /// Time that a sample stands for.
    pub period_ns: u64,
    /// Address of the interrupted instruction.
    pub instruction: u64,
    /// AX BX CX DX SI DI BP SP R8–R15.
    pub registers: [u64; REGISTERS],
    /// Base address of FS.
    pub thread_pointer: u64,
}

impl Slot {
    /// Parses a slot; `None` if the bytes are no slot of a known kind.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < SLOT_BYTES {
            return None;
        }
        let number = u32_at(bytes, slot::KIND)?;
        let kind = [Kind::Sample, Kind::ThreadBegins, Kind::ThreadEnds]
            .into_iter()
            .find(|kind| *kind as u32 == number)?;
        let mut registers = [0; REGISTERS];
        for (number, register) in registers.iter_mut().enumerate() {
            *register = u64_at(bytes, slot::REGISTERS + 8 * number)?;
        }
        Some(Self {
            kind,
            tid: u32_at(bytes, slot::TID)?,
            time_ns: u64_at(bytes, slot::TIME_NS)?,
            cpu: u32_at(bytes, slot::CPU)?,
            missed: u32_at(bytes, slot::MISSED)?,
            period_ns: u64_at(bytes, slot::PERIOD_NS)?,
            instruction: u64_at(bytes, slot::INSTRUCTION)?,
            registers,
            thread_pointer: u64_at(bytes, slot::THREAD_POINTER)?,
        })
    }
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_what_the_kernel_calls_it() {
        // MAKE_THREAD_CPUCLOCK(0, CPUCLOCK_VIRT).
        assert_eq!(THREAD_USER_CLOCK, -3);
    }

    fn header() -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        let mut put =
            |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        put(offset::PID, 7);
        put(offset::PARENT, 6);
        put(offset::START_NS, 5);
        put(offset::SLOTS, 64);
        put(offset::SLOT_BYTES, SLOT_BYTES as u32);
        put(offset::FORKED, 1);
        bytes
    }

    #[test]
    fn headers_of_other_sizes_are_none() {
        let bytes = header();
        let file_bytes = (HEADER_BYTES + 64 * SLOT_BYTES) as u64;
        let expected = Header {
            pid: 7,
            parent_pid: 6,
            start_ns: 5,
            slots: 64,
            forked: true,
        };
        assert_eq!(Header::parse(&bytes, file_bytes), Some(expected));
        assert_eq!(Header::parse(&bytes, file_bytes - 1), None);
        assert_eq!(Header::parse(&bytes[..40], file_bytes), None);
        for (at, value) in [
            (0, b'X'),
            (7, 2),
            (offset::SLOTS, 65),
            (offset::SLOTS + 3, 1),
            (offset::SLOT_BYTES, 0),
        ] {
            let mut bytes = header();
            bytes[at] = value;
            assert_eq!(Header::parse(&bytes, u64::MAX), None, "{at}");
        }
    }

    #[test]
    fn slots_are_read_where_they_are_written() {
        let mut bytes = [0u8; SLOT_BYTES];
        for (number, word) in bytes.chunks_mut(8).enumerate() {
            word.copy_from_slice(&(number as u64).to_le_bytes());
        }
        assert_eq!(
            Slot::parse(&bytes),
            Some(Slot {
                kind: Kind::Sample,
                tid: 0,
                time_ns: 2,
                cpu: 3,
                missed: 0,
                period_ns: 4,
                instruction: 5,
                registers: core::array::from_fn(|number| 6 + number as u64),
                thread_pointer: 22,
            })
        );
        assert_eq!(Slot::parse(&bytes[..SLOT_BYTES - 1]), None);
        bytes[slot::KIND] = 9;
        assert_eq!(Slot::parse(&bytes), None);
    }
}
