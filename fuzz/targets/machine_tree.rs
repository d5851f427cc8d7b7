#![no_main]
//! Another machine's `/sys` and `/proc` in an archive. By the first byte, the input is the archive, or each piece is a
//! file or a link of the archive. A machine that was read must be the same after it is written and read again.

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::pieces;
use nearpage_machine::Machine;

/// Paths of files, chosen by a tag's five lower bits; bit 6 of a tag makes a link.
const PATHS: [&str; 32] = [
    "m/sys/devices/system/cpu/online",
    "m/sys/devices/system/cpu/cpu0/online",
    "m/sys/devices/system/cpu/cpu0/cpu_capacity",
    "m/sys/devices/system/cpu/cpu1/cpu_capacity",
    "m/sys/devices/system/cpu/cpu0/topology/thread_siblings",
    "m/sys/devices/system/cpu/cpu1/topology/core_cpus_list",
    "m/sys/devices/system/cpu/cpu0/cache/index0/level",
    "m/sys/devices/system/cpu/cpu0/cache/index0/type",
    "m/sys/devices/system/cpu/cpu0/cache/index0/size",
    "m/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size",
    "m/sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_map",
    "m/sys/devices/system/cpu/cpu1/cache",
    "m/sys/devices/system/node/online",
    "m/sys/devices/system/node/node0/cpulist",
    "m/sys/devices/system/node/node0/cpumap",
    "m/sys/devices/system/node/node0/meminfo",
    "m/sys/devices/system/node/node0/distance",
    "m/sys/devices/system/node/node1/cpumap",
    "m/sys/devices/system/node/node1/distance",
    "m/sys/devices/system/node/node1",
    "m/sys/devices/system/node/node0/memory_side_cache/index1/size",
    "m/sys/devices/system/node/node0/access0/initiators/read_latency",
    "m/sys/devices/system/node/node0/access0/initiators/node0",
    "m/sys/devices/cpu_core/cpus",
    "m/sys/devices/cpu_atom/cpus",
    "m/proc/mounts",
    "m/proc/self/cpuset",
    "m/dev/cpuset/a/cpus",
    "m/dev/cpuset/a/mems",
    "m/proc/driver/nvidia/gpus/0/numa_status",
    "m/proc/meminfo",
    "m/proc/hwloc-nofile-info",
];
const LINK: u8 = 0x40;

fn archive(data: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (tag, bytes) in pieces(data) {
        let mut header = tar::Header::new_gnu();
        let path = PATHS[usize::from(tag) % PATHS.len()];
        let written = if tag & LINK == 0 {
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, path, bytes)
        } else {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            let target = String::from_utf8_lossy(bytes).replace('\0', "");
            builder.append_link(&mut header, path, target)
        };
        written.ok();
    }
    builder.into_inner().unwrap_or_default()
}

fuzz_target!(|data: &[u8]| {
    let bytes = match data {
        [0, raw @ ..] => raw.to_vec(),
        _ => archive(data),
    };
    match Machine::from_sysfs_archive(&bytes, "fuzz.tar") {
        Ok(machine) => {
            machine.to_text(80);
            machine.timing().ok();
            let again = Machine::from_toml(&machine.to_toml(), "again").expect("what was written");
            assert_eq!(again, machine);
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
});
