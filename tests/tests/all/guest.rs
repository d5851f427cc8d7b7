//! The whole loop in a real Linux with four memory nodes. A single boot runs one script, whose results all tests share.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use nearpage_tests::in_guest::{EXACT, FAST, InGuest, LIVE, WAITING, moved};
use nearpage_tests::page_nodes::{middle_of, share_of};
use nearpage_tests::{Case, Guest, Inspection, nearpage_path, workload};

/// Three arrays of 512 KiB. Under `live`, the program runs until a test's condition holds, because the emulator
/// determines how long migrations take.
const LIVE_TRIAD: &str = "0.5 20";
const CG: &str = "100000 16 10";
const CLUSTER: &str = "100000 40 4";
const LU: &str = "64 16 8 2 5";

static IN_GUEST: LazyLock<InGuest> = LazyLock::new(|| {
    let guest = Guest::four_nodes();
    let case = Case::new("guest");
    plan_on_the_host(&case);
    case.write("later.toml", by_hand("triad", LATER_PLAN));
    let pinned = by_hand("triad", LATER_PLAN).replacen("\n\n", "\nthreads = \"scatter\"\n\n", 1);
    case.write("pinned.toml", pinned);
    case.write("stages.toml", by_hand("stages", STAGES_PLAN));
    case.write("exchange.toml", by_hand("stages", &exchange_plan()));
    another_build(&case, "smalls", "other");
    case.write("rest.toml", by_hand("smalls", REST_PLAN));
    let later = "placement = \"interleave\"\nstart = \"second-thread\"";
    case.write(
        "rest_later.toml",
        by_hand(
            "smalls",
            &REST_PLAN.replace("placement = \"interleave\"", later),
        ),
    );
    case.write("heap.toml", by_hand("smalls", HEAP_PLAN));
    case.write(
        "online_migration.toml",
        by_hand("triad", ONLINE_MIGRATION_PLAN),
    );

    let nearpage = nearpage_path();
    let nearpage = nearpage.display();
    let [cg, triad, lu, cluster, replicas, smalls, stages] = [
        "cg",
        "triad",
        "lu_blocks",
        "cluster",
        "replicas",
        "smalls",
        "stages",
    ]
    .map(|name| workload(name).display().to_string());
    let bound = "env OMP_NUM_THREADS=4 OMP_PROC_BIND=true OMP_PLACES={0},{1},{2},{3}";
    let team = "env OMP_NUM_THREADS=4";
    let script = [
        EXACT.to_owned(),
        Inspection::command("cg_first_touch", &format!("{bound} {cg} {CG}")),
        Inspection::command(
            "triad_first_touch",
            &format!("{bound} {triad} --parallel-init 16 2"),
        ),
        // Record, plan and run in the guest. The master is pinned when it creates a thread, and stays on its CPU until
        // then: otherwise it might fill the matrix from several nodes, and part of it near the users of this part.
        format!(
            "{team} OMP_PROC_BIND=true {nearpage} record -q --rate 997 --threads compact -o cg.nearpage -- {cg} 100000 16 60\n"
        ),
        // `object`, because `auto` is not certain enough of the small saving by `row_start`.
        format!("{nearpage} plan cg.nearpage --policy object -o cg.toml >cg.plan.txt\n"),
        Inspection::command(
            "cg_placed",
            &format!("{team} {nearpage} run --plan cg.toml -- {cg} {CG}"),
        ),
        Inspection::command(
            "cg_eight",
            &format!("env OMP_NUM_THREADS=8 {nearpage} run --plan cg.toml -- {cg} {CG}"),
        ),
        Inspection::command(
            "cg_touched",
            &format!("{team} {nearpage} run --mechanism touch --plan cg.toml -- {cg} {CG}"),
        ),
        format!(
            "{team} {nearpage} record -q --rate 997 --threads compact -o cluster.nearpage -- {cluster} 100000 40 30\n"
        ),
        format!("{nearpage} plan cluster.nearpage -o cluster_auto.toml >cluster.plan.txt\n"),
        // `object`, because a page with points of several threads has so few samples that it may seem to belong to one
        // thread.
        format!(
            "{nearpage} plan cluster.nearpage --policy object -o cluster.toml >cluster.plan.txt\n"
        ),
        Inspection::command(
            "cluster_placed",
            &format!("{team} {nearpage} run --plan cluster_auto.toml -- {cluster} {CLUSTER}"),
        ),
        // A plan made outside of the guest, on another machine.
        Inspection::command(
            "lu_placed",
            &format!("{team} {nearpage} run --plan lu.toml -- {lu} {LU}"),
        ),
        // Rules given by hand.
        Inspection::command(
            "cg_by_hand",
            &format!(
                "{team} {nearpage} run --place 'heap>=1M=interleave:1,3' --place 'heap>=64K=node:2' -- {cg} {CG}"
            ),
        ),
        // Unmatched memory; the plans are not for the program `other`.
        format!(
            "{nearpage} run --place rest=interleave --place 'heap>=4M=first-touch' --place 'heap>=1M=node:2' -- \
             {smalls} ./other >rest.out 2>rest.err\n\
             {nearpage} run --plan rest.toml -- {smalls} ./other >rest_plan.out 2>rest_plan.err\n\
             {nearpage} run --plan rest_later.toml -- {smalls} ./other >rest_later.out 2>rest_later.err\n\
             {nearpage} run -q --place rest=node:1 -- {smalls} >rest_node.out\n\
             {nearpage} run --plan heap.toml -- {smalls} >heap.out 2>heap.err\n"
        ),
        // Pages migrate when the second thread is created.
        Inspection::command(
            "triad_later",
            &format!("{bound} {nearpage} run --plan later.toml -- {triad} 4 2 2>later.err"),
        ),
        // Pages migrate when a function is first executed.
        Inspection::command(
            "stages",
            &format!("{bound} {nearpage} run --plan stages.toml -- {stages} 4096 2 2 2>stages.err"),
        ),
        // Pages and threads migrate when a function is first executed.
        Inspection::command(
            "exchange",
            &format!(
                "{team} {nearpage} run --plan exchange.toml -- {stages} 4096 2 2 2>exchange.err"
            ),
        ),
        WAITING.to_owned(),
        // Threads get CPUs of their own by a plan.
        format!(
            "WORKLOAD_UNTIL=pinned.end {team} {nearpage} run -q --plan pinned.toml -- {triad} {LIVE_TRIAD} >/dev/null &\n\
             wait_for '[ $(may_run_on triad | sort -u | wc -l) = 4 ]' 60\n\
             may_run_on triad >pinned\n\
             : >pinned.end\n\
             wait $!\n"
        ),
        // Online migration.
        "end_once live.end 'becomes_local triad live.log 2' &\n\
         export WORKLOAD_UNTIL=live.end\n"
            .to_owned(),
        Inspection::command(
            "triad_live",
            &format!("{bound} {nearpage} {LIVE} {FAST} --log live.log -- {triad} {LIVE_TRIAD}"),
        ),
        format!("{nearpage} live --replay live.log >replayed.txt\n"),
        // Parameters that no daemon can have: the command is not started.
        format!(
            "{nearpage} live --policy auto --set remote_ns=0 -- touch started 2>refused.err && exit 42\n\
             test ! -e started\n"
        ),
        // A plan with online migration of the pages that it placed.
        format!(
            "end_once online_migration.end 'grep prefer /proc/$(pgrep -nx triad)/numa_maps | grep \" N[123]=\"' &\n\
             WORKLOAD_UNTIL=online_migration.end {bound} {nearpage} run --plan online_migration.toml -- \
             {triad} {LIVE_TRIAD} >online_migration.out 2>online_migration.err\n"
        ),
        // Huge pages that one thread touched go where each thread's part is.
        "echo always >/sys/kernel/mm/transparent_hugepage/enabled\n".to_owned(),
        Inspection::command(
            "triad_later_huge",
            &format!("{bound} {nearpage} run --plan later.toml -- {triad} 16 2 2>later_huge.err"),
        ),
        "echo never >/sys/kernel/mm/transparent_hugepage/enabled\n".to_owned(),
        // Copies on every node: of code and files, and of an array.
        "head -c 20000 /dev/urandom >'a file'\n".to_owned(),
        format!(
            "{nearpage} run --replicate code -- sh -c \
             'for cpu in 0 1 2 3; do taskset -c $cpu cat /proc/self/numa_maps >code.$cpu; done' 2>code.err\n\
             {bound} {nearpage} run --replicate 'file:a f*' -- {replicas} 1 'a file' >replicas.out 2>replicas.err\n"
        ),
        format!("{nearpage} machine --toml >machine.toml\n{nearpage} doctor --json >doctor.json\n"),
        format!("{nearpage} machine --measure --quick --toml >measured.toml\n"),
    ];
    InGuest::run(guest, case, &script.concat())
});

