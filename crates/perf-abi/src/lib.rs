//! The binary interface of `perf_event_open(2)`: numbers, record layouts and `data_src`.
//!
//! The sampler reads these records from the kernel's rings, the importer reads them from
//! `perf.data` files. Sources: the manual page perf_event_open(2), and the kernel's
//! include/uapi/linux/perf_event.h. Names follow the header, in Rust's spelling.
//!
//! Parsing is total: a record is only bytes, and may come from a hostile file. A record that is too short is
//! [`Malformed`]. All numbers are little-endian, as on every machine that nearpage runs on.
//!
//! ```
//! use nearpage_perf_abi::{Sideband, header};
//!
//! let mut record = Vec::new();
//! Sideband::Exit { pid: 12, tid: 13 }.append(&mut record, &[]);
//!
//! let (header, body) = header::split(&record).unwrap();
//! let read = Sideband::parse(header.kind, header.misc, body);
//! assert_eq!(read, Ok(Some(Sideband::Exit { pid: 12, tid: 13 })));
//! ```

mod attributes;
mod bytes;
pub mod data_src;
pub mod header;
mod sample;
mod sideband;

pub use attributes::{Attributes, branch, control_page, event, flag, ioctl, open, read_format};
pub use bytes::{Bytes, u16_at, u32_at, u64_at};
pub use data_src::DataSource;
pub use sample::{Sample, fixed_offset, sample_type, trailer_bytes};
pub use sideband::{AuxStretch, BuildId, FileId, Map, Sideband};

/// Error for bytes that end before the record does, or that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;
