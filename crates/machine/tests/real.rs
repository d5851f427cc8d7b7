//! Published machines, in `shared/real` above the checkout or in the folder `NEARPAGE_REAL`, if there are any.

use std::path::{Path, PathBuf};

use nearpage_machine::{DeviceKind, LoadModel, Machine, MemoryKind, NodeId};

/// The folder with published data; `None` with a note if the test is skipped.
fn real(folder: &str) -> Option<PathBuf> {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut places: Vec<PathBuf> = above.map(|place| place.join("shared/real")).collect();
    places.extend(std::env::var_os("NEARPAGE_REAL").map(PathBuf::from));
    let found = places
        .into_iter()
        .rev()
        .map(|place| place.join(folder))
        .find(|place| place.is_dir());
    if found.is_none() {
        println!(
            "skipped: no shared/real/{folder} beside the checkout, and NEARPAGE_REAL names none"
        );
    }
    found
}

/// Files in a folder with this ending, in order.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .collect();
    paths.sort();
    paths
}

/// Name, nodes, online CPUs on a node, CPUs per core, nodes without CPUs. They are from the name of the file (`8n2c` is
/// eight nodes of two cores), or else from `sys` in it.
const TREES: [(&str, usize, usize, usize, usize); 28] = [
    ("128arm-2pa2n8cluster4co", 4, 128, 1, 0),
    ("128ia64-17n4s2c", 17, 128, 1, 1),
    ("16amd64-8n2c", 8, 16, 1, 0),
    ("16amd64-8n2c-cpusets", 8, 15, 1, 0),
    ("16em64t-4s2c2t", 1, 16, 2, 0),
    ("16em64t-4s2ca2c-cpusetreorder", 1, 16, 1, 0),
    ("20em64t-hybrid-1p6c2t+2ca4co1t", 1, 20, 2, 0),
    ("20s390-2g6s4c", 1, 20, 1, 0),
    ("256ppc-8n8s4t", 8, 256, 4, 0),
    ("2arm-2c", 1, 2, 1, 0),
    ("2i386-2t-hugepagesizecount", 1, 2, 2, 0),
    ("2pa-pcidomain32bits", 1, 2, 1, 0),
    ("32amd64-4s2n4c-cgroup2", 8, 32, 1, 0),
    ("32em64t-2n8c+dax+nvme+mic+dimms", 2, 16, 1, 0),
    ("40intel64-2g2n4c+pcilocality", 4, 40, 1, 0),
    ("40intel64-4n10c+pci-conflicts", 4, 40, 1, 0),
    ("4fake-4gr1nu1pu", 4, 4, 1, 0),
    ("64amd64-4s2n4ca2co", 8, 64, 2, 0),
    ("8em64t-2s2ca2c", 1, 8, 1, 0),
    ("8em64t-2s2ca2c-buggynuma", 8, 8, 1, 7),
    ("8ia64-2n2s2c", 2, 8, 1, 0),
    ("8ia64-2s2c2t", 1, 8, 2, 0),
    ("fakecpuid1f-64intel64-2p4d2n2c2t", 16, 64, 2, 0),
    ("fakeheterocpunuma", 6, 20, 2, 1),
    ("fakememinitiators-1np2c+1npp+gi", 11, 8, 1, 7),
    ("fakepcilocalities", 4, 40, 1, 0),
    ("nvidia-dgx-gb10", 1, 20, 1, 0),
    ("nvidiagpunumanodes", 8, 32, 4, 6),
];

