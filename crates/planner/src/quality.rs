//! Quality of a lossy recording's page hints, measured against a reference recording: Marathe, Thakkar and Mueller,
//! section 6.
//!
//! A hint is a page that was accessed, and the node that Eq. 1 or 2 gives the page. Pages without an access have no
//! hint, whatever a plan makes of their neighbours. A plan places whole objects by their patterns, and leaves others to
//! first touch. So the reference's hints are also compared with where pages are under the recording's plan, which the
//! paper does not do. Objects are recognised in the other recording as a plan recognises them, so the recordings may be
//! of different runs. Pages are counted from an object's first page.
//!
//! Hints are for memory that the paper's tool places: the program's own static data, and what the program's own code
//! allocates, also objects smaller than a page. Libraries' data, and memory that libraries allocate for themselves,
//! have no hints.

use nearpage_attribution::{ObjectGroup, ObjectName};
use nearpage_plan::Plan;
use nearpage_recording::{Module, ModuleId, ObjectKind};
use nearpage_wire::is_allocator_module;

use crate::affinity::{Equation, hints};
use crate::context::{Context, Input};
use crate::holder::ResolvedPlacement;
use crate::parameters::Policy;
use crate::prediction::decisions_placing;
use crate::subject::{means, subject};

/// Numbers of hints in a recording and in a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quality {
    /// Hints in the reference (*Ref*).
    pub reference: u64,
    /// Hints in the recording (*Targ*).
    pub recording: u64,
    /// Hints for the same page in both, for any node (*C*).
    pub common: u64,
    /// Hints for the same page and node in both (*A*).
    pub same: u64,
    /// Hints in the reference whose page first touch puts on the hint's node.
    pub first_touch_same: f64,
    /// Hints in the reference for pages that the recording's plan places.
    pub planned: u64,
    /// Hints in the reference whose page is on the hint's node in a run under the recording's plan: because the plan
    /// places it there, or because the plan leaves it to first touch. Pages of interleaved memory count by the node's
    /// share. Objects that a plan deals out as wholes count as left, as hints are by page from an object's first.
    pub planned_same: f64,
}

impl Quality {
    /// Adds the numbers of another program.
    pub fn add(&mut self, other: &Self) {
        self.reference += other.reference;
        self.recording += other.recording;
        self.common += other.common;
        self.same += other.same;
        self.first_touch_same += other.first_touch_same;
        self.planned += other.planned;
        self.planned_same += other.planned_same;
    }

    /// Counts a group's hints that first touch and a plan follow. `hints`: pages in units of `unit_bytes` from the
    /// object's start, and places.
    fn add_placed(
        &mut self,
        reference: &Context,
        group: &ObjectGroup,
        plan: &Plan,
        hints: &[(u64, usize)],
        unit_bytes: u64,
    ) {
        let decisions = decisions_placing(plan, reference, group).unwrap_or_default();
        let placement = decisions.first().map(|&at| &plan.decisions[at].placement);
        let resolved = placement
            .and_then(|placement| ResolvedPlacement::new(placement, reference, group.size_bytes));
        let touches = reference.first_touches(group);
        for &(page, place) in hints {
            let offset = page * unit_bytes;
            let toucher = touches.toucher((offset / group.affinity.page_bytes) as u32);
            let is_touched_there =
                toucher.is_some_and(|thread| reference.places.of(thread) == Some(place));
            let by_first_touch = f64::from(is_touched_there);
            self.first_touch_same += by_first_touch;
            self.planned_same += match &resolved {
                Some(resolved) => resolved.holder(offset).share_at(place, &reference.places),
                None => by_first_touch,
            };
        }
        self.planned += resolved.map_or(0, |_| hints.len() as u64);
    }

    /// C / Ref: share of the reference's pages for which the recording has a hint.
    pub fn coverage(&self) -> f64 {
        share(self.common as f64, self.reference)
    }

    /// A / Targ: share of the recording's hints that the reference has, too.
    pub fn accuracy(&self) -> f64 {
        share(self.same as f64, self.recording)
    }

