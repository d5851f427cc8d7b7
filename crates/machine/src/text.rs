//! Text output of a machine, with tables.

use std::fmt::Write;

use nearpage_amount::{bandwidth, bytes, counted, time};

use crate::{CacheKind, CpuList, Machine, Matrix, MemoryKind, NodeId, TransparentHugePages};

impl TransparentHugePages {
    /// Spelling of the kernel and of the machine file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Never => "never",
        }
    }
}

impl MemoryKind {
    /// Spelling of the machine file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Cxl => "cxl",
            Self::Hbm => "hbm",
            Self::Persistent => "persistent",
        }
    }

    /// Description for people.
    fn in_words(self) -> &'static str {
        match self {
            Self::Gpu => "of a GPU",
            Self::Cxl => "over CXL",
            Self::Hbm => "high-bandwidth",
            Self::Persistent => "persistent",
        }
    }
}

impl CacheKind {
    /// Spelling of the machine file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Instruction => "instruction",
            Self::Unified => "unified",
        }
    }
}

impl Machine {
    /// Text for people, in lines of at most `width` characters where words allow it. Matrices that do not fit are
    /// replaced by a note.
    pub fn to_text(&self, width: usize) -> String {
        let mut out = String::new();
        self.write_summary(&mut out, width);
        self.write_nodes(&mut out, width);
        if let Some(latency_ns) = &self.latency_ns {
            let title = "latency in ns (rows: CPU's node, columns: memory's)";
            self.matrix(&mut out, title, width, |row, column| {
                cell(latency_ns[row][column], 0)
            });
        }
        for (_, words, bytes_per_s) in self.bandwidth.matrices() {
            let title = format!("{words} bandwidth in GB/s (rows: CPUs' node, columns: memory's)");
            self.matrix(&mut out, &title, width, |row, column| {
                cell(bytes_per_s[row][column].map(|rate| rate / 1e9), 1)
            });
        }
        self.write_loaded_latencies(&mut out, width);
        if let Some(distance) = &self.distance {
            let title = "distance (10 is local; rows: CPU's node, columns: memory's)";
            self.matrix(&mut out, title, width, |row, column| {
                distance[row][column].to_string()
            });
        }
        self.write_caches(&mut out);
        self.write_devices(&mut out, width);
        for line in self.timing_lines() {
            wrap(&mut out, &line, width);
        }
        out
    }

    fn write_summary(&self, out: &mut String, width: usize) {
        let cpus = self.cpus().as_slice().len() as u64;
        let nodes = self.nodes.len() as u64;
        let threads_per_core = self.cores.iter().map(Vec::len).max().unwrap_or(1);
        let smt = if threads_per_core > 1 {
            format!(" ({threads_per_core} a core)")
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "{}: {}, {}{smt}",
            self.name,
            counted(nodes, "node"),
            counted(cpus, "CPU")
        );
        if !self.source.is_empty() {
            wrap(out, &format!("source: {}", self.source), width);
        }
        for note in &self.notes {
            wrap(out, &format!("note: {note}"), width);
        }
        let mut pages = format!("pages: {}", bytes(self.page_bytes));
        if let Some(huge) = self.huge_page_bytes {
            let _ = write!(pages, ", huge {}", bytes(huge));
        }
        if let Some(mode) = self.transparent_huge_pages {
            let _ = write!(pages, ", transparent: {}", mode.as_str());
        }
        let _ = writeln!(out, "{pages}\n");
    }

    fn write_nodes(&self, out: &mut String, width: usize) {
        for node in &self.nodes {
            let cpus: CpuList = node.cpus.iter().copied().collect();
            let cpus = if node.cpus.is_empty() {
                "no CPUs".to_owned()
            } else {
                format!("CPUs {cpus}")
            };
            let memory = match node.memory_bytes {
                Some(0) => ", no memory".to_owned(),
                Some(size) => format!(", {}", bytes(size)),
                None => String::new(),
            };
            let kind = node.memory_kind.map_or("", MemoryKind::in_words);
            let space = if kind.is_empty() { "" } else { " " };
            wrap(
                out,
                &format!("node {}: {cpus}{memory}{space}{kind}", node.id),
                width,
            );
        }
        for kind in &self.cpu_kinds {
            let cpus: CpuList = kind.cpus.iter().copied().collect();
            wrap(out, &format!("{}: CPUs {cpus}", kind.name), width);
        }
    }

