use nearpage_machine::preset;

use super::*;
use crate::arguments::Deciding;

fn typed(policy: &str, set: &[&str]) -> anyhow::Result<Vec<Job>> {
    jobs(&Simulate {
        sweep: None,
        shard: None,
        jobs: None,
        recordings: vec!["r".into()],
        machine: None,
        deciding: Deciding::default(),
        policy: policy.split_terminator(',').map(str::to_owned).collect(),
        set: set.iter().map(|&text| text.to_owned()).collect(),
        initial: None,
        only: None,
        schedule: None,
        json: false,
        movements: 0,
        html: None,
    })
}

#[test]
fn parameters_go_to_the_policies_that_have_them() {
    let jobs = typed("first-touch,migrate", &["trigger=64", "slice_ns=5"]).expect("jobs");
    assert!(
        !jobs[0]
            .parameters()
            .iter()
            .any(|(name, _)| *name == "trigger")
    );
    assert!(jobs[1].parameters().contains(&("trigger", "64".to_owned())));
    assert!(
        jobs.iter()
            .all(|job| job.parameters().contains(&("slice_ns", "5".to_owned())))
    );
}

#[test]
fn without_a_named_policy_those_are_run_that_make_sense() {
    let mut jobs = typed("", &["trigger=64"]).expect("jobs");
    let names = |jobs: &[Job]| -> Vec<String> {
        let names = jobs.iter().map(|job| job.policy.name().to_owned());
        names.collect()
    };
    let help = crate::arguments::definitions()
        .find_subcommand_mut("simulate")
        .expect("subcommand")
        .render_long_help()
        .to_string();
    let words: Vec<&str> = help.split_whitespace().collect();
    let said = format!(
        "[default: {}, those of them that make sense",
        names(&jobs).join(", ")
    );
    assert!(words.join(" ").contains(&said), "{help}");
    let flash = preset("flash-8").expect("preset");
    let timing = flash.timing().expect("timing");
    assert_eq!(leave_out_unsuitable(&mut jobs, &timing), None);
    assert_eq!(jobs.len(), DEFAULT_POLICIES.len());
    let mut one = flash;
    for node in &mut one.nodes[1..] {
        node.memory_bytes = Some(0);
    }
    let timing = one.timing().expect("timing");
    assert_eq!(
        leave_out_unsuitable(&mut jobs, &timing).expect("note"),
        "Left out, as they cannot run on this machine: migrate, replicate, migrate-replicate: its memory is on one \
         node, so no page can move."
    );
    assert_eq!(names(&jobs), ["round-robin", "first-touch", "post-facto"]);
}

#[test]
fn help_lists_every_parameter_once_for_a_family() {
    let text = parameters();
    for line in [
        "migrate, replicate, migrate-replicate:",
        "  trigger=128 (1 to 65534): misses of a node that make a page hot",
        "out-u, out-w, in-w, out-u-local, out-w-local:",
        "  maptu=50 (0 to 1000000000000): memory accesses per microsecond above which an application is managed",
        "  scan_size_mb=256 (1 to 1000000): megabytes unmapped by a scan",
        "  memory_pages=none (1 to any): pages of memory in all",
    ] {
        assert_eq!(
            text.lines().filter(|other| *other == line).count(),
            1,
            "{line}\n{text}"
        );
    }
}

#[test]
fn mistakes_are_usage_errors_of_one_line() {
    for (policy, set, message) in [
        ("best", "", "no policy `best`; there are first-touch, "),
        ("plan:", "", "no policy `plan:`; there are first-touch, "),
        ("migrate", "trigger", "--set trigger: expected KEY=VALUE"),
        (
            "migrate",
            "trigger=0",
            "--set trigger=0: expected a whole number from 1 to 65534",
        ),
        (
            "out-w",
            "factor=-1",
            "--set factor=-1: expected a number from 0 to 63",
        ),
        (
            "kernel-balancing",
            "source=cache",
            "--set source=cache: none of these policies has a parameter `source`",
        ),
        (
            "migrate",
            "source=asked",
            "--set source=asked: expected one of cache, ",
        ),
        (
            "first-touch",
            "trigger=1",
            "--set trigger=1: none of these policies has a parameter `trigger`",
        ),
    ] {
        let set: Vec<&str> = if set.is_empty() { vec![] } else { vec![set] };
        let error = typed(policy, &set).expect_err(message);
        assert!(error.is::<Usage>(), "{error}");
        assert!(error.to_string().starts_with(message), "{error}");
    }
}
