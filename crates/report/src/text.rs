//! Text of the report.
//!
//! Over 500 lines: the tables of objects, threads and pages share their columns.

use std::fmt::Write;
use std::ops::Range;

use nearpage_amount::{bytes, count, counted, percent, time};
use nearpage_attribution::{Confidence, Names, ObjectGroup, OperationTotals, place};
use nearpage_machine::CpuId;
use nearpage_recording::generated_code;
use rustc_hash::FxHashMap;

use crate::{
    Content, Locate,
    emphasis::{HEADING, alarm, painted},
    matrix::matrix,
    name::{counted_name, created, hot_frame, pattern_words, thread_name, threads_at_work},
    printable::{printable, shorten},
    table::{Column, lines, words, wrap, wrapped},
};

/// Rows of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupBy {
    /// Objects.
    #[default]
    Object,
    /// Threads.
    Thread,
    /// Pages of objects.
    Page,
    /// Groups of an object's pages, with a column for each thread.
    Matrix,
    /// Functions that allocated, as a tree.
    CallSite,
}

/// Kinds of accesses that are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// Loads and stores.
    #[default]
    Both,
    /// Loads.
    Loads,
    /// Stores.
    Stores,
}

/// Sort key of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Time lost.
    #[default]
    Cost,
    /// Number of accesses.
    Accesses,
    /// Number of accesses to another node.
    Remote,
}

/// Options of the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextOptions {
    /// Columns of the terminal; no line is wider.
    pub width: usize,
    /// Rows of the report.
    pub by: GroupBy,
    /// Kinds of accesses that are shown.
    pub count: Count,
    /// Sort key of the rows.
    pub sort: Sort,
    /// Maximum number of rows.
    pub top: usize,
    /// Minimum share of an object, 0 to 1, of the sum of the sort key; smaller objects have no row.
    pub share_min: f64,
    /// Emphasise with escape sequences.
    pub colour: bool,
}

impl Default for TextOptions {
    fn default() -> Self {
        TextOptions {
            width: 80,
            by: GroupBy::Object,
            count: Count::Both,
            sort: Sort::Cost,
            top: 20,
            share_min: 0.005,
            colour: false,
        }
    }
}

/// Minimum width of the text; a narrower terminal breaks lines.
const WIDTH_MIN: usize = 40;
/// Maximum number of objects whose matrix is shown.
const MATRICES_MAX: usize = 5;
/// How functions that a program's runtime compiles get names.
const NAMES_OF_GENERATED_CODE: &str = "addresses without a name are of generated code: its functions have names if \
     the runtime writes them to /tmp/perf-PID.map (Node.js: --perf-basic-prof; OpenJDK: \
     -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit)";
/// Indentation of lines that continue a row.
const INDENT: usize = 6;

/// Text of the report: a summary of the accesses, then rows in the order of the sort key.
pub fn text(content: &Content, options: &TextOptions, locate: &mut impl Locate) -> String {
    let page = Page {
        options: TextOptions {
            width: options.width.max(WIDTH_MIN),
            ..*options
        },
        content: *content,
    };
    let mut out = page.summary();
    match options.by {
        GroupBy::Object => {
            let (confidences, remedy) = content.confidences();
            let shows_generated_code = page.objects(&mut out, &confidences, locate);
            let hint = shows_generated_code.then(|| NAMES_OF_GENERATED_CODE.to_owned());
            for line in remedy.into_iter().chain(hint) {
                out.push_str(&(wrapped(&line, page.options.width) + "\n"));
            }
        }
        GroupBy::Thread => page.threads(&mut out),
        GroupBy::Page => page.pages(&mut out),
        GroupBy::Matrix => page.matrices(&mut out),
        GroupBy::CallSite => page.call_sites(&mut out),
    }
    if let Some(statistics) = content.trace {
        out.push('\n');
        out.push_str(&crate::trace::lines(statistics, page.options.width));
    }
    for note in content.notes.iter().filter(|note| !needs_no_action(note)) {
        out.push('\n');
        let words: Vec<String> = printable(note)
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        out.push_str(&wrap(&words, " ", page.options.width, 0));
        out.push('\n');
    }
    out
}

