//! Plans and hand-written rules, translated for real programs and read back by a reference evaluator. The file is long
//! because most tests here share its target machine, its plans and the programs compiled for them; tests with helpers
//! of their own are in modules.

#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its beginning to its end"
)]

mod brk_heap;
mod compiled;
mod phases;
mod reference;
mod unmatched;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;

use nearpage_machine::{CpuId, Machine, ThreadPlacement, preset, thread_cpus};
use nearpage_plan::{
    Allocation, CallSiteFrame, Compact, Decision, Effect, Error, LatePlacement, Mechanism,
    ModuleName, Origin, Pinning, PlaceRule, Placement, Plan, Program, ProgramImage, Start, Subject,
    Target, Team, resolve_command, translate,
};
use nearpage_wire::compact_plan::RULE_LATER;

use compiled::{Compiled, load, search};
use reference::{ObservedObject, Reference, Verdict};

const PAGE: u64 = 4096;

fn machine() -> Machine {
    preset("opteron-4").expect("preset")
}

fn target(machine: &Machine, threads: usize) -> Target<'_> {
    Target {
        machine,
        teams: HashMap::new(),
        threads: thread_cpus(machine, threads, ThreadPlacement::Compact, None),
        pinning: Pinning::None,
        mechanism: Mechanism::Bind,
        page_bytes: PAGE as u32,
        huge_page_bytes: 2 << 20,
        mappings_max: 16_000,
        touch_pages_max: 1 << 20,
        touch_group: 1,
        has_copies: false,
        later: LatePlacement::Never,
        summary: true,
    }
}

fn identity(image: &ProgramImage) -> (&str, &str) {
    (&image.program.build_id, &image.program.file_name)
}

fn by_hand(rule: &str, programs: &[ProgramImage], threads: usize) -> Result<Compact, Error> {
    let machine = machine();
    let rule = PlaceRule::parse(rule, &machine.node_ids())?;
    translate(&[], &[rule], &target(&machine, threads), programs)
}

fn plan_for(image: &ProgramImage, decisions: Vec<(Subject, &str)>) -> Plan {
    let decision = |(subject, placement): (Subject, &str)| Decision {
        start: Start::Allocation,
        name: "it".to_owned(),
        subject,
        placement: Placement::parse_among(placement, &[]).expect("placement"),
        why: String::new(),
        effect: Effect::default(),
    };
    Plan {
        program: Program {
            executable: image.program.file_name.clone(),
            build_id: image.program.build_id.clone(),
            arguments: Vec::new(),
            rank: None,
        },
        policy: "object".to_owned(),
        machine: "opteron-4".to_owned(),
        page_bytes: PAGE,
        threads: None,
        teams: vec![Team {
            name: "openmp".to_owned(),
            threads: 4,
            beside: 0,
            module: "libgomp.so.1.0.0".to_owned(),
            build_id: "00ff".to_owned(),
            offset: 0x1d80,
        }],
        decisions: decisions.into_iter().map(decision).collect(),
        predicted: None,
        online_migration: None,
        phases: Vec::new(),
    }
}

fn call_site(image: &ProgramImage, offset: u64, line: u32, size_bytes: u64) -> Subject {
    let frame = CallSiteFrame {
        module: image.program.file_name.clone(),
        build_id: image.program.build_id.clone(),
        offset,
        function: "grow".to_owned(),
        line,
    };
    Subject::CallSite {
        frames: vec![frame],
        size_bytes,
        order: None,
        thread: None,
    }
}

fn heap<'a>(image: &'a ProgramImage, address: u64) -> ObservedObject<'a> {
    ObservedObject::Heap {
        frames: vec![(identity(image), address)],
        order: 0,
        thread: 0,
    }
}

fn translated(
    plan: &Plan,
    image: ProgramImage,
    threads: usize,
) -> (Reference, Compact, ProgramImage) {
    let machine = machine();
    let programs = [image];
    let compact = translate(
        std::slice::from_ref(plan),
        &[],
        &target(&machine, threads),
        &programs,
    )
    .expect("translation");
    let [image] = programs;
    (Reference::decode(&compact), compact, image)
}

/// Placement, without warnings, of an object of `bytes` that was allocated at `address`, in a run with `threads`
/// threads.
fn of_call_site(
    plan: &Plan,
    image: &ProgramImage,
    address: u64,
    (bytes, threads): (u64, usize),
) -> Verdict {
    let machine = machine();
    let compact = translate(
        std::slice::from_ref(plan),
        &[],
        &target(&machine, threads),
        std::slice::from_ref(image),
    )
    .expect("translation");
    assert_eq!(compact.warnings, Vec::<String>::new());
    Reference::decode(&compact)
        .evaluate(identity(image), None, &heap(image, address), bytes)
        .expect("placed")
}

fn nodes(verdict: &Verdict) -> Vec<u32> {
    verdict
        .pages
        .iter()
        .map(|node| node.expect("placed"))
        .collect()
}

