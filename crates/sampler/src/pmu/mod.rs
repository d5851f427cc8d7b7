//! Hardware samples of memory accesses: Intel's load latency and stores (PEBS), AMD's IBS, Arm's SPE.
//!
//! Events are those that the kernel names in sysfs; there is no table of CPU models. Everything
//! from bytes to accesses is a pure function. **None of it has run on such hardware yet**: it is
//! tested on bytes built from the kernel's and the vendors' documents and on values seen in perf's
//! output.
//!
//! An access keeps its level and latency; snoops, physical address and page size have no place in a
//! recording yet and are not asked for. Of the TLB's result it is only looked whether it was a miss,
//! where those alone are wanted.

mod devices;
mod events;
mod frequency;
mod ibs;
mod sample;
pub(crate) mod spe;

pub use events::{DEFAULT_MIN_LATENCY_CYCLES, PmuEvent, PmuOptions};

pub(crate) use devices::{Device, Field};
pub(crate) use events::MemoryEvent;
pub use frequency::Frequencies;
pub(crate) use sample::{Form, IBS_SAMPLE, MemorySample, Observation, decode};
#[cfg(test)]
pub(crate) use {devices::tests::sys as fake, events::tests::ALDER_LAKE, sample::Precise};
