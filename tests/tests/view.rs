//! The page in a real browser, and its server: what people and strangers see.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, UNIX_EPOCH};

use nearpage_machine::{CpuId, Machine, NodeId, preset};
use nearpage_recording::{
    Access, AccessBatch, AccessKind, CallSite, CallSiteId, Frame, Level, Metadata, Module,
    ModuleId, ModuleMapping, Object, ObjectKind, Recording, Resolution, SampleCounts, Status,
    Tables, Thread, ThreadIndex,
};
use nearpage_tests::{Browser, Case, nearpage_path};
use serde_json::json;

const PID: u32 = 4242;
const PAGE: u64 = 4096;
const THREADS: u64 = 4;
/// Pages of `grid`: each thread has a block of 300.
const GRID_PAGES: u64 = 1200;
const GRID: u64 = 0x7f00_0000_0000;
const RING: u64 = 0x7f00_4000_0000;
const SHARED: u64 = 0x7f00_8000_0000;
const TEXT: u64 = 0x5555_5555_4000;
const HOSTILE: [&str; 2] = [
    "<script>document.title='hacked'</script>",
    "\"><img src=x onerror=\"document.title='hacked'\">",
];

/// A recording whose pattern is known to the page: `grid` in blocks, `ring` in pieces of 16 pages,
/// `shared` read by all, and two symbols with hostile names.
fn recording(folder: &Path, machine: &Machine) {
    let site = |function: &str, line: u32| CallSite {
        frames: vec![Frame {
            module: Some(ModuleId(0)),
            offset: u64::from(line) * 16,
            function: function.to_owned(),
            file: "solver.c".to_owned(),
            line,
            inlined: false,
        }],
    };
    let object = |kind, name: &str, address, pages: u64, call_site: Option<u32>| Object {
        kind,
        name: name.to_owned(),
        pid: PID,
        address,
        size_bytes: pages * PAGE,
        born_ns: 0,
        died_ns: u64::MAX,
        weight: 1.0,
        call_site: call_site.map(CallSiteId),
        thread: call_site.map(|_| ThreadIndex(0)),
        order: 0,
        module: (kind == ObjectKind::Static).then_some(ModuleId(0)),
        module_offset: address - TEXT.min(address),
    };
    let threads = (0..THREADS as u32).map(|thread| Thread {
        pid: PID,
        tid: PID + thread,
        name: "solver".to_owned(),
        born_ns: 0,
        died_ns: u64::MAX,
        order: thread,
        start: None,
        start_function: String::new(),
        team_index: thread,
        team: "openmp".to_owned(),
        cpus: vec![(CpuId(thread), 5000)],
        counts: SampleCounts {
            samples: 5000,
            accesses: 5000,
            ..SampleCounts::default()
        },
    });
    let tables = Tables {
        objects: vec![
            object(ObjectKind::Heap, "", GRID, GRID_PAGES, Some(0)),
            object(ObjectKind::Heap, "", RING, 512, Some(1)),
            object(ObjectKind::Heap, "", SHARED, 256, Some(2)),
            object(ObjectKind::Static, HOSTILE[0], TEXT + 0x10_0000, 4, None),
            object(ObjectKind::Static, HOSTILE[1], TEXT + 0x20_0000, 4, None),
        ],
        threads: threads.collect(),
        modules: vec![Module {
            path: "/opt/solver".to_owned(),
            build_id: "ab".repeat(20),
        }],
        mappings: vec![ModuleMapping {
            pid: PID,
            address: TEXT,
            size_bytes: 0x40_0000,
            born_ns: 0,
            died_ns: u64::MAX,
            module: ModuleId(0),
            bias: TEXT,
        }],
        call_sites: vec![
            site("make_grid", 10),
            site("make_ring", 20),
            site("make_shared", 30),
        ],
        first_touches: vec![],
    };
    let counts = SampleCounts {
        samples: 20_100,
        accesses: 20_000,
        compute: 100,
        ..SampleCounts::default()
    };
    let metadata = Metadata {
        status: Status::Complete,
        recorder: "0".to_owned(),
        command: vec!["/opt/solver".to_owned(), "big".to_owned()],
        build_id: "ab".repeat(20),
        exit_status: Some(0),
        begin_ns: 1_000_000_000,
        end_ns: 3_000_000_000,
        source: "pmu".to_owned(),
        rate_hz: 2500.0,
        thread_placement: "compact".to_owned(),
        counts,
        allocations: 3,
        ..Metadata::begun(UNIX_EPOCH, machine.node_ids())
    };
    Recording::write(folder, &metadata, machine, &tables, |writer| {
        let mut batch = AccessBatch::default();
        for number in 0..20_000u64 {
            let thread = number % THREADS;
            let step = number / THREADS;
            let (address, kind) = match step % 10 {
                0..5 => {
                    let block = GRID_PAGES / THREADS;
                    (
                        GRID + (thread * block + step / 10 * 5 % block + step % 10) * PAGE,
                        AccessKind::Store,
                    )
                }
                5..8 => (
                    RING + ((step * 7 % 8 * THREADS + thread) * 16 + step % 16) * PAGE,
                    AccessKind::Load,
                ),
                8 => (SHARED + step * 31 % 256 * PAGE, AccessKind::Load),
                _ => (
                    TEXT + 0x10_0000 * (1 + step / 10 % 2) + thread * PAGE,
                    AccessKind::Load,
                ),
            };
            // Everything was touched first by the main thread, on the first node.
            batch.push(Access {
                time_ns: 1_000_000_000 + number * 100_000,
                thread: ThreadIndex(thread as u32),
                cpu: CpuId(thread as u32),
                address: address + step % 64 * 64,
                instruction: TEXT + 0x100 + step % 10 * 4,
                kind,
                level: if thread == 0 {
                    Level::LocalMemory
                } else {
                    Level::RemoteMemory
                },
                resolution: Resolution::Exact,
                distance_bytes: 0,
                weight: 1.0,
                cost_ns: 100.0 + 80.0 * thread as f32,
                page_node: Some(NodeId(0)),
            });
        }
        writer.accesses(&batch)
    })
    .expect("the case's folder is writable");
}

