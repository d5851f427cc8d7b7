//! Decisions about unmatched memory.

use nearpage_machine::{Device, DeviceKind, Machine, NodeId};
use nearpage_plan::ModuleName;
use nearpage_wire::compact_plan::subject;

use super::*;

const ANY: ModuleName<'static> = ModuleName {
    build_id: "",
    file_name: "sh",
};

fn name(image: &ProgramImage) -> ModuleName<'_> {
    ModuleName {
        build_id: &image.program.build_id,
        file_name: &image.program.file_name,
    }
}

fn numbers(nodes: Option<Vec<NodeId>>) -> Option<Vec<u16>> {
    Some(nodes?.into_iter().map(|node| node.0).collect())
}

#[test]
fn a_plan_says_it_of_its_program_alone() {
    let compiled = Compiled::new();
    let image = compiled.image("rest", &["-pie", "-fPIE"]);
    let (machine, programs) = (machine(), [image]);
    let nodes = |placement: &str, rank| {
        let plan = plan_for(&programs[0], vec![(Subject::Unmatched, placement)]);
        let target = target(&machine, 4);
        let compact = translate(&[plan], &[], &target, &programs).expect(placement);
        assert_eq!(compact.warnings, Vec::<String>::new());
        assert_eq!(compact.unmatched_nodes(ANY, None), None);
        assert_eq!(Reference::decode(&compact).subjects(), [subject::UNMATCHED]);
        numbers(compact.unmatched_nodes(name(&programs[0]), rank))
    };
    assert_eq!(nodes("interleave", None), Some(vec![0, 1, 2, 3]));
    assert_eq!(nodes("interleave:3,0", Some(7)), Some(vec![0, 3]));
    assert_eq!(nodes("node:1", None), Some(vec![1]));
    assert_eq!(nodes("first-touch", None), None);
}

#[test]
fn a_rule_by_hand_says_it_of_every_process_and_comes_first() {
    let compiled = Compiled::new();
    let image = compiled.image("hand", &["-pie", "-fPIE"]);
    let machine = machine();
    let of_rank = |rank, placement| {
        let mut plan = plan_for(&image, vec![(Subject::Unmatched, placement)]);
        plan.program.rank = rank;
        plan
    };
    let plans = [of_rank(None, "node:2"), of_rank(Some(1), "first-touch")];
    let programs = std::slice::from_ref(&image);
    let rest = |rules: &[&str]| {
        let rules: Vec<_> = rules
            .iter()
            .map(|rule| PlaceRule::parse(rule, &[]).expect(rule))
            .collect();
        translate(&plans, &rules, &target(&machine, 4), programs).map(|compact| {
            [
                compact.unmatched_nodes(ANY, None),
                compact.unmatched_nodes(name(&image), None),
                compact.unmatched_nodes(name(&image), Some(1)),
            ]
            .map(numbers)
        })
    };
    let one = |node: u16| Some(vec![node]);
    assert_eq!(rest(&[]).expect("plans"), [None, one(2), None]);
    assert_eq!(
        rest(&["heap>=1M=node:0"]).expect("another"),
        [None, one(2), None]
    );
    assert_eq!(
        rest(&["rest=node:3"]).expect("rest"),
        [one(3), one(3), one(3)]
    );
    assert_eq!(
        rest(&["rest=first-touch"]).expect("left"),
        [None, None, None]
    );
    let twice = rest(&["rest=node:3", "rest=interleave"]).expect_err("twice");
    assert!(twice.is_usage());
    assert_eq!(
        twice.to_string(),
        "--place 'unmatched=interleave': what is to become of unmatched memory is said twice, first by --place 'unmatched=node:3'"
    );
}

