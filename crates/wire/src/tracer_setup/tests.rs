extern crate std;

use std::string::{String, ToString};

use super::*;

/// CC-NUMA of Verghese et al.
const FLASH: Setup<'static> = Setup {
    page_bytes: 4096,
    line_bytes: 128,
    l1_fetch: Cache {
        bytes: 32 << 10,
        ways: 2,
    },
    l1_data: Cache {
        bytes: 32 << 10,
        ways: 2,
    },
    l2: Cache {
        bytes: 512 << 10,
        ways: 2,
    },
    l3: None,
    tlb: Tlb {
        entries: 64,
        ways: 64,
        reserved: 8,
    },
    tlb_fetch: None,
    tlb_second: None,
    cpu_nodes: Positions("0 1 2 3 4 5 6 7"),
    thread_cpus: Positions("7 0"),
    thread_moves: Moves("1 5000000000 7 0 20000 1"),
    quantum: 10_000,
    sample_period: 100_003,
    keep_hits: true,
    dependences: false,
    from_mark: false,
    serial: true,
};

#[test]
fn a_setup_comes_back_as_written() {
    let full = Setup {
        l3: Some(Cache {
            bytes: 30 << 20,
            ways: 20,
        }),
        tlb_fetch: Some(Tlb {
            entries: 128,
            ways: 8,
            reserved: 0,
        }),
        tlb_second: Some(Tlb {
            entries: 1536,
            ways: 12,
            reserved: 0,
        }),
        dependences: true,
        ..FLASH
    };
    for setup in [FLASH, full] {
        assert_eq!(Setup::parse(&setup.to_string()), Ok(setup));
    }
    assert_eq!(FLASH.tlb.usable_ways(), 56);
    assert_eq!(FLASH.l2.sets(128), 2048);
}

#[test]
fn mistakes_in_a_setup_are_named() {
    let text = FLASH.to_string();
    let change = |from: &str, to: &str| -> String {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    };
    let cases = [
        ("setup 1", "setup 2", SetupError::NoSetup),
        ("quantum 10000\n", "", SetupError::Missing("quantum")),
        ("serial 1", "serial 2", SetupError::Line("serial 2")),
        (
            "sample_period 100003",
            "sample_period 4294967296",
            SetupError::Line("sample_period 4294967296"),
        ),
        ("serial 1", "serial", SetupError::Line("serial")),
        (
            "serial 1",
            "serial 1\nserial 1",
            SetupError::Line("serial 1"),
        ),
        ("l2 524288 2", "l2 524288", SetupError::Line("l2 524288")),
        (
            "l2 524288 2",
            "l4 524288 2",
            SetupError::Line("l4 524288 2"),
        ),
    ];
    for (from, to, error) in cases {
        assert_eq!(Setup::parse(&change(from, to)), Err(error), "{from} → {to}");
    }
    let spaced = change("thread_cpus 7 0", "thread_cpus 7 0 \r\r");
    let read = Setup::parse(&spaced).map(|setup| setup.thread_cpus.0);
    assert_eq!(read, Ok("7 0"));
}

#[test]
fn inconsistent_setups_are_refused_with_the_expected_values() {
    let text = FLASH.to_string();
    let sets =
        "expected 1 to 64 ways, at most 68719476736 bytes, and bytes ÷ line ÷ ways a power of two";
    let entries = "expected 1 to 65536 entries, entries ÷ ways, the sets, a power of two, and fewer reserved than there are, a multiple of the sets";
    let cases = [
        (
            "quantum 10000",
            "quantum 0",
            "quantum is 0; expected 100 to 1073741824 instructions",
        ),
        (
            "page_bytes 4096",
            "page_bytes 2147483648",
            "page_bytes is 2147483648; expected a power of two from 512 to 1073741824",
        ),
        (
            "line_bytes 128",
            "line_bytes 0",
            "line_bytes is 0; expected a power of two from 32 to 512",
        ),
        (
            "l2 524288 2",
            "l2 524288 3",
            &std::format!("l2 is 524288 bytes, 3-way, in lines of 128 bytes; {sets}"),
        ),
        (
            "l2 524288 2",
            "l2 524288 0",
            &std::format!("l2 is 524288 bytes, 0-way, in lines of 128 bytes; {sets}"),
        ),
        (
            "tlb 64 64 8",
            "tlb 64 64 64",
            &std::format!("tlb is 64 entries, 64-way, 64 of them reserved; {entries}"),
        ),
        (
            "tlb 64 64 8",
            "tlb 64 0 8",
            &std::format!("tlb is 64 entries, 0-way, 8 of them reserved; {entries}"),
        ),
        (
            "thread_cpus 7 0",
            "thread_cpus 8",
            "thread_cpus: expected positions below 8",
        ),
        (
            "cpu_nodes 0",
            "cpu_nodes 18446744073709551615",
            "cpu_nodes: expected positions below 256",
        ),
        (
            "cpu_nodes 0 1 2 3 4 5 6 7",
            &std::format!("cpu_nodes 255{}", " 0".repeat(21)),
            "CPUs: 22, nodes: 256; expected at most 256 CPUs, and at most 277 of both",
        ),
        (
            "thread_moves 1 5000000000 7",
            "thread_moves 1 5000000000 8",
            "thread_moves: expected positions below 8",
        ),
        (
            "thread_moves 1 5000000000 7",
            "thread_moves 1 5000000000",
            "thread_moves: expected positions below 8",
        ),
    ];
    for (from, to, expected) in cases {
        assert!(text.contains(from), "{from}");
        let changed = text.replace(from, to);
        let error = Setup::parse(&changed).expect_err(to);
        assert_eq!(error.to_string(), expected);
    }
}
