//! `live --otlp` posts profiles to a collector; here, a server that decodes them. No test depends on the machine's
//! speed: programs run until the server has what it needs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nearpage_tests::{Case, Finished};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::Profile;
use prost::Message;

/// Program that reads and writes an array until its folder has a file `end`.
const BUSY: &str = r#"
#include <stdlib.h>
#include <unistd.h>
#define CELLS (4u << 20)
unsigned variable[CELLS];
int main(int count, char **words) {
    unsigned i = 1;
    while (access("end", F_OK))
        for (int round = 0; round < 1 << 20; round++) {
            i = i * 1103515245u + 12345u;
            variable[i % CELLS] += i;
        }
    return count > 1 ? atoi(words[1]) : 0;
}
"#;

/// A collector that answers with the given statuses in turn, then repeats the last one, and keeps all requests.
struct Collector {
    url: String,
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Collector {
    /// Starts the collector, which creates the file `end` when it gives the last of its answers.
    fn start(statuses: &'static [u16], end: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = requests.clone();
        std::thread::spawn(move || {
            let mut statuses = statuses.iter().peekable();
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                let Some(body) = request(&mut stream) else {
                    continue;
                };
                kept.lock().expect("nobody panics").push(body);
                let status = **statuses.peek().expect("one at least");
                if statuses.len() > 1 {
                    statuses.next();
                } else {
                    std::fs::write(&end, "").expect("the folder is writable");
                }
                let answer = format!(
                    "HTTP/1.1 {status} As told\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"
                );
                // A client that has ended needs no answer.
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { url, requests }
    }

    fn requests(&self) -> Vec<Vec<u8>> {
        self.requests.lock().expect("nobody panics").clone()
    }
}

/// Checks a request against the protocol and returns its body.
fn request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut got = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let head = got.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(head) = head {
            let text = String::from_utf8_lossy(&got[..head]).to_lowercase();
            assert!(
                text.starts_with("post /v1development/profiles http/1.1\r\n"),
                "{text}"
            );
            assert!(
                text.contains("content-type: application/x-protobuf"),
                "{text}"
            );
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.expect("a length").trim().parse().expect("a number");
            if got.len() >= head + 4 + length {
                return Some(got[head + 4..].to_vec());
            }
        }
        match stream.read(&mut piece) {
            Ok(count) if count > 0 => got.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    }
}

fn busy(name: &str) -> Case {
    let case = Case::new(name);
    case.compile("busy", BUSY, &[]);
    case
}

fn live(case: &Case, url: &str, status: &str) -> Finished {
    let options = [
        "--policy",
        "watch",
        "--interval",
        "200ms",
        "--otlp-interval",
        "1s",
    ];
    let mut words = vec!["live", "--plain", "--otlp", url];
    words.extend(options);
    words.extend(["--", "./busy", status]);
    case.nearpage(words)
}

fn text(value: &Option<AnyValue>) -> String {
    match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("a text or a number: {other:?}"),
    }
}

fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a KeyValue> {
    attributes.iter().find(|attribute| attribute.key == key)
}

#[test]
fn a_collector_gets_objects_and_nodes_of_running_programs() {
    let case = busy("collector");
    // After status 503, the first message is sent again.
    let collector = Collector::start(&[503, 200, 200], case.path("end"));
    let finished = live(&case, &collector.url, "0").success();
    assert!(!finished.stderr.contains("profiles"), "{finished}");
    let requests = collector.requests();
    assert!(requests.len() >= 3);
    assert_eq!(requests[0], requests[1], "what was to be posted again");
    let mut of_variable = 0;
    for request in &requests[1..] {
        let message = ExportProfilesServiceRequest::decode(&request[..]).expect("a message");
        let tables = message.dictionary.expect("a dictionary");
        let string = |at: i32| tables.string_table[at as usize].as_str();
        let [program] = &message.resource_profiles[..] else {
            panic!("one program: {:?}", message.resource_profiles)
        };
        let of_program = &program.resource.as_ref().expect("a resource").attributes;
        let service = attribute(of_program, "service.name").expect("a name");
        assert_eq!(text(&service.value), "busy");
        assert!(attribute(of_program, "process.pid").is_some());
        assert!(attribute(of_program, "host.name").is_some());
        let [scope] = &program.scope_profiles[..] else {
            panic!("one scope: {:?}", program.scope_profiles)
        };
        let [time, accesses] = &scope.profiles[..] else {
            panic!("two profiles: {:?}", scope.profiles)
        };
        let kind = |profile: &Profile| {
            let of = profile.sample_type.as_ref().expect("a type");
            (string(of.type_strindex), string(of.unit_strindex))
        };
        assert_eq!(kind(time), ("time", "nanoseconds"));
        assert_eq!(kind(accesses), ("accesses", "count"));
        assert_eq!(time.samples.len(), accesses.samples.len());
        for (time, accesses) in time.samples.iter().zip(&accesses.samples) {
            assert_eq!(time.attribute_indices, accesses.attribute_indices);
            assert!(time.values[0] > 0 && accesses.values[0] > 0);
            let value = |key: &str| {
                let numbers = time.attribute_indices.iter();
                let found = numbers
                    .map(|number| &tables.attribute_table[*number as usize])
                    .find(|attribute| string(attribute.key_strindex) == key);
                text(&found.unwrap_or_else(|| panic!("no {key}")).value)
            };
            assert!(value("nearpage.node").starts_with("node "));
            assert!(value("nearpage.cpu_node").starts_with("node "));
            value("nearpage.level");
            value("nearpage.access");
            let object = value("nearpage.object");
            let stack = &tables.stack_table[time.stack_index as usize].location_indices;
            let names = stack.iter().map(|at| {
                let line = tables.location_table[*at as usize].lines[0].function_index;
                string(tables.function_table[line as usize].name_strindex)
            });
            assert_eq!(names.collect::<Vec<_>>(), [&object, "busy"]);
            of_variable += i64::from(object == "busy variables") * accesses.values[0];
        }
    }
    assert!(of_variable > 0, "the array was not sampled");
}

#[test]
fn a_collector_that_takes_nothing_harms_nobody() {
    let case = busy("no_collector");
    let collector = Collector::start(&[400, 400], case.path("end"));
    let finished = live(&case, &collector.url, "7").exits(7);
    let told = finished
        .stderr
        .matches("it answers with status 400")
        .count();
    assert!((1..=2).contains(&told), "{finished}");
    assert!(finished.stderr.contains("lost, 0 sent: "), "{finished}");

    // The server does not listen. The file `end` exists already, so the program ends at once.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    live(&case, &url, "7").exits(7);
    for (url, words) in [
        ("https://localhost", "nearpage has no TLS"),
        ("localhost:4318", "expected http://HOST:4318"),
    ] {
        let refused = live(&case, url, "0").exits(2);
        assert!(refused.stderr.contains(words), "{refused}");
    }
}
