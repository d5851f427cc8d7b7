//! Costs by code: the flame graph, and source lines and instructions with their costs.

use std::fs;
use std::process::Command;

use nearpage_tests::Case;

use super::made_up;
use super::viewed::{Page, SOLVER, recorded};

#[test]
fn a_flame_graph_leads_from_cost_to_object_and_line() {
    let mut page = Page::new(recorded("flame"), &[SOLVER], "view=flame");
    page.browser.drawn();
    page.says("table[aria-label='costliest lines'] tbody tr", "make_grid");
    // The tree's sums equal those of the table of objects; with a selection, both cover the selected time.
    let all = page.asked("flame?recording=0")["all"].clone();
    let report = page.asked("report?recording=0");
    let cost_of = |name: &str| {
        let objects = report["report"]["objects"].as_array().expect("objects");
        let found = objects.iter().find(|object| {
            object["name"]
                .as_str()
                .is_some_and(|own| own.contains(name))
        });
        found.expect("it is there")["cost_ns"].as_f64()
    };
    let grid = &all["branches"][0];
    assert!(grid["name"].as_str().expect("a name").contains("make_grid"));
    assert_eq!(grid["cost_ns"].as_f64(), cost_of("make_grid"));
    assert_eq!(
        (&grid["stores"], &grid["loads"]),
        (&10_000.0.into(), &0.0.into())
    );
    // Threads 1 to 3 run on other nodes, so all cost is remote except thread 0's 100 ns of 880 ns.
    let remote =
        grid["remote_cost_ns"].as_f64().expect("known") / grid["cost_ns"].as_f64().expect("cost");
    assert!((remote - 780.0 / 880.0).abs() < 1e-6, "{remote}");
    let site = &grid["branches"][0];
    assert_eq!(
        (&site["level"], &site["name"]),
        (&"call-site".into(), &"make_grid solver.c:10".into())
    );
    assert_eq!(site["branches"][0]["name"], "smooth");
    let half = page.asked("flame?recording=0&since=0&until=1000000000");
    let accesses = half["all"]["loads"].as_f64().expect("a sum")
        + half["all"]["stores"].as_f64().expect("a sum");
    assert!(
        (accesses - made_up::ACCESSES as f64 / 2.0).abs() <= 1.0,
        "{accesses}"
    );

    // Matches of a search stand out and are summed up.
    page.browser.value("{ const box = document.querySelector('#search'); box.value = 'smooth'; box.dispatchEvent(new Event('input')) }");
    page.says("p[role=status]", "1 found");
    page.says("table[aria-label='costliest lines'] tbody", "smooth");
    page.browser.wait(
        "document.querySelectorAll(\"table[aria-label='costliest lines'] tbody tr\").length === 1",
    );
    page.browser.drawn();
    // Measured by stores, almost everything belongs to the grid; the rest are counters.
    page.browser.value("{ const select = document.querySelector('#measure'); select.value = 'stores'; select.dispatchEvent(new Event('change')) }");
    page.browser
        .wait("location.hash.includes('measure=stores')");
    page.browser.drawn();
    let said = page.press("Cost by object and code", 120.0, (0.5, 1.5 / 5.0));
    assert!(
        said.contains("make_grid") && said.contains("of stores"),
        "{said}"
    );
    page.says("main h2", "make_grid");
    page.browser
        .wait("location.hash.includes('view=object&') || location.hash.includes('object=0')");
    // A press on a function shows its accesses to the object.
    page.go("flame");
    page.press("Cost by object and code", 120.0, (0.1, 3.5 / 5.0));
    page.browser
        .wait("location.hash.includes('function=smooth')");
    page.says("figure .note", "Dots with any access by smooth stand out.");
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}

/// The made-up program with debug information: `smooth` in line 2, `exchange` in line 3.
fn with_source(case: &Case) {
    fs::create_dir_all(case.path("project/src")).expect("writable");
    let source = case.path("project/src/solver.c");
    let text = "// Relaxes a grid.\nvoid smooth(void) {}\nvoid exchange(void) {}\nint main(void) { smooth(); exchange(); }\n";
    fs::write(&source, text).expect("writable");
    let made = Command::new("cc")
        .args(["-O0", "-g", "-o"])
        .arg(case.path("solver-code"))
        .arg(&source)
        .status();
    assert!(made.expect("a C compiler").success());
}

/// Text of the row with a line or an instruction that contains `text`.
fn row(page: &mut Page, table: &str, text: &str) -> String {
    let rows = format!("[...document.querySelectorAll('table[aria-label={table}] tbody tr')]");
    page.browser.wait(&format!(
        "{rows}.some(row => row.innerText.includes('{text}'))"
    ));
    let found = page.browser.value(&format!(
        "{rows}.find(row => row.innerText.includes('{text}')).innerText"
    ));
    found.as_str().expect("text").to_owned()
}

#[test]
fn source_lines_and_instructions_have_their_cost() {
    let case = recorded("source");
    with_source(&case);
    let mut page = Page::new(case, &[SOLVER], "view=source&function=smooth");
    let smooth = row(&mut page, "source", "void smooth");
    assert!(
        smooth.starts_with('2') && smooth.contains("50 %"),
        "{smooth}"
    );
    assert!(
        smooth.contains("10.0k") || smooth.contains("10k"),
        "its stores: {smooth}"
    );
    let exchange = row(&mut page, "source", "void exchange");
    assert!(
        exchange.starts_with('3') && exchange.contains("50 %"),
        "{exchange}"
    );
    let comment = row(&mut page, "source", "Relaxes a grid");
    assert!(!comment.contains('%'), "{comment}");
    page.browser.value("[...document.querySelectorAll('#code button')].find(button => button.textContent === 'Instructions').click()");
    let first = row(&mut page, "instructions", "solver.c:2");
    assert!(first.contains("50 %"), "the sampled instruction: {first}");
    row(&mut page, "instructions", "ret");

    // Without source code the view shows instructions; --source-dir names the folder of the source code.
    let case = page.closed();
    fs::rename(case.path("project"), case.path("moved")).expect("writable");
    let mut page = Page::new(case, &[SOLVER], "view=source&function=smooth");
    page.says(
        "#no-source",
        "solver.c is not on this machine: nearpage view --source-dir DIR",
    );
    row(&mut page, "instructions", "ret");
    let case = page.closed();
    let mut page = Page::new(
        case,
        &[SOLVER, "--source-dir", "moved"],
        "view=source&function=smooth",
    );
    row(&mut page, "source", "void smooth");
    // The server gives only code of functions that the debug information names.
    for question in [
        "code?recording=0&function=/etc/passwd",
        "code?recording=0&function=smooth&module=0",
        "code?recording=0",
    ] {
        let host = format!("Host: {}\r\n", page.viewed.host());
        let (head, _) = page
            .viewed
            .ask(&format!("GET /{}/{question}", page.viewed.token()), &host);
        assert!(head.starts_with("HTTP/1.1 404"), "{question}: {head}");
    }
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}
