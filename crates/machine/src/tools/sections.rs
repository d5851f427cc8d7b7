//! Tables in the output of `mlc`, `numactl -H`, `lat_mem_rd`, `acpidump` and `iasl -d`.

use std::collections::BTreeMap;

use super::hmat::{self, Rated};
use super::lmbench::Runs;
use crate::{CpuId, CpuList, Node, NodeId, Number};

/// Number of the faulty line, and a message.
pub(super) type Problem = (usize, String);

/// Figures by the nodes of CPU and memory.
pub(super) type Pairs = BTreeMap<(NodeId, NodeId), f64>;

/// Maximum number of nodes that the kernel can be configured for.
pub(super) const NODES_MAX: usize = 1024;
/// Maximum number of points of a curve; `mlc` prints 19.
const POINTS_MAX: usize = 10_000;
/// Maximum number of lines of cache-to-cache latencies.
const LINES_MAX: usize = 64;

/// A matrix whose rows are nodes of CPUs, or of writers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    pub columns: Vec<NodeId>,
    pub rows: Vec<(NodeId, Vec<Option<f64>>)>,
}

/// Data of `numactl -H`.
#[derive(Clone, Debug, Default)]
pub(super) struct Numactl {
    pub nodes: Vec<Node>,
    pub distance: Option<Vec<Vec<u32>>>,
}

/// All data that was found; later sections replace earlier ones.
#[derive(Default)]
pub(super) struct Sections {
    /// Version such as `v3.9`.
    pub version: Option<String>,
    /// In ns; sequential accesses in versions that print these separately.
    pub latency: Option<Table>,
    /// In ns, if the text says that accesses were random.
    pub random_latency: Option<Table>,
    /// In MB/s.
    pub bandwidth: Option<Table>,
    /// Bandwidth in MB/s by the mix of loads and stores.
    pub peaks: Vec<(String, f64)>,
    /// Curve of bandwidth in MB/s and latency in ns.
    pub loaded: Vec<(f64, f64)>,
    /// Cache-to-cache latencies in words.
    pub cache_to_cache: Vec<String>,
    pub numactl: Option<Numactl>,
    pub rated: Option<Rated>,
    pub lmbench: Runs,
}

/// The section of a line.
#[derive(Clone, Copy, PartialEq)]
enum At {
    Nothing,
    Latency,
    RandomLatency,
    Bandwidth,
    Peaks,
    Loaded,
    CacheToCache,
    Distances,
    LatMemRd,
}

