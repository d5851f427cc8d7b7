//! Samples from other tools: published ones, converted as docs/guide/import-samples.md says, and recordings converted
//! to the text of `perf script` and back.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nearpage_tests::{Case, repository, workload};
use serde_json::Value;

/// Path of published samples: `shared/real/samples/NAME` in a folder above the checkout, or below `NEARPAGE_REAL`.
fn published(name: &str) -> Option<PathBuf> {
    let mut places: Vec<PathBuf> = repository()
        .ancestors()
        .map(|place| place.join("shared/real"))
        .collect();
    places.extend(std::env::var_os("NEARPAGE_REAL").map(PathBuf::from));
    let folders = places.iter().map(|place| place.join("samples").join(name));
    let found = folders.into_iter().find(|folder| folder.is_dir());
    if found.is_none() {
        eprintln!(
            "skipped: no shared/real/samples/{name} beside the checkout, and NEARPAGE_REAL names none"
        );
    }
    found
}

/// Runs the `number`th Python program of the guide on `input`.
fn converted(case: &Case, number: usize, input: &Path, output: &str) {
    let guide = fs::read_to_string(repository().join("docs/guide/import-samples.md")).unwrap();
    let program = guide.split("```python\n").nth(number + 1).unwrap();
    let (program, _) = program.split_once("```").unwrap();
    assert!(program.lines().count() <= 22, "about twenty lines");
    let script = case.write(format!("{number}.py"), program);
    let mut python = Command::new("python3");
    python.arg(script).stdin(fs::File::open(input).unwrap());
    let converted = python.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let converted = converted.output().expect("python3 is there");
    assert!(converted.status.success());
    case.write(output, converted.stdout);
}

/// Rows of a table without quotes; a row maps names of columns to values.
fn table(text: &str) -> Vec<BTreeMap<String, String>> {
    assert!(!text.contains('"'));
    let mut lines = text.lines().map(|line| line.split(','));
    let header: Vec<&str> = lines.next().unwrap().collect();
    let row = |fields: std::str::Split<'_, char>| {
        let names = header.iter().map(|name| (*name).to_owned());
        names.zip(fields.map(str::to_owned)).collect()
    };
    lines.map(row).collect()
}

type Counts = BTreeMap<String, u64>;

/// Number of rows by value.
fn counts<'a>(
    rows: impl IntoIterator<Item = &'a BTreeMap<String, String>>,
    value: impl Fn(&BTreeMap<String, String>) -> String,
) -> Counts {
    let mut counts = Counts::new();
    for row in rows {
        *counts.entry(value(row)).or_default() += 1;
    }
    counts
}

fn exported(case: &Case, recording: &str) -> Vec<BTreeMap<String, String>> {
    let csv = case.nearpage(["export", recording, "-q", "--to", "csv", "-o", "-"]);
    table(&csv.success().stdout)
}

fn reported(case: &Case, recording: &str) -> Value {
    let report = case.nearpage(["report", "--json", recording]).success();
    serde_json::from_str(&report.stdout).unwrap()
}

/// Number of accesses by the value of `key` in the report's `list`.
fn by(report: &Value, list: &str, key: &str) -> Counts {
    let rows = report[list].as_array().unwrap().iter();
    rows.map(|row| {
        (
            row[key].as_str().unwrap().to_owned(),
            row["accesses"].as_u64().unwrap(),
        )
    })
    .collect()
}

fn known(text: &str) -> String {
    if text == "??" { "" } else { text }.to_owned()
}

/// Cost in cycles at `ghz`, as a whole number.
fn cycles(row: &BTreeMap<String, String>, ghz: f64) -> String {
    let cost_ns: f64 = row["cost_ns"].parse().unwrap();
    format!("{:.0}", cost_ns * ghz)
}

