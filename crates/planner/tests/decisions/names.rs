//! Names of objects, each unique in the recording.

use super::*;

#[test]
fn names_are_told_apart_by_their_callers() {
    let mut recording = Recording::new(8);
    recording.object("main", 32, block(), &block_cells());
    recording.object("build", 32, block(), &block_cells());
    let plan = recording.decide(Policy::Object, &opteron());
    let names: Vec<_> = plan
        .decisions
        .iter()
        .map(|decision| decision.name.as_str())
        .collect();
    assert_eq!(names, ["main cg.c:80 (inlined)", "build cg.c:81 (inlined)"]);
}

#[test]
fn undecided_objects_are_told_apart_by_their_callers_and_come_by_cost() {
    let mut recording = Recording::new(8);
    recording.object("main", 32, Pattern::Mixed, &[(0, 0, 1.0)]);
    recording.object("build", 32, Pattern::Mixed, &[(0, 0, 9.0)]);
    let mut plan = recording.decide(Policy::Object, &opteron());
    plan.decisions.clear();
    let prediction = recording.predict(&plan, &opteron());
    let names = prediction.objects.iter().map(|object| object.name.as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["build cg.c:81 (inlined)", "main cg.c:80 (inlined)"]
    );
}

#[test]
fn call_sites_in_one_function_without_lines_are_numbered_in_the_order_of_the_code() {
    let mut recording = Recording::new(8);
    recording.object("main", 32, block(), &block_cells());
    recording.object("main", 32, block(), &block_cells());
    for (site, offset) in recording.tables.call_sites.iter_mut().zip([0x10, 0x20]) {
        let own = site
            .frames
            .iter_mut()
            .filter(|frame| frame.module == Some(ModuleId(0)));
        for frame in own {
            frame.line = 0;
            if frame.function == "allocate" {
                frame.offset = offset;
            }
        }
    }
    let plan = recording.decide(Policy::Object, &opteron());
    let names = plan.decisions.iter().map(|decision| decision.name.as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            "main cg.c (allocate, 1st of 2)",
            "main cg.c (allocate, 2nd of 2)"
        ]
    );
}

#[test]
fn call_sites_that_differ_in_the_middle_are_told_apart() {
    let mut recording = Recording::new(8);
    recording.object("main", 32, block(), &block_cells());
    recording.object("main", 32, block(), &block_cells());
    for (site, offset) in recording.tables.call_sites.iter_mut().zip([0x30, 0x40]) {
        let named = |function: &str| {
            let found = site.frames.iter().find(|frame| frame.function == function);
            found.expect("it calls").clone()
        };
        let (inner, main) = (named("allocate"), named("main"));
        let middle = Frame {
            function: "grow".to_owned(),
            line: 0,
            offset,
            ..main.clone()
        };
        let main = Frame {
            line: 80,
            offset: 0x60,
            ..main
        };
        site.frames = vec![inner, middle, main];
    }
    let names = |recording: &Recording| {
        let plan = recording.decide(Policy::Object, &opteron());
        let names = plan.decisions.iter().map(|decision| decision.name.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(
        names(&recording),
        [
            "main cg.c:80 (grow, 1st of 2)",
            "main cg.c:80 (grow, 2nd of 2)"
        ]
    );
    // A third call site, at another place of the innermost function.
    recording.object("main", 32, block(), &block_cells());
    let (third, first) = (2, recording.tables.call_sites[0].frames.clone());
    let frames = &mut recording.tables.call_sites[third].frames;
    *frames = first;
    frames[0].offset = 0x50;
    // Any two of the call sites differ in the innermost frame, or in frames above it.
    assert_eq!(
        names(&recording),
        [
            "main cg.c:80 (allocate, 1st of 3)",
            "main cg.c:80 (allocate, 2nd of 3)",
            "main cg.c:80 (allocate, 3rd of 3)"
        ]
    );
}

#[test]
fn call_sites_on_one_line_of_main_are_named_after_main() {
    let mut recording = Recording::new(8);
    recording.object("main", 32, block(), &block_cells());
    recording.object("main", 32, block(), &block_cells());
    for (site, offset) in recording.tables.call_sites.iter_mut().zip([0x10, 0x20]) {
        let is_main = |frame: &&Frame| frame.function == "main";
        let main = site.frames.iter().find(is_main).expect("it calls").clone();
        let start = Frame {
            function: "_start".to_owned(),
            line: 0,
            offset: 0x70,
            ..main.clone()
        };
        let frame = Frame {
            line: 80,
            offset,
            ..main
        };
        site.frames = vec![frame, start];
    }
    let plan = recording.decide(Policy::Object, &opteron());
    let names = plan.decisions.iter().map(|decision| decision.name.as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            "main cg.c:80 (malloc, 1st of 2)",
            "main cg.c:80 (malloc, 2nd of 2)"
        ]
    );
}

#[test]
fn what_no_plan_can_place_has_a_name_all_the_same() {
    let mut recording = Recording::new(2);
    let cells = [(0, 0, 9.0), (1, 1, 9.0)];
    let section = recording.object("section", 2, Pattern::Mixed, &cells);
    (section.kind, section.name) = (ObjectKind::Static, ObjectName::Other("cg .data".into()));
    let file = recording.object("file", 2, Pattern::Mixed, &cells);
    (file.kind, file.name) = (
        ObjectKind::Mapping,
        ObjectName::Other("/data/my table.bin".into()),
    );
    let stripped = recording.object("stripped", 2, Pattern::Mixed, &cells);
    (stripped.kind, stripped.name) = (ObjectKind::Static, ObjectName::Symbol(ModuleId(0), 0x4a0));
    let plan = recording.decide(Policy::Object, &opteron());
    let prediction = recording.predict(&plan, &opteron());
    let names = prediction.objects.iter().map(|object| object.name.as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["cg .data", "my table.bin", "cg+0x4a0"]
    );
}
