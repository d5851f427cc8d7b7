//! Tests the screen with an invented program, at several sizes.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use nearpage_live::{
    Entry, Interval, LoggedAction, LoggedProcess, ObservedAccess, Outcomes, PageRenumbering,
    ProcessTime, Report, Stage,
};
use nearpage_recording::{AccessKind, Level};
use nearpage_report::mappings::Mapping;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use crate::model::{Kind, Model, Subject};
use crate::summary::summary;
use crate::view::{KeyOutcome, Mode, Started, View};
use crate::{draw_all, listing};

const NODES: u16 = 4;
const SECOND: u64 = 1_000_000_000;
/// Number of the program's first page.
const FIRST_PAGE: u64 = 0x7_f000_0000;

fn model(kind: Kind) -> Model {
    Model::new(Subject {
        kind,
        policy: "carrefour".to_owned(),
        nodes: vec![0, 1, 2, 8],
        page_bytes: 4096,
        dry_run: false,
    })
}

/// Samples of pages 0 to 15. Each quarter of the pages is accessed from one node. All pages are on the first node,
/// except the `moved` first pages.
fn observations(moved: u64) -> Vec<ObservedAccess> {
    let home = |page: u64| if page < moved { page / 4 } else { 0 };
    let seen = |at: u64| ObservedAccess {
        after_ns: at,
        page: (at % 16) as u32,
        node: (at % 16 / 4) as u16,
        home: home(at % 16) as u16,
        thread: 0,
        kind: AccessKind::Load,
        level: Level::Unknown,
    };
    (0..160).map(seen).collect()
}

fn process(pid: u32, name: &str, local: u64, accesses: u64) -> LoggedProcess {
    LoggedProcess {
        pid,
        name: name.to_owned(),
        stage: Stage::Going,
        lost_per_1000: 400,
        local_per_1000: (1000 * local / accesses.max(1)) as u32,
        accesses,
        requested: accesses / 10,
        replications_interleaved: 0,
        moved_back: false,
        threads_pinned: 0,
        outcomes: Outcomes {
            moved: if accesses > 0 { 4 } else { 0 },
            busy: 1,
            ..Outcomes::default()
        },
        longest_call_ns: 1_200_000,
    }
}

fn migration() -> LoggedAction {
    LoggedAction {
        page: 5,
        kind: "migrate".into(),
        node: 1,
        rule: "one node alone uses it".into(),
        counts: vec![0, 10, 0, 0],
        writes: 2,
        migrations: 0,
    }
}

fn report(interval: u64, moved: u64) -> Report {
    let observations = observations(moved);
    let mut traffic = vec![vec![0; NODES.into()]; NODES.into()];
    for seen in &observations {
        traffic[usize::from(seen.node)][usize::from(seen.home)] += 1;
    }
    let local: u64 = (0..usize::from(NODES)).map(|at| traffic[at][at]).sum();
    let first = if interval == 0 { 0..16 } else { 0..0 };
    let placed = first.map(|page| PageRenumbering {
        after: 0,
        page,
        process: 1,
        number: FIRST_PAGE + u64::from(page),
    });
    let time = |process: u16, lost_ns: f64| ProcessTime {
        process,
        threads: 4,
        cpu_ns: 2e9,
        lost_ns,
    };
    Report {
        entry: Entry {
            interval: Interval {
                begin_ns: interval * SECOND,
                end_ns: (interval + 1) * SECOND,
                observations,
                placed: placed.collect(),
                ..Interval::default()
            },
            actions: vec![migration()],
            thread_moves: Vec::new(),
            processes: vec![
                process(71, "idle\x1b[2J", 0, 0),
                process(4711, "triad", local, 160),
            ],
            time_unix_ms: 0,
        },
        process_times: vec![time(0, 0.0), time(1, 0.8e9)],
        view: None,
        why_idle: None,
        traffic,
        memory_nodes: 0b1111,
        hot_pages: 16,
        given_up: 0,
        dropped: 0,
        without_node: 3,
        without_access: 0,
        left: 0,
        outcomes: Outcomes {
            moved: 4,
            busy: 2,
            ..Outcomes::default()
        },
        moved_bytes: 4 * 4096,
        deciding_ns: 0,
        in_calls_ns: 0,
        longest_call_ns: 1_200_000,
    }
}

/// A model after four intervals. In each interval, four more pages are on the node that uses them.
fn watched(kind: Kind) -> Model {
    let mut model = model(kind);
    for interval in 0..4 {
        model.take(&report(interval, interval * 4));
    }
    if kind == Kind::Top {
        let memory = vec![3 << 30, 640 << 20, 0, 4096];
        model.memory.insert(4711, memory);
    }
    model
}

