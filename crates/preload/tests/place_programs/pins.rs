//! Threads are pinned to CPUs.

use super::*;

#[test]
fn threads_are_pinned_by_order_or_team() {
    let programs = Programs::build();
    let (worker, _) = programs.symbol("objects", "worker");
    let mut tables = plan(
        &programs,
        [Rule {
            thread: 2,
            ..site(0, on_node_0(0))
        }],
    );
    let by_order = |index, cpu| Pin {
        module: NONE,
        index,
        offset: 0,
        cpu,
        reserved: 0,
    };
    let by_team = |index, cpu| Pin {
        module: 0,
        index,
        offset: worker,
        cpu,
        reserved: 0,
    };
    let cpus = std::thread::available_parallelism().unwrap().get();
    for pins in [
        vec![by_order(0, 0), by_order(1, 0), by_order(2, 0)],
        vec![by_team(0, 0), by_team(1, 0)],
    ] {
        tables.sections[0].pins = [0, pins.len() as u32];
        let pinned = pins.len();
        tables.pins = pins;
        let run = programs.run(&tables, &["threads", "4"]);
        assert_eq!(run.words("WORKER 0"), ["1", "0"]);
        assert_eq!(run.words("WORKER 1"), ["1", "0"]);
        assert_eq!(
            run.words("WORKER 3")[0],
            cpus.to_string(),
            "threads without a pin are free"
        );
        assert_eq!(
            run.summaries[0]["pins"],
            serde_json::json!({"pinned": pinned, "failed": 0})
        );
        // Thread 2 in order of creation is the second worker.
        assert_eq!(run.policies("worker1"), [(256, "prefer:0")]);
        assert_eq!(run.rule(0)["objects"], 1);
    }
}

#[test]
fn openmp_teams_are_pinned_with_their_main_thread() {
    for (program, runtime) in [
        ("team", "libgomp.so.1"),
        ("team_linked_in", "team_linked_in"),
    ] {
        team_is_pinned(program, runtime);
    }
}

fn team_is_pinned(program: &str, runtime: &str) {
    let programs = Programs::build();
    let mut tables = plan(&programs, []);
    let team = [("OMP_NUM_THREADS", "4")];
    let routine = |shown: &str| {
        let line = shown
            .lines()
            .find(|line| line.starts_with("ROUTINE "))
            .expect("a thread was created")
            .to_string();
        line.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
    };
    let offset = routine(&programs.run_other(&tables, program, &team));
    let module = tables.modules.len() as u32;
    let openmp = plan_file::module(&mut tables.names, &[], runtime.as_bytes());
    tables.modules.push(openmp);
    let last = std::thread::available_parallelism().unwrap().get() as u32 - 1;
    let pin = |module, offset, index, cpu| Pin {
        module,
        index,
        offset,
        cpu,
        reserved: 0,
    };
    tables.pins = vec![
        pin(NONE, 0, 0, last),
        pin(module, offset, 0, last),
        pin(module, offset, 1, 0),
        pin(module, offset, 2, last),
    ];
    tables.sections[0].pins = [0, 4];
    let shown = programs.run_other(&tables, program, &team);
    for index in 0..4 {
        let expected = format!("MEMBER {index} 1 {}", if index == 2 { 0 } else { last });
        assert!(
            shown.lines().any(|line| line == expected),
            "{program}: {expected} in {shown}"
        );
    }
    // That its main thread has a CPU of its own must not look as if there were no others.
    let shown = programs.run_other(&tables, program, &[]);
    let members = shown.lines().filter(|line| line.starts_with("MEMBER "));
    assert_eq!(members.count(), last as usize + 1, "{shown}");
}
