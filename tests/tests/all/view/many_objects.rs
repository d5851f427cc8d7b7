//! Groups of objects, filters, and more objects than a page can hold.

use std::time::Instant;

use nearpage_machine::preset;
use nearpage_tests::Case;

use super::made_up;
use super::viewed::{Page, SOLVER, recorded};

#[test]
fn objects_are_grouped_and_filtered() {
    let mut page = Page::new(recorded("groups"), &[SOLVER], "view=objects");
    page.browser
        .wait("document.querySelectorAll('table[aria-label=objects] tbody tr').length === 5");
    let group = |by: &str| {
        format!(
            "{{ const select = document.querySelector('#group'); select.value = '{by}'; select.dispatchEvent(new Event('change')) }}"
        )
    };
    page.browser.value(&group("in"));
    // `smooth` makes half of the accesses, all to the grid.
    page.browser.wait("document.querySelectorAll(\"table[aria-label='objects by function that accesses'] tbody tr\").length === 2");
    let rows = page.browser.value("[...document.querySelectorAll('tbody tr')].map(row => row.innerText.replace(/\\s+/g, ' ').trim())");
    let rows = rows.as_array().expect("rows");
    let smooth = rows
        .iter()
        .filter_map(|row| row.as_str())
        .find(|row| row.starts_with("smooth"));
    assert!(
        smooth.is_some_and(|row| row.starts_with("smooth 1 50 %")),
        "{rows:?}"
    );
    // A press on a group filters by it; the filter can be removed.
    page.browser.value("[...document.querySelectorAll('tbody button')].find(button => button.textContent === 'exchange').click()");
    page.says("main p[role=status]", "4 of 5 objects");
    assert_eq!(
        page.browser.value("location.hash.includes('in=exchange')"),
        true
    );
    page.browser.value("[...document.querySelectorAll('.chips button')].find(button => button.textContent.startsWith('static')).click()");
    page.says("main p[role=status]", "2 of 5 objects");
    page.browser.value("[...document.querySelectorAll('.chips button')].forEach(button => { if (button.getAttribute('aria-pressed') === 'true') button.click(); })");
    page.browser.value("[...document.querySelectorAll('.chips button[aria-pressed=true]')].forEach(button => button.click())");
    page.says("main p[role=status]", "5 of 5 objects");
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}

/// `NEARPAGE_OBJECTS=1000000` tests a million objects and prints the duration of each step.
#[test]
fn rows_beyond_the_window_are_not_in_the_page() {
    let count = std::env::var("NEARPAGE_OBJECTS").ok();
    let count: u64 = count.map_or(20_000, |count| count.parse().expect("a number"));
    let case = Case::new("many-objects");
    let machine = preset("opteron-4").expect("a preset");
    made_up::recording_of_objects(&case.path(SOLVER), &machine, count);
    let started = Instant::now();
    let told = |step: &str| eprintln!("{step}: {:.1} s", started.elapsed().as_secs_f64());
    let mut page = Page::new(case, &[SOLVER], "view=objects");
    let all = format!(
        "document.querySelector('main p[role=status]')?.textContent === `${{({count}).toLocaleString('en')}} of ${{({count}).toLocaleString('en')}} objects`"
    );
    page.browser
        .wait("document.querySelectorAll('table[aria-label=objects] tbody tr').length > 0");
    told("the costliest are shown");
    // Objects beyond the costliest are loaded automatically.
    page.browser.wait(&format!("document.querySelector('button.more')?.textContent === `show all ${{({count}).toLocaleString('en')}} rows`"));
    page.browser.wait(&all);
    told("all are there");
    page.browser
        .value("document.querySelector('button.more').click()");
    page.browser
        .wait("document.querySelector('.window') !== null");
    let rows = "document.querySelectorAll('table[aria-label=objects] tbody tr').length";
    assert_eq!(page.browser.value(&format!("{rows} < 150")), true);
    // The cheapest object, at the end, has the lowest address.
    page.browser.value("{ const frame = document.querySelector('.window'); frame.scrollTop = frame.scrollHeight; }");
    page.browser.wait("[...document.querySelectorAll('table[aria-label=objects] tbody td')].some(cell => cell.textContent === 'object_0')");
    assert_eq!(page.browser.value(&format!("{rows} < 150")), true);
    page.browser
        .value("document.querySelector('.window').scrollTop = 0");
    page.browser.wait(&format!("[...document.querySelectorAll('table[aria-label=objects] tbody a')].some(link => link.textContent === 'object_{}')", count - 1));
    told("scrolled to the end and back");
    page.browser.value("[...document.querySelectorAll('th button')].find(button => button.textContent.startsWith('object')).click()");
    page.browser.wait("document.querySelector('th[aria-sort=ascending]') !== null && document.querySelector('tbody td').textContent === 'object_0'");
    told("sorted by name");
    // A cheap object can be found, and has a view of its own.
    page.browser.value("{ const box = document.querySelector('#search'); box.value = 'object_17'; box.dispatchEvent(new Event('input')) }");
    page.browser.wait("[...document.querySelectorAll('table[aria-label=objects] tbody a')].some(link => link.textContent === 'object_17')");
    told("found");
    page.browser.value("[...document.querySelectorAll('table[aria-label=objects] tbody a')].find(link => link.textContent === 'object_17').click()");
    page.says("main h2", "object_17");
    page.browser
        .wait("document.querySelectorAll('main figure.plot').length === 2");
    page.browser.drawn();
    told("its own view");
    let mib = page.browser.page_memory_kib() / 1024;
    eprintln!("the page takes {mib} MiB");
    assert_eq!(page.browser.complaints, Vec::<String>::new());
}
