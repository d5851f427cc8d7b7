//! Text of a job's report: groups of ranks with outliers, or a row for each rank, host or node.

use anstyle::Style;
use nearpage_attribution::{ObjectUse, RankGroup};
use nearpage_machine::NodeId;

use super::{HostNode, JobContent, binding, cpus};
use crate::emphasis::{DOUBTFUL, alarm, painted};
use crate::table::{Column, wrapped, write_lines};
use crate::{TextOptions, printable};
use nearpage_amount::{bytes, count, counted, percent, time};

/// Objects with a smaller share of a group's accesses are left out.
const SHARE_MIN: f64 = 0.01;
/// Cell of an unknown figure.
const UNKNOWN: &str = "?";

/// Rows of a job's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobBy {
    /// Groups of ranks that behave alike, with the objects of each group.
    #[default]
    Group,
    /// Ranks.
    Rank,
    /// Hosts.
    Host,
    /// Nodes of hosts, with the accesses to their memory.
    Node,
}

/// Text of the report, with the options' width, number of rows and colour. Colour marks remote shares, lost time, and
/// ranks that differ from most.
pub fn job_text(content: &JobContent, by: JobBy, options: &TextOptions) -> String {
    let mut text = heading(content, options.width);
    text.push('\n');
    match by {
        JobBy::Group => groups(content, options, &mut text),
        JobBy::Rank => ranks(content, options, &mut text),
        JobBy::Host => hosts(content, options, &mut text),
        JobBy::Node => nodes(content, options, &mut text),
    }
    bindings(content, options, &mut text);
    text
}

fn heading(content: &JobContent, width: usize) -> String {
    let job = content.job;
    let name = match &job.name {
        Some(name) => format!("job {}", printable(name)),
        None => printable(&job.folder.to_string_lossy()),
    };
    let recorded = job.ranks.len() as u64;
    let of = match job.size {
        Some(size) if u64::from(size) > recorded => format!(" of {size}"),
        _ => String::new(),
    };
    let launcher = content.launcher();
    let launcher = launcher.map_or_else(String::new, |launcher| format!(", {launcher}"));
    let samples: f64 = content
        .profiles
        .iter()
        .map(|profile| profile.total.samples)
        .sum();
    let line = format!(
        "{name}: {}{of} on {}{launcher}, {} effective samples of accesses",
        counted(recorded, "rank"),
        counted(content.hosts().len() as u64, "host"),
        count(samples)
    );
    wrapped(&line, width) + "\n"
}

fn remote(used: &ObjectUse, options: &TextOptions) -> String {
    used.remote_share()
        .map_or_else(|| UNKNOWN.to_owned(), |share| alarming(share, options))
}

fn memory(known: Option<u64>) -> String {
    known.map_or_else(|| UNKNOWN.to_owned(), bytes)
}

/// A share, coloured if it is high.
fn alarming(share: f64, options: &TextOptions) -> String {
    painted(&percent(share), alarm(share), options.colour)
}

fn groups(content: &JobContent, options: &TextOptions, text: &mut String) {
    let width = options.width;
    let all = content.profiles.len();
    for (number, group) in content.groups.groups.iter().enumerate() {
        let line = match number {
            0 => {
                let who = match group.members.len() {
                    1 if all == 1 => content.ranks_of(&group.members),
                    members if members == all => format!("all {}", counted(all as u64, "rank")),
                    members => format!(
                        "{members} of {} ({})",
                        counted(all as u64, "rank"),
                        content.ranks_of(&group.members)
                    ),
                };
                let remote = match group.total.remote_share() {
                    Some(share) => format!("{} remote, ", percent(share)),
                    None => String::new(),
                };
                format!("{who}: {remote}{} of the time lost", lost(content, group))
            }
            _ => content.outlier(number),
        };
        let style = if number == 0 { Style::new() } else { DOUBTFUL };
        text.push_str(&painted(&wrapped(&line, width), style, options.colour));
        text.push('\n');
        objects(content, group, options, text);
        text.push('\n');
    }
    if !content.groups.too_few.is_empty() {
        let line = format!(
            "{}: too few samples to tell; record longer or with a higher --rate",
            content.ranks_of(&content.groups.too_few)
        );
        text.push_str(&wrapped(&line, width));
        text.push_str("\n\n");
    }
}

/// Mean over the group's ranks of the share of lost time.
fn lost(content: &JobContent, group: &RankGroup) -> String {
    let shares = group
        .members
        .iter()
        .map(|&position| content.profiles[position].lost_share());
    percent(shares.sum::<f64>() / group.members.len().max(1) as f64)
}