/// A plan for a workload, with hand-written decisions.
fn by_hand(executable: &str, teams_and_decisions: &str) -> String {
    format!(
        "version = 1\npolicy = \"hand\"\nmachine = \"any\"\npage_bytes = 4096\n\n\
         [program]\nexecutable = \"{executable}\"\n{teams_and_decisions}"
    )
}

/// For `triad`, whose arrays one thread fills: each array in blocks, once the second thread is created.
const LATER_PLAN: &str = r#"
[[team]]
name = "openmp"
threads = 4

[[object]]
name = "arrays"
heap = ">=1M"
placement = "block"
start = "second-thread"
"#;

/// For `triad`: arrays on a node without three of the four threads, to be migrated by few samples.
const ONLINE_MIGRATION_PLAN: &str = r#"
[live]
errors = 0
cost_ns = 1
budget_permille = 1000

[[object]]
name = "arrays"
heap = ">=256K"
placement = "node:0"
"#;

/// For `stages`: in blocks; from `backward` on, in blocks of the opposite threads.
const STAGES_PLAN: &str = r#"
[[team]]
name = "openmp"
threads = 4

[[object]]
name = "grid"
heap = ">=1M"
placement = "block"

[[phase]]
function = "backward._omp_fn.0"

[[phase.object]]
name = "grid"
heap = ">=1M"
placement = "runs"
runs = ["0+256 thread:3", "256+256 thread:2", "512+256 thread:1", "768+256 thread:0"]
"#;

