//! Jobs of a real Slurm: two emulated nodes on this host.

use std::collections::BTreeSet;
use std::fs;

use nearpage_tests::{Case, Mpi, Slurm, compile_mpi_program, nearpage_path, workload};
use serde_json::Value;

/// A single test with one cluster, because the daemons' start takes longer than most of the test.
#[test]
fn slurm_runs_steps_cancelled_jobs_and_sweeps() {
    let case = Case::new("slurm");
    let Some(slurm) = Slurm::start(&case) else {
        return;
    };
    let nearpage = nearpage_path();
    let nearpage = nearpage.to_str().expect("a path of letters");
    a_step_on_two_nodes_is_one_job(&case, &slurm, nearpage);
    programs_end_as_without(&case, &slurm, nearpage);
    mpi_programs_end_as_without(&case, &slurm, nearpage);
    a_cancelled_step_opens(&case, &slurm, nearpage);
    a_sweep_is_an_array(&case, &slurm);
}

fn a_step_on_two_nodes_is_one_job(case: &Case, slurm: &Slurm, nearpage: &str) {
    let step = ["--mpi=none", "-N", "2", "-n", "8", "--ntasks-per-node=4"];
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo $SLURM_PROCID";
    let record = [nearpage, "record", "--", "sh", "-c", script];
    let recorded = slurm.srun(case, &[&step[..], &record].concat()).success();
    let printed: BTreeSet<&str> = recorded.stdout.lines().collect();
    assert_eq!(
        printed,
        BTreeSet::from(["0", "1", "2", "3", "4", "5", "6", "7"])
    );
    let entries = fs::read_dir(case.folder()).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    let mut jobs = names
        .filter_map(Result::ok)
        .filter(|name| name.ends_with(".nearpage"));
    let job = jobs.next().expect("the folder of a job");
    assert_eq!(jobs.next(), None, "one job, one folder");
    let report = case.nearpage(["report", "--json", &job]).success();
    let report: Value = serde_json::from_str(&report.stdout).expect("JSON");
    assert_eq!(report["size"], 8);
    assert_eq!(
        report["notes"].as_array().map(Vec::len),
        Some(0),
        "{report:#}"
    );
    let hosts = report["hosts"].as_array().expect("hosts");
    let ranks: Vec<(&Value, &Value)> = hosts
        .iter()
        .map(|host| (&host["host"], &host["ranks"]))
        .collect();
    let expected = [("n1", [0, 1, 2, 3]), ("n2", [4, 5, 6, 7])];
    for ((host, ranks), (name, numbers)) in ranks.into_iter().zip(expected) {
        assert_eq!(*host, name);
        assert_eq!(*ranks, serde_json::json!(numbers));
    }
    let local = report["ranks"][5]["local_rank"].as_u64();
    assert_eq!(local, Some(1));
}

/// Output and exit status are as without nearpage, also for signals.
fn programs_end_as_without(case: &Case, slurm: &Slurm, nearpage: &str) {
    for (name, script) in [
        ("status", "echo $SLURM_PROCID; exit 3"),
        ("signal", "[ $SLURM_PROCID = 1 ] && kill -SEGV $$; exit 0"),
    ] {
        let step = ["--mpi=none", "-N", "2", "-n", "2"];
        let alone = slurm.srun(case, &[&step[..], &["sh", "-c", script]].concat());
        let output = format!("{name}/%r");
        let record = [nearpage, "record", "-o", &output, "--", "sh", "-c", script];
        let recorded = slurm.srun(case, &[&step[..], &record].concat());
        let lines = |text: &str| {
            text.lines()
                .map(str::to_owned)
                .collect::<BTreeSet<String>>()
        };
        assert_eq!(lines(&recorded.stdout), lines(&alone.stdout), "{recorded}");
        assert_eq!(recorded.code, alone.code, "{alone}\n{recorded}");
        case.nearpage(["report", name]).success();
    }
}

