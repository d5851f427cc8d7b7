//! What takes the emulator minutes in a real Linux with four memory nodes: a recording under a plan, `nearpage optimize`,
//! and `nearpage live` with its screen, with two targets, with threads that move, with threads that share data, with
//! mappings that change, and with huge pages. `tests/long` runs these tests. A single boot runs one script, whose results
//! all tests share.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use nearpage_tests::in_guest::{EXACT, FAST, InGuest, LIVE, WAITING, moved};
use nearpage_tests::page_nodes::share_of;
use nearpage_tests::{Case, Guest, Inspection, nearpage_path, workload};

/// Three arrays of 512 KiB. Under `live`, the program runs until a test's condition holds, because the emulator
/// determines how long migrations take.
const LIVE_TRIAD: &str = "0.5 20";
/// A block of some hundred pages that all threads read at random.
const LIVE_CLUSTER: &str = "3000 40 20";
/// Four blocks of 256 KiB that two threads each read at random.
const LIVE_PAIRS: &str = "0.25 20";
/// Three arrays of 15 or 16 huge pages each, depending on their addresses.
const LIVE_HUGE: &str = "32 2";
/// 128 pages that move to other addresses, and sums over them.
const RESTLESS: &str = "0.5 1500";
const CG: &str = "100000 16 60";

