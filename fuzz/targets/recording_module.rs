#![no_main]
//! A program or library, whose symbols and DWARF a recording reads.

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::Scratch;
use nearpage_recording::elf::{ElfFile, demangle};
use nearpage_recording::{Module, ModuleId, Symbols};

thread_local!(static SCRATCH: Scratch = Scratch::default());

fuzz_target!(|data: &[u8]| {
    SCRATCH.with(|scratch| {
        let path = scratch.write("module", data);
        let Ok(module) = ElfFile::open(&path) else {
            return;
        };
        (
            module.build_id(),
            module.debug_link(),
            module.has_debug_information(),
        );
        for segment in module.segments() {
            for page_bytes in [0, 4096, u64::MAX] {
                module.bias(
                    u64::MAX - 10,
                    segment.file_offset,
                    segment.executable,
                    page_bytes,
                );
            }
        }
        module.data_sections();
        for symbol in module.data_symbols().iter().chain(&module.functions()) {
            demangle(&symbol.name);
        }
        let mut symbols = Symbols::new(&[Module {
            path: path.display().to_string(),
            build_id: String::new(),
        }]);
        let begins = module.functions();
        let begins = begins.iter().take(8).map(|symbol| symbol.address);
        for address in begins.chain([0, 0x1139, u64::MAX]) {
            assert!(!symbols.instruction(ModuleId(0), address).is_empty());
            assert!(!symbols.return_address(ModuleId(0), address).is_empty());
        }
    });
});
