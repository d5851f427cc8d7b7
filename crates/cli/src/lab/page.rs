//! Runs of the lab on the page: beside each other, as the simulation view shows policies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nearpage_runner::{LabCounts, LabPages};
use serde_json::{Value, json};

use super::LabOutput;
use super::matrix::Cell;

/// Size limit of a file that is read to see whether it has a run. Runs have some kilobytes; simulations may be large.
const RUN_BYTES_MAX: u64 = 1 << 20;

/// Files of the command line, by what they show.
pub struct Shown<'a> {
    /// Runs of the lab, by machine: title, and content in the form of `simulate --json`.
    pub runs: Vec<(String, Value)>,
    /// All other paths.
    pub others: Vec<&'a Path>,
}

/// Finds the runs of the lab among paths: outputs of `lab --json`, and runs that `lab matrix` kept.
///
/// # Errors
/// A run without a result, or of a newer version.
pub fn shown(paths: &[PathBuf]) -> anyhow::Result<Shown<'_>> {
    let mut by_machine = BTreeMap::<String, Vec<(String, LabOutput)>>::new();
    let mut others = Vec::new();
    for path in paths {
        match run(path).with_context(|| path.display().to_string())? {
            Some(run) => by_machine
                .entry(run.machine.clone())
                .or_default()
                .push((name(path), run)),
            None => others.push(path.as_path()),
        }
    }
    let runs = by_machine.into_iter().map(|(machine, runs)| {
        let content = simulation(&machine, &runs);
        (format!("in the lab on {machine}"), content)
    });
    Ok(Shown {
        runs: runs.collect(),
        others,
    })
}

/// The run that a file has; `None` if it has something else.
fn run(path: &Path) -> anyhow::Result<Option<LabOutput>> {
    let Ok(text) = nearpage_files::read(path, RUN_BYTES_MAX) else {
        return Ok(None);
    };
    let run = match serde_json::from_slice::<Cell>(&text) {
        Ok(Cell {
            failed: Some(cause),
            ..
        }) => bail!("this run failed: {cause}"),
        Ok(cell) => cell.result,
        Err(_) => serde_json::from_slice::<LabOutput>(&text).ok(),
    };
    match &run {
        Some(run) if run.version != nearpage_recording::JSON_VERSION => {
            bail!("a newer nearpage made it: view it with that version, or run it again")
        }
        Some(run) if run.counts.is_none() => bail!("this run of the lab has no counts"),
        _ => Ok(run),
    }
}

/// A run's name: its file's, without the ending.
fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}

/// Runs on one machine as results of a simulation.
fn simulation(machine: &str, runs: &[(String, LabOutput)]) -> Value {
    let mut notes = vec![
        "guest time; *waiting* includes CPUs without a program, *moving pages* is part of *computing* and of memory"
            .to_owned(),
    ];
    for (name, run) in runs {
        let about = run.assumed.iter().map(|what| format!("assumed {what}"));
        let about = about.chain(run.warnings.iter().cloned());
        notes.extend(about.map(|what| format!("{name}: {what}")));
        if run.exit_status != 0 {
            notes.push(format!("{name}: exit status {}", run.exit_status));
        }
    }
    let result = |(name, run): &(String, LabOutput)| {
        let counts = run.counts.as_ref()?;
        Some(result(name, run.cpus, counts, run.pages.as_ref()))
    };
    json!({
        "version": nearpage_recording::JSON_VERSION,
        "machine": machine,
        "recording": runs.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "notes": notes,
        "results": runs.iter().filter_map(result).collect::<Vec<_>>(),
    })
}

fn result(name: &str, cpus: u32, counts: &LabCounts, pages: Option<&LabPages>) -> Value {
    let ns = |seconds: f64| 1e9 * seconds;
    let stalls = |is_local: bool| {
        let pairs = counts.pairs.iter();
        let wanted = pairs.filter(move |pair| (pair.cpu_node == pair.memory_node) == is_local);
        wanted.fold((0, 0.0), |(misses, stall_s), pair| {
            (misses + pair.misses, stall_s + pair.stall_s)
        })
    };
    let mean_ns = |(misses, stall_s): (u64, f64)| (misses > 0).then(|| ns(stall_s) / misses as f64);
    let (local, remote) = (stalls(true), stalls(false));
    let misses = local.0 + remote.0;
    let computing_s = counts.execution_s + counts.hit_s + counts.tlb_s;
    let waiting_s = f64::from(cpus) * counts.guest_s - computing_s - local.1 - remote.1;
    json!({
        "policy": name,
        "time_ns": ns(counts.guest_s),
        "compute_ns": ns(computing_s),
        "local_stall_ns": ns(local.1),
        "remote_stall_ns": ns(remote.1),
        "wait_ns": ns(waiting_s.max(0.0)),
        "misses": misses,
        "local_share": (misses > 0).then(|| local.0 as f64 / misses as f64),
        "local_latency_ns": mean_ns(local),
        "remote_latency_ns": mean_ns(remote),
        "controller_load": counts.nodes.iter().map(|node| node.controller.requests).collect::<Vec<_>>(),
        "migrated": pages.map(|pages| pages.migrated_by_balancing + pages.migrated_otherwise),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const RUN: &str = include_str!("page_run.json");

    fn files(texts: &[(&str, &str)]) -> (nearpage_files::TemporaryFolder, Vec<PathBuf>) {
        let folder = nearpage_files::TemporaryFolder::new("lab-page").expect("a folder");
        let write = |(name, text): &(&str, &str)| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("writes");
            path
        };
        let paths = texts.iter().map(write).collect();
        (folder, paths)
    }

    #[test]
    fn runs_stand_beside_each_other_and_parts_add_up_to_all_cpus_time() {
        let (_folder, paths) = files(&[
            ("first touch.json", RUN),
            ("simulated.json", r#"{"results": []}"#),
            ("plan.json", RUN),
        ]);
        let shown = shown(&paths).expect("runs");
        assert_eq!(shown.others, [paths[1].as_path()]);
        let [(title, content)] = shown.runs.as_slice() else {
            panic!("{} machines", shown.runs.len());
        };
        assert_eq!(title, "in the lab on carrefour-a");
        assert_eq!(content["recording"], json!(["first touch", "plan"]));
        let first = &content["results"][0];
        let parts = ["compute_ns", "local_stall_ns", "remote_stall_ns", "wait_ns"];
        let sum: f64 = parts.iter().filter_map(|part| first[part].as_f64()).sum();
        let all = 4.0 * first["time_ns"].as_f64().expect("a time");
        assert!(
            all > 0.0 && (sum / all - 1.0).abs() < 1e-9,
            "{sum} of {all}"
        );
        assert!(first["remote_latency_ns"].as_f64() > first["local_latency_ns"].as_f64());
    }

    #[test]
    fn runs_without_a_result_say_so() {
        let newer = RUN.replacen("\"version\": 1", "\"version\": 99", 1);
        let run: Value = serde_json::from_str(RUN).expect("JSON");
        let mut shell = run.clone();
        shell["counts"] = Value::Null;
        for (text, expected) in [
            (newer, "a newer nearpage made it"),
            (shell.to_string(), "has no counts"),
        ] {
            let (_folder, paths) = files(&[("run.json", &text)]);
            let error = shown(&paths).err().expect("refused");
            assert!(format!("{error:#}").contains(expected), "{error:#}");
        }
    }
}
