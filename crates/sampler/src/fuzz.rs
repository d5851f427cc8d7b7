//! What `fuzz/` calls: parsers that nobody outside this crate sees otherwise.

use std::path::Path;

use crate::architecture::{Code, Flow, Judge};
use crate::calibrate::Side;
use crate::follower::Follower;
use crate::image::Image;
use crate::merge::Window;
use crate::record::{self, Body, Identifiers};
use crate::verdict::{REGISTER_COUNT, Verdict};

/// Follows the records in a ring's `bytes`, but for clock samples: those ask the system for code.
pub fn ring(bytes: &[u8]) {
    let identifiers = Identifiers {
        faults: vec![8],
        ..Identifiers::default()
    };
    let mut follower = Follower::new(Side::Before, identifiers.clone(), 1_000_000);
    let mut window = Window::default();
    window.add(|out| out.extend_from_slice(bytes));
    window.take(u64::MAX, |bytes| match record::parse(bytes, &identifiers) {
        Ok(record) if matches!(record.body, Body::Sample(_)) => {}
        _ => follower.follow(bytes),
    });
}

/// Judges a sample at `at` in `bytes` of code, at either end of the address space.
pub fn code(bytes: &[u8], at: usize) {
    for (address, bitness) in [
        (0x40_1000, 64),
        (u64::MAX - 100, 64),
        (0x40_1000, 32),
        (0, 64),
    ] {
        let code = Code {
            address,
            bytes,
            bitness,
        };
        for first in [Some(0), Flow::converge(code, at)].into_iter().flatten() {
            let flow = Flow::sweep(code, first);
            for side in [Side::Before, Side::At, Side::Block] {
                if let Verdict::Accesses { templates, .. } =
                    Judge::new().judge(code, &flow, at, side)
                {
                    assert!(!templates.is_empty());
                    for template in &templates {
                        template.address(&[u64::MAX; REGISTER_COUNT]);
                    }
                }
            }
        }
    }
}

/// Looks for code all over the file at `path`.
pub fn module(path: &Path) {
    let Some(mut image) = Image::open(path) else {
        return;
    };
    for at in (0..4096).step_by(256).chain([u64::MAX - 2000, u64::MAX]) {
        if let Some(stretch) = image.stretch(at) {
            assert!(stretch.begin <= at);
        }
    }
}
