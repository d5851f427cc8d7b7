#![no_main]
//! A compact plan, read by the preload library's own source, because the library is a cdylib.

#![allow(dead_code, unused_imports, missing_docs)]

use libfuzzer_sys::fuzz_target;

/// Provides the paths that the included source uses.
mod place {
    pub use nearpage_wire::pieces;
}
#[path = "../../crates/preload/src/plan.rs"]
mod plan;

use nearpage_wire::compact_plan::PHASES_MAX;
use nearpage_wire::pieces::{Extent, Pattern, Pieces};
use plan::{Identity, Plan};

fuzz_target!(|data: &[u8]| {
    let words: Vec<u64> = data
        .chunks_exact(8)
        .map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("eight")))
        .collect();
    // SAFETY: the slice covers exactly the words, and any bytes are valid.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 8) };
    let Ok(plan) = Plan::parse(bytes) else { return };
    let executable = Identity {
        build_id: &[1, 2, 3],
        name: b"cg",
    };
    for index in 0..plan.modules.len().min(100) as u32 + 1 {
        plan.module_is(index, executable);
    }
    for rank in [None, Some(0), Some(3)] {
        let Some(section) = plan.section(executable, rank) else {
            continue;
        };
        plan.pins(section);
        let phases = plan.phases(section);
        assert!(phases.len() <= PHASES_MAX);
        for phase in phases {
            plan.phase_pins(phase);
        }
        let of_phases = phases
            .iter()
            .flat_map(|phase| plan.phase_rules(phase).iter().take(1000));
        for rule in plan.rules(section).iter().take(1000).chain(of_phases) {
            assert!(!plan.is_sound(rule) || plan.pattern(rule).is_some());
            plan.frames(rule);
            if let Some(pattern) = plan.pattern(rule) {
                walk(pattern);
            }
        }
    }
});

/// Divides an object into pieces, which must follow each other without gaps.
fn walk(pattern: Pattern<'_>) {
    for (address, size_bytes, unit_bytes) in [
        (0x1234_5678, 1 << 24, 4096),
        (0x7fff_0000_0000, 1 << 33, 2 << 20),
    ] {
        let extent = Extent {
            address,
            size_bytes,
            page_bytes: 4096,
            unit_bytes,
        };
        let pieces = Pieces::new(extent, pattern);
        let (few, _) = pieces.at_most(7);
        assert!(few.count() <= 7);
        let mut end = None;
        for piece in pieces.take(3000) {
            assert!(piece.start < piece.end && end.is_none_or(|end| end == piece.start));
            end = Some(piece.end);
        }
    }
}
