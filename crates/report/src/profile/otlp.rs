//! OpenTelemetry's profiles (`ProfilesData` of `opentelemetry/proto/profiles/v1development`), which are bytes that a collector
//! takes by HTTP. Two profiles, accesses and time lost, have the same samples: accesses of one instruction with the same
//! attributes. The specification is in development; this is the form of version 1.10.
//!
//! Attributes have names of OpenTelemetry's conventions where there are such, and begin with `nearpage.` otherwise.

use std::hash::Hash;
use std::io::{self, Write};

use nearpage_files::readable;
use nearpage_recording::{ModuleId, Recording};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesData,
    ProfilesDictionary, ResourceProfiles, Sample, ScopeProfiles, Stack, ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use rustc_hash::FxHashMap;

use super::Writer;
use super::labels::{Code, Labelled};
use super::sums::{Key, Sum, Sums};

pub(super) struct Otlp<'a> {
    recording: &'a Recording,
    sums: Sums,
}

impl<'a> Otlp<'a> {
    pub fn new(recording: &'a Recording) -> Self {
        Self {
            recording,
            sums: Sums::default(),
        }
    }
}

impl Writer for Otlp<'_> {
    fn access(&mut self, labelled: &Labelled<'_>, _out: &mut dyn Write) -> io::Result<()> {
        self.sums.add(labelled);
        Ok(())
    }

    fn finish(self: Box<Self>, _thinned: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.data().encode_to_vec())
    }
}

impl Otlp<'_> {
    fn data(&self) -> ProfilesData {
        let mut dictionary = Dictionary::new(self.recording);
        let samples: Vec<(i32, Vec<i32>)> = self
            .sums
            .rows
            .iter()
            .map(|Sum { key, .. }| {
                let stack = dictionary.stack(key.code, &self.sums.codes[&key.code]);
                (stack, dictionary.attributes(&self.sums, key))
            })
            .collect();
        let profile = |dictionary: &mut Dictionary<'_>, (kind, unit), value: fn(&Sum) -> f64| {
            let rows = samples.iter().zip(&self.sums.rows);
            let samples = rows.map(|((stack, attributes), sum)| Sample {
                stack_index: *stack,
                attribute_indices: attributes.clone(),
                values: vec![value(sum).round() as i64],
                ..Sample::default()
            });
            let metadata = &self.recording.metadata;
            Profile {
                sample_type: Some(ValueType {
                    type_strindex: dictionary.strings.number(kind),
                    unit_strindex: dictionary.strings.number(unit),
                }),
                samples: samples.collect(),
                time_unix_nano: metadata.started_unix_ns,
                duration_nano: metadata.end_ns.saturating_sub(metadata.begin_ns),
                ..Profile::default()
            }
        };
        let profiles = vec![
            profile(&mut dictionary, ("time", "nanoseconds"), |sum| sum.cost_ns),
            profile(&mut dictionary, ("accesses", "count"), |sum| sum.accesses),
        ];
        ProfilesData {
            resource_profiles: vec![ResourceProfiles {
                resource: Some(resource(self.recording)),
                scope_profiles: vec![ScopeProfiles {
                    scope: Some(InstrumentationScope {
                        name: "nearpage".to_owned(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                        ..InstrumentationScope::default()
                    }),
                    profiles,
                    ..ScopeProfiles::default()
                }],
                ..ResourceProfiles::default()
            }],
            dictionary: Some(dictionary.finish()),
        }
    }
}

fn text(value: impl Into<String>) -> AnyValue {
    AnyValue {
        value: Some(Value::StringValue(value.into())),
    }
}

/// What the recording is of: program, host, and whose it was.
fn resource(recording: &Recording) -> Resource {
    let metadata = &recording.metadata;
    let program = metadata.command.first();
    let program = program.and_then(|path| path.rsplit('/').next());
    let launched = metadata.launched.as_ref();
    let host = launched.map_or(&metadata.host, |launched| &launched.host);
    let origin = metadata.origin.clone().unwrap_or_default();
    let job = launched.and_then(|launched| launched.job.clone());
    let number = |value: u32| AnyValue {
        value: Some(Value::IntValue(value.into())),
    };
    let mut attributes = vec![("service.name", text(program.unwrap_or("unknown_service")))];
    for (name, value) in [
        ("host.name", host.clone()),
        ("k8s.pod.uid", origin.pod),
        ("nearpage.cgroup", origin.cgroup),
        ("nearpage.job", job.unwrap_or(origin.job)),
    ] {
        if !value.is_empty() {
            attributes.push((name, text(value)));
        }
    }
    if let Some(launched) = launched {
        attributes.push(("nearpage.rank", number(launched.rank)));
    }
    Resource {
        attributes: attributes
            .into_iter()
            .map(|(name, value)| KeyValue {
                key: name.to_owned(),
                value: Some(value),
                ..KeyValue::default()
            })
            .collect(),
        ..Resource::default()
    }
}

/// Entries that have a number each, from 1: 0 is the empty one.
struct Table<K, V> {
    entries: Vec<V>,
    numbers: FxHashMap<K, i32>,
}

