//! Addresses outlast a restart, a view can be saved in a file, and the page is accessible.

use std::fs;
use std::path::Path;
use std::process::Command;

use nearpage_tests::Browser;
use serde_json::{Value, json};

use super::made_up;
use super::viewed::{Page, SOLVER, Viewed, downloaded, recorded};

#[test]
fn an_address_is_good_after_a_restart_and_names_no_token() {
    let page = Page::new(recorded("permalink"), &[SOLVER], "view=object&object=1");
    let Page {
        mut browser,
        viewed,
        case,
    } = page;
    browser.wait("location.pathname === '/solver.nearpage/'");
    browser.wait("document.querySelector('main h2')?.textContent.includes('make_ring') === true");
    let address = browser.value("location.href");
    let address = address.as_str().expect("text").to_owned();
    let token = viewed.token().to_owned();
    assert!(!address.contains(&token), "{address}");
    // The browser would send a cookie to every server of this machine.
    assert_eq!(browser.value("document.cookie"), "");
    let host = format!("Host: {}\r\n", viewed.host());
    let (head, body) = viewed.ask("GET /solver.nearpage/", &host);
    assert!(
        head.starts_with("HTTP/1.1 200") && !head.to_lowercase().contains("set-cookie"),
        "{head}"
    );
    assert!(
        !body.contains(&token) && !body.contains("make_ring"),
        "{body}"
    );
    let (head, _) = viewed.ask("GET /solver.nearpage/open", &host);
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    // A second server for the same recording has another port and does not disturb the first.
    let other = Viewed::new(&case, &[SOLVER]);
    assert_ne!(other.host(), viewed.host());
    drop(other);

    drop(viewed);
    browser.open("about:blank");
    let viewed = Viewed::new(&case, &[SOLVER]);
    browser.open(&address);
    browser.wait("document.querySelector('main h2')?.textContent.includes('make_ring') === true");
    drop(browser);
    // The address without the token gives no access.
    let mut stranger = Browser::start(case.folder());
    stranger.open(&address);
    stranger.wait("document.body.innerText.includes('wrong or missing token: open the address that `nearpage view` printed')");
    drop(viewed);
    // Each recording has its own token.
    fs::rename(case.path(SOLVER), case.path("other.nearpage")).expect("writable");
    let other = Viewed::new(&case, &["other.nearpage"]);
    assert_ne!(other.token(), token);
}

#[test]
fn a_view_is_saved_as_a_file_that_opens_there() {
    let place = "view=object&object=1&since=600000000&until=1400000000";
    let mut page = Page::new(recorded("save-view"), &[SOLVER], place);
    page.says("main h2", "make_ring");
    let report = page.asked("report?recording=0&since=600000000&until=1400000000");
    let accesses = report["report"]["accesses"].as_u64().expect("a number");
    assert!(accesses < made_up::ACCESSES);
    page.browser
        .value("document.querySelector('#save-view').click()");
    let file = downloaded(&page.case, "solver.nearpage-object.html");
    let Page {
        mut browser,
        viewed,
        case: _case,
    } = page;
    drop(viewed);
    browser.open(&format!("file://{}", file.display()));
    browser.wait("document.querySelector('main h2')?.textContent.includes('make_ring') === true");
    browser.drawn();
    // All tables of the file cover the selected time.
    browser.value("[...document.querySelectorAll('nav a')].find(link => link.textContent === 'Objects').click()");
    browser.wait(&format!(
        "document.querySelector('main').innerText.includes('{accesses} accesses')"
    ));
    browser.wait(
        "document.querySelector('figure.whole-time h3').textContent.includes('40 % of the time')",
    );
    browser.value("[...document.querySelectorAll('nav a')].find(link => link.textContent === 'Flame graph').click()");
    browser.wait("document.querySelector('main').dataset.view === 'flame'");
    browser.drawn();
    browser.wait("document.querySelector('main').innerText.includes('smooth')");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Source of the accessibility checker, in the version of the page's lock file.
fn checker() -> String {
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../web");
    let file = web.join("node_modules/axe-core/axe.min.js");
    if !file.exists() {
        let installed = Command::new("npm")
            .args([
                "ci",
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
                "--loglevel=error",
            ])
            .current_dir(&web)
            .status();
        assert!(installed.expect("npm").success(), "npm ci");
    }
    fs::read_to_string(file).expect("axe-core")
}

#[test]
fn nothing_serious_keeps_anybody_from_using_the_page() {
    let checker = checker();
    let case = recorded("accessible");
    case.write("simulation.json", include_str!("simulation.json"));
    case.write("live.jsonl", include_str!("live.jsonl"));
    let words = [SOLVER, SOLVER, "simulation.json", "live.jsonl"];
    let mut page = Page::new(case, &words, "view=summary");
    let mut found = Vec::new();
    for view in [
        "summary",
        "objects",
        "objects&group=kind",
        "object&object=0",
        "flame",
        "source",
        "space",
        "threads",
        "machine",
        "plan",
        "compare",
        "simulation&simulation=0",
        "live&log=0&follow=0",
    ] {
        for theme in ["light", "dark"] {
            page.go(&format!("{view}&theme={theme}"));
            page.browser.value(&checker);
            let violations = page.browser.value(
                "axe.run(document, { resultTypes: ['violations'] }).then(found => found.violations \
                 .filter(one => ['serious', 'critical'].includes(one.impact)) \
                 .map(one => ({ rule: one.id, such_as: one.nodes.slice(0, 2).map(node => node.html.slice(0, 200) + ' ' + node.failureSummary) })))",
            );
            let Value::Array(violations) = violations else {
                panic!("{violations}");
            };
            found.extend(violations.into_iter().map(|one| json!([view, theme, one])));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
