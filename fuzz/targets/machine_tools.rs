#![no_main]
//! Output of Memory Latency Checker, lmbench, `numactl -H`, `acpidump` and `iasl -d`, and the firmware's table HMAT. A
//! machine that was read must be the same after it is written and read again.
//! written of it.

use libfuzzer_sys::fuzz_target;
use nearpage_machine::Machine;

fuzz_target!(|data: &[u8]| {
    match Machine::from_tools(&[("fuzz.txt".to_owned(), data.to_vec())], "fuzz") {
        Ok(machine) => {
            machine.to_text(80);
            machine.timing().ok();
            for node in machine.node_ids() {
                if let Some(model) = machine.load_model(node, node) {
                    assert!(model.latency_ns(0.5 * model.peak_bytes_per_s).is_finite());
                }
            }
            let again = Machine::from_toml(&machine.to_toml(), "again").expect("what was written");
            assert_eq!(again, machine);
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
});
