//! How good a lossy recording's page hints are, measured against a reference's: Marathe, Thakkar and
//! Mueller, section 6.
//!
//! A hint is a page that was accessed, and the node that Eq. 1 or 2 gives it. Pages without an access
//! have none, whatever a plan would make of their neighbours. Objects are recognised in the other
//! recording as a plan recognises them, so the two may be of different runs; pages are counted from
//! the object's first one.

use nearpage_attribution::ObjectGroup;
use nearpage_recording::ObjectKind;

use crate::affinity::{Equation, hints};
use crate::context::{Context, Input};
use crate::parameters::Policy;
use crate::subject::{means, subject};

/// Hints of a recording against those of a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Hints in the reference (*Ref*).
    pub reference: u64,
    /// Hints in the recording (*Targ*).
    pub recording: u64,
    /// Hints in both, whichever node (*C*).
    pub common: u64,
    /// Hints in both for the same node (*A*).
    pub same: u64,
}

impl Quality {
    /// Adds another program's.
    pub fn add(&mut self, other: &Self) {
        self.reference += other.reference;
        self.recording += other.recording;
        self.common += other.common;
        self.same += other.same;
    }

    /// C / Ref: for how much of the reference there is a hint.
    pub fn coverage(&self) -> f64 {
        share(self.common, self.reference)
    }

    /// A / Targ: how many of the recording's hints are the reference's.
    pub fn accuracy(&self) -> f64 {
        share(self.same, self.recording)
    }

    /// A / Ref: how much of the reference the recording is as good as.
    pub fn useful_fraction(&self) -> f64 {
        share(self.same, self.reference)
    }
}

/// 0 where there is nothing to compare with.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Compares the hints of two recordings of one program on one machine, which both inputs name.
/// `policy`: hop-sensitive, or (for all others) uniform.
pub fn quality(reference: &Input, recording: &Input, policy: Policy) -> Quality {
    let equation = match policy {
        Policy::HopSensitive => Equation::HopSensitive,
        _ => Equation::Uniform,
    };
    let (reference, ours) = (
        (Context::new(reference), reference.attribution),
        (Context::new(recording), recording.attribution),
    );
    let mut quality = Quality::default();
    let mut unmatched: Vec<&ObjectGroup> = ours.1.objects.iter().filter(placeable).collect();
    for group in reference.1.objects.iter().filter(placeable) {
        let Some(own) = subject(reference.0.tables, group) else {
            continue;
        };
        let found = unmatched.iter().position(|other| {
            other.kind == group.kind
                && subject(ours.0.tables, other)
                    .is_some_and(|other| means(&own, &other, group.kind))
        });
        let other = found.map(|position| unmatched.remove(position));
        // Objects too large to be kept page by page are compared by the larger unit of the two.
        let unit = [Some(group), other]
            .into_iter()
            .flatten()
            .map(|group| group.affinity.page_bytes)
            .fold(reference.0.page_bytes, u64::max);
        let expected = hints(&reference.0, group, equation, unit);
        let found = other.map_or(Vec::new(), |other| hints(&ours.0, other, equation, unit));
        quality.reference += expected.len() as u64;
        quality.recording += found.len() as u64;
        let mut found = found.into_iter().peekable();
        for (page, node) in expected {
            while found.next_if(|(other, _)| *other < page).is_some() {}
            if let Some((_, other)) = found.next_if(|(other, _)| *other == page) {
                quality.common += 1;
                quality.same += u64::from(other == node);
            }
        }
    }
    for group in unmatched {
        if subject(ours.0.tables, group).is_some() {
            let unit = group.affinity.page_bytes.max(ours.0.page_bytes);
            quality.recording += hints(&ours.0, group, equation, unit).len() as u64;
        }
    }
    quality
}

/// What a plan can place.
fn placeable(group: &&ObjectGroup) -> bool {
    matches!(
        group.kind,
        ObjectKind::Heap | ObjectKind::Static | ObjectKind::Mapping
    )
}