#[test]
fn published_lulesh_samples_are_reported_as_their_columns_say() {
    let Some(folder) = published("lulesh") else {
        return;
    };
    let case = Case::new("lulesh");
    converted(&case, 1, &folder.join("samples.out"), "lulesh.csv");
    converted(&case, 2, &folder.join("hardware.xml"), "msn.toml");
    case.nearpage([
        "import",
        "-q",
        "lulesh.csv",
        "--machine",
        "msn.toml",
        "-o",
        "r",
    ])
    .success();
    let rows = table(&fs::read_to_string(folder.join("samples.out")).unwrap());
    let (report, exported) = (reported(&case, "r"), exported(&case, "r"));
    assert_eq!(report["accesses"].as_u64(), Some(rows.len() as u64));
    let column = |name: &'static str| move |row: &BTreeMap<String, String>| row[name].clone();
    assert_eq!(
        by(&report, "objects", "name"),
        counts(&rows, column("variable"))
    );
    assert_eq!(
        by(&report, "threads", "name"),
        counts(&rows, |row| format!("CPU {}", row["cpu"]))
    );
    assert_eq!(
        counts(&exported, column("cpu_node")),
        counts(&rows, column("node"))
    );
    let line =
        |file: &str, line: &str| format!("{}:{}", known(file), if line == "0" { "" } else { line });
    assert_eq!(
        counts(&exported, |row| line(&row["file"], &row["line"])),
        counts(&rows, |row| line(&row["source"], &row["line"]))
    );
    assert_eq!(
        counts(&exported, |row| cycles(row, 2.6)),
        counts(&rows, column("latency"))
    );
    // The lowest four bits of `dataSource` encode the level.
    let levels = counts(&exported, column("level"));
    let of = |bits: &[u64]| {
        let sources = rows
            .iter()
            .map(|row| row["dataSource"].parse::<u64>().unwrap());
        sources
            .filter(|source| bits.contains(&(source & 15)))
            .count() as u64
    };
    assert_eq!(levels["L1"], of(&[1]));
    assert_eq!(levels["L3"], of(&[4, 5, 6]));
    assert_eq!(levels[""], of(&[0]));
    assert_eq!(levels["remote cache"], of(&[8, 9]));
}

#[test]
fn published_heat_samples_are_reported_as_their_columns_say() {
    let Some(folder) = published("mitos-heat") else {
        return;
    };
    let case = Case::new("heat");
    converted(&case, 0, &folder.join("samples.csv"), "heat.csv");
    let machine = folder.join("hardware.xml").display().to_string();
    case.nearpage(["import", "-q", "heat.csv", "--machine", &machine, "-o", "r"])
        .success();
    let all = table(&fs::read_to_string(folder.join("samples.csv")).unwrap());
    let is_upper = |text: &String| text.parse::<u64>().unwrap() >> 63 != 0;
    let is_user =
        |row: &&BTreeMap<String, String>| !is_upper(&row["ip"]) && !is_upper(&row["addr"]);
    let rows: Vec<_> = all.iter().filter(is_user).cloned().collect();
    let (report, exported) = (reported(&case, "r"), exported(&case, "r"));
    assert_eq!(report["accesses"].as_u64(), Some(rows.len() as u64));
    let line = |file: &str, line: &str| format!("{}:{}", known(file), known(line));
    assert_eq!(
        counts(&exported, |row| line(&row["file"], &row["line"])),
        counts(&rows, |row| line(&row["source"], &row["line"]))
    );
    assert_eq!(
        counts(&exported, |row| cycles(row, 2.1)),
        counts(&rows, |row| row["latency"].clone())
    );
    assert_eq!(
        counts(&exported, |row| row["address"].clone()),
        counts(&rows, |row| format!(
            "{:#x}",
            row["addr"].parse::<u64>().unwrap()
        ))
    );
    // CPU 17 is on the third node of hwloc's file.
    assert_eq!(
        counts(&exported, |row| row["cpu_node"].clone())
            .keys()
            .collect::<Vec<_>>(),
        ["2"]
    );
    let threads = &report["threads"].as_array().unwrap()[0];
    assert_eq!(
        (threads["tid"].as_u64(), threads["cpus"]["17"].as_u64()),
        (Some(24_511), Some(rows.len() as u64))
    );
}

