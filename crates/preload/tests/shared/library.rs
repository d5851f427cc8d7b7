//! Where the library is that the tests preload.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The library, built now in the profile of this test, unless `tests/build.sh` has built it. Cargo builds no `cdylib` for
/// tests by itself.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        if std::env::var_os("NEARPAGE_TESTS_HAVE_LIBRARY").is_none() {
            build_library(profile);
        }
        profile.join("libnearpage_preload.so")
    })
}

fn build_library(profile: &Path) {
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--package", "nearpage-preload"])
        // Without std there is no unwinding, however the tests were told to be built.
        .env_remove("CARGO_PROFILE_DEV_PANIC")
        .env("CARGO_TARGET_DIR", profile.parent().unwrap())
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(
        build.status().unwrap().success(),
        "cannot build the library"
    );
}
