//! Changes when a function is first executed.

use nearpage_plan::Phase;
use nearpage_wire::compact_plan::{NONE, PHASES_MAX};

use super::*;
use crate::reference::PinAt;

/// A phase of the program that begins with `grow`, at its address in this build.
fn phase(image: &ProgramImage, decisions: Vec<(Subject, &str)>) -> Phase {
    let program = &image.program;
    let symbol = program.functions("grow")[0];
    Phase {
        threads: Vec::new(),
        function: "grow".to_owned(),
        module: program.file_name.clone(),
        build_id: program.build_id.clone(),
        offset: symbol.offset,
        size_bytes: symbol.size_bytes,
        decisions: plan_for(image, decisions).decisions,
    }
}

fn any_heap() -> Subject {
    Subject::Heap {
        size_min_bytes: PAGE,
        size_max_bytes: u64::MAX,
    }
}

fn at_phases(
    plan: &Plan,
    rules: &[&str],
    later: LatePlacement,
    programs: &[ProgramImage],
) -> Result<(Reference, Compact), Error> {
    let machine = machine();
    let rules: Vec<PlaceRule> = rules
        .iter()
        .map(|rule| PlaceRule::parse(rule, &machine.node_ids()).expect(rule))
        .collect();
    let target = Target {
        later,
        ..target(&machine, 4)
    };
    let compact = translate(std::slice::from_ref(plan), &rules, &target, programs)?;
    Ok((Reference::decode(&compact), compact))
}

#[test]
fn a_phase_has_rules_of_its_own() {
    let compiled = Compiled::new();
    let programs = [compiled.image("phases", &["-pie", "-fPIE"])];
    let image = &programs[0];
    let mut plan = plan_for(image, vec![(any_heap(), "node:3")]);
    plan.phases = vec![phase(image, vec![(any_heap(), "block")])];
    let (reference, compact) = at_phases(&plan, &[], LatePlacement::Once, &programs).unwrap();
    assert_eq!(compact.warnings, Vec::<String>::new());
    assert_eq!(compact.rule_names, ["it", "it from grow on"]);
    assert_eq!(compact.decisions, [Some(0), None]);
    assert_eq!(compact.phases, [None, Some("grow".to_owned())]);
    let seen = heap(image, 0x1000);
    let (rank, size) = (None, 8 * PAGE);
    let before = reference.evaluate(identity(image), rank, &seen, size);
    assert_eq!(nodes(&before.unwrap()), [3; 8]);
    let phases = reference.phases(identity(image), rank);
    assert_eq!(phases.len(), 1);
    assert!(reference.names_module(phases[0].module, identity(image)));
    assert_eq!(phases[0].offset, image.program.functions("grow")[0].offset);
    let then = reference.evaluate_phase(&phases[0], &seen, size).unwrap();
    assert_eq!(
        (then.number, nodes(&then)),
        (1, vec![0, 0, 1, 1, 2, 2, 3, 3])
    );

    // A rule written by hand holds in every phase; unmatched memory has no objects.
    let rules = ["heap>=1M=node:2", "rest=node:1"];
    let (reference, compact) = at_phases(&plan, &rules, LatePlacement::Once, &programs).unwrap();
    assert_eq!(compact.warnings, Vec::<String>::new());
    let phases = reference.phases(identity(image), rank);
    assert_eq!(phases[0].rules.len(), 2);
    let large = reference
        .evaluate_phase(&phases[0], &seen, 1 << 20)
        .unwrap();
    assert_eq!((large.number, large.pages[0]), (NONE, None));
    let small = reference.evaluate_phase(&phases[0], &seen, size).unwrap();
    assert_eq!(small.number, 3);
    assert_eq!(reference.phases(("", "sh"), rank), []);
}

