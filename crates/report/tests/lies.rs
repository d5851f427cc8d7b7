//! Recordings with false figures: sums of their values overflow.

use std::path::Path;

use nearpage_recording::{AccessBatch, Recording};
use nearpage_report::{ProfileFormat, write_profile};

#[test]
fn costs_that_no_time_has_are_added_up() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recording/tests/fixtures");
    let sound = Recording::open(&fixtures.join("version-1-tables")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let mut batch: AccessBatch = sound.accesses().next().unwrap().unwrap();
    batch.cost_ns.fill(f32::MAX);
    batch.weight.fill(f32::MAX);
    Recording::write(
        &folder,
        &sound.metadata,
        &sound.machine,
        &sound.tables,
        |writer| writer.accesses(&batch),
    )
    .unwrap();
    let lie = Recording::open(&folder).unwrap();
    for format in [
        ProfileFormat::Pprof,
        ProfileFormat::Firefox,
        ProfileFormat::Perfetto,
        ProfileFormat::Csv,
        ProfileFormat::PerfScript,
    ] {
        write_profile(&lie, format, 1000, &mut std::io::sink()).unwrap();
    }
}