/// Like [`STAGES_PLAN`], but from `backward` on each thread takes the next thread's place.
fn exchange_plan() -> String {
    let function = "function = \"backward._omp_fn.0\"\n";
    STAGES_PLAN.replace(function, &format!("{function}threads = [1, 2, 3, 0]\n"))
}

/// A copy of a workload with another build-id, so that nearpage takes it for another program.
fn another_build(case: &Case, name: &str, copy: &str) {
    // A note of the linker: lengths of name and build-id, type, name.
    const NOTE: &[u8] = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let mut bytes = std::fs::read(workload(name)).unwrap();
    let at = bytes.windows(NOTE.len()).position(|part| part == NOTE);
    bytes[at.expect("a build-id") + NOTE.len()] ^= 1;
    case.program(copy, bytes);
}

/// For `smalls` alone: the smaller array on node 2, the larger one left to first touch.
const REST_PLAN: &str = r#"
[[object]]
name = "large"
heap = ">=4M"
placement = "first-touch"

[[object]]
name = "middle"
heap = ">=1M"
placement = "node:2"

[[object]]
name = "the rest"
rest = true
placement = "interleave"
"#;

/// For `smalls`: the first 4 MiB of the heap, in two parts.
const HEAP_PLAN: &str = r#"
[[object]]
name = "rows"
brk_heap = true
size = 4194304
placement = "runs"
runs = ["0+300 node:3", "300+724 node:1"]
"#;

