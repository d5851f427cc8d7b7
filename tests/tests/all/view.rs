//! The page in a real browser, and requests of strangers to its server.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its beginning to its end"
)]

mod code;
mod first_looks;
mod job;
mod lasting;
mod made_up;
mod many_objects;
mod one_planner;
mod touch_and_paper;
mod viewed;

use std::fs;
use std::path::PathBuf;

use nearpage_machine::preset;
use nearpage_tests::{Browser, Case};
use serde_json::json;

use self::made_up::{HOSTILE, PAGE};
use self::viewed::{Page, SOLVER, Viewed, downloaded, recorded};

#[test]
fn strangers_are_refused() {
    let case = recorded("strangers");
    let viewed = Viewed::new(&case, &[SOLVER]);
    let host = format!("Host: {}\r\n", viewed.host());
    let open = format!("GET /{}/open", viewed.token());
    let (head, body) = viewed.ask(&open, &host);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(
        head.contains("content-security-policy: default-src 'none'; script-src 'self';"),
        "{head}"
    );
    assert!(body.contains("solver.nearpage"), "{body}");
    let (head, body) = viewed.ask("GET /0000/open", &host);
    assert!(
        head.starts_with("HTTP/1.1 403") && body.contains("wrong or missing token"),
        "{head}\n{body}"
    );
    for headers in [
        "Host: evil.example\r\n".to_owned(),
        format!("{host}Origin: http://evil.example\r\n"),
        format!("{host}Origin: null\r\n"),
    ] {
        let (head, body) = viewed.ask(&open, &headers);
        assert!(head.starts_with("HTTP/1.1 403"), "{headers}: {head}");
        assert!(!body.contains("solver"), "{body}");
    }
    // The page itself always sends an origin; a form on another page may send none.
    let post = format!("POST /{}/plan?recording=0", viewed.token());
    let (head, _) = viewed.ask(&post, &format!("{host}Content-Length: 0\r\n"));
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    let (head, body) = viewed.ask(
        &format!("GET /{}/picture?recording=0", viewed.token()),
        &host,
    );
    assert!(
        head.starts_with("HTTP/1.1 400") && body.contains("place_from"),
        "{head}\n{body}"
    );
    let port = viewed
        .host()
        .split(':')
        .next_back()
        .expect("a port")
        .to_owned();
    let taken = case
        .nearpage(["view", "--no-open", "--port", &port, "solver.nearpage"])
        .exits(1);
    assert!(
        taken
            .stderr
            .contains("is in use; choose another with --port"),
        "{taken}"
    );
    let absent = case
        .nearpage(["view", "--no-open", "absent.nearpage"])
        .exits(1);
    assert!(absent.stderr.contains("absent.nearpage"), "{absent}");
}

/// Read-out of a picture at a page and a row, by pointing there.
fn said(browser: &mut Browser, page: u64, (from, to): (u64, u64), row: f64, rows: f64) -> String {
    let canvas = browser.value(
        "(() => { document.querySelector('main .readout').textContent = ''; \
         const box = document.querySelector('figure.plot canvas').getBoundingClientRect(); \
         return [box.x, box.y, box.width, box.height]; })()",
    );
    let at = |number: usize| canvas[number].as_f64().expect("a number");
    // The layout of `web/src/figure.ts`: margins of 120 pixels left, 24 right, 8 above, 40 below.
    let x = at(0) + 120.0 + (at(2) - 144.0) * ((page - from) as f64 + 0.5) / (to - from) as f64;
    let y = at(1) + 8.0 + (at(3) - 48.0) * (row + 0.5) / rows;
    browser.point(x, y);
    browser.wait("document.querySelector('main .readout').textContent !== ''");
    browser
        .value("document.querySelector('main .readout').textContent")
        .as_str()
        .expect("text")
        .to_owned()
}

