//! Rules for the order of crates and modules, and for the size of files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nearpage_tests::repository;

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Texts in backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Rust files under a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Crates in the order of ARCHITECTURE.md's table.
fn crates(architecture: &str) -> Vec<String> {
    let rows = architecture.lines().filter(|line| line.starts_with("| `"));
    let names = rows.map(|row| quoted(row)[0].to_owned());
    names.filter(|name| name != "tests").collect()
}

#[test]
fn crates_depend_on_rows_above_theirs() {
    let order = crates(&read(&repository().join("ARCHITECTURE.md")));
    let folders = fs::read_dir(repository().join("crates")).expect("crates");
    let folders = folders.map(|entry| entry.expect("an entry").file_name());
    let folders: BTreeSet<String> = folders.map(|name| name.to_string_lossy().into()).collect();
    assert_eq!(order.iter().cloned().collect::<BTreeSet<_>>(), folders);
    for (position, name) in order.iter().enumerate() {
        let manifest = read(&repository().join("crates").join(name).join("Cargo.toml"));
        let (_, dependencies) = manifest.split_once("[dependencies]").unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        let own = dependencies
            .lines()
            .filter_map(|line| line.strip_prefix("nearpage-"));
        for dependency in own {
            let end = dependency.find(['.', ' ', '=']).expect("a name");
            let above = order.iter().position(|other| *other == dependency[..end]);
            assert!(
                above.is_some_and(|above| above < position),
                "{name} depends on {dependency}, which is not in a row above it"
            );
        }
    }
}

/// The modules that a file's code uses by `crate::`.
fn used(source: &str) -> BTreeSet<&str> {
    let code = source
        .lines()
        .map(str::trim_start)
        .filter(|line| !line.starts_with("//"));
    let mut used = BTreeSet::new();
    for line in code {
        for after in line.split("crate::").skip(1) {
            let end = after.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
            used.insert(&after[..end.unwrap_or(after.len())]);
            // `use crate::{affinity, object};`
            let several = after
                .strip_prefix('{')
                .map(|list| list.split('}').next().unwrap_or(list));
            let names = several.into_iter().flat_map(|list| list.split(','));
            used.extend(names.map(|name| name.split("::").next().unwrap_or(name).trim()));
        }
    }
    used
}

#[test]
fn uses_of_modules_are_found() {
    let source = "use crate::place::Places;\n/// [`crate::thread_nodes`]\nuse crate::{affinity, auto::Model};\n";
    assert_eq!(
        used(source)
            .into_iter()
            .filter(|name| !name.is_empty())
            .collect::<Vec<_>>(),
        ["affinity", "auto", "place"]
    );
}

#[test]
fn modules_of_the_planner_use_those_named_before_them() {
    let architecture = read(&repository().join("ARCHITECTURE.md"));
    let (_, order) = architecture
        .split_once("each module uses those named before it:")
        .expect("the order");
    let order = quoted(order.split(". `").next().expect("its end"));
    let folder = repository().join("crates/planner/src");
    let mut modules = BTreeSet::new();
    for path in sources(&folder) {
        let inside = path
            .strip_prefix(&folder)
            .expect("inside")
            .to_string_lossy()
            .into_owned();
        let module = inside.split(['/', '.']).next().expect("a name").to_owned();
        if module == "lib" {
            continue;
        }
        let place = |name: &str| order.iter().position(|other| *other == name);
        let own =
            place(&module).unwrap_or_else(|| panic!("ARCHITECTURE.md does not name {module}"));
        let source = read(&path);
        for other in used(&source) {
            if let Some(other_place) = place(other) {
                assert!(
                    other_place <= own,
                    "{inside} uses {other}, which comes after it"
                );
            }
        }
        modules.insert(module);
    }
    assert_eq!(
        order
            .into_iter()
            .map(str::to_owned)
            .collect::<BTreeSet<_>>(),
        modules
    );
}

/// Most lines of a source file, unless it gives a reason near its top.
const LINES_MAX: usize = 500;

#[test]
fn long_files_say_why() {
    let mut unexplained = Vec::new();
    for name in crates(&read(&repository().join("ARCHITECTURE.md"))) {
        for path in sources(&repository().join("crates").join(name).join("src")) {
            let source = read(&path);
            let is_explained = source
                .lines()
                .take(20)
                .any(|line| line.starts_with("//! Over 500 lines: "));
            if source.lines().count() >= LINES_MAX && !is_explained {
                unexplained.push(path);
            }
        }
    }
    assert!(
        unexplained.is_empty(),
        "split these, or begin a line near their top with `//! Over 500 lines: ` and a reason: {unexplained:#?}"
    );
}