/// Makes a plan of `lu_blocks` on this machine, with the guest's number of threads.
fn plan_on_the_host(case: &Case) {
    let mut record = case.command(nearpage_path());
    record
        .args(["record", "-q", "--rate", "1999", "-o", "lu.nearpage", "--"])
        .arg(workload("lu_blocks"));
    record
        .args(["64", "16", "8", "2", "200"])
        .env("OMP_NUM_THREADS", "4");
    case.run(record).success();
    case.nearpage([
        "plan",
        "lu.nearpage",
        "-o",
        "lu.toml",
        "--machine",
        "opteron-4",
        "--policy",
        "object",
    ])
    .success();
}

#[test]
fn first_touch_decides_where_unplaced_pages_are() {
    let there = &*IN_GUEST;
    let cg = there.inspection("cg_first_touch");
    for object in ["values", "columns", "x", "p"] {
        let count = cg.pages[object].count();
        assert_eq!(
            count.keys().collect::<Vec<_>>(),
            [&0],
            "{object}: {count:?}"
        );
    }
    let triad = there.inspection("triad_first_touch");
    for object in ["a", "b", "c"] {
        assert!(
            triad.in_blocks(object, &there.guest) > 0.99,
            "{object}: {:?}",
            triad.pages[object]
        );
    }
}

#[test]
fn cg_is_placed_in_blocks() {
    in_blocks("cg_placed", &["values", "columns", "row_start"]);
}

#[test]
fn a_plan_for_four_threads_serves_eight() {
    in_blocks("cg_eight", &["values", "columns", "row_start"]);
}

#[test]
fn touching_places_like_binding() {
    in_blocks("cg_touched", &["values", "columns", "row_start"]);
}

fn in_blocks(inspection: &str, objects: &[&str]) {
    let there = &*IN_GUEST;
    let placed = there.inspection(inspection);
    for object in objects {
        let share = placed.in_blocks(object, &there.guest);
        let plan = there.case.read("cg.toml");
        assert!(
            share >= 0.95,
            "{inspection}: {object}: {share}: {:?}\n{plan}",
            placed.pages[*object].count()
        );
    }
}

#[test]
fn a_plan_made_on_one_node_places_lu_blocks_on_four() {
    let there = &*IN_GUEST;
    let placed = there.inspection("lu_placed");
    for (object, period) in [("cvar", 16 << 20), ("cjac", 2 << 20)] {
        let share = placed.in_cyclic_blocks(object, period, &there.guest);
        let plan = there.case.read("lu.toml");
        assert!(
            share >= 0.95,
            "{object}: {share}: {:?}\n{plan}",
            placed.pages[object].count()
        );
    }
}

#[test]
fn shared_objects_are_interleaved_and_partitioned_ones_in_blocks() {
    let there = &*IN_GUEST;
    let placed = there.inspection("cluster_placed");
    let plan = there.case.read("cluster_auto.toml");
    let share = placed.in_blocks("closest", &there.guest);
    assert!(
        share >= 0.95,
        "closest: {share}: {:?}\n{plan}",
        placed.pages["closest"].count()
    );
    let count = placed.pages["block"].count();
    let (least, most) = (count.values().min().unwrap(), count.values().max().unwrap());
    assert_eq!(count.len(), 4, "{count:?}\n{plan}");
    assert!(*most as f64 <= 1.05 * *least as f64, "{count:?}\n{plan}");
    // `auto` judges by time, although the bandwidth of the guest's memory is unknown.
    assert!(
        plan.contains("policy = \"auto\"") && plan.contains("placement = \"interleave\""),
        "{plan}"
    );
}

#[test]
fn rules_by_hand_place_by_size() {
    let placed = IN_GUEST.inspection("cg_by_hand");
    let values = placed.pages["values"].count();
    // The first and last page may belong to a neighbour, or hold the allocator's header from before the placement.
    let on = |node| values.get(&node).copied().unwrap_or(0);
    assert!(
        on(1).abs_diff(on(3)) <= 2 && on(1) + on(3) + 2 >= values.values().sum(),
        "{values:?}"
    );
    let row_start = placed.pages["row_start"].count();
    // The first and last page may belong to a neighbour.
    assert!(
        row_start.get(&2).copied().unwrap_or(0) + 2 >= row_start.values().sum(),
        "{row_start:?}"
    );
}

