use super::*;

fn run(name: &str, seconds: f64, objects: &[(&str, f64, f64)]) -> Run {
    let mut nodes = KnownNodes::default();
    let of = |&(name, cost_share, remote): &(&str, f64, f64)| {
        let own = KnownNodes {
            known: 100.0,
            remote,
        };
        nodes.known += own.known;
        nodes.remote += own.remote;
        (
            name.to_owned(),
            RunObject {
                cost_share,
                nodes: own,
            },
        )
    };
    let objects = objects.iter().map(of).collect();
    Run {
        recording: name.to_owned(),
        elapsed_ns: seconds * 1e9,
        accesses: 1000.0,
        nodes,
        objects,
    }
}

fn conditions(texts: &[&str]) -> Vec<Condition> {
    texts
        .iter()
        .map(|text| text.parse().expect("a condition"))
        .collect()
}

/// The time is 10 s before and 12 s after; the local share is 60 % before and 80 % after.
fn comparison(texts: &[&str]) -> RunComparison {
    let before = vec![
        run("a1", 9.0, &[("x", 1.0, 40.0)]),
        run("a2", 11.0, &[("x", 1.0, 40.0)]),
    ];
    let after = vec![run("b", 12.0, &[("x", 0.9, 20.0), ("y", 0.1, 20.0)])];
    RunComparison::new(&[before, after], &conditions(texts)).expect("nodes are known")
}

#[test]
fn conditions_hold_where_the_median_crosses_the_limit() {
    for (text, holds) in [
        ("local<80%", false),
        ("local<81%", true),
        ("local>+19%", true),
        ("local>+21%", false),
        ("local < 81 %", true),
        ("remote>19%", true),
        ("remote<-10%", true),
        ("time>+19%", true),
        ("time>+21%", false),
        ("time<-5%", false),
        ("time>11.9s", true),
        ("time>12100ms", false),
    ] {
        let compared = comparison(&[text]);
        assert_eq!(compared.has_failed(), holds, "{text}");
        let failed: &[String] = &compared.after[0].failed;
        assert_eq!(
            failed,
            if holds { vec![text.to_owned()] } else { vec![] },
            "{text}"
        );
    }
}

#[test]
fn conditions_that_say_nothing_are_refused() {
    for text in [
        "",
        "local",
        "local<",
        "local<80",
        "time>5%",
        "time>5",
        "time>+5s",
        "speed>1%",
        "local=80%",
        "local<nan%",
        "time>infs",
        "local<80%%",
        "ł>1%",
    ] {
        assert!(text.parse::<Condition>().is_err(), "{text}");
    }
}

#[test]
fn an_unknown_local_share_fails_no_condition_silently() {
    let mut unknown = run("b", 1.0, &[("x", 1.0, 0.0)]);
    unknown.nodes = KnownNodes::default();
    let settings = [vec![run("a", 1.0, &[("x", 1.0, 0.0)])], vec![unknown]];
    let error = RunComparison::new(&settings, &conditions(&["local<1%"])).expect_err("unknown");
    assert_eq!(
        error.to_string(),
        "local<1%: no page's node was recorded in b, so the local share is unknown"
    );
    let compared =
        RunComparison::new(&settings, &conditions(&["time>+5%"])).expect("the time is known");
    assert_eq!(compared.after[0].local_change, None);
}

#[test]
fn objects_changed_whose_repetitions_differ_less_than_the_settings() {
    let compared = comparison(&[]);
    let names: Vec<&str> = compared.after[0]
        .objects
        .iter()
        .map(|object| object.name.as_str())
        .collect();
    assert_eq!(
        names,
        ["x", "y"],
        "x is more local and costs less, y is new"
    );
    // If repetitions differ as much as the settings, no change is reported.
    let before = vec![
        run("a1", 1.0, &[("x", 0.5, 10.0)]),
        run("a2", 1.0, &[("x", 0.8, 60.0)]),
    ];
    let after = vec![run("b", 1.0, &[("x", 0.7, 30.0)])];
    let compared = RunComparison::new(&[before, after], &[]).expect("nodes are known");
    assert_eq!(compared.after[0].objects, []);
    // With twelve accesses, a difference of three can be chance.
    let few = |share| Run {
        accesses: 12.0,
        ..run("few", 1.0, &[("x", share, 10.0)])
    };
    let compared =
        RunComparison::new(&[vec![few(0.25)], vec![few(0.5)]], &[]).expect("nodes are known");
    assert_eq!(compared.after[0].objects, []);
}

#[test]
fn the_text_has_a_row_for_each_setting_and_what_failed() {
    let text = runs_text(&comparison(&["time>+5%"]), 100, false);
    for words in [
        "10 s (9 s to 11 s)",
        "+20.0 %",
        "+20.0 points",
        "a1, a2",
        "failed: time>+5% in b",
        "changed in b",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for width in [40, 60, 100] {
        let widest = runs_text(&comparison(&[]), width, true);
        let table = widest.lines().take(3).map(crate::printable::width).max();
        assert!(table <= Some(width), "{width}: {widest}");
    }
}