fn objects(content: &JobContent, group: &RankGroup, options: &TextOptions, text: &mut String) {
    let matters = |used: &ObjectUse| used.samples >= SHARE_MIN * group.total.samples;
    let objects = group.objects().into_iter();
    let objects: Vec<_> = objects
        .take_while(|(_, used, _)| matters(used))
        .take(options.top)
        .collect();
    let cells =
        |cell: &dyn Fn(&(_, ObjectUse, &'static str)) -> String| objects.iter().map(cell).collect();
    let columns = vec![
        Column {
            title: "share",
            rank: 2,
            cells: cells(&|(_, used, _)| percent(used.samples / group.total.samples.max(1.0))),
        },
        Column {
            title: "remote",
            rank: 1,
            cells: cells(&|(_, used, _)| remote(used, options)),
        },
        Column {
            title: "pattern",
            rank: 0,
            cells: cells(&|(_, _, pattern)| (*pattern).to_owned()),
        },
    ];
    let names: Vec<String> = objects
        .iter()
        .map(|(object, ..)| printable(content.names.of(*object)))
        .collect();
    table(columns, "object", &names, options.width, text);
}

fn ranks(content: &JobContent, options: &TextOptions, text: &mut String) {
    let shown: Vec<usize> = (0..content.profiles.len()).take(options.top).collect();
    let numbers = content.group_numbers();
    let cells =
        |cell: &dyn Fn(usize) -> String| shown.iter().map(|&position| cell(position)).collect();
    let profile = |position: usize| &content.profiles[position];
    let columns = vec![
        Column {
            title: "rank",
            rank: 9,
            cells: cells(&|position| content.rank(position).rank.to_string()),
        },
        Column {
            title: "group",
            rank: 4,
            cells: cells(&|position| {
                numbers[position].map_or("-".to_owned(), |number| (number + 1).to_string())
            }),
        },
        Column {
            title: "samples",
            rank: 2,
            cells: cells(&|position| count(profile(position).total.samples)),
        },
        Column {
            title: "memory",
            rank: 1,
            cells: cells(&|position| memory(profile(position).memory_bytes)),
        },
        Column {
            title: "remote",
            rank: 6,
            cells: cells(&|position| remote(&profile(position).total, options)),
        },
        Column {
            title: "time lost",
            rank: 5,
            cells: cells(&|position| alarming(profile(position).lost_share(), options)),
        },
        Column {
            title: "CPUs",
            rank: 3,
            cells: cells(&|position| cpus(content.rank(position).metadata.binding.as_ref())),
        },
    ];
    let hosts: Vec<String> = shown
        .iter()
        .map(|&position| printable(&content.rank(position).host))
        .collect();
    table(columns, "host", &hosts, options.width, text);
    let left = content.profiles.len() - shown.len();
    if left > 0 {
        text.push_str(&format!(
            "{} more with --top\n",
            counted(left as u64, "rank")
        ));
    }
    text.push('\n');
}

fn hosts(content: &JobContent, options: &TextOptions, text: &mut String) {
    let hosts = content.hosts();
    let hosts: Vec<_> = hosts.iter().take(options.top).collect();
    let columns = vec![
        Column {
            title: "ranks",
            rank: 9,
            cells: hosts
                .iter()
                .map(|(_, host)| host.ranks.len().to_string())
                .collect(),
        },
        Column {
            title: "samples",
            rank: 2,
            cells: hosts
                .iter()
                .map(|(_, host)| count(host.total.samples))
                .collect(),
        },
        Column {
            title: "memory",
            rank: 4,
            cells: hosts
                .iter()
                .map(|(_, host)| memory(host.memory_bytes))
                .collect(),
        },
        Column {
            title: "remote",
            rank: 6,
            cells: hosts
                .iter()
                .map(|(_, host)| remote(&host.total, options))
                .collect(),
        },
        Column {
            title: "most time lost",
            rank: 5,
            cells: hosts
                .iter()
                .map(|(_, host)| alarming(host.lost_share, options))
                .collect(),
        },
    ];
    let names: Vec<String> = hosts.iter().map(|(name, _)| printable(name)).collect();
    table(columns, "host", &names, options.width, text);
    text.push('\n');
}

fn nodes(content: &JobContent, options: &TextOptions, text: &mut String) {
    let hosts = content.hosts();
    let nodes: Vec<_> = hosts
        .iter()
        .flat_map(|(host, of)| of.nodes.iter().map(move |(node, of)| (host, node, of)))
        .take(options.top)
        .collect();
    if nodes.is_empty() {
        text.push_str(&wrapped(
            "No page's node is known: the hosts have one memory node, or the recordings don't say.",
            options.width,
        ));
        text.push_str("\n\n");
        return;
    }
    let cells = |cell: &dyn Fn(&(&&str, &NodeId, &HostNode)) -> String| {
        nodes.iter().map(cell).collect::<Vec<String>>()
    };
    let columns = vec![
        Column {
            title: "node",
            rank: 9,
            cells: cells(&|(_, node, _)| node.to_string()),
        },
        Column {
            title: "samples",
            rank: 2,
            cells: cells(&|(.., of)| count(of.used.samples)),
        },
        Column {
            title: "memory",
            rank: 4,
            cells: cells(&|(.., of)| memory(of.memory_bytes)),
        },
        Column {
            title: "remote",
            rank: 6,
            cells: cells(&|(.., of)| remote(&of.used, options)),
        },
        Column {
            title: "time lost",
            rank: 5,
            cells: cells(&|(.., of)| time(of.used.cost_ns)),
        },
    ];
    let names = cells(&|(host, ..)| printable(host));
    table(columns, "host", &names, options.width, text);
    text.push('\n');
}

fn table(mut columns: Vec<Column>, title: &str, names: &[String], width: usize, text: &mut String) {
    // Columns without known cells are left out, such as nodes on machines with one memory node.
    columns.retain(|column| column.cells.iter().any(|cell| cell != UNKNOWN));
    write_lines(columns, title, names, width, text);
}

fn bindings(content: &JobContent, options: &TextOptions, text: &mut String) {
    if content.findings.is_empty() {
        return;
    }
    text.push_str("binding\n");
    let launcher = content.launcher();
    for finding in &content.findings {
        let mut line = binding::sentence(finding);
        if let Some(remedy) = binding::remedy(finding, launcher) {
            line += &format!("; try {remedy}");
        }
        text.push_str(&wrapped(&line, options.width));
        text.push('\n');
    }
}
