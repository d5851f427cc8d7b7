//! Tables of processes, objects and decisions: columns by width, order of rows, and filter.

use std::cmp::Ordering;

use nearpage_amount::{bytes, count, percent};
use nearpage_report::mappings::{Mapping, mapping_of};
use nearpage_report::width;

use crate::model::{Decision, Kind, Model, Process};
use crate::objects::{Object, objects};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Heading of the column.
    pub title: String,
    /// Width on the terminal.
    pub width: usize,
    /// On a narrow terminal, columns with the lowest rank are dropped first.
    pub rank: u8,
    /// Does the column contain words, which are aligned to the left and sorted from A?
    pub is_text: bool,
}

impl Column {
    fn number(title: &str, width: usize, rank: u8) -> Self {
        Self {
            title: title.to_owned(),
            width,
            rank,
            is_text: false,
        }
    }

    fn text(title: &str, width: usize, rank: u8) -> Self {
        Self {
            is_text: true,
            ..Self::number(title, width, rank)
        }
    }
}

/// A value that rows can be sorted by.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number, and its text.
    Number(f64, String),
    /// Words.
    Text(String),
}

impl Value {
    /// Text of the value.
    pub fn shown(&self) -> &str {
        match self {
            Self::Number(_, text) | Self::Text(text) => text,
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(a, _), Self::Number(b, _)) => a.total_cmp(b),
            _ => self.shown().cmp(other.shown()),
        }
    }
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Identifies the row's process, object or decision from one interval to the next.
    pub key: u64,
    /// A value for each column.
    pub values: Vec<Value>,
    /// Has the row's process ended?
    pub is_over: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Columns from left to right.
    pub columns: Vec<Column>,
    /// Rows from top to bottom.
    pub rows: Vec<Row>,
    /// Number of rows that the filter removed.
    pub hidden: usize,
    /// Text in place of rows if there are none.
    pub empty: &'static str,
}

/// Order of the rows, and filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Title of the sort column; `None`: rows are not sorted.
    pub by: Option<String>,
    /// Is the order reversed, with the smallest value first?
    pub is_reversed: bool,
    /// Text that shown rows contain.
    pub filter: String,
}

/// Gap between two columns.
pub const GAP: usize = 1;

impl Listing {
    /// Sorts the rows, and removes rows that do not contain the filter's text.
    pub fn ordered(mut self, order: &Order) -> Self {
        let all = self.rows.len();
        let filter = order.filter.to_lowercase();
        self.rows.retain(|row| {
            let shown = |value: &Value| value.shown().to_lowercase().contains(&filter);
            filter.is_empty() || row.values.iter().any(shown)
        });
        self.hidden = all - self.rows.len();
        let by = order.by.as_deref();
        let at = self
            .columns
            .iter()
            .position(|column| Some(column.title.as_str()) == by);
        if let Some(at) = at {
            let descends = self.columns[at].is_text == order.is_reversed;
            self.rows.sort_by(|a, b| {
                let order = a.values[at].compare(&b.values[at]);
                if descends { order.reverse() } else { order }
            });
        } else if order.is_reversed {
            self.rows.reverse();
        }
        self.rows.sort_by_key(|row| row.is_over);
        self
    }

    /// Positions and widths of the columns that fit into `width_max`. The widest text column gets the remaining width,
    /// and is always shown.
    pub fn fitting(&self, width_max: usize) -> Vec<(usize, usize)> {
        let mut fitting: Vec<usize> = (0..self.columns.len()).collect();
        let used = |fitting: &[usize]| -> usize {
            let widths = fitting.iter().map(|&at| self.columns[at].width + GAP);
            widths.sum::<usize>().saturating_sub(GAP)
        };
        while used(&fitting) > width_max
            && let Some(least) = (0..fitting.len()).min_by_key(|&at| self.columns[fitting[at]].rank)
            && fitting.len() > 1
        {
            fitting.remove(least);
        }
        let left = width_max.saturating_sub(used(&fitting));
        let grows = fitting
            .iter()
            .copied()
            .filter(|&at| self.columns[at].is_text)
            .max_by_key(|&at| self.columns[at].width);
        fitting
            .into_iter()
            .map(|at| {
                let more = if Some(at) == grows { left } else { 0 };
                (at, self.columns[at].width + more)
            })
            .collect()
    }
}