#[test]
fn a_placement_waits_as_far_as_can_be_and_what_cannot_is_said() {
    let compiled = Compiled::new();
    let image = compiled.image("waits", &["-pie", "-fPIE"]);
    let subject = Subject::Heap {
        size_min_bytes: PAGE,
        size_max_bytes: u64::MAX,
    };
    let mut plan = plan_for(&image, vec![(subject, "interleave")]);
    let (_, compact, image) = translated(&plan, image, 4);
    assert_eq!(compact.warnings, Vec::<String>::new());
    assert_eq!(Reference::decode(&compact).flags(), [0]);

    let machine = machine();
    let programs = [image];
    let mut translated = |later, start, placement: &str| {
        plan.decisions[0].start = start;
        plan.decisions[0].placement = Placement::parse_among(placement, &[]).unwrap();
        let target = Target {
            later,
            ..target(&machine, 4)
        };
        let compact = translate(std::slice::from_ref(&plan), &[], &target, &programs).unwrap();
        let waits = Reference::decode(&compact).flags() == [RULE_LATER];
        (waits, compact.warnings.join(" "), compact.bytes)
    };
    use Start::{Parallel, SecondThread};
    let (waits, said, bytes) = translated(LatePlacement::Never, SecondThread, "interleave");
    assert!(!waits && bytes == compact.bytes);
    assert!(
        said.starts_with("`it` is placed from its allocation on: "),
        "{said}"
    );
    for (later, start, expected) in [
        (LatePlacement::Once, SecondThread, ""),
        (LatePlacement::Once, Parallel, "`it` is moved once, when"),
        (LatePlacement::AsPlanned, SecondThread, ""),
        (LatePlacement::AsPlanned, Parallel, ""),
    ] {
        let (waits, said, _) = translated(later, start, "interleave");
        assert!(waits, "{later:?} {start:?}");
        assert_eq!(expected.is_empty(), said.is_empty(), "{said}");
        assert!(said.starts_with(expected), "{said}");
    }
    for later in [LatePlacement::Never, LatePlacement::Once] {
        let (waits, said, _) = translated(later, Parallel, "first-touch");
        assert!(!waits, "there is nothing to place");
        assert!(
            said.starts_with("`it` stays where it is first touched: "),
            "{said}"
        );
    }
}

#[test]
fn code_stays_where_no_kernel_copies_it() {
    let compiled = Compiled::new();
    let image = compiled.image("code", &["-pie", "-fPIE"]);
    let heap = Subject::Heap {
        size_min_bytes: PAGE,
        size_max_bytes: u64::MAX,
    };
    let code = Subject::Code {
        module: "code".to_owned(),
        build_id: String::new(),
        pages: Vec::new(),
    };
    let alone = plan_for(&image, vec![(heap.clone(), "interleave")]);
    let (_, expected, image) = translated(&alone, image, 4);
    let both = plan_for(&image, vec![(code, "replicate"), (heap, "interleave")]);
    let (_, compact, _) = translated(&both, image, 4);
    assert_eq!(compact.warnings.len(), 1, "{:?}", compact.warnings);
    assert!(compact.warnings[0].contains("no stock kernel does"));
    assert_eq!(compact.bytes, expected.bytes);
    assert_eq!(compact.decisions, [Some(1)]);
}

/// Functions that allocate for others give several objects one name.
#[test]
fn rules_are_told_apart_by_their_decisions_and_not_by_their_names() {
    let compiled = Compiled::new();
    let image = compiled.image("alike", &["-pie", "-fPIE"]);
    let heap = |size_min_bytes, size_max_bytes| Subject::Heap {
        size_min_bytes,
        size_max_bytes,
    };
    let decisions = vec![
        (heap(PAGE, 8 * PAGE), "replicate"),
        (heap(9 * PAGE, u64::MAX), "interleave"),
    ];
    let (_, compact, _) = translated(&plan_for(&image, decisions), image, 4);
    assert_eq!(compact.rule_names, ["it", "it"]);
    assert_eq!(compact.decisions, [Some(0), Some(1)]);
}

#[test]
fn symbols_are_found_wherever_the_linker_put_them() {
    let compiled = Compiled::new();
    for (name, flags) in [
        ("pie", &["-pie", "-fPIE"][..]),
        ("fixed", &["-no-pie", "-fno-pie"]),
        ("stripped", &["-s"]),
    ] {
        let image = compiled.image(name, flags);
        let addresses = compiled.printed_addresses(name);
        assert!(!image.program.is_static && !image.program.build_id.is_empty());
        assert!(
            image
                .libraries()
                .iter()
                .any(|library| library.file_name == "libtold.so.1.0"),
            "{name}"
        );
        assert!(
            image
                .libraries()
                .iter()
                .any(|library| library.file_name.starts_with("libc.so")),
            "{name}"
        );
        let programs = [image];
        for symbol in ["cvar", "library_table"] {
            if name == "stripped" && symbol == "cvar" {
                let error = by_hand("symbol:cvar=block", &programs, 4).expect_err("stripped");
                assert!(
                    error.to_string().contains("has a static object `cvar`"),
                    "{error}"
                );
                continue;
            }
            let compact = by_hand(&format!("symbol:{symbol}=block"), &programs, 4).expect(name);
            let reference = Reference::decode(&compact);
            // If the program has a copy of the library's object, the copy is the object.
            let owner = programs[0]
                .modules()
                .find(|module| !module.objects(symbol).is_empty())
                .expect("owner");
            let module = (owner.build_id.as_str(), owner.file_name.as_str());
            let seen = ObservedObject::Static {
                module,
                offset: addresses[symbol],
            };
            let size = owner.objects(symbol)[0].size_bytes;
            let verdict = reference
                .evaluate(("", "any"), None, &seen, size)
                .expect(symbol);
            assert_eq!(
                nodes(&verdict),
                block(size / PAGE, &[0, 1, 2, 3]),
                "{name} {symbol}"
            );
            assert_eq!(
                compact.rule_names,
                [format!("--place 'symbol:{symbol}=block'")]
            );
        }
    }
    let image = load(&compiled.path("pie"));
    assert_eq!(image.program.objects("cvar")[0].size_bytes, 131_072 * 8);
    // The library's static object, given with its module.
    let error = by_hand(
        "symbol:hiden_table@libtold.so.1=interleave",
        &[load(&compiled.path("pie"))],
        4,
    );
    let message = error.expect_err("misspelt").to_string();
    assert!(
        message.contains(
            "libtold.so.1.0 has no static object `hiden_table`; did you mean `hidden_table`?"
        ),
        "{message}"
    );
    let compact =
        by_hand("symbol:hidden_table@libtold.so.1=interleave", &[image], 4).expect("hidden");
    assert_eq!(compact.warnings, Vec::<String>::new());
}