    /// A / Ref: share of the reference's hints that the recording has, too.
    pub fn useful_fraction(&self) -> f64 {
        share(self.same as f64, self.reference)
    }

    /// Share of the reference's pages that the recording's plan places.
    pub fn planned_coverage(&self) -> f64 {
        share(self.planned as f64, self.reference)
    }

    /// Share of the reference's hints that first touch follows.
    pub fn first_touch_useful_fraction(&self) -> f64 {
        share(self.first_touch_same, self.reference)
    }

    /// Share of the reference's hints that a run under the recording's plan follows.
    pub fn planned_useful_fraction(&self) -> f64 {
        share(self.planned_same, self.reference)
    }
}

/// A share; 0 if the whole is 0.
fn share(part: f64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part / whole as f64,
    }
}

/// Compares the hints of two recordings of one program on the machine that both inputs name, and the reference's hints
/// with the recording's plan. `policy`: hop-sensitive, or (for all others) uniform.
pub fn quality(reference: &Input, recording: &Input, plan: &Plan, policy: Policy) -> Quality {
    let equation = match policy {
        Policy::HopSensitive => Equation::HopSensitive,
        _ => Equation::Uniform,
    };
    let expected = placeable(reference);
    let mut unmatched = placeable(recording);
    let page_bytes = reference.page_bytes.max(1);
    let (mut reference, ours) = (Context::new(reference), Context::new(recording));
    // The plan counts in pages of its own.
    reference.page_bytes = plan.page_bytes.max(1);
    let mut quality = Quality::default();
    for group in expected {
        let Some(own) = subject(reference.tables, group) else {
            continue;
        };
        let found = unmatched.iter().position(|other| {
            other.kind == group.kind
                && subject(ours.tables, other).is_some_and(|other| means(&own, &other, group.kind))
        });
        let other = found.map(|position| unmatched.remove(position));
        // Objects too large to be kept page by page are compared in the larger of both units.
        let unit = [Some(group), other]
            .into_iter()
            .flatten()
            .map(|group| group.affinity.page_bytes)
            .fold(page_bytes, u64::max);
        let expected = hints(&reference, group, equation, unit);
        quality.add_placed(&reference, group, plan, &expected, unit);
        let found = other.map_or(Vec::new(), |other| hints(&ours, other, equation, unit));
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
        if subject(ours.tables, group).is_some() {
            let unit = group.affinity.page_bytes.max(ours.page_bytes);
            quality.recording += hints(&ours, group, equation, unit).len() as u64;
        }
    }
    quality
}

/// The groups that hints are about.
fn placeable<'a>(input: &Input<'a>) -> Vec<&'a ObjectGroup> {
    let objects = &input.attribution.objects;
    objects
        .iter()
        .filter(|group| match group.kind {
            ObjectKind::Heap | ObjectKind::Static | ObjectKind::Mapping => {
                is_of_program(input, group)
            }
            ObjectKind::HeapArea => true,
            _ => false,
        })
        .collect()
}

/// True for the program's own static data, for what the program's own code allocates, and for all if the program is
/// unknown.
fn is_of_program(input: &Input, group: &ObjectGroup) -> bool {
    let executable = &input.program.executable;
    let file_name = |module: Option<ModuleId>| {
        let module = module.and_then(|id| input.tables.modules.get(id.0 as usize));
        module.map_or("", Module::file_name)
    };
    let module = match group.name {
        ObjectName::Symbol(module, _) => Some(file_name(Some(module))),
        ObjectName::CallSite(site) => {
            let site = input.tables.call_sites.get(site.0 as usize);
            let frames = site.map_or(&[][..], |site| &site.frames).iter();
            let mut modules = frames.map(|frame| file_name(frame.module));
            modules.find(|module| !is_allocator_module(module.as_bytes()))
        }
        ObjectName::Other(_) => None,
    };
    executable.is_empty() || module.is_none_or(|module| module == executable)
}