#[test]
fn every_tree_gives_the_machine_of_its_name() {
    let Some(folder) = real("machines") else {
        return;
    };
    let paths = files(&folder, ".tar.bz2");
    assert!(paths.len() >= TREES.len(), "{}", paths.len());
    for (name, nodes, cpus, of_a_core, without_cpus) in TREES {
        let path = folder.join(format!("{name}.tar.bz2"));
        let machine = Machine::from_sysfs(&path).unwrap_or_else(|error| panic!("{error}"));
        let found = (
            machine.name.as_str(),
            machine.nodes.len(),
            machine.cpus().as_slice().len(),
            machine.cores.iter().map(Vec::len).max().unwrap_or(1),
            machine
                .nodes
                .iter()
                .filter(|node| node.cpus.is_empty())
                .count(),
        );
        assert_eq!(
            found,
            (name, nodes, cpus, of_a_core, without_cpus),
            "{:?}",
            machine.notes
        );
        let again =
            Machine::from_toml(&machine.to_toml(), name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again, machine, "{name}");
    }
    // All other trees give a machine or an error of one line.
    for path in paths {
        if let Err(error) = Machine::from_sysfs(&path) {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

#[test]
fn trees_say_what_is_special_about_them() {
    let Some(folder) = real("machines") else {
        return;
    };
    let tree = |name: &str| {
        Machine::from_sysfs(&folder.join(name).with_extension("tar.bz2")).expect("reads")
    };
    let gpus = tree("nvidiagpunumanodes");
    let on_gpus = gpus
        .nodes
        .iter()
        .filter(|node| node.memory_kind == Some(MemoryKind::Gpu));
    let on_gpus: Vec<u16> = on_gpus.map(|node| node.id.0).collect();
    assert_eq!(on_gpus, [250, 251, 252, 253, 254, 255]);
    assert_eq!(gpus.page_bytes, 65536);
    let devices = |machine: &Machine| {
        let devices = machine.devices.iter();
        let devices = devices.map(|device| (device.to_string(), device.node.map(|node| node.0)));
        devices.collect::<Vec<_>>()
    };
    let named = |names: &[(&str, Option<u16>)]| {
        let names = names.iter().map(|(name, node)| ((*name).to_owned(), *node));
        names.collect::<Vec<_>>()
    };
    // These trees have CPUs next to devices, but no nodes.
    let next_to = [0, 0, 0, 8, 8, 8].map(Some);
    let all = ["gpu0", "gpu1", "gpu2", "gpu3", "gpu4", "gpu5"];
    let all: Vec<_> = all.into_iter().zip(next_to).collect();
    assert_eq!(devices(&gpus), named(&all));
    assert_eq!(
        devices(&tree("32em64t-2n8c+dax+nvme+mic+dimms")),
        named(&[
            ("nic0", Some(0)),
            ("nic1", Some(0)),
            ("nic2", Some(1)),
            ("nvme0", Some(0)),
        ])
    );
    let unknown = ["nic0", "nic1", "nic2", "nic3"].map(|name| (name, None));
    assert_eq!(
        devices(&tree("40intel64-2g2n4c+pcilocality")),
        named(&unknown)
    );
    let hybrid = tree("20em64t-hybrid-1p6c2t+2ca4co1t");
    let kinds: Vec<usize> = hybrid
        .cpu_kinds
        .iter()
        .map(|kind| kind.cpus.len())
        .collect();
    assert_eq!(kinds, [12, 8]);
    let shared = |name: &str, level: u8| {
        let machine = tree(name);
        let mut caches = machine.caches.iter().rev();
        let cache = caches.find(|cache| cache.level == level).expect("a cache");
        (cache.associativity, cache.shared_by_cpus)
    };
    // These are the values that hwloc reports.
    assert_eq!(shared("128arm-2pa2n8cluster4co", 3), (128, 32));
    assert_eq!(shared("64amd64-4s2n4ca2co", 2), (16, 2));
    assert_eq!(shared("8ia64-2s2c2t", 3), (9, 2));
    let rated = tree("fakememinitiators-1np2c+1npp+gi");
    assert!(rated.latency_ns.is_some() && rated.bandwidth.read_bytes_per_s.is_some());
    for (name, words) in [
        ("16amd64-8n2c-cpusets", "CPU 4 offline"),
        ("16amd64-8n2c-cpusets", "CPUs 0-6,12-15 and nodes 1-4 only"),
        ("32amd64-4s2n4c-cgroup2", "CPUs 0-5 and nodes 0-5 only"),
        ("8em64t-2s2ca2c-buggynuma", "listed by several nodes"),
        ("fakeheterocpunuma", "CPUs 4-7 belong to no node"),
        ("8ia64-2s2c2t", "distances below 10"),
        ("128ia64-17n4s2c", "no caches"),
        ("nvidiagpunumanodes", "no size of lines is known of L2, L3"),
    ] {
        let notes = tree(name).notes;
        assert!(
            notes.iter().any(|note| note.contains(words)),
            "{name}: {notes:?}"
        );
    }
}

#[test]
fn every_xml_file_has_its_nodes_and_cpus() {
    let Some(folder) = real("machines") else {
        return;
    };
    let paths = files(&folder, ".xml");
    assert!(paths.len() >= 16, "{}", paths.len());
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("text");
        let machine = Machine::from_hwloc_xml(&text, &path.to_string_lossy())
            .unwrap_or_else(|error| panic!("{error}"));
        let objects = |kind: &str| text.matches(&format!("<object type=\"{kind}\"")).count();
        // Version 1 has no node element for a single memory; hidden nodes are added.
        assert!(
            machine.nodes.len() >= objects("NUMANode").max(1),
            "{path:?}"
        );
        assert_eq!(
            machine.cpus().as_slice().len(),
            objects("PU"),
            "{path:?}: {:?}",
            machine.notes
        );
    }
}

#[test]
fn published_measurements_become_machines_and_the_model_predicts_their_curve() {
    let Some(folder) = real("mlc") else { return };
    let text = |name: &str| {
        (
            name.to_owned(),
            std::fs::read(folder.join(name)).expect("text"),
        )
    };
    let xeon = Machine::from_tools(&[text("xeon-8269cy-snc2.txt")], "xeon").expect("reads");
    assert_eq!(xeon.nodes.len(), 4);
    assert_eq!(xeon.weights()[2], [129.8, 135.8, 73.5, 81.7]);
    assert_eq!(xeon.loaded_latencies.len(), 4 * 19);
    let [error, queue] = [LoadModel::knee_ns, LoadModel::queue_ns]
        .map(|model| xeon.load_model_error(model).expect("a curve"));
    println!(
        "Xeon 8269CY: median {:.3}, worst {:.3} of {} points; a queue {:.3} and {:.3}",
        error.median, error.worst, error.points, queue.median, queue.worst
    );
    assert!(error.median <= 0.10 && error.worst <= 0.25, "{error:?}");
    assert!(queue.median <= 0.10 && queue.worst <= 0.36, "{queue:?}");

    let epyc = Machine::from_tools(
        &[text("epyc-9224-cxl.txt"), text("epyc-9224-cxl.numactl.txt")],
        "epyc",
    )
    .expect("reads");
    let cpus: Vec<usize> = epyc.nodes.iter().map(|node| node.cpus.len()).collect();
    assert_eq!(cpus, [24, 24, 24, 24, 0]);
    assert_eq!(epyc.nodes[4].memory_bytes, Some(129_017 << 20));
    let read = epyc.bandwidth.read_bytes_per_s.as_ref().expect("known");
    assert_eq!((read[3][4], read[4][0]), (Some(17_585.8e6), None));
    // Memory over CXL, from the other socket: the idle latency, and the link's bandwidth.
    let far = epyc.load_model(NodeId(3), NodeId(4)).expect("known");
    assert_eq!((far.idle_ns, far.peak_bytes_per_s), (363.5, 17_585.8e6));
}

#[test]
fn devices_of_hwlocs_xml_are_next_to_the_cpus_around_them() {
    let Some(folder) = real("machines") else {
        return;
    };
    let machine = |name: &str| {
        let text = std::fs::read_to_string(folder.join(name)).expect(name);
        Machine::from_hwloc_xml(&text, name).expect(name)
    };
    let dgx = machine("nvidiaDGX2.xml");
    let of = |kind| {
        let devices = dgx.devices.iter().filter(move |device| device.kind == kind);
        devices
            .map(|device| device.node.map(|node| node.0))
            .collect::<Vec<_>>()
    };
    let gpus = of(DeviceKind::Gpu);
    assert_eq!(gpus.len(), 16, "{:?}", dgx.devices);
    // Half of the GPUs are next to each processor.
    assert_eq!(gpus.iter().filter(|node| **node == Some(0)).count(), 8);
    assert_eq!(gpus.iter().filter(|node| **node == Some(1)).count(), 8);
    for name in ["192em64t-24n8c2t.xml", "32em64t-2n8c2t-pci-normalio.xml"] {
        let machine = machine(name);
        assert!(!machine.devices.is_empty(), "{name}");
        let text = machine.to_toml();
        assert_eq!(
            Machine::from_toml(&text, name).expect(name).devices,
            machine.devices
        );
    }
}
