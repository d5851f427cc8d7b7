//! Time to move a page: `move_pages` of pages of this process, from one node to another and back.

use std::io;
use std::time::Instant;

use super::memory::Buffer;
use super::{Measurement, kernels, median, on_cpu, round_to};

/// Pages per call of `move_pages`. As in the daemon, many pages share the fixed cost of a call.
const PAGES: usize = 512;

impl Measurement {
    /// Time in nanoseconds to move a page between the first two nodes with memory, on a CPU of the first node with
    /// CPUs; `None` and a note if pages cannot be moved.
    pub(super) fn move_ns(&mut self) -> Option<f64> {
        let [(from, _), (to, _), ..] = self.memory_nodes[..] else {
            return None;
        };
        let cpu = self.cpu_nodes[0].1[0];
        match on_cpu(cpu, || self.moved_ns([from, to])) {
            Ok(Ok(ns)) => Some(round_to(ns, 10.0)),
            Ok(Err(error)) => {
                self.notes
                    .push(format!("what moving a page takes is not measured: {error}"));
                None
            }
            // The CPU is used for latencies, too; if it is unavailable, these report that.
            Err(_) => None,
        }
    }

    fn moved_ns(&self, positions: [usize; 2]) -> io::Result<f64> {
        let [from, to] = positions.map(|position| self.machine.nodes[position].id);
        let page_bytes = self.machine.page_bytes as usize;
        let mut buffer = Buffer::new(PAGES * page_bytes, Some(from), 0)?;
        kernels::write(buffer.words_mut(), 1);
        let mut times = Vec::new();
        // The first round warms up and does not count.
        for round in 0..=self.effort.rounds {
            for target in [to, from] {
                let began = Instant::now();
                let (moved, pages) = buffer.move_to(target, page_bytes)?;
                let took_ns = began.elapsed().as_nanos() as f64;
                if moved < pages {
                    return Err(io::Error::other(format!(
                        "{moved} of {pages} pages went to node {target}; does it have free memory?"
                    )));
                }
                if round > 0 {
                    times.push(took_ns / pages as f64);
                }
            }
        }
        Ok(median(times))
    }
}
