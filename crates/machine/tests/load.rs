//! The model of latency under load, compared with published output of Intel's Memory Latency Checker. Figures are MB/s
//! of all nodes together, and ns.

use nearpage_machine::{LoadModel, Machine};

/// A machine of `nodes` nodes with an idle latency, one node's peak in MB/s, and the curve of all nodes.
fn published(nodes: u32, idle_ns: f64, peak: f64, curve: &[(f64, f64)]) -> Machine {
    let matrix = |own: f64| {
        let cell = |row, column| {
            if row == column {
                own.to_string()
            } else {
                "-".to_owned()
            }
        };
        let row = |row| {
            (0..nodes)
                .map(move |column| cell(row, column))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let rows: String = (0..nodes).map(|at| format!("{at} {}\n", row(at))).collect();
        let head = (0..nodes)
            .map(|at| at.to_string())
            .collect::<Vec<_>>()
            .join(" ");
        format!("Numa node {head}\n{rows}")
    };
    let mut text = format!(
        "Measuring idle latencies (in ns)...\n{}Measuring Memory Bandwidths between nodes\n{}Measuring Loaded Latencies\n",
        matrix(idle_ns),
        matrix(peak)
    );
    for (rate, ns) in curve {
        text += &format!("00001 {ns} {rate}\n");
    }
    Machine::from_tools(&[("mlc".to_owned(), text.into_bytes())], "published").expect("reads")
}

/// Two Xeon Platinum 8180 (FD.io CSIT's test beds, mlc 3.5). The peak is half of `ALL Reads`.
const PLATINUM_8180: &[(f64, f64)] = &[
    (160_242.9, 121.92),
    (111_587.4, 101.21),
    (85_019.7, 95.48),
    (68_717.3, 94.46),
    (49_742.2, 92.27),
    (35_264.8, 91.03),
    (27_396.3, 90.11),
    (21_178.7, 89.34),
    (14_672.8, 90.15),
    (10_715.7, 89.00),
    (7_788.2, 82.00),
    (4_684.0, 81.46),
    (2_541.9, 81.40),
];

/// Two Xeon Silver 4110 (community.intel.com, "Intel Memory Latency Checker v3.5 test"), without matrices. The idle
/// latency and the peak are the ends of the curve.
const SILVER_4110: &[(f64, f64)] = &[
    (68_357.8, 98.94),
    (42_695.4, 94.56),
    (29_473.3, 92.29),
    (22_580.9, 90.85),
    (18_355.0, 90.16),
    (13_463.5, 88.79),
    (9_723.8, 87.81),
    (7_680.3, 87.24),
    (6_068.3, 86.54),
    (4_383.3, 85.56),
    (3_354.4, 84.99),
    (2_583.5, 84.20),
    (1_785.2, 83.00),
    (1_237.6, 81.96),
];

/// A two-socket server, mlc 3.11b. Its idle latencies are of sequential accesses.
const TWO_SOCKETS: &[(f64, f64)] = &[
    (132_998.9, 127.88),
    (102_244.7, 110.64),
    (83_217.0, 101.15),
    (60_426.1, 96.70),
    (42_927.2, 91.30),
    (33_361.5, 89.38),
    (25_747.4, 88.10),
    (17_829.5, 86.39),
    (13_006.8, 84.41),
    (9_351.6, 83.80),
    (5_555.4, 82.63),
    (2_932.1, 82.30),
];

/// A machine of one node, mlc 3.11b.
const ONE_NODE: &[(f64, f64)] = &[
    (28_180.5, 136.70),
    (19_704.3, 114.95),
    (15_204.2, 104.93),
    (12_482.7, 98.29),
    (9_173.9, 96.44),
    (6_734.8, 93.99),
    (5_340.9, 92.15),
    (4_296.1, 91.35),
    (3_155.6, 89.33),
    (2_480.5, 88.44),
    (1_951.8, 87.97),
    (1_419.1, 87.33),
    (1_042.6, 87.02),
];

#[test]
fn published_curves_are_predicted_from_idle_latency_and_peak() {
    let curves = [
        (
            "Xeon Platinum 8180",
            2,
            81.35,
            216_875.73 / 2.0,
            PLATINUM_8180,
        ),
        ("Xeon Silver 4110", 2, 81.96, 135_655.9 / 2.0, SILVER_4110),
        ("two sockets", 2, 81.8, 79_674.0, TWO_SOCKETS),
        ("one node", 1, 83.8, 34_915.2, ONE_NODE),
    ];
    for (name, nodes, idle_ns, peak, curve) in curves {
        let machine = published(nodes, idle_ns, peak, curve);
        let [error, queue] = [LoadModel::knee_ns, LoadModel::queue_ns]
            .map(|model| machine.load_model_error(model).expect("it has a curve"));
        println!(
            "{name}: median {:.3}, worst {:.3} of {} points; a queue {:.3} and {:.3}",
            error.median, error.worst, error.points, queue.median, queue.worst
        );
        assert_eq!(error.points, curve.len() * nodes as usize, "{name}");
        assert!(
            error.median <= 0.10 && error.worst <= 0.25,
            "{name}: {error:?}"
        );
        // docs/explain/contention.md states these bounds for the queue of plans and simulations.
        assert!(
            queue.median <= 0.10 && queue.worst <= 0.36,
            "{name}: {queue:?}"
        );
    }
}
