//! What newcomers see first: the summary, a selection of time, keys, and empty recordings.

use std::fs;
use std::path::Path;

use nearpage_machine::{Device, DeviceKind, NodeId, preset};
use nearpage_tests::{Browser, Case};
use serde_json::json;

use super::made_up;
use super::viewed::{Page, SOLVER, recorded};

/// Text of the first element for a selector.
fn text(browser: &mut Browser, selector: &str) -> String {
    let found = browser.value(&format!(
        "document.querySelector({}).innerText",
        json!(selector)
    ));
    found.as_str().expect("text").to_owned()
}

#[test]
fn the_summary_says_what_costs_most_and_leads_there() {
    let mut page = Page::new(recorded("summary"), &[SOLVER], "");
    page.says("main h2", "Summary");
    page.says("#costliest-objects", "make_grid");
    page.says("#saving", "of the time on");
    // The page has the terminal's figures.
    let report = page.case.nearpage(["report", SOLVER]).success().stdout;
    let first = report
        .lines()
        .find(|line| line.contains("make_grid"))
        .expect("the costliest object");
    let words: Vec<&str> = first.split_whitespace().collect();
    let (share, time) = (words[..2].join(" "), words[2..4].join(" "));
    let shown = text(&mut page.browser, "#costliest-objects li");
    assert!(shown.contains(&share), "{share} in {shown}; {first}");
    assert!(shown.contains(&time), "{time} in {shown}; {first}");
    assert!(
        text(&mut page.browser, "#costliest-functions").contains("smooth"),
        "the function behind most of it"
    );
    // Accesses of three of four threads are remote, and take longer.
    let tiles = text(&mut page.browser, ".tiles");
    assert!(tiles.contains("lost to remote memory"), "{tiles}");
    assert!(tiles.contains("89 % of it"), "{tiles}");
    page.browser
        .value("document.querySelector('#costliest-objects a').click()");
    page.says("main h2", "make_grid");
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}

/// Number of a parameter in the address.
fn in_address(browser: &mut Browser, name: &str) -> u64 {
    let found = browser.value(&format!(
        "new URLSearchParams(location.hash.slice(1)).get('{name}')"
    ));
    let found = found.as_str().expect("it is in the address");
    found.parse().expect("a number")
}

#[test]
fn a_selection_of_time_is_followed_everywhere() {
    let mut page = Page::new(recorded("selection"), &[SOLVER], "view=objects");
    page.says("main", "20k accesses");
    page.browser.drawn();
    let strip = page.browser.value(
        "(() => { const box = document.querySelector('figure.whole-time canvas').getBoundingClientRect(); \
         return [box.x, box.y, box.width]; })()",
    );
    let at = |number: usize| strip[number].as_f64().expect("a number");
    // The layout of `web/src/strip.ts`: margins of 76 pixels at the left and 24 at the right.
    let x = |share: f64| at(0) + 76.0 + (at(2) - 100.0) * share;
    page.browser
        .drag((x(0.3), at(1) + 20.0), (x(0.7), at(1) + 30.0));
    page.browser.wait("location.hash.includes('since=')");
    let since = in_address(&mut page.browser, "since");
    let until = in_address(&mut page.browser, "until");
    assert!((590_000_000..610_000_000).contains(&since), "{since}");
    assert!((1_390_000_000..1_410_000_000).contains(&until), "{until}");
    let inside = |number: &u64| (since..until).contains(&(number * 100_000));
    let expected = (0..made_up::ACCESSES).filter(inside).count();
    let of_grid = |number: &u64| inside(number) && number / 4 % 10 < 5;
    let expected_grid = (0..made_up::ACCESSES).filter(of_grid).count();

    // Queries of pictures and queries of tables count the same accesses.
    let space = &page.asked("open")["recordings"][0]["space_bytes"];
    let value = page.asked(&format!(
        "value?recording=0&place_from=0&place_to={space}&from_ns={since}&to_ns={until}"
    ));
    assert_eq!(value["samples"], expected);
    let report = page.asked(&format!("report?recording=0&since={since}&until={until}"));
    assert_eq!(report["report"]["accesses"], expected);

    // The views count the same accesses: objects, threads, a single object.
    page.says("main", &format!("{expected} accesses"));
    page.says("figure.whole-time h3", "40 % of the time");
    page.browser.value(
        "[...document.querySelectorAll('nav a')].find(link => link.textContent === 'Threads').click()",
    );
    page.says("main h2", "Threads");
    let sum = page.browser.value(
        "[...document.querySelectorAll('table[aria-label=threads] tbody tr')].reduce((sum, row) => \
         sum + Number(row.cells[5].textContent), 0)",
    );
    assert_eq!(sum, expected);
    page.go(&format!("object&object=0&since={since}&until={until}"));
    page.says(
        "main",
        &format!("0 loads, {} stores", thousands(expected_grid)),
    );
    // The address restores the selection, and Back goes to the whole time.
    page.browser.call("Page.reload", json!({}));
    page.says(
        "main",
        &format!("0 loads, {} stores", thousands(expected_grid)),
    );
    page.browser.drawn();
    page.browser
        .value("document.querySelector('.unselect').click()");
    page.says("main", "0 loads, 10,000 stores");
    page.browser.value("history.back()");
    page.says(
        "main",
        &format!("0 loads, {} stores", thousands(expected_grid)),
    );
    // A selection by keys leaves the focus on the strip.
    page.browser.drawn();
    page.browser
        .value("document.querySelector('figure.whole-time .surface').focus()");
    page.browser.key("0");
    page.says("main", "0 loads, 10,000 stores");
    page.browser.drawn();
    assert_eq!(
        page.browser
            .value("document.activeElement.closest('figure.whole-time') !== null"),
        true
    );
    // A time without accesses, and an invalid time.
    page.go("summary&since=1999950001&until=1999950002");
    page.says("#warnings", "The selection has no access to memory");
    let host = format!("Host: {}\r\n", page.viewed.host());
    let request = format!(
        "GET /{}/report?recording=0&since=5&until=5",
        page.viewed.token()
    );
    let (head, body) = page.viewed.ask(&request, &host);
    assert!(head.starts_with("HTTP/1.1 400"), "{head}\n{body}");
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}

