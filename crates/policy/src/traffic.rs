//! Which node's memory the accesses of which node's CPUs go to, under first touch and under a plan.

use nearpage_attribution::ObjectGroup;
use nearpage_plan::Plan;
use nearpage_recording::ThreadIndex;

use crate::first_touch::FirstTouches;
use crate::holder::{Holder, Layout};
use crate::plan::{Context, Input};
use crate::prediction::Prediction;
use crate::under::assumed_toucher;

/// Accesses by weight, `[CPU's node][memory's node]`, by position in the machine's nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Under first touch.
    pub first_touch: Vec<Vec<f64>>,
    /// Under the plan.
    pub plan: Vec<Vec<f64>>,
}

/// The traffic that a plan predicts, of the objects of its `prediction`. Where several objects of a
/// call site are placed one by one, all of them count as the first decision places them.
pub fn traffic(plan: &Plan, input: &Input, prediction: &Prediction) -> Traffic {
    let mut context = Context::new(input);
    context.page_bytes = plan.page_bytes.max(1);
    let nodes = input.machine.nodes.len();
    let nothing = vec![vec![0.0; nodes]; nodes];
    let mut traffic = Traffic {
        first_touch: nothing.clone(),
        plan: nothing,
    };
    for object in &prediction.objects {
        let Some(group) = input.attribution.objects.get(object.group) else {
            continue;
        };
        let touches = FirstTouches::of(group);
        let assumed = assumed_toucher(&context, group);
        let first_touch = |page: u32| touches.toucher(page).or(assumed).map(Holder::Thread);
        add(&context, group, &mut traffic.first_touch, |page| {
            first_touch(page)
        });
        let layout = object.decision.and_then(|first| {
            Layout::new(&plan.decisions[first].placement, &context, group.size_bytes)
        });
        let unit = group.affinity.page_bytes;
        match &layout {
            Some(layout) => add(&context, group, &mut traffic.plan, |page| {
                Some(layout.holder(u64::from(page) * unit + unit / 2))
            }),
            None => add(&context, group, &mut traffic.plan, first_touch),
        }
    }
    traffic
}

fn add<'a>(
    context: &Context,
    group: &ObjectGroup,
    sums: &mut [Vec<f64>],
    holder: impl Fn(u32) -> Option<Holder<'a>>,
) {
    for cell in &group.affinity.cells {
        let (Some(reader), Some(holder)) = (context.node_position(cell.thread), holder(cell.page))
        else {
            continue;
        };
        let mut on = |memory: Option<usize>, count: f64| {
            if let Some(memory) = memory {
                sums[reader][memory] += count;
            }
        };
        let of_thread = |thread: ThreadIndex| context.node_position(thread);
        match holder {
            Holder::Thread(thread) => on(of_thread(thread), cell.accesses()),
            Holder::Node(node) => on(context.machine.position(node), cell.accesses()),
            Holder::Everywhere => on(Some(reader), cell.accesses()),
            Holder::Spread(nodes) => {
                for &(node, share) in nodes {
                    on(context.machine.position(node), cell.accesses() * share);
                }
            }
        }
    }
}
