//! Costs as a tree: object, allocating call site, accessing function, line.

use nearpage_attribution::{Names, call_site, place};
use nearpage_recording::{Frame, Tables};
use nearpage_report::runs_before_main;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::costs::{CodePlace, Costs, Sums};
use crate::opened::{Opened, Stage};

/// Branches below this share of all four sums are merged into one branch.
const SHARE_MIN: f64 = 1.0 / 4000.0;
/// Maximum number of named frames of a call site.
const FRAMES_MAX: usize = 8;

/// Kind of a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Level {
    #[default]
    All,
    Object,
    CallSite,
    Function,
    Line,
    /// Merged small branches.
    Others,
}

/// Identity of a branch among its siblings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Step {
    level: Level,
    name: String,
    /// Number of the object in the whole recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<usize>,
    /// Number of the function's module.
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<u32>,
    /// For a line: its function.
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
}

/// A branch with its children, ordered by cost.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Branch {
    #[serde(flatten)]
    step: Step,
    #[serde(flatten)]
    sums: Sums,
    branches: Vec<Branch>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Flame {
    all: Branch,
    /// Accesses that are not in the tree, because there were too many instructions.
    left_out: u64,
    /// Share of the accesses that the tree represents, 0 to 1.
    share: f64,
}

#[derive(Default)]
struct FlameNode {
    sums: Sums,
    branches: FxHashMap<Step, FlameNode>,
}

impl FlameNode {
    fn add(&mut self, steps: impl IntoIterator<Item = Step>, sums: Sums) {
        let mut at = self;
        at.sums += sums;
        for step in steps {
            at = at.branches.entry(step).or_default();
            at.sums += sums;
        }
    }

    fn grown(self, step: Step, whole: &Sums) -> Branch {
        let (large, small): (Vec<_>, Vec<_>) = self
            .branches
            .into_iter()
            .partition(|(_, branch)| branch.sums.is_at_least(SHARE_MIN, whole));
        let large = large.into_iter();
        let mut branches: Vec<Branch> = large
            .map(|(step, branch)| branch.grown(step, whole))
            .collect();
        if !small.is_empty() {
            let mut sums = Sums::default();
            for (_, branch) in &small {
                sums += branch.sums;
            }
            branches.push(Branch {
                step: Step {
                    level: Level::Others,
                    name: format!("{} more", small.len()),
                    ..Step::default()
                },
                sums,
                branches: Vec::new(),
            });
        }
        branches.sort_by(|a, b| {
            let by_cost = b.sums.cost_ns.total_cmp(&a.sums.cost_ns);
            by_cost.then_with(|| a.step.name.cmp(&b.step.name))
        });
        Branch {
            step,
            sums: self.sums,
            branches,
        }
    }
}

/// Tree of the whole time, or of the selection that `stage` belongs to.
pub(crate) fn flame(opened: &Opened, stage: &Stage, costs: &Costs) -> Flame {
    let tables = &opened.recording.tables;
    let groups = &stage.attribution.objects;
    let names = Names::new(tables, groups);
    let objects: Vec<(Step, Option<Step>)> = groups
        .iter()
        .enumerate()
        .map(|(position, group)| {
            let object = Step {
                level: Level::Object,
                name: names.of(group),
                object: stage.number(position),
                ..Step::default()
            };
            let site = call_site(tables, group).map(|site| Step {
                level: Level::CallSite,
                name: stack(tables, &site.frames),
                ..object.clone()
            });
            (object, site)
        })
        .collect();
    let mut all = FlameNode::default();
    for row in &costs.rows {
        let (object, site) = objects[row.object].clone();
        let number = object.object;
        let code = code_steps(&costs.places[row.place], number);
        let steps = std::iter::once(object).chain(site).chain(code);
        all.add(steps, row.sums);
    }
    let whole = all.sums;
    Flame {
        all: all.grown(
            Step {
                name: "all".to_owned(),
                ..Step::default()
            },
            &whole,
        ),
        left_out: costs.left_out,
        share: costs.share,
    }
}

/// Step of the function and, if it is known, step of the line.
fn code_steps(place: &CodePlace, object: Option<usize>) -> impl Iterator<Item = Step> {
    let function = Step {
        level: Level::Function,
        name: place.function.clone(),
        object,
        module: place.module.map(|module| module.0),
        function: None,
    };
    let file = place.file.rsplit('/').next().unwrap_or_default();
    let line = (place.line > 0).then(|| Step {
        level: Level::Line,
        name: format!("{file}:{}", place.line),
        function: Some(place.function.clone()),
        ..function.clone()
    });
    std::iter::once(function).chain(line)
}

/// Calls that allocated an object, innermost first.
fn stack(tables: &Tables, frames: &[Frame]) -> String {
    let known = |frame: &&Frame| {
        (!frame.function.is_empty() || frame.line > 0) && !runs_before_main(&frame.function)
    };
    let places = frames.iter().filter(known).take(FRAMES_MAX);
    let places: Vec<String> = places.map(|frame| place(tables, frame)).collect();
    match places.is_empty() {
        true => "unknown call site".to_owned(),
        false => places.join(" ← "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str) -> Step {
        Step {
            name: name.to_owned(),
            ..Step::default()
        }
    }

    fn sums(cost_ns: f64, stores: f64) -> Sums {
        Sums {
            cost_ns,
            stores,
            ..Sums::default()
        }
    }

    #[test]
    fn small_branches_stand_together_and_every_sum_is_kept() {
        let mut all = FlameNode::default();
        all.add([step("grid"), step("smooth")], sums(9000.0, 0.0));
        all.add([step("grid"), step("exchange")], sums(1000.0, 1.0));
        // This branch has no cost, but all of the stores.
        all.add([step("ring")], sums(0.0, 9999.0));
        all.add([step("a")], sums(1.0, 0.0));
        all.add([step("b")], sums(0.5, 0.0));
        let whole = all.sums;
        let grown = all.grown(step("all"), &whole);
        let names: Vec<&str> = grown
            .branches
            .iter()
            .map(|branch| branch.step.name.as_str())
            .collect();
        assert_eq!(names, ["grid", "2 more", "ring"]);
        assert_eq!(grown.sums, sums(10_001.5, 10_000.0));
        assert_eq!(grown.branches[1].sums, sums(1.5, 0.0));
        assert_eq!(grown.branches[0].branches[0].step.name, "smooth");
    }
}