/// A number as the page prints exact numbers, such as `4,000`.
fn thousands(number: usize) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", number / 1000, number % 1000),
    }
}

#[test]
fn back_undoes_a_zoom() {
    let mut page = Page::new(recorded("back"), &[SOLVER], "view=object&object=0");
    page.browser.drawn();
    let before = page.browser.value("location.hash");
    let canvas = page.browser.value(
        "(() => { const box = document.querySelector('main figure.plot canvas').getBoundingClientRect(); \
         return [box.x, box.y, box.width]; })()",
    );
    let at = |number: usize| canvas[number].as_f64().expect("a number");
    page.browser
        .drag((at(0) + 300.0, at(1) + 20.0), (at(0) + 500.0, at(1) + 60.0));
    page.browser.wait("location.hash.includes('from=')");
    page.browser.drawn();
    page.says("main .note", "A column is 1 page;");
    page.browser.value("history.back()");
    page.browser.wait(&format!("location.hash === {before}"));
    page.browser.drawn();
    page.browser.wait(
        "[...document.querySelectorAll('main .note')].every(note => !note.textContent.includes('A column is 1 page;'))",
    );
}

#[test]
fn keys_are_told_of_and_the_search_is_a_key_away() {
    let mut page = Page::new(recorded("keys"), &[SOLVER], "view=machine");
    page.says("#hint", "all keys and mouse actions");
    page.browser.key("?");
    page.browser
        .wait("document.querySelector('#help').open && document.querySelector('#hint') === null");
    page.says("#help", "selects a time");
    page.browser.key("?");
    page.browser.wait("!document.querySelector('#help').open");
    page.browser.key("/");
    page.browser
        .wait("document.activeElement === document.querySelector('#search')");
    // In the search box, `?` is text.
    page.browser.key("?");
    assert_eq!(
        page.browser.value("document.querySelector('#help').open"),
        false
    );
}

#[test]
fn recordings_with_nothing_in_them_say_so() {
    let case = Case::new("nothing-in-it");
    let machine = preset("opteron-4").expect("a preset");
    made_up::recording_without_accesses(&case.path(SOLVER), &machine);
    let mut page = Page::new(case, &[SOLVER], "");
    page.says(
        "#warnings",
        "The recording has no access to memory: record for longer",
    );
    page.says("#saving", "no access that a plan could place");
    for view in [
        "objects", "space", "threads", "machine", "plan", "flame", "source",
    ] {
        page.go(view);
        // An empty picture has a sentence instead of axes and a legend.
        page.browser.wait(
            "[...document.querySelectorAll('figure')].every(figure => figure.classList.contains('empty'))",
        );
    }
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}

