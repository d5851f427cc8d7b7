//! The state that the threads of one process share.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use nearpage_wire::trace::{COUNTERS, Counter, Event, FileHeader};
use nearpage_wire::tracer_setup::Setup;

use crate::caches::Caches;
use crate::dependences::Flows;
use crate::futexes::Futexes;
use crate::lockstep::{Lockstep, Member};
use crate::output::{Output, Totals};
use crate::pages::{Touched, Unmappings};
use crate::pipes::Pipes;
use crate::serial::SerialLog;
use crate::system;

/// A thread that is being created and has not run yet.
pub struct NewThread {
    /// Its thread id, once its creator's system call has returned it.
    pub tid: Option<u32>,
    /// Order of creation.
    pub number: u32,
    /// Its place among the running threads, which decides its CPU.
    pub place: usize,
    /// Its number in the lockstep.
    pub member: Member,
    /// Number of the signal with which its creator started it.
    pub started_by: u64,
    /// Address of the futex that is cleared and woken when it ends; 0: none.
    pub ends_at: u64,
    /// Virtual time of its creation.
    pub time: u64,
}

/// A process.
pub struct Process {
    /// The tracer's setup.
    pub setup: Setup<'static>,
    /// Folder of the traces.
    pub folder: PathBuf,
    /// The machine's caches.
    pub caches: Caches,
    /// Virtual time.
    pub lockstep: Lockstep,
    /// The trace.
    pub output: Output,
    /// Pages that have been touched.
    pub touched: Touched,
    /// Ranges that were unmapped.
    pub unmappings: Unmappings,
    /// Signals of pipes, shared with the program's other processes.
    pub pipes: Pipes,
    /// Are misses recorded? If the markers count, only between these.
    pub recording: AtomicBool,
    /// Log of all references, for tests.
    pub serial: Option<SerialLog>,
    /// Where addresses come from, for each block; `None` if dependences are not traced.
    pub flows: Option<Flows>,
    /// End of the program's heap; 0 until its first `brk`.
    pub program_break: AtomicU64,
    /// Its threads are a guest's CPUs.
    pub whole_system: bool,
    thread_cpus: Vec<usize>,
    futexes: Mutex<Futexes>,
    new_threads: Mutex<Vec<NewThread>>,
    /// A creator's system call has returned, with the id of the new thread or an error.
    creator_returned: Condvar,
    threads_created: AtomicU32,
    /// For each place, whether a running thread has it.
    places: Mutex<Vec<bool>>,
    /// Counters of threads that ended.
    totals: Mutex<Totals>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// For a guest of which nothing has been traced yet.
    ///
    /// # Errors
    /// The trace can't be written.
    pub fn of_whole_system(setup: Setup<'static>, folder: &Path) -> std::io::Result<Self> {
        let process = Self::begun(setup, folder, 0, true)?;
        process.recording.store(true, Relaxed);
        // A host thread of a CPU that sleeps waits for a device, or for the emulator to stop all CPUs.
        process.lockstep.forking.store(1, Relaxed);
        Ok(process)
    }

    /// For the calling process, which has run nothing yet.
    ///
    /// # Errors
    /// The trace can't be written.
    pub fn new(setup: Setup<'static>, folder: &Path, parent_pid: u32) -> std::io::Result<Self> {
        Self::begun(setup, folder, parent_pid, false)
    }

    fn begun(
        setup: Setup<'static>,
        folder: &Path,
        parent_pid: u32,
        whole_system: bool,
    ) -> std::io::Result<Self> {
        let header = FileHeader {
            pid: std::process::id(),
            page_bytes: setup.page_bytes,
            line_bytes: setup.line_bytes,
            sample_period: setup.sample_period,
            start_ns: system::now_ns(),
            quantum: setup.quantum,
            parent_pid,
            whole_system,
            dependences: setup.dependences && !whole_system,
        };
        let output = Output::create(folder, &header)?;
        Ok(Self {
            totals: Mutex::new(Totals::new(&output)),
            caches: Caches::new(&setup),
            lockstep: Lockstep::new(setup.quantum, setup.cpu_nodes.iter().count()),
            output,
            touched: Touched::default(),
            unmappings: Unmappings::default(),
            pipes: Pipes::open(folder),
            recording: AtomicBool::new(!setup.from_mark),
            serial: if setup.serial {
                Some(SerialLog::create(folder, header.pid, header.start_ns)?)
            } else {
                None
            },
            program_break: AtomicU64::new(0),
            flows: header.dependences.then(Flows::default),
            whole_system,
            thread_cpus: setup.thread_cpus.iter().collect(),
            futexes: Mutex::default(),
            new_threads: Mutex::default(),
            creator_returned: Condvar::new(),
            threads_created: AtomicU32::new(0),
            places: Mutex::default(),
            folder: folder.to_path_buf(),
            setup,
        })
    }

