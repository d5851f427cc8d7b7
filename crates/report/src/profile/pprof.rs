//! Go's pprof (proto/profile.proto of github.com/google/pprof), gzipped. Accesses of one instruction with equal labels
//! are one sample. Labels are object, object kind, node, CPU node, level, kind and thread. `go tool pprof -tagroot
//! object,node` shows the objects as roots.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use nearpage_files::readable;
use nearpage_recording::{ModuleId, Recording};
use prost::Message;
use rustc_hash::FxHashMap;

use super::Writer;
use super::labels::{Code, Function as CodeFunction, Labelled};
use super::sums::{Sum, Sums};

/// The parts of profile.proto that are written, with its field numbers.
mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub mapping: Vec<Mapping>,
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        #[prost(int64, tag = "9")]
        pub time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub duration_nanos: i64,
        #[prost(int64, repeated, tag = "13")]
        pub comment: Vec<i64>,
        #[prost(int64, tag = "14")]
        pub default_sample_type: i64,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ValueType {
        #[prost(int64, tag = "1")]
        pub type_: i64,
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub label: Vec<Label>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Label {
        #[prost(int64, tag = "1")]
        pub key: i64,
        #[prost(int64, tag = "2")]
        pub str: i64,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Mapping {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "3")]
        pub memory_limit: u64,
        #[prost(int64, tag = "5")]
        pub filename: i64,
        #[prost(int64, tag = "6")]
        pub build_id: i64,
        #[prost(bool, tag = "7")]
        pub has_functions: bool,
        #[prost(bool, tag = "8")]
        pub has_filenames: bool,
        #[prost(bool, tag = "9")]
        pub has_line_numbers: bool,
        #[prost(bool, tag = "10")]
        pub has_inline_frames: bool,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Location {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub mapping_id: u64,
        #[prost(uint64, tag = "3")]
        pub address: u64,
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Line {
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
        #[prost(int64, tag = "2")]
        pub line: i64,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Function {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(int64, tag = "2")]
        pub name: i64,
        #[prost(int64, tag = "4")]
        pub filename: i64,
    }
}

pub(super) struct Pprof<'a> {
    recording: &'a Recording,
    profile: proto::Profile,
    strings: FxHashMap<String, i64>,
    functions: FxHashMap<CodeFunction, u64>,
    modules: FxHashMap<ModuleId, u64>,
    /// Position in `profile.location` + 1, by number of the instruction.
    locations: FxHashMap<u32, u64>,
    sums: Sums,
}