impl Sections {
    /// Reads a file: the firmware's table, or text.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        if hmat::is_table(bytes) {
            self.rated = Some(hmat::table(bytes).map_err(|message| (1, message))?);
            return Ok(());
        }
        self.read_text(&String::from_utf8_lossy(bytes))
    }

    fn read_text(&mut self, text: &str) -> Result<(), Problem> {
        let mut hmat = hmat::Text::default();
        let mut at = At::Nothing;
        let mut transfers = Transfers::default();
        let mut distances = Table::default();
        for (line, text) in text.lines().enumerate() {
            let words: Vec<&str> = text.split_whitespace().collect();
            let wrong = |message: String| (line + 1, message);
            if let Some((_, version)) = text.split_once("Memory Latency Checker") {
                let version = version.trim_start_matches([' ', '-']).trim();
                let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
                self.version = Some(
                    version
                        .chars()
                        .take_while(|&letter| plain(letter))
                        .take(20)
                        .collect(),
                );
            } else if let Some(section) = section(text.trim()) {
                at = section;
                self.clear(at);
            } else if words.first().is_some_and(|word| word.starts_with('"')) {
                // A heading of lmbench.
                at = match text.starts_with("\"stride=") {
                    true => At::LatMemRd,
                    false => At::Nothing,
                };
            } else if self.lmbench.command(&words).map_err(wrong)?
                || hmat.line(text).map_err(wrong)?
                || words.first() == Some(&"node")
                    && words.len() > 2
                    && self.numactl_line(&words).map_err(wrong)?
            {
                at = At::Nothing;
            } else if !words.is_empty() {
                self.line(at, &words, &mut transfers, &mut distances)
                    .map_err(wrong)?;
            } else if at == At::LatMemRd {
                at = At::Nothing;
            }
        }
        self.rated = hmat.finish()?.or(self.rated.take());
        self.cache_to_cache.extend(transfers.in_words());
        if let Some(numactl) = &mut self.numactl
            && !distances.rows.is_empty()
        {
            numactl
                .take_distances(&distances)
                .map_err(|message| (1, message))?;
        }
        Ok(())
    }

    fn clear(&mut self, at: At) {
        match at {
            At::Latency => self.latency = None,
            At::RandomLatency => self.random_latency = None,
            At::Bandwidth => self.bandwidth = None,
            At::Peaks => self.peaks.clear(),
            At::Loaded => self.loaded.clear(),
            At::CacheToCache => self.cache_to_cache.clear(),
            At::Nothing | At::Distances | At::LatMemRd => {}
        }
    }

    /// Reads a line of a section.
    fn line(
        &mut self,
        at: At,
        words: &[&str],
        transfers: &mut Transfers,
        distances: &mut Table,
    ) -> Result<(), String> {
        match at {
            At::Nothing => Ok(()),
            At::Latency => self.latency.get_or_insert_default().line(words),
            At::RandomLatency => self.random_latency.get_or_insert_default().line(words),
            At::Bandwidth => self.bandwidth.get_or_insert_default().line(words),
            At::Distances => distances.line(words),
            At::CacheToCache => transfers.line(words),
            At::LatMemRd => self.lmbench.line(words),
            At::Loaded => match words {
                [delay, latency, rate] if delay.parse::<u32>().is_ok() => {
                    let (Some(latency), Some(rate)) = (figure(latency)?, figure(rate)?) else {
                        return Ok(());
                    };
                    self.loaded.push((rate, latency));
                    at_most(
                        self.loaded.len(),
                        POINTS_MAX,
                        "points of latency under load",
                    )
                }
                _ => Ok(()),
            },
            At::Peaks => {
                let text = words.join(" ");
                let Some((kind, rate)) = text.rsplit_once(':') else {
                    return Ok(());
                };
                let known = ["ALL Reads", "Reads-Writes", "Stream-triad"];
                if known.iter().any(|known| kind.contains(known))
                    && let Some(rate) = figure(rate.trim())?
                {
                    self.peaks
                        .push((kind.trim().chars().take(40).collect(), rate));
                }
                at_most(self.peaks.len(), LINES_MAX, "peak bandwidths")
            }
        }
    }

    /// Reads a line such as `node 0 cpus: 0 1` or `node 0 size: 64 MB`; is it such a line?
    fn numactl_line(&mut self, words: &[&str]) -> Result<bool, String> {
        let &[_, number, key, ref rest @ ..] = words else {
            return Ok(false);
        };
        let Ok(number) = number.parse::<u16>() else {
            return Ok(false);
        };
        if !["cpus:", "size:", "free:"].contains(&key) {
            return Ok(false);
        }
        let numactl = self.numactl.get_or_insert_default();
        let node = numactl.node(NodeId(number))?;
        match key {
            "cpus:" => {
                let cpus = rest.iter().map(|cpu| match cpu.parse::<u32>() {
                    Ok(cpu) if cpu <= CpuId::MAX => Ok(CpuId(cpu)),
                    _ => Err(format!("expected CPU numbers, found `{}`", shown(cpu))),
                });
                let cpus: CpuList = cpus.collect::<Result<_, String>>()?;
                node.cpus = cpus.as_slice().to_vec();
            }
            "size:" => {
                let mebibytes = rest.first().and_then(|size| size.parse::<u64>().ok());
                let bytes = mebibytes
                    .and_then(|size| size.checked_mul(1 << 20))
                    .filter(|&bytes| bytes <= i64::MAX as u64);
                let message = || {
                    format!(
                        "expected a size such as `64 MB`, found `{}`",
                        shown(&rest.join(" "))
                    )
                };
                node.memory_bytes = Some(bytes.ok_or_else(message)?);
            }
            _ => {}
        }
        Ok(true)
    }
}

/// The section that begins with the line.
fn section(line: &str) -> Option<At> {
    let starts = [
        ("Measuring idle latencies for random", At::RandomLatency),
        ("Measuring idle latencies", At::Latency),
        ("Measuring Memory Bandwidths between nodes", At::Bandwidth),
        ("Measuring Peak Injection", At::Peaks),
        ("Measuring Maximum Memory Bandwidths", At::Peaks),
        ("Measuring Loaded Latencies", At::Loaded),
        ("Measuring cache-to-cache", At::CacheToCache),
        ("node distances:", At::Distances),
        ("Measuring ", At::Nothing),
    ];
    starts
        .into_iter()
        .find(|(start, _)| line.starts_with(start))
        .map(|(_, at)| at)
}

impl Numactl {
    /// The node with this number; nodes are kept in order.
    fn node(&mut self, id: NodeId) -> Result<&mut Node, String> {
        let at = match self.nodes.binary_search_by_key(&id, |node| node.id) {
            Ok(at) => at,
            Err(at) => {
                at_most(self.nodes.len() + 1, NODES_MAX, "nodes")?;
                let node = Node {
                    id,
                    cpus: Vec::new(),
                    memory_bytes: None,
                    memory_kind: None,
                };
                self.nodes.insert(at, node);
                at
            }
        };
        Ok(&mut self.nodes[at])
    }

    fn take_distances(&mut self, table: &Table) -> Result<(), String> {
        let ids: Vec<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        let rows: Vec<NodeId> = table.rows.iter().map(|(id, _)| *id).collect();
        if table.columns != ids || rows != ids {
            return Err("`node distances:` has other nodes than the lines above it".to_owned());
        }
        let distance = |figure: &Option<f64>| figure.map_or(0, |figure| figure as u32);
        let rows = table
            .rows
            .iter()
            .map(|(_, row)| row.iter().map(distance).collect());
        self.distance = Some(rows.collect());
        Ok(())
    }
}

