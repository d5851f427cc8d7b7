//! Call sites: stacks of (module, offset). Equal stacks get the same number in every process.

use rustc_hash::FxHashMap;

use super::images::Image;
use super::modules::Modules;
use crate::{CallSite, CallSiteId, Frame, ModuleId};

#[derive(Debug, Default)]
pub(super) struct CallSites {
    numbers: FxHashMap<Vec<(Option<ModuleId>, u64)>, CallSiteId>,
    resolved: FxHashMap<(usize, u32), Option<CallSiteId>>,
    table: Vec<CallSite>,
}

impl CallSites {
    /// Call site that has number `number` in the log of `image`, first used at `time_ns`. A forked process may use
    /// numbers that its parent defined.
    pub(super) fn resolve(
        &mut self,
        images: &[Image],
        image: usize,
        number: u32,
        time_ns: u64,
        modules: &Modules,
    ) -> Option<CallSiteId> {
        if number == 0 {
            return None;
        }
        if let Some(known) = self.resolved.get(&(image, number)) {
            return *known;
        }
        let ancestors = std::iter::successors(Some(image), |image| {
            images[*image].parent.map(|(parent, _)| parent)
        });
        let frames = ancestors
            .filter_map(|image| images[image].call_sites.get(&number))
            .next();
        let site = frames.filter(|frames| !frames.is_empty()).map(|frames| {
            let pid = images[image].pid;
            let resolve = |address: &u64| match modules.resolve(pid, time_ns, *address) {
                Some((module, offset)) => (Some(module), offset),
                None => (None, *address),
            };
            self.intern(frames.iter().map(resolve).collect())
        });
        self.resolved.insert((image, number), site);
        site
    }

    fn intern(&mut self, stack: Vec<(Option<ModuleId>, u64)>) -> CallSiteId {
        let table = &mut self.table;
        *self.numbers.entry(stack).or_insert_with_key(|stack| {
            let frame = |(module, offset): &(Option<ModuleId>, u64)| Frame {
                module: *module,
                ..Frame::unknown(ModuleId(0), *offset)
            };
            table.push(CallSite {
                frames: stack.iter().map(frame).collect(),
            });
            CallSiteId(table.len() as u32 - 1)
        })
    }

    pub(super) fn into_table(self) -> Vec<CallSite> {
        self.table
    }
}
