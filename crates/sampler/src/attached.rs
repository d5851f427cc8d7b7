//! Observes a target that runs already: its members, their events, and changes since the last look.

use std::io;

use nearpage_machine::CpuId;
use nearpage_perf_abi::Sideband;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::coverage::{Candidate, Coverage, EventLimits, ThreadRotation, coverage, ended};
use crate::cpu_ring::CpuRing;
use crate::discovery::{Discovery, Members};
use crate::error::Error;
use crate::follower::Follower;
use crate::found::{FoundTarget, Root};
use crate::merge::Window;
use crate::opening::Opening;
use crate::perf_event::Scope;
use crate::processes::{Mapping, Processes};
use crate::record::{self, Identifiers, Record, RecordBody};
use crate::sampler::now_ns;
use crate::source::open_files_limit;

/// A target that was running before it was observed.
pub(crate) struct Attached {
    found: FoundTarget,
    processes: Processes,
    cpus: Vec<CpuId>,
    opening: Opening,
    pub coverage: Coverage,
    /// Threads with events, including inherited ones.
    observed: FxHashSet<u32>,
    turns: Option<(ThreadRotation, FxHashMap<u32, u64>)>,
    next_look_ns: u64,
    /// Mappings of processes with the time at which they were read. They take effect once all records up to this time
    /// have been followed.
    looked: Vec<(u64, u32, Vec<Mapping>)>,
}

/// Weight of the samples of each thread.
type Weights = FxHashMap<u32, f32>;

/// Least time between two looks, and least multiple of a look's duration, which limits looks to 1 % of a CPU.
const LOOK_NS: u64 = 1_000_000_000;
const LOOK_COST: u64 = 100;

/// Largest number of rounds of listing and opening until no new thread appears.
const LISTINGS_MAX: usize = 64;

/// Files reserved for other purposes: standard streams, logs, folders.
const OTHER_FILES: u64 = 64;

impl Attached {
    /// Opens the events of all members of the target, and returns the discovery that knows the members.
    pub fn attach(
        mut found: FoundTarget,
        mut opening: Opening,
        processes: Processes,
        cpus: Vec<CpuId>,
        window: &mut Window,
        rings: &mut Vec<CpuRing>,
    ) -> Result<(Self, Discovery), Error> {
        let mut members = found.members(&processes);
        let mut coverage = coverage_of(&found, &members, &processes, &opening, &cpus)?;
        if !matches!(coverage, Coverage::EachThread { .. }) && opening.keep_rate() {
            // A single rate takes fewer events per thread, so that more threads can be covered.
            coverage = coverage_of(&found, &members, &processes, &opening, &cpus)?;
        }
        let mut attached = Self {
            processes: processes.clone(),
            cpus,
            coverage,
            observed: FxHashSet::default(),
            turns: None,
            next_look_ns: now_ns() + LOOK_NS,
            looked: Vec::new(),
            opening,
            found: FoundTarget::All,
        };
        let mut filter = Members::All;
        match coverage {
            Coverage::EachThread { .. } => {
                members = attached.open_threads(&found, window, rings)?;
            }
            Coverage::Turns { at_once, .. } => {
                attached.opening.without_children();
                attached.turns = Some((ThreadRotation::new(at_once), FxHashMap::default()));
                attached.take_turns(&members, rings)?;
            }
            Coverage::Machine { .. } | Coverage::All | Coverage::Cgroup => {
                attached.opening.for_the_machine();
                for cpu in attached.cpus.clone() {
                    let scope = match &found {
                        FoundTarget::Cgroup(group, true) => Scope::CgroupOn(group.raw(), cpu),
                        _ => Scope::MachineOn(cpu),
                    };
                    let opened = attached.opening.open(rings, cpu, scope, 0);
                    // The end of the target explains any error.
                    opened.map_err(|error| found.still_there().err().unwrap_or(error))?;
                }
                // Includes processes that started meanwhile.
                members = found.members(&processes);
                if let Coverage::Machine { .. } = coverage {
                    filter = Members::Processes(members.iter().copied().collect());
                }
            }
        }
        if let FoundTarget::Processes(roots) = &mut found {
            let all_ended = Root::all_ended(roots, &processes);
            if all_ended && members.iter().all(|pid| !processes.lives(*pid)) {
                let pid = roots[0].pid;
                return Err(Error::EndedMeanwhile { pid });
            }
        }
        found.still_there()?;
        if let Coverage::Machine { .. } | Coverage::Turns { .. } = coverage {
            attached.opening.notes.push(coverage.to_string());
        }
        if let FoundTarget::Cgroup(_, false) = found {
            attached.opening.notes.push(
                "the control group is observed process by process, and who joins it up to a second or \
                 more later: kernel.perf_event_paranoid 0 or CAP_PERFMON, and a group of the unified \
                 hierarchy, would allow more"
                    .to_owned(),
            );
        }
        attached.found = found;
        Ok((attached, Discovery::new(processes, filter)))
    }

