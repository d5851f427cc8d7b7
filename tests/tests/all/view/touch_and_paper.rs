//! The page on touch screens, in narrow windows and in print; coinciding lines.

use std::fs;

use serde_json::{Value, json};

use super::viewed::{Page, SOLVER, downloaded, recorded};

/// Sends touch events with fingers at these places, step by step.
fn fingers(page: &mut Page, steps: &[&[(f64, f64)]]) {
    let mut kind = "touchStart";
    for places in steps {
        let points: Vec<Value> = places
            .iter()
            .enumerate()
            .map(|(id, (x, y))| json!({ "x": x, "y": y, "id": id }))
            .collect();
        page.browser.call(
            "Input.dispatchTouchEvent",
            json!({ "type": kind, "touchPoints": points }),
        );
        kind = "touchMove";
    }
    page.browser.call(
        "Input.dispatchTouchEvent",
        json!({ "type": "touchEnd", "touchPoints": [] }),
    );
}

/// Left, top, width and height of an element.
fn place(page: &mut Page, selector: &str) -> [f64; 4] {
    let found = page.browser.value(&format!(
        "(() => {{ const one = document.querySelector('{selector}'); one.scrollIntoView({{ block: 'center' }}); \
         const box = one.getBoundingClientRect(); return [box.x, box.y, box.width, box.height]; }})()"
    ));
    [0, 1, 2, 3].map(|at| found[at].as_f64().expect("a number"))
}

/// Bytes of an object that the picture shows, by the address; none: all.
fn in_sight(page: &mut Page) -> Option<f64> {
    let range = page.browser.value(
        "['from', 'to'].map((name) => Number(new URLSearchParams(location.hash.slice(1)).get(name)))",
    );
    let [from, to] = [0, 1].map(|at| range[at].as_f64().unwrap_or(0.0));
    (to > from).then_some(to - from)
}

#[test]
fn fingers_select_zoom_and_ask_and_paper_has_what_counts() {
    let mut page = Page::new(recorded("touch"), &[SOLVER], "view=object&object=0");
    page.browser.call(
        "Emulation.setTouchEmulationEnabled",
        json!({ "enabled": true, "maxTouchPoints": 2 }),
    );
    page.browser.drawn();
    // A tap shows a point's read-out and does nothing else.
    let [x, y, width, height] = place(&mut page, "main figure.plot canvas");
    let at = (x + width / 2.0, y + height / 2.0);
    fingers(&mut page, &[&[at]]);
    page.says("main .readout", "openmp");
    // A drag with one finger zooms to the framed area.
    let y = y + 20.0;
    fingers(
        &mut page,
        &[
            &[(x + 300.0, y)],
            &[(x + 420.0, y + 2.0)],
            &[(x + 500.0, y + 4.0)],
        ],
    );
    page.browser.wait("location.hash.includes('from=')");
    page.browser.drawn();
    let framed = in_sight(&mut page).expect("a part");
    // Pinching with two fingers zooms out.
    let [x, y, ..] = place(&mut page, "main figure.plot canvas");
    let y = y + 30.0;
    fingers(
        &mut page,
        &[
            &[(x + 400.0, y)],
            &[(x + 400.0, y), (x + 600.0, y)],
            &[(x + 450.0, y), (x + 550.0, y)],
        ],
    );
    page.browser.drawn();
    let more = in_sight(&mut page).unwrap_or(f64::INFINITY);
    assert!(more > 1.5 * framed, "{framed} bytes, then {more}");
    // A drag over the strip selects a time.
    let [x, y, width, height] = place(&mut page, "figure.whole-time canvas");
    let y = y + height / 3.0;
    fingers(
        &mut page,
        &[
            &[(x + width * 0.4, y)],
            &[(x + width * 0.5, y)],
            &[(x + width * 0.7, y)],
        ],
    );
    page.browser.wait("location.hash.includes('since=')");
    page.browser.drawn();

    // At a width of 800 pixels, no view scrolls sideways.
    page.browser.size(800, 900);
    let mut wide = Vec::new();
    for view in [
        "summary",
        "objects",
        "object&object=0",
        "flame",
        "source",
        "space",
        "threads",
        "machine",
        "plan",
    ] {
        page.go(view);
        page.browser.wait(
            "document.querySelector('#saving')?.textContent.includes('Working out') !== true",
        );
        let found = page.browser.value(
            "[document.documentElement, ...document.querySelectorAll('.table')] \
             .filter(one => one.scrollWidth > one.clientWidth).map(one => one.getAttribute('aria-label') ?? 'the page')",
        );
        if found != json!([]) {
            wide.push((view, found));
        }
    }
    assert!(wide.is_empty(), "scrolls sideways: {wide:?}");

    // Print has tables and pictures, dark on white, without controls.
    page.go("objects&theme=dark");
    page.browser
        .call("Emulation.setEmulatedMedia", json!({ "media": "print" }));
    page.browser
        .value("window.dispatchEvent(new Event('beforeprint')), 0");
    page.browser.drawn();
    let shown = page.browser.value(
        "['nav', 'main .tools', '#theme', 'main table', 'figure.whole-time canvas'] \
         .map(one => document.querySelector(one)?.checkVisibility() ?? false)",
    );
    assert_eq!(shown, json!([false, false, false, true, true]));
    assert_eq!(
        page.browser
            .value("getComputedStyle(document.body).backgroundColor"),
        "rgb(255, 255, 255)"
    );
    let printed = page.browser.call(
        "Page.printToPDF",
        json!({ "printBackground": true, "transferMode": "ReturnAsBase64" }),
    );
    assert!(printed["data"].as_str().expect("base64").len() > 10_000);
    // The theme comes back even if the browser had announced another print before the first was over.
    page.browser
        .value("window.dispatchEvent(new Event('afterprint')), 0");
    page.browser
        .wait("document.documentElement.dataset.theme === 'dark'");
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}