/// Does a note require no action? `doctor` already says that a machine has no PMU.
pub fn needs_no_action(note: &str) -> bool {
    note.starts_with("source clock, not pmu: the kernel names no PMU")
}

/// Words for the number of accesses, and for the number of samples if the two differ.
fn accesses(weight: f64, samples: u64) -> String {
    let accesses = weight.round_ties_even() as u64;
    let in_words = counted(accesses, "access");
    match samples {
        0 => in_words,
        _ if samples == accesses => in_words,
        _ => format!("{in_words} ({} by weight)", counted(samples, "sample")),
    }
}

/// Heat map of the costliest object, or of the named object.
///
/// # Errors
/// No object or several objects have the name, or the recording has no accesses to objects.
pub fn heatmap(content: &Content, options: &TextOptions, object: &str) -> Result<String, String> {
    let Content {
        attribution,
        tables,
        ..
    } = *content;
    let page = Page {
        options: TextOptions {
            width: options.width.max(WIDTH_MIN),
            ..*options
        },
        content: *content,
    };
    let groups = &attribution.objects;
    let shown = |group: &ObjectGroup| page.shown(&group.loads, &group.stores);
    let mut order: Vec<usize> = (0..groups.len())
        .filter(|&at| shown(&groups[at]).accesses() > 0.0)
        .collect();
    let key = |at: usize| shown(&groups[at]).key(options.sort);
    order.sort_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
    let known = Names::new(tables, groups);
    let name = |at: usize| printable(&known.of(&groups[at]));
    let wanted = object.to_lowercase();
    let exact = order.iter().find(|&&at| name(at) == object).copied();
    let containing: Vec<usize> = order
        .iter()
        .copied()
        .filter(|&at| name(at).to_lowercase().contains(&wanted))
        .collect();
    let chosen = match (exact, containing.as_slice()) {
        (Some(at), _) => at,
        // Without a name, the first object is chosen.
        (None, [first, ..]) if object.is_empty() => *first,
        (None, [only]) => *only,
        (None, []) if order.is_empty() => {
            return Err("no object was accessed in this recording".to_owned());
        }
        (None, []) => {
            let costliest: Vec<String> = order.iter().take(3).map(|&at| name(at)).collect();
            return Err(format!(
                "no object is called `{object}`; the costliest: {}",
                costliest.join(", ")
            ));
        }
        (None, several) => {
            let names: Vec<String> = several.iter().take(5).map(|&at| name(at)).collect();
            return Err(format!(
                "{} objects contain `{object}`: {}",
                several.len(),
                names.join(", ")
            ));
        }
    };
    let picture = crate::heat::heatmap(tables, &groups[chosen], &name(chosen), &page.options);
    picture.ok_or_else(|| "no such access to this object was recorded".to_owned())
}

struct Page<'a> {
    options: TextOptions,
    content: Content<'a>,
}

/// Sums of the shown loads and stores of a row.
#[derive(Clone, Copy, Default)]
struct RowTotals {
    loads: f64,
    stores: f64,
    remote: f64,
    node_known: f64,
    cost_ns: f64,
}

impl RowTotals {
    fn accesses(&self) -> f64 {
        self.loads + self.stores
    }

    fn plus(self, other: Self) -> Self {
        Self {
            loads: self.loads + other.loads,
            stores: self.stores + other.stores,
            remote: self.remote + other.remote,
            node_known: self.node_known + other.node_known,
            cost_ns: self.cost_ns + other.cost_ns,
        }
    }

    fn key(&self, sort: Sort) -> f64 {
        match sort {
            Sort::Cost => self.cost_ns,
            Sort::Accesses => self.accesses(),
            Sort::Remote => self.remote,
        }
    }
}

