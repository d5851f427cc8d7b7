extern crate std;

use std::format;
use std::string::ToString;
use std::vec::Vec;

use super::*;

fn setup() -> LabSetup<'static> {
    LabSetup {
        instruction_fs: 434_783,
        quantum_ns: 1000,
        pause_ns: 40,
        hit_fs: [5, 15],
        tlb_miss_fs: 7,
        latency_fs: Numbers("87 113 113 87"),
        controller_fs: 5,
        directory_fs: 0,
        link_fs: Numbers("16 16"),
        routes: Routes("- 1 0 -"),
        memory_bytes: Numbers("1024 0"),
        begin_marks: 1,
        warm_up_instructions: 1000,
        stop_booted: true,
    }
}

#[test]
fn a_setup_survives_its_text() {
    let text = setup().to_string();
    let parsed = LabSetup::parse(&text).unwrap();
    assert_eq!(parsed.to_string(), text);
    let routes: Vec<Vec<u16>> = parsed.routes.iter().map(Iterator::collect).collect();
    assert_eq!(routes, [&[][..], &[1], &[0], &[]]);
    let without_links = LabSetup {
        link_fs: Numbers(""),
        routes: Routes("- - - -"),
        ..setup()
    };
    let text = without_links.to_string();
    assert_eq!(LabSetup::parse(&text).unwrap().link_fs.iter().count(), 0);
}

#[test]
fn a_setup_that_cannot_be_is_refused() {
    let text = setup().to_string();
    assert_eq!(LabSetup::parse(""), Err(LabSetupError::NoSetup));
    for (from, to) in [
        ("instruction_fs 434783", "instruction_fs 1"),
        ("latency_fs 87 113 113 87", "latency_fs 87 113"),
        ("routes - 1 0 -", "routes - 2 0 -"),
        ("quantum_ns 1000\n", ""),
        ("begin_marks 1", "begin_marks 3"),
        ("pause_ns 40", "pause_ns forty"),
        ("pause_ns 40", "pause_ns 40\npause_ns 40"),
    ] {
        let changed = text.replace(from, to);
        assert!(LabSetup::parse(&changed).is_err(), "{to}");
    }
}

#[test]
fn counts_survive_their_text() {
    let lines = [
        LabLine::Count(LabCount::CacheHitTimeFs, 12),
        LabLine::Misses {
            cpu: 1,
            memory: 2,
            misses: 3,
            stall_fs: 4,
            queue_fs: 5,
        },
        LabLine::Controller {
            node: 1,
            requests: 2,
            busy_fs: 3,
        },
        LabLine::Link {
            link: 1,
            requests: 2,
            busy_fs: 3,
        },
        LabLine::Kernel {
            address: u64::MAX,
            time_fs: 3,
        },
    ];
    for line in lines {
        let text = line.to_string();
        assert_eq!(LabLine::parse(&text), Some(line));
        assert_eq!(LabLine::parse(&format!("{text} 1")), None);
    }
    assert_eq!(LabLine::parse("unknown 1"), None);
}
