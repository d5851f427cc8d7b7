//! Import and export of other tools' formats: `import` and `export --to`.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its beginning to its end"
)]

use std::fs;
use std::io::Read;
use std::process::Command;

use flate2::read::GzDecoder;
use nearpage_tests::{Case, Finished, python_package};
use serde_json::Value;

/// Output of `perf script` for three samples of two threads on two CPUs.
const SCRIPT: &str = "# cpudesc : Some CPU @ 2.00GHz
 perf-exec     0/0     [000]     0.000000: PERF_RECORD_COMM: perf-exec:100/100
     solve   100/100   [000]     1.000010: PERF_RECORD_COMM exec: solve:100/100
     solve   100/100   [000]     1.000011: PERF_RECORD_MMAP2 100/100: [0x400000(0x2000) @ 0 fe:00 1 2]: r-xp /nonexistent/solve
     solve   100/100   [000]     1.000013: PERF_RECORD_MMAP2 100/100: [0x70000000(0x100000) @ 0 fe:00 1 3]: rw-s /dev/shm/grid, fine
     solve   100/100   [000]     1.000014: PERF_RECORD_MMAP2 100/100: [0x71000000(0x100000) @ 0 00:00 0 0]: rw-p //anon
     solve   100/100   [000]     1.000040: PERF_RECORD_FORK(100:101):(100:100)
     solve   100/100   [000]     1.000050:   1000 cpu/mem-loads,ldlat=30/P:  70000010 [unknown] (/dev/shm/grid, fine)  1a00000002 |OP LOAD|LVL RAM hit|SNP N/A|TLB N/A|LCK N/A|BLK  N/A  300  401000 main (/nonexistent/solve)
     solve   100/101   [001]     1.000060:   1000 cpu/mem-loads,ldlat=30/P:  70000010 [unknown] (/dev/shm/grid, fine)  3a00000002 |OP LOAD|LVL Remote RAM hit|SNP N/A|TLB N/A|LCK N/A|BLK  N/A  500  401000 main (/nonexistent/solve)
     solve   100/101   [001]     1.000070:   1000 cpu/mem-stores/P:  70000020 [unknown] (/dev/shm/grid, fine)  200000004 |OP STORE|LVL L1 hit|SNP N/A|TLB N/A|LCK N/A|BLK  N/A  0  401010 main (/nonexistent/solve)
     solve   100/101   [001]     1.000080: PERF_RECORD_EXIT(100:101):(100:100)
";

const MACHINE: &str = "name = \"two\"
page_bytes = 4096
distance = [[10, 20], [20, 10]]
[[node]]
id = 0
cpus = \"0\"
[[node]]
id = 1
cpus = \"1\"
";

fn imported(name: &str) -> Case {
    let case = Case::new(name);
    case.write("script.txt", SCRIPT);
    case.write("two.toml", MACHINE);
    case.nearpage([
        "import",
        "-q",
        "script.txt",
        "-o",
        "r",
        "--machine",
        "two.toml",
    ])
    .success();
    case
}

#[test]
fn text_becomes_a_recording_like_any_other() {
    let case = imported("import");
    let report = case.nearpage(["report", "--json", "r"]).success();
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(report["accesses"].as_f64(), Some(3000.0));
    assert_eq!(report["objects"][0]["name"], "grid, fine");
    // 300 and 500 cycles at 2 GHz, for a period of 1000 each.
    assert_eq!(report["objects"][0]["cost_ns"].as_f64(), Some(400_000.0));
    case.nearpage(["plan", "r", "--machine", "opteron-4", "-o", "plan.toml"])
        .success();
}

const CSV: &str = "\
time_ns,pid,tid,thread,cpu,cpu_node,node,kind,level,address,object,object_kind,object_address,function,file,line,weight,cost_ns
1000050000,100,100,solve,0,0,0,load,local memory,0x70000010,\"grid, fine\",mapping,0x70000000,solve+0x1000,,,1000,150000
1000060000,100,101,solve,1,1,0,load,remote memory,0x70000010,\"grid, fine\",mapping,0x70000000,solve+0x1000,,,1000,250000
1000070000,100,101,solve,1,1,,store,L1,0x70000020,\"grid, fine\",mapping,0x70000000,solve+0x1010,,,1000,0
";

