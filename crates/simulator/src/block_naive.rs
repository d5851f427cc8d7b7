//! The placement `block-naive`: each object in equal blocks, one block per node.

use crate::figures::Figures;
use crate::trace::Trace;

/// Node of each page: "a block distribution which size is the object size divided by the number of NUMA nodes" (NumaMMA
/// §4.1.3), of nodes with memory. `None` for pages of no object, or of one with fewer pages than nodes.
pub(crate) fn homes(trace: &dyn Trace, figures: &Figures) -> Vec<Option<u16>> {
    let nodes = &figures.memory_nodes;
    let home = |page: u32| {
        let (first, pages) = trace.extent(page)?;
        let at = trace.page_number(page).checked_sub(first)?;
        (at < pages && pages >= nodes.len() as u64)
            .then(|| nodes[(u128::from(at) * nodes.len() as u128 / u128::from(pages)) as usize])
    };
    (0..trace.pages() as u32).map(home).collect()
}