    fn write_loaded_latencies(&self, out: &mut String, width: usize) {
        for node in &self.nodes {
            let points: Vec<String> = self
                .loaded_latencies
                .iter()
                .filter(|point| point.node == node.id)
                .map(|point| {
                    format!(
                        "{:.0} at {:.1}",
                        point.latency_ns,
                        point.bandwidth_bytes_per_s / 1e9
                    )
                })
                .collect();
            if !points.is_empty() {
                let points = points.join(", ");
                out.push('\n');
                wrap(
                    out,
                    &format!("node {} under load, ns at GB/s read: {points}", node.id),
                    width,
                );
            }
        }
    }

    fn write_caches(&self, out: &mut String) {
        if !self.caches.is_empty() {
            out.push('\n');
        }
        for cache in &self.caches {
            let kind = match cache.kind {
                CacheKind::Data => "d",
                CacheKind::Instruction => "i",
                CacheKind::Unified => "",
            };
            let ways = if cache.associativity > 0 {
                format!(", {} ways", cache.associativity)
            } else {
                String::new()
            };
            let _ = writeln!(
                out,
                "L{}{kind}: {}, lines of {} B{ways}, shared by {}",
                cache.level,
                bytes(cache.size_bytes),
                cache.line_bytes,
                counted(cache.shared_by_cpus.into(), "CPU"),
            );
        }
        for cache in &self.memory_caches {
            let line = cache
                .line_bytes
                .map_or(String::new(), |line| format!(", lines of {line} B"));
            let _ = writeln!(
                out,
                "in front of node {}: {}{line}",
                cache.node,
                bytes(cache.size_bytes)
            );
        }
    }

    /// Writes a line for each node with devices.
    fn write_devices(&self, out: &mut String, width: usize) {
        if !self.devices.is_empty() {
            out.push('\n');
        }
        for line in self.device_lines() {
            wrap(out, &line, width);
        }
    }

    /// A line for each node with devices, such as `next to node 1: gpu0 (0000:3b:00.0), nic1 (0000:5e:00.0)`.
    pub fn device_lines(&self) -> Vec<String> {
        let nodes = self.nodes.iter().map(|node| Some(node.id));
        let line = |node: Option<NodeId>| {
            let near = self.devices.iter().filter(|device| device.node == node);
            let names: Vec<String> = near
                .map(|device| format!("{device} ({})", device.pci))
                .collect();
            let place = match node {
                Some(node) => format!("next to node {node}"),
                None => "node not known".to_owned(),
            };
            (!names.is_empty()).then(|| format!("{place}: {}", names.join(", ")))
        };
        nodes.chain([None]).filter_map(line).collect()
    }