#[test]
fn objects_filled_by_one_thread_become_blocks_with_the_second_thread() {
    let there = &*IN_GUEST;
    let inspection = there.inspection("triad_later");
    let said = there.case.read("later.err");
    let mut elsewhere = 0;
    for object in ["a", "b", "c"] {
        let range = &inspection.paused.objects[object];
        for (page, node) in inspection.pages[object].present() {
            // A page at an end counts to the object if the object covers more than half of it.
            let covered = range.end.min(page + 4096) - range.start.max(page);
            let share = share_of(range, 4, middle_of(range, page));
            let planned = if covered > 2048 { share } else { 0 };
            assert_eq!(node, planned, "{object} at {page:#x}: {said}");
            elsewhere += u64::from(node != 0);
        }
    }
    // The master, on node 0, had filled all pages: exactly the pages on other nodes were moved.
    let expected = format!(
        "arrays: placed 3 objects, 12 MiB in 3072 pages, when the second thread was created: {elsewhere} pages moved, "
    );
    assert!(
        elsewhere > 0 && said.contains(&expected),
        "{expected}{said}"
    );

    // A huge page moves as a whole, to the node of most of its blocks.
    let huge = there.inspection("triad_later_huge");
    let said = there.case.read("later_huge.err");
    for object in ["a", "b", "c"] {
        let share = huge.in_blocks(object, &there.guest);
        assert!(share > 0.7, "{object}: {share}: {said}");
    }
    assert!(
        said.contains(" pages moved, ") && !said.contains("failed"),
        "{said}"
    );
}

#[test]
fn pages_move_to_the_opposite_threads_when_a_phase_begins() {
    let there = &*IN_GUEST;
    let inspection = there.inspection("stages");
    let said = there.case.read("stages.err");
    let range = &inspection.paused.objects["grid"];
    let mut pages = 0;
    for (page, node) in inspection.pages["grid"].present() {
        // A page at an end counts to the object if the object covers more than half of it.
        let covered = range.end.min(page + 4096) - range.start.max(page);
        if covered > 2048 {
            let share = share_of(range, 4, middle_of(range, page));
            assert_eq!(node, 3 - share, "{page:#x}: {said}");
            pages += 1;
        }
    }
    // Before, pages were on the nodes of `forward`'s threads, always another node than the opposite thread's.
    for expected in [
        format!("grid: placed 1 object, 4 MiB in {pages} pages\n"),
        format!(
            "grid from backward._omp_fn.0 on: placed 1 object, 4 MiB in {pages} pages, when `backward._omp_fn.0` was \
             first executed: {pages} pages moved, "
        ),
    ] {
        assert!(said.contains(&expected), "{expected}{said}");
    }
}

#[test]
fn threads_change_places_and_pages_follow_them() {
    let there = &*IN_GUEST;
    let inspection = there.inspection("exchange");
    let said = there.case.read("exchange.err");
    let threads = &inspection.paused.threads;
    let node = |thread: u32| there.guest.node_of_cpu(threads[&thread].cpu).unwrap();
    let nodes: Vec<u32> = (0..4).map(node).collect();
    assert_eq!(nodes, [1, 2, 3, 0], "{said}");
    let range = &inspection.paused.objects["grid"];
    for (page, at) in inspection.pages["grid"].present() {
        // A page at an end counts to the object if the object covers more than half of it.
        let covered = range.end.min(page + 4096) - range.start.max(page);
        if covered > 2048 {
            let share = share_of(range, 4, middle_of(range, page));
            assert_eq!(at, node(3 - share), "{page:#x}: {said}");
        }
    }
    for expected in [
        "4 threads pinned\n",
        "4 threads changed place when `backward._omp_fn.0` was first executed\n",
    ] {
        assert!(said.contains(expected), "{expected}{said}");
    }
}

