//! What the threads of one process share.

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

/// A thread that has been asked for and has not run yet.
pub struct NewThread {
    /// Its thread id, once its creator has been told.
    pub tid: Option<u32>,
    /// Order of creation.
    pub number: u32,
    /// Its place among the threads that run at a time: it has that place's CPU.
    pub place: usize,
    /// Its place in the lockstep.
    pub member: Member,
    /// Number of the signal.
    pub started_by: u64,
    /// Address that is cleared and woken when it ends; 0: none.
    pub ends_at: u64,
    /// Virtual time.
    pub time: u64,
}

/// A process.
pub struct Process {
    /// What it is told.
    pub setup: Setup<'static>,
    /// Where it writes.
    pub folder: PathBuf,
    /// The machine's.
    pub caches: Caches,
    /// Virtual time.
    pub lockstep: Lockstep,
    /// The trace.
    pub output: Output,
    /// Pages touched.
    pub touched: Touched,
    /// Ranges unmapped.
    pub unmappings: Unmappings,
    /// Pipes, with the program's other processes.
    pub pipes: Pipes,
    /// Are misses recorded (between the markers, if they matter)?
    pub recording: AtomicBool,
    /// Log of all references.
    pub serial: Option<SerialLog>,
    /// Where addresses come from, block by block; `None`: nobody wants to know.
    pub flows: Option<Flows>,
    /// The program's break; 0 until it has asked.
    pub program_break: AtomicU64,
    /// Its threads are a guest's CPUs.
    pub whole_system: bool,
    thread_cpus: Vec<usize>,
    futexes: Mutex<Futexes>,
    births: Mutex<Vec<NewThread>>,
    /// A creator was told which thread it made, or that it made none.
    told: Condvar,
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
    /// Of a guest, which has run nothing yet that is traced.
    ///
    /// # Errors
    /// The trace can't be written.
    pub fn of_whole_system(setup: Setup<'static>, folder: &Path) -> std::io::Result<Self> {
        let process = Self::begun(setup, folder, 0, true)?;
        process.recording.store(true, Relaxed);
        // A CPU that sleeps waits for the emulator to stop all of them, or for a device.
        process.lockstep.forking.store(1, Relaxed);
        Ok(process)
    }

    /// Of the calling process, which has run nothing yet.
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
            births: Mutex::default(),
            told: Condvar::new(),
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

    /// CPU position of a thread in that place.
    pub fn cpu_of(&self, place: usize) -> usize {
        let count = self.thread_cpus.len().max(1);
        let cpu = self.thread_cpus.get(place % count);
        cpu.copied().unwrap_or(0)
    }

    /// The lowest place that no running thread has. A program that creates its threads anew for every step has them on the same
    /// CPUs in each, as `run` pins them.
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

    /// A thread ends, and gives way to another.
    pub fn leave_place(&self, place: usize) {
        if let Some(is_taken) = locked(&self.places).get_mut(place) {
            *is_taken = false;
        }
    }

    /// A guest's CPU makes its first step that is traced.
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

    /// A thread is being created at this virtual time.
    pub fn birth(&self, started_by: u64, ends_at: u64, time: u64) -> u32 {
        let birth = self.new_birth(started_by, ends_at, time);
        let number = birth.number;
        locked(&self.births).push(birth);
        number
    }

    fn new_birth(&self, started_by: u64, ends_at: u64, time: u64) -> NewThread {
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

    /// The thread of that number has this thread id: its creator was told so.
    pub fn is_thread(&self, number: u32, tid: u32) {
        let mut births = locked(&self.births);
        let birth = births.iter_mut().find(|birth| birth.number == number);
        if let Some(birth) = birth {
            birth.tid = Some(tid);
        }
        self.told.notify_all();
    }

    /// What is known of the calling thread, which has made its first step. It may be ahead of its
    /// creator, which alone can tell it from others that are created at the same time.
    pub fn born(&self) -> NewThread {
        let tid = Some(system::thread_id());
        let mut births = locked(&self.births);
        loop {
            if let Some(place) = births.iter().position(|birth| birth.tid == tid) {
                return births.remove(place);
            }
            if births.iter().all(|birth| birth.tid.is_some()) {
                // A process's first thread, or one that came out of nowhere.
                return self.new_birth(0, 0, 0);
            }
            let told = self.told.wait(births);
            births = told.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The thread could not be created.
    pub fn unborn(&self, number: u32) {
        let mut births = locked(&self.births);
        if let Some(place) = births.iter().position(|birth| birth.number == number) {
            let birth = births.remove(place);
            drop(births);
            self.told.notify_all();
            self.leave_place(birth.place);
            self.lockstep.remove(birth.member, birth.time);
        }
    }

    /// Adds a thread's counters, which begin anew.
    pub fn count(&self, counters: &mut [u64; COUNTERS]) {
        locked(&self.totals).add(counters);
    }

    /// Should it be killed, its totals will not be known.
    pub fn loses_totals(&self) {
        locked(&self.totals).close();
    }

    /// Memory is not what it was: the next touch of each page is a first one.
    pub fn unmapped(&self, bytes: Range<u64>) {
        let page_bytes = u64::from(self.setup.page_bytes);
        let pages = bytes.start / page_bytes..bytes.end.div_ceil(page_bytes);
        // TLBs first: whoever still has the page there would not notice that it is new.
        self.unmappings.add(pages.clone());
        self.touched.forget(pages);
    }

    /// The end.
    pub fn finish(&self, thread: u32, virtual_time: u64) {
        self.tell_counters(thread, virtual_time, None);
        locked(&self.totals).close();
    }

    /// Writes the totals of threads that ended, and of one that has not.
    pub fn tell_counters(&self, thread: u32, virtual_time: u64, running: Option<&[u64; COUNTERS]>) {
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
    fn of_two_that_are_created_at_once_each_is_the_one_it_was_asked_for() {
        let folder = std::env::temp_dir().join(format!("nearpage-births-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("TMPDIR can be written to");
        let setup = Setup::parse(SETUP).expect("it is right");
        let process = &Process::new(setup, &folder, 0).expect("TMPDIR can be written to");
        assert_eq!(process.born().number, 0, "nobody was asked for it");
        let [first, second, failed] =
            [0x100, 0x200, 0x300].map(|ends_at| process.birth(1, ends_at, 5));
        thread::scope(|scope| {
            let (tell, hear) = channel();
            let child = scope.spawn(move || {
                tell.send(system::thread_id()).expect("it is heard");
                process.born().ends_at
            });
            let tid = hear.recv().expect("it is told");
            process.is_thread(second, tid);
            assert_eq!(child.join().ok(), Some(0x200));
            process.unborn(failed);
            process.is_thread(first, system::thread_id());
            assert_eq!(process.born().ends_at, 0x100);
        });
        assert_eq!(process.born().number, 4, "nobody was asked for it either");
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
        let cpu = |birth: &NewThread| process.cpu_of(birth.place);
        let [main, first, second] = [0; 3].map(|_| process.new_birth(0, 0, 0));
        assert_eq!([cpu(&main), cpu(&first), cpu(&second)], [2, 1, 0]);
        process.leave_place(first.place);
        process.leave_place(second.place);
        let [next, last] = [0; 2].map(|_| process.new_birth(0, 0, 0));
        assert_eq!([next.number, last.number], [3, 4]);
        assert_eq!([cpu(&next), cpu(&last)], [1, 0]);
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