#[test]
fn nodes_that_are_not_there_or_have_no_memory_are_refused() {
    let compiled = Compiled::new();
    let image = compiled.image("nodes", &["-pie", "-fPIE"]);
    let mut machine = machine();
    machine.nodes[3].memory_bytes = Some(0);
    let translated = |placement: &str| {
        let plan = plan_for(&image, vec![(Subject::Unmatched, placement)]);
        let programs = std::slice::from_ref(&image);
        translate(&[plan], &[], &target(&machine, 4), programs)
    };
    let all = translated("interleave").expect("those with memory");
    assert_eq!(
        numbers(all.unmatched_nodes(name(&image), None)),
        Some(vec![0, 1, 2])
    );
    for (placement, expected) in [
        ("node:7", "it: there is no node 7 on "),
        ("interleave:0,7", "it: there is no node 7 on "),
        ("node:3", "it: node 3 of "),
        ("interleave:0,3", "it: node 3 of "),
    ] {
        let message = translated(placement).expect_err(placement).to_string();
        assert!(message.starts_with(expected), "{message}");
        assert!(message.contains("there is 0-3") || message.contains("are 0-2"));
    }
}

#[test]
fn near_a_device_is_on_its_node() {
    let compiled = Compiled::new();
    let image = compiled.image("near", &["-pie", "-fPIE"]);
    let mut machine = machine();
    machine.nodes[3].memory_bytes = Some(0);
    let device = |kind, number, node| Device {
        kind,
        number,
        pci: format!("0000:0{number}:00.0"),
        node,
    };
    let none = |machine: &Machine| {
        let plan = plan_for(&image, vec![(Subject::Unmatched, "near:gpu0")]);
        let programs = std::slice::from_ref(&image);
        translate(&[plan], &[], &target(machine, 4), programs)
            .expect_err("no device")
            .to_string()
    };
    assert_eq!(
        none(&machine),
        format!(
            "it: there is no gpu0 on {}; no device is known there",
            machine.name
        )
    );
    machine.devices = vec![
        device(DeviceKind::Gpu, 0, Some(NodeId(2))),
        device(DeviceKind::Gpu, 1, None),
        device(DeviceKind::Nic, 0, Some(NodeId(3))),
    ];
    let translated = |placement: &str| {
        let plan = plan_for(&image, vec![(Subject::Unmatched, placement)]);
        let programs = std::slice::from_ref(&image);
        translate(&[plan], &[], &target(&machine, 4), programs)
    };
    let near = translated("near:gpu0").expect("it is there");
    let there = translated("node:2").expect("it is there");
    assert_eq!(
        near.unmatched_nodes(name(&image), None),
        there.unmatched_nodes(name(&image), None)
    );
    for (placement, words) in [
        ("near:gpu1", "does not say which node gpu1 is next to"),
        ("near:gpu2", "there is no gpu2 on "),
        ("near:nvme0", "there is gpu0, gpu1, nic0"),
        ("near:nic0", "node 3 of "),
    ] {
        let message = translated(placement).expect_err(placement).to_string();
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn unmatched_memory_waits_for_the_second_thread_as_objects_do() {
    let compiled = Compiled::new();
    let image = compiled.image("later", &["-pie", "-fPIE"]);
    let machine = machine();
    let translated = |later, start, placement| {
        let mut plan = plan_for(&image, vec![(Subject::Unmatched, placement)]);
        plan.decisions[0].start = start;
        let target = Target {
            later,
            ..target(&machine, 4)
        };
        let programs = std::slice::from_ref(&image);
        let compact = translate(&[plan], &[], &target, programs).expect("translation");
        let waits = Reference::decode(&compact).flags() == [RULE_LATER];
        (waits, compact.warnings.join(" "))
    };
    let (waits, said) = translated(LatePlacement::Once, Start::SecondThread, "interleave");
    assert!(waits && said.is_empty(), "{said}");
    let (waits, said) = translated(LatePlacement::Once, Start::Parallel, "node:1");
    assert!(waits && said.contains("move back"), "{said}");
    let (waits, said) = translated(LatePlacement::Never, Start::SecondThread, "interleave");
    assert!(!waits && said.contains("from its allocation on"), "{said}");
    let (waits, said) = translated(LatePlacement::Once, Start::SecondThread, "first-touch");
    assert!(!waits && said.contains("stays where"), "{said}");
}
