//! Output of `--json` matches the schemas in `docs/reference/schema`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use nearpage_tests::{Case, Finished, SCHEMAS, nearpage_path, repository, schema_errors, workload};
use serde_json::Value;

/// Eight nodes of six CPUs: four threads fit on one node, or spread over four.
const MACHINE: &str = "amd48";

/// Parses standard output, which must be JSON alone, and validates it.
#[track_caller]
fn checked(schema: &str, finished: &Finished) -> Value {
    let value: Value = serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{schema}: {error}\n{finished}"));
    let errors = schema_errors(schema, &value);
    assert!(errors.is_empty(), "{schema}: {errors:#?}\n{value:#}");
    assert_eq!(value["version"], 1, "{schema}");
    value
}

/// Runs `nearpage` with these words and `--json`, and validates the output.
#[track_caller]
fn nearpage(case: &Case, schema: &str, words: &[&str]) -> Value {
    let words = [&words[..1], &["--json"], &words[1..]].concat();
    checked(schema, &case.nearpage(words).success())
}

/// The command `nearpage WORDS --json … -- triad 1 PASSES`.
fn of_triad(case: &Case, words: &[&str], passes: &str) -> Command {
    let mut command = case.command(nearpage_path());
    command
        .args(words)
        .args(["--json", "--"])
        .arg(workload("triad"))
        .args(["1", passes])
        .env("OMP_NUM_THREADS", "4");
    command
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn schemas_come_from_the_types() {
    const RENEW: &str = "docs/reference/schema is out of date: rm docs/reference/schema/*; \
                         nearpage generate schema docs/reference/schema";
    let case = Case::new("schemas");
    case.nearpage(["generate", "schema", "schema"]).success();
    let kept = repository().join(SCHEMAS);
    assert_eq!(names(&kept), names(&case.path("schema")), "{RENEW}");
    for name in names(&kept) {
        let read = |folder: &Path| fs::read_to_string(folder.join(&name)).unwrap();
        assert_eq!(read(&kept), read(&case.path("schema")), "{name}: {RENEW}");
    }
}

#[test]
fn schemas_refuse_unknown_keys() {
    let case = Case::new("unknown keys");
    let mut doctor = nearpage(&case, "doctor", &["doctor"]);
    doctor["findings"][0]["more"] = Value::Bool(true);
    assert_eq!(schema_errors("doctor", &doctor).len(), 1);
    let mut machine = nearpage(&case, "machine", &["machine"]);
    machine["more"] = Value::Bool(true);
    assert_eq!(schema_errors("machine", &machine).len(), 1);
}

#[test]
fn machines_are_as_their_schemas_say() {
    let case = Case::new("machine schemas");
    for preset in ["local", "opteron-4", "flash-8-contended", "epyc-8"] {
        nearpage(&case, "machine", &["machine", "--machine", preset]);
    }
    let list = case.nearpage(["machine", "list", "--json"]).success();
    checked("machine-list", &list);
    let calibrate = ["machine", "--calibrate", "--quick"];
    nearpage(&case, "machine-calibrate", &calibrate);
    nearpage(&case, "history", &["history"]);
    let bundle = ["doctor", "--bundle", "bundle.tar", "--yes"];
    case.nearpage(bundle).success();
    let replay = ["doctor", "--from-bundle", "bundle.tar"];
    nearpage(&case, "doctor-bundle", &replay);
}

#[test]
fn full_recordings_are_as_their_schemas_say() {
    let case = Case::new("full schemas");
    for layout in ["compact", "scatter"] {
        let words = ["trace", "--machine", MACHINE];
        let words = [&words[..], &["--threads", layout, "-o", layout]].concat();
        let recorded = case.run(of_triad(&case, &words, "2")).success();
        assert!(recorded.stderr.contains("checksum"), "{recorded}");
        let recorded = checked("record", &recorded);
        assert_eq!(recorded["recording"], layout);
        assert_eq!(recorded["exit_status"], 0);
        assert!(recorded["trace"]["instructions"].as_u64().unwrap() > 0);
    }
    nearpage(&case, "report", &["report", "compact"]);
    let policies = "auto,object,uniform,hop-sensitive,interleave";
    let plan = ["plan", "compact", "--policy", policies, "-o", "one.toml"];
    nearpage(&case, "plan", &plan);
    let plan = ["plan", "compact", "--machine", "opteron-4"];
    nearpage(&case, "plan", &[&plan[..], &["-o", "other.toml"]].concat());
    let both = ["plan", "compact", "scatter", "-o", "both.toml"];
    let both = nearpage(&case, "plan", &both);
    assert!(both["choice"].is_object(), "{both:#}");
    let policies = "first-touch,migrate-replicate,auto,plan:both.toml";
    let simulate = ["simulate", "compact", "--policy", policies];
    let simulated = nearpage(&case, "simulate", &simulate);
    assert!(simulated["results"][1]["timeline"].is_object());
    let together = ["simulate", "compact", "scatter", "--movements", "0"];
    let together = nearpage(
        &case,
        "simulate",
        &[&together[..], &["--policy", "first-touch"]].concat(),
    );
    assert!(together["results"][0]["program_ns"].is_array());
    let downsampled = nearpage(
        &case,
        "downsample",
        &["downsample", "compact", "-o", "tenth", "--every", "10"],
    );
    assert!(downsampled["kept_accesses"].as_u64() < downsampled["input_accesses"].as_u64());
    nearpage(&case, "report", &["report", "tenth"]);
    nearpage(&case, "evaluate", &["evaluate", "compact", "tenth"]);
    let compared = ["compare", "compact", "tenth", "--fail-if", "time<-99%"];
    nearpage(&case, "compare", &compared);
    let export = ["export", "compact", "-o", "tables"];
    nearpage(&case, "export", &export);
}

#[test]
fn samples_and_placed_runs_are_as_their_schemas_say() {
    let case = Case::new("sampled schemas");
    let record = ["record", "--source", "clock", "--rate", "997", "-o", "r"];
    let recorded = case.run(of_triad(&case, &record, "100")).success();
    assert!(recorded.stderr.contains("checksum"), "{recorded}");
    let recorded = checked("record", &recorded);
    assert_eq!(recorded["source"], "clock");
    assert_eq!(recorded["ending"], "command-ended");
    nearpage(&case, "report", &["report", "r"]);
    nearpage(&case, "plan", &["plan", "r", "--machine", "opteron-4"]);

    let run = ["run", "--place", "heap>=1M=interleave", "--quiet"];
    let ran = case.run(of_triad(&case, &run, "2")).success();
    assert_eq!(ran.stderr.lines().count(), 1, "the checksum alone\n{ran}");
    let ran = checked("run", &ran);
    assert_eq!(ran["placed"]["rules"][0]["objects"], 3, "{ran:#}");
    let failed = ["run", "--threads", "compact", "--json", "--", "false"];
    let failed = case.nearpage(failed).exits(1);
    assert_eq!(checked("run", &failed)["exit_status"], 1);

    let export = ["export", "r", "--to", "perf-script", "-o", "samples.txt"];
    let exported = nearpage(&case, "export", &export);
    assert_eq!(exported["format"], "perf-script");
    nearpage(
        &case,
        "import",
        &["import", "samples.txt", "-o", "imported"],
    );
    let both = ["export", "r", "--to", "csv", "-o", "-", "--json"];
    case.nearpage(both).says(2, &["--json and -o -"]);

    let optimized = case.run(of_triad(&case, &["optimize", "-o", "optimized"], "100"));
    checked("optimize", &optimized.success());

    let live = ["live", "--interval", "100ms", "--log", "live.jsonl"];
    let live = case.run(of_triad(&case, &live, "300")).success();
    assert!(!live.stdout.contains("checksum"), "{live}");
    assert!(!live.stdout.is_empty(), "{live}");
    for line in live.stdout.lines() {
        let line = Finished {
            stdout: line.to_owned(),
            ..live.clone()
        };
        checked("live", &line);
    }
    let replay = ["live", "--replay", "live.jsonl"];
    let replayed = nearpage(&case, "live-replay", &replay);
    assert_eq!(replayed["same"], true);

    // `top` watches this test itself.
    let pid = std::process::id().to_string();
    let top = ["top", "-p", &pid, "-n", "1", "--interval", "200ms"];
    let top = nearpage(&case, "top", &top);
    assert_eq!(top["processes"][0]["pid"], std::process::id());
}