fn share(share: Option<f64>) -> Value {
    match share {
        Some(share) => Value::Number(share, percent(share)),
        None => Value::Number(-1.0, "–".to_owned()),
    }
}

fn number(value: f64) -> Value {
    Value::Number(value, count(value))
}

/// Table of processes.
pub fn processes(model: &Model) -> Listing {
    let is_top = model.subject.kind == Kind::Top;
    let mut columns = vec![
        Column::number("PID", 7, 9),
        Column::text("NAME", 12, 10),
        Column::number("CPUS", 5, 4),
        Column::number("LOCAL", 6, 8),
        Column::number("LOST", 6, 6),
        Column::number("REMOTE", 6, 7),
    ];
    if is_top {
        columns.push(Column::number("MEMORY", 8, 5));
        let nodes = model.subject.nodes.iter();
        columns.extend(nodes.map(|node| Column::number(&format!("NODE {node}"), 8, 3)));
    } else {
        columns.push(Column::number("WANTED", 7, 3));
        columns.push(Column::number("MOVED", 7, 5));
        columns.push(Column::text("STATE", 17, 5));
    }
    columns.push(Column::number("SAMPLES", 7, 2));
    let row = |(number_at, process): (&u16, &Process)| {
        let now = match process.has_ended {
            true => process.last(),
            false => process.now,
        };
        let mut values = vec![
            Value::Number(f64::from(process.pid), process.pid.to_string()),
            Value::Text(process.name.clone()),
            Value::Number(process.cpus, format!("{:.1}", process.cpus)),
            share(now.local_share()),
            share(now.lost_share()),
            share(now.remote_share()),
        ];
        if is_top {
            values.extend(memory(model, process.pid));
        } else {
            values.push(number(process.wanted as f64));
            values.push(number(process.outcomes.moved as f64));
            values.push(Value::Text(match process.has_ended {
                true => "has ended".to_owned(),
                false => process.stage.clone(),
            }));
        }
        values.push(number(now.accesses));
        Row {
            key: u64::from(*number_at),
            values,
            is_over: process.has_ended,
        }
    };
    let mut rows: Vec<Row> = model.processes.iter().map(row).collect();
    // The sort is stable, so that among equal rows the process with the most samples comes first.
    let samples = columns.len() - 1;
    rows.sort_by(|a, b| b.values[samples].compare(&a.values[samples]));
    Listing {
        rows,
        columns,
        hidden: 0,
        empty: "No process was seen yet.",
    }
}

/// Total memory of a process, then its memory on each node.
fn memory(model: &Model, pid: u32) -> Vec<Value> {
    let amount = |amount: u64| Value::Number(amount as f64, bytes(amount));
    match model.memory.get(&pid) {
        Some(by_node) => std::iter::once(by_node.iter().sum())
            .chain(by_node.iter().copied())
            .map(amount)
            .collect(),
        None => vec![Value::Number(-1.0, "–".to_owned()); model.subject.nodes.len() + 1],
    }
}

/// Table of a process's objects.
pub fn objects_of(model: &Model, process: u16, mappings: &[Mapping]) -> Listing {
    let objects = objects(model, process, mappings);
    let all: f32 = objects.iter().map(|object| object.samples).sum();
    let mut columns = vec![
        Column::number("SHARE", 6, 9),
        Column::number("LOCAL", 6, 8),
        Column::number("SIZE", 8, 6),
        Column::number("PAGES", 6, 4),
    ];
    for node in &model.subject.nodes {
        // Share of samples from CPUs of this node.
        columns.push(Column::number(&format!("BY {node}"), 5, 5));
    }
    columns.push(Column::text("OBJECT", 16, 10));
    let row = |(at, object): (usize, &Object)| {
        let part =
            |samples: f32| (object.samples > 0.0).then(|| f64::from(samples / object.samples));
        let size = object
            .mapping
            .as_ref()
            .map_or(0, |mapping| mapping.end - mapping.start);
        let mut values = vec![
            share((all > 0.0).then(|| f64::from(object.samples / all))),
            share(part(object.local)),
            Value::Number(size as f64, bytes(size)),
            number(object.pages.iter().sum::<u64>() as f64),
        ];
        values.extend(object.by_node.iter().map(|&samples| share(part(samples))));
        values.push(Value::Text(object.name().to_owned()));
        let start = object.mapping.as_ref().map(|mapping| mapping.start);
        Row {
            key: start.unwrap_or(u64::MAX - at as u64),
            values,
            is_over: false,
        }
    };
    Listing {
        rows: objects.iter().enumerate().map(row).collect(),
        columns,
        hidden: 0,
        empty: "No page of it was sampled lately.",
    }
}

