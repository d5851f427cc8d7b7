//! Pages are placed by touching them where memory policies are refused.

use super::*;

#[test]
fn refused_policies_fall_back_to_touching() {
    let programs = Programs::build();
    let tables = plan(&programs, [site(0, block_cyclic(0, 16))]);
    let refuse = programs.path("refuse");
    let run = programs.run_with(&tables, &["present"], &[refuse.to_str().unwrap()], &[]);
    assert_eq!(run.said.lines().count(), 1, "{}", run.said);
    assert!(run.said.contains("refused"), "{}", run.said);
    // Half of the pages are planned for node 0.
    let present: usize = run.words("PRESENT")[0].parse().unwrap();
    assert!((1024..1028).contains(&present), "{present}");
    let summary = run.summaries.last().unwrap();
    assert_eq!(
        (&summary["mechanism"], &summary["bind_refused"]),
        (&"touch".into(), &1.into())
    );
    assert_eq!(run.rule(0)["objects"], 1);
}

#[test]
fn touching_keeps_to_its_cap_and_its_group() {
    let programs = Programs::build();
    let rules = [
        site(0, on_node_0(0)),
        static_object(&programs, 0, "objects", "constant", on_node_0(0)),
    ];
    let mut tables = plan(&programs, rules);
    (tables.mechanism, tables.touch_pages_max) = (1, 100);
    let present = |tables: &Tables| {
        let run = programs.run(tables, &["present"]);
        (run.words("PRESENT")[0].parse::<usize>().unwrap(), run)
    };
    let (touched, run) = present(&tables);
    assert!((100..103).contains(&touched), "{touched}");
    assert_eq!(run.rule(0)["untouched"], 2048 - 100);
    assert_eq!(run.rule(0)["objects"], 1);
    assert_eq!(run.rule(1)["untouched"], 16, "constants are not stored to");
    assert!(run.rule(1).get("objects").is_none(), "{}", run.rule(1));
    (tables.touch_pages_max, tables.touch_group) = (1 << 16, 8);
    let (touched, _) = present(&tables);
    assert!(touched < 3, "one allocation is no group of 8");
}

#[test]
fn memory_that_the_program_never_uses_is_not_touched_again_and_again() {
    let programs = Programs::build();
    let mut tables = plan(&programs, [site(0, on_node_0(0))]);
    (tables.mechanism, tables.touch_pages_max) = (1, 1 << 16);
    let faults = |used: &str| {
        let arguments = ["come_and_go", used];
        let environment = [("MALLOC_MMAP_THRESHOLD_", "65536")];
        let run = programs.run_with(&tables, &arguments, &[], &environment);
        let faults: u64 = run.words("FAULTS")[0].parse().unwrap();
        (faults, run.rule(0)["untouched"].as_u64().unwrap_or(0))
    };
    // All pages of the first, three quarters of the second.
    let (few, untouched) = faults("1");
    assert!((98 + 257..98 + 600).contains(&few), "{few} faults");
    assert_eq!(untouched, 64 + 98 * 256);
    // One page in four of the objects that are looked at.
    let (many, untouched) = faults("256");
    assert!(many >= 100 * 256, "{many} faults");
    assert_eq!(untouched, 4 * 64);
}