#[test]
fn contended_cache_lines_are_reported() {
    let mut page = Page::new(recorded("lines"), &[SOLVER], "view=threads");
    page.says(
        "#shared-lines",
        "1 line of 64 bytes was written by several threads",
    );
    page.says("#shared-lines tbody tr", "make_shared");
    let row = text(&mut page.browser, "#shared-lines tbody tr");
    assert!(row.contains("160 KiB") && row.contains("false"), "{row}");
    assert!(
        row.contains("openmp 3: 5 stores, 0 loads at byte 24"),
        "{row}"
    );
}

#[test]
fn each_nodes_memory_is_followed_over_time() {
    let mut page = Page::new(recorded("memory"), &[SOLVER], "view=machine");
    page.browser
        .wait("document.querySelectorAll('figure.plot').length === 4");
    page.browser.drawn();
    // All pages are on node 0, and the node's own CPU makes a quarter of the accesses.
    let local = page.press("memory over time", 96.0, (0.5, 0.5));
    assert!(
        local.contains("node 0 25 %") && local.contains("node 1 –"),
        "{local}"
    );
    page.browser.value("{ const select = document.querySelector('#memory-figure'); select.value = 'bandwidth'; select.dispatchEvent(new Event('change')) }");
    page.browser
        .wait("location.hash.includes('figure=bandwidth')");
    page.browser.drawn();
    // 10,000 accesses a second, each a line of 64 bytes from memory: 625 KiB/s.
    let bytes = page.press("memory over time", 96.0, (0.5, 0.5));
    assert!(
        bytes.contains("node 0 6") && bytes.contains("KiB/s (25 % local)"),
        "{bytes}"
    );
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}

/// Relative luminance of `#rrggbb` (WCAG 2).
fn luminance(colour: &str) -> f64 {
    let part = |at: usize| {
        let value = u8::from_str_radix(&colour[at..at + 2], 16).expect("a colour");
        let value = f64::from(value) / 255.0;
        match value <= 0.04045 {
            true => value / 12.92,
            false => ((value + 0.055) / 1.055).powf(2.4),
        }
    };
    0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
}

fn contrast(one: &str, other: &str) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

fn colours(text: &str) -> Vec<&str> {
    let found = text.match_indices('#').map(|(at, _)| &text[at..]);
    let is_colour =
        |text: &&str| text.len() >= 7 && text.as_bytes()[1..7].iter().all(u8::is_ascii_hexdigit);
    found.filter(is_colour).map(|text| &text[..7]).collect()
}

#[test]
fn colours_stand_out_from_light_and_dark_paper() {
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../web/src");
    let code = fs::read_to_string(web.join("colours.ts")).expect("the page's colours");
    let style = fs::read_to_string(web.join("page.css")).expect("the page's style");
    let (light, dark) = (
        &code[code.find("  light: {").expect("a palette")..code.find("  dark: {").expect("one")],
        &code[code.find("  dark: {").expect("a palette")..code.find("\n};").expect("its end")],
    );
    for (palette, theme) in [(light, ":root { "), (dark, ":root[data-theme=\"dark\"] { ")] {
        let theme = &style[style.find(theme).expect("a theme")..];
        let theme = &theme[..theme.find('}').expect("its end")];
        let of_theme = |name: &str| {
            let from = theme.find(name).expect("a colour of the theme") + name.len();
            colours(&theme[from..])[0]
        };
        let paper = of_theme("--paper: ");
        let inks = [
            "--ink: ",
            "--faint: ",
            "--line: ",
            "--link: ",
            "--problem: ",
        ]
        .map(of_theme);
        let all = [&colours(palette)[..], &inks].concat();
        assert!(all.len() > 20, "{all:?}");
        for colour in all {
            let found = contrast(colour, paper);
            assert!(found >= 3.0, "{colour} on {paper}: {found:.2}");
        }
    }
}

#[test]
fn devices_are_beside_their_node() {
    let case = Case::new("devices");
    let mut machine = preset("opteron-4").expect("a preset");
    let devices = [
        (DeviceKind::Gpu, Some(NodeId(2))),
        (DeviceKind::Nvme, Some(NodeId(2))),
        (DeviceKind::Nic, None),
    ];
    machine.devices = devices
        .map(|(kind, node)| Device {
            kind,
            number: 0,
            pci: "0000:81:00.0".to_owned(),
            node,
        })
        .to_vec();
    made_up::recording(&case.path(SOLVER), &machine);
    let mut page = Page::new(case, &[SOLVER], "view=machine");
    let said = text(&mut page.browser, "main");
    for words in [
        "gpu0, nvme0",
        "The firmware does not say which node nic0 is next to.",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