fn block(pages: u64, nodes: &[u32]) -> Vec<u32> {
    (0..pages)
        .map(|page| nodes[(page as usize) * nodes.len() / pages as usize])
        .collect()
}

#[test]
fn a_rule_that_matches_nothing_is_an_error_with_close_names() {
    let compiled = Compiled::new();
    let programs = [compiled.image("prog", &[])];
    let message = |rule: &str| by_hand(rule, &programs, 4).expect_err(rule).to_string();
    assert_eq!(
        message("symbol:cvra=block"),
        "--place 'symbol:cvra=block': matches nothing: neither prog nor a library it loads has a static object \
         `cvra`; did you mean `cvar`?"
    );
    assert!(
        message("symbol:cvar@libtol.so=block")
            .contains("`libtol.so` is not loaded at start; there is prog, libtold")
    );
    assert!(message("function:grwo=block").contains("did you mean `grow`"));
    assert!(message("function:grow:7=block").contains("no code of line 7"));
    let rule = PlaceRule::parse("symbol:cvar=node:7", &[]).expect("rule");
    let machine = machine();
    let error = translate(&[], &[rule], &target(&machine, 4), &programs).expect_err("node 7");
    assert_eq!(
        error.to_string(),
        "--place 'symbol:cvar=node:7': there is no node 7 on opteron-4; there is 0-3"
    );
    assert!(!error.is_usage());
    assert!(message("symbol:cvar=block@worker").contains("no team `worker`"));
    let tiny = by_hand("symbol:tiny=node:1", &programs, 4).expect("tiny");
    assert!(
        tiny.warnings[0].contains("less than two pages"),
        "{:?}",
        tiny.warnings
    );
}

#[test]
fn a_function_and_line_recognise_what_is_allocated_there() {
    let compiled = Compiled::new();
    let programs = [compiled.image("prog", &[])];
    let addresses = compiled.printed_addresses("prog");
    let takes = |rule: &str, address: u64, size: u64| {
        let compact = by_hand(rule, &programs, 4).expect(rule);
        let verdict = Reference::decode(&compact).evaluate(
            identity(&programs[0]),
            None,
            &heap(&programs[0], address),
            size,
        );
        verdict.is_some_and(|verdict| !verdict.is_weak)
    };
    assert!(takes("function:grow=block", addresses["first"], 1 << 20));
    assert!(takes("function:grow=block", addresses["second"], 1 << 20));
    assert!(!takes("function:main=block", addresses["second"], 1 << 20));
    assert!(takes("function:grow:38=block", addresses["first"], 1 << 20));
    assert!(!takes(
        "function:grow:38=block",
        addresses["second"],
        1 << 20
    ));
    assert!(takes(
        "function:grow@prog:40=block",
        addresses["second"],
        1 << 30
    ));
    assert!(
        !takes("function:grow=block", addresses["first"], 5000),
        "less than two pages"
    );
    for rule in [
        "function:inlined=block",
        "function:inlined:44=block",
        "function:main:53=block",
        "function:main=block",
    ] {
        assert!(takes(rule, addresses["inlined"], 1 << 20), "{rule}");
    }
    assert!(!takes(
        "function:main:52=block",
        addresses["inlined"],
        1 << 20
    ));
    assert!(takes("heap>=1M=node:3", 0, 1 << 20));
    assert!(!takes("heap<1M=node:3", 0, 1 << 20));
}

#[test]
fn a_block_is_share_k_of_the_threads_of_the_run() {
    let compiled = Compiled::new();
    let image = compiled.image("prog", &[]);
    let addresses = compiled.printed_addresses("prog");
    let size = 64 * PAGE;
    // Made with 4 threads (see `plan_for`), run with 8, 4, 6 and 2 threads, and with an input twice as large.
    let plan = plan_for(
        &image,
        vec![(call_site(&image, addresses["first"], 38, size), "block")],
    );
    let mut image = image;
    for (threads, owners) in [
        (8, &[0, 0, 1, 1, 2, 2, 3, 3][..]),
        (4, &[0, 1, 2, 3]),
        (2, &[0, 1]),
    ] {
        for size in [size, 2 * size, size + 3 * PAGE] {
            let (reference, compact, same) = translated(&plan, image, threads);
            image = same;
            assert_eq!(compact.warnings, Vec::<String>::new());
            let verdict = reference
                .evaluate(
                    identity(&image),
                    None,
                    &heap(&image, addresses["first"]),
                    size,
                )
                .expect("placed");
            let expected: Vec<u32> = (0..size / PAGE)
                .map(|page| {
                    owners[((page * PAGE + PAGE / 2) * owners.len() as u64 / size) as usize]
                })
                .collect();
            assert_eq!(nodes(&verdict), expected, "{threads} threads, {size} bytes");
            assert!(!verdict.is_weak);
            assert_eq!(
                reference.evaluate(
                    identity(&image),
                    None,
                    &heap(&image, addresses["second"]),
                    size
                ),
                None
            );
        }
    }
    // The plan survives its file.
    assert_eq!(Plan::from_toml(&plan.to_toml(), "p").expect("plan"), plan);
}