/// MPI ranks communicate on one node and across two; a rank aborts, and another one is ended by a signal.
fn mpi_programs_end_as_without(case: &Case, slurm: &Slurm, nearpage: &str) {
    compile_mpi_program(case, Mpi::OpenMpi);
    for (nodes, ending) in [
        ("1", "nothing"),
        ("2", "nothing"),
        ("1", "abort"),
        ("1", "signal"),
        ("2", "abort"),
    ] {
        let step = ["--mpi=pmix", "-N", nodes, "-n", "4"];
        let app: &[&str] = match ending {
            "nothing" => &["./app"],
            _ => &["./app", ending],
        };
        let alone = slurm.srun(case, &[&step[..], app].concat());
        let job = format!("mpi-{nodes}-{ending}");
        let output = format!("{job}/%r");
        let record = [nearpage, "record", "-o", &output, "--"];
        let recorded = slurm.srun(case, &[&step[..], &record, app].concat());
        assert_eq!(
            (&recorded.stdout, recorded.code),
            (&alone.stdout, alone.code),
            "{alone}\n{recorded}"
        );
        let report = case
            .nearpage(["report", "--by", "rank", &job])
            .success()
            .stdout;
        let hosts = if nodes == "1" { "1 host" } else { "2 hosts" };
        assert!(
            report.contains(&format!("4 ranks on {hosts}, Slurm")),
            "{report}"
        );
    }
}

/// A recording that ends by SIGTERM can be opened. `scancel` and the end of a job's time send SIGTERM.
fn a_cancelled_step_opens(case: &Case, slurm: &Slurm, nearpage: &str) {
    let script = "touch started-$SLURM_PROCID; while :; do :; done";
    let mut srun = slurm.command(case, "srun");
    srun.args(["--mpi=none", "-n", "2", "--job-name=cancelled"])
        .args([
            nearpage,
            "record",
            "-q",
            "-o",
            "cancelled/%r",
            "--",
            "sh",
            "-c",
            script,
        ])
        .stderr(std::process::Stdio::null());
    let mut running = srun.spawn().expect("srun runs");
    let has_started = || (0..2).all(|rank| case.path(format!("started-{rank}")).exists());
    let begun = std::time::Instant::now();
    while !has_started() {
        assert!(begun.elapsed().as_secs() < 60, "the step does not start");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let mut scancel = slurm.command(case, "scancel");
    scancel.arg("--name=cancelled");
    case.run(scancel).success();
    assert!(!running.wait().expect("it ends").success());
    let report = case
        .nearpage(["report", "--by", "rank", "cancelled"])
        .success();
    assert!(
        report.stdout.contains("2 ranks on 1 host, Slurm"),
        "{report}"
    );
}

fn a_sweep_is_an_array(case: &Case, slurm: &Slurm) {
    let mut trace = case.command(nearpage_path());
    trace
        .args(["trace", "--machine", "flash-8"])
        .args(["-q", "-o", "full", "--"])
        .arg(workload("triad"))
        .args(["1", "1"])
        .env("OMP_NUM_THREADS", "2");
    case.run(trace).success();
    case.write(
        "sweep.toml",
        "recordings = [\"full\"]\npolicies = [\"first-touch\", \"interleave\", \"migrate\"]\n\
         [parameters]\ntrigger = [64, 128]\n",
    );
    let mut sweep = slurm.command(case, nearpage_path().to_str().expect("a path of letters"));
    sweep.args([
        "sweep",
        "run",
        "--engine",
        "slurm",
        "--shards",
        "3",
        "sweep.toml",
    ]);
    let swept = case.run(sweep).success();
    assert!(swept.stderr.contains("4 of 4 cells computed"), "{swept}");
    let outputs = fs::read_dir(case.path("sweep.cells")).expect("a folder");
    let tasks = outputs.filter(|entry| {
        let name = entry.as_ref().expect("an entry").file_name();
        name.to_string_lossy().starts_with("slurm-")
    });
    assert_eq!(tasks.count(), 3);
}