impl Table {
    /// A table of figures by pairs of nodes.
    pub fn of_pairs(pairs: &Pairs) -> Option<Self> {
        let mut columns: Vec<NodeId> = pairs.keys().map(|&(_, memory)| memory).collect();
        let mut rows: Vec<NodeId> = pairs.keys().map(|&(cpus, _)| cpus).collect();
        for list in [&mut columns, &mut rows] {
            list.sort_unstable();
            list.dedup();
        }
        let row = |cpus: NodeId| {
            let figure = |&memory: &NodeId| pairs.get(&(cpus, memory)).copied();
            (cpus, columns.iter().map(figure).collect())
        };
        let rows: Vec<_> = rows.into_iter().map(row).collect();
        (!rows.is_empty()).then_some(Self { columns, rows })
    }

    /// Reads a line: the numbers of columns, or a row.
    fn line(&mut self, words: &[&str]) -> Result<(), String> {
        let numbers = match words {
            ["Numa", "node", numbers @ ..] | ["Writer", "Numa", "Node", numbers @ ..] => {
                Some(numbers)
            }
            // The form of `numactl -H`.
            ["node", numbers @ ..] => Some(numbers),
            _ => None,
        };
        if let Some(numbers) = numbers {
            if !numbers.is_empty() {
                at_most(numbers.len(), NODES_MAX, "columns")?;
                self.columns = numbers
                    .iter()
                    .map(|number| node(number))
                    .collect::<Result<_, _>>()?;
            }
            return Ok(());
        }
        let Some(Ok(id)) = words.first().map(|word| node(word.trim_end_matches(':'))) else {
            // A line such as `Using buffer size of 200.000MiB`.
            return Ok(());
        };
        if self.columns.is_empty() {
            return Err("a row of a matrix before the line with its nodes".to_owned());
        }
        let figures = words[1..]
            .iter()
            .map(|word| figure(word))
            .collect::<Result<Vec<_>, _>>()?;
        if figures.len() != self.columns.len() {
            return Err(format!(
                "a row of {} figures in a matrix of {} columns",
                figures.len(),
                self.columns.len()
            ));
        }
        self.rows.push((id, figures));
        at_most(self.rows.len(), NODES_MAX, "rows")
    }
}

/// State of reading cache-to-cache latencies.
#[derive(Default)]
struct Transfers {
    lines: Vec<String>,
    title: Option<String>,
    table: Table,
}

impl Transfers {
    fn line(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            ["Local" | "Remote", "Socket", ..] => {
                self.finish();
                let text = words
                    .join(" ")
                    .chars()
                    .filter(|letter| !letter.is_control())
                    .take(80)
                    .collect::<String>();
                match words.last().and_then(|last| last.parse::<f64>().ok()) {
                    Some(ns) if ns.is_finite() => {
                        let title = text
                            .rsplit_once(' ')
                            .map_or(text.as_str(), |(title, _)| title);
                        self.lines.push(format!("cache to cache: {title} {ns} ns"));
                    }
                    _ => self.title = Some(text),
                }
                at_most(self.lines.len(), LINES_MAX, "cache-to-cache latencies")
            }
            ["Reader", "Numa", "Node"] => Ok(()),
            _ => self.table.line(words),
        }
    }

    /// Completes a matrix.
    fn finish(&mut self) {
        let table = std::mem::take(&mut self.table);
        let figures = table
            .rows
            .iter()
            .flat_map(|(_, row)| row.iter().flatten().copied());
        let (least, most) = figures.fold((f64::INFINITY, 0.0f64), |(least, most), ns| {
            (least.min(ns), most.max(ns))
        });
        if let Some(title) = self.title.take()
            && least <= most
        {
            self.lines
                .push(format!("cache to cache: {title} {least} to {most} ns"));
        }
    }

    fn in_words(mut self) -> Vec<String> {
        self.finish();
        self.lines
    }
}

fn node(word: &str) -> Result<NodeId, String> {
    word.parse()
        .map(NodeId)
        .map_err(|_| format!("expected a node's number, found `{}`", shown(word)))
}

/// A positive number; `None` for `-` and the like.
pub(super) fn figure(word: &str) -> Result<Option<f64>, String> {
    match word.parse::<f64>() {
        Ok(figure) if figure > 0.0 && figure < 1e15 => Ok(Some(figure)),
        _ if ["-", "N/A"].contains(&word) => Ok(None),
        _ => Err(format!(
            "expected a positive number or `-`, found `{}`",
            shown(word)
        )),
    }
}

fn at_most(count: usize, most: usize, what: &str) -> Result<(), String> {
    match count > most {
        true => Err(format!("more than {most} {what}")),
        false => Ok(()),
    }
}

/// The first 40 printable characters of a text.
pub(super) fn shown(text: &str) -> String {
    text.chars()
        .filter(|letter| !letter.is_control())
        .take(40)
        .collect()
}