static IN_GUEST: LazyLock<InGuest> = LazyLock::new(|| {
    let case = Case::new("guest_long");
    let nearpage = nearpage_path();
    let nearpage = nearpage.display();
    let [cg, triad, cluster, pairs, restless] = ["cg", "triad", "cluster", "pairs", "restless"]
        .map(|name| workload(name).display().to_string());
    let in_background = |name: &str, command: String| {
        format!("{} &\n", Inspection::command(name, &command).trim_end())
    };
    case.write(
        "two.sh",
        [
            in_background("two_triad", format!("{triad} {LIVE_TRIAD}")),
            in_background("two_cluster", format!("{cluster} {LIVE_CLUSTER}")),
            "wait\n".to_owned(),
        ]
        .concat(),
    );
    let bound = "env OMP_NUM_THREADS=4 OMP_PROC_BIND=true OMP_PLACES={0},{1},{2},{3}";
    let team = "env OMP_NUM_THREADS=4";
    let record = format!("{nearpage} record -q --rate 997");
    let script = [
        EXACT.to_owned(),
        WAITING.to_owned(),
        // The master is pinned when it creates a thread, and stays on its CPU until then: otherwise it might fill the
        // matrix from several nodes, and part of it near the users of this part.
        format!(
            "{team} OMP_PROC_BIND=true {record} --threads compact -o cg.nearpage -- {cg} {CG}\n\
             {nearpage} plan cg.nearpage --policy object -o cg.toml >cg.plan.txt\n\
             {team} {record} -o cg_after.nearpage -- {nearpage} run --plan cg.toml -- {cg} {CG}\n"
        ),
        // The emulator's clock decides whether the plan wins; a losing plan is not used again.
        format!(
            "{team} {nearpage} optimize --rate 997 -o optimized --json -- {cg} {CG} >optimized.json\n\
             {team} {nearpage} run -- {cg} {CG} >kept.out 2>kept.err || true\n"
        ),
        // Threads get CPUs of their own by an option.
        format!(
            "WORKLOAD_UNTIL=pinned.end {team} {nearpage} run -q --threads compact -- {triad} {LIVE_TRIAD} >/dev/null &\n\
             wait_for '[ $(may_run_on triad | sort -u | wc -l) = 4 ]' 60\n\
             may_run_on triad >pinned\n\
             : >pinned.end\n\
             wait $!\n"
        ),
        // Threads move, and pages after them.
        "(wait_for 'becomes_local triad shifted.log 2'\n\
         shift_threads triad\n\
         wc -l <shifted.log >shifted\n\
         end_once shifted.end 'becomes_local triad shifted.log $(($(cat shifted) + 1))') &\n\
         export WORKLOAD_UNTIL=shifted.end\n"
            .to_owned(),
        Inspection::command(
            "triad_shifted",
            &format!("{bound} {nearpage} {LIVE} {FAST} --log shifted.log -- {triad} {LIVE_TRIAD}"),
        ),
        // A program whose pages are near their threads.
        format!(
            "end_once alone.end '[ $(wc -l <alone.log) -gt 10 ]' &\n\
             WORKLOAD_UNTIL=alone.end {bound} {nearpage} {LIVE} --log alone.log -- \
             {triad} --parallel-init {LIVE_TRIAD} >alone.out\n\
             unset WORKLOAD_UNTIL\n"
        ),
        // A daemon is killed while it shows its screen; a second one is refused before.
        format!(
            "env -u WORKLOAD_UNTIL {bound} {triad} {LIVE_TRIAD} >unattended.out\n\
             export WORKLOAD_UNTIL=killed.end\n\
             {bound} {triad} {LIVE_TRIAD} >killed.out & target=$!\n\
             tmux -u -S /dev/shm/tmux -f /dev/null new-session -d -x 60 -y 24 \
             \"{nearpage} live --policy migrate --rate 3000 --interval 1s -p $target --log killed.log\"\n\
             end_once killed.moved 'grep -q \"moved.:[1-9]\" killed.log'\n\
             screen() {{ tmux -u -S /dev/shm/tmux capture-pane -p; }}\n\
             wait_for 'screen | grep \"moved  *[1-9]\"' 60\n\
             screen >screen.processes\n\
             tmux -S /dev/shm/tmux send-keys d\n\
             wait_for 'screen | grep \"[1-9] decision\"' 60\n\
             screen >screen.decisions\n\
             tmux -S /dev/shm/tmux send-keys Enter\n\
             wait_for 'screen | grep because' 60\n\
             screen >screen.decision\n\
             daemon=$(pgrep -x nearpage)\n\
             {nearpage} live -q -p $target >second.out 2>second.err && exit 41\n\
             kill -9 $daemon\n\
             : >killed.end\n\
             wait $target\n\
             unset WORKLOAD_UNTIL\n"
        ),
        // A target whose mappings change all the time.
        format!(
            "{team} {restless} {RESTLESS} >unobserved.out\n\
             end_once restless.end '[ $(grep -c \"moved.:[1-9]\" restless.log) -ge 3 ]' &\n\
             WORKLOAD_UNTIL=restless.end {bound} {nearpage} {LIVE} --log restless.log -- \
             {restless} {RESTLESS} >restless.out\n"
        ),
        // Two targets: one wants its pages spread, the other wants them together.
        format!(
            "end_once two.end 'becomes_local triad two.log 2 && is_even cluster' &\n\
             WORKLOAD_UNTIL=two.end {bound} OMP_WAIT_POLICY=passive {nearpage} {replicating} {FAST} --log two.log -- sh two.sh\n",
            replicating = LIVE.replace("migrate", "migrate-replicate")
        ),
        // Threads that share data, on different nodes, while pages may not move.
        format!(
            "export OMP_NUM_THREADS=8\n\
             {pairs} {LIVE_PAIRS} >pairs.alone\n\
             WORKLOAD_UNTIL=pairs.end {pairs} {LIVE_PAIRS} >pairs.out & target=$!\n\
             wait_for '[ $(threads_of pairs | wc -l) = 8 ]'\n\
             part pairs\n\
             {clustering} --set maptu=0 --threads -p $target --log pairs.log & daemon=$!\n\
             wait_for 'together pairs >pairs.together; may_run_on pairs >pairs.pinned\n\
                 [ $(cat pairs.together) -ge 2 ] && [ $(grep -cvx 0-3 pairs.pinned) -ge 2 ]'\n\
             kill $daemon\n\
             wait $daemon || echo the daemon ended with $? >&2\n\
             may_run_on pairs >pairs.let_go\n\
             : >pairs.end\n\
             wait $target\n\
             unset OMP_NUM_THREADS\n",
            clustering = format!("{nearpage} {LIVE}").replace("migrate", "carrefour")
        ),
        // Huge pages, with a higher limit on stalls because the emulator moves them slowly.
        "echo always >/sys/kernel/mm/transparent_hugepage/enabled\n\
         end_once huge.end 'becomes_local triad huge.log 2 800' 600 &\n\
         export WORKLOAD_UNTIL=huge.end\n"
            .to_owned(),
        Inspection::command(
            "triad_huge",
            &format!(
                "{bound} {nearpage} {LIVE} --max-stall 5s --log huge.log -- {triad} {LIVE_HUGE}"
            ),
        ),
    ];
    InGuest::run(Guest::four_nodes(), case, &script.concat())
});

