//! Lines that a CPU's cache holds modified: a miss to such a line is forwarded to that cache (Verghese §8.3).

use nearpage_recording::AccessKind;
use nearpage_recording::trace::{Miss, Served};
use rustc_hash::FxHashMap;

use crate::figures::Figures;

/// Node of the CPU whose cache holds a line modified, by page and line in the page.
#[derive(Debug, Default)]
pub(crate) struct ModifiedLines {
    nodes: FxHashMap<(u32, u32), u16>,
}

impl ModifiedLines {
    /// Additional latency of a miss whose line another CPU holds modified. The line comes over two hops if the memory
    /// is local or the holder is at the home, and over three hops otherwise.
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
                    // The latency of remote memory is two hops, so half of its excess over local latency is one hop.
                    figures.latency(node, home).saturating_sub(own) / 2
                }
            }
            _ => 0,
        }
    }
}
