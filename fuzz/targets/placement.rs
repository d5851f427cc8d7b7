#![no_main]
//! Placements, runs of pages and sizes.

use libfuzzer_sys::fuzz_target;
use nearpage_machine::NodeId;
use nearpage_plan::{PageRun, Placement, parse_size, print_size};

fuzz_target!(|text: &str| {
    let known = [0, 1, 2, 5].map(NodeId);
    for known in [&known[..], &[]] {
        if let Ok(placement) = Placement::parse_among(text, known) {
            let printed = placement.to_string();
            assert_eq!(Placement::parse_among(&printed, known), Ok(placement));
        }
    }
    if let Ok(run) = PageRun::parse(text) {
        assert_eq!(PageRun::parse(&run.to_string()), Ok(run));
    }
    if let Ok(size) = parse_size(text) {
        assert_eq!(parse_size(&print_size(size)), Ok(size));
    }
});