#[test]
fn a_boundary_is_found_to_the_page() {
    let page = Page::new(recorded("boundary"), &[SOLVER], "view=objects");
    let Page {
        mut browser,
        case,
        viewed: _viewed,
    } = page;
    browser.wait("document.querySelectorAll('tbody tr').length === 5");

    // Sorted by cost first, by size after a press on the column, in reverse after a second press.
    let grid_is_first = |browser: &mut Browser| {
        let first = browser.value("document.querySelector('tbody td').textContent");
        first.as_str().expect("a name").contains("make_grid")
    };
    assert!(grid_is_first(&mut browser));
    let size = "[...document.querySelectorAll('th button')].find(b => b.textContent.startsWith('size')).click()";
    browser.value(size);
    assert!(grid_is_first(&mut browser));
    browser.value(size);
    assert!(!grid_is_first(&mut browser));
    assert_eq!(
        browser.value("document.querySelector('th[aria-sort=ascending]').textContent"),
        "size ▲"
    );
    browser.value("{ const box = document.querySelector('#search'); box.value = 'make_ring'; box.dispatchEvent(new Event('input')) }");
    browser.wait("document.querySelectorAll('tbody tr').length === 1");
    browser.value("{ const box = document.querySelector('#search'); box.value = 'make_grid'; box.dispatchEvent(new Event('input')) }");
    browser.wait("document.querySelector('tbody a')?.textContent.includes('make_grid')");
    browser.value("document.querySelector('tbody a').click()");
    browser.wait("document.querySelectorAll('figure.plot').length === 2");
    browser.drawn();
    let text = browser
        .value("document.querySelector('main').innerText")
        .to_string();
    assert!(
        text.contains("each thread its own block of 1.17 MiB"),
        "{text}"
    );

    // Zoomed by a drag over the picture, then by the address to 12 pages around the boundary.
    browser.value(&format!(
        "location.hash += '&from={}&to={}'",
        294 * PAGE,
        306 * PAGE
    ));
    browser.wait("document.querySelector('.note')?.textContent !== undefined");
    browser.wait("[...document.querySelectorAll('.note')].some(note => note.textContent.includes('A column is 1 page;'))");
    browser.drawn();
    let mut owners = Vec::new();
    for page in 294..306 {
        let with = |said: &str| !said.contains(" 0 stores");
        let both = [0.0, 1.0].map(|row| said(&mut browser, page, (294, 306), row, 4.0));
        assert!(both[0].starts_with(&format!("page {page} ")), "{both:?}");
        owners.push((with(&both[0]), with(&both[1])));
    }
    let boundary = owners.iter().position(|&owner| owner == (false, true));
    assert_eq!(boundary, Some(6), "page 300: {owners:?}");
    assert!(
        owners[..6].iter().all(|&owner| owner == (true, false)),
        "{owners:?}"
    );

    // The keyboard reaches the same points: one page to the right.
    browser.value("document.querySelector('figure.plot .surface').focus()");
    said(&mut browser, 299, (294, 306), 0.0, 4.0);
    browser.key("ArrowRight");
    browser.wait("document.querySelector('main .readout').textContent.startsWith('page 300 ')");

    // The address restores the view.
    browser.call("Page.reload", json!({}));
    browser.wait("document.querySelectorAll('figure.plot').length === 2");
    browser.drawn();
    let again = said(&mut browser, 300, (294, 306), 1.0, 4.0);
    assert!(
        again.starts_with("page 300 ") && again.contains("openmp 1"),
        "{again}"
    );

    // A picture is saved as CSV and as PNG.
    browser.value("document.querySelector('figure.plot .csv').click()");
    let csv = fs::read_to_string(downloaded(
        &case,
        "make_grid-solver.c-10-malloc-pages-by-thread.csv",
    ))
    .expect("text");
    assert!(
        csv.starts_with("first_page,last_page,thread,loads,stores,cost_ns\r\n"),
        "{csv}"
    );
    assert!(
        csv.contains("\r\n299,299,openmp 0,") && csv.contains("\r\n300,300,openmp 1,"),
        "{csv}"
    );
    assert_eq!(csv.lines().count(), 13, "{csv}");
    browser.value("document.querySelector('figure.plot .png').click()");
    let png = fs::read(downloaded(
        &case,
        "make_grid-solver.c-10-malloc-pages-by-thread.png",
    ))
    .expect("a picture");
    assert!(png.starts_with(b"\x89PNG"));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Read-out of a picture at shares of its width and height, by pointing there.
fn said_of(browser: &mut Browser, title: &str, left: f64, (x, y): (f64, f64)) -> String {
    let figure = format!(
        "[...document.querySelectorAll('figure.plot')].find(plot => plot.querySelector('h3').textContent.includes('{title}'))"
    );
    let canvas = browser.value(&format!(
        "(() => {{ const plot = {figure}; plot.scrollIntoView({{ block: 'center' }}); plot.querySelector('main .readout').textContent = ''; \
         const box = plot.querySelector('canvas').getBoundingClientRect(); return [box.x, box.y, box.width, box.height]; }})()"
    ));
    let at = |number: usize| canvas[number].as_f64().expect("a number");
    // The layout of `web/src/figure.ts`.
    let inside = (at(2) - left - 24.0, at(3) - 48.0);
    browser.point(at(0) + left + inside.0 * x, at(1) + 8.0 + inside.1 * y);
    let readout = format!("{figure}.querySelector('main .readout').textContent");
    browser.wait(&format!("{readout} !== ''"));
    browser.value(&readout).as_str().expect("text").to_owned()
}

#[test]
fn runs_of_the_lab_stand_beside_each_other() {
    let case = Case::new("lab-runs");
    let run = include_str!("../../../crates/cli/src/lab/page_run.json");
    case.write("first touch.json", run);
    case.write(
        "plan.json",
        run.replacen("\"guest_s\": 0.", "\"guest_s\": 1.", 1),
    );
    let words = ["first touch.json", "plan.json"];
    let mut page = Page::new(case, &words, "view=simulation&simulation=0");
    page.says("h2", "in the lab on carrefour-a");
    page.says("main", "first touch and plan on carrefour-a");
    let browser = &mut page.browser;
    browser.wait("document.querySelectorAll('figure.plot').length === 2");
    let rows = "[...document.querySelectorAll('tbody tr')].map(row => row.cells[0].textContent)";
    assert_eq!(browser.value(rows), json!(["first touch", "plan"]));
    browser.drawn();
    let parts = said_of(browser, "time by policy", 170.0, (0.01, 0.75));
    assert!(parts.contains("remote memory"), "{parts}");
}

#[test]
fn pages_are_followed_through_a_simulation() {
    let case = recorded("movements");
    case.write("simulation.json", include_str!("view/simulation.json"));
    let mut page = Page::new(
        case,
        &[SOLVER, "simulation.json"],
        "view=simulation&simulation=0",
    );
    page.browser
        .wait("document.querySelectorAll('figure.plot').length === 6");
    page.browser.drawn();
    page.says("main", "272 later movements are not in the file");
    let browser = &mut page.browser;

    // Page 40 came back twice, page 5 once, as in ARS's Figure 4; two columns of six, rows of 50.
    let first = said_of(browser, "homes that each page has had", 170.0, (0.1, 0.01));
    assert!(
        first.starts_with("page 0x7f0000028000 · home 1 is node 0"),
        "{first}"
    );
    let back = said_of(
        browser,
        "homes that each page has had",
        170.0,
        (2.5 / 6.0, 1.5 / 24.0),
    );
    assert!(
        back.starts_with("page 0x7f0000005000 · home 3 is node 1, where it came from · 3 homes: 1 → 0 → 1 · 1 ping-pong"),
        "{back}"
    );
    browser.value("document.querySelector('#next-homes').click()");
    page.says("figure .tools", "pages 25 to 48 of 49");
    let browser = &mut page.browser;
    browser.drawn();

    // First and last home: page 60 began on node 0, ended on node 3, and has a replica.
    let last = said_of(browser, "first and last home", 96.0, (60.5 / 64.0, 0.5));
    assert_eq!(
        last,
        "page 60: 0x7f000010c000 · first on node 0, last on node 3 · 2 movements"
    );

    // Playback by single movements, then of everything; the address restores the moment.
    let clock = "document.querySelector('#clock').textContent";
    browser.value("document.querySelector('[title=\"to the next movement\"]').click()");
    browser.wait(&format!("{clock}.startsWith('1.5 ms of ')"));
    let latest = said_of(browser, "movements as they happen", 12.0, (0.8, 0.02));
    assert!(
        latest.starts_with("1.5 ms: migrate page 0x7f0000005000, node 1 → node 0"),
        "{latest}"
    );
    browser.call("Page.reload", json!({}));
    browser.wait(&format!(
        "document.querySelector('#clock') !== null && {clock}.startsWith('1.5 ms of ')"
    ));
    browser.drawn();
    browser.value("{ const pace = document.querySelector('#speed'); pace.value = '10.5'; pace.dispatchEvent(new Event('input')) }");
    browser.value("document.querySelector('#play').click()");
    browser.wait(&format!("{clock}.startsWith('10.3 ms of ') && document.querySelector('#play').textContent === 'Play'"));
    let at_the_end = said_of(browser, "movements as they happen", 12.0, (0.8, 0.02));
    assert!(
        at_the_end.contains("collapse page 0x7f000010d000"),
        "{at_the_end}"
    );

    // Figures over time, and the movements of other policies.
    let over_time = said_of(browser, "Over time", 96.0, (0.01, 0.5));
    assert!(over_time.contains("first-touch 38 %"), "{over_time}");
    browser.value("{ const figure = document.querySelector('#figure'); figure.value = 'migrated'; figure.dispatchEvent(new Event('change')) }");
    browser.drawn();
    let moved = said_of(browser, "Over time", 96.0, (0.85, 0.5));
    assert!(moved.contains("migrate-replicate 310"), "{moved}");
    browser.value("{ const policy = document.querySelector('#policy'); policy.value = 'first-touch'; policy.dispatchEvent(new Event('change')) }");
    page.says("main", "It moved no page.");
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}

#[test]
fn a_function_is_chosen_in_the_table_and_in_the_picture() {
    let mut page = Page::new(recorded("functions"), &[SOLVER], "view=object&object=0");
    page.browser
        .wait("document.querySelectorAll('figure.plot').length === 2");
    page.browser.drawn();
    // A link in the table of functions chooses the function in the picture.
    page.browser.value("[...document.querySelectorAll('td a')].find(link => link.textContent === 'smooth').click()");
    page.says("figure .note", "Dots with any access by smooth stand out.");
    page.says("figure .legend", "smooth 100 %");
    page.browser
        .wait("document.querySelector('td a[aria-current=true]')?.textContent === 'smooth'");
    // A press on a dot chooses the dot's function; a press on a gap chooses none.
    page.go("object&object=1");
    let dot = page.browser.value(
        "(() => { const canvas = document.querySelectorAll('figure.plot canvas')[1]; \
         canvas.scrollIntoView({ block: 'center' }); \
         const box = canvas.getBoundingClientRect(); const g = canvas.getContext('2d'); \
         for (let y = 20; y < box.height - 50; y += 1) for (let x = 110; x < box.width - 40; x += 1) { \
           const [r, , b] = g.getImageData(x, y, 1, 1).data; \
           if (Math.abs(r - b) > 60) return [box.x + x + 1.5, box.y + y + 1.5]; } })()",
    );
    let at = |number: usize| dot[number].as_f64().expect("a dot");
    for kind in ["mousePressed", "mouseReleased"] {
        let event =
            json!({ "type": kind, "x": at(0), "y": at(1), "button": "left", "clickCount": 1 });
        page.browser.call("Input.dispatchMouseEvent", event);
    }
    page.browser
        .wait("location.hash.includes('function=exchange')");
    page.says(
        "figure .note",
        "Dots with any access by exchange stand out.",
    );
    page.browser
        .wait("document.querySelector('td a[aria-current=true]')?.textContent === 'exchange'");
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}

#[test]
fn hostile_names_are_text() {
    let case = Case::new("hostile");
    let machine = preset("opteron-4").expect("a preset");
    made_up::recording_with(&case.path(SOLVER), &machine, |metadata, tables| {
        metadata.command = vec![HOSTILE[0].to_owned(), HOSTILE[1].to_owned()];
        metadata.notes = vec![HOSTILE[1].to_owned()];
        tables.threads[1].name = HOSTILE[0].to_owned();
        tables.threads[1].team = HOSTILE[1].to_owned();
        tables.call_sites[0].frames[0].function = HOSTILE[0].to_owned();
        tables.call_sites[0].frames[0].file = HOSTILE[1].to_owned();
    });
    let simulation = include_str!("view/simulation.json")
        .replace("These figures are made up", &HOSTILE[0].replace('"', "'"))
        .replace("migrate-replicate", &HOSTILE[0].replace('"', "'"));
    let file = format!("{}.json", HOSTILE[0].replace('/', "_"));
    case.write(&file, simulation);
    let mut page = Page::new(case, &[SOLVER, &file], "view=objects");
    let browser = &mut page.browser;
    browser.wait("document.querySelectorAll('tbody tr').length === 5");
    let names = browser.value("[...document.querySelectorAll('tbody a')].map(a => a.textContent)");
    for name in HOSTILE {
        assert!(
            names.as_array().expect("names").contains(&json!(name)),
            "{names}"
        );
        let object = names.as_array().expect("names").iter();
        let object = object.clone().position(|other| other == name);
        let object = object.expect("it is there");
        for view in ["object", "summary", "space", "threads", "machine", "plan"] {
            page.go(&format!("{view}&object={object}"));
        }
    }
    page.go("simulation&simulation=0");
    page.says("main", "<script>document.title='hacked'</script>");
    let browser = &mut page.browser;
    assert_ne!(browser.value("document.title"), "hacked");
    assert_eq!(
        browser.value("document.querySelectorAll('img, main script').length"),
        0
    );
    // An injected script would not run, by the content security policy.
    browser.value("document.body.append(Object.assign(document.createElement('script'), { textContent: \"document.title='hacked'\" }))");
    assert_ne!(browser.value("document.title"), "hacked");
}

#[test]
fn a_placement_is_tried_and_saved() {
    let Page {
        mut browser,
        case,
        viewed,
    } = Page::new(recorded("plan"), &[SOLVER], "view=plan");
    browser.wait("document.querySelectorAll('input.placement').length > 0");
    browser.drawn();
    let planned = "document.querySelector('#prediction').textContent";
    let before = browser.value(planned);
    let type_in = |placement: &str| {
        format!(
            "{{ const input = document.querySelector('input.placement[aria-label*=make_grid]'); \
             input.value = '{placement}'; input.dispatchEvent(new Event('change')) }}"
        )
    };
    browser.value(&type_in("interleave"));
    browser.wait(&format!("{planned} !== {before}"));
    browser.wait(
        "document.querySelector('input.edited[aria-label*=make_grid]')?.value === 'interleave'",
    );
    browser.wait("document.querySelector('#changed')?.innerText.includes('→ interleave') === true");
    browser.value(&type_in("everywhere"));
    // The error appears beside the field, and the plan stays unchanged.
    browser.wait("document.querySelector('.editor .problem')?.textContent.includes('`everywhere` is not a placement')");
    browser.value(&type_in("block"));
    browser.wait("document.querySelector('.editor .problem') === null");
    let shown = "document.querySelector('input.placement[aria-label*=make_grid]')?.value";
    browser.value("document.querySelector('#undo').click()");
    browser.wait(&format!("{shown} === 'interleave'"));
    browser.value("document.querySelector('#redo').click()");
    browser.wait(&format!("{shown} === 'block'"));
    browser
        .value("document.dispatchEvent(new KeyboardEvent('keydown', { key: 'z', ctrlKey: true }))");
    browser.wait(&format!("{shown} === 'interleave'"));
    // A choice from the list of placements.
    let choose = "{ const select = document.querySelector('select.choices[aria-label*=make_grid]'); \
                  select.value = 'first-touch'; select.dispatchEvent(new Event('change')) }";
    browser.value(choose);
    browser.wait(&format!("{shown} === 'first-touch'"));
    browser.value("document.querySelector('#undo').click()");
    browser.wait(&format!("{shown} === 'interleave'"));
    browser.value("document.querySelector('#save').click()");
    browser.wait("document.querySelector('#saved') !== null");
    let plan = case.read("solver.nearpage/plan.edited.toml");
    assert!(plan.contains("placement = \"interleave\""), "{plan}");
    assert!(plan.contains("set by hand to interleave"), "{plan}");
    // A plan of another program is shown with a warning that it does not fit.
    let other = plan
        .replace("executable = \"solver\"", "executable = \"other\"")
        .replace("make_grid", "made_up");
    case.write("other.toml", other.replace("offset = 0xa0", "offset = 0x1"));
    drop(viewed);
    let viewed = Viewed::new(&case, &["solver.nearpage", "--plan", "other.toml"]);
    browser.open(&format!("{}#view=plan", viewed.address));
    browser.wait("document.querySelector('ul.problem')?.textContent.includes('the plan is for other, the recording of solver') === true");
}

#[test]
fn one_file_is_read_without_a_server() {
    let case = recorded("standalone");
    case.nearpage(["report", "solver.nearpage", "--html", "out.html"])
        .success();
    let bytes = fs::metadata(case.path("out.html")).expect("a file").len();
    assert!(bytes <= 3_000_000, "{bytes}");
    let mut browser = Browser::start(case.folder());
    browser.open(&format!(
        "file://{}#view=objects",
        case.path("out.html").display()
    ));
    browser.wait("document.querySelectorAll('tbody tr').length === 5");
    for view in [
        "summary",
        "object&object=0",
        "object&object=1&by=locality",
        "space",
        "threads",
        "machine",
        "plan",
        "flame",
        "objects",
    ] {
        browser.value(&format!("location.hash = 'view={view}'"));
        let name = view.split('&').next().expect("a name");
        browser.wait(&format!(
            "document.querySelector('main').dataset.view === '{name}'"
        ));
        browser.drawn();
        let text = browser
            .value("document.querySelector('main').innerText")
            .to_string();
        assert!(!text.contains("not in the file"), "{view}: {text}");
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
    assert_ne!(browser.value("document.title"), "hacked");
}

#[test]
fn missing_data_of_a_recording_is_reported() {
    let case = recorded("damaged");
    let metadata = case.read("solver.nearpage/recording.json");
    case.write(
        "solver.nearpage/recording.json",
        metadata.replace("\"complete\"", "\"incomplete\""),
    );
    // Damages an access column in the middle of the table.
    let table = case.path("solver.nearpage/accesses.parquet");
    let mut bytes = fs::read(&table).expect("a table");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xa5);
    fs::write(&table, bytes).expect("written");
    let mut page = Page::new(case, &[SOLVER], "");
    page.says("#status", "The recording is incomplete");
    page.says("#status", "part 1 of 1 is left out: ");
}

#[test]
fn a_recording_that_was_cut_short_is_shown_or_refused_in_words() {
    // Without a readable table of accesses there is nothing to show: one line names the file.
    let case = recorded("cut-short");
    let table = case.path(SOLVER).join("accesses.parquet");
    let bytes = fs::read(&table).expect("a table");
    fs::write(&table, &bytes[..bytes.len() / 2]).expect("written");
    let refused = case.nearpage(["view", "--no-open", SOLVER]).exits(1);
    assert!(refused.stderr.contains("accesses.parquet"), "{refused}");
    assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
    // Damaged files of the page's cache are built again.
    fs::write(&table, &bytes).expect("written");
    fs::create_dir_all(case.path(SOLVER).join("view")).expect("writable");
    for name in ["index.bin", "points.bin", "sums.bin"] {
        fs::write(
            case.path(SOLVER).join("view").join(name),
            b"NPVIEW02 and no more",
        )
        .expect("written");
    }
    let mut page = Page::new(case, &[SOLVER], "view=objects");
    page.browser
        .wait("document.querySelectorAll('tbody tr').length === 5");
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let case = recorded("bad-input");
    case.write("empty.json", "{}");
    case.write("text.json", "not JSON");
    case.write("newer.json", r#"{"version":1000,"results":[]}"#);
    case.write("log.jsonl", "{\"nearpage_live\":1}\n");
    case.write("plan.toml", "version = 'no'");
    fs::create_dir(case.path("nothing")).expect("the case's folder is writable");
    for (words, expected) in [
        (
            &["empty.json"][..],
            "empty.json: not the output of `nearpage simulate --json`: it has no list of results",
        ),
        (
            &["newer.json"],
            "newer.json: not the output of `nearpage simulate --json`: a newer nearpage made it: ",
        ),
        (
            &["text.json"],
            "text.json: not the output of `nearpage simulate --json`: ",
        ),
        (
            &["log.jsonl"],
            "log.jsonl: not a log of `nearpage live`: its first line: ",
        ),
        (&["nothing"], "nothing"),
        (&[SOLVER, "--plan", "plan.toml"], "plan.toml"),
        (&[SOLVER, "--plan", "absent.toml"], "absent.toml"),
        (&[SOLVER, "--machine", "no-such-machine"], "no-such-machine"),
    ] {
        // An unknown machine is a usage error, whatever the recording.
        let status = if expected == "no-such-machine" { 2 } else { 1 };
        let words = [&["view", "--no-open"], words].concat();
        let refused = case.nearpage(words).exits(status);
        assert!(refused.stderr.contains(expected), "{refused}");
        assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
    }
}

#[test]
fn a_wrong_token_and_places_that_are_not_there_are_said() {
    let mut page = Page::new(recorded("wrong-places"), &[SOLVER], "");
    let address = page
        .viewed
        .address
        .replace(page.viewed.token(), &"0".repeat(32));
    page.browser.open(&address);
    page.says(
        "body",
        "wrong or missing token: open the address that `nearpage view` printed",
    );
    let address = page.viewed.address.clone();
    page.browser
        .open(&format!("{address}#view=object&object=99"));
    page.says("main", "The recording has no object 99.");
    page.go("simulation&simulation=7");
    page.says("main [role=alert]", "no such simulation");
    page.go("plan&edits=nonsense");
    page.says("main [role=alert]", "edits");
    page.go("space&from=1e99&to=-3&t0=x&by=smell");
    page.go("object&object=0&instance=9&from=NaN&to=1&by=");
    assert_eq!(
        page.browser
            .value("document.querySelectorAll('figure.plot').length"),
        2
    );
}

/// The page follows a daemon through its log: decisions with reasons, and each new interval.
#[test]
fn a_daemon_is_followed() {
    let case = Case::new("followed");
    let log = include_str!("view/live.jsonl");
    let cut = log.trim_end().rfind('\n').expect("several lines") + 1;
    case.write("live.jsonl", &log[..cut]);
    let mut page = Page::new(case, &["live.jsonl"], "");
    page.says("main", "5 intervals");
    page.says(
        "main",
        "Policy migrate-replicate (trigger=4), source clock.",
    );
    page.says("main", "Estimated from samples: memory accesses");
    page.says("table[aria-label=processes]", "4242 solver");
    page.says("table[aria-label=decisions]", "replicate to node");
    page.says("table[aria-label=decisions]", "read-shared");
    page.browser
        .wait("document.querySelectorAll('figure.plot').length === 4");
    // The movements of the last interval by node; then the daemon adds an interval.
    page.case.write("live.jsonl", log);
    page.says("main", "6 intervals");
    page.says("table[aria-label=processes]", "11 %");
    // Without "follow", the page does not update.
    page.browser
        .value("document.querySelector('#follow').click()");
    page.go("live&follow=0");
    page.says("main", "6 intervals");
    page.case.write("live.jsonl", format!("{log}{{}}\n"));
    page.browser
        .value("document.querySelector('#follow').click()");
    page.says("main", "The log is followed no longer: line 8: ");
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}

#[test]
fn pictures_of_a_view_that_was_left_are_let_go() {
    let case = recorded("left");
    let mut page = Page::new(case, &[SOLVER], "view=space");
    page.browser
        .wait("document.querySelectorAll('figure.plot').length === 2");
    page.browser.drawn();
    page.browser
        .value("left = new WeakRef(document.querySelector('figure.plot canvas')), 0");
    page.go("plan");
    page.browser.let_go("left");
}

/// Draws every view in light and dark. Screenshots for inspection go to `NEARPAGE_SCREENSHOTS`, or to the case's
/// folder.
#[test]
fn every_view_is_drawn() {
    let case = recorded("views");
    case.write("simulation.json", include_str!("view/simulation.json"));
    case.write("live.jsonl", include_str!("view/live.jsonl"));
    let viewed = Viewed::new(
        &case,
        &[
            "solver.nearpage",
            "solver.nearpage",
            "simulation.json",
            "live.jsonl",
        ],
    );
    let folder = std::env::var_os("NEARPAGE_SCREENSHOTS").map_or(case.path("views"), PathBuf::from);
    fs::create_dir_all(&folder).expect("writable");
    let mut browser = Browser::start(case.folder());
    browser.size(1280, 720);
    browser.open(&format!("{}#view=objects", viewed.address));
    browser.wait("document.querySelectorAll('tbody tr').length === 5");
    let views = [
        ("summary", "", 0),
        ("objects", "", 0),
        ("object", "&object=0", 2),
        ("object", "&object=1&by=latency", 2),
        ("space", "&by=locality", 2),
        ("threads", "", 2),
        ("machine", "", 4),
        ("flame", "", 1),
        ("source", "", 0),
        ("plan", "", 1),
        ("compare", "", 1),
        ("object", "&object=0&by=function&function=smooth", 2),
        (
            "simulation",
            "&simulation=0&policy=migrate-replicate&t=5000000",
            6,
        ),
        ("live", "&log=0&follow=0", 4),
    ];
    for theme in ["light", "dark"] {
        for (number, (view, options, plots)) in views.iter().enumerate() {
            browser.value(&format!(
                "location.hash = 'view={view}&theme={theme}{options}'"
            ));
            browser.wait(&format!(
                "document.querySelector('main').dataset.view === '{view}' && \
                 document.querySelectorAll('figure.plot').length === {plots}"
            ));
            browser.drawn();
            browser.wait(
                "document.querySelector('#saving')?.textContent.includes('Working out') !== true",
            );
            // No picture is empty, and nothing is wider than the window.
            browser.wait(
                "[...document.querySelectorAll('figure.plot canvas')].every(canvas => { \
                 const pixels = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer); \
                 return new Set(pixels).size > 8; })",
            );
            assert_eq!(
                browser.value("document.documentElement.scrollWidth <= innerWidth"),
                true,
                "{view}"
            );
            let height = browser
                .value("document.documentElement.scrollHeight")
                .as_u64()
                .unwrap_or(720);
            browser.size(1280, height.clamp(720, 2600) as u32);
            browser.drawn();
            let png = browser.screenshot();
            assert!(png.starts_with(b"\x89PNG"));
            fs::write(folder.join(format!("{number}-{view}-{theme}.png")), png).expect("written");
            browser.size(1280, 720);
            browser.drawn();
        }
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
    let mib = browser.page_memory_kib() / 1024;
    assert!((1..300).contains(&mib), "the page takes {mib} MiB");
}
