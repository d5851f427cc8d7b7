//! Firefox Profiler's processed format. A stack consists of, from the root: object, node, function with inlined
//! functions, level; levels are categories. A sample's weight is the time lost, in milliseconds (`tracing-ms`).
//!
//! The library writes weights as whole numbers, and frames without file and line. Therefore weights are first written
//! as numbers of accesses, and functions as numbers after a control character; [`Firefox::complete`] replaces both.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use fxprof_processed_profile::{
    CategoryColor, CategoryPairHandle, CpuDelta, Frame, FrameFlags, FrameInfo, ProcessHandle,
    Profile, SamplingInterval, ThreadHandle, Timestamp, WeightType,
};
use nearpage_recording::{Level, Recording, ThreadIndex};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::Writer;
use super::labels::{Function, Labelled, access_name, level_name, node_name};
use crate::name::{process_name, thread_name};

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

/// Prefix of a function's number. No name contains this character, because names are made printable.
const FUNCTION: char = '\u{1}';

pub(super) struct Firefox<'a> {
    recording: &'a Recording,
    /// Time lost in milliseconds, by number of the access.
    weights_ms: Vec<f64>,
    functions: Vec<Function>,
    numbers: FxHashMap<Function, usize>,
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
        // Names are looked up here, so the profiler need not look them up.
        profile.set_symbolicated(true);
        let categories =
            LEVELS.map(|(level, color)| profile.add_category(level_name(level), color).into());
        Self {
            recording,
            weights_ms: Vec::new(),
            functions: Vec::new(),
            numbers: FxHashMap::default(),
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
        let unknown = || (0, 0, "unknown".to_owned(), 0);
        let (pid, tid, name, born_ns) = labelled.thread.map_or_else(unknown, |thread| {
            let name = thread_name(thread);
            (thread.pid, thread.tid, name, thread.born_ns)
        });
        let start = self.since_start(born_ns);
        let profile = &mut self.profile;
        let threads = &self.recording.tables.threads;
        let process = *self
            .processes
            .entry(pid)
            .or_insert_with(|| profile.add_process(&process_name(threads, pid), pid, start));
        let handle = profile.add_thread(process, tid, start, pid == tid);
        profile.set_thread_name(handle, &name);
        profile.set_thread_samples_weight_type(handle, WeightType::TracingMs);
        self.threads.insert(index, handle);
        handle
    }

    /// Placeholder for a function, which [`Firefox::complete`] replaces.
    fn placeholder(&mut self, function: &Function) -> String {
        let next = self.functions.len();
        let number = *self.numbers.entry(function.clone()).or_insert(next);
        if number == next {
            self.functions.push(function.clone());
        }
        format!("{FUNCTION}{number}")
    }

    /// Replaces the placeholders for weights and functions in a thread.
    fn complete(&self, thread: &mut Value) {
        for weight in each(&mut thread["samples"]["weight"]) {
            let number = weight
                .as_u64()
                .and_then(|number| usize::try_from(number).ok());
            *weight = json!(number.and_then(|number| self.weights_ms.get(number)));
        }
        let Some(mut strings) = thread["stringArray"].as_array().cloned() else {
            return;
        };
        let names = thread["funcTable"]["name"].as_array().cloned();
        let mut places: FxHashMap<&str, usize> = FxHashMap::default();
        let mut known: Vec<Option<&Function>> = Vec::new();
        for (at, name) in names.into_iter().flatten().enumerate() {
            let name = name.as_u64().map_or(usize::MAX, |name| name as usize);
            let text = strings.get(name).and_then(Value::as_str);
            let number = text.and_then(|text| text.strip_prefix(FUNCTION)?.parse::<usize>().ok());
            let function = number.and_then(|number| self.functions.get(number));
            known.push(function);
            let Some(function) = function else {
                continue;
            };
            strings[name] = json!(function.name);
            if !function.file.is_empty() {
                let file = *places.entry(&function.file).or_insert_with(|| {
                    strings.push(json!(function.file));
                    strings.len() - 1
                });
                thread["funcTable"]["fileName"][at] = json!(file);
            }
        }
        // Lines of one function are frames of that function, not separate functions.
        let mut first: FxHashMap<(&str, &str), usize> = FxHashMap::default();
        let frames = thread["frameTable"]["func"].as_array().map_or(0, Vec::len);
        for frame in 0..frames {
            let func = thread["frameTable"]["func"][frame].as_u64();
            let func = func.map_or(usize::MAX, |func| func as usize);
            if let Some(function) = known.get(func).copied().flatten() {
                let same = first
                    .entry((&function.name, &function.file))
                    .or_insert(func);
                thread["frameTable"]["func"][frame] = json!(same);
                if function.line != 0 {
                    thread["frameTable"]["line"][frame] = json!(function.line);
                }
            }
        }
        thread["stringArray"] = strings.into();
    }
}

fn each(array: &mut Value) -> impl Iterator<Item = &mut Value> {
    array.as_array_mut().into_iter().flatten()
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
        let functions = labelled.code.functions.iter().rev();
        let functions: Vec<String> = functions
            .map(|function| self.placeholder(function))
            .collect();
        let names = [labelled.object, node.as_str()]
            .into_iter()
            .chain(functions.iter().map(String::as_str))
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
        let number = i32::try_from(self.weights_ms.len());
        let number =
            number.map_err(|_| io::Error::other("more accesses than the format has numbers"))?;
        self.weights_ms.push(f64::from(access.cost_ns) / 1e6);
        let time = self.since_start(access.time_ns);
        self.profile.add_sample(thread, time, stack, cost, number);
        Ok(())
    }

    fn finish(mut self: Box<Self>, sampled: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
        let note = sampled.map_or_else(String::new, |sampled| format!("; {sampled}"));
        let product = format!("{} (nearpage; weights are time lost{note})", self.product);
        self.profile.set_product(&product);
        let mut profile = serde_json::to_value(&self.profile)?;
        for thread in each(&mut profile["threads"]) {
            self.complete(thread);
        }
        Ok(serde_json::to_writer(out, &profile)?)
    }
}