/// Checks that `perf script` text preserves the report, except for its notes, and every access.
fn comes_back(case: &Case, recording: &str) {
    case.nearpage([
        "export",
        recording,
        "-q",
        "--to",
        "perf-script",
        "-o",
        "text",
    ])
    .success();
    case.nearpage(["import", "-q", "text", "-o", "again"])
        .success();
    let without_notes = |recording: &str| {
        let mut report = reported(case, recording);
        report.as_object_mut().unwrap().remove("notes");
        report
    };
    let (before, after) = (without_notes(recording), without_notes("again"));
    assert!(before["accesses"].as_u64() > Some(0), "{before}");
    assert_eq!(after, before);
    let accesses = |recording: &str| {
        case.nearpage(["export", recording, "-q", "--to", "csv", "-o", "-"])
            .success()
            .stdout
    };
    assert_eq!(accesses("again"), accesses(recording));
    fs::remove_dir_all(case.path("again")).unwrap();
}

const CSV: &str = "\
time_ns,pid,tid,thread,cpu,cpu_node,node,kind,level,address,object,object_kind,object_address,function,file,line,weight,cost_ns
10,7,7,a b,0,0,1,load,remote memory,0x1010,main |OP a.c:1 (malloc),heap,0x1000,main(int),src/a.c,12,0.5,120.25
20,7,8,worker,1,1,,store,L1,0x1020,main |OP a.c:1 (malloc),heap,0x1000,main(int),src/a.c,13,2,7
30,7,8,worker,1,1,1,load,local memory,0x9020,grid,static,0x9000,,src/a.c,14,1,250000
40,7,7,a b,0,0,,fetch,,0x55554020,unknown,unknown,,,,,1,0
";

#[test]
fn a_recording_comes_back_from_the_text_of_perf_script() {
    let case = Case::new("perf-script-back");
    case.write("a.csv", CSV);
    case.nearpage(["import", "-q", "a.csv", "-o", "r"])
        .success();
    comes_back(&case, "r");
    // nearpage's own CSV also survives a round trip.
    let csv = |recording: &str| {
        case.nearpage(["export", recording, "-q", "--to", "csv", "-o", "-"])
            .success()
            .stdout
    };
    case.write("b.csv", csv("r"));
    case.nearpage(["import", "-q", "b.csv", "-o", "b"])
        .success();
    assert_eq!(csv("b"), csv("r"));
    // Accesses without a function get an address in its place.
    let nameless = csv("r").replace("[imported]+0x4000000000000020", "");
    assert_eq!(nameless.replace("[unknown]+0x0", ""), CSV);
}

#[test]
fn a_recorded_program_comes_back_from_the_text_of_perf_script() {
    let case = Case::new("recorded-back");
    let mut record = case.command(nearpage_tests::nearpage_path());
    record
        .args(["record", "-q", "-o", "r", "--"])
        .arg(workload("triad"));
    case.run(record).success();
    comes_back(&case, "r");
}