    /// The futexes, locked.
    pub fn futexes(&self) -> MutexGuard<'_, Futexes> {
        locked(&self.futexes)
    }

    /// Position of the CPU for threads in that place.
    pub fn cpu_of(&self, place: usize) -> usize {
        let count = self.thread_cpus.len().max(1);
        let cpu = self.thread_cpus.get(place % count);
        cpu.copied().unwrap_or(0)
    }

    /// Takes the lowest place that no running thread has. If a program creates its threads anew for every step, they have the
    /// same CPUs in each step, as under `nearpage run`.
    fn take_place(&self) -> usize {
        let mut places = locked(&self.places);
        let free = places.iter().position(|&is_taken| !is_taken);
        let place = free.unwrap_or_else(|| {
            places.push(false);
            places.len() - 1
        });
        places[place] = true;
        place
    }

    /// Frees the place of a thread that ends.
    pub fn leave_place(&self, place: usize) {
        if let Some(is_taken) = locked(&self.places).get_mut(place) {
            *is_taken = false;
        }
    }

    /// Adds a guest's CPU at its first traced step.
    pub fn vcpu(&self, number: u32) -> NewThread {
        let time = self.lockstep.begin();
        NewThread {
            tid: None,
            number,
            place: number as usize,
            member: self.lockstep.add(self.cpu_of(number as usize), time),
            started_by: 0,
            ends_at: 0,
            time,
        }
    }

    /// Expects a thread that is being created at this virtual time; returns its number.
    pub fn expect_thread(&self, started_by: u64, ends_at: u64, time: u64) -> u32 {
        let new_thread = self.add_new_thread(started_by, ends_at, time);
        let number = new_thread.number;
        locked(&self.new_threads).push(new_thread);
        number
    }

    fn add_new_thread(&self, started_by: u64, ends_at: u64, time: u64) -> NewThread {
        let number = self.threads_created.fetch_add(1, Relaxed);
        let place = self.take_place();
        NewThread {
            tid: None,
            number,
            place,
            member: self.lockstep.add(self.cpu_of(place), time),
            started_by,
            ends_at,
            time,
        }
    }

    /// Sets the id of the thread with that number, which its creator's system call has returned.
    pub fn is_thread(&self, number: u32, tid: u32) {
        let mut new_threads = locked(&self.new_threads);
        let new_thread = new_threads
            .iter_mut()
            .find(|new_thread| new_thread.number == number);
        if let Some(new_thread) = new_thread {
            new_thread.tid = Some(tid);
        }
        self.creator_returned.notify_all();
    }

    /// Finds the calling thread, at its first step, among the expected ones. Several may be created at the same time, and only
    /// a creator's system call tells which thread it made, so this may wait for such a call to return.
    pub fn take_new_thread(&self) -> NewThread {
        let tid = Some(system::thread_id());
        let mut new_threads = locked(&self.new_threads);
        loop {
            if let Some(place) = new_threads
                .iter()
                .position(|new_thread| new_thread.tid == tid)
            {
                return new_threads.remove(place);
            }
            if new_threads
                .iter()
                .all(|new_thread| new_thread.tid.is_some())
            {
                // A process's first thread, or one whose creation was not seen.
                return self.add_new_thread(0, 0, 0);
            }
            let woken = self.creator_returned.wait(new_threads);
            new_threads = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Forgets an expected thread that could not be created.
    pub fn forget_new_thread(&self, number: u32) {
        let mut new_threads = locked(&self.new_threads);
        if let Some(place) = new_threads
            .iter()
            .position(|new_thread| new_thread.number == number)
        {
            let new_thread = new_threads.remove(place);
            drop(new_threads);
            self.creator_returned.notify_all();
            self.leave_place(new_thread.place);
            self.lockstep.remove(new_thread.member, new_thread.time);
        }
    }

    /// Adds a thread's counters to the totals, and sets them to 0.
    pub fn count(&self, counters: &mut [u64; COUNTERS]) {
        locked(&self.totals).add(counters);
    }

    /// Drops the file with the totals: they will be unknown if the process is killed.
    pub fn loses_totals(&self) {
        locked(&self.totals).close();
    }

    /// Forgets pages whose memory was unmapped or replaced: their next touch counts as the first.
    pub fn unmapped(&self, bytes: Range<u64>) {
        let page_bytes = u64::from(self.setup.page_bytes);
        let pages = bytes.start / page_bytes..bytes.end.div_ceil(page_bytes);
        // The unmapping is published first: a thread that still has the page in its TLB would not notice that the page is new.
        self.unmappings.add(pages.clone());
        self.touched.forget(pages);
    }

    /// Writes the end of the process.
    pub fn finish(&self, thread: u32, virtual_time: u64) {
        self.write_counters(thread, virtual_time, None);
        locked(&self.totals).close();
    }

    /// Writes the totals of threads that have ended and, in `running`, of one that has not.
    pub fn write_counters(
        &self,
        thread: u32,
        virtual_time: u64,
        running: Option<&[u64; COUNTERS]>,
    ) {
        if let Some(serial) = &self.serial {
            serial.flush();
        }
        let mut totals = locked(&self.totals).counters;
        for (total, counter) in totals.iter_mut().zip(running.into_iter().flatten()) {
            *total += counter;
        }
        totals[Counter::RecordsDropped as usize] = self.output.dropped.load(Relaxed);
        totals[Counter::LeftLockstep as usize] = self.lockstep.left_out.load(Relaxed);
        self.output
            .event(thread, virtual_time, &Event::Counters(totals));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    pub(crate) const SETUP: &str = "nearpage tracer setup 1\npage_bytes 4096\nline_bytes 64\nl1_fetch 1024 2\nl1_data 1024 2\n\
         l2 4096 2\ntlb 8 8 0\ncpu_nodes 0\nthread_cpus 0\nquantum 1000\n";

    #[test]
    fn two_threads_created_at_once_get_their_own_numbers() {
        let folder =
            std::env::temp_dir().join(format!("nearpage-new_threads-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("TMPDIR can be written to");
        let setup = Setup::parse(SETUP).expect("it is right");
        let process = &Process::new(setup, &folder, 0).expect("TMPDIR can be written to");
        assert_eq!(
            process.take_new_thread().number,
            0,
            "nobody was asked for it"
        );
        let [first, second, failed] =
            [0x100, 0x200, 0x300].map(|ends_at| process.expect_thread(1, ends_at, 5));
        thread::scope(|scope| {
            let (tell, hear) = channel();
            let child = scope.spawn(move || {
                tell.send(system::thread_id()).expect("it is heard");
                process.take_new_thread().ends_at
            });
            let tid = hear.recv().expect("it is told");
            process.is_thread(second, tid);
            assert_eq!(child.join().ok(), Some(0x200));
            process.forget_new_thread(failed);
            process.is_thread(first, system::thread_id());
            assert_eq!(process.take_new_thread().ends_at, 0x100);
        });
        assert_eq!(
            process.take_new_thread().number,
            4,
            "nobody was asked for it either"
        );
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn a_thread_that_follows_one_that_ended_has_its_cpu() {
        let folder = std::env::temp_dir().join(format!("nearpage-places-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("TMPDIR can be written to");
        let setup = SETUP.replace(
            "cpu_nodes 0\nthread_cpus 0\n",
            "cpu_nodes 0 1 2\nthread_cpus 2 1 0\n",
        );
        let setup = Setup::parse(setup.leak()).expect("it is right");
        let process = &Process::new(setup, &folder, 0).expect("TMPDIR can be written to");
        let cpu = |new_thread: &NewThread| process.cpu_of(new_thread.place);
        let [main, first, second] = [0; 3].map(|_| process.add_new_thread(0, 0, 0));
        assert_eq!([cpu(&main), cpu(&first), cpu(&second)], [2, 1, 0]);
        process.leave_place(first.place);
        process.leave_place(second.place);
        let [next, last] = [0; 2].map(|_| process.add_new_thread(0, 0, 0));
        assert_eq!([next.number, last.number], [3, 4]);
        assert_eq!([cpu(&next), cpu(&last)], [1, 0]);
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
