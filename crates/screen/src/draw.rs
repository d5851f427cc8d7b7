//! Draws the screen: title and state, the current place, the command's output, and keys.

mod head;
mod help;
mod pages;

use nearpage_amount::counted;
use nearpage_report::emphasis::{SHARE_BAD, SHARE_DOUBTFUL};
use nearpage_report::shorten;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use crate::listing::{GAP, Listing, aligned};
use crate::model::{Kind, Model};
use crate::view::{Mode, Place, View};

pub use head::clock;

/// Minimum height at which the command's output fits below.
const HEIGHT_WITH_OUTPUT: u16 = 18;

/// Data that is drawn in addition to the model.
pub struct CommandOutput<'a> {
    /// Last lines of the command's output; `None` without a command, or if its output goes elsewhere.
    pub output: Option<&'a [String]>,
}

/// Style of headings and titles.
fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Style of less important text.
fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// Style of a share of remote accesses or lost time; high shares have stronger colours.
fn alarm(share: f64) -> Style {
    match share {
        s if s >= SHARE_BAD => Style::new().fg(Color::Red),
        s if s >= SHARE_DOUBTFUL => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}

/// Draws the whole screen.
pub fn draw(frame: &mut Frame, model: &Model, view: &mut View, beside: &CommandOutput) {
    let held = view.held.take();
    let shown = held.as_deref().unwrap_or(model);
    let area = frame.area();
    let mut head = head::lines(shown, view, held.is_some(), area.width.into());
    if view.mode == Mode::Help {
        head.truncate(1);
    }
    // The help and the output place take the whole body, so no output is shown below.
    let has_output_below = beside.output.is_some()
        && !matches!(view.level().place, Place::Output)
        && view.mode != Mode::Help
        && area.height >= HEIGHT_WITH_OUTPUT;
    let output_height = match has_output_below {
        true => area.height / 4,
        false => 0,
    };
    let [top, body, below, keys] = Layout::vertical([
        Constraint::Length(head.len() as u16),
        Constraint::Min(1),
        Constraint::Length(output_height),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(head), top);
    if view.mode == Mode::Help {
        help::draw(frame, body, shown.subject.kind, view);
    } else {
        draw_place(frame, body, shown, view, beside);
    }
    if let (true, Some(lines)) = (below.height > 0, beside.output) {
        draw_output(frame, below, lines);
    }
    frame.render_widget(
        help::keys(view, shown.subject.kind, keys.width.into()),
        keys,
    );
    view.held = held;
}

fn draw_place(
    frame: &mut Frame,
    body: Rect,
    model: &Model,
    view: &mut View,
    beside: &CommandOutput,
) {
    let listing = view.listing(model);
    match view.level().place.clone() {
        Place::Processes | Place::Process(_) | Place::Decisions(_) => {
            draw_table(frame, body, &listing, view);
        }
        Place::Object { process, mapping } => {
            let lines = pages::lines(model, process, &mapping, body);
            frame.render_widget(Paragraph::new(lines), body);
        }
        Place::Decision(decision) => {
            let lines = head::decision(model, &decision, body.width.into());
            frame.render_widget(Paragraph::new(lines), body);
        }
        Place::Output => draw_output(frame, body, beside.output.unwrap_or_default()),
    }
}

/// Line above a table: number of rows, order and filter.
fn caption(listing: &Listing, view: &View) -> String {
    let order = &view.level().order;
    let one = match view.level().place {
        Place::Processes => "process",
        Place::Process(_) => "object",
        _ => "decision",
    };
    let mut text = counted(listing.rows.len() as u64, one);
    if let Some(by) = &order.by {
        text += &format!(", by {by}");
    }
    if order.is_reversed {
        text += ", the other way round";
    }
    if view.mode == Mode::Filtering {
        text += &format!(", filter: {}_", order.filter);
    } else if !order.filter.is_empty() {
        text += &format!(", with \"{}\"", order.filter);
    }
    if listing.hidden > 0 {
        text += &format!(" ({} without)", listing.hidden);
    }
    text
}

fn draw_table(frame: &mut Frame, body: Rect, listing: &Listing, view: &View) {
    let columns_max = usize::from(body.width);
    let level = view.level();
    let columns = listing.fitting(columns_max);
    let heading = columns.iter().map(|&(at, width)| {
        let column = &listing.columns[at];
        let style = match level.order.by.as_deref() == Some(&column.title) {
            true => bold().add_modifier(Modifier::UNDERLINED),
            false => bold(),
        };
        let cell = aligned(&column.title, column, width);
        // Only the words of a cell are underlined.
        let words = cell.trim_start();
        let pad = " ".repeat(cell.len() - words.len());
        vec![Span::raw(pad), Span::styled(words.to_owned(), style)]
    });
    let mut lines = vec![
        Line::styled(shorten(&caption(listing, view), columns_max), dim()),
        Line::from(
            heading
                .collect::<Vec<_>>()
                .join(&Span::raw(" ".repeat(GAP))),
        ),
    ];
    let chosen = level.position(listing);
    let room = usize::from(body.height).saturating_sub(lines.len());
    // The chosen row stays in the middle, except near the first and last rows.
    let last_first = listing.rows.len().saturating_sub(room);
    let first = chosen.saturating_sub(room / 2).min(last_first);
    for (at, row) in listing.rows.iter().enumerate().skip(first).take(room) {
        let cells = columns.iter().map(|&(at, width)| {
            let column = &listing.columns[at];
            let text = aligned(row.values[at].shown(), column, width);
            let style = match (&row.values[at], column.title.as_str()) {
                (crate::listing::Value::Number(share, _), "LOST" | "REMOTE") => alarm(*share),
                _ => Style::new(),
            };
            vec![Span::styled(text, style)]
        });
        let mut line = Line::from(cells.collect::<Vec<_>>().join(&Span::raw(" ".repeat(GAP))));
        if row.is_over {
            line = line.style(dim());
        }
        if at == chosen {
            line = line.style(Style::new().add_modifier(Modifier::REVERSED));
        }
        lines.push(line);
    }
    if listing.rows.is_empty() {
        lines.push(Line::raw(match listing.hidden {
            0 => listing.empty.to_owned(),
            _ => "Nothing contains this; Esc takes the filter back.".to_owned(),
        }));
    }
    frame.render_widget(Paragraph::new(lines), body);
}

fn draw_output(frame: &mut Frame, area: Rect, output: &[String]) {
    let columns_max = usize::from(area.width);
    let title = "── the command's output ";
    let rule = "─".repeat(columns_max.saturating_sub(title.chars().count()));
    let mut lines = vec![Line::styled(format!("{title}{rule}"), dim())];
    let room = usize::from(area.height).saturating_sub(1);
    let first = output.len().saturating_sub(room);
    let last = output[first..].iter();
    lines.extend(last.map(|line| Line::raw(shorten(line, columns_max))));
    frame.render_widget(Paragraph::new(lines), area);
}

fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Live => "nearpage live",
        Kind::Top => "nearpage top",
    }
}
