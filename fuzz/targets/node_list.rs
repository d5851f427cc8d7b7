#![no_main]
//! Lists of nodes and CPUs in numactl's and the kernel's notation.

use libfuzzer_sys::fuzz_target;
use nearpage_machine::{CpuList, NodeId, NodeList};

fuzz_target!(|text: &str| {
    let known = [0, 1, 2, 5].map(NodeId);
    for known in [&known[..], &[]] {
        if let Ok(list) = NodeList::parse_among(text, known) {
            assert!(!list.as_slice().is_empty());
            let printed = list.to_string();
            assert_eq!(NodeList::parse_among(&printed, known), Ok(list));
        }
    }
    if let Ok(list) = text.parse::<CpuList>() {
        assert_eq!(list.to_string().parse::<CpuList>(), Ok(list));
    }
});