#[test]
fn parts_of_phases_that_are_not_carried_out_are_reported() {
    let compiled = Compiled::new();
    let programs = [compiled.image("said", &["-pie", "-fPIE"])];
    let image = &programs[0];
    let mut plan = plan_for(image, vec![(any_heap(), "node:3")]);
    let (_, alone) = at_phases(&plan, &[], LatePlacement::Once, &programs).unwrap();
    plan.phases = vec![phase(image, vec![(any_heap(), "block")])];
    let said = |plan: &Plan, later| {
        let (reference, compact) = at_phases(plan, &[], later, &programs).unwrap();
        let phases = reference.phases(identity(image), None);
        (phases, compact.warnings.join("\n"), compact.bytes)
    };
    let (_, warnings, bytes) = said(&plan, LatePlacement::Never);
    assert!(warnings.contains("by touching"), "{warnings}");
    assert_eq!(bytes, alone.bytes);
    // Simulated machines take phases from the plan itself.
    let (_, warnings, bytes) = said(&plan, LatePlacement::AsPlanned);
    assert_eq!((warnings.as_str(), bytes), ("", alone.bytes.clone()));

    plan.phases[0].decisions[0].placement = Placement::FirstTouch;
    let (phases, warnings, _) = said(&plan, LatePlacement::Once);
    assert_eq!(phases.len(), 1);
    assert_eq!(
        warnings,
        "`it` stays where placed before when `grow` is first executed: the plan has its pages move near who uses \
         them next, for which there is no system call"
    );
    plan.phases = vec![phase(image, vec![(any_heap(), "block")]); PHASES_MAX + 1];
    plan.phases[PHASES_MAX].function = "tell".to_owned();
    let (phases, warnings, _) = said(&plan, LatePlacement::Once);
    assert_eq!(phases.len(), PHASES_MAX);
    assert!(
        warnings.contains("when `tell` is first executed") && warnings.contains("only 4 phases"),
        "{warnings}"
    );
    plan.phases.truncate(1);
    let error = |subject| {
        let mut plan = plan.clone();
        plan.phases[0] = phase(image, vec![(subject, "block")]);
        at_phases(&plan, &[], LatePlacement::Once, &programs)
            .expect_err("nothing")
            .to_string()
    };
    let message = error(Subject::Symbol {
        symbol: "cvra".to_owned(),
        module: String::new(),
        build_id: String::new(),
        offset: 0,
        size_bytes: 0,
    });
    assert!(message.contains("did you mean `cvar`"), "{message}");
}

