//! Events outside of the threads' streams of references.

use super::Damaged;
use super::bytes::{Input, Output};

/// Counts over a process, in the order of a Counters event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Counter {
    Instructions = 0,
    Loads,
    Stores,
    /// Cache lines of the translation blocks that ran.
    FetchedLines,
    DataL1Misses,
    FetchL1Misses,
    L2Hits,
    L3Hits,
    MemoryServed,
    OtherCacheServed,
    Upgrades,
    WriteBacks,
    /// Copies in other CPUs' caches that a store invalidated.
    Invalidations,
    DataTlbMisses,
    FetchTlbMisses,
    /// First-level TLB misses that the second level served; they have no records.
    SecondTlbHits,
    FirstTouches,
    Samples,
    Records,
    /// Records that could not be written (a full disk).
    RecordsDropped,
    /// Times that a thread was left out of the lockstep because it slept for an unknown reason.
    LeftLockstep,
    /// Quanta in which a thread ran nothing but one small loop without a store: it spun.
    SpunQuanta,
    /// Attempts to start a program by `exec`, including failed ones.
    Execs,
    Forks,
    /// Programs that `exec` was to start and that could not be traced.
    UntracedPrograms,
    /// The kernel's part of the first three counters, in traces of a whole system.
    KernelInstructions,
    KernelLoads,
    KernelStores,
    /// References to devices and their memory, which no cache holds, in traces of a whole system.
    DeviceReferences,
}

/// Number of [`Counter`]s.
pub const COUNTERS: usize = Counter::DeviceReferences as usize + 1;

/// Something outside a thread's stream of references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A thread made its first step.
    ThreadStart {
        /// Order of creation in the process, from 0. A creation that failed leaves a gap.
        thread: u32,
        /// Thread id.
        tid: u32,
        /// Position of the thread's CPU among the setup's.
        cpu: u32,
        /// Signal that let the thread start; 0 for a process's first thread.
        started_by: u64,
        /// In instructions.
        virtual_time: u64,
        /// Address at which the thread's code began; 0 if unknown.
        start_routine: u64,
    },
    /// A thread ended.
    ThreadEnd {
        /// The thread that ended.
        thread: u32,
        /// In instructions.
        virtual_time: u64,
        /// Instructions that the thread ran.
        instructions: u64,
    },
    /// Memory was mapped, and replaced earlier mappings there.
    Map {
        /// `PROT_…`.
        protection: u32,
        /// `MAP_…` of the call; initial mappings have `MAP_SHARED` or `MAP_PRIVATE` alone.
        flags: u32,
        /// In instructions.
        virtual_time: u64,
        /// First byte.
        address: u64,
        /// Bytes.
        length: u64,
        /// Offset in the file.
        offset: u64,
        /// Device of the file (`st_dev`); 0, as is the inode, if there is no file.
        device: u64,
        /// Inode of the file.
        inode: u64,
        /// Path of the file, or text as in a maps file.
        path: &'a [u8],
    },
    /// Memory was unmapped.
    Unmap {
        /// In instructions.
        virtual_time: u64,
        /// First byte.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// The thread asked to run another program. If nothing follows, the other program runs.
    Exec {
        /// In instructions.
        virtual_time: u64,
    },
    /// The process forked.
    Fork {
        /// Process id of the child.
        child: u32,
        /// In instructions.
        virtual_time: u64,
    },
    /// Totals at the end; counters that the writer did not know yet are 0.
    Counters([u64; COUNTERS]),
}

/// Longest path kept of a mapping, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// Upper bound of the bytes of an event.
pub const EVENT_BYTES_MAX: usize = PATH_BYTES_MAX + 128;

impl<'a> Event<'a> {
    /// Puts the event at the beginning of `out`. Returns the number of bytes, or 0 if there is no room. Paths are cut
    /// to [`PATH_BYTES_MAX`] bytes.
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let mut out = Output::new(out);
        match *self {
            Self::ThreadStart {
                thread,
                tid,
                cpu,
                started_by,
                virtual_time,
                start_routine,
            } => out.event(
                1,
                &[thread, tid, cpu],
                &[started_by, virtual_time, start_routine],
            ),
            Self::ThreadEnd {
                thread,
                virtual_time,
                instructions,
            } => out.event(2, &[thread], &[virtual_time, instructions]),
            Self::Map {
                protection,
                flags,
                virtual_time,
                address,
                length,
                offset,
                device,
                inode,
                path,
            } => {
                out.event(
                    3,
                    &[protection, flags],
                    &[virtual_time, address, length, offset, device, inode],
                );
                let path = &path[..path.len().min(PATH_BYTES_MAX)];
                out.put(&(path.len() as u16).to_le_bytes());
                out.put(path);
            }
            Self::Unmap {
                virtual_time,
                address,
                length,
            } => out.event(4, &[], &[virtual_time, address, length]),
            Self::Exec { virtual_time } => out.event(5, &[], &[virtual_time]),
            Self::Fork {
                child,
                virtual_time,
            } => out.event(6, &[child], &[virtual_time]),
            Self::Counters(counters) => {
                out.put(&[7]);
                out.put(&(COUNTERS as u16).to_le_bytes());
                counters.iter().for_each(|counter| out.u64(*counter));
            }
        }
        if out.at > out.bytes.len() { 0 } else { out.at }
    }

    fn decode(input: &mut Input<'a>) -> Option<Self> {
        Some(match *input.take(1)?.first()? {
            1 => Self::ThreadStart {
                thread: input.u32()?,
                tid: input.u32()?,
                cpu: input.u32()?,
                started_by: input.u64()?,
                virtual_time: input.u64()?,
                start_routine: input.u64()?,
            },
            2 => Self::ThreadEnd {
                thread: input.u32()?,
                virtual_time: input.u64()?,
                instructions: input.u64()?,
            },
            3 => Self::Map {
                protection: input.u32()?,
                flags: input.u32()?,
                virtual_time: input.u64()?,
                address: input.u64()?,
                length: input.u64()?,
                offset: input.u64()?,
                device: input.u64()?,
                inode: input.u64()?,
                path: {
                    let length = input.u16()?;
                    input.take(usize::from(length))?
                },
            },
            4 => Self::Unmap {
                virtual_time: input.u64()?,
                address: input.u64()?,
                length: input.u64()?,
            },
            5 => Self::Exec {
                virtual_time: input.u64()?,
            },
            6 => Self::Fork {
                child: input.u32()?,
                virtual_time: input.u64()?,
            },
            7 => {
                // Counters that this version does not know are skipped.
                let mut counters = [0; COUNTERS];
                for index in 0..usize::from(input.u16()?) {
                    let value = input.u64()?;
                    if let Some(counter) = counters.get_mut(index) {
                        *counter = value;
                    }
                }
                Self::Counters(counters)
            }
            _ => return None,
        })
    }
}

/// Decodes the events of a frame. Ends at damage.
pub struct Events<'a> {
    input: Input<'a>,
}

impl<'a> Events<'a> {
    /// The events of a frame's payload.
    pub const fn new(payload: &'a [u8]) -> Self {
        Self {
            input: Input { bytes: payload },
        }
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Result<Event<'a>, Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.input.bytes.is_empty() {
            return None;
        }
        let event = Event::decode(&mut self.input);
        if event.is_none() {
            self.input.bytes = &[];
        }
        Some(event.ok_or(Damaged))
    }
}
