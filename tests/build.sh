# How the tests and what they run are built. ./check and tests/long read this file.

# Tests unwind, whatever a profile says, and so do all libraries in them. With a command that unwinds, too (its hook ends
# it at any panic), nearly everything is built once instead of twice. The preload library alone can't: it has no std.
export CARGO_PROFILE_DEV_PANIC=unwind
without_std() { CARGO_PROFILE_DEV_PANIC=abort "$@"; }
export RUSTC_WORKSPACE_WRAPPER=$PWD/tests/rustc

# Builds what the tests run, with the features that the tests' own dependencies ask for: a build without the tests would be
# one more of nearly everything. tests/rustc lints it, too.
build_what_tests_run() {
    without_std cargo build --locked -p nearpage-preload
    export NEARPAGE_TESTS_HAVE_LIBRARY=1
    cargo build --locked --workspace --exclude nearpage-preload --lib --bins --examples
}
