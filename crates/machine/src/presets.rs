//! Machines from the literature. Each file names the sources of its figures.

use crate::Machine;

/// Names of the presets.
pub const PRESET_NAMES: [&str; 16] = [
    "opteron-4",
    "altix-4",
    "amd48",
    "intel32",
    "flash-8",
    "flash-8-contended",
    "now-8",
    "carrefour-a",
    "carrefour-b",
    "smile-4",
    "xeon-2",
    "epyc-8",
    "xeon-8269-snc2",
    "epyc-9224-cxl",
    "ac922-gpu",
    "kunpeng-4",
];

/// The preset with this name. `opteron-4` and `altix-4` are from Marathe, Thakkar and Mueller, `amd48` and `intel32`
/// from NumaMMA, `flash-8`, `flash-8-contended` and `now-8` from Verghese, Devine, Gupta and Rosenblum, `carrefour-a`
/// and `carrefour-b` from Carrefour, and `smile-4` from ARS. `xeon-2` and `epyc-8` are recent servers from public data,
/// `xeon-8269-snc2` and `epyc-9224-cxl` servers with measured matrices. `ac922-gpu` has GPU memory as nodes, and
/// `kunpeng-4` is an Arm server.
pub fn preset(name: &str) -> Option<Machine> {
    let machine = Machine::from_toml(text(name)?, name);
    Some(machine.expect("presets are read by a test"))
}