impl<'a> Pprof<'a> {
    pub fn new(recording: &'a Recording) -> Self {
        let mut pprof = Self {
            recording,
            profile: proto::Profile::default(),
            strings: FxHashMap::default(),
            functions: FxHashMap::default(),
            modules: FxHashMap::default(),
            locations: FxHashMap::default(),
            sums: Sums::default(),
        };
        // The format requires that the first string is empty.
        pprof.string("");
        for (type_, unit) in [("accesses", "count"), ("time", "nanoseconds")] {
            let (type_, unit) = (pprof.string(type_), pprof.string(unit));
            pprof
                .profile
                .sample_type
                .push(proto::ValueType { type_, unit });
        }
        let metadata = &recording.metadata;
        let profile = &mut pprof.profile;
        profile.default_sample_type = profile.sample_type[1].type_;
        profile.time_nanos = metadata.started_unix_ns as i64;
        profile.duration_nanos = metadata.end_ns.saturating_sub(metadata.begin_ns) as i64;
        let command = format!("nearpage: {}", metadata.command.join(" "));
        let comment = pprof.string(&command);
        pprof.profile.comment.push(comment);
        pprof
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(number) = self.strings.get(text) {
            return *number;
        }
        let number = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), number);
        number
    }

    fn mapping(&mut self, module: Option<ModuleId>) -> u64 {
        let Some(module) = module else {
            return 0;
        };
        if let Some(id) = self.modules.get(&module) {
            return *id;
        }
        let recorded = &self.recording.tables.modules[module.0 as usize];
        let id = self.profile.mapping.len() as u64 + 1;
        let mapping = proto::Mapping {
            id,
            memory_limit: u64::MAX,
            filename: self.string(&readable(&recorded.path)),
            build_id: self.string(&recorded.build_id),
            // The profile is fully symbolised, so pprof need not look up names.
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        };
        self.profile.mapping.push(mapping);
        self.modules.insert(module, id);
        id
    }

    fn function(&mut self, function: &CodeFunction) -> u64 {
        let key = CodeFunction {
            line: 0,
            ..function.clone()
        };
        if let Some(id) = self.functions.get(&key) {
            return *id;
        }
        let id = self.profile.function.len() as u64 + 1;
        let written = proto::Function {
            id,
            name: self.string(&function.name),
            filename: self.string(&function.file),
        };
        self.profile.function.push(written);
        self.functions.insert(key, id);
        id
    }

    fn location(&mut self, number: u32, code: &Code) -> u64 {
        if let Some(id) = self.locations.get(&number) {
            return *id;
        }
        let lines = code.functions.iter().map(|function| proto::Line {
            function_id: self.function(function),
            line: i64::from(function.line),
        });
        let line = lines.collect();
        let id = self.profile.location.len() as u64 + 1;
        let mapping_id = self.mapping(code.module);
        self.profile.location.push(proto::Location {
            id,
            mapping_id,
            address: code.offset,
            line,
        });
        self.locations.insert(number, id);
        id
    }

    /// Moves the program's mapping to the front, because pprof takes the first mapping for the program. The program is
    /// that of the process with the most time lost. It is found by the name of its first thread, which the kernel
    /// truncates.
    fn put_program_first(&mut self, sums: &Sums) {
        let tables = &self.recording.tables;
        let mut lost_ns: FxHashMap<u32, i64> = FxHashMap::default();
        for Sum { key, cost_ns, .. } in &sums.rows {
            if let Some(thread) = tables.threads.get(key.thread.0 as usize) {
                let sum = lost_ns.entry(thread.pid).or_default();
                *sum = sum.saturating_add(cost_ns.round() as i64);
            }
        }
        let most = lost_ns.iter().max_by_key(|(pid, ns)| (**ns, **pid));
        let mut threads = tables.threads.iter();
        let main = most
            .and_then(|(&pid, _)| threads.find(|thread| thread.pid == pid && thread.order == 0));
        let Some(name) = main
            .map(|main| main.name.as_str())
            .filter(|name| !name.is_empty())
        else {
            return;
        };
        let is_program = |module: &ModuleId| {
            tables.modules[module.0 as usize]
                .file_name()
                .starts_with(name)
        };
        let ids = self.modules.iter().filter(|(module, _)| is_program(module));
        if let Some(&id) = ids.map(|(_, id)| id).min() {
            self.profile.mapping[..id as usize].rotate_right(1);
        }
    }
}

impl Writer for Pprof<'_> {
    fn access(&mut self, labelled: &Labelled<'_>, _out: &mut dyn Write) -> io::Result<()> {
        self.sums.add(labelled);
        Ok(())
    }

    fn finish(mut self: Box<Self>, _sampled: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
        let sums = std::mem::take(&mut self.sums);
        for Sum {
            key,
            accesses,
            cost_ns,
        } in &sums.rows
        {
            let location = self.location(key.code, &sums.codes[&key.code]);
            let labels = sums.labels(key, self.recording).into_iter();
            let label = labels.map(|(name, text)| proto::Label {
                key: self.string(name),
                str: self.string(&text),
            });
            let label = label.collect();
            self.profile.sample.push(proto::Sample {
                location_id: vec![location],
                value: vec![accesses.round() as i64, cost_ns.round() as i64],
                label,
            });
        }
        self.put_program_first(&sums);
        let mut gzip = GzEncoder::new(out, Compression::default());
        gzip.write_all(&self.profile.encode_to_vec())?;
        gzip.finish()?;
        Ok(())
    }
}