/// Number of pixels in each colour of a picture's legend, in the legend's order.
fn pixels_by_colour(page: &mut Page, title: &str) -> Vec<u64> {
    let found = page.browser.value(&format!(
        "(() => {{ const plot = [...document.querySelectorAll('figure')].find(plot => plot.querySelector('h3').textContent === '{title}'); \
         const canvas = plot.querySelector('canvas'); \
         const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data; \
         return [...plot.querySelectorAll('.legend i')].map(one => {{ \
           const [r, g, b] = getComputedStyle(one).backgroundColor.match(/\\d+/g).map(Number); let sum = 0; \
           for (let at = 0; at < pixels.length; at += 4) \
             if (Math.abs(pixels[at] - r) + Math.abs(pixels[at + 1] - g) + Math.abs(pixels[at + 2] - b) < 12) sum += 1; \
           return sum; }}); }})()"
    ));
    let found = found.as_array().expect("numbers");
    found.iter().filter_map(Value::as_u64).collect()
}

#[test]
fn lines_that_lie_on_each_other_are_all_seen() {
    let case = recorded("coinciding");
    let mut simulation: Value =
        serde_json::from_str(include_str!("simulation.json")).expect("JSON");
    // Three policies with equal local shares; two of them moved pages.
    let results = simulation["results"].as_array_mut().expect("results");
    results.truncate(1);
    for name in ["second", "third"] {
        let mut other = results[0].clone();
        other["policy"] = name.into();
        for part in other["timeline"]["parts"].as_array_mut().expect("parts") {
            part[2] = 5.into();
        }
        results.push(other);
    }
    case.write("same.json", simulation.to_string());
    let mut page = Page::new(case, &["same.json"], "view=simulation&simulation=0");
    page.says("main", "Over time");
    page.browser.drawn();
    let seen = pixels_by_colour(&mut page, "Over time");
    let all: u64 = seen.iter().sum();
    assert_eq!(seen.len(), 3);
    assert!(
        seen.iter().all(|&pixels| pixels * 10 > all),
        "each has a tenth of what is drawn: {seen:?}"
    );
    // Each picture has one legend.
    assert_eq!(
        page.browser.value("[...document.querySelectorAll('figure')].every(plot => plot.querySelectorAll('.legend').length === 1)"),
        true
    );

    // A press on a name hides its line and no other; a second press shows it again.
    let chart = "[...document.querySelectorAll('figure')].find(plot => plot.querySelector('h3').textContent === 'Over time')";
    let press = format!("{chart}.querySelectorAll('.legend button')[1].click()");
    page.browser.value(&press);
    let without = pixels_by_colour(&mut page, "Over time");
    assert_eq!(without[1], 0, "{without:?}");
    assert!(without[0] > 0 && without[2] > 0, "{without:?}");
    assert_eq!(
        page.browser
            .value("document.activeElement.getAttribute('aria-pressed')"),
        "false"
    );
    page.browser.value(&press);
    assert_eq!(pixels_by_colour(&mut page, "Over time"), seen);

    // An arrow key moves the cursor from the middle to the next part; the read-out has the CSV's values.
    page.browser.value("{ const figure = document.querySelector('#figure'); figure.value = 'migrated'; figure.dispatchEvent(new Event('change')) }");
    page.browser.drawn();
    let readout = format!("{chart}.querySelector('.readout').textContent");
    page.browser.value(&format!(
        "{chart}.querySelector('.readout').textContent = '', {chart}.querySelector('.surface').focus()"
    ));
    page.browser.key("ArrowRight");
    page.browser.wait(&format!("{readout} !== ''"));
    let said = page.browser.value(&readout);
    page.browser
        .value(&format!("{chart}.querySelector('.csv').click()"));
    let csv =
        fs::read_to_string(downloaded(&page.case, "Over-time.csv")).expect("numbers of the chart");
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let names = &rows[0][2..];
    assert_eq!(names[1..], ["second", "third"], "{csv}");
    let row = &rows[1 + (rows.len() - 1) / 2 + 1];
    let expected: Vec<String> = names
        .iter()
        .zip(&row[2..])
        .map(|(name, pages)| format!("{name} {pages}"))
        .collect();
    assert_eq!(row[2..], ["0", "110", "110"], "{row:?}");
    assert!(
        said.as_str()
            .expect("text")
            .ends_with(&expected.join(" · ")),
        "{said}: {row:?}"
    );
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}