#[test]
fn profiles_are_labelled_with_object_node_and_level() {
    let case = imported("profiles");
    let export = |format: &str| {
        let finished = case
            .nearpage(["export", "r", "--to", format, "-o", format])
            .success();
        assert!(
            finished.stderr.contains("3 accesses exported to"),
            "{finished}"
        );
        fs::read(case.path(format)).unwrap()
    };
    assert_eq!(String::from_utf8(export("csv")).unwrap(), CSV);

    let text = String::from_utf8(export("perf-script")).unwrap();
    let sample: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.contains("100/101"))
        .take(4)
        .collect();
    assert_eq!(
        sample,
        [
            "           solve   100/101   [001]     1.000060000:       1000 nearpage/loads/:         70000010 grid, fine+0x10 (node 0)      3a00000002 |OP LOAD|LVL remote memory|SNP N/A|TLB N/A|LCK N/A|BLK  N/A              250",
            "\t          401000 solve+0x1000 (solve)",
            "\t               0 grid, fine (node 0, remote memory)",
            "",
        ]
    );
    // `import` reads nearpage's own CSV.
    case.nearpage([
        "import",
        "-q",
        "perf-script",
        "-o",
        "again",
        "--machine",
        "two.toml",
    ])
    .success();
    let again = case
        .nearpage(["export", "again", "-q", "--to", "csv", "-o", "-"])
        .success()
        .stdout;
    let columns = |csv: &str| -> Vec<String> {
        let rows = csv.lines().skip(1);
        rows.map(|row| row.splitn(11, ',').take(10).collect::<Vec<_>>().join(","))
            .collect()
    };
    assert_eq!(columns(&again), columns(CSV));
    assert!(
        again.lines().nth(2).unwrap().ends_with(",1000,250000"),
        "{again}"
    );

    let json = |bytes: &[u8]| -> Value { serde_json::from_slice(bytes).unwrap() };
    let firefox = json(&export("firefox"));
    let threads = firefox["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 2);
    assert_eq!(threads[1]["tid"], "101");
    // The Firefox Profiler's weights are in milliseconds.
    let weights = &threads[1]["samples"]["weight"];
    assert_eq!(weights, &serde_json::json!([0.25, 0.0]));
    let strings = firefox.to_string();
    for word in [
        "grid, fine",
        "node 0",
        "solve+0x1000",
        "remote memory (load)",
        "L1 (store)",
    ] {
        assert!(
            strings.contains(&format!("\"{word}\"")),
            "{word}: {strings}"
        );
    }

    let perfetto = json(&export("perfetto"));
    let events = perfetto["traceEvents"].as_array().unwrap();
    let instants: Vec<&Value> = events.iter().filter(|event| event["ph"] == "i").collect();
    assert_eq!(instants.len(), 3);
    assert_eq!(
        (&instants[1]["name"], &instants[1]["cat"]),
        (&"grid, fine".into(), &"remote memory".into())
    );
    assert_eq!(
        (&instants[1]["ts"], &instants[1]["args"]["node"]),
        (&10.0.into(), &"node 0".into())
    );
    let lost: f64 = events
        .iter()
        .filter(|event| event["ph"] == "C")
        .map(|event| event["args"]["ns"].as_f64().unwrap())
        .sum();
    assert_eq!(lost, 400_000.0);

    // `tests/long` has pprof itself read a profile.
    let mut pprof = Vec::new();
    GzDecoder::new(&export("pprof")[..])
        .read_to_end(&mut pprof)
        .unwrap();
    let strings = String::from_utf8_lossy(&pprof);
    for word in [
        "accesses",
        "nanoseconds",
        "grid, fine",
        "remote memory",
        "node 0",
    ] {
        assert!(strings.contains(word), "{word}: {strings}");
    }
}

/// Decodes `ProfilesData` with OpenTelemetry's Python package, checks the specification's rules for the dictionary, and
/// prints the samples.
const READ_OTLP: &str = r#"
import json, sys
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData
data = ProfilesData.FromString(open(sys.argv[1], "rb").read())
tables = data.dictionary
for name in ["mapping_table", "location_table", "function_table", "link_table", "attribute_table", "stack_table"]:
    table = getattr(tables, name)
    assert len(table) > 0 and table[0].ByteSize() == 0, name
    entries = [entry.SerializeToString() for entry in table]
    assert name == "location_table" or len(set(entries)) == len(entries), name
strings = list(tables.string_table)
assert strings[0] == "" and len(set(strings)) == len(strings)
def value(of):
    return getattr(of, of.WhichOneof("value"))
def attributes(numbers):
    entries = [tables.attribute_table[number] for number in numbers]
    assert 0 not in numbers and len({entry.key_strindex for entry in entries}) == len(entries)
    return {strings[entry.key_strindex]: value(entry.value) for entry in entries}
found = {"resource": {}, "profiles": {}}
[resource] = data.resource_profiles
found["resource"] = {entry.key: value(entry.value) for entry in resource.resource.attributes}
[scope] = resource.scope_profiles
found["scope"] = scope.scope.name
for profile in scope.profiles:
    samples = []
    for sample in profile.samples:
        assert 0 < sample.stack_index < len(tables.stack_table) and len(sample.values) == 1
        [number] = tables.stack_table[sample.stack_index].location_indices
        location = tables.location_table[number]
        mapping = tables.mapping_table[location.mapping_index]
        functions = [strings[tables.function_table[line.function_index].name_strindex] for line in location.lines]
        samples.append({**attributes(sample.attribute_indices), "value": sample.values[0], "functions": functions,
                        "file": strings[mapping.filename_strindex], "address": location.address})
    kind = profile.sample_type
    found["profiles"][f"{strings[kind.type_strindex]}/{strings[kind.unit_strindex]}"] = samples
