//! OpenTelemetry's profiles (`ProfilesData` of `opentelemetry/proto/profiles/v1development`), as bytes that a collector
//! accepts by HTTP. The two profiles, accesses and time lost, have the same samples: accesses of one instruction with
//! equal attributes. The specification is in development; this is the form of version 1.10.
//!
//! Attributes have the names of OpenTelemetry's conventions if there are such names, and otherwise begin with
//! `nearpage.`.

mod dictionary;
mod running;

use std::io::{self, Write};

use nearpage_machine::NodeId;
use nearpage_recording::{AccessKind, Level, Origin, Recording};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Profile, ProfilesData, ResourceProfiles, Sample, ScopeProfiles,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

pub use self::running::{RunningAccess, RunningProgram, rejected_profiles, running_profiles};

use self::dictionary::Dictionary;
use super::Writer;
use super::labels::{Labelled, access_name, level_name, node_name};
use super::sums::{Key, Sums};

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
        let mut dictionary = Dictionary::new();
        let modules = &self.recording.tables.modules;
        let rows = self.sums.rows.iter().map(|sum| Row {
            stack: dictionary.stack(sum.key.code, &self.sums.codes[&sum.key.code], modules),
            attributes: self.attributes(&mut dictionary, &sum.key),
            accesses: sum.accesses,
            cost_ns: sum.cost_ns,
        });
        let rows: Vec<Row> = rows.collect();
        let metadata = &self.recording.metadata;
        let time = Span {
            begin_unix_ns: metadata.started_unix_ns,
            duration_ns: metadata.end_ns.saturating_sub(metadata.begin_ns),
        };
        ProfilesData {
            resource_profiles: vec![resource_profiles(
                resource(self.recording),
                &rows,
                time,
                &mut dictionary,
            )],
            dictionary: Some(dictionary.finish()),
        }
    }

    /// Attributes of a sample.
    fn attributes(&self, dictionary: &mut Dictionary, key: &Key) -> Vec<i32> {
        let (object, object_kind) = self.sums.object(key);
        let mut attributes = place_attributes(&Place {
            object,
            object_kind,
            node: key.node,
            cpu_node: key.cpu_node,
            level: key.level,
            kind: key.kind,
        });
        let thread = self.recording.tables.threads.get(key.thread.0 as usize);
        if let Some(thread) = thread {
            attributes.push(("thread.name", text(thread.name.clone())));
            attributes.push(("thread.id", number(thread.tid)));
            attributes.push(("process.pid", number(thread.pid)));
        }
        attributes
            .into_iter()
            .map(|(name, value)| dictionary.attribute(name, value))
            .collect()
    }
}

/// A sample of both profiles: its accesses and its time lost.
struct Row {
    stack: i32,
    attributes: Vec<i32>,
    accesses: f64,
    cost_ns: f64,
}

/// Time range of a profile.
#[derive(Clone, Copy)]
struct Span {
    begin_unix_ns: u64,
    duration_ns: u64,
}

/// Memory of an access, and the CPU's node.
struct Place<'a> {
    object: &'a str,
    object_kind: &'a str,
    node: Option<NodeId>,
    cpu_node: Option<NodeId>,
    level: Level,
    kind: AccessKind,
}

fn place_attributes(place: &Place<'_>) -> Vec<(&'static str, AnyValue)> {
    vec![
        ("nearpage.object", text(place.object)),
        ("nearpage.object_kind", text(place.object_kind)),
        ("nearpage.node", text(node_name(place.node))),
        ("nearpage.cpu_node", text(node_name(place.cpu_node))),
        ("nearpage.level", text(level_name(place.level))),
        ("nearpage.access", text(access_name(place.kind))),
    ]
}

/// Profiles of time lost and of accesses, with the same samples.
fn resource_profiles(
    resource: Resource,
    rows: &[Row],
    time: Span,
    dictionary: &mut Dictionary,
) -> ResourceProfiles {
    let mut profile = |what, value: fn(&Row) -> f64| {
        let samples = rows.iter().map(|row| Sample {
            stack_index: row.stack,
            attribute_indices: row.attributes.clone(),
            values: vec![value(row).round() as i64],
            ..Sample::default()
        });
        Profile {
            sample_type: Some(dictionary.value_type(what)),
            samples: samples.collect(),
            time_unix_nano: time.begin_unix_ns,
            duration_nano: time.duration_ns,
            ..Profile::default()
        }
    };
    let profiles = vec![
        profile(("time", "nanoseconds"), |row| row.cost_ns),
        profile(("accesses", "count"), |row| row.accesses),
    ];
    ResourceProfiles {
        resource: Some(resource),
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
    }
}

fn text(value: impl Into<String>) -> AnyValue {
    AnyValue {
        value: Some(Value::StringValue(value.into())),
    }
}

fn number(value: u32) -> AnyValue {
    AnyValue {
        value: Some(Value::IntValue(value.into())),
    }
}

/// Resource of a recording: program, host, and origin.
fn resource(recording: &Recording) -> Resource {
    let metadata = &recording.metadata;
    let program = metadata.command.first();
    let program = program.and_then(|path| path.rsplit('/').next());
    let launched = metadata.launched.as_ref();
    let host = launched.map_or(&metadata.host, |launched| &launched.host);
    let mut origin = metadata.origin.clone().unwrap_or_default();
    if let Some(job) = launched.and_then(|launched| launched.job.clone()) {
        origin.job = job;
    }
    let mut attributes = program_attributes(program.unwrap_or("unknown_service"), host, &origin);
    if let Some(launched) = launched {
        attributes.push(("nearpage.rank", number(launched.rank)));
    }
    resource_of(attributes)
}

fn program_attributes(program: &str, host: &str, origin: &Origin) -> Vec<(&'static str, AnyValue)> {
    let mut attributes = vec![("service.name", text(program))];
    for (name, value) in [
        ("host.name", host),
        ("k8s.pod.uid", &origin.pod),
        ("nearpage.cgroup", &origin.cgroup),
        ("nearpage.job", &origin.job),
    ] {
        if !value.is_empty() {
            attributes.push((name, text(value)));
        }
    }
    attributes
}

fn resource_of(attributes: Vec<(&'static str, AnyValue)>) -> Resource {
    let attributes = attributes.into_iter().map(|(name, value)| KeyValue {
        key: name.to_owned(),
        value: Some(value),
        ..KeyValue::default()
    });
    Resource {
        attributes: attributes.collect(),
        ..Resource::default()
    }
}