/// `nearpage view`, ended with the test.
struct Viewed {
    process: Child,
    address: String,
}

impl Viewed {
    fn new(case: &Case, arguments: &[&str]) -> Self {
        let mut process = case
            .command(nearpage_path())
            .args(["view", "--no-open"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("nearpage is built");
        let mut address = String::new();
        BufReader::new(process.stdout.take().expect("piped"))
            .read_line(&mut address)
            .expect("an address");
        let address = address.trim().to_owned();
        assert!(address.starts_with("http://127.0.0.1:"), "{address:?}");
        Viewed { process, address }
    }

    /// Host and port.
    fn host(&self) -> &str {
        self.address["http://".len()..]
            .split('/')
            .next()
            .expect("a host")
    }

    fn token(&self) -> &str {
        self.address
            .trim_end_matches('/')
            .rsplit('/')
            .next()
            .expect("a token")
    }

    /// Status line and body of a request with these headers.
    fn ask(&self, request: &str, headers: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.host()).expect("it listens");
        write!(
            stream,
            "{request} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"
        )
        .expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }
}

impl Drop for Viewed {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A recording of the Opteron with four nodes, and of one without.
fn viewed(name: &str, arguments: &[&str]) -> (Case, Viewed) {
    let case = Case::new(name);
    recording(
        &case.path("solver.nearpage"),
        &preset("opteron-4").expect("a preset"),
    );
    let viewed = Viewed::new(&case, &[&["solver.nearpage"], arguments].concat());
    (case, viewed)
}

fn downloaded(case: &Case, name: &str) -> PathBuf {
    let file = case.path("downloads").join(name);
    let started = Instant::now();
    while !file.exists() {
        let all: Vec<_> = fs::read_dir(case.path("downloads"))
            .expect("a folder")
            .flatten()
            .collect();
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "no {name} among {all:?}"
        );
        sleep(Duration::from_millis(30));
    }
    file
}

#[test]
fn strangers_are_refused() {
    let (case, viewed) = viewed("strangers", &[]);
    let host = format!("Host: {}\r\n", viewed.host());
    let open = format!("GET /{}/open", viewed.token());
    let (head, body) = viewed.ask(&open, &host);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(
        head.contains("Content-Security-Policy: default-src 'none'; script-src 'self';"),
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
    // A form on another page may post without an origin; the page itself never does.
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

/// What is said of the cell of a picture at a page and a row, by pointing at it.
fn said(browser: &mut Browser, page: u64, (from, to): (u64, u64), row: f64, rows: f64) -> String {
    let canvas = browser.value(
        "(() => { document.querySelector('.readout').textContent = ''; \
         const box = document.querySelector('figure.plot canvas').getBoundingClientRect(); \
         return [box.x, box.y, box.width, box.height]; })()",
    );
    let at = |number: usize| canvas[number].as_f64().expect("a number");
    // As `web/src/plot.ts` lays it out: 120 to the left, 12 to the right, 8 above, 40 below.
    let x = at(0) + 120.0 + (at(2) - 132.0) * ((page - from) as f64 + 0.5) / (to - from) as f64;
    let y = at(1) + 8.0 + (at(3) - 48.0) * (row + 0.5) / rows;
    browser.point(x, y);
    browser.wait("document.querySelector('.readout').textContent !== ''");
    browser
        .value("document.querySelector('.readout').textContent")
        .as_str()
        .expect("text")
        .to_owned()
}

#[test]
fn a_boundary_is_found_to_the_page() {
    let (case, viewed) = viewed("boundary", &[]);
    let mut browser = Browser::start(case.folder());
    browser.open(&viewed.address);
    browser.wait("document.querySelectorAll('tbody tr').length === 5");

    // Sorted by cost; by size after a press on the column, and the other way after another.
    let first = "document.querySelector('tbody td').textContent";
    assert!(
        browser
            .value(first)
            .as_str()
            .expect("a name")
            .contains("make_grid")
    );
    let size = "[...document.querySelectorAll('th button')].find(b => b.textContent.startsWith('size')).click()";
    browser.value(size);
    assert!(
        browser
            .value(first)
            .as_str()
            .expect("a name")
            .contains("make_grid")
    );
    browser.value(size);
    assert!(
        !browser
            .value(first)
            .as_str()
            .expect("a name")
            .contains("make_grid")
    );
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

    // Zoomed by dragging over the picture, then by the address to 12 pages around the boundary.
    browser.value(&format!(
        "location.hash += '&from={}&to={}'",
        294 * PAGE,
        306 * PAGE
    ));
    browser.wait("document.querySelector('.note')?.textContent !== undefined");
    browser.wait("[...document.querySelectorAll('.note')].some(note => note.textContent.startsWith('A column is 1 page;'))");
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

    // The same from the keyboard alone: one page to the right.
    browser.value("document.querySelector('figure.plot canvas').focus()");
    said(&mut browser, 299, (294, 306), 0.0, 4.0);
    browser.key("ArrowRight");
    browser.wait("document.querySelector('.readout').textContent.startsWith('page 300 ')");

    // The address reopens what is seen.
    browser.call("Page.reload", json!({}));
    browser.wait("document.querySelectorAll('figure.plot').length === 2");
    browser.drawn();
    let again = said(&mut browser, 300, (294, 306), 1.0, 4.0);
    assert!(
        again.starts_with("page 300 ") && again.contains("openmp 1"),
        "{again}"
    );

    // What is seen, as files.
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

#[test]
fn hostile_names_are_text() {
    let (case, viewed) = viewed("hostile", &[]);
    let mut browser = Browser::start(case.folder());
    browser.open(&viewed.address);
    browser.wait("document.querySelectorAll('tbody tr').length === 5");
    let names = browser.value("[...document.querySelectorAll('tbody a')].map(a => a.textContent)");
    for name in HOSTILE {
        assert!(
            names.as_array().expect("names").contains(&json!(name)),
            "{names}"
        );
        for view in ["object", "space", "plan"] {
            let object = names
                .as_array()
                .expect("names")
                .iter()
                .position(|other| other == name);
            browser.value(&format!(
                "location.hash = 'view={view}&object={}'",
                object.expect("it is there")
            ));
            browser.wait(&format!(
                "document.querySelector('main').dataset.view === '{view}'"
            ));
            browser.drawn();
        }
    }
    assert_ne!(browser.value("document.title"), "hacked");
    assert_eq!(
        browser.value("document.querySelectorAll('img, main script').length"),
        0
    );
    // Even if one got in, it would not run.
    browser.value("document.body.append(Object.assign(document.createElement('script'), { textContent: \"document.title='hacked'\" }))");
    assert_ne!(browser.value("document.title"), "hacked");
}

#[test]
fn a_placement_is_tried_and_saved() {
    let (case, viewed) = viewed("plan", &[]);
    let mut browser = Browser::start(case.folder());
    browser.open(&format!("{}#view=plan", viewed.address));
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
    browser.value(&type_in("everywhere"));
    browser.wait("document.querySelector('.problem').textContent.includes('`everywhere` is not a placement')");
    browser.value(&type_in("interleave"));
    browser.wait("document.querySelector('.problem').textContent === ''");
    browser.value("document.querySelector('#save').click()");
    browser.wait("document.querySelector('#saved') !== null");
    let plan = case.read("solver.nearpage/plan.edited.toml");
    assert!(plan.contains("placement = \"interleave\""), "{plan}");
    assert!(plan.contains("set by hand to interleave"), "{plan}");
    // A plan of another program is shown, and said not to fit.
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
    let case = Case::new("standalone");
    recording(
        &case.path("solver.nearpage"),
        &preset("opteron-4").expect("a preset"),
    );
    case.nearpage(["report", "solver.nearpage", "--html", "out.html"])
        .success();
    let bytes = fs::metadata(case.path("out.html")).expect("a file").len();
    assert!(bytes <= 3_000_000, "{bytes}");
    let mut browser = Browser::start(case.folder());
    browser.open(&format!("file://{}", case.path("out.html").display()));
    browser.wait("document.querySelectorAll('tbody tr').length === 5");
    for view in [
        "object&object=0",
        "object&object=1&by=locality",
        "space",
        "threads",
        "machine",
        "plan",
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
fn what_is_missing_is_said() {
    let case = Case::new("damaged");
    recording(
        &case.path("solver.nearpage"),
        &preset("opteron-4").expect("a preset"),
    );
    let metadata = case.read("solver.nearpage/recording.json");
    case.write(
        "solver.nearpage/recording.json",
        metadata.replace("\"complete\"", "\"incomplete\""),
    );
    // Some bytes of an access column, in the middle of the table.
    let table = case.path("solver.nearpage/accesses.parquet");
    let mut bytes = fs::read(&table).expect("a table");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xa5);
    fs::write(&table, bytes).expect("written");
    let viewed = Viewed::new(&case, &["solver.nearpage"]);
    let mut browser = Browser::start(case.folder());
    browser.open(&viewed.address);
    browser.wait("document.querySelector('#status')?.innerText.includes('The recording is incomplete') === true");
    browser
        .wait("document.querySelector('#status').innerText.includes('part 1 of 1 is left out: ')");
}

/// Every view, in light and dark, as people see it. The pictures are in `NEARPAGE_SCREENSHOTS`, to
/// be looked at, or in the case's folder.
#[test]
fn every_view_is_drawn() {
    let case = Case::new("views");
    recording(
        &case.path("solver.nearpage"),
        &preset("opteron-4").expect("a preset"),
    );
    case.write("simulation.json", include_str!("view/simulation.json"));
    let viewed = Viewed::new(
        &case,
        &["solver.nearpage", "solver.nearpage", "simulation.json"],
    );
    let folder = std::env::var_os("NEARPAGE_SCREENSHOTS").map_or(case.path("views"), PathBuf::from);
    fs::create_dir_all(&folder).expect("writable");
    let mut browser = Browser::start(case.folder());
    browser.size(1280, 720);
    browser.open(&viewed.address);
    browser.wait("document.querySelectorAll('tbody tr').length === 5");
    let views = [
        ("objects", "", 0),
        ("object", "&object=0", 2),
        ("object", "&object=1&by=latency", 2),
        ("space", "&by=locality", 2),
        ("threads", "", 2),
        ("machine", "", 3),
        ("plan", "", 1),
        ("compare", "", 1),
        ("simulation", "&simulation=0", 2),
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
            browser.size(1280, height.clamp(720, 1600) as u32);
            browser.drawn();
            let png = browser.screenshot();
            assert!(png.starts_with(b"\x89PNG"));
            fs::write(folder.join(format!("{number}-{view}-{theme}.png")), png).expect("written");
            browser.size(1280, 720);
            browser.drawn();
        }
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}
