#![no_main]
//! A machine file; one that is read must come back the same from what is written of it.

use libfuzzer_sys::fuzz_target;
use nearpage_machine::Machine;

fuzz_target!(|text: &str| {
    if let Ok(machine) = Machine::from_toml(text, "fuzz") {
        machine.to_text(80);
        let again = Machine::from_toml(&machine.to_toml(), "again").expect("what was written");
        assert_eq!(again, machine);
    }
});
