//! For `benches/live_samples.rs`: turns records in rings into accesses as the sampler does, without a kernel that
//! fills the rings.

use std::io;

use nearpage_perf_abi::{Map, Sideband, header};

use crate::architecture::GENERAL_REGISTERS;
use crate::calibrate::SkidSide;
use crate::follower::{Follower, Sink};
use crate::merge::{UnreadRecords, Window};
use crate::record::{Identifiers, Origin};
use crate::sampler::ACCESSES_AT_ONCE;

/// Follows the records of rings.
pub struct Following {
    window: Window,
    follower: Follower,
}

/// Appends a user-mode sample of a thread, whose registers all hold `address`.
pub fn append_sample(
    ring: &mut Vec<u8>,
    (pid, tid, cpu): (u32, u32, u32),
    time_ns: u64,
    ip: u64,
    address: u64,
) {
    const ABI_64: u64 = 2;
    let tids = u64::from(pid) | u64::from(tid) << 32;
    let words = [7, ip, tids, time_ns, cpu.into(), 100_000, ABI_64];
    let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    body.extend(
        [address; GENERAL_REGISTERS]
            .iter()
            .flat_map(|word| word.to_le_bytes()),
    );
    header::append_user_sample(ring, &body);
}

impl Following {
    /// Follows this process, which has `length` bytes of code at `code`.
    pub fn itself(code: u64, length: u64) -> Self {
        let pid = std::process::id();
        let mut window = Window::default();
        let map = Map {
            pid,
            address: code,
            length,
            protection: (libc::PROT_READ | libc::PROT_EXEC) as u32,
            path: b"//anon",
            ..Map::default()
        };
        window.add(|records| Origin::new(pid, pid, 0).append(Sideband::Map(map), records));
        Self {
            window,
            follower: Follower::new(SkidSide::Before, Identifiers::default()),
        }
    }

    /// Follows the records in `rings` in one round. Returns their size in bytes.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn round(&mut self, rings: &[&[u8]], sink: &mut dyn Sink) -> io::Result<usize> {
        let Self { window, follower } = self;
        let mut unread: Vec<UnreadRecords<'_>> = rings
            .iter()
            .map(|ring| UnreadRecords::new([ring, &[]]))
            .collect();
        follower.follow_all(window, u64::MAX, ACCESSES_AT_ONCE, &mut unread, sink)?;
        follower.hand_over(sink)?;
        Ok(unread.iter().map(|ring| ring.passed).sum())
    }
}
