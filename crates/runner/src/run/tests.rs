use std::cell::RefCell;
use std::collections::BTreeMap;

use nearpage_plan::SearchPaths;

use super::*;

/// `sh` on a machine with four nodes, without options.
struct Shell {
    command: Vec<OsString>,
    programs: Vec<ProgramImage>,
    machine: Machine,
}

impl Shell {
    fn new(arguments: &[&str]) -> Self {
        let command: Vec<OsString> = ["sh"].iter().chain(arguments).map(Into::into).collect();
        let search = SearchPaths::from_environment();
        Self {
            programs: ProgramImage::load_command(&command, &search).unwrap(),
            command,
            machine: nearpage_machine::preset("opteron-4").unwrap(),
        }
    }

    fn options(&self) -> RunOptions<'_> {
        RunOptions {
            command: &self.command,
            programs: &self.programs,
            machine: &self.machine,
            plans: &[],
            rules: &[],
            threads: None,
            mechanism: Mechanism::Bind,
            touch_group: 1,
            replicate: &[],
            replicate_bytes_max: 1 << 20,
        }
    }
}

/// The result of `act`, and the messages that it reported.
fn listening<T>(act: impl FnOnce(Reporter<'_>) -> T) -> (T, Vec<String>) {
    let lines = RefCell::new(Vec::new());
    let result = act(&|line: &str| lines.borrow_mut().push(line.to_owned()));
    (result, lines.into_inner())
}

fn plan() -> Plan {
    Plan::from_toml("version = 1\n[program]\nexecutable = \"sh\"\n", "p").unwrap()
}

#[test]
fn the_newest_kept_plan_is_used_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    let shell = Shell::new(&["-c", "true"]);
    let (none, said) =
        listening(|say| kept_plans(&store, &shell.options(), &mut RunOutcome::default(), say));
    let error = none.unwrap_err();
    assert!(
        matches!(error, Error::NoKeptPlan(_)) && said.is_empty(),
        "{error}"
    );
    assert!(error.to_string().contains("nearpage optimize -- COMMAND"));

    let identity = shell.programs[0].identity(&shell.command[1..]);
    let kept = store.keep(&identity, &[plan()]).unwrap();
    let mut ran = RunOutcome::default();
    let (found, said) = listening(|say| kept_plans(&store, &shell.options(), &mut ran, say));
    assert_eq!(found.unwrap().len(), 1);
    assert_eq!(said, [format!("using the kept plan {}", kept.display())]);
    assert_eq!((ran.plans, ran.notes), (vec![kept], said));
}