    pub fn period_ns(&self) -> u64 {
        self.opening.period_ns
    }

    pub fn deferred(&self) -> bool {
        self.opening.deferred
    }

    /// Whether the rate can be changed by switching between events.
    pub fn changes_rates(&self) -> bool {
        self.opening.changes_rates()
    }

    /// Selects the events that are switched on when they are opened.
    pub fn switch(&mut self, events: u32) {
        self.opening.on = events;
    }

    pub fn identifiers(&self) -> &Identifiers {
        &self.opening.identifiers
    }

    pub fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.opening.notes)
    }

    /// Tells `follower` about all members of the target.
    pub fn introduce(&self, follower: &mut Follower) {
        for pid in self.found.members(&self.processes) {
            follower.meet(pid);
        }
    }

    /// Lists threads and opens their events until no new thread appears. Threads created by threads with events
    /// inherit them, as the records show.
    fn open_threads(
        &mut self,
        found: &FoundTarget,
        window: &mut Window,
        rings: &mut Vec<CpuRing>,
    ) -> Result<Vec<u32>, Error> {
        let mut members = Vec::new();
        for _ in 0..LISTINGS_MAX {
            members = found.members(&self.processes);
            if !self.open_new(&members, window, rings)? {
                break;
            }
        }
        if !self.observed_any(rings)
            && let FoundTarget::Processes(roots) = found
        {
            return Err(Error::EndedMeanwhile { pid: roots[0].pid });
        }
        Ok(members)
    }

    /// Opens events for threads without any. Returns whether there were such threads.
    fn open_new(
        &mut self,
        members: &[u32],
        window: &mut Window,
        rings: &mut Vec<CpuRing>,
    ) -> Result<bool, Error> {
        let mut new = Vec::new();
        for pid in members {
            let threads = self.processes.threads(*pid);
            let unknown = threads
                .into_iter()
                .filter(|tid| !self.observed.contains(tid));
            new.extend(unknown.map(|tid| (*pid, tid)));
        }
        if new.is_empty() {
            return Ok(false);
        }
        let births = births(window, rings);
        for (pid, tid) in &new {
            self.observed.insert(*tid);
            for cpu in self.cpus.clone() {
                let inherited = births.get(tid).is_some_and(|(time_ns, creator)| {
                    let ring = rings.iter().find(|ring| ring.cpu == cpu);
                    let events = ring.and_then(|ring| ring.events.get(creator));
                    events.is_some_and(|events| events.opened_ns < *time_ns)
                        || births.contains_key(creator)
                });
                if inherited {
                    continue;
                }
                if !self.open_one(*pid, *tid, cpu, rings)? {
                    break;
                }
            }
        }
        Ok(true)
    }

    /// Opens the events of a thread on a CPU. Returns false if the thread has ended, or may not be observed although
    /// other threads are.
    fn open_one(
        &mut self,
        pid: u32,
        tid: u32,
        cpu: CpuId,
        rings: &mut Vec<CpuRing>,
    ) -> Result<bool, Error> {
        let scope = Scope::ProcessOn(tid as libc::pid_t, cpu);
        let Err(error) = self.opening.open(rings, cpu, scope, tid) else {
            return Ok(true);
        };
        match errno(&error) {
            Some(libc::ESRCH) => Ok(false),
            Some(libc::EACCES | libc::EPERM) if !self.observed_any(rings) => {
                Err(not_allowed(pid, &self.processes))
            }
            Some(libc::EACCES | libc::EPERM) => {
                let note = format!(
                    "process {pid} is not observed: it belongs to another user; run nearpage as root, \
                     or give it CAP_PERFMON and CAP_SYS_PTRACE"
                );
                if !self.opening.notes.contains(&note) {
                    self.opening.notes.push(note);
                }
                Ok(false)
            }
            _ => Err(error),
        }
    }

    fn observed_any(&self, rings: &[CpuRing]) -> bool {
        rings.iter().any(|ring| !ring.events.is_empty())
    }

    /// Opens events for the threads whose turn it is and closes those of the others. Returns the weights of samples,
    /// and all threads with their processes.
    fn take_turns(
        &mut self,
        members: &[u32],
        rings: &mut Vec<CpuRing>,
    ) -> Result<(Weights, Vec<(u32, u32)>), Error> {
        let Some((mut turns, mut running)) = self.turns.take() else {
            return Ok(Default::default());
        };
        let mut process_of = Vec::new();
        let mut candidates = Vec::new();
        for pid in members {
            for tid in self.processes.threads(*pid) {
                let now_ns = self.processes.running_ns(*pid, tid).unwrap_or(0);
                let before_ns = running.insert(tid, now_ns).unwrap_or(now_ns);
                process_of.push((tid, *pid));
                candidates.push(Candidate {
                    tid,
                    busy_ns: now_ns.saturating_sub(before_ns),
                });
            }
        }
        for tid in ended(running.keys().copied().collect::<Vec<_>>(), &candidates) {
            running.remove(&tid);
        }
        let chosen: FxHashMap<u32, f32> = turns.next(&candidates).into_iter().collect();
        self.turns = Some((turns, running));
        for ring in rings.iter_mut() {
            ring.events.retain(|tid, _| chosen.contains_key(tid));
        }
        self.observed.retain(|tid| chosen.contains_key(tid));
        for (tid, pid) in &process_of {
            if !chosen.contains_key(tid) || !self.observed.insert(*tid) {
                continue;
            }
            for cpu in self.cpus.clone() {
                if !self.open_one(*pid, *tid, cpu, rings)? {
                    break;
                }
            }
        }
        Ok((chosen, process_of))
    }

    /// Looks, from time to time, for changes without records: unmapped memory, new members, and the turns of threads.
    pub fn look(
        &mut self,
        follower: &mut Follower,
        window: &mut Window,
        rings: &mut Vec<CpuRing>,
    ) -> Result<(), Error> {
        let began_ns = now_ns();
        if began_ns < self.next_look_ns {
            return Ok(());
        }
        let members = match (&self.coverage, &self.found) {
            // New threads inherit events, or the events cover all threads.
            (Coverage::All | Coverage::Cgroup, _)
            | (Coverage::EachThread { .. }, FoundTarget::Processes(_)) => Vec::new(),
            _ => self.found.members(&self.processes),
        };
        match self.coverage {
            Coverage::EachThread { .. } => {
                while !members.is_empty() && self.open_new(&members, window, rings)? {}
            }
            Coverage::Machine { .. } => {
                follower.include(members.iter().copied());
            }
            Coverage::Turns { .. } => {
                for ring in rings.iter_mut() {
                    window.add(|bytes| {
                        ring.drain(bytes);
                    });
                }
                window.take(u64::MAX, &mut [], |record| {
                    follower.follow(record);
                });
                let (weights, threads) = self.take_turns(&members, rings)?;
                follower.weigh(weights);
                follower.only(began_ns, &threads, &self.processes);
            }
            Coverage::All | Coverage::Cgroup => {}
        }
        follower.identifiers = self.opening.identifiers.clone();
        members.iter().for_each(|pid| follower.meet(*pid));
        for pid in follower.take_seen() {
            let time_ns = now_ns();
            if let Ok(mappings) = self.processes.mappings(pid)
                && !mappings.is_empty()
            {
                self.looked.push((time_ns, pid, mappings));
            }
        }
        let took_ns = now_ns() - began_ns;
        self.next_look_ns = now_ns() + LOOK_NS.max(took_ns.saturating_mul(LOOK_COST));
        Ok(())
    }

    /// Applies the mappings that were read until `time_ns`, as all records until then have been followed.
    pub fn settle(&mut self, time_ns: u64, follower: &mut Follower) {
        for (looked_ns, pid, mappings) in self.looked.extract_if(.., |looked| looked.0 <= time_ns) {
            follower.mapped_now(looked_ns, pid, &mappings);
        }
    }

    /// Whether no member of the target is left.
    pub fn ended(&mut self, follower: &Follower) -> bool {
        let processes = &self.processes;
        match &mut self.found {
            FoundTarget::Processes(roots) => {
                let all = Root::all_ended(roots, processes);
                all && !follower
                    .threads
                    .live_processes()
                    .any(|pid| processes.lives(pid))
            }
            FoundTarget::Cgroup(group, _) => !group.exists(),
            FoundTarget::All => false,
        }
    }

    /// File descriptors that become readable when a process of the target ends.
    pub fn handles(&self) -> Vec<libc::c_int> {
        match &self.found {
            FoundTarget::Processes(roots) => roots.iter().filter_map(Root::handle).collect(),
            _ => Vec::new(),
        }
    }

    /// Note on processes whose mappings could not be read.
    pub fn shortcomings(&self, follower: &Follower) -> Option<String> {
        let unreadable = follower.discovery.as_ref()?.unreadable.len();
        (unreadable > 0).then(|| {
            format!(
                "mappings may not be read ({unreadable} of the processes): objects there are unknown, but \
                 for later ones; CAP_SYS_PTRACE allows it"
            )
        })
    }
}

