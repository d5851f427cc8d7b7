//! `screenshots ADDRESS FOLDER [WIDTH…]`: saves every view of a running `nearpage view --no-open` as PNG, in both
//! themes, at widths of 800, 1280 and 2560 pixels or the given ones. Names views that are wider than the window, and
//! tables that scroll sideways.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use nearpage_tests::Browser;

/// File name, address within the page, and the text of the link that a page with this view has.
const VIEWS: [(&str, &str, &str); 15] = [
    ("job", "job", "Job"),
    ("summary", "summary", "Summary"),
    ("objects", "objects", "Objects"),
    ("objects-by-function", "objects&group=in", "Objects"),
    ("object", "object&object=0", "Objects"),
    ("flame", "flame", "Flame graph"),
    ("source", "source", "Source"),
    ("space", "space", "Address space"),
    ("threads", "threads", "Threads"),
    ("machine", "machine", "Machine"),
    ("plan", "plan", "Plan"),
    ("compare", "compare", "Compare"),
    ("sweep", "sweep", "Sweep"),
    ("simulation", "simulation&simulation=0", "Simulation"),
    ("live", "live&log=0&follow=0", "Online"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, folder, widths @ ..] = &arguments[..] else {
        eprintln!("usage: screenshots ADDRESS FOLDER [WIDTH…]");
        return ExitCode::FAILURE;
    };
    let widths: Vec<u32> = match widths {
        [] => vec![800, 1280, 2560],
        widths => widths
            .iter()
            .map(|width| width.parse().expect("a width in pixels"))
            .collect(),
    };
    let folder = Path::new(folder);
    fs::create_dir_all(folder).expect("the folder is writable");
    let profile = std::env::temp_dir().join(format!("screenshots-{}", std::process::id()));
    fs::create_dir_all(&profile).expect("the temporary folder is writable");
    let mut browser = Browser::start(&profile);
    browser.open(address);
    browser.wait("document.querySelector('main')?.dataset.view !== undefined");
    let has = |browser: &mut Browser, name: &str| {
        let words = format!(
            "[...document.querySelectorAll('nav a')].some(link => link.textContent.startsWith('{name}'))"
        );
        browser.value(&words) == true
    };
    for (name, place, link) in VIEWS {
        if !has(&mut browser, link) {
            continue;
        }
        for &width in &widths {
            for theme in ["light", "dark"] {
                browser.size(width, 900);
                browser.value("delete document.querySelector('main').dataset.view");
                browser.value(&format!("location.hash = 'view={place}&theme={theme}'"));
                browser.wait("document.querySelector('main').dataset.view !== undefined");
                browser.drawn();
                let height = browser.value("document.documentElement.scrollHeight");
                browser.size(
                    width,
                    height.as_u64().unwrap_or(900).clamp(900, 4000) as u32,
                );
                browser.drawn();
                let wide = browser.value(
                    "[document.documentElement, ...document.querySelectorAll('.table')] \
                     .filter(one => one.scrollWidth > one.clientWidth) \
                     .map(one => one.getAttribute('aria-label') ?? 'the page').join(', ')",
                );
                if wide != "" {
                    println!("{name} at {width}: scrolls sideways: {wide}");
                }
                let file = folder.join(format!("{name}-{width}-{theme}.png"));
                fs::write(file, browser.screenshot()).expect("the folder is writable");
            }
        }
    }
    for complaint in &browser.complaints {
        println!("{complaint}");
    }
    drop(browser);
    let _ = fs::remove_dir_all(&profile);
    ExitCode::SUCCESS
}
