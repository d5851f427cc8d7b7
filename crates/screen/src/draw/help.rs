//! Key help: a line with as many keys as fit, and a page with all keys.

use nearpage_report::{shorten, width};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::{bold, dim};
use crate::model::Kind;
use crate::view::{Mode, Place, View};

/// Line of keys: the current place's keys first, and always `?` and `q`.
pub fn keys(view: &View, kind: Kind, columns_max: usize) -> Line<'static> {
    let text = match view.mode {
        Mode::Filtering => "Enter keep  Esc take back".to_owned(),
        Mode::Help => "any key goes back".to_owned(),
        Mode::Ending => {
            "End the command, too? y ends it as Ctrl-C does, any other key goes on".to_owned()
        }
        Mode::Looking => looking(view, kind, columns_max),
    };
    let text = shorten(&text, columns_max);
    let pad = columns_max.saturating_sub(width(&text));
    Line::styled(
        format!("{text}{}", " ".repeat(pad)),
        Style::new().add_modifier(Modifier::REVERSED),
    )
}

fn looking(view: &View, kind: Kind, columns_max: usize) -> String {
    let place = &view.level().place;
    let is_table = matches!(
        place,
        Place::Processes | Place::Process(_) | Place::Decisions(_)
    );
    let has_decisions =
        kind == Kind::Live && !matches!(place, Place::Decisions(_) | Place::Decision(_));
    let all = [
        (is_table, "Enter open"),
        (view.is_inside(), "Esc back"),
        (is_table, "s sort"),
        (is_table, "/ filter"),
        (has_decisions, "d decisions"),
        (
            view.has_output && !matches!(place, Place::Output),
            "o output",
        ),
        (true, "Space hold"),
        (is_table, "r reverse"),
    ];
    let last = "? keys  q quit";
    let mut text = String::new();
    for (_, key) in all.into_iter().filter(|(applies, _)| *applies) {
        if width(&text) + width(key) + 2 + width(last) <= columns_max {
            text += key;
            text += "  ";
        }
    }
    text + last
}

/// Draws all keys, and explanations of the columns.
pub fn draw(frame: &mut Frame, area: Rect, kind: Kind, view: &View) {
    let mut lines = vec![Line::styled("Keys", bold())];
    let keys = [
        ("↑ ↓ k j", "choose a row; Page Up, Page Down, Home, End"),
        ("Enter →", "open: a process, its objects, an object's pages"),
        ("Esc ←", "back"),
        ("s S", "sort by the next column, or the one before"),
        ("r", "the other way round"),
        ("/", "only rows that contain what is typed"),
        ("d", "decisions, with their reasons"),
        ("o", "what the command prints"),
        ("Space p", "hold still, and go on"),
        ("q", "quit"),
        ("Ctrl-C", "end the watching, and a command that it started"),
    ];
    let applies = |key: &str| match key {
        "d" => kind == Kind::Live,
        "o" => view.has_output,
        _ => true,
    };
    lines.extend(keys.into_iter().filter(|(key, _)| applies(key)).map(pair));
    lines.push(Line::styled("Columns", bold()));
    let columns = [
        ("LOCAL", "accesses to memory of the CPU's own node"),
        ("LOST", "CPU time that waits for memory"),
        ("REMOTE", "CPU time that waits for other nodes' memory"),
        ("WANTED", "pages that the policy wants to move now"),
        ("MOVED", "pages that moved, in all"),
        ("MEMORY", "all of it, and on each node"),
        ("BY 0", "accesses from node 0"),
    ];
    let applies = |name: &str| match name {
        "WANTED" | "MOVED" => kind == Kind::Live,
        "MEMORY" => kind == Kind::Top,
        _ => true,
    };
    let columns = columns.into_iter().filter(|(name, _)| applies(name));
    lines.extend(columns.map(pair));
    frame.render_widget(Paragraph::new(lines), area);
}

fn pair((key, what): (&'static str, &'static str)) -> Line<'static> {
    Line::from(vec![
        Span::raw(format!("  {key:<9}")),
        Span::styled(what, dim()),
    ])
}
