//! Tests the report of a job with invented ranks.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use nearpage_attribution::{JobObject, ObjectNames, ObjectUse, RankProfile};
use nearpage_machine::{Machine, NodeId, preset};
use nearpage_recording::{Binding, Job, Launched, Launcher, Metadata, RankRecording, Source};
use nearpage_report::{JobBy, JobContent, TextOptions, job_json, job_text};

const RANKS: u32 = 64;
const FAR: [u32; 2] = [3, 41];

fn recording(rank: u32, cpus: &str) -> RankRecording {
    let launched = Launched {
        launcher: Launcher::Slurm,
        rank,
        size: Some(RANKS),
        local_rank: Some(rank),
        node_index: Some(0),
        host: "n1".to_owned(),
        job: Some("77".to_owned()),
        step: None,
    };
    RankRecording {
        folder: format!("cg.77.nearpage/rank-{rank:05}@n1").into(),
        rank,
        host: "n1".to_owned(),
        metadata: Metadata {
            launched: Some(launched),
            binding: Some(Binding {
                cpus: cpus.to_owned(),
                memory_nodes: "0-3".to_owned(),
                gpus: None,
            }),
            ..Metadata::begun(Source::Clock, UNIX_EPOCH, Vec::new())
        },
    }
}

fn profile(values: JobObject, is_far: bool) -> RankProfile {
    let remote = if is_far { 1160.0 } else { 60.0 };
    let used = ObjectUse {
        samples: 2000.0,
        node_known: 2000.0,
        remote,
        cost_ns: 2e9,
    };
    let memory = |samples: f64, remote: f64| ObjectUse {
        samples,
        node_known: samples,
        remote,
        cost_ns: samples * 1e6,
    };
    let near = if is_far {
        (NodeId(0), memory(1700.0, 1100.0))
    } else {
        (NodeId(1), memory(1940.0, 0.0))
    };
    RankProfile {
        memory_bytes: Some(3 << 30),
        page_shares: [(near.0, 0.75), (NodeId(2), 0.25)].into(),
        total: used,
        objects: [(values, (used, "block"))].into(),
        elapsed_ns: 10_000_000_000,
        memory_nodes: [near, (NodeId(2), memory(60.0, 60.0))].into(),
        cpu_nodes: [(NodeId(1), 2000.0)].into(),
    }
}

/// A job of 64 ranks, two of which are far from their memory. All ranks are bound to a CPU of node 1.
fn with_job(look: impl FnOnce(&JobContent)) {
    let machine: Machine = preset("opteron-4").expect("a preset");
    let cpu = machine.nodes[1].cpus[0].to_string();
    let mut names = ObjectNames::default();
    let values = names.number("values".to_owned(), || "values\u{1b}[31m".to_owned());
    let job = Job {
        folder: "cg.77.nearpage".into(),
        name: Some("77".to_owned()),
        size: Some(RANKS),
        ranks: (0..RANKS).map(|rank| recording(rank, &cpu)).collect(),
        notes: Vec::new(),
    };
    let is_far = |rank: &u32| FAR.contains(rank);
    let profiles: Vec<_> = (0..RANKS)
        .map(|rank| profile(values, is_far(&rank)))
        .collect();
    let machines = BTreeMap::from([("n1".to_owned(), machine)]);
    look(&JobContent::new(&job, &profiles, &names, &machines));
}

fn in_words(content: &JobContent, by: JobBy) -> String {
    job_text(content, by, &wide(false))
}

fn wide(colour: bool) -> TextOptions {
    TextOptions {
        width: 200,
        top: 5,
        colour,
        ..TextOptions::default()
    }
}

#[test]
fn colour_marks_outliers_and_remote_shares_and_changes_no_column() {
    with_job(|content| {
        for by in [JobBy::Group, JobBy::Rank, JobBy::Host] {
            let coloured = job_text(content, by, &wide(true));
            let is_marked = |line: &str| line.contains("\u{1b}[33m") || line.contains("\u{1b}[31m");
            assert!(coloured.lines().any(is_marked), "{coloured}");
            let after_escapes = coloured.split("\u{1b}[").enumerate();
            let plain: String = after_escapes
                .map(|(number, part)| match number {
                    0 => part,
                    _ => {
                        part.split_once('m')
                            .expect("an escape sequence of colour")
                            .1
                    }
                })
                .collect();
            assert_eq!(plain, in_words(content, by));
        }
    });
}

#[test]
fn outliers_are_named_in_a_sentence() {
    with_job(|content| {
        let text = in_words(content, JobBy::Group);
        for line in [
            "job 77: 64 ranks on 1 host, Slurm, 128k effective samples of accesses",
            "62 of 64 ranks (ranks 0-2, 4-40 and 42-63): 3.0 % remote, 20 % of the time lost",
            "ranks 3 and 41: 58 % remote (most ranks 3.0 %), bound to node 1 with memory on node 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
    });
}

#[test]
fn bindings_come_with_the_option_that_mends_them() {
    with_job(|content| {
        let text = in_words(content, JobBy::Rank);
        assert!(text.contains("ranks 0-63 on n1: share CPU "), "{text}");
        assert!(
            text.contains("try srun --cpus-per-task=THREADS --cpu-bind=cores"),
            "{text}"
        );
        assert!(
            text.contains("but up to 100 % of the accesses are to memory on node 0"),
            "{text}"
        );
        assert!(text.contains("59 ranks more with --top"), "{text}");
    });
}

#[test]
fn rows_of_hosts_add_their_ranks_up() {
    with_job(|content| {
        let text = in_words(content, JobBy::Host);
        let row = ["64", "128k", "192", "GiB", "4.7", "%", "20", "%", "n1"];
        let is_row = |line: &str| line.split_whitespace().eq(row);
        assert!(text.lines().any(is_row), "{text}");
    });
}

#[test]
fn memory_is_on_nodes_as_the_sampled_pages_are() {
    with_job(|content| {
        let json: serde_json::Value = serde_json::from_str(&job_json(content)).expect("JSON");
        let gib = |value: &serde_json::Value| value.as_f64().expect("bytes") / (1u64 << 30) as f64;
        assert_eq!(gib(&json["ranks"][0]["memory_bytes"]), 3.0);
        assert_eq!(gib(&json["hosts"][0]["memory_bytes"]), 192.0);
        let nodes = json["hosts"][0]["nodes"].as_array().expect("nodes");
        let nodes: Vec<f64> = nodes
            .iter()
            .map(|node| gib(&node["memory_bytes"]))
            .collect();
        assert_eq!(nodes, [2.0 * 2.25, 62.0 * 2.25, 64.0 * 0.75]);
        let text = in_words(content, JobBy::Node);
        assert!(text.contains("140 GiB"), "{text}");
    });
}

#[test]
fn json_has_every_rank_and_its_group() {
    with_job(|content| {
        let json: serde_json::Value = serde_json::from_str(&job_json(content)).expect("JSON");
        assert_eq!(json["groups"][1]["ranks"], serde_json::json!(FAR));
        assert_eq!(json["ranks"][3]["group"], 1);
        assert_eq!(json["ranks"][4]["group"], 0);
        assert_eq!(json["groups"][0]["difference"], serde_json::Value::Null);
        assert_eq!(json["binding"][0]["kind"], "shared-cpus");
        let binding = json["binding"].as_array().expect("findings");
        let elsewhere = binding
            .iter()
            .filter(|found| found["kind"] == "memory-elsewhere");
        let ranks: Vec<_> = elsewhere.map(|found| found["ranks"].clone()).collect();
        assert_eq!(ranks, [serde_json::json!(FAR)]);
    });
}