/// Pages by node, as `smalls` printed them.
fn pages_of_smalls(file: &str) -> BTreeMap<String, BTreeMap<u32, u64>> {
    let text = IN_GUEST.case.read(file);
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        let nodes = words.split_off(words.iter().position(|word| word.contains(':'))?);
        let node = |word: &str| {
            let (node, pages) = word.split_once(':')?;
            Some((node.parse().ok()?, pages.parse().ok()?))
        };
        let nodes = nodes.into_iter().map(node).collect::<Option<_>>()?;
        Some((words.join(" "), nodes))
    };
    let lines = text.lines().map(|text| line(text).expect(text));
    lines.collect()
}

fn is_even(count: &BTreeMap<u32, u64>) -> bool {
    let (least, most) = (count.values().min(), count.values().max());
    // Linux interleaves by address, and the counted range begins and ends anywhere and has a few gaps.
    count.len() == 4 && most.unwrap() - least.unwrap() <= 4
}

fn is_on(count: &BTreeMap<u32, u64>, node: u32) -> bool {
    count.keys().eq([&node])
}

#[test]
fn unmatched_memory_is_spread_and_stacks_and_placed_objects_are_not() {
    let case = &IN_GUEST.case;
    for (file, other_is_spread) in [
        ("rest.out", true),
        ("rest_plan.out", false),
        ("rest_later.out", false),
    ] {
        let pages = pages_of_smalls(file);
        for cpu in 0..4 {
            assert!(
                is_on(&pages[&format!("stack {cpu}")], cpu),
                "{file}: {pages:?}"
            );
            assert!(
                is_even(&pages[&format!("own rows {cpu}")]),
                "{file}: {pages:?}"
            );
        }
        assert!(is_even(&pages["rows"]), "{file}: {pages:?}");
        assert!(is_on(&pages["middle"], 2), "{file}: {pages:?}");
        assert!(is_on(&pages["large"], 0), "{file}: {pages:?}");
        let other = &pages["other"];
        assert!(
            if other_is_spread {
                is_even(other)
            } else {
                is_on(other, 0)
            },
            "{file}: {pages:?}"
        );
    }
    // As in its parent, the plan in a forked child waits for the child's second thread.
    assert!(is_even(&pages_of_smalls("rest.out")["forked"]));
    assert!(is_even(&pages_of_smalls("rest_plan.out")["forked"]));
    assert!(is_on(&pages_of_smalls("rest_later.out")["forked"], 0));

    let said = case.read("rest.err");
    assert!(
        said.contains("--place 'unmatched=interleave': policy set in 2 processes\n"),
        "{said}"
    );
    let said = case.read("rest_plan.err");
    assert!(
        said.contains("the rest: policy set in 2 processes\n"),
        "{said}"
    );
    let said = case.read("rest_later.err");
    assert!(
        said.contains("the rest: policy set in 1 process when the second thread was created: ")
            && said
                .contains("; left to first touch, as no second thread was created, in 1 process\n"),
        "{said}"
    );
    let pages = pages_of_smalls("rest_node.out");
    for (name, count) in &pages {
        let node = match name.strip_prefix("stack ") {
            Some(cpu) => cpu.parse().unwrap(),
            None => 1,
        };
        assert!(is_on(count, node), "{name}: {count:?}");
    }
}

#[test]
fn the_growing_heap_is_placed_as_planned() {
    let pages = pages_of_smalls("heap.out");
    let near = |pages: u64, planned: u64| pages.abs_diff(planned) <= 4;
    let rows = &pages["rows"];
    // The main thread on node 0 fills the rows, so rows beyond the plan's range are there.
    assert!(rows.keys().eq(&[0, 1, 3]), "{pages:?}");
    assert!(near(rows[&3], 300) && near(rows[&1], 724), "{pages:?}");
    assert!(rows[&0] > 900, "{pages:?}");
    assert!(is_on(&pages["middle"], 0), "mapped by itself: {pages:?}");
    assert!(is_on(&pages["forked"], 0), "behind the rows: {pages:?}");
    for cpu in 0..4 {
        let own = &pages[&format!("own rows {cpu}")];
        assert!(is_on(own, cpu), "in an arena: {pages:?}");
    }
    let said = IN_GUEST.case.read("heap.err");
    assert!(
        said.contains("rows: placed 1 object, 4 MiB in 1024 pages"),
        "{said}"
    );
}