#[test]
fn comments_that_contradict_each_other_are_refused() {
    let case = Case::new("comments");
    case.write("a.csv", CSV);
    case.nearpage(["import", "-q", "a.csv", "-o", "r"])
        .success();
    case.nearpage(["export", "r", "-q", "--to", "perf-script", "-o", "text"])
        .success();
    let text = case.read("text");
    let refused = |changed: String, words: &str| {
        assert_ne!(changed, text, "{words}");
        case.write("changed", changed);
        let refused = case.nearpage(["import", "changed", "-o", "none"]);
        refused.says(1, &[words]);
        assert!(!case.path("none").exists());
    };
    refused(
        text.replace("\"call_site\":0", "\"call_site\":9"),
        "contradict",
    );
    refused(
        text.replace("# nearpage thread", "# nearpage tread"),
        "unknown kind \"tread\"",
    );
    refused(
        text.replace("# nearpage exact 0.5", "# nearpage exact -0.5"),
        "expected WEIGHT",
    );
    refused(text.replace("7/8 ", "7/9 "), "no thread of this number");
    refused(
        text.replace("# nearpage machine", "# machine"),
        "no comment with the machine",
    );
    refused(
        text.replace("\"version\":1,", "\"version\":99,"),
        "format version 99",
    );
}

#[test]
fn firefox_profiles_have_time_files_and_lines() {
    let case = Case::new("firefox-lines");
    case.write("a.csv", CSV);
    case.nearpage(["import", "-q", "a.csv", "-o", "r"])
        .success();
    let profile = case.nearpage(["export", "r", "-q", "--to", "firefox", "-o", "-"]);
    let profile: Value = serde_json::from_str(&profile.success().stdout).unwrap();
    let threads = profile["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 2);
    let main = threads.iter().find(|thread| thread["tid"] == "7").unwrap();
    assert_eq!(main["samples"]["weightType"], "tracing-ms");
    // 120.25 ns and 0 ns, in milliseconds.
    assert_eq!(
        main["samples"]["weight"],
        serde_json::json!([0.00012025, 0.0])
    );
    let worker = threads.iter().find(|thread| thread["tid"] == "8").unwrap();
    let (frames, functions) = (&worker["frameTable"], &worker["funcTable"]);
    let text = |number: &Value| {
        worker["stringArray"][number.as_u64().unwrap() as usize]
            .as_str()
            .unwrap()
    };
    let mut found = Vec::new();
    for (frame, line) in frames["line"].as_array().unwrap().iter().enumerate() {
        if let Some(line) = line.as_u64() {
            let function = frames["func"][frame].as_u64().unwrap() as usize;
            let name = text(&functions["name"][function]);
            found.push((name, text(&functions["fileName"][function]), line));
        }
    }
    assert_eq!(
        found,
        [
            ("main(int)", "src/a.c", 13),
            ("[imported]+0x4000000000000020", "src/a.c", 14)
        ]
    );
    assert!(
        !profile.to_string().contains("\\u0001"),
        "every name was put in"
    );
}

#[test]
fn viewers_name_threads_as_the_report_does() {
    let case = Case::new("thread-names");
    case.write("a.csv", CSV);
    case.nearpage(["import", "-q", "a.csv", "-o", "r"])
        .success();
    let report = case
        .nearpage(["report", "r", "--by", "thread"])
        .success()
        .stdout;
    let trace = case.nearpage(["export", "r", "-q", "--to", "perfetto", "-o", "-"]);
    let trace: Value = serde_json::from_str(&trace.success().stdout).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().iter();
    let names = events.filter(|event| event["name"] == "thread_name");
    let names: Vec<&str> = names
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a b, main 0", "worker, threads 0"]);
    for name in names {
        assert!(report.contains(name), "{name}: {report}");
    }
}

#[test]
fn all_memory_of_a_machine_with_one_node_is_on_it() {
    let case = Case::new("one-node");
    case.write("a.csv", "time_ns,cpu,address\n1,0,0x1000\n2,3,0x2000\n");
    case.nearpage(["import", "-q", "a.csv", "-o", "r"])
        .success();
    let nodes = counts(&exported(&case, "r"), |row| row["node"].clone());
    assert_eq!(nodes, Counts::from([("0".to_owned(), 2)]));
    let profile = case.nearpage(["export", "r", "-q", "--to", "firefox", "-o", "-"]);
    let profile = profile.success().stdout;
    assert!(profile.contains("\"node 0\"") && !profile.contains("node unknown"));
}