print(json.dumps(found))
"#;

#[test]
fn collectors_read_what_is_exported_for_opentelemetry() {
    let case = imported("otlp");
    let exported = case
        .nearpage(["export", "r", "--to", "otlp", "-o", "profile.pb"])
        .success();
    assert!(
        exported.stderr.contains("3 accesses exported"),
        "{exported}"
    );
    case.nearpage(["export", "r", "--to", "otlp", "--at-most", "2", "-o", "p"])
        .says(2, &["pprof and OTLP, which add all accesses up"]);
    let Some(package) = python_package("opentelemetry-proto==1.45.2") else {
        return;
    };
    let mut python = case.command("python3");
    python
        .args(["-c", READ_OTLP, "profile.pb"])
        .env("PYTHONPATH", package);
    let found: Value = serde_json::from_str(&case.run(python).success().stdout).expect("JSON");
    assert_eq!(found["scope"], "nearpage");
    assert!(found["resource"]["service.name"].is_string(), "{found:#}");
    let samples = |kind: &str| found["profiles"][kind].as_array().expect("samples").clone();
    let sum = |kind: &str| -> i64 {
        let values = samples(kind).into_iter();
        values
            .map(|sample| sample["value"].as_i64().expect("a number"))
            .sum()
    };
    assert_eq!(sum("accesses/count"), 3000);
    assert_eq!(sum("time/nanoseconds"), 400_000);
    let remote = samples("time/nanoseconds")
        .into_iter()
        .find(|sample| sample["nearpage.level"] == "remote memory")
        .expect("the remote access");
    for (name, value) in [
        ("nearpage.object", "grid, fine"),
        ("nearpage.node", "node 0"),
        ("nearpage.cpu_node", "node 1"),
        ("nearpage.access", "load"),
        ("thread.name", "solve"),
        ("file", "/nonexistent/solve"),
    ] {
        assert_eq!(remote[name], value, "{name}: {remote:#}");
    }
    assert_eq!(
        (&remote["thread.id"], &remote["value"]),
        (&101.into(), &250_000.into())
    );
}

