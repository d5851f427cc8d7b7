//! The page of a job.

use nearpage_machine::{NodeId, preset};
use nearpage_recording::{Binding, Launched, Launcher, Metadata, Tables};
use nearpage_tests::{Browser, Case};
use serde_json::Value;

use super::made_up;
use super::viewed::Page;

const RANKS: u32 = 4;
/// Rank whose pages are on another node than the pages of the others.
const ODD: u32 = 3;

/// A case with a job of four ranks on two hosts.
fn with_job(name: &str) -> Case {
    let case = Case::new(name);
    let machine = preset("opteron-4").expect("a preset");
    let cpus = machine.nodes[0].cpus.iter().map(ToString::to_string);
    let cpus = cpus.collect::<Vec<_>>().join(",");
    for rank in 0..RANKS {
        let launched = |metadata: &mut Metadata, _: &mut Tables| {
            metadata.launched = Some(Launched {
                launcher: Launcher::Slurm,
                rank,
                size: Some(RANKS),
                local_rank: Some(rank % 2),
                node_index: Some(rank / 2),
                host: format!("n{}", rank / 2),
                job: Some("7".to_owned()),
                step: None,
            });
            metadata.binding = Some(Binding {
                cpus: cpus.clone(),
                memory_nodes: "0-3".to_owned(),
                gpus: None,
            });
        };
        let node = NodeId(if rank == ODD { 3 } else { 0 });
        let folder = case.path("job").join(rank.to_string());
        std::fs::create_dir_all(case.path("job")).expect("a folder of the test's");
        made_up::recording_on(Some(node), &folder, &machine, launched);
    }
    case
}

/// Saves a screenshot in the folder `NEARPAGE_SCREENSHOTS`, if set.
fn picture(browser: &mut Browser) {
    let Some(folder) = std::env::var_os("NEARPAGE_SCREENSHOTS") else {
        return;
    };
    browser.size(1280, 720);
    browser.drawn();
    let height = browser.value("document.documentElement.scrollHeight");
    browser.size(1280, height.as_u64().unwrap_or(720).clamp(720, 2600) as u32);
    browser.drawn();
    let path = std::path::Path::new(&folder).join("job-light.png");
    std::fs::write(path, browser.screenshot()).expect("the folder is writable");
}

#[test]
fn a_jobs_page_leads_to_each_rank() {
    let mut page = Page::new(with_job("job-page"), &["job"], "");
    page.says("main", "Ranks that behave alike");
    page.says("#binding", "share CPU 0");
    page.says("#binding code", "srun --cpus-per-task");
    let job = page.asked("job");
    let report = &job["report"];
    assert_eq!(report["ranks"].as_array().map(Vec::len), Some(4));
    assert_eq!(report["hosts"][1]["nodes"][1]["node"], 3, "{report:#}");
    // The server opens one recording per group at the start.
    let groups = report["groups"].as_array().expect("groups").len();
    assert_eq!(job["opened"].as_array().map(Vec::len), Some(groups.min(2)));
    let rows = |page: &mut Page, table: &str| {
        let rows =
            format!("document.querySelectorAll('table[aria-label=\"{table}\"] tbody tr').length");
        page.browser.value(&rows)
    };
    assert_eq!(rows(&mut page, "ranks"), 4);
    assert_eq!(rows(&mut page, "hosts"), 2);
    assert_eq!(rows(&mut page, "memory nodes"), 3);
    picture(&mut page.browser);
    // A rank whose recording is not open yet.
    page.browser.value(
        "[...document.querySelectorAll('table[aria-label=\"ranks\"] a')].find(link => link.textContent === '2').click()",
    );
    page.browser
        .wait("location.hash.includes('view=summary') && document.querySelector('#costliest-objects') !== null");
    page.says("#status", "solver");
    let recordings = page.asked("open")["recordings"].clone();
    let folders: Vec<&str> = recordings
        .as_array()
        .expect("recordings")
        .iter()
        .filter_map(|recording| recording["folder"].as_str())
        .collect();
    assert!(folders.contains(&"job/2"), "{folders:?}");
    // A recording is opened only once.
    page.go("job");
    page.says("main", "Ranks that behave alike");
    let again = page.asked("rank?position=2")["recording"].clone();
    assert_eq!(again, folders.len() - 1);
    assert_eq!(page.asked("open")["recordings"], recordings);
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}

#[test]
fn a_jobs_page_fits_into_a_file() {
    let case = with_job("job-file");
    case.nearpage(["report", "job", "--html", "job.html"])
        .success();
    let mut browser = Browser::start(case.folder());
    browser.open(&format!("file://{}", case.path("job.html").display()));
    browser.wait("document.querySelector('table[aria-label=\"ranks\"]') !== null");
    let links = browser.value("document.querySelectorAll('table[aria-label=\"ranks\"] a').length");
    let links = links.as_u64().expect("a number");
    assert!(
        (1..=2).contains(&links),
        "those that are in the file: {links}"
    );
    browser.value("document.querySelector('table[aria-label=\"ranks\"] a').click()");
    browser.wait("document.querySelector('#costliest-objects') !== null");
    assert_eq!(browser.complaints, Vec::<String>::new());
    let words = case
        .nearpage(["report", "--by", "node", "job"])
        .success()
        .stdout;
    let odd = words
        .lines()
        .find(|line| line.contains(" n1") && line.trim_start().starts_with('3'));
    assert!(odd.is_some(), "{words}");
    let found: Value =
        serde_json::from_str(&case.nearpage(["report", "--json", "job"]).success().stdout)
            .expect("JSON");
    assert_eq!(found["hosts"][0]["nodes"].as_array().map(Vec::len), Some(1));
}
