use nearpage_machine::preset;

use super::available::group_bytes;
use super::*;

const GIBIBYTE: u64 = 1 << 30;

fn plan(machine: Machine, allowed: &str, free: u64) -> Result<Measurement, MeasureError> {
    let allowed = allowed.parse().expect("list");
    Measurement::plan(machine, Effort::FULL, &allowed, |_| free)
}

#[test]
fn chains_outgrow_caches_and_leave_half_of_what_is_free() {
    let amd48 = || preset("amd48").expect("preset");
    let measurement = plan(amd48(), "0-47", 64 * GIBIBYTE).expect("plan");
    assert_eq!(measurement.nodes(), (8, 8));
    assert!(
        measurement
            .memory_nodes
            .iter()
            .all(|&(_, chain)| chain == 64 * MEBIBYTE)
    );
    assert_eq!(measurement.notes, [""; 0]);

    let mut big = amd48();
    big.caches[0].size_bytes = 8 * GIBIBYTE;
    let measurement = plan(big, "0-47", 64 * GIBIBYTE).expect("plan");
    assert!(
        measurement
            .memory_nodes
            .iter()
            .all(|&(_, chain)| chain == 1024 * MEBIBYTE)
    );
    assert!(
        measurement.notes[0].contains("cache of 8192 MiB"),
        "{:?}",
        measurement.notes
    );

    let measurement = plan(amd48(), "0-47", 100 << 20).expect("plan");
    assert!(
        measurement
            .memory_nodes
            .iter()
            .all(|&(_, chain)| chain == 25 * MEBIBYTE)
    );
    assert!(matches!(
        plan(amd48(), "0-47", 3 << 20),
        Err(MeasureError::Nothing)
    ));
}

#[test]
fn only_cpus_that_may_be_used_and_nodes_with_memory() {
    let mut machine = preset("amd48").expect("preset");
    machine.nodes[3].memory_bytes = Some(0);
    let measurement = plan(machine, "6-8,12-17", GIBIBYTE).expect("plan");
    assert_eq!(measurement.nodes(), (2, 7));
    assert_eq!(measurement.cpu_nodes[0], (1, [6, 7, 8].map(CpuId).to_vec()));
    assert!(
        measurement
            .notes
            .iter()
            .any(|note| note.starts_with("node 1: 3 of its 6 CPUs")),
        "{:?}",
        measurement.notes
    );
    let nothing = plan(preset("amd48").expect("preset"), "100", GIBIBYTE);
    assert!(matches!(nothing, Err(MeasureError::Nothing)));
}

#[test]
fn siblings_do_not_load_the_chase() {
    let measurement = plan(preset("intel32").expect("preset"), "0-31", GIBIBYTE);
    let (first, others) = measurement.expect("plan").load_cpus(0).expect("CPUs");
    assert_eq!(first, CpuId(0));
    assert_eq!(others.len(), 14);
    assert!(!others.contains(&CpuId(16)), "{others:?}");
    let measurement = plan(preset("opteron-4").expect("preset"), "0-3", GIBIBYTE);
    assert!(measurement.expect("plan").load_cpus(0).is_none());
}

#[test]
fn this_machine_measured_in_no_time() {
    let machine = Machine::local(Path::new("/sys")).expect("this machine");
    let effort = Effort {
        rounds: 2,
        round: Duration::from_micros(100),
        chain_bytes_max: MEBIBYTE,
    };
    let measurement = Measurement::new(machine, effort, Path::new("/sys")).expect("plan");
    let (cpu_nodes, memory_nodes) = measurement.nodes();
    let mut steps = 0;
    let measured = measurement.run(&mut |_| steps += 1).expect("measured");
    let deviations = measured.latency_deviation_ns.iter().flatten().flatten();
    assert_eq!(deviations.clone().count(), cpu_nodes * memory_nodes);
    assert!(deviations.clone().all(|ns| ns.is_finite() && *ns >= 0.0));
    let machine = measured.machine;
    let text = machine.deviation_text(&measured.latency_deviation_ns, measured.rounds, 80);
    assert!(text.starts_with("\nstandard deviation of the latency in ns, over 2 rounds\n"));
    assert!(steps >= memory_nodes * (1 + 4 * cpu_nodes), "{steps} steps");
    machine.validate().expect("positive figures");
    let bandwidth = &machine.bandwidth;
    let kinds = [
        &bandwidth.read_bytes_per_s,
        &bandwidth.write_bytes_per_s,
        &bandwidth.mixed_bytes_per_s,
    ];
    for matrix in kinds {
        let known = matrix.iter().flatten().flatten().flatten().count();
        assert_eq!(known, cpu_nodes * memory_nodes);
    }
    let read = Machine::from_toml(&machine.to_toml(), "measured").expect("reads");
    assert_eq!(read, machine);
}

#[test]
fn every_word_is_gone_through_whatever_the_sizes() {
    for length in [
        1,
        2,
        3,
        100,
        BLOCK_WORDS,
        3 * BLOCK_WORDS + 1,
        7 * BLOCK_WORDS,
    ] {
        for kind in Kind::ALL {
            let mut words = vec![0; length];
            let mut at = 0;
            for _ in 0..20 {
                assert!(kind.block(&mut words, &mut at) <= length * WORD_BYTES);
            }
            let whole = length / BLOCK_WORDS.min(length) * BLOCK_WORDS.min(length);
            if kind == Kind::Write {
                assert!(words[..whole].iter().all(|&word| word > 0), "{length}");
            }
        }
    }
    let all: Vec<_> = parts(10, 3).collect();
    assert_eq!(all, [0..3, 3..6, 6..9]);
}

#[test]
fn middles_and_roundings() {
    assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    assert_eq!(round_to(93.27, 0.1), 93.3);
    assert_eq!(round_to(0.0, 0.1), 0.1);
    assert_eq!(round_to(12_345_678.0, 1e6), 12e6);
}

#[test]
fn a_busy_machine_is_noted() {
    assert_eq!(busy("0.25 0.51 0.90 1/214 5421\n"), None);
    let note = busy("11.07 3.00 2.00 9/214 5421\n").expect("note");
    assert!(note.contains("load 11.1"), "{note}");
    assert_eq!(busy(""), None);
}

#[test]
fn free_memory_and_control_groups() {
    let root = tempfile::tempdir().expect("folder");
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
        std::fs::write(path, text).expect("file");
    };
    write("meminfo", "Node 1 MemTotal: 90 kB\nNode 1 MemFree:  7 kB\n");
    assert_eq!(free_bytes(&root.path().join("meminfo")), Some(7 << 10));
    write(
        "all",
        "MemTotal: 90 kB\nMemFree: 7 kB\nMemAvailable: 9 kB\n",
    );
    assert_eq!(free_bytes(&root.path().join("all")), Some(9 << 10));
    assert_eq!(free_bytes(&root.path().join("none")), None);

    write("g/a/memory.max", "5000\n");
    write("g/a/memory.current", "2000\n");
    write("g/a/b/memory.max", "max\n");
    write("g/a/b/memory.current", "1999\n");
    let left = |path| group_bytes(&root.path().join("g"), path);
    assert_eq!(left("a/b"), Some(3000));
    assert_eq!(left(""), None);
    write("g/a/b/memory.max", "2000\n");
    assert_eq!(left("a/b"), Some(1));
}