/// Text of the preset's file.
fn text(name: &str) -> Option<&'static str> {
    let text = match name {
        "opteron-4" => include_str!("../presets/opteron-4.toml"),
        "altix-4" => include_str!("../presets/altix-4.toml"),
        "amd48" => include_str!("../presets/amd48.toml"),
        "intel32" => include_str!("../presets/intel32.toml"),
        "flash-8" => include_str!("../presets/flash-8.toml"),
        "flash-8-contended" => include_str!("../presets/flash-8-contended.toml"),
        "now-8" => include_str!("../presets/now-8.toml"),
        "carrefour-a" => include_str!("../presets/carrefour-a.toml"),
        "carrefour-b" => include_str!("../presets/carrefour-b.toml"),
        "smile-4" => include_str!("../presets/smile-4.toml"),
        "xeon-2" => include_str!("../presets/xeon-2.toml"),
        "epyc-8" => include_str!("../presets/epyc-8.toml"),
        "xeon-8269-snc2" => include_str!("../presets/xeon-8269-snc2.toml"),
        "epyc-9224-cxl" => include_str!("../presets/epyc-9224-cxl.toml"),
        "ac922-gpu" => include_str!("../presets/ac922-gpu.toml"),
        "kunpeng-4" => include_str!("../presets/kunpeng-4.toml"),
        _ => return None,
    };
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cache, CacheKind, NodeId};

    #[test]
    fn every_preset_can_be_read() {
        for name in PRESET_NAMES {
            let machine = preset(name).expect(name);
            assert_eq!(machine.name, name);
            machine.timing().expect(name);
            assert!(
                !machine.source.is_empty(),
                "{name} says where its figures come from"
            );
        }
        assert_eq!(preset("local"), None);
    }

    #[test]
    fn sizes_are_those_of_the_papers() {
        let shape = |name: &str| {
            let machine = preset(name).expect(name);
            (machine.nodes.len(), machine.cpus().as_slice().len())
        };
        assert_eq!(shape("opteron-4"), (4, 4));
        assert_eq!(shape("altix-4"), (4, 8));
        assert_eq!(shape("amd48"), (8, 48));
        assert_eq!(shape("intel32"), (2, 32));
        for name in ["flash-8", "flash-8-contended", "now-8"] {
            assert_eq!(shape(name), (8, 8));
        }
        assert_eq!(shape("carrefour-a"), (4, 16));
        assert_eq!(shape("carrefour-b"), (4, 24));
        assert_eq!(shape("smile-4"), (4, 4));
        assert_eq!(shape("xeon-2"), (2, 28));
        assert_eq!(shape("epyc-8"), (8, 128));
        assert_eq!(shape("xeon-8269-snc2"), (4, 104));
        assert_eq!(shape("epyc-9224-cxl"), (5, 96));
        assert_eq!(shape("ac922-gpu"), (8, 32));
        assert_eq!(shape("kunpeng-4"), (4, 128));
    }

    #[test]
    fn every_preset_can_be_traced() {
        for name in PRESET_NAMES {
            let machine = preset(name).expect(name);
            for kind in [CacheKind::Data, CacheKind::Instruction] {
                let first = |cache: &Cache| {
                    cache.level == 1 && (cache.kind == kind || cache.kind == CacheKind::Unified)
                };
                assert!(
                    machine.caches.iter().any(first),
                    "{name}: no first level of {kind:?}"
                );
            }
        }
    }

    /// Presets without contention, as their paper says.
    const WITHOUT_CONTENTION: [&str; 2] = ["flash-8", "now-8"];

    #[test]
    fn every_preset_has_a_bandwidth_of_every_node_and_between_any_two() {
        for name in PRESET_NAMES {
            let machine = preset(name).expect(name);
            let timing = machine.timing().expect(name);
            let limits = (
                timing.node_bandwidth_bytes_per_s(),
                timing.link_bandwidth_bytes_per_s(),
            );
            if WITHOUT_CONTENTION.contains(&name) {
                assert_eq!(limits, (None, None), "{name}");
                let is_said = |note: &String| note.contains("no contention (section 8.3)");
                assert!(machine.notes.iter().any(is_said), "{name}");
                continue;
            }
            assert!(limits.0.is_some(), "{name}");
            // Requests to other nodes are limited by the directories of both nodes.
            if timing.directory_ns > 0.0 {
                continue;
            }
            for (cpu, memory) in pairs(&machine) {
                let way = &timing.routes[memory][cpu];
                assert!(!way.is_empty(), "{name}: from {memory} to {cpu}");
            }
        }
    }

    /// Positions of nodes with CPUs, each paired with all other nodes.
    fn pairs(machine: &Machine) -> impl Iterator<Item = (usize, usize)> {
        let nodes = 0..machine.nodes.len();
        let pairs = nodes
            .clone()
            .flat_map(move |cpu| nodes.clone().map(move |memory| (cpu, memory)));
        pairs.filter(|&(cpu, memory)| cpu != memory && !machine.nodes[cpu].cpus.is_empty())
    }

    #[test]
    fn every_figure_of_a_preset_has_a_source_or_is_marked_as_assumed() {
        for name in PRESET_NAMES {
            // Comment on the current key or table, and on directly following tables of the same kind.
            let (mut comment, mut of_last) = (String::new(), String::new());
            let in_table = |line: &str| line.starts_with('[');
            let mut is_in_table = false;
            for line in text(name).expect(name).lines() {
                let words = line.strip_prefix('#').map(str::trim);
                let key = line.split([' ', '=']).next().unwrap_or_default();
                is_in_table |= in_table(line);
                match words {
                    Some(words) => comment = comment + " " + words,
                    None if line.is_empty() => comment.clear(),
                    None if in_table(line) || (!is_in_table && HAS_FIGURES.contains(&key)) => {
                        assert!(
                            names_a_source(&comment) || of_last == key,
                            "{name}: {key}: {comment}"
                        );
                        comment.clear();
                        of_last = key.to_owned();
                    }
                    None => {}
                }
            }
        }
    }

    /// Keys with figures before the first table of a machine file.
    const HAS_FIGURES: [&str; 5] = [
        "page_bytes",
        "latency_ns",
        "distance",
        "directed_distance",
        "cores",
    ];

    /// Does the comment name a place in a paper, a document, a program's output, or say that the figure is assumed?
    fn names_a_source(comment: &str) -> bool {
        const SOURCES: [&str; 20] = [
            "ASSUMED",
            "ASSUMPTION",
            "ection",
            "Table",
            "Figure",
            "page",
            "paper",
            "manual",
            "AMD",
            "Intel",
            "AnandTech",
            "Dell",
            "hwloc",
            "same file",
            "same matrix",
            "numactl",
            "`Measuring",
            ".com",
            ".org",
            "as above",
        ];
        SOURCES.iter().any(|source| comment.contains(source))
    }

    #[test]
    fn assumed_figures_of_a_preset_are_in_its_notes() {
        for name in PRESET_NAMES {
            let machine = preset(name).expect(name);
            let text = text(name).expect(name);
            let is_marked = text
                .lines()
                .filter(|line| line.starts_with('#'))
                .any(|line| line.contains("ASSUMED") || line.contains("ASSUMPTION"));
            assert!(
                !is_marked || machine.notes.iter().any(|note| note.contains("assumed")),
                "{name}"
            );
        }
    }

    #[test]
    fn memory_over_cxl_is_far_and_narrow() {
        let machine = preset("epyc-9224-cxl").expect("preset");
        assert_eq!(machine.nodes[4].memory_kind, Some(crate::MemoryKind::Cxl));
        assert!(
            (machine.far_to_near() - 363.5 / 105.9).abs() < 1e-9,
            "{}",
            machine.far_to_near()
        );
        let timing = machine.timing().expect("timing");
        let narrowest = |memory: usize, cpu: usize| {
            let way = timing.routes[memory][cpu].iter();
            way.map(|&link| timing.links[usize::from(link)].2)
                .fold(f64::INFINITY, f64::min)
        };
        assert!(narrowest(4, 3) < 18e9 && narrowest(0, 1) > 90e9);
    }

    #[test]
    fn opteron_is_table_2() {
        // "it takes about 30% more time to access memory on nodes 0 and 2, but it takes 60% longer
        // to access memory on node 3" (CPUs on node 1, section 9.2).
        let machine = preset("opteron-4").expect("preset");
        let relative = |memory| {
            machine.weight(NodeId(1), NodeId(memory)).expect("node")
                / machine.weight(NodeId(1), NodeId(1)).expect("node")
        };
        assert!((1.29..1.35).contains(&relative(0)) && (1.29..1.35).contains(&relative(2)));
        assert!((1.55..1.65).contains(&relative(3)));
    }
}