    /// Lines about known figures that only simulations use.
    fn timing_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for tlb in &self.tlbs {
            let kind = match tlb.kind {
                CacheKind::Data => " (data)",
                CacheKind::Instruction => " (instructions)",
                CacheKind::Unified => "",
            };
            let reserved = match tlb.reserved {
                0 => String::new(),
                reserved => format!(", {reserved} of them reserved"),
            };
            lines.push(format!(
                "TLB, level {}{kind}: {} entries{reserved}",
                tlb.level, tlb.entries
            ));
        }
        let parts = [
            self.processor.clock_ghz.map(|clock| format!("{clock} GHz")),
            self.processor
                .outstanding_misses
                .map(|misses| format!("{misses} outstanding misses")),
            self.memory
                .bandwidth_bytes_per_s
                .map(|rate| format!("{} from a node's memory", bandwidth(rate))),
            self.memory
                .directory_ns
                .map(|ns| format!("{ns} ns of a directory for each request")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if !parts.is_empty() {
            lines.push(parts.join(", "));
        }
        for link in &self.links {
            let [a, b] = link.nodes;
            lines.push(format!(
                "link {a}-{b}: {} each way",
                bandwidth(link.bandwidth_bytes_per_s)
            ));
        }
        if let Some(coherence) = &self.coherence {
            let probes = match coherence.probe_bytes {
                0 => "packets, no probes",
                _ => "probes to all nodes",
            };
            lines.push(format!("coherence: {probes}"));
        }
        if let Some(prefetcher) = &self.prefetcher {
            lines.push(format!(
                "prefetcher: {}, {} ahead",
                counted(prefetcher.streams.into(), "stream"),
                counted(prefetcher.steps_ahead.into(), "step")
            ));
        }
        match (&self.moves.steps, self.moves.fixed_ns) {
            (Some(_), _) => lines.push("moving a page: by step".to_owned()),
            (None, Some(ns)) => lines.push(format!("moving a page: {}", time(ns))),
            (None, None) => {}
        }
        lines
    }

    /// Standard deviation of a measured latency, as a matrix like those of [`Machine::to_text`].
    pub fn deviation_text(&self, deviation_ns: &Matrix, rounds: u32, width: usize) -> String {
        let mut out = String::new();
        let title = format!(
            "standard deviation of the latency in ns, over {}",
            counted(rounds.into(), "round")
        );
        self.matrix(&mut out, &title, width, |row, column| {
            cell(deviation_ns[row][column], 2)
        });
        out
    }

    fn matrix(
        &self,
        out: &mut String,
        title: &str,
        width: usize,
        cell: impl Fn(usize, usize) -> String,
    ) {
        let count = self.nodes.len();
        let cells: Vec<Vec<String>> = (0..count)
            .map(|row| (0..count).map(|column| cell(row, column)).collect())
            .collect();
        let heads: Vec<String> = self.nodes.iter().map(|node| node.id.to_string()).collect();
        let column_width = 2 + cells
            .iter()
            .flatten()
            .chain(&heads)
            .map(String::len)
            .max()
            .unwrap_or(1);
        let _ = writeln!(out, "\n{title}");
        if column_width * (count + 1) > width {
            let _ = writeln!(
                out,
                "  {count} × {count}: too wide to print here; `--toml` has it"
            );
            return;
        }
        let line = |out: &mut String, head: &str, row: &[String]| {
            let _ = write!(out, "{head:>column_width$}");
            for cell in row {
                let _ = write!(out, "{cell:>column_width$}");
            }
            out.push('\n');
        };
        line(out, "", &heads);
        for (head, row) in heads.iter().zip(&cells) {
            line(out, head, row);
        }
    }
}

fn cell(value: Option<f64>, decimals: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// Adds a line to `out`, broken between words to at most `width` characters where words allow it.
pub fn wrap(out: &mut String, text: &str, width: usize) {
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            out.push_str("\n  ");
            used = 2;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += length;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use crate::{PRESET_NAMES, preset};

    #[test]
    fn opteron_in_text() {
        let text = preset("opteron-4").expect("preset").to_text(80);
        let expected = "\
opteron-4: 4 nodes, 4 CPUs
source: Marathe, Thakkar, Mueller 2010, section 9.2 and Table 2; AMD's page on
  the Opteron's memory, cpu-world.com on its links
note: caches are assumed to be those of other Opterons with one core: the paper
  does not name the model
note: the kind of memory is assumed: two channels of PC2700, 5.3 GB/s to a node
note: the clock of the links is assumed: 16 bits at 800 MHz and both edges, 3.2
  GB/s each way
note: the clock and the sizes of memory are not known
pages: 4 KiB, huge 2 MiB

node 0: CPUs 0
node 1: CPUs 1
node 2: CPUs 2
node 3: CPUs 3

latency in ns (rows: CPU's node, columns: memory's)
         0    1    2    3
    0  102  138  172  140
    1  143  107  141  172
    2  179  141  102  141
    3  141  175  142  108

L1d: 64 KiB, lines of 64 B, 2 ways, shared by 1 CPU
L1i: 64 KiB, lines of 64 B, 2 ways, shared by 1 CPU
L2: 1 MiB, lines of 64 B, 16 ways, shared by 1 CPU
5.3 GB/s from a node's memory
link 0-1: 3.2 GB/s each way
link 1-2: 3.2 GB/s each way
link 2-3: 3.2 GB/s each way
link 3-0: 3.2 GB/s each way
";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_is_known_of_bandwidth_is_shown() {
        let text = format!(
            "{}[bandwidth]\nread_bytes_per_s = [{}]\n{}",
            preset("opteron-4").expect("preset").to_toml(),
            "[6.4e9, 3e9, 1.25e9, nan], ".repeat(4),
            "[[loaded_latency]]\nnode = 2\nbandwidth_bytes_per_s = 2.25e9\nlatency_ns = 130.4\n"
                .repeat(6),
        );
        let machine = crate::Machine::from_toml(&text, "o.toml").expect("reads");
        let text = machine.to_text(72);
        let expected = "
read bandwidth in GB/s (rows: CPUs' node, columns: memory's)
         0    1    2    3
    0  6.4  3.0  1.2    -
    1  6.4  3.0  1.2    -
    2  6.4  3.0  1.2    -
    3  6.4  3.0  1.2    -

node 2 under load, ns at GB/s read: 130 at 2.2, 130 at 2.2, 130 at 2.2,
  130 at 2.2, 130 at 2.2, 130 at 2.2
";
        assert!(text.contains(expected), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 72),
            "{text}"
        );
    }

    #[test]
    fn keeps_within_the_width() {
        for name in PRESET_NAMES {
            let text = preset(name).expect(name).to_text(72);
            assert!(
                text.lines().all(|line| line.chars().count() <= 72),
                "{text}"
            );
        }
    }
}
