//! Hardware samples of memory accesses: Intel's load latency and stores (PEBS), AMD's IBS, Arm's SPE.
//!
//! Events come from the kernel's descriptions in sysfs; there is no table of CPU models. Decoding from bytes to
//! accesses is a pure function. **No part has run on such hardware yet**: tests use bytes built from the kernel's and
//! the vendors' documents, and values seen in perf's output.
//!
//! An access keeps its level and latency. Snoops, physical address and page size have no place in a recording yet and
//! are not requested. The TLB's result is only used to select misses, if those are requested.

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