#[test]
fn every_pattern_is_placed_on_nodes() {
    let compiled = Compiled::new();
    let image = compiled.image("prog", &[]);
    let addresses = compiled.printed_addresses("prog");
    let verdict = |placement: &str, threads: usize| {
        let plan = plan_for(
            &image,
            vec![(
                call_site(&image, addresses["first"], 38, 8 * PAGE),
                placement,
            )],
        );
        let machine = machine();
        let compact = translate(
            &[plan],
            &[],
            &target(&machine, threads),
            std::slice::from_ref(&image),
        )
        .expect(placement);
        let reference = Reference::decode(&compact);
        let verdict = reference
            .evaluate(
                identity(&image),
                None,
                &heap(&image, addresses["first"]),
                8 * PAGE,
            )
            .expect(placement);
        (verdict, compact.warnings)
    };
    assert_eq!(
        nodes(&verdict("block-cyclic:4K", 4).0),
        [0, 1, 2, 3, 0, 1, 2, 3]
    );
    // Recorded with four threads, so the period is 32 KiB, which eight threads share.
    assert_eq!(
        nodes(&verdict("block-cyclic:8K", 8).0),
        [0, 0, 1, 1, 2, 2, 3, 3]
    );
    assert_eq!(verdict("interleave", 4).0.interleaved, [0, 1, 2, 3]);
    assert_eq!(verdict("interleave:0,2-3", 4).0.interleaved, [0, 2, 3]);
    // Both nodes in turn, then the heavier one.
    assert_eq!(
        nodes(&verdict("interleave:0=3,1=1", 4).0),
        [0, 1, 0, 0, 0, 1, 0, 0]
    );
    assert_eq!(nodes(&verdict("node:3", 4).0), [3; 8]);
    assert_eq!(nodes(&verdict("thread:2", 4).0), [2; 8]);
    assert_eq!(verdict("first-touch", 4).0.pages, [None; 8]);
    let (wrapped, warnings) = verdict("thread:5@openmp", 4);
    assert_eq!(nodes(&wrapped), [1; 8]);
    assert!(
        warnings[0].contains("only thread 1 in this run of 4 threads"),
        "{warnings:?}"
    );
}

/// The size was three lines from whole rounds, which was taken for rows of the array.
#[test]
fn pieces_keep_their_size_if_the_object_is_not_of_whole_rounds() {
    let compiled = Compiled::new();
    let image = compiled.image("prog", &[]);
    let addresses = compiled.printed_addresses("prog");
    for (size, expected) in [
        (8 * PAGE, [0, 0, 1, 1, 2, 2, 3, 3]),
        (8 * PAGE - 192, [0, 0, 0, 0, 1, 1, 1, 1]),
    ] {
        // Made with 4 threads, run with 8.
        let site = call_site(&image, addresses["first"], 38, size);
        let plan = plan_for(&image, vec![(site, "block-cyclic:8K")]);
        let verdict = of_call_site(&plan, &image, addresses["first"], (8 * PAGE, 8));
        assert_eq!(nodes(&verdict), expected, "{size} bytes");
    }
}

#[test]
fn page_runs_go_round_a_team_of_another_size_in_proportion() {
    let compiled = Compiled::new();
    let image = compiled.image("prog", &[]);
    let addresses = compiled.printed_addresses("prog");
    let mut plan = plan_for(
        &image,
        vec![(
            call_site(&image, addresses["first"], 38, 8 * PAGE),
            "first-touch",
        )],
    );
    // Made with 4 threads, whose shares are in descending order.
    let runs = [
        "0+2 thread:3",
        "2+2 thread:2",
        "4+2 thread:1",
        "6+2 thread:0",
    ];
    let runs = runs
        .iter()
        .map(|run| nearpage_plan::PageRun::parse(run).expect("run"));
    plan.decisions[0].placement = Placement::Runs(runs.collect());
    for (threads, expected) in [
        (2, [1, 1, 1, 1, 0, 0, 0, 0]),
        (4, [3, 3, 2, 2, 1, 1, 0, 0]),
        // Four and two threads per node.
        (16, [3, 3, 2, 2, 1, 1, 0, 0]),
        (8, [3, 3, 2, 2, 1, 1, 0, 0]),
    ] {
        let verdict = of_call_site(&plan, &image, addresses["first"], (8 * PAGE, threads));
        assert_eq!(nodes(&verdict), expected, "{threads} threads");
    }
}

