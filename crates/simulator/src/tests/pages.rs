//! The page table.

use nearpage_online::{Action, ActionKind, Initial, Reason};

use super::*;
use crate::figures::Figures;
use crate::options::Options;
use crate::pages::PageTable;

/// A store collapses a reader's copy. If the policy then replicates the page, the reader's next load fetches no copy.
#[test]
fn a_node_that_has_a_copy_again_gets_no_second_one() {
    let machine = machine(2, CLOCK);
    let timing = machine.timing().expect("timing");
    let figures = Figures::new(&machine, &timing, &Options::default());
    let trace = trace(1, Vec::new());
    let mut pages = PageTable::new(
        &trace,
        &figures,
        Initial::FirstTouch,
        (None, None),
        None,
        true,
    );
    pages.find(0, 0, 0, &figures).expect("a page");
    let replicate = Action {
        page: 0,
        kind: ActionKind::Replicate,
        node: 1,
        reason: Reason::rule("asked"),
    };
    assert!(pages.apply(&replicate, 0, &figures));
    pages.collapse_to(0, 0, true, 0);
    assert!(pages.is_stale(0, 1));
    assert!(pages.apply(&replicate, 0, &figures));
    assert!(!pages.is_stale(0, 1));
    pages.check();
    assert_eq!(pages.counts.pages_max, 2);
}
