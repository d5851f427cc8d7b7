//! A plan file with a fault: the message names file, line and key.

use super::SMALL;
use crate::Plan;

/// Text in [`SMALL`], its replacement, and parts of the message.
type Fault<'a> = (&'a str, &'a str, &'a [&'a str]);

fn assert_messages(faults: &[Fault<'_>]) {
    for (from, to, parts) in faults {
        assert!(SMALL.contains(from), "{from}");
        let message = Plan::from_toml(&SMALL.replace(from, to), "p.toml")
            .expect_err(to)
            .to_string();
        assert!(
            parts.iter().all(|part| message.contains(part)),
            "{to}: {message}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn a_key_that_is_unknown_missing_or_wrong_is_named() {
    assert_messages(&[
        (
            "placement =",
            "placemnt =",
            &["p.toml:8:", "unknown key `placemnt`", "expected one of"],
        ),
        (
            "executable =",
            "exe = 1\nexecutable =",
            &["p.toml:3:", "unknown key `exe`"],
        ),
        (
            "version = 1",
            "version = 1\nnodes = 4",
            &["p.toml:2:", "unknown key `nodes`"],
        ),
        (
            "version = 1",
            "version = 2\nnodes = 4",
            &["p.toml:1:", "version 2", "expected version 1"],
        ),
        ("version = 1\n", "", &["p.toml:1:", "missing key `version`"]),
        (
            "version = 1",
            "version = 1\nthreads = \"none\"",
            &[
                "p.toml:2:",
                "`threads` is \"none\"",
                "\"compact\" or \"scatter\"",
            ],
        ),
        (
            "version = 1",
            "version = 1\nthreads = 4",
            &["p.toml:2:", "expected a string"],
        ),
        (
            "version = 1",
            "version = 1\npage_bytes = 3",
            &["p.toml:2:", "power of two"],
        ),
    ]);
}

#[test]
fn a_placement_that_cannot_be_is_named() {
    assert_messages(&[
        (
            "placement =",
            "start = \"later\"\nplacement =",
            &["p.toml:8:", "`start` is \"later\"", "\"second-thread\""],
        ),
        (
            "block-cyclic:20M",
            "block-cyclic",
            &["p.toml:8:", "block-cyclic:20M"],
        ),
        ("block-cyclic:20M", "runs", &["p.toml:8:", "needs `runs"]),
        (
            "\"block-cyclic:20M\"",
            "\"runs\"\nruns = [\"0+1 thread:0\",\n\"x\"]",
            &["p.toml:10:", "0+128 thread:0"],
        ),
        (
            "\"block-cyclic:20M\"",
            "\"runs\"\nruns = [\"4+4 thread:0\", \"7+1 node:0\"]",
            &["p.toml:8:", "overlap"],
        ),
    ]);
}

#[test]
fn an_object_is_recognised_by_one_key_and_what_goes_with_it() {
    assert_messages(&[
        ("symbol = \"cvar\"\n", "", &["p.toml:5:", "exactly one of"]),
        (
            "symbol = \"cvar\"",
            "symbol = \"cvar\"\nheap = \">=1M\"",
            &["p.toml:5:", "exactly one of"],
        ),
        (
            "symbol = \"cvar\"",
            "symbol = \"cvar\"\nthread = 1",
            &["p.toml:5:", "with `call_site` only"],
        ),
        (
            "symbol = \"cvar\"",
            "heap = \">1\"\nsize = 4",
            &["p.toml:5:", "no other key"],
        ),
        ("symbol = \"cvar\"", "heap = \"1M\"", &["p.toml:7:", ">=1M"]),
        (
            "symbol = \"cvar\"",
            "call_site = []",
            &["p.toml:5:", "no frame"],
        ),
        (
            "symbol = \"cvar\"",
            "symbol = 4",
            &["p.toml:7:", "expected a string"],
        ),
        ("symbol = \"cvar\"", "symbol = \"cv", &["p.toml:7:"]),
    ]);
}

#[test]
fn code_is_replicated_by_ascending_pages() {
    assert_messages(&[
        (
            "symbol = \"cvar\"",
            "code = \"cg\"",
            &["p.toml:5:", "`code` goes with `placement = \"replicate\"`"],
        ),
        (
            "symbol = \"cvar\"",
            "pages = [\"0+1\"]\nsymbol = \"cvar\"",
            &["p.toml:7:", "`pages` goes with `code` only"],
        ),
        (
            "symbol = \"cvar\"\nplacement = \"block-cyclic:20M\"",
            "code = \"cg\"\npages = [\"3+0\"]\nplacement = \"replicate\"",
            &["p.toml:8:", "expected a page and how many"],
        ),
        (
            "symbol = \"cvar\"\nplacement = \"block-cyclic:20M\"",
            "code = \"cg\"\npages = [\"3+2\", \"4+1\"]\nplacement = \"replicate\"",
            &["p.toml:8:", "`pages` overlap"],
        ),
        (
            "symbol = \"cvar\"",
            "symbol = \"cvar\"\ncode = \"cg\"",
            &["p.toml:5:", "exactly one of"],
        ),
    ]);
}

#[test]
fn unmatched_memory_and_the_brk_heap_are_decided_once_and_alone() {
    assert_messages(&[
        (
            "symbol = \"cvar\"",
            "unmatched = true",
            &["p.toml:8:", "unmatched memory can be `interleave`"],
        ),
        (
            "symbol = \"cvar\"\nplacement = \"block-cyclic:20M\"",
            "rest = true\nplacement = \"interleave:0=3,1=1\"",
            &["p.toml:8:", "without weights"],
        ),
        (
            "symbol = \"cvar\"",
            "rest = true\nheap = \">=1M\"",
            &["p.toml:5:", "`unmatched` goes with no other key"],
        ),
        (
            "symbol = \"cvar\"",
            "rest = true\nsize = 4096",
            &["p.toml:5:", "`unmatched` goes with no other key"],
        ),
        (
            "symbol = \"cvar\"",
            "rest = false",
            &["p.toml:5:", "exactly one of"],
        ),
        (
            "symbol = \"cvar\"",
            "brk_heap = true",
            &["p.toml:5:", "`brk_heap` needs `size`"],
        ),
        (
            "symbol = \"cvar\"",
            "brk_heap = true\nsize = 4096\nthread = 1",
            &["p.toml:5:", "no other key"],
        ),
        (
            "[[object]]",
            "[[object]]\nname = \"a\"\nbrk_heap = true\nsize = 8192\nplacement = \"interleave\"\n\
             [[object]]\nname = \"b\"\nbrk_heap = true\nsize = 4096\nplacement = \"node:1\"\n[[object]]",
            &["p.toml:10:", "one decision about `brk_heap` already"],
        ),
        (
            "[[object]]",
            "[[object]]\nname = \"a\"\nrest = true\nplacement = \"interleave\"\n\
             [[object]]\nname = \"b\"\nrest = true\nplacement = \"node:1\"\n[[object]]",
            &["p.toml:9:", "one decision about unmatched memory already"],
        ),
    ]);
}

#[test]
fn a_phase_names_its_function_and_what_changes() {
    assert_messages(&[
        (
            "[[object]]",
            "[[phase]]\nfunction = \"f\"\n[[object]]",
            &[
                "p.toml:5:",
                "a phase needs `threads` or a `[[phase.object]]`",
            ],
        ),
        (
            "[[object]]",
            "[[phase]]\nfunction = \"f\"\nthreads = [1, 1]\n[[object]]",
            &["p.toml:7:", "each thread from 0 on once"],
        ),
        (
            "[[object]]",
            "[[phase]]\nmodule = \"cg\"\n[[object]]",
            &["p.toml:5:", "missing key `function`"],
        ),
        (
            "[[object]]",
            "[[phase]]\nfunction = \"f\"\n[[phase.object]]\nstart = \"parallel\"",
            &[
                "p.toml:7:",
                "`start`, `unmatched`, `brk_heap` and `code` do not go",
            ],
        ),
    ]);
}
