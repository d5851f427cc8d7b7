//! Decisions about the heap that `brk` extends.

use nearpage_machine::NodeId;
use nearpage_plan::{Allocation, ModuleName, Origin};

use super::*;

const HEAP: u64 = 0x5555_0000_0000;

#[test]
fn its_pages_go_by_their_distance_from_its_start_and_it_is_no_object() {
    let compiled = Compiled::new();
    let image = compiled.image("heap", &["-pie", "-fPIE"]);
    let subject = Subject::BrkHeap {
        size_bytes: 8 * PAGE,
    };
    let plan = plan_for(&image, vec![(subject, "block")]);
    let machine = machine();
    let programs = [image];
    let compact = translate(&[plan], &[], &target(&machine, 4), &programs).expect("translation");
    assert_eq!(compact.warnings, Vec::<String>::new());
    let name = ModuleName {
        build_id: &programs[0].program.build_id,
        file_name: &programs[0].program.file_name,
    };
    let mut rules = compact.process(name, None, PAGE);
    // Whatever the heap's length in this run, each thread's share is as long as in the observed run.
    for size_bytes in [3 * PAGE, 8 * PAGE, 100 * PAGE] {
        let placed = rules
            .place(&Origin::BrkHeap, HEAP, size_bytes)
            .expect("placed");
        let pages: Vec<_> = placed
            .pages
            .iter()
            .map(|pages| {
                let node = pages.node(pages.start, PAGE);
                ((pages.start - HEAP) / PAGE, (pages.end - HEAP) / PAGE, node)
            })
            .collect();
        let share = |thread: u16| {
            let first = 2 * u64::from(thread);
            let end = (first + 2).min(size_bytes / PAGE);
            (first < end).then_some((first, end, Some(NodeId(thread))))
        };
        assert_eq!(pages, (0..4).filter_map(share).collect::<Vec<_>>());
    }
    // Placements without a size go on beyond the observed size.
    let plan = |placement| {
        let subject = Subject::BrkHeap {
            size_bytes: 8 * PAGE,
        };
        plan_for(&programs[0], vec![(subject, placement)])
    };
    for (placement, node_of) in [
        ("interleave", (|page| page % 4) as fn(u64) -> u64),
        ("block-cyclic:8K", |page| page / 2 % 4),
        ("node:2", |_| 2),
    ] {
        let compact = translate(&[plan(placement)], &[], &target(&machine, 4), &programs);
        let compact = compact.expect(placement);
        let mut rules = compact.process(name, None, PAGE);
        let placed = rules
            .place(&Origin::BrkHeap, HEAP, 100 * PAGE)
            .expect("placed");
        let (first, last) = (&placed.pages[0], &placed.pages[placed.pages.len() - 1]);
        assert_eq!((first.start, last.end), (HEAP, HEAP + 100 * PAGE));
        for page in 0..100 {
            let address = HEAP + page * PAGE;
            let mut pages = placed.pages.iter();
            let pages = pages.find(|pages| (pages.start..pages.end).contains(&address));
            let node = pages.expect("whole").node(address, PAGE).expect("a node");
            assert_eq!(u64::from(node.0), node_of(page), "{placement} {page}");
        }
        // A recording may name any size; the preload library, too, coarsens pieces that exceed the allowed mappings.
        let mut rules = compact.process(name, None, PAGE);
        let placed = rules
            .place(&Origin::BrkHeap, HEAP, 1 << 62)
            .expect("placed");
        assert!(placed.pages.len() <= 1 << 15, "{}", placed.pages.len());
    }
    let allocation = Allocation {
        frames: &[],
        thread: 0,
    };
    let object = Origin::Heap(allocation);
    assert_eq!(rules.place(&object, HEAP, 8 * PAGE), None);
}