fn mappings() -> Vec<Mapping> {
    let mapping = |start: u64, pages: u64, name: &str| Mapping {
        start: start * 4096,
        end: (start + pages) * 4096,
        name: name.to_owned(),
    };
    vec![
        mapping(FIRST_PAGE - 8, 20, "anonymous 7f0000000000, 80 KiB"),
        mapping(FIRST_PAGE + 12, 64, "triad variables"),
    ]
}

struct Looked {
    model: Model,
    view: View,
    output: Option<Vec<String>>,
}

impl Looked {
    fn at(kind: Kind) -> Self {
        let model = watched(kind);
        let started = match kind {
            Kind::Live => Started::CommandWithOutput,
            Kind::Top => Started::Nothing,
        };
        let mut view = View::new(kind, started);
        view.know_mappings(1, model.intervals, mappings());
        let output = (kind == Kind::Live).then(|| vec!["step 1".to_owned(), "step 2".to_owned()]);
        Self {
            model,
            view,
            output,
        }
    }

    fn press(&mut self, keys: &str) -> KeyOutcome {
        let mut asked = KeyOutcome::Nothing;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                key => KeyCode::Char(key),
            };
            let key = KeyEvent::new(code, KeyModifiers::NONE);
            asked = self.view.key(key, &self.model);
        }
        asked
    }

    fn drawn(&mut self, columns: u16, lines: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).expect("a screen");
        let output = self.output.as_deref();
        draw_all(&mut terminal, &self.model, &mut self.view, output).expect("drawn");
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(columns.into());
        let rows = rows.map(|row| {
            let text: String = row.iter().map(|cell| cell.symbol()).collect();
            text.trim_end().to_owned() + "\n"
        });
        rows.collect()
    }
}

#[test]
fn processes_are_listed_at_every_width() {
    for columns in [60, 80, 140] {
        for (kind, name) in [(Kind::Live, "live"), (Kind::Top, "top")] {
            let drawn = Looked::at(kind).drawn(columns, 20);
            insta::assert_snapshot!(format!("{name}_{columns}"), drawn);
        }
    }
}

#[test]
fn one_gets_from_a_process_to_an_object_to_its_pages() {
    let mut looked = Looked::at(Kind::Live);
    looked.press("\n");
    insta::assert_snapshot!("objects_80", looked.drawn(80, 22));
    looked.press("\n");
    insta::assert_snapshot!("pages_80", looked.drawn(80, 30));
    insta::assert_snapshot!("pages_60", looked.drawn(60, 20));
    looked.press("\x1b\x1b");
    assert!(!looked.view.is_inside());
}

#[test]
fn a_decision_tells_its_reasons() {
    let mut looked = Looked::at(Kind::Live);
    looked.press("\nd");
    insta::assert_snapshot!("decisions_80", looked.drawn(80, 18));
    looked.press("j\n");
    insta::assert_snapshot!("decision_60", looked.drawn(60, 18));
}

#[test]
fn all_keys_are_shown_in_sixty_columns() {
    for kind in [Kind::Live, Kind::Top] {
        let mut looked = Looked::at(kind);
        let line = looked.drawn(60, 24);
        assert!(line.contains("? keys"), "{line}");
        assert!(line.contains("q quit"), "{line}");
        looked.press("?");
        insta::assert_snapshot!(format!("help_{kind:?}"), looked.drawn(60, 40));
        looked.press("x");
        assert_eq!(looked.view.mode, Mode::Looking);
    }
}

#[test]
fn a_row_stays_chosen_when_the_order_changes() {
    let mut looked = Looked::at(Kind::Live);
    let chosen = |looked: &mut Looked| {
        let listing = looked.view.listing(&looked.model.clone());
        let at = looked.view.level().position(&listing);
        listing.rows[at].key
    };
    assert_eq!(chosen(&mut looked), 1, "the process with the most samples");
    looked.press("j");
    assert_eq!(chosen(&mut looked), 0);
    looked.press("r");
    assert_eq!(chosen(&mut looked), 0);
    let listing = looked.view.listing(&looked.model.clone());
    assert_eq!(listing.rows[0].key, 0, "the other way round");
}

