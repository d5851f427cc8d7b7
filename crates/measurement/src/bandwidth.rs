//! Bandwidth measurement: all CPUs of a node go through their parts of a buffer at the same time.

use std::fmt;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use nearpage_machine::{CpuId, Machine, Matrix};

use super::kernels::{self, WORD_BYTES};
use super::{BLOCK_WORDS, MeasureError, Measurement, join, median, parts, pin};

/// Kind of the accesses whose bandwidth is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Mixed,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Mixed];

    pub(super) fn of(self, machine: &mut Machine) -> &mut Option<Matrix> {
        match self {
            Self::Read => &mut machine.bandwidth.read_bytes_per_s,
            Self::Write => &mut machine.bandwidth.write_bytes_per_s,
            Self::Mixed => &mut machine.bandwidth.mixed_bytes_per_s,
        }
    }

    /// Accesses block number `at` of the part and increments `at`; numbers wrap around at the end of the part. Returns
    /// the number of bytes loaded and stored.
    pub(super) fn block(self, part: &mut [u64], at: &mut usize) -> usize {
        let streams = if self == Self::Mixed { 3 } else { 1 };
        let length = part.len() / streams;
        let block = BLOCK_WORDS.min(length);
        let start = *at % (length / block.max(1)).max(1) * block;
        *at += 1;
        match self {
            Self::Read => kernels::read(&part[start..start + block]),
            Self::Write => kernels::write(&mut part[start..start + block], *at as u64),
            Self::Mixed => {
                let (target, rest) = part.split_at_mut(length);
                let (a, b) = rest.split_at(length);
                let range = start..start + block;
                kernels::mix(&mut target[range.clone()], &a[range.clone()], &b[range]);
            }
        }
        streams * block * WORD_BYTES
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Mixed => "mixed",
        })
    }
}

impl Measurement {
    /// Bandwidth of all CPUs together, as the median over rounds.
    pub(super) fn bandwidth_bytes_per_s(
        &self,
        kind: Kind,
        cpus: &[CpuId],
        words: &mut [u64],
    ) -> Result<f64, MeasureError> {
        let rounds = self.effort.rounds as usize;
        let round_start = Barrier::new(cpus.len());
        let rates: Vec<Vec<f64>> = thread::scope(|scope| {
            let mut rest = words;
            let mut threads = Vec::new();
            for (&cpu, range) in cpus.iter().zip(parts(rest.len(), cpus.len())) {
                let (part, others) = rest.split_at_mut(range.len());
                rest = others;
                let round_start = &round_start;
                threads.push(scope.spawn(move || {
                    let pinned = pin(cpu);
                    let mut at = 0;
                    let rates = (0..=rounds).map(|_| {
                        round_start.wait();
                        let start = Instant::now();
                        let mut bytes = 0;
                        loop {
                            bytes += kind.block(part, &mut at);
                            let elapsed = start.elapsed();
                            if elapsed >= self.effort.round {
                                break bytes as f64 / elapsed.as_secs_f64();
                            }
                        }
                    });
                    let rates = rates.collect();
                    pinned.map(|()| rates)
                }));
            }
            threads.into_iter().map(join).collect::<Result<_, _>>()
        })?;
        let sums = (1..=rounds).map(|round| rates.iter().map(|of| of[round]).sum());
        Ok(median(sums.collect()))
    }
}