#[test]
fn the_machine_is_read_as_it_is() {
    let machine = IN_GUEST.case.read("machine.toml");
    assert_eq!(machine.matches("[[node]]").count(), 4, "{machine}");
    let doctor = IN_GUEST.case.read("doctor.json");
    assert!(doctor.contains("4 nodes, 4 CPUs"), "{doctor}");
}

/// The kernel measures real migrations here, but the emulator determines their time.
#[test]
fn moving_a_page_is_measured_between_nodes() {
    let measured = IN_GUEST.case.read("measured.toml");
    let machine = nearpage_machine::Machine::from_toml(&measured, "measured.toml").unwrap();
    let move_ns = machine.moves.fixed_ns.expect("there are four nodes");
    assert!(move_ns > 0.0, "{measured}");
    let latencies = machine.latency_ns.expect("latencies");
    assert!(
        latencies.iter().flatten().all(Option::is_some),
        "{measured}"
    );
}

#[test]
fn live_brings_pages_to_their_threads() {
    IN_GUEST.assert_triad_in_blocks("triad_live", 0.9);
    assert!(moved(&IN_GUEST.live_log("live.log")) > 0);
    let replayed = IN_GUEST.case.read("replayed.txt");
    assert!(replayed.contains("made again: all the same"), "{replayed}");
}

#[test]
fn threads_run_where_the_plan_says() {
    assert_eq!(IN_GUEST.case.read("pinned"), "0\n1\n2\n3\n");
}

#[test]
fn processes_run_from_copies_on_their_node() {
    let case = &IN_GUEST.case;
    for node in 0..4 {
        let maps = case.read(format!("code.{node}"));
        let copies: Vec<&str> = maps
            .lines()
            .filter(|line| line.contains("nearpage-replica-"))
            .collect();
        assert!(!copies.is_empty(), "node {node}: {maps}");
        for line in copies {
            assert!(line.contains(&format!("nearpage-replica-{node}")), "{line}");
            // The touched pages of the code are on this node and on no other.
            let elsewhere = (0..4).filter(|other| *other != node);
            for other in elsewhere {
                assert!(
                    !line.contains(&format!(" N{other}=")),
                    "node {node}: {line}"
                );
            }
        }
    }
    let said = case.read("code.err");
    assert!(said.contains("files replicated on 4 nodes"), "{said}");
    assert!(said.contains("processes ran from local copies"), "{said}");
    // The program itself checks the nodes of its copies.
    let printed = case.read("replicas.out");
    assert!(printed.contains("replicas copies 4,"), "{printed}");
    assert!(printed.contains(" 3 children elsewhere"), "{printed}");
    let said = case.read("replicas.err");
    assert!(said.contains("1 file replicated on 4 nodes: "), "{said}");
    assert!(
        said.contains("4 processes ran from local copies: 16 mappings"),
        "{said}"
    );
}

#[test]
fn live_refuses_wrong_parameters_before_it_starts_a_command() {
    let said = IN_GUEST.case.read("refused.err");
    assert!(
        said.contains("auto: remote_ns=0 leaves it to the machine"),
        "{said}"
    );
}

/// Online migration moves pages away from the node of their memory policy.
#[test]
fn planned_pages_migrate_online() {
    let there = &*IN_GUEST;
    let said = there.case.read("online_migration.err");
    assert!(
        said.contains("online migration by auto, as the plan asks: "),
        "{said}"
    );
    let moved = said.split("as the plan asks: ").nth(1).expect("a count");
    let moved = moved
        .split(' ')
        .next()
        .and_then(|count| count.parse::<u64>().ok());
    assert!(moved.is_some_and(|moved| moved > 0), "{said}");
    assert!(there.case.read("online_migration.out").contains("checksum"));
}
