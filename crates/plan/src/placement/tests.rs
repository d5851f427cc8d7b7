use proptest::prelude::*;

use super::*;
use crate::shape;

fn parse(text: &str) -> Result<Placement, String> {
    Placement::among(text, &[])
}

#[test]
fn placements_are_read_back_as_written() {
    for text in [
        "block",
        "block@worker",
        "block@a team: with \"quotes\" @ = 1",
        "block-cyclic:20M",
        "block-cyclic:4097",
        "block-cyclic:64K@worker",
        "block:0-48M/64M",
        "block:4097-8K,1M-2M/2M@worker",
        "block:0-64M/64M/2:3:1",
        "block:0-64M/64M/2:3:1:...@main+worker",
        "tiles:2x4/384K",
        "tiles:3x1/5000@main+worker",
        "interleave",
        "interleave:0,2-3",
        "interleave:0=3,1=1",
        "node:1",
        "near:gpu0",
        "near:nvme12",
        "thread:2",
        "thread:2@worker",
        "runs",
        "first-touch",
    ] {
        assert_eq!(
            parse(text).map(|placement| placement.to_string()),
            Ok(text.to_owned())
        );
    }
    assert_eq!(parse("interleave:all"), parse("interleave"));
    assert_eq!(parse("interleave:2-3,2"), parse("interleave:2,3"));
    assert_eq!(parse("interleave:0-1=2,3"), parse("interleave:0=2,1=2,3=1"));
    assert_eq!(parse("block-cyclic:2.5MiB"), parse("block-cyclic:2560K"));
}

#[test]
fn as_many_nodes_as_numbers_allow_have_weights() {
    let Ok(Placement::Interleave { nodes }) = parse("interleave:0=5,1-65535") else {
        panic!("every node has one weight")
    };
    assert_eq!((nodes.len(), nodes[0].1, nodes[65535].1), (65536, 5, 1));
}

#[test]
fn numactl_lists_are_relative_to_the_machine() {
    let known = [0, 1, 4].map(NodeId);
    let among = |text| Placement::among(text, &known).map(|p| p.to_string());
    assert_eq!(among("interleave:!0"), Ok("interleave:1,4".to_owned()));
    assert_eq!(among("interleave:+1-2"), Ok("interleave:1,4".to_owned()));
    assert_eq!(among("node:4"), Ok("node:4".to_owned()));
    assert_eq!(
        among("node:2"),
        Err("`2`: there is no node 2 here; there is 0-1,4".to_owned())
    );
}

#[test]
fn unmatched_memory_is_refused_with_an_example() {
    for (text, part) in [
        ("", "expected `block`"),
        ("blocks", "expected `block`"),
        ("block:4", "0-12M,16M-48M/64M"),
        ("block:0-0/4K", "0-12M,16M-48M/64M"),
        ("block:0-8K/8K/2:0", "expected proportions"),
        ("block:0-8K,4K-12K/16K", "ascending"),
        ("block:8K-12K/4K", "ascending"),
        ("block:0-4K/0", "ascending"),
        ("tiles", "2x4/384K"),
        ("tiles:2x4", "2x4/384K"),
        ("tiles:0x4/64K", "2x4/384K"),
        ("tiles:2x99999/64K", "2x4/384K"),
        ("tiles:2x2/0", "2x4/384K"),
        ("block@", "name of a team"),
        ("block-cyclic", "block-cyclic:20M"),
        ("block-cyclic:0", "at least one byte"),
        ("block-cyclic:x", "not a size"),
        ("interleave:", "names no node"),
        ("interleave:x", "0,2-3"),
        ("interleave:0=0", "from 1 to 255"),
        ("interleave:0=1,0=2", "two weights"),
        ("interleave@worker", "not dealt to threads"),
        ("interleave:99999", "beyond 65535"),
        ("node", "node:1"),
        ("node:0-1", "interleave:0-1"),
        ("near", "near:gpu0"),
        ("near:gpu", "near:gpu0"),
        ("near:disk0", "near:gpu0"),
        ("thread:-1", "thread:2"),
        ("thread:99999999999", "thread:2"),
    ] {
        let message = parse(text).expect_err(text);
        assert!(message.contains(part), "{text}: {message}");
    }
    for text in [
        "",
        "0+128",
        "0 thread:0",
        "0+0 thread:0",
        "1+1 block",
        "x+1 node:0",
    ] {
        assert!(PageRun::parse(text).is_err(), "{text}");
    }
    assert!(PageRun::parse("18446744073709551615+1 node:0").is_err());
}

/// Names with all characters that could break a line, a string or a separator.
pub(crate) fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z_]{1,12}",
        "[\\PC\n\r\t\u{0}\u{7f}\"'\\\\=@:#\\[\\]]{1,20}"
    ]
}

pub(crate) fn owner() -> impl Strategy<Value = Owner> {
    prop_oneof![
        any::<u16>().prop_map(|node| Owner::Node(NodeId(node))),
        any::<u32>().prop_map(|number| Owner::Near(DeviceKind::Nic, number)),
        (any::<u32>(), prop_oneof![Just(String::new()), name()])
            .prop_map(|(index, team)| Owner::Thread { team, index }),
    ]
}

pub(crate) fn placement() -> impl Strategy<Value = Placement> {
    let team = || prop_oneof![Just(String::new()), name()];
    prop_oneof![
        team().prop_map(|team| Placement::Block { team }),
        team().prop_map(|team| Placement::RoundRobin { team }),
        (1u32.., team()).prop_map(|(objects, team)| Placement::ObjectBlocks { objects, team }),
        (shape::tests::parts(), team()).prop_map(|(parts, team)| Placement::Parts { parts, team }),
        (shape::tests::tiles(), team()).prop_map(|(tiles, team)| Placement::Tiles { tiles, team }),
        (1u64.., team())
            .prop_map(|(block_bytes, team)| Placement::BlockCyclic { block_bytes, team }),
        prop::collection::btree_map(any::<u16>().prop_map(NodeId), 1..=WEIGHT_MAX, 0..6).prop_map(
            |nodes| Placement::Interleave {
                nodes: nodes.into_iter().collect()
            }
        ),
        owner().prop_map(Placement::Whole),
        prop::collection::vec((0u64..1 << 40, 1u64..1 << 40, owner()), 1..6).prop_map(|runs| {
            let run = |(first_page, pages, owner)| PageRun {
                first_page,
                pages,
                owner,
            };
            Placement::Runs(runs.into_iter().map(run).collect())
        }),
        Just(Placement::Replicate),
        Just(Placement::FirstTouch),
    ]
}

proptest! {
    #[test]
    fn survives_printing(placement in placement()) {
        match &placement {
            Placement::Runs(runs) => for run in runs {
                prop_assert_eq!(PageRun::parse(&run.to_string()), Ok(run.clone()));
            },
            _ => prop_assert_eq!(parse(&placement.to_string()), Ok(placement)),
        }
    }

    #[test]
    fn never_panics(text in "(block|block-cyclic|tiles|interleave|node|thread|\\PC{0,8}):?[0-9,=!+@./xKM-]{0,30}") {
        let _ = parse(&text);
        let _ = Placement::parse_among(&text, &[NodeId(0), NodeId(1)]);
        let _ = PageRun::parse(&text);
    }
}
