//! Runs every command line of README and guide and compares the output with the page (`nearpage_tests::documents` has
//! the rules). After a change of output: `NEARPAGE_RENEW_DOCUMENTS=1 cargo test --workspace --test all documents::`.

use nearpage_tests::{documents, repository};

#[track_caller]
fn check(page: &str) {
    if let Err(differences) = documents::check(&repository().join(page)) {
        panic!("{differences}");
    }
}

/// A test for each page, so that pages run in parallel.
macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        $(
            #[test]
            fn $name() {
                check($page);
            }
        )*

        #[test]
        fn every_page_has_its_test() {
            let guide = std::fs::read_dir(repository().join("docs/guide")).expect("a folder");
            for entry in guide {
                let name = entry.expect("an entry").file_name();
                let page = format!("docs/guide/{}", name.to_string_lossy());
                // SQL files beside the pages have a test of their own.
                let is_page = page.ends_with(".md");
                assert!(!is_page || [$($page),*].contains(&page.as_str()), "{page} has no test here");
            }
        }
    };
}

pages! {
    readme: "README.md",
    attach: "docs/guide/attach.md",
    compare: "docs/guide/compare.md",
    copies: "docs/guide/copies.md",
    first_steps: "docs/guide/first-steps.md",
    import_samples: "docs/guide/import-samples.md",
    lab: "docs/lab.md",
    live: "docs/guide/live.md",
    look: "docs/guide/look.md",
    machines: "docs/guide/machines.md",
    mpi: "docs/guide/mpi.md",
    other_tools: "docs/guide/other-tools.md",
    plan: "docs/guide/plan.md",
    simulate: "docs/guide/simulate.md",
    sweeps: "docs/guide/sweeps.md",
    top: "docs/guide/top.md",
    trace: "docs/guide/trace.md",
}