#[test]
fn plans_are_looked_for_only_where_there_is_nothing_else_to_do() {
    let shell = Shell::new(&[]);
    let silent: Reporter<'_> = &|_| ();
    let replicate = [ReplicaSource::Code];
    let copies_only = RunOptions {
        replicate: &replicate,
        ..shell.options()
    };
    assert!(copies_only.places_nothing());
    assert_eq!(
        copies_only
            .plans(&mut RunOutcome::default(), silent)
            .unwrap(),
        []
    );
    let pins_only = RunOptions {
        threads: Some(ThreadPlacement::Compact),
        ..shell.options()
    };
    assert!(!pins_only.places_nothing());
    assert_eq!(
        pins_only.plans(&mut RunOutcome::default(), silent).unwrap(),
        []
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.toml");
    std::fs::write(&path, plan().to_toml()).unwrap();
    let files = [path, "/no/such/plan".into()];
    let named = RunOptions {
        plans: &files[..1],
        ..shell.options()
    };
    assert_eq!(
        named
            .plans(&mut RunOutcome::default(), silent)
            .unwrap()
            .len(),
        1
    );
    let missing = RunOptions {
        plans: &files,
        ..shell.options()
    };
    let error = missing
        .plans(&mut RunOutcome::default(), silent)
        .unwrap_err();
    assert!(error.to_string().starts_with("/no/such/plan"), "{error}");
}

#[test]
fn the_plans_parameters_are_autos() {
    let live = |name: &str, value| nearpage_plan::OnlineMigration {
        parameters: BTreeMap::from([(name.to_owned(), value)]),
    };
    let has = |online_migration: &nearpage_plan::OnlineMigration, name: &str, value: &str| {
        let policy = online_policy(online_migration).unwrap();
        assert_eq!(policy.name(), "auto");
        let parameters = policy.parameters();
        assert!(
            parameters.contains(&(name.to_owned(), value.to_owned())),
            "{parameters:?}"
        );
    };
    let budget = live("budget_permille", 7);
    has(&budget, "budget_permille", "7");
    has(&budget, "move_threads", "1");
    has(&live("move_threads", 0), "move_threads", "0");
    let error = online_policy(&live("move_threads", 2)).unwrap_err();
    assert!(matches!(error, Error::Parameter(_)), "{error}");
    let error = online_policy(&live("speed", 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the plan's [online_migration] has `speed`, and `auto` has no parameter of that name"
    );
}

#[test]
fn errors_are_printed_with_their_causes() {
    let error = Error::File {
        path: "/a".into(),
        failure: "can't be run",
        source: std::io::Error::from_raw_os_error(libc::ENOENT),
    };
    assert_eq!(
        with_causes(&error),
        "/a: can't be run: No such file or directory (os error 2)"
    );
    assert_eq!(with_causes(&Error::Interrupted), "interrupted");
}

#[test]
fn nothing_is_run_for_a_command_that_cannot_be_placed() {
    let shell = Shell::new(&[]);
    let programs = shell.programs;
    for harmless in [None, Some(NoLog::Sanitizer("AddressSanitizer"))] {
        refuse_static(&programs, harmless).unwrap();
    }
    let error = refuse_static(&programs, Some(NoLog::StaticallyLinked)).unwrap_err();
    let path = programs[0].program.path.display();
    assert_eq!(
        error.to_string(),
        format!(
            "{path}: statically linked, so nothing can be placed in it; link it dynamically, or use numactl"
        )
    );
}

#[test]
fn plans_that_place_no_page_are_told_from_others() {
    let placing = |placement: &str| {
        let object = format!("name = \"large\"\nheap = \">=64K\"\nplacement = \"{placement}\"\n");
        let text = format!("version = 1\n[program]\nexecutable = \"sh\"\n[[object]]\n{object}");
        Plan::from_toml(&text, "p").unwrap()
    };
    assert!(leave_all_to_first_touch(&[plan(), placing("first-touch")]));
    assert!(!leave_all_to_first_touch(&[plan(), placing("interleave")]));
    assert!(!leave_all_to_first_touch(&[]));
}

#[test]
fn plans_that_do_worse_than_first_touch_are_warned_about() {
    let mut slow = plan();
    slow.machine = "amd48".to_owned();
    slow.predicted = Some(nearpage_plan::PlanPrediction {
        local_before: 0.76,
        local_after: 0.43,
        ..Default::default()
    });
    let said = warnings(&[plan(), slow]);
    let [warning] = said.as_slice() else {
        panic!("one of two: {said:?}");
    };
    assert!(
        warning.starts_with("warning: this plan is predicted to do worse than first touch: 43 %"),
        "{warning}"
    );
    assert!(warning.ends_with("(predicted for amd48)"), "{warning}");
}

#[test]
fn a_rank_follows_its_groups_part_and_others_get_the_reason() {
    let group = |ranks: &str, local_ranks: &str, program: &str| {
        format!(
            "[[group]]\nranks = \"{ranks}\"\nlocal_ranks = \"{local_ranks}\"\n[[group.plan]]\n\
             program = {{ executable = \"{program}\" }}\n"
        )
    };
    let text = format!(
        "version = 1\n{}{}",
        group("0-5", "0,2", "most"),
        group("6", "1", "other")
    );
    let Ok(PlanFile::Job(job)) = PlanFile::from_toml(&text, "job.toml") else {
        panic!("{text}");
    };
    let launched = |rank, local_rank| Launched {
        launcher: nearpage_recording::Launcher::Slurm,
        rank,
        size: Some(16),
        local_rank,
        node_index: None,
        host: "n1".to_owned(),
        job: None,
        step: None,
    };
    assert_eq!(part_of_rank(&job, Some(&launched(6, None))), (1, None));
    let (part, note) = part_of_rank(&job, Some(&launched(0, Some(0))));
    assert_eq!(part, 0);
    assert!(note.unwrap().starts_with("ranks 7-15 in no group"));
    for (launched, part, words) in [
        (
            Some(launched(9, Some(1))),
            1,
            "part of rank 6, to which most ranks with local rank 1",
        ),
        (
            Some(launched(9, Some(7))),
            0,
            "part of ranks 0-5, the largest group",
        ),
        (None, 0, "no launcher says which rank this is"),
    ] {
        let (found, note) = part_of_rank(&job, launched.as_ref());
        let note = note.unwrap();
        assert_eq!(found, part, "{note}");
        assert!(note.contains(words) && !note.contains('\n'), "{note}");
    }
}
