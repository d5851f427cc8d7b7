//! System calls of x86-64 that the tracer follows: mappings, waiting and waking, the clock, threads and
//! processes, and the markers.
//!
//! The markers are `prctl` calls with an option that no kernel knows ([`MARK_OPTION`]), which the
//! preload library makes from `nearpage_begin` and `nearpage_end`.

mod futex;

use std::fs::metadata;
use std::os::unix::fs::FileTypeExt;
use std::sync::atomic::Ordering::Relaxed;

use nearpage_wire::is_own_module;
use nearpage_wire::trace::{CHILD_ENDED, Counter, Event, MARK_OPTION, Record};

use crate::exec::{self, Exec};
use crate::pipes::{self, Pipe};
use crate::plugin::{guest_base, own_code};
use crate::system::run_instead;
use crate::thread::Thread;
use crate::{children, maps};

const READ: i64 = 0;
const WRITE: i64 = 1;
const CLOSE: i64 = 3;
const MMAP: i64 = 9;
const MUNMAP: i64 = 11;
const BRK: i64 = 12;
const READV: i64 = 19;
const WRITEV: i64 = 20;
const MREMAP: i64 = 25;
const MADVISE: i64 = 28;
const SHMAT: i64 = 30;
const DUP2: i64 = 33;
const SENDFILE: i64 = 40;
const CLONE: i64 = 56;
const FORK: i64 = 57;
const VFORK: i64 = 58;
const EXECVE: i64 = 59;
const EXIT: i64 = 60;
const WAIT4: i64 = 61;
const PRCTL: i64 = 157;
const FUTEX: i64 = 202;
const SET_TID_ADDRESS: i64 = 218;
const CLOCK_GETTIME: i64 = 228;
const EXIT_GROUP: i64 = 231;
const WAITID: i64 = 247;
const SPLICE: i64 = 275;
const DUP3: i64 = 292;

/// Calls that may sleep, but for reads, futexes, pipes and children: poll, pause, nanosleep,
/// accept, connect, recvfrom, recvmsg, semop, msgsnd, msgrcv, select, flock, rt_sigtimedwait,
/// rt_sigsuspend, io_getevents, semtimedop, clock_nanosleep, epoll_wait, mq_timedsend,
/// mq_timedreceive, pselect6, ppoll, epoll_pwait, accept4, recvmmsg, epoll_pwait2. The lockstep
/// notices threads that sleep in other calls.
const SLEEPING: [i64; 26] = [
    7, 34, 35, 43, 42, 45, 47, 65, 69, 70, 23, 73, 128, 130, 208, 220, 230, 232, 242, 243, 270,
    271, 281, 288, 299, 441,
];

const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const PROT_EXEC: u64 = 4;
const MAP_SHARED: u64 = 1;
const MAP_ANONYMOUS: u64 = 0x20;
const MADV_DONTNEED: u64 = 4;
const CLOCK_MONOTONIC: u64 = 1;

/// What to do when a system call returns.
#[derive(Default)]
pub enum Call {
    /// Nothing.
    #[default]
    Other,
    /// Use its result; these are its arguments.
    Result([u64; 6]),
    /// Go on after a call that may have slept.
    Slept(Wait),
    /// Give the new thread, which has this number, its id.
    Clone(u32),
    /// Tell parent and child apart.
    Fork,
}

/// What a thread may be waiting for.
pub enum Wait {
    /// An event that is not followed.
    Other,
    /// The futex at this address.
    Futex(u64),
    /// Bytes that another thread writes into the pipe.
    Pipe(Pipe),
    /// The end of a child, with these arguments.
    Child([u64; 6]),
}

/// Which process returns from a system call that may have forked.
#[derive(Debug, PartialEq, Eq)]
pub enum AfterFork {
    /// The same process.
    GoOn,
    /// This is the forked child.
    Child,
}

fn failed(result: i64) -> bool {
    (-4095..0).contains(&result)
}

