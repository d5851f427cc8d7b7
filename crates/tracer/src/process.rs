//! What the threads of one process share.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nearpage_wire::trace::{COUNTERS, Counter, Event, FileHeader};
use nearpage_wire::tracer_setup::Setup;

use crate::caches::Caches;
use crate::futexes::Futexes;
use crate::lockstep::{Lockstep, Member};
use crate::output::{Output, Totals};
use crate::pages::{Touched, Unmappings};
use crate::serial::SerialLog;
use crate::system;

/// A thread that has been asked for and has not run yet.
pub struct Birth {
    /// Thread that asked.
    pub creator_tid: u32,
    /// Emulated CPU that it will be, once known.
    pub vcpu: Option<u32>,
    /// Order of creation.
    pub number: u32,
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
    /// Are misses recorded (between the markers, if they matter)?
    pub recording: AtomicBool,
    /// Log of all references.
    pub serial: Option<SerialLog>,
    /// The program's break; 0 until it has asked.
    pub program_break: AtomicU64,
    thread_cpus: Vec<usize>,
    futexes: Mutex<Futexes>,
    births: Mutex<Vec<Birth>>,
    threads_created: AtomicU32,
    /// Counters of threads that ended.
    totals: Mutex<Totals>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Of the calling process, which has run nothing yet.
    ///
    /// # Errors
    /// The trace can't be written.
    pub fn new(setup: Setup<'static>, folder: &Path, parent_pid: u32) -> std::io::Result<Self> {
        let header = FileHeader {
            pid: std::process::id(),
            page_bytes: setup.page_bytes,
            line_bytes: setup.line_bytes,
            sample_period: setup.sample_period,
            start_ns: system::now_ns(),
            quantum: setup.quantum,
            parent_pid,
        };
        let output = Output::create(folder, &header)?;
        Ok(Self {
            totals: Mutex::new(Totals::new(&output)),
            caches: Caches::new(&setup),
            lockstep: Lockstep::new(setup.quantum, setup.cpu_nodes.iter().count()),
            output,
            touched: Touched::default(),
            unmappings: Unmappings::default(),
            recording: AtomicBool::new(!setup.from_mark),
            serial: if setup.serial {
                Some(SerialLog::create(folder, header.pid, header.start_ns)?)
            } else {
                None
            },
            program_break: AtomicU64::new(0),
            thread_cpus: setup.thread_cpus.iter().collect(),
            futexes: Mutex::default(),
            births: Mutex::default(),
            threads_created: AtomicU32::new(0),
            folder: folder.to_path_buf(),
            setup,
        })
    }

    /// The futexes, locked.
    pub fn futexes(&self) -> MutexGuard<'_, Futexes> {
        locked(&self.futexes)
    }

    /// CPU position of the thread of that number.
    pub fn cpu_of(&self, number: u32) -> usize {
        let count = self.thread_cpus.len().max(1);
        let cpu = self.thread_cpus.get(number as usize % count);
        cpu.copied().unwrap_or(0)
    }

    /// A thread is being created at this virtual time.
    pub fn birth(&self, started_by: u64, ends_at: u64, time: u64) -> u32 {
        let number = self.threads_created.fetch_add(1, Relaxed);
        let birth = Birth {
            creator_tid: system::thread_id(),
            vcpu: None,
            number,
            member: self.lockstep.add(self.cpu_of(number), time),
            started_by,
            ends_at,
            time,
        };
        locked(&self.births).push(birth);
        number
    }

    /// The calling thread is about to start another, which is that emulated CPU.
    pub fn vcpu_made(&self, vcpu: u32) {
        let tid = system::thread_id();
        let mut births = locked(&self.births);
        let birth = births
            .iter_mut()
            .find(|birth| birth.vcpu.is_none() && birth.creator_tid == tid);
        if let Some(birth) = birth {
            birth.vcpu = Some(vcpu);
        }
    }

    /// What is known of the calling thread, which has made its first step.
    pub fn born(&self, vcpu: u32) -> Birth {
        let mut births = locked(&self.births);
        let known = births.iter().position(|birth| birth.vcpu == Some(vcpu));
        let place = known.or_else(|| births.iter().position(|birth| birth.vcpu.is_none()));
        if let Some(place) = place {
            return births.remove(place);
        }
        drop(births);
        // A process's first thread, or one that came out of nowhere.
        self.birth(0, 0, 0);
        let mut births = locked(&self.births);
        let last = births.len().saturating_sub(1);
        births.remove(last)
    }

    /// That thread could not be created.
    pub fn unborn(&self, number: u32) {
        let mut births = locked(&self.births);
        if let Some(place) = births.iter().position(|birth| birth.number == number) {
            let birth = births.remove(place);
            drop(births);
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
