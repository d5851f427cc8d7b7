#![no_main]
//! A program or library, whose symbols a plan's rules look up.

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::Scratch;
use nearpage_plan::ModuleImage;

thread_local!(static SCRATCH: Scratch = Scratch::default());

fuzz_target!(|data: &[u8]| {
    SCRATCH.with(|scratch| {
        let path = scratch.write("module", data);
        let Ok(module) = ModuleImage::load(&path) else {
            return;
        };
        let _ = module.object_names().count();
        module.objects("no such object");
        if let Some(name) = module.function_names().next().map(str::to_owned) {
            for function in module.functions(&name) {
                module.line_ranges(function, 7);
            }
            module.inlined_ranges(&name, 0);
        }
    });
});