impl<K: Eq + Hash, V: Default> Table<K, V> {
    fn new() -> Self {
        Self {
            entries: vec![V::default()],
            numbers: FxHashMap::default(),
        }
    }

    fn known(&self, key: &K) -> Option<i32> {
        self.numbers.get(key).copied()
    }

    fn add(&mut self, key: K, value: V) -> i32 {
        let number = self.entries.len() as i32;
        self.entries.push(value);
        self.numbers.insert(key, number);
        number
    }
}

impl Table<String, String> {
    fn number(&mut self, text: &str) -> i32 {
        if text.is_empty() {
            return 0;
        }
        let known = self.numbers.get(text).copied();
        known.unwrap_or_else(|| self.add(text.to_owned(), text.to_owned()))
    }
}

/// What samples refer to.
struct Dictionary<'a> {
    recording: &'a Recording,
    strings: Table<String, String>,
    /// By name and what stands for the value.
    attributes: Table<(&'static str, String), KeyValueAndUnit>,
    mappings: Table<ModuleId, Mapping>,
    functions: Table<(i32, i32), Function>,
    locations: Table<u32, Location>,
    stacks: Table<u32, Stack>,
}

impl<'a> Dictionary<'a> {
    fn new(recording: &'a Recording) -> Self {
        Self {
            recording,
            strings: Table::new(),
            attributes: Table::new(),
            mappings: Table::new(),
            functions: Table::new(),
            locations: Table::new(),
            stacks: Table::new(),
        }
    }

    fn attribute(&mut self, name: &'static str, value: AnyValue) -> i32 {
        let key = (name, format!("{value:?}"));
        if let Some(known) = self.attributes.known(&key) {
            return known;
        }
        let entry = KeyValueAndUnit {
            key_strindex: self.strings.number(name),
            value: Some(value),
            unit_strindex: 0,
        };
        self.attributes.add(key, entry)
    }

    /// What a sample is of.
    fn attributes(&mut self, sums: &Sums, key: &Key) -> Vec<i32> {
        let labels = sums.labels(key, self.recording);
        let named = labels.into_iter().filter_map(|(label, value)| {
            let name = match label {
                "object" => "nearpage.object",
                "object kind" => "nearpage.object_kind",
                "node" => "nearpage.node",
                "CPU node" => "nearpage.cpu_node",
                "level" => "nearpage.level",
                "kind" => "nearpage.access",
                // It has attributes of its own by OpenTelemetry's conventions.
                _ => return None,
            };
            Some((name, text(value)))
        });
        let mut attributes: Vec<(&'static str, AnyValue)> = named.collect();
        let thread = self.recording.tables.threads.get(key.thread.0 as usize);
        if let Some(thread) = thread {
            let number = |value: u32| AnyValue {
                value: Some(Value::IntValue(value.into())),
            };
            attributes.push(("thread.name", text(thread.name.clone())));
            attributes.push(("thread.id", number(thread.tid)));
            attributes.push(("process.pid", number(thread.pid)));
        }
        attributes
            .into_iter()
            .map(|(name, value)| self.attribute(name, value))
            .collect()
    }

    fn mapping(&mut self, module: Option<ModuleId>) -> i32 {
        let Some(module) = module else {
            return 0;
        };
        if let Some(known) = self.mappings.known(&module) {
            return known;
        }
        let recorded = &self.recording.tables.modules[module.0 as usize];
        let build_id = match recorded.build_id.as_str() {
            "" => Vec::new(),
            build_id => vec![self.attribute("process.executable.build_id.gnu", text(build_id))],
        };
        let mapping = Mapping {
            // Addresses of locations are those of the file, wherever it was mapped.
            memory_start: 0,
            memory_limit: 0,
            filename_strindex: self.strings.number(&readable(&recorded.path)),
            attribute_indices: build_id,
            ..Mapping::default()
        };
        self.mappings.add(module, mapping)
    }

    /// The stack of an instruction: itself, as accesses are recorded without callers.
    fn stack(&mut self, number: u32, code: &Code) -> i32 {
        if let Some(known) = self.stacks.known(&number) {
            return known;
        }
        let lines = code.functions.iter().map(|function| {
            let name = self.strings.number(&function.name);
            let file = self.strings.number(&function.file);
            let known = self.functions.known(&(name, file));
            let function_index = known.unwrap_or_else(|| {
                let entry = Function {
                    name_strindex: name,
                    filename_strindex: file,
                    ..Function::default()
                };
                self.functions.add((name, file), entry)
            });
            Line {
                function_index,
                line: i64::from(function.line),
                column: 0,
            }
        });
        let lines = lines.collect();
        let location = Location {
            mapping_index: self.mapping(code.module),
            address: code.offset,
            lines,
            ..Location::default()
        };
        let location = self.locations.add(number, location);
        let stack = Stack {
            location_indices: vec![location],
        };
        self.stacks.add(number, stack)
    }

    fn finish(self) -> ProfilesDictionary {
        ProfilesDictionary {
            mapping_table: self.mappings.entries,
            location_table: self.locations.entries,
            function_table: self.functions.entries,
            link_table: vec![Link::default()],
            string_table: self.strings.entries,
            attribute_table: self.attributes.entries,
            stack_table: self.stacks.entries,
        }
    }
}
