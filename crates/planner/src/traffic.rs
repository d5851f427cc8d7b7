//! Accesses by the CPU's node and the memory's node, under first touch and under a plan.

use nearpage_plan::{Decision, Plan};

use crate::context::{Context, Input};
use crate::effect::{Access, Count};
use crate::parameters::Parameters;
use crate::placed_accesses::{Placing, placed_accesses};
use crate::prediction::Prediction;

/// Accesses by weight, `[CPU's node][memory's node]`, by position in the machine's nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Under first touch.
    pub first_touch: Vec<Vec<f64>>,
    /// Under the plan.
    pub plan: Vec<Vec<f64>>,
}

/// Accesses of one group.
#[derive(Default)]
struct Flows {
    sums: Vec<Vec<f64>>,
    all: f64,
}

impl Count for Flows {
    fn count(&mut self, context: &Context, access: Access) {
        let nodes = context.machine.nodes.len();
        self.sums.resize_with(nodes, || vec![0.0; nodes]);
        self.sums[access.reader][access.memory] += access.count;
        self.all += access.count;
    }
}

impl Flows {
    /// Adds the flows to others, scaled to a number of accesses.
    fn add_to(&self, others: &mut [Vec<f64>], accesses: f64) {
        let factor = accesses / self.all.max(f64::MIN_POSITIVE);
        for (row, others) in self.sums.iter().zip(others) {
            for (sum, other) in row.iter().zip(others) {
                *other += sum * factor;
            }
        }
    }
}

/// The predicted traffic under first touch and under a plan, for the objects of its `prediction`.
pub fn traffic(plan: &Plan, input: &Input, prediction: &Prediction) -> Traffic {
    let mut context = Context::new(input);
    context.page_bytes = plan.page_bytes.max(1);
    let parameters = Parameters::default();
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
        let about: Vec<&Decision> = object
            .decisions
            .iter()
            .map(|&at| &plan.decisions[at])
            .collect();
        for (sums, decided) in [
            (&mut traffic.first_touch, [].as_slice()),
            (&mut traffic.plan, &about),
        ] {
            let flows =
                placed_accesses::<Flows>(&context, group, Placing::Decided(decided), &parameters);
            if let Some((_, flows)) = flows {
                flows.add_to(sums, object.accesses);
            }
        }
    }
    traffic
}
