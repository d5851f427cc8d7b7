//! Pages that can't migrate, in a real Linux with four memory nodes: half of a program's buffer is registered with
//! io_uring, which pins it.

use nearpage_tests::in_guest::{EXACT, InGuest, LIVE, WAITING, pages_of};
use nearpage_tests::{Case, Guest, nearpage_path, workload};

/// The program's buffer in blocks, from the second thread's creation on.
const PLAN: &str = r#"
version = 1
policy = "hand"
machine = "any"
page_bytes = 4096

[program]
executable = "pinned_buffer"

[[team]]
name = "openmp"
threads = 4

[[object]]
name = "buffer"
heap = ">=1M"
placement = "block"
start = "second-thread"
"#;

#[test]
#[ignore = "takes a guest of its own: tests/long"]
fn pinned_pages_are_counted_and_the_others_move() {
    let case = Case::new("pinned");
    case.write("plan.toml", PLAN);
    let (nearpage, program) = (nearpage_path(), workload("pinned_buffer"));
    let (nearpage, program) = (nearpage.display(), program.display());
    let bound = "env OMP_NUM_THREADS=4 OMP_PROC_BIND=true OMP_PLACES={0},{1},{2},{3}";
    let script = format!(
        "{EXACT}{WAITING}\
         {bound} {nearpage} run --plan plan.toml --json -- {program} 2048 2 >run.json 2>run.err\n\
         end_once live.end \"grep -q 'pinned.:[1-9]' live.log && grep -q 'moved.:[1-9]' live.log\" &\n\
         WORKLOAD_UNTIL=live.end {bound} {nearpage} {LIVE} --log live.log -- {program} 2048 20\n"
    );
    let there = InGuest::run(Guest::four_nodes(), case, &script);
    let case = &there.case;

    // The master fills all 512 pages on node 0. The first half is pinned: 128 of its 256 pages belong on node 0 anyway,
    // so 128 count as pinned. The second half moves. Pages at the ends of blocks and the heap's header may differ by a
    // few.
    let placed: serde_json::Value = serde_json::from_str(&case.read("run.json")).unwrap();
    let said = case.read("run.err");
    let rule = &placed["placed"]["rules"][0];
    let pages = |key: &str| {
        rule[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {placed}"))
    };
    assert!(
        (126..=130).contains(&pages("pinned_pages")),
        "{placed} {said}"
    );
    assert!(
        (254..=258).contains(&pages("moved_pages")),
        "{placed} {said}"
    );
    let problems = rule["problems"].to_string();
    assert!(
        problems.contains("pages pinned where they are") && !problems.contains("failed"),
        "{problems}"
    );

    let log = there.live_log("live.log");
    let moved = pages_of(&log, "moved");
    let pinned = pages_of(&log, "pinned");
    assert!(moved > 0 && pinned > 0, "{log:?}");
}