/// For each interval in which the process `name` accessed memory: local share in thousandths, and pages moved
/// afterwards.
fn local_and_moved(log: &[serde_json::Value], name: &str) -> Vec<(u64, u64)> {
    let processes = log
        .iter()
        .flat_map(|entry| entry["processes"].as_array().unwrap());
    processes
        .filter(|process| process["name"] == name && process["accesses"] != 0)
        .map(|process| {
            (
                process["local_per_1000"].as_u64().unwrap(),
                process["outcomes"]["moved"].as_u64().unwrap(),
            )
        })
        .collect()
}

#[test]
#[ignore = "takes minutes: tests/long"]
fn live_brings_pages_after_their_threads() {
    let there = &*IN_GUEST;
    let log = IN_GUEST.live_log("shifted.log");
    // Pages are near the threads again, after the threads had moved.
    there.assert_triad_in_blocks("triad_shifted", 0.9);
    let shifted: usize = there.case.read("shifted").trim().parse().unwrap();
    // `live_log` leaves out the first line, the log's head.
    let (before, after) = log.split_at(shifted - 1);
    let intervals = |log: &[serde_json::Value]| {
        let intervals = local_and_moved(log, "triad");
        // The first intervals may cover only the program's start, where all accesses are local.
        let first = intervals.iter().position(|interval| interval.1 > 0);
        let first = first.unwrap_or_else(|| panic!("nothing moved: {intervals:?}"));
        let mostly_local = |interval: &(u64, u64)| interval.0 >= 900;
        let last = intervals[first..].iter().position(mostly_local);
        (intervals[first].0, last)
    };
    let ((local, there_after), (_, back_after)) = (intervals(before), intervals(after));
    println!(
        "local share from {local} ‰ to 900 ‰ in {there_after:?} intervals, and after the threads moved in {back_after:?}"
    );
    assert!((1..=700).contains(&local), "{local} ‰ at first");
    assert!(there_after.is_some() && back_after.is_some());
}

#[test]
#[ignore = "takes minutes: tests/long"]
fn threads_run_where_the_command_says() {
    assert_eq!(IN_GUEST.case.read("pinned"), "0\n1\n2\n3\n");
}

#[test]
#[ignore = "takes minutes: tests/long"]
fn live_moves_no_well_placed_pages() {
    assert!(moved(&IN_GUEST.live_log("alone.log")) <= 20);
}

#[test]
#[ignore = "takes minutes: tests/long"]
fn live_moves_threads_together_on_request() {
    let case = &IN_GUEST.case;
    let lines =
        |name: &str| -> Vec<String> { case.read(name).lines().map(str::to_owned).collect() };
    // Threads of all pairs were apart. A CPU may have had three threads meanwhile, which keeps pairs apart.
    let (together, pinned) = (lines("pairs.together"), lines("pairs.pinned"));
    assert!(
        together[0].parse::<u32>().unwrap() >= 2,
        "{together:?}, {pinned:?}"
    );
    // Each swap of threads brings two pairs together.
    let is_pinned = |cpus: &&String| *cpus != "0-3";
    assert!(pinned.iter().filter(is_pinned).count() >= 2, "{pinned:?}");
    assert_eq!(lines("pairs.let_go"), ["0-3"; 8]);
    assert_eq!(
        IN_GUEST.before("pairs.out", " compute "),
        IN_GUEST.before("pairs.alone", " compute ")
    );
}

#[test]
#[ignore = "takes minutes: tests/long"]
fn huge_pages_move_as_a_whole() {
    const HUGE_BYTES: u64 = 2 << 20;
    let there = &*IN_GUEST;
    let placed = there.inspection("triad_huge");
    // Only huge pages of a single thread count: one that two threads share may be on either node.
    let (mut whole, mut in_place) = (0, 0);
    for object in ["a", "b", "c"] {
        let range = &placed.paused.objects[object];
        let mut nodes: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (page, node) in placed.pages[object].present() {
            nodes
                .entry(page & !(HUGE_BYTES - 1))
                .or_default()
                .push(node);
        }
        nodes.retain(|start, _| *start >= range.start && start + HUGE_BYTES <= range.end);
        for (start, nodes) in nodes {
            assert!(
                nodes.iter().all(|node| *node == nodes[0]),
                "{object} {start:#x}: {nodes:?}"
            );
            let of = |address| &placed.paused.threads[&share_of(range, 4, address)];
            let (first, last) = (of(start), of(start + HUGE_BYTES - 1));
            if first.cpu == last.cpu {
                whole += 1;
                in_place += u32::from(there.guest.node_of_cpu(first.cpu) == Some(nodes[0]));
            }
        }
    }
    assert!(whole >= 30, "{whole}");
    assert!(in_place * 4 >= whole * 3, "{in_place} of {whole}");
    let kib = |name: &str| {
        let text = there.case.read("triad_huge/smaps_rollup");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect("of the kernel");
        line.trim_start_matches(':')
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .expect("a number")
    };
    assert!(kib("AnonHugePages") >= 2 * kib("Rss") / 3, "still huge");
    // Far below the thousands of moves that single 4 KiB pages would need.
    assert!(moved(&IN_GUEST.live_log("huge.log")) < 1000);
}

