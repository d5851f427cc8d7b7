#![no_main]
//! Rules of `--place`; a rule that was read must be the same after it is printed and read again.

use libfuzzer_sys::fuzz_target;
use nearpage_machine::NodeId;
use nearpage_plan::PlaceRule;

fuzz_target!(|text: &str| {
    let known = [0, 1, 2, 5].map(NodeId);
    for known in [&known[..], &[]] {
        if let Ok(rule) = PlaceRule::parse(text, known) {
            let printed = rule.to_string();
            let again = PlaceRule::parse(&printed, known).expect(&printed);
            assert_eq!(again, rule, "{printed}");
        }
    }
});