impl Thread {
    fn may_sleep(number: i64, first: u64) -> bool {
        match number {
            // Regular files and folders answer at once.
            READ | READV => {
                let kind =
                    metadata(format!("/proc/thread-self/fd/{first}")).map(|file| file.file_type());
                kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket() || kind.is_char_device())
            }
            _ => SLEEPING.contains(&number),
        }
    }

    /// The thread may write to these pipes, or close them.
    fn signal_readers(&mut self, pipes: &[Pipe]) {
        if !pipes.is_empty()
            && let Some(sequence) = self.process.pipes.signal(pipes)
        {
            self.record(&Record::Signal {
                sequence,
                address: 0,
            });
        }
    }

    fn sleep(&mut self, wait: Wait) {
        self.call = Call::Slept(wait);
        self.ask_again();
        self.process.lockstep.block(self.member, self.time());
    }

    /// The process is about to execute another program: executes it in the emulator. Returns if that fails, or if the program
    /// is to run natively.
    fn exec(&mut self, arguments: [u64; 3]) {
        self.count(Counter::Execs);
        let exec = exec::what_to_run(arguments, guest_base());
        if exec == Exec::Fails {
            return;
        }
        if exec == Exec::Untraced {
            self.count(Counter::UntracedPrograms);
        }
        self.signal_readers(&pipes::all_written());
        self.flush();
        let virtual_time = self.time();
        let event = Event::Exec { virtual_time };
        let process = self.process;
        process.output.event(self.number, virtual_time, &event);
        process.write_counters(self.number, virtual_time, Some(&self.counters));
        if let Exec::Emulated(command) = exec {
            run_instead(&command.path, &command.arguments, &command.environment);
        }
    }

    /// A system call begins.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) {
        let process = self.process;
        self.call = Call::Other;
        self.calls.store(true, Relaxed);
        let [first, second, third, fourth, ..] = arguments;
        match number {
            MMAP | MUNMAP | BRK | MREMAP | SHMAT | MADVISE => self.call = Call::Result(arguments),
            CLOCK_GETTIME if first == CLOCK_MONOTONIC => self.call = Call::Result(arguments),
            PRCTL if first == MARK_OPTION => {
                let begin = second == 1;
                process.recording.store(true, Relaxed);
                self.record(&Record::Mark { begin });
                if process.setup.from_mark {
                    process.recording.store(begin, Relaxed);
                }
            }
            FUTEX => self.futex(arguments),
            CLONE if first & CLONE_VM != 0 && first & CLONE_VFORK == 0 => {
                self.create_thread(first, fourth);
            }
            CLONE | FORK | VFORK => {
                self.call = Call::Fork;
                process.lockstep.forking.fetch_add(1, Relaxed);
                self.ask_again();
                process.lockstep.block(self.member, self.time());
            }
            SET_TID_ADDRESS => self.ends_at = first,
            EXIT => {
                if self.ends_at != 0 {
                    self.wake(self.ends_at, u64::MAX);
                }
                let sequence = process.futexes().number();
                self.record(&Record::Signal {
                    sequence,
                    address: 0,
                });
                process.leave_place(self.place);
                process.lockstep.remove(self.member, self.time());
            }
            EXECVE => {
                self.exec([first, second, third]);
                self.sleep(Wait::Other);
            }
            EXIT_GROUP => {
                self.signal_readers(&pipes::all_written());
                process.lockstep.end();
            }
            WRITE | WRITEV | CLOSE | SENDFILE => {
                self.signal_readers(pipes::written(first).as_slice())
            }
            DUP2 | DUP3 => self.signal_readers(pipes::written(second).as_slice()),
            SPLICE => {
                self.signal_readers(pipes::written(third).as_slice());
                self.sleep(pipes::pipe(first).map_or(Wait::Other, Wait::Pipe));
            }
            WAIT4 | WAITID => self.sleep(Wait::Child(arguments)),
            _ if Self::may_sleep(number, first) => self.sleep(match number {
                READ | READV => pipes::pipe(first).map_or(Wait::Other, Wait::Pipe),
                _ => Wait::Other,
            }),
            _ => {}
        }
    }

    /// A call of `clone` begins, which creates a thread.
    fn create_thread(&mut self, flags: u64, child_tid: u64) {
        let process = self.process;
        let sequence = process.futexes().number();
        self.record(&Record::Signal {
            sequence,
            address: 0,
        });
        let ends_at = if flags & CLONE_CHILD_CLEARTID != 0 {
            child_tid
        } else {
            0
        };
        self.call = Call::Clone(process.expect_thread(sequence, ends_at, self.time()));
    }

    /// A system call returns.
    pub fn returned(&mut self, number: i64, result: i64) -> AfterFork {
        let process = self.process;
        self.calls.store(false, Relaxed);
        match std::mem::take(&mut self.call) {
            Call::Other => {}
            Call::Slept(wait) => {
                let (futex, signal) = match wait {
                    Wait::Futex(address) => {
                        (address, process.futexes().resume(self.member, result == 0))
                    }
                    _ => (0, None),
                };
                let turn = process
                    .lockstep
                    .unblock(self.member, signal.map(|(_, time)| time));
                let waited_instructions = self.go_on(turn);
                let memory = |address| children::word(address, guest_base());
                let ended = match wait {
                    Wait::Child(arguments) if number == WAIT4 => {
                        children::of_wait4(arguments, result, memory)
                    }
                    Wait::Child(arguments) => children::of_waitid(arguments, result, memory),
                    _ => None,
                };
                let after = match wait {
                    Wait::Pipe(pipe) if result >= 0 => process.pipes.latest(pipe),
                    Wait::Child(_) => ended.map(|child| CHILD_ENDED + u64::from(child)),
                    _ => signal.map(|(sequence, _)| sequence),
                };
                if waited_instructions > 0 || after.is_some() {
                    self.record(&Record::Resume {
                        after: after.unwrap_or(0),
                        address: futex,
                        waited_instructions,
                    });
                }
            }
            Call::Clone(child) => {
                if failed(result) {
                    process.forget_new_thread(child);
                } else {
                    process.is_thread(child, result as u32);
                }
            }
            Call::Fork if result == 0 => return AfterFork::Child,
            Call::Fork => {
                process.lockstep.forking.fetch_sub(1, Relaxed);
                let turn = process.lockstep.unblock(self.member, None);
                self.go_on(turn);
                if !failed(result) {
                    self.count(Counter::Forks);
                    let virtual_time = self.time();
                    let event = Event::Fork {
                        child: result as u32,
                        virtual_time,
                    };
                    process.output.event(self.number, virtual_time, &event);
                }
            }
            Call::Result(arguments) if !failed(result) => {
                self.succeeded(number, arguments, result as u64);
            }
            Call::Result(_) => {}
        }
        AfterFork::GoOn
    }

    fn succeeded(&mut self, number: i64, arguments: [u64; 6], result: u64) {
        let [first, second, third, ..] = arguments;
        match number {
            CLOCK_GETTIME => self.record(&Record::Clock {
                time_ns: crate::system::now_ns(),
            }),
            MMAP => self.mapped_at(result, arguments),
            MUNMAP => {
                self.unmapped(first, second);
                self.write_unmapped(first, second);
            }
            BRK => self.break_is(result),
            MREMAP => self.remapped(result, arguments),
            SHMAT => {
                let (file, length) = maps::at(result, guest_base()).unwrap_or_default();
                self.unmapped(result, length);
                self.mapped(&Event::Map {
                    protection: 3,
                    flags: MAP_SHARED as u32,
                    virtual_time: self.time(),
                    address: result,
                    length,
                    offset: 0,
                    device: file.device,
                    inode: file.inode,
                    path: &file.path,
                });
            }
            MADVISE if third == MADV_DONTNEED => self.unmapped(first, second),
            _ => {}
        }
    }

    /// `mmap` with these arguments returned this address.
    fn mapped_at(&self, address: u64, arguments: [u64; 6]) {
        let [_, length, protection, flags, descriptor, offset] = arguments;
        self.unmapped(address, length);
        let file = if flags & MAP_ANONYMOUS == 0 {
            maps::file_of(descriptor)
        } else if flags & MAP_SHARED != 0 {
            maps::at(address, guest_base()).map(|(file, _)| file)
        } else {
            None
        };
        let file = file.unwrap_or_default();
        let name = file.path.rsplit(|byte| *byte == b'/').next();
        if protection & PROT_EXEC != 0 && name.is_some_and(is_own_module) {
            own_code(address..address + length);
        }
        self.mapped(&Event::Map {
            protection: protection as u32,
            flags: flags as u32,
            virtual_time: self.time(),
            address,
            length,
            offset,
            device: file.device,
            inode: file.inode,
            path: &file.path,
        });
    }

    /// `brk` returned the end of the heap.
    fn break_is(&self, end: u64) {
        let before = self.process.program_break.swap(end, Relaxed);
        if before != 0 && end > before {
            self.mapped(&Event::Map {
                protection: 3,
                flags: 0x22,
                virtual_time: self.time(),
                address: before,
                length: end - before,
                offset: 0,
                device: 0,
                inode: 0,
                path: b"[heap]",
            });
        } else if end < before {
            self.unmapped(end, before - end);
            self.write_unmapped(end, before - end);
        }
    }

    /// `mremap` with these arguments returned this address. The pages move along; the event does not name their file, which
    /// the trace's reader looks up.
    fn remapped(&self, address: u64, [old, old_length, new_length, ..]: [u64; 6]) {
        if address != old {
            self.unmapped(old, old_length);
            self.unmapped(address, new_length);
            self.write_unmapped(old, old_length);
        } else if new_length < old_length {
            self.unmapped(old + new_length, old_length - new_length);
            self.write_unmapped(old + new_length, old_length - new_length);
        }
        self.mapped(&Event::Map {
            protection: u32::MAX,
            flags: u32::MAX,
            virtual_time: self.time(),
            address,
            length: new_length,
            offset: 0,
            device: 0,
            inode: 0,
            path: b"",
        });
    }

    fn mapped(&self, event: &Event) {
        self.process.output.event(self.number, self.time(), event);
    }

    fn write_unmapped(&self, address: u64, length: u64) {
        let virtual_time = self.time();
        self.mapped(&Event::Unmap {
            virtual_time,
            address,
            length,
        });
    }

    /// Forgets the pages of a range whose memory is replaced or gone.
    fn unmapped(&self, address: u64, length: u64) {
        let end = address.saturating_add(length);
        self.process.unmapped(address..end);
        self.follow_unmappings();
    }
}