/// Shares of a used part, and of several arrays, follow the size of the team and of the object.
#[test]
fn parts_and_tiles_are_dealt_to_any_team() {
    let compiled = Compiled::new();
    let image = compiled.image("prog", &[]);
    let addresses = compiled.printed_addresses("prog");
    for (placement, threads, pages, expected) in [
        ("block:0-24K/32K", 2, 8, vec![0, 0, 0, 1, 1, 1, 1, 1]),
        ("block:0-24K/32K", 3, 8, vec![0, 0, 1, 1, 2, 2, 2, 2]),
        (
            "block:0-24K/32K",
            2,
            16,
            vec![0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        ),
        (
            "block:0-16K,16K-32K/32K",
            2,
            8,
            vec![0, 0, 1, 1, 0, 0, 1, 1],
        ),
        ("tiles:2x2/8K", 4, 8, vec![0, 1, 0, 1, 2, 3, 2, 3]),
        ("tiles:2x2/8K", 2, 8, vec![0, 1, 0, 1, 0, 1, 0, 1]),
        (
            "tiles:2x2/8K",
            4,
            12,
            vec![0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3],
        ),
    ] {
        let site = call_site(&image, addresses["first"], 38, 8 * PAGE);
        let plan = plan_for(&image, vec![(site, placement)]);
        let verdict = of_call_site(&plan, &image, addresses["first"], (pages * PAGE, threads));
        assert_eq!(nodes(&verdict), expected, "{placement}, {threads} threads");
        assert!(!verdict.is_weak);
    }
}

#[test]
fn objects_of_a_call_site_go_round_the_threads_of_any_team() {
    let compiled = Compiled::new();
    let image = compiled.image("prog", &[]);
    let addresses = compiled.printed_addresses("prog");
    let site = call_site(&image, addresses["first"], 38, 2 * PAGE);
    let plan = plan_for(&image, vec![(site, "round-robin")]);
    let machine = machine();
    for threads in [3, 4] {
        let compact = translate(
            std::slice::from_ref(&plan),
            &[],
            &target(&machine, threads),
            std::slice::from_ref(&image),
        )
        .expect("a call site's objects");
        let reference = Reference::decode(&compact);
        for number in 0..9 {
            let object = ObservedObject::Heap {
                frames: vec![(identity(&image), addresses["first"])],
                order: number,
                thread: 0,
            };
            let verdict = reference.evaluate(identity(&image), None, &object, 2 * PAGE);
            let turn = number % threads as u32;
            assert_eq!(nodes(&verdict.expect("placed")), [turn, turn], "{number}");
        }
    }
    let error = by_hand("heap>=1M=round-robin", &[], 4)
        .unwrap_err()
        .to_string();
    assert!(error.contains("call site"), "{error}");
}

#[test]
fn objects_of_a_call_site_are_dealt_in_shares_of_as_many_as_there_are() {
    let compiled = Compiled::new();
    let image = compiled.image("prog", &[]);
    let addresses = compiled.printed_addresses("prog");
    let site = call_site(&image, addresses["first"], 38, 2 * PAGE);
    let plan = plan_for(&image, vec![(site, "object-blocks:6")]);
    let machine = machine();
    let compact = translate(
        std::slice::from_ref(&plan),
        &[],
        &target(&machine, 3),
        std::slice::from_ref(&image),
    )
    .expect("a call site's objects");
    let module = ModuleName {
        build_id: &image.program.build_id,
        file_name: "prog",
    };
    let frames = [Some((module, addresses["first"]))];
    let object = || {
        Origin::Heap(Allocation {
            frames: &frames,
            thread: 0,
        })
    };
    let homes = |before_the_second_thread: u64, all: u64| -> Vec<u16> {
        let mut rules = compact.process(module, None, PAGE);
        rules.count((0..before_the_second_thread).map(|_| (object(), 2 * PAGE)));
        let place = |number: u64| {
            let found = rules.place(&object(), number * 2 * PAGE, 2 * PAGE);
            let found = found.expect("it is of the call site");
            let node = found.pages[0].node(number * 2 * PAGE, PAGE);
            node.expect("a node").0
        };
        (0..all).map(place).collect()
    };
    assert_eq!(homes(6, 6), [0, 0, 1, 1, 2, 2]);
    assert_eq!(homes(9, 9), [0, 0, 0, 1, 1, 1, 2, 2, 2]);
    assert_eq!(homes(3, 3), [0, 1, 2]);
    // Later objects have the planned places; those beyond the plan's number are in the last share.
    assert_eq!(homes(0, 8), [0, 0, 1, 1, 2, 2, 2, 2]);
    assert_eq!(homes(3, 8), [0, 1, 2, 1, 2, 2, 2, 2]);
    let error = by_hand("heap>=1M=object-blocks:6", &[], 4)
        .unwrap_err()
        .to_string();
    assert!(error.contains("call site"), "{error}");
}

/// The teams are joined as for a main thread that works beside the threads it created: the main thread comes first.
#[test]
fn joined_teams_have_the_threads_of_each() {
    let compiled = Compiled::new();
    let image = compiled.image("prog", &[]);
    let addresses = compiled.printed_addresses("prog");
    let of = |placement: &str, workers: &[u32]| {
        let mut plan = plan_for(
            &image,
            vec![(
                call_site(&image, addresses["first"], 38, 8 * PAGE),
                placement,
            )],
        );
        let team = |name: &str, threads| Team {
            name: name.to_owned(),
            threads,
            ..plan.teams[0].clone()
        };
        plan.teams = vec![team("worker", 3), team("main", 1)];
        let machine = machine();
        let cpus = |cpus: &[u32]| cpus.iter().copied().map(CpuId).collect();
        let mut target = target(&machine, 4);
        target.teams = HashMap::from([
            ("worker".to_owned(), cpus(workers)),
            ("main".to_owned(), cpus(&[3])),
        ]);
        let plans = std::slice::from_ref(&plan);
        let compact = translate(plans, &[], &target, std::slice::from_ref(&image))?;
        let verdict = Reference::decode(&compact).evaluate(
            identity(&image),
            None,
            &heap(&image, addresses["first"]),
            8 * PAGE,
        );
        Ok::<_, Error>(nodes(&verdict.expect("placed")))
    };
    let blocks = of("block@main+worker", &[0, 1, 2]).expect("teams of the plan");
    assert_eq!(blocks, [3, 3, 0, 0, 1, 1, 2, 2]);
    // The period of four threads' pages stays with two threads.
    let cyclic = of("block-cyclic:4K@main+worker", &[0]).expect("teams of the plan");
    assert_eq!(cyclic, [3, 3, 0, 0, 3, 3, 0, 0]);
    let error = of("block@main+nobody", &[0]).unwrap_err().to_string();
    assert!(error.contains("main+nobody"), "{error}");
    // With `:reversed`, the last thread has the first share.
    let blocks = of("block@main+worker:reversed", &[0, 1, 2]).expect("teams of the plan");
    assert_eq!(blocks, [2, 2, 1, 1, 0, 0, 3, 3]);
    let blocks = of("block@:reversed", &[0, 1]).expect("the first team");
    assert_eq!(blocks, [1, 1, 1, 1, 0, 0, 0, 0]);
    let error = of("block@nobody:reversed", &[0]).unwrap_err().to_string();
    assert!(error.contains("`nobody`"), "{error}");
}

#[test]
fn page_runs_fit_their_size_and_are_scaled_otherwise() {
    let compiled = Compiled::new();
    let image = compiled.image("prog", &[]);
    let addresses = compiled.printed_addresses("prog");
    let cvar = image.program.objects("cvar")[0].clone();
    let symbol = |size_bytes| Subject::Symbol {
        symbol: "cvar".to_owned(),
        module: "prog".to_owned(),
        build_id: "00".to_owned(),
        offset: 1,
        size_bytes,
    };
    let mut plan = plan_for(
        &image,
        vec![
            (
                call_site(&image, addresses["first"], 38, 8 * PAGE),
                "first-touch",
            ),
            (symbol(8 * PAGE), "first-touch"),
        ],
    );
    let runs = ["0+2 thread:1", "2+1 node:3", "3+5 thread:0"];
    let runs: Vec<_> = runs
        .iter()
        .map(|run| nearpage_plan::PageRun::parse(run).expect("run"))
        .collect();
    for decision in &mut plan.decisions {
        decision.placement = Placement::Runs(runs.clone());
    }
    let (reference, compact, image) = translated(&plan, image, 4);
    let at = |size: u64| {
        reference
            .evaluate(
                identity(&image),
                None,
                &heap(&image, addresses["first"]),
                size,
            )
            .expect("placed")
    };
    let exact = [1, 1, 3, 0, 0, 0, 0, 0];
    assert_eq!(
        (nodes(&at(8 * PAGE)), at(8 * PAGE).is_weak),
        (exact.to_vec(), false)
    );
    assert_eq!(nodes(&at(8 * PAGE - 100)), exact);
    let doubled: Vec<u32> = exact.iter().flat_map(|&node| [node, node]).collect();
    assert_eq!(
        (nodes(&at(16 * PAGE)), at(16 * PAGE).is_weak),
        (doubled, true)
    );
    assert_eq!(nodes(&at(4 * PAGE)), [1, 0, 0, 0]);
    // The symbol has 256 pages now: each page of the plan became 32 pages.
    let seen = ObservedObject::Static {
        module: identity(&image),
        offset: cvar.offset,
    };
    let verdict = reference
        .evaluate(identity(&image), None, &seen, cvar.size_bytes)
        .expect("symbol");
    let scaled: Vec<u32> = exact.iter().flat_map(|&node| [node; 32]).collect();
    assert_eq!(nodes(&verdict), scaled);
    assert!(
        compact
            .warnings
            .iter()
            .any(|warning| warning.contains("its page runs are scaled")),
        "{:?}",
        compact.warnings
    );
    assert!(
        compact
            .warnings
            .iter()
            .any(|warning| warning.contains("1048576 bytes now and had 32768"))
    );
}

#[test]
fn a_rebuilt_program_is_recognised_by_function_line_and_size_class() {
    let compiled = Compiled::new();
    let old = compiled.image("prog", &[]);
    let old_addresses = compiled.printed_addresses("prog");
    let cvar = old.program.objects("cvar")[0].clone();
    let symbol = Subject::Symbol {
        symbol: "cvar".to_owned(),
        module: "prog".to_owned(),
        build_id: old.program.build_id.clone(),
        offset: cvar.offset,
        size_bytes: cvar.size_bytes,
    };
    let plan = plan_for(
        &old,
        vec![
            (symbol, "block"),
            (
                call_site(&old, old_addresses["first"], 38, 1 << 20),
                "block",
            ),
            (
                call_site(&old, old_addresses["second"], 40, 1 << 20),
                "interleave",
            ),
        ],
    );
    let new = compiled.image("prog", &["-DREBUILT", "-DCOUNT=262144"]);
    let addresses = compiled.printed_addresses("prog");
    assert_ne!(addresses["first"], old_addresses["first"]);
    let (reference, compact, new) = translated(&plan, new, 4);
    let verdict =
        |seen: &ObservedObject<'_>, size| reference.evaluate(identity(&new), None, seen, size);
    let seen = ObservedObject::Static {
        module: identity(&new),
        offset: addresses["cvar"],
    };
    assert_eq!(
        nodes(&verdict(&seen, 2 << 20).expect("cvar")),
        block(512, &[0, 1, 2, 3])
    );
    let first = verdict(&heap(&new, addresses["first"]), 1 << 20).expect("first");
    assert!(first.is_weak && first.number == 1);
    assert_eq!(
        verdict(&heap(&new, addresses["second"]), 1 << 20)
            .expect("second")
            .number,
        2
    );
    assert_eq!(
        verdict(&heap(&new, addresses["first"]), 2 << 20),
        None,
        "another size class"
    );
    assert_eq!(verdict(&heap(&new, addresses["added"]), 1 << 20), None);
    for part in [
        "prog was rebuilt",
        "2097152 bytes now and had 1048576",
        "function, line and size class only",
    ] {
        assert!(
            compact
                .warnings
                .iter()
                .any(|warning| warning.contains(part)),
            "{part}: {:?}",
            compact.warnings
        );
    }
    // The lines shifted: the function alone identifies the call site if no other decision has the same name.
    let mut shifted = plan.clone();
    shifted.decisions.truncate(2);
    let Subject::CallSite { frames, .. } = &mut shifted.decisions[1].subject else {
        unreachable!()
    };
    frames[0].line = 39;
    let (reference, _, new) = translated(&shifted, new, 4);
    let first = reference
        .evaluate(
            identity(&new),
            None,
            &heap(&new, addresses["first"]),
            1 << 20,
        )
        .expect("by function");
    assert!(first.is_weak && first.number == 1);
    // A decision about a removed function is left out; if no decision is left, that is an error.
    let renamed = compiled.image("prog", &["-DRENAMED"]);
    let (_, compact, renamed) = translated(&plan, renamed, 4);
    assert!(
        compact
            .warnings
            .iter()
            .any(|warning| warning.contains("no function `grow`")),
        "{:?}",
        compact.warnings
    );
    let only_heap = Plan {
        decisions: plan.decisions[1..].to_vec(),
        ..plan
    };
    let machine = machine();
    let error =
        translate(&[only_heap], &[], &target(&machine, 4), &[renamed]).expect_err("nothing left");
    assert!(error.to_string().contains("matches nothing"), "{error}");
}

#[test]
fn a_call_site_survives_the_rebuild_of_other_modules() {
    let compiled = Compiled::new();
    let image = compiled.image("prog", &[]);
    let addresses = compiled.printed_addresses("prog");
    let mut subject = call_site(&image, addresses["first"], 38, 1 << 20);
    let Subject::CallSite { frames, .. } = &mut subject else {
        unreachable!()
    };
    for (module, offset) in [("libtold.so.1.1", 0x1234), ("libplugin.so", 0x777)] {
        frames.insert(
            0,
            CallSiteFrame {
                module: module.to_owned(),
                build_id: "0123".to_owned(),
                offset,
                function: "library_make".to_owned(),
                line: 3,
            },
        );
    }
    let plan = plan_for(&image, vec![(subject, "block")]);
    let (reference, _, image) = translated(&plan, image, 4);
    let library = image
        .libraries()
        .iter()
        .find(|library| library.file_name.starts_with("libtold"))
        .expect("library");
    let seen = |plugin, address| ObservedObject::Heap {
        frames: vec![
            (plugin, address),
            (
                (library.build_id.as_str(), library.file_name.as_str()),
                0x9999,
            ),
            (identity(&image), addresses["first"]),
        ],
        order: 3,
        thread: 2,
    };
    let taken = |seen: &ObservedObject<'_>| {
        reference
            .evaluate(identity(&image), None, seen, 1 << 20)
            .is_some()
    };
    assert!(
        taken(&seen(("0123", "libplugin.so"), 0x777)),
        "loaded later, same build"
    );
    assert!(!taken(&seen(("0123", "libother.so"), 0x778)));
    assert!(
        taken(&seen(("4567", "libplugin.so"), 0x999)),
        "loaded later, another build"
    );
    assert!(!taken(&heap(&image, addresses["first"])), "another stack");
}

