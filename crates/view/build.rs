//! Builds the page in the build's own folder, with `npm ci` from the lock file and with esbuild. Without the feature
//! `page`, Node is not needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(has_page)");
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_PAGE").is_none() {
        return;
    }
    let variable = |name| PathBuf::from(std::env::var_os(name).expect("cargo sets it"));
    let web = variable("CARGO_MANIFEST_DIR").join("../../web");
    let out = variable("OUT_DIR");
    for name in ["src", "index.html", "package.json", "package-lock.json"] {
        println!("cargo::rerun-if-changed={}", web.join(name).display());
    }
    if let Err(what) = build(&web, &out) {
        println!("cargo::error={what}");
        println!(
            "cargo::error=the page needs Node 18 or later with npm; without it: cargo build --no-default-features"
        );
        return;
    }
    println!("cargo::rustc-cfg=has_page");
}

fn build(web: &Path, out: &Path) -> Result<(), String> {
    let esbuild = out.join("node_modules/.bin/esbuild");
    let mut installed = esbuild.exists();
    for name in ["package.json", "package-lock.json"] {
        let (from, to) = (web.join(name), out.join(name));
        let text = fs::read(&from).map_err(|error| format!("{}: {error}", from.display()))?;
        if fs::read(&to).ok().as_ref() != Some(&text) {
            installed = false;
            fs::write(&to, text).map_err(|error| format!("{}: {error}", to.display()))?;
        }
    }
    if !installed {
        let options = [
            "ci",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
        ];
        run(Command::new("npm").args(options).current_dir(out))?;
    }
    // uPlot's licence requires that its text accompanies the library.
    let licence = out.join("node_modules/uplot/LICENSE");
    let licence =
        fs::read_to_string(&licence).map_err(|error| format!("{}: {error}", licence.display()))?;
    run(Command::new(esbuild)
        .env("NODE_PATH", out.join("node_modules"))
        .arg(format!("--banner:js=/*! uPlot: {licence}*/"))
        .arg(web.join("src/page.ts"))
        .arg(web.join("src/page.css"))
        .args([
            "--bundle",
            "--minify",
            "--target=es2022",
            "--charset=utf8",
            "--log-level=warning",
        ])
        .arg(format!("--outdir={}", out.display())))?;
    for (file, name) in [("page.js", "SCRIPT"), ("page.css", "STYLE")] {
        let digest = "crypto.createHash('sha256').update(require('fs').readFileSync(process.argv[1])).digest('base64')";
        let mut node = Command::new("node");
        node.args(["-p", digest]).arg(out.join(file));
        println!(
            "cargo::rustc-env=NEARPAGE_{name}_SHA256={}",
            run(&mut node)?.trim()
        );
    }
    Ok(())
}

/// Runs a command to its end, and returns its output.
fn run(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command
        .output()
        .map_err(|error| format!("{shown}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().filter(|line| !line.is_empty()).take(5);
    Err(format!("{shown}: {}", said.collect::<Vec<_>>().join(" / ")))
}
