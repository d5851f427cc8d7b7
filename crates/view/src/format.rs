//! Tests that the page prints numbers as the terminal does: both follow `crates/amount/cases.json`.

use std::path::Path;
use std::process::Command;

/// Prints a line for each difference.
const PROGRAM: &str = "
    const module = { exports: {} };
    new Function('module', 'exports', process.argv[1])(module, module.exports);
    const cases = JSON.parse(process.argv[2]);
    for (const [name, rows] of Object.entries(cases)) {
        for (const [value, text] of rows) {
            const found = module.exports[name](value);
            if (found !== text) console.log(`${name}(${value}): ${found}, not ${text}`);
        }
    }
    console.log('compared');
";

#[test]
fn the_page_prints_amounts_as_the_terminal_does() {
    let printed = |command: &mut Command| {
        let output = command.output().expect("the build has run it");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let script = printed(
        Command::new(Path::new(env!("OUT_DIR")).join("node_modules/.bin/esbuild"))
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/src/format.ts"))
            .args(["--bundle", "--format=cjs", "--charset=utf8"]),
    );
    let cases = include_str!("../../amount/cases.json");
    let compared = printed(Command::new("node").args(["-e", PROGRAM, &script, cases]));
    assert_eq!(compared, "compared\n");
}
