//! Allocations as a tree: outermost functions first, objects as leaves.

use std::collections::BTreeMap;

use nearpage_attribution::{Names, ObjectGroup, call_site, place};
use nearpage_recording::{Frame, ObjectKind, Tables};

use crate::name::counted_name;
use crate::printable::printable;

/// A line of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    /// Tree lines that connect the branch to its parent, and its name.
    pub name: String,
    /// Positions of the objects in the branch and the branches below.
    pub objects: Vec<usize>,
}

#[derive(Default)]
struct Node {
    children: BTreeMap<String, Node>,
    /// Position of the object, for a leaf.
    object: Option<usize>,
}

/// Branches with less than this share of the cost are left out.
const SHARE_MIN: f64 = 0.001;
/// Maximum number of frames of a call site; the outermost frames of deeper call sites are left out.
const DEPTH_MAX: usize = 64;

/// Lines for the objects at `positions`, costliest branches first; `cost` gives the cost of each object. A frame with a
/// single branch shares a line with that branch.
pub(crate) fn tree(
    tables: &Tables,
    groups: &[ObjectGroup],
    positions: &[usize],
    cost: &dyn Fn(usize) -> f64,
) -> Vec<Branch> {
    let names = Names::new(tables, groups);
    let mut root = Node::default();
    for &position in positions {
        let group = &groups[position];
        let mut node = &mut root;
        for step in path(tables, group) {
            node = node.children.entry(step).or_default();
        }
        let name = printable(&counted_name(&names.of(group), group.instances));
        // The position after the name distinguishes objects of equal names.
        let leaf = node.children.entry(format!("{name}\u{0}{position}"));
        leaf.or_default().object = Some(position);
    }
    let all: f64 = positions.iter().map(|&at| cost(at)).sum();
    let mut lines = Vec::new();
    write(&root, "", all * SHARE_MIN, cost, &mut lines);
    lines
}

/// Path from the outermost frame to the allocating frame. Objects without a call site are placed under their kind.
fn path(tables: &Tables, group: &ObjectGroup) -> Vec<String> {
    let Some(site) = call_site(tables, group) else {
        let kind = match group.kind {
            ObjectKind::Heap | ObjectKind::HeapArea => "heap, unknown call site",
            ObjectKind::Static => "static",
            ObjectKind::Mapping => "mappings",
            ObjectKind::Stack => "stacks",
            ObjectKind::Tls => "thread-local",
            ObjectKind::Code => "code",
        };
        return vec![kind.to_owned()];
    };
    let known = |frame: &&Frame| !frame.function.is_empty() || frame.line > 0;
    let frames: Vec<&Frame> = site.frames.iter().filter(known).take(DEPTH_MAX).collect();
    let own = frames
        .iter()
        .rev()
        .skip_while(|frame| runs_before_main(&frame.function));
    let steps: Vec<String> = own.map(|frame| printable(&place(tables, frame))).collect();
    match steps.is_empty() {
        true => vec!["heap, unknown call site".to_owned()],
        false => steps,
    }
}

fn objects(node: &Node) -> Vec<usize> {
    let below = node.children.values().flat_map(objects);
    node.object.into_iter().chain(below).collect()
}

fn write(
    node: &Node,
    indent: &str,
    least: f64,
    cost: &dyn Fn(usize) -> f64,
    lines: &mut Vec<Branch>,
) {
    let mut children: Vec<(&String, &Node, Vec<usize>, f64)> = node
        .children
        .iter()
        .map(|(name, child)| {
            let objects = objects(child);
            let sum = objects.iter().map(|&at| cost(at)).sum();
            (name, child, objects, sum)
        })
        .filter(|(.., sum)| *sum >= least && *sum > 0.0)
        .collect();
    children.sort_by(|a, b| b.3.total_cmp(&a.3).then(a.0.cmp(b.0)));
    let is_root = indent.is_empty() && lines.is_empty();
    let last = children.len().saturating_sub(1);
    for (at, (name, child, objects, _)) in children.into_iter().enumerate() {
        let (branch, below) = match (is_root, at == last) {
            (true, _) => ("", "  "),
            (false, true) => ("└ ", "  "),
            (false, false) => ("├ ", "│ "),
        };
        let mut steps = vec![shown(name)];
        let mut inner = child;
        while inner.children.len() == 1
            && let Some((name, only)) = inner.children.iter().next()
        {
            steps.push(shown(name));
            inner = only;
        }
        if inner.object.is_some()
            && let Some(object) = steps.pop()
        {
            // An object's name often contains the frames that allocated it; such frames are not repeated.
            steps.retain(|step| !object_names_step(object, step));
            steps.push(object);
        }
        lines.push(Branch {
            name: format!("{indent}{branch}{}", steps.join(" › ")),
            objects,
        });
        write(inner, &format!("{indent}{below}"), least, cost, lines);
    }
}

/// Does an object's name contain a frame's place, or its function as in `main a.c:9 (allocate)`?
fn object_names_step(object: &str, step: &str) -> bool {
    let function = step.split(' ').next().unwrap_or(step);
    object.contains(step) || object.ends_with(&format!("({function})"))
}

/// Functions that run before a program's or a thread's main function.
const BEFORE_MAIN: [&str; 7] = [
    "_start",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "start_thread",
    "clone",
    "clone3",
];

/// Does the function run before a program's or a thread's main function?
pub fn runs_before_main(function: &str) -> bool {
    BEFORE_MAIN.contains(&function.trim_start_matches("__GI_"))
}

/// A name without the addition that distinguishes equal names.
fn shown(name: &str) -> &str {
    name.split('\u{0}').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(object: usize) -> Node {
        Node {
            children: BTreeMap::new(),
            object: Some(object),
        }
    }

    fn branch(children: Vec<(&str, Node)>) -> Node {
        let children = children.into_iter();
        Node {
            children: children
                .map(|(name, node)| (name.to_owned(), node))
                .collect(),
            object: None,
        }
    }

    #[test]
    fn branches_come_by_cost_and_single_ones_stand_in_one_line() {
        let root = branch(vec![
            ("static variables", branch(vec![("table\u{0}2", leaf(2))])),
            (
                "main a.c:9",
                branch(vec![
                    ("small a.c:1", branch(vec![("small a.c:1\u{0}0", leaf(0))])),
                    ("big a.c:2", branch(vec![("3 × big a.c:2\u{0}1", leaf(1))])),
                    ("cold a.c:3", branch(vec![("cold a.c:3\u{0}3", leaf(3))])),
                ]),
            ),
        ]);
        let costs = [2.0, 7.0, 1.0, 0.0];
        let mut lines = Vec::new();
        write(&root, "", 0.01, &|at| costs[at], &mut lines);
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "main a.c:9",
                "  ├ 3 × big a.c:2",
                "  └ small a.c:1",
                "static variables › table",
            ]
        );
        assert_eq!(lines[0].objects.len(), 3);
        assert_eq!(lines[1].objects, [1]);
    }
}
