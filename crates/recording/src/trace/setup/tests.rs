use super::*;
use nearpage_machine::preset;

#[test]
fn a_machine_becomes_what_the_tracer_is_told() {
    let flash = preset("flash-8").unwrap();
    let (tracing, assumed) = Tracing::new(&flash, "flash-8", &TraceOptions::default()).unwrap();
    assert_eq!(assumed, [] as [&str; 0]);
    let setup = Setup::parse(&tracing.setup).unwrap();
    assert_eq!(
        setup.l2,
        Cache {
            bytes: 512 << 10,
            ways: 2
        }
    );
    assert_eq!(
        setup.tlb,
        Tlb {
            entries: 64,
            ways: 64,
            reserved: 8
        }
    );
    assert_eq!(setup.cpu_nodes.0, "0 1 2 3 4 5 6 7");
    assert_eq!(setup.thread_cpus.0, "0 1 2 3 4 5 6 7");
}

#[test]
fn a_trace_serves_machines_with_its_caches() {
    let flash = preset("flash-8").unwrap();
    let (tracing, _) = Tracing::new(&flash, "flash-8", &TraceOptions::default()).unwrap();
    assert_eq!(tracing.serves(&flash), Ok(()));
    let mut other = preset("now-8").unwrap();
    assert_eq!(tracing.serves(&other), Ok(()), "latencies don't matter");
    other.caches[2].size_bytes *= 2;
    let difference = tracing.serves(&other).unwrap_err().to_string();
    assert!(
        difference.contains("512 KiB") && difference.contains("1024 KiB"),
        "{difference}"
    );
    let mut fewer = preset("flash-8").unwrap();
    fewer.nodes.truncate(4);
    assert!(
        tracing
            .serves(&fewer)
            .unwrap_err()
            .to_string()
            .contains("8 CPUs")
    );
    // As many CPUs, but with other numbers: a thread of the trace would have no CPU.
    let mut others = preset("flash-8").unwrap();
    others.nodes[3].cpus = vec![CpuId(13)];
    assert_eq!(
        tracing.serves(&others).unwrap_err().to_string(),
        "recorded on CPU 3, which flash-8 has not"
    );
}

#[test]
fn a_machine_without_caches_is_refused() {
    let mut machine = preset("opteron-4").unwrap();
    machine.caches.clear();
    let error = Tracing::new(&machine, "opteron-4", &TraceOptions::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("opteron-4: the machine has no caches"),
        "{error}"
    );
}

#[test]
fn untraceable_machines_are_refused_with_the_expected_values() {
    let refused = |change: fn(&mut Machine)| {
        let mut flash = preset("flash-8").unwrap();
        change(&mut flash);
        Tracing::new(&flash, "flash.toml", &TraceOptions::default())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(|flash| flash.caches[2].associativity = 3),
        "flash-8: l2 is 524288 bytes, 3-way, in lines of 64 bytes; expected 1 to 64 ways, at most 68719476736 bytes, \
         and bytes ÷ line ÷ ways a power of two"
    );
    assert_eq!(
        refused(|flash| flash.page_bytes = 1 << 32),
        "flash-8: page_bytes is 4294967296; expected a power of two from 512 to 1073741824"
    );
}

#[test]
fn a_machine_whose_nodes_are_not_all_linked_is_refused_before_it_is_traced_for() {
    let text = preset("flash-8").unwrap().to_toml()
        + "[[link]]\nnodes = [0, 1]\nbandwidth_bytes_per_s = 1e9\n";
    let machine = Machine::from_toml(&text, "parted.toml").unwrap();
    let error = Tracing::new(&machine, "parted.toml", &TraceOptions::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no way over the links from node 0 to node 2"),
        "{error}"
    );
}