/// Table of decisions, newest first, for one process or for all.
pub fn decisions(model: &Model, process: Option<u16>, mappings: &[Mapping]) -> Listing {
    let mut columns = vec![
        Column::number("AFTER", 6, 6),
        Column::text("WHAT", 10, 9),
        Column::number("PAGE", 14, 7),
        Column::number("FROM", 4, 5),
        Column::number("TO", 4, 8),
    ];
    match process {
        Some(_) => columns.push(Column::text("OBJECT", 14, 4)),
        None => columns.push(Column::text("PROCESS", 14, 4)),
    }
    columns.push(Column::text("RULE", 15, 10));
    let of_process = |decision: &Decision| match process {
        Some(wanted) => decision.page.is_some_and(|(of, _)| of == wanted),
        None => true,
    };
    let row = |(at, decision): (usize, &Decision)| {
        let address = decision.page.map(|(_, number)| model.address(number));
        let belongs_to = match (process, decision.page) {
            (Some(_), _) => address
                .and_then(|address| mapping_of(mappings, address))
                .map(|mapping| mapping.name.clone()),
            (None, Some((of, _))) => model.processes.get(&of).map(|one| one.name.clone()),
            (None, None) => None,
        };
        let node = |at: u16| Value::Number(f64::from(at), model.node(at).to_string());
        Row {
            key: model.decisions_before + at as u64,
            values: vec![
                Value::Number(decision.interval as f64, decision.interval.to_string()),
                Value::Text(decision.kind.clone()),
                Value::Number(
                    address.unwrap_or(0) as f64,
                    address.map_or("–".to_owned(), |address| format!("{address:x}")),
                ),
                decision
                    .from
                    .map_or(Value::Number(-1.0, "–".to_owned()), node),
                node(decision.to),
                Value::Text(belongs_to.unwrap_or_default()),
                Value::Text(decision.rule.clone()),
            ],
            is_over: false,
        }
    };
    let all = model.decisions.iter().enumerate().rev();
    Listing {
        rows: all.filter(|(_, one)| of_process(one)).map(row).collect(),
        columns,
        hidden: 0,
        empty: "Nothing was decided yet.",
    }
}

/// Pads a text to a column's width, within `columns_max`; numbers are aligned on the right.
pub fn aligned(text: &str, column: &Column, columns_max: usize) -> String {
    let text = nearpage_report::shorten(text, columns_max);
    let pad = " ".repeat(columns_max.saturating_sub(width(&text)));
    match column.is_text {
        true => text + &pad,
        false => pad + &text,
    }
}

/// Processes as lines of text, ordered by remote cost, at most `rows_max`.
pub fn table(model: &Model, columns_max: usize, rows_max: usize) -> String {
    let order = Order {
        by: Some("REMOTE".to_owned()),
        ..Order::default()
    };
    let listing = processes(model).ordered(&order);
    let columns = listing.fitting(columns_max);
    let line = |cell: &dyn Fn(usize) -> String| {
        let cells = columns
            .iter()
            .map(|&(at, width)| aligned(&cell(at), &listing.columns[at], width));
        let line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
        line.trim_end().to_owned() + "\n"
    };
    let mut text = line(&|at| listing.columns[at].title.clone());
    for row in listing.rows.iter().take(rows_max) {
        text += &line(&|at| row.values[at].shown().to_owned());
    }
    text
}
