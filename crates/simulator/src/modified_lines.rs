//! Lines that one CPU has modified: a miss to these goes on to where they are (Verghese §8.3).

use nearpage_recording::AccessKind;
use nearpage_recording::trace::{Miss, Served};
use rustc_hash::FxHashMap;

use crate::figures::Figures;

/// The node of the CPU that has a line modified, by page and line.
#[derive(Debug, Default)]
pub(crate) struct ModifiedLines {
    nodes: FxHashMap<(u32, u32), u16>,
}

impl ModifiedLines {
    /// What a reference of a CPU on `node` takes longer than from memory on `home`, as its line is modified elsewhere:
    /// over two hops in all where memory is the CPU's own or the line is at the memory's node, over three otherwise.
    pub fn detour(&mut self, miss: &Miss, node: u16, home: u16, figures: &Figures) -> u64 {
        let line = (miss.page.0, miss.offset >> figures.line_shift);
        let mut holder = None;
        if miss.served == Served::OtherCache || miss.served == Served::WriteBack {
            holder = self.nodes.remove(&line);
        }
        let fetches = matches!(
            miss.served,
            Served::Memory | Served::OtherCache | Served::Upgrade
        );
        if fetches && miss.kind == AccessKind::Store {
            self.nodes.insert(line, node);
        }
        match holder {
            Some(holder) if miss.served == Served::OtherCache && holder != node => {
                let own = figures.latency(node, node);
                if home == node {
                    figures.latency(node, holder).saturating_sub(own)
                } else if holder == home {
                    0
                } else {
                    // A clean line of another node's memory comes over two hops.
                    figures.latency(node, home).saturating_sub(own) / 2
                }
            }
            _ => 0,
        }
    }
}