#[test]
fn threads_that_change_places_take_later_pages_along() {
    let compiled = Compiled::new();
    let programs = [compiled.image("places", &["-pie", "-fPIE"])];
    let image = &programs[0];
    let mut plan = plan_for(image, vec![(any_heap(), "node:3")]);
    assert!(!plan.names_threads());
    // The other team stays. In a phase that moves no thread, pages follow the threads that moved before.
    let server = Team {
        name: "server".to_owned(),
        threads: 4,
        offset: 0x99,
        ..plan.teams[0].clone()
    };
    plan.teams.push(server);
    plan.phases = vec![
        phase(image, vec![]),
        phase(image, vec![(any_heap(), "block")]),
    ];
    plan.phases[0].threads = vec![1, 2, 3, 0];
    plan.phases[1].function = "tell".to_owned();
    assert!(plan.names_threads());
    let machine = machine();
    let translated = |plan: &Plan, threads, pinning, later| {
        let target = Target {
            pinning,
            later,
            ..target(&machine, threads)
        };
        let compact = translate(std::slice::from_ref(plan), &[], &target, &programs).unwrap();
        let phases = Reference::decode(&compact).phases(identity(image), None);
        (phases, compact)
    };
    let (phases, compact) = translated(&plan, 4, Pinning::Teams, LatePlacement::Once);
    assert_eq!(compact.warnings, Vec::<String>::new());
    assert_eq!(compact.exchanges, [Some("grow".to_owned()), None]);
    let reference = Reference::decode(&compact);
    let same_but_cpus = |(module, offset, index, _): &PinAt| (*module, *offset, *index);
    let pins = reference.pins(identity(image), None);
    let of_phase = &phases[0].pins;
    assert!(
        pins.iter()
            .map(same_but_cpus)
            .eq(of_phase.iter().map(same_but_cpus))
    );
    let cpus = |pins: &[PinAt]| pins.iter().map(|pin| pin.3).collect::<Vec<_>>();
    assert_eq!(cpus(&pins), [0, 1, 2, 3, 0, 1, 2, 3]);
    assert_eq!(cpus(of_phase), [1, 2, 3, 0, 0, 1, 2, 3]);
    assert_eq!((phases[0].rules.len(), phases[1].pins.len()), (0, 0));
    let then = reference.evaluate_phase(&phases[1], &heap(image, 0x1000), 4 * PAGE);
    assert_eq!(nodes(&then.unwrap()), [1, 2, 3, 0]);
    // Threads move even if pages cannot.
    let (phases, compact) = translated(&plan, 4, Pinning::Teams, LatePlacement::Never);
    assert_eq!((phases.len(), phases[0].pins.len()), (1, 8));
    assert!(compact.warnings.concat().contains("by touching"));

    // If the threads stay, pages stay, too.
    for (threads, pinning, stayed, why) in [
        (4, Pinning::None, vec![0, 1, 2, 3], "they are not pinned"),
        (
            8,
            Pinning::Teams,
            vec![0, 0, 1, 1, 2, 2, 3, 3],
            "it is for 4, and there are others",
        ),
    ] {
        let (phases, compact) = translated(&plan, threads, pinning, LatePlacement::Once);
        assert_eq!((phases.len(), phases[0].pins.len()), (1, 0), "{why}");
        assert_eq!(compact.exchanges, [None]);
        let said = format!(
            "threads do not change places when `grow` is first executed, as the plan has them: {why}"
        );
        assert_eq!(compact.warnings, [said]);
        let reference = Reference::decode(&compact);
        let size = threads as u64 * PAGE;
        let then = reference.evaluate_phase(&phases[0], &heap(image, 0x1000), size);
        assert_eq!(nodes(&then.unwrap()), stayed);
    }

    // Written by hand, without the runtime's start routine: threads are pinned in order of creation.
    plan.teams.truncate(1);
    plan.teams[0].module.clear();
    plan.teams[0].build_id.clear();
    let (phases, compact) = translated(&plan, 4, Pinning::Teams, LatePlacement::Once);
    let pin = |(index, cpu)| (NONE, 0, index, cpu);
    let pins: Vec<PinAt> = (0..).zip([1, 2, 3, 0]).map(pin).collect();
    assert_eq!(phases[0].pins, pins);
    assert_eq!(
        compact.warnings,
        [
            "the start routine of team `openmp` is not found (the plan does not name it): threads are pinned in order of \
             creation"
        ]
    );
}

#[test]
fn the_function_is_found_again_in_another_build() {
    let compiled = Compiled::new();
    let old = compiled.image("prog", &["-pie", "-fPIE"]);
    let mut plan = plan_for(&old, vec![]);
    plan.phases = vec![phase(&old, vec![(any_heap(), "block")])];
    let offset = |plan: &Plan, flags: &[&str]| {
        let programs = [compiled.image("prog", flags)];
        let (reference, compact) = at_phases(plan, &[], LatePlacement::Once, &programs).unwrap();
        let phases = reference.phases(identity(&programs[0]), None);
        let function = programs[0].program.functions("grow");
        let now = function.first().map(|symbol| symbol.offset);
        let found = phases.first().map(|phase| phase.offset);
        (found, now, compact.warnings.join("\n"))
    };
    let (found, now, said) = offset(&plan, &["-pie", "-fPIE", "-DREBUILT"]);
    assert!(found.is_some() && found == now, "{said}");
    assert!(!said.contains("grow"), "{said}");
    assert_ne!(found, Some(plan.phases[0].offset), "it is elsewhere now");
    let renamed = ["-pie", "-fPIE", "-DRENAMED"];
    let (found, _, said) = offset(&plan, &renamed);
    assert_eq!(found, None);
    assert!(said.contains("there is no such function in prog"), "{said}");
    // Written by hand: the function is looked up by name, in the program if no module is given.
    let phase = &mut plan.phases[0];
    (phase.build_id, phase.module) = (String::new(), String::new());
    (phase.offset, phase.size_bytes) = (0, 0);
    let (found, now, _) = offset(&plan, &["-pie", "-fPIE"]);
    assert!(found.is_some() && found == now);
}