#[test]
#[ignore = "takes minutes: tests/long"]
fn two_targets_of_live_are_each_placed() {
    let there = &*IN_GUEST;
    there.assert_triad_in_blocks("two_triad", 0.8);
    let block = there.inspection("two_cluster").pages["block"].count();
    let (least, most) = (block.values().min().unwrap(), block.values().max().unwrap());
    assert_eq!(block.len(), 4, "{block:?}");
    // The program ran until pages were even within a fifth; a few more have moved since.
    assert!(*most as f64 <= 1.5 * *least as f64, "{block:?}");
}

#[test]
#[ignore = "takes minutes: tests/long"]
fn a_second_recording_sees_local_accesses() {
    // Local share of accesses to the matrix's values, 16 doubles per row.
    let local = |file: &str| {
        let report = IN_GUEST.case.nearpage(["report", "--json", file]).success();
        let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
        let values = report["objects"]
            .as_array()
            .unwrap()
            .iter()
            .find(|object| object["size_bytes"] == 100_000 * 16 * 8);
        let values = values.unwrap_or_else(|| panic!("no values in {file}"));
        1.0 - values["remote"].as_f64().unwrap() / values["accesses"].as_f64().unwrap()
    };
    let (before, after) = (local("cg.nearpage"), local("cg_after.nearpage"));
    assert!(
        before < 0.6 && after > 0.9,
        "local share {before} before, {after} after"
    );
}

#[test]
#[ignore = "takes minutes: tests/long"]
fn optimize_keeps_a_plan_that_a_later_run_uses() {
    let there = &*IN_GUEST;
    let result: serde_json::Value =
        serde_json::from_str(&there.case.read("optimized.json")).unwrap();
    assert!(
        result["comparison"]["before"]["elapsed_ns"]
            .as_f64()
            .unwrap()
            > 0.0,
        "{result}"
    );
    assert!(result["kept"].is_string(), "{result}");
    let said = there.case.read("kept.err");
    // The emulator's clock decides whether the plan won.
    assert!(
        said.contains("using the kept plan") || said.contains("no plan is kept"),
        "{said}"
    );
}

#[test]
#[ignore = "takes minutes: tests/long"]
fn a_program_that_keeps_changing_computes_its_result_under_live() {
    assert_eq!(
        IN_GUEST.before("restless.out", " rounds "),
        IN_GUEST.before("unobserved.out", " rounds ")
    );
    assert!(moved(&IN_GUEST.live_log("restless.log")) > 0);
}

#[test]
#[ignore = "takes minutes: tests/long"]
fn the_screen_shows_moves_between_nodes_and_why() {
    let read = |name: &str| {
        let screen = IN_GUEST.case.read(name);
        assert!(
            screen.lines().all(|line| line.chars().count() <= 60),
            "{screen}"
        );
        screen
    };
    let processes = read("screen.processes");
    assert!(
        processes.contains("triad") && processes.contains("by node    0:"),
        "{processes}"
    );
    let decisions = read("screen.decisions");
    assert!(decisions.contains("migrate"), "{decisions}");
    let decision = read("screen.decision");
    for words in [
        "decided    migrate to node",
        "because",
        "accesses   by node",
    ] {
        assert!(decision.contains(words), "{words}: {decision}");
    }
}

#[test]
#[ignore = "takes minutes: tests/long"]
fn a_killed_daemon_leaves_the_program_to_itself() {
    assert_eq!(
        IN_GUEST.before("killed.out", " compute "),
        IN_GUEST.before("unattended.out", " compute ")
    );
    assert!(moved(&IN_GUEST.live_log("killed.log")) > 0);
    let second = IN_GUEST.case.read("second.err");
    assert!(
        second.contains("is served by another nearpage live"),
        "{second}"
    );
}