/// How events can cover the threads of `members`.
fn coverage_of(
    found: &FoundTarget,
    members: &[u32],
    processes: &Processes,
    opening: &Opening,
    cpus: &[CpuId],
) -> Result<Coverage, Error> {
    match found {
        FoundTarget::All => return Ok(Coverage::All),
        FoundTarget::Cgroup(_, true) => return Ok(Coverage::Cgroup),
        FoundTarget::Processes(_) | FoundTarget::Cgroup(..) => {}
    }
    let threads = members.iter().map(|pid| processes.threads(*pid).len());
    let room = EventLimits {
        files: open_files_limit().saturating_sub(OTHER_FILES + cpus.len() as u64),
        files_per_thread: opening.files(cpus),
        machine_wide: opening.machine_wide(cpus[0]).is_ok(),
    };
    coverage(threads.sum(), &room).ok_or_else(|| {
        Error::Options(format!(
            "{} open files are allowed, and a thread takes {}: raise ulimit -n",
            open_files_limit(),
            room.files_per_thread
        ))
    })
}

/// Births in the new records: by thread, the time and the creator.
fn births(window: &mut Window, rings: &mut [CpuRing]) -> FxHashMap<u32, (u64, u32)> {
    for ring in rings {
        window.add(|bytes| {
            ring.drain(bytes);
        });
    }
    let mut births = FxHashMap::default();
    let none = Identifiers::default();
    window.each(|bytes| {
        if let Ok(Record {
            origin,
            body: RecordBody::Sideband(Sideband::Fork { tid, .. }),
        }) = record::parse(bytes, &none)
        {
            births.insert(tid, (origin.time_ns, origin.tid));
        }
    });
    births
}

/// The kernel's error number.
fn errno(error: &Error) -> Option<i32> {
    let source: &io::Error = match error {
        Error::Refused(refusal) => &refusal.source,
        Error::PmuRefused { source, .. } => source,
        _ => return None,
    };
    source.raw_os_error()
}

/// The error for a process that may not be observed.
fn not_allowed(pid: u32, processes: &Processes) -> Error {
    let owner = match processes.process_and_owner(pid) {
        Ok((_, 0)) => "it belongs to root".to_owned(),
        Ok((_, owner)) => format!("it belongs to user {owner}"),
        Err(_) => return Error::EndedMeanwhile { pid },
    };
    Error::Unobservable {
        pid,
        reason: format!(
            "{owner}, and the kernel refuses: attaching takes the same user and no more privileges than \
             nearpage has, or CAP_PERFMON and, for its mappings, CAP_SYS_PTRACE (run nearpage as root)"
        ),
    }
}
