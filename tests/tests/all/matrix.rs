//! Rows of `tests/matrix` that need only a C compiler and a shell.

use std::process::Command;

use nearpage_tests::{nearpage_path, repository};

#[test]
fn programs_behave_as_without() {
    let output = Command::new(repository().join("tests/matrix"))
        .args([
            "--no-install",
            "workers",
            "dlopen",
            "stacks",
            "segv",
            "pipeline",
        ])
        .env("NEARPAGE_BIN", nearpage_path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches(" same (status ").count(), 5, "{text}");
}
