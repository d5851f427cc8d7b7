#![no_main]
//! A machine file; a machine that was read must be the same after it is written and read again.

use libfuzzer_sys::fuzz_target;
use nearpage_machine::Machine;

fuzz_target!(|text: &str| {
    if let Ok(machine) = Machine::from_toml(text, "fuzz") {
        machine.to_text(80);
        let again = Machine::from_toml(&machine.to_toml(), "again").expect("what was written");
        assert_eq!(again, machine);
    }
});