#[test]
fn sorting_goes_through_all_columns_and_words_begin_with_a() {
    let mut looked = Looked::at(Kind::Live);
    let mut seen = Vec::new();
    for _ in 0..10 {
        looked.press("s");
        seen.push(looked.view.level().order.by.clone().expect("a column"));
        let by_name = seen.last().is_some_and(|by| by == "NAME");
        let listing = looked.view.listing(&looked.model.clone());
        if by_name {
            assert!(listing.rows[0].values[1].shown().starts_with("idle"));
        }
    }
    assert_eq!(seen[0], "PID");
    assert_eq!(seen[1], "NAME");
    assert_eq!(seen.last().map(String::as_str), Some("SAMPLES"));
}

#[test]
fn a_filter_leaves_rows_out_until_it_is_taken_back() {
    let mut looked = Looked::at(Kind::Live);
    looked.press("/TRIx\x08\n");
    let drawn = looked.drawn(60, 20);
    assert!(
        drawn.contains("triad") && !drawn.contains("idle"),
        "{drawn}"
    );
    assert!(drawn.contains("with \"TRI\" (1 without)"), "{drawn}");
    looked.press("/zzz\n");
    assert!(looked.drawn(60, 20).contains("Esc takes the filter back"));
    looked.press("\x1b");
    assert!(looked.drawn(60, 20).contains("idle"));
}

#[test]
fn a_held_screen_does_not_change() {
    let mut looked = Looked::at(Kind::Live);
    looked.press(" ");
    looked.model.take(&report(4, 16));
    assert!(looked.drawn(80, 20).contains("0:04, carrefour, held"));
    looked.press(" ");
    assert!(
        looked
            .drawn(80, 20)
            .contains("0:05, carrefour, 160 samples")
    );
}

#[test]
fn a_command_ends_only_when_that_is_meant() {
    let mut looked = Looked::at(Kind::Live);
    assert_eq!(looked.press("q"), KeyOutcome::Nothing);
    assert!(looked.drawn(80, 20).contains("End the command, too?"));
    assert_eq!(looked.press("n"), KeyOutcome::Nothing);
    assert_eq!(looked.press("qy"), KeyOutcome::End);
    let mut attached = Looked::at(Kind::Top);
    assert_eq!(attached.press("q"), KeyOutcome::End);
}

#[test]
fn no_size_and_no_key_is_too_much() {
    let keys: Vec<char> = "\n\x1bsSr/d o?qnjkgGhl\x08x".chars().collect();
    for kind in [Kind::Live, Kind::Top] {
        let mut looked = Looked::at(kind);
        let mut drawn: u64 = 20_261_126;
        for _ in 0..400 {
            // Xorshift generator of Marsaglia.
            drawn ^= drawn << 13;
            drawn ^= drawn >> 7;
            drawn ^= drawn << 17;
            looked.press(&keys[drawn as usize % keys.len()].to_string());
            let (columns, lines) = (1 + drawn / 7 % 200, 1 + drawn / 1400 % 60);
            looked.drawn(columns as u16, lines as u16);
        }
    }
}

#[test]
fn no_name_moves_the_cursor() {
    for drawn in [
        Looked::at(Kind::Live).drawn(140, 20),
        summary(&watched(Kind::Live)).concat(),
        listing::table(&watched(Kind::Top), 100, 20),
    ] {
        let is_harmless = |c: char| c == '\n' || !c.is_control();
        assert!(drawn.chars().all(is_harmless), "{drawn:?}");
    }
}

#[test]
fn the_last_lines_summarise_the_session() {
    insta::assert_snapshot!("summary", summary(&watched(Kind::Live)).join("\n"));
    assert!(summary(&model(Kind::Live)).is_empty());
}

#[test]
fn remote_cost_is_the_part_of_the_lost_time_that_remote_samples_have() {
    let mut model = model(Kind::Top);
    model.take(&report(0, 0));
    let process = &model.processes[&1];
    // Three quarters of the samples are remote, and 0.8 of 2 s were lost.
    let share = process.now.remote_share().expect("CPU time");
    assert!((share - 0.4 * 0.75).abs() < 1e-9, "{share}");
    assert_eq!(process.cpus, 2.0);
}

#[test]
fn unsampled_pages_are_forgotten() {
    let mut model = model(Kind::Live);
    model.take(&report(0, 0));
    assert_eq!(model.pages_of(1).len(), 16);
    for interval in 1..40 {
        let mut nothing = report(interval, 0);
        nothing.entry.interval.observations.clear();
        model.take(&nothing);
    }
    assert!(model.pages_of(1).is_empty());
    let mut ended = report(40, 0);
    ended.entry.processes.clear();
    ended.process_times.clear();
    model.take(&ended);
    assert!(model.processes[&1].has_ended);
    assert!(model.pages_of(1).is_empty(), "a process that has ended");
}
