//! Profiles of running programs, for a collector that gets them every few seconds.

use nearpage_amount::counted;
use nearpage_machine::NodeId;
use nearpage_recording::{AccessKind, Level, Origin};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use prost::Message;

use super::dictionary::Dictionary;
use super::{
    Place, Row, Span, number, place_attributes, program_attributes, resource_of, resource_profiles,
};
use crate::printable;

/// A running program with its sampled accesses.
#[derive(Clone, Debug)]
pub struct RunningProgram {
    /// Process ID.
    pub pid: u32,
    /// Name of the program.
    pub name: String,
    /// Origin of the process.
    pub origin: Origin,
    /// Sums of the sampled accesses.
    pub accesses: Vec<RunningAccess>,
}

/// Accesses with equal properties.
#[derive(Clone, Debug)]
pub struct RunningAccess {
    /// Object's name: a mapping of the program.
    pub object: String,
    /// Node of the memory.
    pub node: NodeId,
    /// Node of the CPU.
    pub cpu_node: NodeId,
    /// Cache or memory that served the accesses.
    pub level: Level,
    /// Load, store or fetch.
    pub kind: AccessKind,
    /// Number of accesses.
    pub accesses: f64,
    /// Time lost to the accesses, in nanoseconds.
    pub cost_ns: f64,
}

/// A message with the profiles of programs on a host, with a resource for each program. A stack is an object in its
/// program, because functions of running programs are not looked up.
pub fn running_profiles(
    host: &str,
    begin_unix_ns: u64,
    duration_ns: u64,
    programs: &[RunningProgram],
) -> Vec<u8> {
    let mut dictionary = Dictionary::new();
    let time = Span {
        begin_unix_ns,
        duration_ns,
    };
    let mut resource_of_programs = Vec::with_capacity(programs.len());
    for program in programs {
        let rows = program.accesses.iter().map(|access| {
            let attributes = place_attributes(&Place {
                object: &access.object,
                object_kind: "mapping",
                node: Some(access.node),
                cpu_node: Some(access.cpu_node),
                level: access.level,
                kind: access.kind,
            });
            let attributes = attributes.into_iter();
            Row {
                stack: dictionary.named_stack(&[&access.object, &program.name]),
                attributes: attributes
                    .map(|(name, value)| dictionary.attribute(name, value))
                    .collect(),
                accesses: access.accesses,
                cost_ns: access.cost_ns,
            }
        });
        let rows: Vec<Row> = rows.collect();
        let mut attributes = program_attributes(&program.name, host, &program.origin);
        attributes.push(("process.pid", number(program.pid)));
        let resource = resource_of(attributes);
        resource_of_programs.push(resource_profiles(resource, &rows, time, &mut dictionary));
    }
    let data = ProfilesData {
        resource_profiles: resource_of_programs,
        dictionary: Some(dictionary.finish()),
    };
    data.encode_to_vec()
}

/// Text on the profiles that a collector rejects, from its answer to a message.
pub fn rejected_profiles(answer: &[u8]) -> Option<String> {
    let partial = ExportProfilesServiceResponse::decode(answer)
        .ok()?
        .partial_success?;
    (partial.rejected_profiles > 0).then(|| {
        let rejected = counted(partial.rejected_profiles as u64, "profile");
        let why: String = printable(&partial.error_message)
            .chars()
            .take(200)
            .collect();
        format!("it rejects {rejected}: {why}")
    })
}