#[test]
fn decisions_of_one_call_site_are_told_apart() {
    let compiled = Compiled::new();
    let image = compiled.image("prog", &[]);
    let addresses = compiled.printed_addresses("prog");
    let site = |size, order, thread| match call_site(&image, addresses["first"], 38, size) {
        Subject::CallSite {
            frames, size_bytes, ..
        } => Subject::CallSite {
            frames,
            size_bytes,
            order,
            thread,
        },
        _ => unreachable!(),
    };
    let by_size = plan_for(
        &image,
        vec![
            (site(1 << 20, None, None), "block"),
            (site(16 << 20, None, None), "interleave"),
        ],
    );
    let by_order = plan_for(
        &image,
        vec![
            (site(1 << 20, Some((0, 1)), None), "block"),
            (site(1 << 20, None, Some(3)), "node:1"),
            (site(1 << 20, None, None), "interleave"),
        ],
    );
    let (reference, _, image) = translated(&by_size, image, 4);
    let number = |reference: &Reference, image: &ProgramImage, order, thread, size| {
        let seen = ObservedObject::Heap {
            frames: vec![(identity(image), addresses["first"])],
            order,
            thread,
        };
        reference
            .evaluate(identity(image), None, &seen, size)
            .map(|verdict| verdict.number)
    };
    for (size, expected) in [
        (1 << 14, 0),
        (1 << 20, 0),
        (2 << 20, 0),
        (8 << 20, 1),
        (1 << 34, 1),
    ] {
        assert_eq!(
            number(&reference, &image, 0, 0, size),
            Some(expected),
            "{size}"
        );
    }
    let (reference, _, image) = translated(&by_order, image, 4);
    assert_eq!(number(&reference, &image, 1, 3, 4 << 20), Some(0));
    assert_eq!(number(&reference, &image, 2, 3, 4 << 20), Some(1));
    assert_eq!(number(&reference, &image, 2, 0, 4 << 20), Some(2));
}

