//! `replicate-on-first-touch`: a copy for every node that refers to a page, the baseline of Verghese §6.2.1 ("a
//! possible replicate on first miss policy").

use nearpage_recording::AccessKind;

use super::{Action, ActionKind, Epoch, Observation, OnlinePolicy, Reason, Setting};

/// The first load or fetch by a node without a copy makes one. Pages that have been stored to get no more copies,
/// because each store would collapse them. No replica is requested if there is no memory for it.
#[derive(Clone, Debug)]
pub struct ReplicateOnFirstTouch {
    written: Vec<bool>,
}

impl ReplicateOnFirstTouch {
    /// The policy for the pages of `setting`.
    pub fn new(setting: &Setting) -> Self {
        Self {
            written: vec![false; setting.pages],
        }
    }
}

/// A copy on the reader's node, unless it has one or memory is short.
pub(super) fn copy_to_reader(observation: &Observation, rule: &'static str) -> Option<Action> {
    let &Observation { page, node, .. } = observation;
    (!observation.copies.on(node) && !observation.pressure).then(|| Action {
        page,
        kind: ActionKind::Replicate,
        node,
        reason: Reason::rule(rule),
    })
}

impl OnlinePolicy for ReplicateOnFirstTouch {
    fn epoch_ns(&self) -> Option<u64> {
        None
    }

    fn observe(&mut self, observation: &Observation, actions: &mut Vec<Action>) {
        let written = &mut self.written[observation.page as usize];
        *written |= observation.kind == AccessKind::Store;
        if !*written {
            let rule = "read by a node without a copy, never stored to";
            actions.extend(copy_to_reader(observation, rule));
        }
    }

    fn end_epoch(&mut self, _: &Epoch<'_>, _: &mut Vec<Action>) {}

    fn forget(&mut self, page: u32) {
        self.written[page as usize] = false;
    }
}

#[cfg(test)]
mod tests {
    use nearpage_recording::ThreadIndex;
    use nearpage_recording::trace::Served;

    use super::*;
    use crate::Copies;

    #[test]
    fn readers_get_copies_until_somebody_writes() {
        let setting = Setting {
            nodes: 4,
            pages: 2,
            memory_nodes: 0b1111,
            near_memory_nodes: 0b1111,
            cpus_per_node: 0,
            clock_ghz: 1.0,
            every: 1,
            seed: 0,
        };
        let mut policy = ReplicateOnFirstTouch::new(&setting);
        let mut asked = |node, kind, pressure| {
            let observation = Observation {
                page: 1,
                node,
                thread: ThreadIndex(0),
                kind,
                served: Served::Memory,
                copies: Copies::at(0),
                pressure,
            };
            let mut actions = Vec::new();
            policy.observe(&observation, &mut actions);
            actions
                .iter()
                .map(|action| (action.kind, action.node))
                .collect::<Vec<_>>()
        };
        use AccessKind::{Fetch, Load, Store};
        assert_eq!(asked(0, Load, false), [], "it has the page");
        assert_eq!(asked(2, Load, false), [(ActionKind::Replicate, 2)]);
        assert_eq!(asked(3, Fetch, false), [(ActionKind::Replicate, 3)]);
        assert_eq!(asked(3, Fetch, true), [], "no memory");
        assert_eq!(asked(1, Store, false), []);
        assert_eq!(asked(2, Load, false), [], "it has been stored to");
        policy.forget(1);
        assert_eq!(policy.written, [false, false]);
    }
}