impl Page<'_> {
    fn shown(&self, loads: &OperationTotals, stores: &OperationTotals) -> RowTotals {
        let none = OperationTotals::default();
        let loads = if self.options.count == Count::Stores {
            &none
        } else {
            loads
        };
        let stores = if self.options.count == Count::Loads {
            &none
        } else {
            stores
        };
        RowTotals {
            loads: loads.count,
            stores: stores.count,
            remote: loads.remote + stores.remote,
            node_known: loads.node_known + stores.node_known,
            cost_ns: loads.cost_ns + stores.cost_ns,
        }
    }

    fn summary(&self) -> String {
        let Content {
            attribution,
            tables,
            source,
            ..
        } = self.content;
        let (counts, totals) = (&attribution.counts, &attribution.totals);
        let shares_of = if totals.accesses > 0.0 {
            totals.accesses
        } else {
            1.0
        };
        let working = attribution
            .threads
            .iter()
            .filter(|t| t.loads.count + t.stores.count > 0.0)
            .count();
        let cached: u64 = tables.cached_samples.iter().sum();
        let cached = (cached > 0).then(|| {
            let samples = count(cached as f64);
            format!("{samples} of cached lines, at no cost")
        });
        let first = [
            accesses(totals.accesses, counts.accesses),
            threads_at_work(working, &created(&tables.threads)),
            format!("source {}", source.as_str()),
            format!("{} lost", counted(counts.lost, "sample")),
            format!("{} undecoded", count(counts.undecoded as f64)),
            format!("{} computation", count(counts.compute as f64)),
        ];
        let kinds = [
            ("heap", totals.heap),
            ("static", totals.statics),
            ("mappings", totals.mapping),
            ("stacks", totals.stack),
            ("thread-local", totals.tls),
            ("code", totals.code),
            ("heap outside known objects", totals.heap_unresolved),
            ("unknown", totals.unknown),
        ];
        let second: Vec<String> = kinds
            .iter()
            .filter(|(_, weight)| *weight > 0.0)
            .map(|(name, weight)| format!("{name} {}", percent(weight / shares_of)))
            .collect();
        let width = self.options.width;
        let first = first.into_iter().chain(cached).collect();
        let lines = [first, second];
        let lines = lines.iter().filter(|words| !words.is_empty());
        lines
            .map(|words| wrap(words, ", ", width, 2) + "\n")
            .collect()
    }

    /// Writes the heading of a table, unless it has no rows.
    fn head(&self, out: &mut String, heading: &str, rows: usize) {
        if rows > 0 {
            let heading = painted(heading, HEADING, self.options.colour);
            let _ = writeln!(out, "\n{heading}");
        }
    }

    /// Positions of the rows to show, in order, and a line about the hidden rows.
    fn order(&self, rows: &[RowTotals]) -> (Vec<usize>, String) {
        let mut order: Vec<usize> = (0..rows.len())
            .filter(|&row| rows[row].accesses() > 0.0)
            .collect();
        let key = |row: usize| rows[row].key(self.options.sort);
        order.sort_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
        let share_min = match self.options.by {
            GroupBy::Object => self.options.share_min,
            _ => 0.0,
        };
        let key_min = share_min * order.iter().map(|&row| key(row)).sum::<f64>();
        let large = order.iter().take_while(|&&row| key(row) >= key_min);
        let first_small = large.count();
        let hidden = order.split_off(self.options.top.min(first_small));
        let all: f64 = rows.iter().map(|row| row.cost_ns).sum();
        let cost: f64 = hidden.iter().map(|&row| rows[row].cost_ns).sum();
        let share = percent(if all > 0.0 { cost / all } else { 0.0 });
        let rest = match hidden.len() {
            0 => String::new(),
            more if first_small < self.options.top => format!(
                "… and {more} more below {} each, {share} of the cost (--all)\n",
                percent(share_min)
            ),
            more => format!("… and {more} more, {share} of the cost\n"),
        };
        (order, rest)
    }

    /// Columns that all kinds of rows have.
    fn columns(&self, all: &[RowTotals], rows: &[RowTotals]) -> Vec<Column> {
        let cost: f64 = all.iter().map(|row| row.cost_ns).sum();
        let cells = |cell: &dyn Fn(&RowTotals) -> String| rows.iter().map(cell).collect::<Vec<_>>();
        let share = |row: &RowTotals| percent(if cost > 0.0 { row.cost_ns / cost } else { 0.0 });
        let mut columns = vec![
            Column {
                title: "cost",
                rank: 9,
                cells: cells(&share),
            },
            Column {
                title: "time",
                rank: 2,
                cells: cells(&|row| time(row.cost_ns)),
            },
        ];
        if self.options.count != Count::Stores {
            columns.push(Column {
                title: "loads",
                rank: 6,
                cells: cells(&|row| count(row.loads)),
            });
        }
        if self.options.count != Count::Loads {
            columns.push(Column {
                title: "stores",
                rank: 5,
                cells: cells(&|row| count(row.stores)),
            });
        }
        if self.content.nodes > 1 {
            let remote = |row: &RowTotals| match row.node_known > 0.0 {
                true => {
                    let share = row.remote / row.node_known;
                    painted(&percent(share), alarm(share), self.options.colour)
                }
                false => "?".to_owned(),
            };
            columns.push(Column {
                title: "remote",
                rank: 8,
                cells: cells(&remote),
            });
        }
        columns
    }

    /// Writes the table of objects. Returns whether it shows addresses of generated code.
    fn objects(
        &self,
        out: &mut String,
        confidences: &[Option<Confidence>],
        locate: &mut impl Locate,
    ) -> bool {
        let Content {
            attribution,
            tables,
            ..
        } = self.content;
        let all: Vec<RowTotals> = attribution
            .objects
            .iter()
            .map(|group| self.shown(&group.loads, &group.stores))
            .collect();
        let (order, rest) = self.order(&all);
        let groups: Vec<&ObjectGroup> =
            order.iter().map(|&row| &attribution.objects[row]).collect();
        let confidences: Vec<Option<Confidence>> =
            order.iter().map(|&row| confidences[row]).collect();
        let rows: Vec<RowTotals> = order.iter().map(|&row| all[row]).collect();
        let mut columns = self.columns(&all, &rows);
        let size = groups.iter().map(|group| bytes(group.size_bytes)).collect();
        let threads = groups
            .iter()
            .map(|group| group.threads.len().to_string())
            .collect();
        columns.push(Column {
            title: "size",
            rank: 7,
            cells: size,
        });
        columns.push(Column {
            title: "threads",
            rank: 3,
            cells: threads,
        });
        columns.extend(confidence_column(&confidences));
        let known_names = Names::new(tables, &attribution.objects);
        let names: Vec<String> = groups
            .iter()
            .map(|group| printable(&counted_name(&known_names.of(group), group.instances)))
            .collect();
        let (heading, lines) = lines(columns, "object", &names, self.options.width);
        self.head(out, &heading, lines.len());
        let generated: Vec<Range<u64>> = generated_code(&tables.objects)
            .map(|code| code.address..code.address.saturating_add(code.size_bytes))
            .collect();
        let mut shows_generated_code = false;
        for ((group, confidence), line) in groups.into_iter().zip(confidences).zip(lines) {
            let pattern = pattern_words(&group.pattern, &attribution.teams, &tables.threads);
            let mut parts: Vec<String> = pattern.split(", ").map(str::to_owned).collect();
            if let Some(processes) = group.sharing_processes(&tables.threads) {
                parts.push(format!("shared by {}", counted(processes, "process")));
            }
            if let Some(unsure) = confidence.filter(|one| !one.is_sure()) {
                parts.push(format!("not sure ({})", counted(unsure.samples, "sample")));
            }
            // Imported samples may lack an instruction.
            let hot = group.hot.first();
            if let Some(hot) = hot.filter(|hot| hot.module.is_some() || hot.offset > 0) {
                let frame = hot_frame(hot.module, hot.offset, locate);
                shows_generated_code |=
                    hot.module.is_none() && generated.iter().any(|code| code.contains(&hot.offset));
                let place = printable(&place(tables, &frame));
                // Template arguments can fill a screen.
                let place = shorten(&place, self.options.width - INDENT);
                parts.push(format!("most in {place}"));
            }
            let indent = " ".repeat(INDENT);
            let _ = writeln!(out, "{line}");
            let words = words(&parts.join(", "));
            let details = wrap(&words, " ", self.options.width - INDENT, 0)
                .replace('\n', &format!("\n{indent}"));
            let _ = writeln!(out, "{indent}{details}");
        }
        out.push_str(&rest);
        shows_generated_code
    }

    /// Writes the tree of allocating functions, with the sums of their objects.
    fn call_sites(&self, out: &mut String) {
        let groups = &self.content.attribution.objects;
        let shown = |group: &ObjectGroup| self.shown(&group.loads, &group.stores);
        let all: Vec<RowTotals> = groups.iter().map(shown).collect();
        let positions: Vec<usize> = (0..groups.len())
            .filter(|&at| all[at].accesses() > 0.0)
            .collect();
        let key = |at: usize| all[at].key(self.options.sort);
        let branches = crate::tree::tree(self.content.tables, groups, &positions, &key);
        let rows: Vec<RowTotals> = branches
            .iter()
            .map(|branch| {
                let of_branch = branch.objects.iter().map(|&at| all[at]);
                of_branch.fold(RowTotals::default(), RowTotals::plus)
            })
            .collect();
        let hidden = branches.len().saturating_sub(self.options.top);
        let shown_rows = &rows[..rows.len() - hidden];
        let columns = self.columns(&all, shown_rows);
        let names: Vec<String> = branches.into_iter().map(|branch| branch.name).collect();
        let (heading, lines) = lines(
            columns,
            "call site",
            &names[..shown_rows.len()],
            self.options.width,
        );
        self.head(out, &heading, lines.len());
        for line in lines {
            let _ = writeln!(out, "{line}");
        }
        if hidden > 0 {
            let _ = writeln!(out, "… and {} more", counted(hidden as u64, "line"));
        }
    }

    /// Writes the matrices of pages and threads of the first objects.
    fn matrices(&self, out: &mut String) {
        let Content {
            attribution,
            tables,
            ..
        } = self.content;
        let shown = |group: &ObjectGroup| self.shown(&group.loads, &group.stores);
        let all: Vec<RowTotals> = attribution.objects.iter().map(shown).collect();
        let (mut order, _) = self.order(&all);
        let more = order.split_off(MATRICES_MAX.min(order.len()));
        let names = Names::new(tables, &attribution.objects);
        for &row in &order {
            let group = &attribution.objects[row];
            let name = printable(&names.of(group));
            if let Some(matrix) = matrix(tables, group, &name, &self.options) {
                out.push('\n');
                out.push_str(&matrix);
            }
        }
        if !more.is_empty() {
            let more = counted(more.len() as u64, "object");
            let _ = writeln!(
                out,
                "… and {more} more: --json --by page has all pages of all objects"
            );
        }
    }

    fn threads(&self, out: &mut String) {
        let Content {
            attribution,
            tables,
            ..
        } = self.content;
        let all: Vec<RowTotals> = attribution
            .threads
            .iter()
            .map(|totals| self.shown(&totals.loads, &totals.stores))
            .collect();
        let (order, rest) = self.order(&all);
        let rows: Vec<RowTotals> = order.iter().map(|&row| all[row]).collect();
        let mut columns = self.columns(&all, &rows);
        let thread = |row: usize| tables.threads.get(row);
        let created = created(&tables.threads);
        let tid = order.iter().map(|&row| {
            thread(row).map_or_else(|| "?".to_owned(), |thread| thread.tid.to_string())
        });
        columns.push(Column {
            title: "tid",
            rank: 7,
            cells: tid.collect(),
        });
        let names: Vec<String> = order
            .iter()
            .map(|&row| {
                let name = thread(row).map_or(String::new(), thread_name);
                let successors = match created.get(row) {
                    Some(&count) if count > 1 => format!(", {count} one after another"),
                    _ => String::new(),
                };
                format!(
                    "{name}{successors}, CPU {}",
                    cpus(&attribution.threads[row].cpus)
                )
            })
            .collect();
        let (heading, lines) = lines(columns, "thread", &names, self.options.width);
        self.head(out, &heading, lines.len());
        for line in lines {
            let _ = writeln!(out, "{line}");
        }
        out.push_str(&rest);
    }

    #[expect(
        clippy::too_many_lines,
        reason = "one picture of a page, from its top to its bottom"
    )]
    fn pages(&self, out: &mut String) {
        let Content {
            attribution,
            tables,
            ..
        } = self.content;
        // For each accessed page of an object: the sums over threads; and below, the accesses of each thread.
        let mut pages: Vec<(usize, u32, RowTotals)> = Vec::new();
        let mut users: Vec<FxHashMap<u32, f64>> = Vec::new();
        for (number, group) in attribution.objects.iter().enumerate() {
            let mut cells: Vec<_> = group
                .affinity
                .cells
                .iter()
                .chain(&group.affinity.initialisation)
                .collect();
            cells.sort_by_key(|cell| cell.page);
            for cell in cells {
                if pages
                    .last()
                    .is_none_or(|&(object, page, _)| (object, page) != (number, cell.page))
                {
                    pages.push((number, cell.page, RowTotals::default()));
                    users.push(FxHashMap::default());
                }
                let (Some((.., shown)), Some(users)) = (pages.last_mut(), users.last_mut()) else {
                    continue;
                };
                let loads = if self.options.count == Count::Stores {
                    0.0
                } else {
                    f64::from(cell.loads)
                };
                let stores = if self.options.count == Count::Loads {
                    0.0
                } else {
                    f64::from(cell.stores)
                };
                shown.loads += loads;
                shown.stores += stores;
                // A cell has one cost for loads and stores together.
                let accesses = f64::from(cell.loads + cell.stores);
                let part = if accesses > 0.0 {
                    (loads + stores) / accesses
                } else {
                    0.0
                };
                shown.cost_ns += f64::from(cell.cost_ns) * part;
                *users.entry(cell.thread.0).or_default() += loads + stores;
            }
        }
        let all: Vec<RowTotals> = pages.iter().map(|&(.., shown)| shown).collect();
        let (order, rest) = self.order(&all);
        let rows: Vec<RowTotals> = order.iter().map(|&row| all[row]).collect();
        let mut columns = self.columns(&all, &rows);
        columns.retain(|column| column.title != "remote");
        let group = |row: usize| &attribution.objects[pages[row].0];
        let offset =
            |row: usize| u64::from(pages[row].1).saturating_mul(group(row).affinity.page_bytes);
        let column = |title, rank, cell: &dyn Fn(usize) -> String| Column {
            title,
            rank,
            cells: order.iter().map(|&row| cell(row)).collect(),
        };
        columns.push(column("at", 8, &|row| bytes(offset(row))));
        columns.push(column("page", 3, &|row| {
            bytes(group(row).affinity.page_bytes)
        }));
        columns.push(column("threads", 4, &|row| users[row].len().to_string()));
        let main_user = |row: usize| {
            let top = users[row]
                .iter()
                .max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)));
            let Some((thread, accesses)) = top else {
                return String::new();
            };
            let tid = tables
                .threads
                .get(*thread as usize)
                .map_or(0, |thread| thread.tid);
            format!(
                "{tid}:{}",
                percent(accesses / all[row].accesses().max(1e-9))
            )
        };
        columns.push(column("most by tid", 5, &main_user));
        let all_names = Names::new(tables, &attribution.objects);
        let mut known: FxHashMap<usize, String> = FxHashMap::default();
        let names: Vec<String> = order
            .iter()
            .map(|&row| {
                let name = known
                    .entry(pages[row].0)
                    .or_insert_with(|| printable(&all_names.of(group(row))));
                name.clone()
            })
            .collect();
        let (heading, lines) = lines(columns, "object", &names, self.options.width);
        self.head(out, &heading, lines.len());
        for line in lines {
            let _ = writeln!(out, "{line}");
        }
        out.push_str(&rest);
    }
}

/// Column of the patterns' confidence; `None` if no confidence is known.
fn confidence_column(confidences: &[Option<Confidence>]) -> Option<Column> {
    let cell = |one: &Option<Confidence>| one.map_or(String::new(), |one| percent(one.share));
    confidences.iter().any(Option::is_some).then(|| Column {
        title: "sure",
        // The row's words already name patterns that are not sure, so the column has a low priority.
        rank: 1,
        cells: confidences.iter().map(cell).collect(),
    })
}

/// CPU numbers in the kernel's notation: `0-3,7`.
fn cpus(cpus: &[(CpuId, f64)]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &(CpuId(cpu), _) in cpus {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(cpu) => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let range = |&(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}