#[test]
fn sections_and_pins_are_per_executable_and_rank() {
    let compiled = Compiled::new();
    let image = compiled.image("prog", &[]);
    let other = Program {
        executable: "helper".to_owned(),
        build_id: "beef".to_owned(),
        ..Program::default()
    };
    let symbol = |size_bytes| Subject::Symbol {
        symbol: "table".to_owned(),
        module: "helper".to_owned(),
        build_id: "beef".to_owned(),
        offset: 0x4000,
        size_bytes,
    };
    let of_rank = |rank, node: &str| {
        let mut plan = plan_for(
            &image,
            vec![(
                Subject::Heap {
                    size_min_bytes: 0,
                    size_max_bytes: u64::MAX,
                },
                node,
            )],
        );
        plan.program.rank = rank;
        plan
    };
    let helper = Plan {
        program: other,
        ..plan_for(&image, vec![(symbol(1 << 20), "node:2")])
    };
    let plans = [
        of_rank(Some(0), "node:0"),
        of_rank(Some(1), "node:1"),
        of_rank(None, "node:3"),
        helper,
    ];
    let rules = [PlaceRule::parse("mapping>=1M=node:2", &[]).expect("rule")];
    let machine = machine();
    let mut target = target(&machine, 4);
    target.pinning = Pinning::Teams;
    let programs = [image];
    let compact = translate(&plans, &rules, &target, &programs).expect("translation");
    let [image] = &programs;
    let reference = Reference::decode(&compact);
    let node = |module, rank, seen: &ObservedObject<'_>| {
        reference
            .evaluate(module, rank, seen, 1 << 20)
            .map(|verdict| nodes(&verdict)[0])
    };
    let any = heap(image, 0);
    assert_eq!(node(identity(image), Some(0), &any), Some(0));
    assert_eq!(node(identity(image), Some(1), &any), Some(1));
    assert_eq!(node(identity(image), Some(9), &any), Some(3));
    assert_eq!(
        node(identity(image), Some(9), &ObservedObject::Mapping),
        Some(2),
        "rules by hand are everywhere"
    );
    assert_eq!(node(("", "sh"), None, &ObservedObject::Mapping), Some(2));
    assert_eq!(node(("", "sh"), None, &any), None);
    let table = ObservedObject::Static {
        module: ("beef", "helper"),
        offset: 0x4000,
    };
    assert_eq!(node(("beef", "helper"), None, &table), Some(2));
    assert!(
        compact
            .warnings
            .iter()
            .any(|warning| warning.contains("plan for helper is used where")),
        "{:?}",
        compact.warnings
    );
    // libgomp is not among the program's libraries, so it is recognised by the planned build-id.
    let pins = reference.pins(identity(image), Some(1));
    let short: Vec<(u64, u32, u32)> = pins
        .iter()
        .map(|&(_, offset, index, cpu)| (offset, index, cpu))
        .collect();
    assert_eq!(
        short,
        [(0, 0, 0), (0x1d80, 0, 1), (0x1d80, 1, 2), (0x1d80, 2, 3)],
        "the main thread, and those that are created"
    );
    assert_eq!(reference.pins(("", "sh"), None), []);
    target.pinning = Pinning::CreationOrder;
    let compact = translate(&plans[..1], &[], &target, &programs).expect("translation");
    let reference = Reference::decode(&compact);
    let pin = |index: u32| (u32::MAX, 0, index, index);
    assert_eq!(
        reference.pins(("", "sh"), None),
        (0..4).map(pin).collect::<Vec<_>>()
    );
}

