//! Homes of unmatched memory: a memory policy of the whole process, as the kernel carries it out
//! ([`nearpage_plan::Compact::unmatched_nodes`]).

use nearpage_machine::NodeId;
use nearpage_plan::Start;
use nearpage_recording::ObjectKind;
use nearpage_simulator::Home;

use super::process::{Page, Process};

/// Pages of unmatched memory by number, with their homes on these nodes or, without nodes, where they are touched.
/// These are pages that no object's decision is about, and that are not of a file, code or a stack. Pages that were
/// touched before the recording began stay where they are.
pub(super) fn homes<'a>(
    start: Start,
    nodes: &[NodeId],
    process: &'a Process,
    decided: &'a [bool],
) -> impl Iterator<Item = (usize, Home)> + 'a {
    let positions = nodes
        .iter()
        .filter_map(|&node| process.machine.position(node));
    let nodes: Vec<u16> = positions.map(|position| position as u16).collect();
    let second_ns = process.second_thread_ns();
    let elsewhere = of_other_kinds(process, decided.len());
    let candidates = process
        .pages
        .iter()
        .filter(move |page| !decided[page.number] && !elsewhere[page.number] && !page.is_of_file);
    candidates.filter_map(move |page| {
        let touch = page.first_touch?;
        let number = page.address / process.machine.page_bytes;
        let turn = number.checked_rem(nodes.len() as u64);
        let node = turn.map(|turn| nodes[turn as usize]);
        let home = match start {
            Start::Allocation => node.map(Home::Node),
            // A page that is touched later gets its place at once.
            Start::SecondThread if touch.time_ns >= second_ns => node.map(Home::Node),
            Start::SecondThread => Some(Home::Later(node)),
            Start::Parallel => Some(Home::Parallel(node)),
        };
        Some((page.number, home?))
    })
}

/// By page: true for pages of a stack, of thread-local storage or of code.
fn of_other_kinds(process: &Process, pages: usize) -> Vec<bool> {
    let mut elsewhere = vec![false; pages];
    let kinds = [ObjectKind::Stack, ObjectKind::Tls, ObjectKind::Code];
    let objects = process.recording.tables.objects.iter();
    let others = objects.filter(|object| object.pid == process.pid && kinds.contains(&object.kind));
    for object in others {
        let first = object.address & !(process.machine.page_bytes - 1);
        let end = object.address.saturating_add(object.size_bytes);
        let is_its = |page: &&Page| page.is_of(object);
        for page in process.pages_within(first..end).filter(is_its) {
            elsewhere[page.number] = true;
        }
    }
    elsewhere
}

#[cfg(test)]
mod tests;
