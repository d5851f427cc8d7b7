//! Calls of `futex`: who waits for whom, while tracing and in a replay.

use nearpage_wire::trace::Record;

use super::Wait;
use crate::thread::Thread;

/// `INT_MAX`: the number by which `FUTEX_WAKE` wakes everyone.
const EVERYONE: u32 = i32::MAX as u32;

impl Thread {
    /// A call of `futex` begins.
    pub(super) fn futex(&mut self, [first, second, third, fourth, fifth, _]: [u64; 6]) {
        let process = self.process;
        match second & 0x7f {
            // WAIT, WAIT_BITSET, LOCK_PI, WAIT_REQUEUE_PI, LOCK_PI2.
            operation @ (0 | 9 | 6 | 11 | 13) => {
                let arrival = process.futexes().wait(first, self.member, operation == 0);
                if let Some(sequence) = arrival {
                    self.record(&Record::Signal {
                        sequence,
                        address: first,
                    });
                }
                self.sleep(Wait::Futex(first));
            }
            // WAKE, WAKE_BITSET, UNLOCK_PI.
            1 | 10 => {
                if third as u32 >= EVERYONE {
                    self.meet(first);
                }
                self.wake(first, third);
            }
            7 => self.wake(first, 1),
            // REQUEUE, CMP_REQUEUE, CMP_REQUEUE_PI.
            3 | 4 | 12 => {
                self.wake(first, third);
                process.futexes().requeue(first, fifth, fourth as usize);
            }
            // WAKE_OP.
            5 => {
                self.wake(first, third);
                self.wake(fifth, fourth);
            }
            _ => {}
        }
    }

    /// Wakes up to `count` threads that wait at the address.
    pub(super) fn wake(&mut self, address: u64, count: u64) {
        let (process, time) = (self.process, self.time());
        let signal = process
            .futexes()
            .wake(address, count.min(1 << 31) as usize, time);
        if let Some(signal) = signal {
            self.record(&Record::Signal {
                sequence: signal.sequence,
                address,
            });
            for member in signal.woken {
                process.lockstep.woken(member, time);
            }
        }
    }

    /// The thread comes last to a barrier. While tracing it need not wait there, but in a replay others may come later.
    ///
    /// At barriers, the C library and libgomp wait by `FUTEX_WAIT` and wake everyone. At condition variables, the C
    /// library waits by `FUTEX_WAIT_BITSET`; who wakes everyone there waits for nobody.
    fn meet(&mut self, address: u64) {
        let arrivals = self.process.futexes().arrivals(address);
        for after in arrivals {
            self.record(&Record::Resume {
                after,
                address,
                waited_instructions: 0,
            });
        }
    }
}