#[test]
fn commands_are_found_or_said_not_to_be() {
    let compiled = Compiled::new();
    let path = compiled.program("prog", &[]);
    let search = search();
    let message = |command: &OsStr| {
        ProgramImage::load(command, &search)
            .expect_err("no program")
            .to_string()
    };
    assert_eq!(
        message(OsStr::new("no-such-command-7")),
        "no-such-command-7: command not found on PATH"
    );
    assert_eq!(
        message(OsStr::new("./no/such")),
        "./no/such: command not found"
    );
    assert!(message(OsStr::new("")).contains("command not found"));
    assert!(message(compiled.path("").as_os_str()).contains("it is a folder"));
    let script = compiled.path("script");
    fs::write(
        &script,
        format!("#!/usr/bin/env sh\nexec {}\n", path.display()),
    )
    .expect("script");
    assert!(message(script.as_os_str()).contains("not executable"));
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("executable");
    let image = load(&script);
    assert!(image.is_script);
    assert_eq!(image.identity(&[]).executable, "script");
    let error = by_hand("symbol:cvar=block", &[image], 4).expect_err("script");
    assert!(
        error
            .to_string()
            .contains("is a script, and its interpreter"),
        "{error}"
    );
    assert_eq!(
        resolve_command(path.as_os_str(), &search).expect("path"),
        path
    );
    // A launcher's program is found among the arguments.
    let command: Vec<OsString> = vec![
        "env".into(),
        "A=1".into(),
        path.clone().into(),
        "100".into(),
    ];
    let programs = ProgramImage::load_command(&command, &search).expect("programs");
    assert_eq!(programs.len(), 2);
    by_hand("symbol:cvar=block", &programs, 4).expect("found in the second");
    let text = compiled.path("text");
    fs::write(&text, "not a program").expect("file");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).expect("executable");
    assert!(
        message(text.as_os_str()).contains("expected a 64-bit ELF program"),
        "{}",
        message(text.as_os_str())
    );
}

#[test]
fn a_static_program_is_known_as_such() {
    let compiled = Compiled::new();
    let source = compiled.path("small.c");
    fs::write(
        &source,
        "double table[65536]; int main(void) { return (int)table[0]; }\n",
    )
    .expect("source");
    for (name, flags) in [("static", "-static"), ("static-pie", "-static-pie")] {
        let path = compiled.path(name);
        let status = std::process::Command::new("gcc")
            .arg(flags)
            .arg("-o")
            .arg(&path)
            .arg(&source)
            .status();
        assert!(status.expect("gcc").success());
        let image = load(&path);
        assert!(image.program.is_static && image.libraries().is_empty());
        by_hand("symbol:table=block", &[image], 4).expect("symbol");
    }
}
