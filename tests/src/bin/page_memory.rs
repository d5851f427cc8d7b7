//! `page_memory ADDRESS`: opens every view of the page in a browser, zooms, and prints the page's peak memory.
//! `benches/view` uses it.

use std::process::ExitCode;

use nearpage_tests::Browser;

const VIEWS: [&str; 6] = [
    "objects",
    "space",
    "object&object=0",
    "threads",
    "machine",
    "plan",
];
const COLOURS: [&str; 4] = ["thread", "function", "locality", "latency"];

fn main() -> ExitCode {
    let Some(address) = std::env::args().nth(1) else {
        eprintln!("usage: page_memory ADDRESS");
        return ExitCode::from(2);
    };
    let folder = std::env::temp_dir().join(format!("page-memory-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    let mut browser = Browser::start(&folder);
    browser.size(1280, 900);
    browser.open(&address);
    let mut most = 0;
    for view in VIEWS {
        browser.wait("document.querySelector('main')?.dataset.view !== undefined");
        for colour in COLOURS {
            browser.value("delete document.querySelector('main').dataset.view");
            browser.value(&format!("location.hash = 'view={view}&by={colour}'"));
            browser.wait("document.querySelector('main').dataset.view !== undefined");
            browser.drawn();
            most = most.max(browser.page_memory_kib());
        }
    }
    drop(browser);
    let _ = std::fs::remove_dir_all(&folder);
    println!("{}", most / 1024);
    ExitCode::SUCCESS
}