/// Text of a profile by Go's `pprof`; none where Go is not installed. Go builds its `pprof` at first use.
fn read_by_pprof(case: &Case, profile: &str) -> Option<String> {
    let mut pprof = Command::new("go");
    pprof
        .args(["tool", "pprof", "-raw"])
        .arg(case.path(profile));
    let Ok(read) = pprof.output() else {
        eprintln!("skipped: no go");
        return None;
    };
    assert!(
        read.status.success(),
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    Some(String::from_utf8_lossy(&read.stdout).into_owned())
}

/// pprof takes the first mapping for the program. An earlier version wrote the module of the first access first.
#[test]
#[ignore = "Go takes a minute to build its pprof: tests/long"]
fn pprof_reads_profiles_and_names_the_program() {
    let case = imported("pprof");
    case.nearpage(["export", "r", "--to", "pprof", "-o", "profile"])
        .success();
    let Some(text) = read_by_pprof(&case, "profile") else {
        return;
    };
    for word in [
        "accesses/count time/nanoseconds[dflt]",
        "1000     250000: 1",
        "object:[grid, fine]",
        "level:[remote memory]",
        "node:[node 0]",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }

    let library = "     solve   100/100   [000]     1.000012: PERF_RECORD_MMAP2 100/100: [0x500000(0x2000) @ 0 fe:00 1 4]: r-xp /nonexistent/libfirst.so\n";
    let first = SCRIPT
        .lines()
        .find(|line| line.contains("1.000050"))
        .unwrap();
    let in_library = first.replace("1.000050", "1.000045").replace(
        "401000 main (/nonexistent/solve)",
        "500010 start (/nonexistent/libfirst.so)",
    );
    let script = SCRIPT.replace(first, &format!("{library}{in_library}\n{first}"));
    case.write("script.txt", script);
    case.nearpage(["import", "-q", "script.txt", "-o", "of-library"])
        .success();
    case.nearpage(["export", "of-library", "--to", "pprof", "-o", "p"])
        .success();
    let text = read_by_pprof(&case, "p").expect("it was there before");
    let (_, mappings) = text.split_once("Mappings\n").expect("mappings");
    let files: Vec<&str> = mappings
        .lines()
        .filter_map(|line| line.split('/').next_back())
        .collect();
    assert!(
        files[0].starts_with("solve") && files[1].starts_with("libfirst.so"),
        "{text}"
    );
}

/// An earlier version created a folder named `-`.
#[test]
fn exported_tables_are_refused_on_standard_output() {
    let case = Case::new("tables-printed");
    case.nearpage(["record", "-q", "-o", "r", "--", "true"])
        .success();
    case.nearpage(["export", "r", "-o", "-"])
        .says(2, &["Parquet tables are a folder"]);
    assert!(!case.path("-").exists());
}

#[test]
fn omitted_samples_are_reported() {
    let case = Case::new("sampled");
    let sample = SCRIPT
        .lines()
        .find(|line| line.contains("100/100") && line.contains("|OP"))
        .unwrap();
    case.write("script.txt", format!("{sample}\n").repeat(1000));
    case.nearpage(["import", "-q", "script.txt", "-o", "r"])
        .success();
    let sampled = case
        .nearpage([
            "export",
            "r",
            "--to",
            "csv",
            "--at-most",
            "100",
            "-o",
            "t.csv",
        ])
        .success();
    assert!(
        sampled
            .stderr
            .contains("100 accesses exported to t.csv; left out: 900"),
        "{sampled}"
    );
    let csv = case.read("t.csv");
    assert_eq!(csv.lines().count(), 101);
    assert!(
        csv.lines().skip(1).all(|row| row.contains(",10000,")),
        "each stands for ten: {csv}"
    );
    let trace: Value = serde_json::from_str(
        &case
            .nearpage([
                "export",
                "r",
                "-q",
                "--to",
                "perfetto",
                "--at-most",
                "7",
                "-o",
                "-",
            ])
            .success()
            .stdout,
    )
    .unwrap();
    assert!(
        trace["otherData"]["sampled"]
            .as_str()
            .unwrap()
            .contains("of every 143"),
        "{trace}"
    );
    case.nearpage(["export", "r", "--to", "pprof", "--at-most", "7", "-o", "p"])
        .exits(2);
    // The spelling of version 0.1.
    case.nearpage([
        "export",
        "r",
        "-q",
        "--to",
        "perf-script",
        "--at-most",
        "7",
        "-o",
        "now",
    ])
    .success();
    case.write(
        "earlier",
        case.read("now").replace("# sampled: ", "# thinned: "),
    );
    for file in ["now", "earlier"] {
        let folder = format!("{file}.recording");
        case.nearpage(["import", "-q", file, "-o", &folder])
            .success();
        let report = case.nearpage(["report", &folder]).success();
        let words: Vec<&str> = report.stdout.split_whitespace().collect();
        assert!(
            words
                .join(" ")
                .contains("one access at random of every 143"),
            "{report}"
        );
    }
}

#[track_caller]
fn refuses(case: &Case, arguments: &[&str], words: &str) {
    let finished: Finished = case.nearpage(arguments).exits(1);
    assert_eq!(finished.stderr.lines().count(), 1, "{finished}");
    assert!(
        finished.stderr.contains(words),
        "expected {words:?}: {finished}"
    );
}

#[test]
fn unreadable_files_are_named_and_leave_no_recording() {
    let case = Case::new("refused");
    case.write("cut.data", b"PERFILE2\x68\0\0\0\0\0\0\0");
    case.write("swapped.data", b"2ELIFREP\0\0\0\0\0\0\0\x68");
    case.write("other", b"\x7fELF");
    refuses(&case, &["import", "cut.data"], "cut.data: cut short");
    refuses(
        &case,
        &["import", "swapped.data"],
        "swapped.data: recorded on a big-endian machine",
    );
    refuses(
        &case,
        &["import", "other"],
        "other: neither a perf.data file nor the text",
    );
    refuses(&case, &["import", "missing"], "missing: cannot open");
    let left = fs::read_dir(case.folder()).unwrap().count();
    assert_eq!(left, 3);
}

#[test]
fn calibrating_measures_placement_where_there_are_several_nodes() {
    let case = Case::new("calibrate");
    let finished = case
        .nearpage(["machine", "--calibrate", "--quick", "--json"])
        .success();
    let found: Value = serde_json::from_str(&finished.stdout).unwrap();
    let nodes = case.nearpage(["machine", "--json"]).success().stdout;
    let nodes: Value = serde_json::from_str(&nodes).unwrap();
    let points = found["placing"]["points"].as_array().unwrap().len();
    let with_memory = nodes["node"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|node| node["memory_bytes"] != 0)
        .count();
    assert_eq!(points == 0, with_memory == 1, "{found}");
    if let Some(rate_hz) = found["sampling"]["rate_hz"].as_f64() {
        assert!((97.0..=997.0).contains(&rate_hz), "{found}");
    }
    case.nearpage(["machine", "--quick"]).exits(2);
}
