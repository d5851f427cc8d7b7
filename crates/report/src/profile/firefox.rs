//! Firefox Profiler's processed format. A stack is, from the root: object, node, function with what
//! was inlined, level; levels are categories. A sample's weight is the microseconds lost.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use fxprof_processed_profile::{
    CategoryColor, CategoryPairHandle, CpuDelta, Frame, FrameFlags, FrameInfo, ProcessHandle,
    Profile, SamplingInterval, ThreadHandle, Timestamp,
};
use nearpage_recording::{Level, Recording, ThreadIndex};
use rustc_hash::FxHashMap;

use super::Writer;
use super::labels::{Labelled, access_name, level_name, node_name};

const LEVELS: [(Level, CategoryColor); 8] = [
    (Level::Unknown, CategoryColor::Gray),
    (Level::L1, CategoryColor::LightBlue),
    (Level::L2, CategoryColor::LightBlue),
    (Level::L3, CategoryColor::Blue),
    (Level::LineFillBuffer, CategoryColor::Blue),
    (Level::LocalMemory, CategoryColor::Green),
    (Level::RemoteMemory, CategoryColor::Red),
    (Level::RemoteCache, CategoryColor::Orange),
];

pub(super) struct Firefox<'a> {
    recording: &'a Recording,
    profile: Profile,
    product: String,
    categories: Vec<CategoryPairHandle>,
    processes: FxHashMap<u32, ProcessHandle>,
    threads: FxHashMap<ThreadIndex, ThreadHandle>,
}

impl<'a> Firefox<'a> {
    pub fn new(recording: &'a Recording) -> Self {
        let metadata = &recording.metadata;
        let product = metadata.command.first().map_or("nearpage", String::as_str);
        let started = UNIX_EPOCH + Duration::from_nanos(metadata.started_unix_ns);
        let interval_ns = if metadata.rate_hz > 0.0 {
            1e9 / metadata.rate_hz
        } else {
            1e6
        };
        let mut profile = Profile::new(
            product,
            started.into(),
            SamplingInterval::from_nanos(interval_ns as u64),
        );
        // Names are looked up here already.
        profile.set_symbolicated(true);
        let categories =
            LEVELS.map(|(level, color)| profile.add_category(level_name(level), color).into());
        Self {
            recording,
            product: product.to_owned(),
            profile,
            categories: categories.to_vec(),
            processes: FxHashMap::default(),
            threads: FxHashMap::default(),
        }
    }

    fn since_start(&self, time_ns: u64) -> Timestamp {
        Timestamp::from_nanos_since_reference(
            time_ns.saturating_sub(self.recording.metadata.begin_ns),
        )
    }

    fn thread(&mut self, labelled: &Labelled<'_>) -> ThreadHandle {
        let index = labelled.access.thread;
        if let Some(handle) = self.threads.get(&index) {
            return *handle;
        }
        let (pid, tid, name, born_ns) = labelled.thread.map_or((0, 0, "unknown", 0), |thread| {
            (thread.pid, thread.tid, thread.name.as_str(), thread.born_ns)
        });
        let start = self.since_start(born_ns);
        let profile = &mut self.profile;
        let process = *self
            .processes
            .entry(pid)
            .or_insert_with(|| profile.add_process(name, pid, start));
        let handle = profile.add_thread(process, tid, start, pid == tid);
        profile.set_thread_name(handle, name);
        self.threads.insert(index, handle);
        handle
    }
}

impl Writer for Firefox<'_> {
    fn access(&mut self, labelled: &Labelled<'_>, _out: &mut dyn Write) -> io::Result<()> {
        let access = &labelled.access;
        let thread = self.thread(labelled);
        let category_pair = self.categories[access.level as usize];
        let level = format!(
            "{} ({})",
            level_name(access.level),
            access_name(access.kind)
        );
        let node = node_name(labelled.node);
        let functions = labelled
            .code
            .functions
            .iter()
            .rev()
            .map(|function| function.name.as_str());
        let names = [labelled.object, node.as_str()]
            .into_iter()
            .chain(functions)
            .chain([level.as_str()]);
        let frames: Vec<FrameInfo> = names
            .map(|name| FrameInfo {
                frame: Frame::Label(self.profile.intern_string(name)),
                category_pair,
                flags: FrameFlags::empty(),
            })
            .collect();
        let stack = self.profile.intern_stack_frames(thread, frames.into_iter());
        let cost = CpuDelta::from_nanos(access.cost_ns as u64);
        let weight = (access.cost_ns / 1000.0).round().max(1.0) as i32;
        let time = self.since_start(access.time_ns);
        self.profile.add_sample(thread, time, stack, cost, weight);
        Ok(())
    }

    fn finish(mut self: Box<Self>, thinned: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
        let note = thinned.map_or_else(String::new, |thinned| format!("; {thinned}"));
        let product = format!(
            "{} (nearpage; weights are microseconds lost{note})",
            self.product
        );
        self.profile.set_product(&product);
        Ok(serde_json::to_writer(out, &self.profile)?)
    }
}
