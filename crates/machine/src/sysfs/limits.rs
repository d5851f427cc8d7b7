//! Limits of the control group in which a tree was gathered. The machine has all CPUs and nodes nevertheless; a note
//! reports which of them the gathering process could use.

use crate::tree::Tree;
use crate::{CpuId, CpuList, Error, Node, NodeId, NodeList};

/// Adds a note about the limits of a gathered tree, if there are any.
pub(super) fn note(tree: &Tree, nodes: &[Node], notes: &mut Vec<String>) -> Result<(), Error> {
    if tree.is_system() {
        return Ok(());
    }
    for (folder, cpus, mems) in candidates(tree)? {
        let cpus: Option<CpuList> = tree.list::<CpuId>(&format!("{folder}/{cpus}"))?;
        let mems: Option<NodeList> = tree.list::<NodeId>(&format!("{folder}/{mems}"))?;
        if cpus.is_none() && mems.is_none() {
            continue;
        }
        let mut allowed = Vec::new();
        let all = |cpus: &CpuList| {
            nodes
                .iter()
                .flat_map(|node| &node.cpus)
                .all(|&cpu| cpus.contains(cpu))
        };
        if let Some(cpus) = cpus.filter(|cpus| !all(cpus)) {
            allowed.push(format!("CPUs {cpus}"));
        }
        if let Some(mems) = mems.filter(|mems| {
            nodes
                .iter()
                .any(|node| node.memory_bytes != Some(0) && !mems.contains(node.id))
        }) {
            allowed.push(format!("nodes {mems}"));
        }
        if allowed.is_empty() {
            return Ok(());
        }
        let words = allowed.join(" and ");
        notes.push(format!(
            "a control group allows {words} only; the machine is shown whole"
        ));
        return Ok(());
    }
    Ok(())
}

/// Folders of the process's group, and the names of the files with its CPUs and nodes.
fn candidates(tree: &Tree) -> Result<Vec<(String, &'static str, &'static str)>, Error> {
    let mounts = tree.read("proc/mounts")?.unwrap_or_default();
    let own = tree.read("proc/self/cpuset")?;
    let groups = tree.read("proc/self/cgroup")?.unwrap_or_default();
    let unified = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .map(str::to_owned);
    let mut found = Vec::new();
    for mount in mounts.lines() {
        let words: Vec<&str> = mount.split_whitespace().collect();
        let &[_, place, kind, options, ..] = words.as_slice() else {
            continue;
        };
        let place = place.trim_start_matches('/');
        let has = |option: &str| options.split(',').any(|given| given == option);
        match (kind, &own, unified.as_ref().or(own.as_ref())) {
            ("cpuset", Some(group), _) => found.push((format!("{place}{group}"), "cpus", "mems")),
            ("cgroup", Some(group), _) if has("cpuset") => {
                let names = if has("noprefix") {
                    ("cpus", "mems")
                } else {
                    ("cpuset.cpus", "cpuset.mems")
                };
                found.push((format!("{place}{group}"), names.0, names.1));
            }
            ("cgroup2", _, Some(group)) => {
                found.push((
                    format!("{place}{group}"),
                    "cpuset.cpus.effective",
                    "cpuset.mems.effective",
                ));
            }
            _ => {}
        }
    }
    Ok(found)
}
