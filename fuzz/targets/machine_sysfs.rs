#![no_main]
//! The running machine's sysfs: each piece is a file of a small tree.

use std::fs;

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::{Scratch, pieces};
use nearpage_machine::Machine;

thread_local!(static SCRATCH: Scratch = Scratch::default());

const FILES: [&str; 26] = [
    "devices/system/cpu/online",
    "devices/system/cpu/cpu0/topology/core_cpus_list",
    "devices/system/cpu/cpu0/topology/thread_siblings_list",
    "devices/system/cpu/cpu0/cache/index0/level",
    "devices/system/cpu/cpu0/cache/index0/type",
    "devices/system/cpu/cpu0/cache/index0/size",
    "devices/system/cpu/cpu0/cache/index0/coherency_line_size",
    "devices/system/cpu/cpu0/cache/index0/ways_of_associativity",
    "devices/system/cpu/cpu0/cache/index0/shared_cpu_list",
    "devices/system/cpu/cpu3/cache/index2/level",
    "devices/system/cpu/cpu3/cache/index2/type",
    "devices/system/cpu/cpu3/cache/index2/size",
    "devices/system/node/online",
    "devices/system/node/node0/cpulist",
    "devices/system/node/node0/meminfo",
    "devices/system/node/node0/distance",
    "devices/system/node/node1/cpulist",
    "devices/system/node/node1/meminfo",
    "devices/system/node/node1/distance",
    "devices/system/node/node0/access1/initiators/read_latency",
    "devices/system/node/node0/access1/initiators/read_bandwidth",
    "devices/system/node/node0/access1/initiators/write_bandwidth",
    "devices/system/node/node1/access0/initiators/read_latency",
    "devices/system/node/node0/access1/initiators/node0/present",
    "kernel/mm/transparent_hugepage/hpage_pmd_size",
    "kernel/mm/transparent_hugepage/enabled",
];

fuzz_target!(|data: &[u8]| {
    SCRATCH.with(|scratch| {
        let root = scratch.folder().join("sys");
        let _ = fs::remove_dir_all(&root);
        for (tag, text) in pieces(data) {
            scratch.write(&format!("sys/{}", FILES[usize::from(tag) % FILES.len()]), text);
        }
        match Machine::local(&root) {
            Ok(machine) => {
                machine.to_text(80);
                let again = Machine::from_toml(&machine.to_toml(), "again").expect("what was written");
                assert_eq!(again.nodes, machine.nodes);
            }
            Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
        }
    });
});
