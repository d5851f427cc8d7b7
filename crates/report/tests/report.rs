//! Tests reports of a recording that contains everything.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its beginning to its end"
)]

use nearpage_attribution::{
    Affinity, Attribution, Cell, Hot, ObjectGroup, ObjectName, OperationTotals, Pattern, Sampling,
    Team, ThreadTotals, Totals,
};
use nearpage_machine::CpuId;
use nearpage_recording::trace::{ChainShare, HotPages, ReadChains, ReadMostly, TraceStatistics};
use nearpage_recording::{
    CallSite, CallSiteId, Frame, Module, ModuleId, Object, ObjectId, ObjectKind, SampleCounts,
    Source, Tables, Thread, ThreadIndex,
};
use nearpage_report::{Content, Count, GroupBy, Sort, TextOptions, heatmap, json, text, width};

fn frame(module: u32, function: &str, file: &str, line: u32) -> Frame {
    Frame {
        module: Some(ModuleId(module)),
        offset: 0x1234,
        function: function.to_owned(),
        file: file.to_owned(),
        line,
        inlined: false,
    }
}

fn tables() -> Tables {
    let module = |path: &str| Module {
        path: path.to_owned(),
        build_id: String::new(),
    };
    let thread = |index: u32| Thread {
        pid: 100,
        tid: 100 + index,
        name: "lu".to_owned(),
        born_ns: 0,
        died_ns: u64::MAX,
        order: index,
        start: None,
        start_function: String::new(),
        team_index: index,
        team: "openmp".to_owned(),
        cpus: vec![],
        counts: SampleCounts::default(),
    };
    let symbol = Object {
        kind: ObjectKind::Static,
        name: "cvar".to_owned(),
        pid: 100,
        address: 0x60_0000,
        size_bytes: 558 << 20,
        born_ns: 0,
        died_ns: u64::MAX,
        weight: 1.0,
        call_site: None,
        thread: None,
        order: 0,
        module: Some(ModuleId(0)),
        module_offset: 0x4000,
        same_memory_as: None,
    };
    Tables {
        objects: vec![symbol],
        threads: (0..32).map(thread).collect(),
        modules: vec![
            module("/home/user/bin/lu"),
            module("/lib/x86_64-linux-gnu/libc.so.6"),
        ],
        call_sites: vec![
            CallSite {
                frames: vec![
                    frame(1, "__libc_malloc", "malloc.c", 3300),
                    frame(0, "main", "/src/cg.c", 120),
                ],
            },
            CallSite {
                frames: vec![frame(
                    0,
                    "std::vector<std::map<std::string, std::unique_ptr<行列<double>>>, arena::allocator<char>>::\x1b[2J_M_realloc_insert",
                    "/src/\r\u{202e}vector.tcc",
                    7,
                )],
            },
        ],
        ..Tables::default()
    }
}

fn operations(count: f64, remote: f64, cost_ns: f64) -> OperationTotals {
    OperationTotals {
        count,
        remote,
        node_known: count,
        cost_ns,
        remote_cost_ns: cost_ns * remote / count.max(1.0),
    }
}

fn group(
    kind: ObjectKind,
    name: ObjectName,
    size_bytes: u64,
    loads: f64,
    stores: f64,
    pattern: Pattern,
) -> ObjectGroup {
    ObjectGroup {
        kind,
        name,
        size_bytes,
        instances: 1,
        listed_instances: vec![],
        loads: operations(loads, loads / 2.0, loads * 1e6),
        stores: operations(stores, 0.0, stores * 1e6),
        threads: vec![
            (ThreadIndex(0), loads / 2.0, stores, 6e8),
            (ThreadIndex(3), loads / 2.0, 0.0, 4e8),
        ],
        hot: vec![Hot {
            module: Some(ModuleId(0)),
            offset: 0x1500,
            cost_ns: loads * 5e5,
            accesses: loads / 2.0,
        }],
        affinity: Affinity::default(),
        first_touches: vec![],
        touchers: vec![],
        uses: vec![],
        sibling: None,
        is_shared_memory: false,
        pattern,
    }
}

fn attribution() -> Attribution {
    let mut cvar = group(
        ObjectKind::Static,
        ObjectName::Symbol(ModuleId(0), 0x4000),
        558 << 20,
        412_000.4,
        103_000.6,
        Pattern::BlockCyclic {
            team: 0,
            block_bytes: 5 << 20,
            period_bytes: 160 << 20,
        },
    );
    cvar.listed_instances = vec![ObjectId(0)];
    let cell = |page, thread, loads| Cell {
        page,
        thread: ThreadIndex(thread),
        loads,
        stores: 1.0,
        samples: loads + 1.0,
        cost_ns: loads * 1e6,
    };
    cvar.affinity = Affinity {
        page_bytes: 4096,
        pages: 142_848,
        cells: vec![cell(0, 0, 90.0), cell(0, 1, 10.0), cell(1280, 1, 50.0)],
        initialisation: vec![cell(0, 0, 5.0)],
        sample_weight: 1.0,
    };
    let site = |site| ObjectName::CallSite(CallSiteId(site));
    let mut vector = group(
        ObjectKind::Heap,
        site(1),
        96 << 10,
        812.0,
        0.0,
        Pattern::ReadShared,
    );
    vector.instances = 12;
    vector.hot = vec![Hot {
        module: None,
        offset: 0x7fff_0000,
        cost_ns: 1e8,
        accesses: 100.0,
    }];
    let threads = (0..32).map(|thread| ThreadTotals {
        loads: operations(20_000.0 - f64::from(thread), 100.0, 2e10),
        stores: operations(5000.0, 0.0, 5e9),
        cpus: vec![
            (CpuId(thread), 20_000.0),
            (CpuId(thread + 1), 5000.0 - f64::from(thread)),
        ],
    });
    Attribution {
        counts: SampleCounts {
            samples: 900_000,
            accesses: 800_000,
            compute: 98_000,
            undecoded: 1500,
            kernel: 10,
            lost: 500,
        },
        totals: Totals {
            accesses: 800_000.0,
            heap: 281_000.4,
            heap_unresolved: 12.3,
            statics: 515_000.9,
            mapping: 0.0,
            stack: 3000.4,
            tls: 0.0,
            code: 500.0,
            unknown: 486.0,
        },
        objects: vec![
            cvar,
            group(
                ObjectKind::Heap,
                site(0),
                80 << 20,
                240_000.0,
                40_000.0,
                Pattern::Block {
                    team: 0,
                    block_bytes: (80 << 20) / 32,
                },
            ),
            group(
                ObjectKind::Stack,
                ObjectName::Other("stack".to_owned()),
                8 << 20,
                3000.0,
                0.0,
                Pattern::PrivateEach,
            ),
            vector,
            group(
                ObjectKind::Mapping,
                ObjectName::Other("/data/input.bin".to_owned()),
                17,
                9.0,
                0.0,
                Pattern::Private {
                    thread: ThreadIndex(0),
                },
            ),
        ],
        threads: threads.collect(),
        teams: vec![Team {
            name: "openmp".to_owned(),
            pid: 100,
            threads: (0..32).map(ThreadIndex).collect(),
            is_joined: false,
        }],
        page_bytes: 4096,
    }
}

fn locate(_: ModuleId, _: u64) -> Vec<Frame> {
    vec![frame(0, "rhs", "/src/LU/rhs.c", 84)]
}

fn drawn(object: &str, options: &TextOptions) -> Result<String, String> {
    let (attribution, tables) = (attribution(), tables());
    let content = Content {
        attribution: &attribution,
        tables: &tables,
        source: Source::Clock,
        notes: &[],
        nodes: 2,
        trace: None,
        sampling: None,
    };
    heatmap(&content, options, object)
}

#[test]
fn a_heatmap_is_of_the_object_that_is_named_and_fits() {
    for columns in [60, 100] {
        let options = TextOptions {
            width: columns,
            top: 4,
            ..TextOptions::default()
        };
        let costliest = drawn("", &options).expect("an object");
        assert!(
            costliest.lines().all(|line| width(line) <= columns),
            "{costliest}"
        );
        assert_eq!(drawn("CVA", &options).as_ref(), Ok(&costliest), "cvar");
        insta::assert_snapshot!(format!("heatmap_{columns}"), costliest);
    }
    let options = TextOptions::default();
    let unknown = drawn("nothing", &options).expect_err("no such object");
    assert!(
        unknown.starts_with("no object is called `nothing`; the costliest: cvar"),
        "{unknown}"
    );
    let several = drawn("a", &options).expect_err("several");
    assert!(several.contains(" objects contain `a`: cvar"), "{several}");
}

#[test]
fn call_sites_are_a_tree() {
    for columns in [60, 100] {
        let report = render(&TextOptions {
            width: columns,
            by: GroupBy::CallSite,
            ..TextOptions::default()
        });
        assert!(
            report.lines().all(|line| width(line) <= columns),
            "{report}"
        );
        insta::assert_snapshot!(format!("call_sites_{columns}"), report);
    }
}

/// The report with all rows, including small ones.
fn render(options: &TextOptions) -> String {
    let all = TextOptions {
        share_min: 0.0,
        ..*options
    };
    folded(&all)
}

fn folded(options: &TextOptions) -> String {
    let (attribution, tables) = (attribution(), tables());
    let notes = ["perf_event_paranoid is 2: only this user's programs were sampled; set it to 1 for the kernel's part".to_owned()];
    let content = Content {
        attribution: &attribution,
        tables: &tables,
        source: Source::Clock,
        notes: &notes,
        nodes: 2,
        trace: None,
        sampling: None,
    };
    text(&content, options, &mut locate)
}

#[test]
fn objects_below_half_a_percent_are_folded_unless_asked_for() {
    let options = TextOptions::default();
    let (short, all) = (folded(&options), render(&options));
    let (_, line) = short.split_once("… and ").expect("some are folded");
    assert!(
        line.contains(" more below 0.5 % each, ") && line.contains("(--all)"),
        "{line}"
    );
    assert!(
        short.contains("cvar") && short.lines().count() < all.lines().count(),
        "{all}"
    );
    assert!(!all.contains("--all"), "{all}");
    // All threads have rows, whatever their share.
    let threads = TextOptions {
        by: GroupBy::Thread,
        share_min: 0.9,
        ..options
    };
    assert_eq!(
        folded(&threads),
        folded(&TextOptions {
            share_min: 0.0,
            ..threads
        })
    );
}

#[test]
fn remote_shares_have_colour_only_where_it_is_wanted() {
    let plain = render(&TextOptions::default());
    let coloured = render(&TextOptions {
        colour: true,
        ..TextOptions::default()
    });
    assert!(!plain.contains('\x1b'), "{plain}");
    let stripped: String = coloured
        .split('\x1b')
        .enumerate()
        .map(|(at, part)| {
            if at == 0 {
                part
            } else {
                part.split_once('m').map_or("", |(_, rest)| rest)
            }
        })
        .collect();
    assert_eq!(stripped, plain, "columns are where they are without");
    assert!(
        coloured.contains("\x1b[31m") || coloured.contains("\x1b[33m"),
        "{coloured}"
    );
}

#[test]
fn objects_at_several_widths() {
    for columns in [60, 80, 120, 200] {
        let report = render(&TextOptions {
            width: columns,
            ..TextOptions::default()
        });
        assert!(
            report.lines().all(|line| width(line) <= columns),
            "{report}"
        );
        insta::assert_snapshot!(format!("objects_{columns}"), report);
    }
}

#[test]
fn threads_and_pages() {
    let threads = TextOptions {
        by: GroupBy::Thread,
        sort: Sort::Remote,
        top: 3,
        ..TextOptions::default()
    };
    insta::assert_snapshot!(render(&threads));
    insta::assert_snapshot!(render(&TextOptions {
        by: GroupBy::Page,
        sort: Sort::Accesses,
        ..TextOptions::default()
    }));
}

#[test]
fn without_accesses_there_is_no_table() {
    let attribution = Attribution {
        objects: vec![],
        threads: vec![],
        totals: Totals::default(),
        counts: SampleCounts::default(),
        ..attribution()
    };
    let tables = tables();
    for by in [
        GroupBy::Object,
        GroupBy::Thread,
        GroupBy::Page,
        GroupBy::Matrix,
        GroupBy::CallSite,
    ] {
        let content = Content {
            attribution: &attribution,
            tables: &tables,
            source: Source::Clock,
            notes: &["no samples".to_owned()],
            nodes: 1,
            trace: None,
            sampling: None,
        };
        let options = TextOptions {
            by,
            width: 120,
            ..TextOptions::default()
        };
        assert_eq!(
            text(&content, &options, &mut locate),
            "0 accesses, 0 of 32 threads, source clock, 0 samples lost, 0 undecoded, 0 computation\n\nno samples\n"
        );
    }
}

/// Frames of zlib without debug information: several calls of malloc in a function that one line calls, and one call
/// that is reached in two ways through one function.
#[test]
fn call_sites_that_no_frames_name_tells_apart_are_numbered_in_the_order_of_the_code() {
    let at = |offset, function| Frame {
        offset,
        ..frame(0, function, "", 0)
    };
    let main = || frame(0, "main", "/src/pigz.c", 120);
    are_named(
        [
            "main pigz.c:120 (deflateInit2_, 2nd of 2)",
            "main pigz.c:120 (deflateInit2_, 1st of 2)",
        ],
        [0x20, 0x10].map(|offset| vec![at(offset, "deflateInit2_"), main()]),
    );
    // The innermost frame that differs is named.
    let through = |offset| vec![at(0x5, "deflateInit2_"), at(offset, "evaluate"), main()];
    are_named(
        [
            "main pigz.c:120 (evaluate, 1st of 2)",
            "main pigz.c:120 (evaluate, 2nd of 2)",
        ],
        [0x10, 0x20].map(through),
    );
    let other = vec![at(0x6, "deflateInit2_"), at(0x10, "evaluate"), main()];
    are_named(
        [
            "main pigz.c:120 (deflateInit2_, 1st of 3)",
            "main pigz.c:120 (deflateInit2_, 2nd of 3)",
            "main pigz.c:120 (deflateInit2_, 3rd of 3)",
        ],
        [through(0x10), through(0x20), other],
    );
    // Two vectors on one line of a program; both have the line's name.
    let on_line = |offset| {
        let main = frame(0, "main", "/src/two.c", 5);
        vec![Frame { offset, ..main }]
    };
    are_named(
        [
            "main two.c:5 (malloc, 1st of 2)",
            "main two.c:5 (malloc, 2nd of 2)",
        ],
        [0x10, 0x20].map(on_line),
    );
    // Two vectors that one constructor makes on one line, and one vector that grows in two ways.
    let constructor = |offset| {
        let join = frame(0, "Join::Join(int)", "/src/join.cpp", 20);
        let main = frame(0, "main", "/src/join.cpp", 44);
        vec![Frame { offset, ..join }, main]
    };
    are_named(
        [
            "main join.cpp:44 (Join::Join(…), 1st of 2)",
            "main join.cpp:44 (Join::Join(…), 2nd of 2)",
        ],
        [0x1b92, 0x1ba0].map(constructor),
    );
    let inside =
        |offset, function| vec![at(offset, function), frame(0, "main", "/src/join.cpp", 44)];
    are_named(
        [
            "main join.cpp:44 (std::vector<int>::reserve(…), 1st of 2)",
            "main join.cpp:44 (std::vector<int>::resize(…), 2nd of 2)",
        ],
        [
            inside(0x10, "std::vector<int>::reserve(unsigned long)"),
            inside(0x20, "std::vector<int>::resize(unsigned long)"),
        ],
    );
}

#[test]
fn uncertain_patterns_are_marked_and_one_line_says_what_to_record() {
    let (tables, attribution) = (tables(), attribution());
    let trace = by_the_clock(&attribution, &tables);
    let samples = Content {
        sampling: Some(Sampling {
            seconds: 2.0,
            rate_hz: 500.0,
        }),
        ..trace
    };
    for width in [60, 80, 120] {
        let options = TextOptions {
            width,
            ..TextOptions::default()
        };
        let report = text(&samples, &options, &mut |_, _| Vec::new());
        let words = report.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("not sure (0 samples)"), "{report}");
        assert!(
            words.contains("1 object has too few samples to be sure"),
            "{report}"
        );
        assert!(
            report.lines().all(|line| line.chars().count() <= width),
            "{report}"
        );
        let report = text(&trace, &options, &mut |_, _| Vec::new());
        assert!(!report.contains("sure"), "{report}");
    }
    let parsed = |content: &Content| -> serde_json::Value {
        serde_json::from_str(&json(content, usize::MAX, GroupBy::Object, &mut locate)).unwrap()
    };
    let report = parsed(&samples);
    let of = |number: usize, key: &str| &report["objects"][number]["pattern"][key];
    assert_eq!(
        (of(0, "samples"), of(0, "confidence")),
        (&153.into(), &1.0.into())
    );
    // This pattern has no sample on the object's pages.
    assert_eq!(
        (of(1, "samples"), of(1, "confidence")),
        (&0.into(), &0.0.into())
    );
    assert!(report["remedy"].is_string());
    let report = parsed(&trace);
    assert_eq!(report["objects"][0]["pattern"]["samples"], 153);
    assert!(report["objects"][0]["pattern"]["confidence"].is_null());
    assert!(report["remedy"].is_null());
}

#[test]
fn one_line_says_how_generated_code_gets_names() {
    let (mut tables, mut attribution) = (tables(), attribution());
    let hot = &mut attribution.objects[0].hot[0];
    (hot.module, hot.offset) = (None, 0x7f00_0000_1234);
    let report = |tables: &Tables| {
        let options = TextOptions::default();
        text(&by_the_clock(&attribution, tables), &options, &mut locate)
    };
    let names = "/tmp/perf-PID.map";
    assert!(
        !report(&tables).contains(names),
        "the address may be of anything"
    );
    tables.objects.push(Object {
        kind: ObjectKind::Code,
        name: "[jit]".to_owned(),
        address: 0x7f00_0000_0000,
        size_bytes: 0x1234,
        ..tables.objects[0].clone()
    });
    assert!(
        !report(&tables).contains(names),
        "the code ends before the address"
    );
    tables.objects.last_mut().unwrap().size_bytes += 1;
    let report = report(&tables);
    assert!(report.contains("0x7f0000001234"), "{report}");
    assert_eq!(report.matches(names).count(), 1, "{report}");
}

#[test]
fn what_nearpage_does_in_a_program_is_called_so() {
    let (mut tables, attribution) = (tables(), attribution());
    let module = &mut tables.modules[0];
    module.path = "/opt/nearpage/libnearpage_preload.so".to_owned();
    let content = by_the_clock(&attribution, &tables);
    let report = text(&content, &TextOptions::default(), &mut |_, _| Vec::new());
    for name in ["data of nearpage itself", "most in nearpage itself"] {
        assert!(report.contains(name), "{report}");
    }
    assert!(!report.contains("cvar"), "{report}");
}

/// Content for a machine with one node.
fn by_the_clock<'a>(attribution: &'a Attribution, tables: &'a Tables) -> Content<'a> {
    Content {
        attribution,
        tables,
        source: Source::Clock,
        notes: &[],
        nodes: 1,
        trace: None,
        sampling: None,
    }
}

/// Asserts that call sites with these frames have these names.
fn are_named<const N: usize>(names: [&str; N], frames: [Vec<Frame>; N]) {
    let mut tables = tables();
    tables.call_sites = frames.map(|frames| CallSite { frames }).into();
    let mut attribution = attribution();
    let first = attribution.objects[1].clone();
    attribution
        .objects
        .extend((2..N as u32).map(|site| ObjectGroup {
            name: ObjectName::CallSite(CallSiteId(site)),
            ..first.clone()
        }));
    let content = by_the_clock(&attribution, &tables);
    let report = json(&content, usize::MAX, GroupBy::Object, &mut locate);
    for name in names {
        assert!(report.contains(name), "{report}");
    }
}

#[test]
fn json_by_page_has_the_matrix_of_pages_and_threads() {
    let (attribution, tables) = (attribution(), tables());
    let content = by_the_clock(&attribution, &tables);
    let parsed = |by| {
        let text = json(&content, 1, by, &mut locate);
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")
    };
    assert!(parsed(GroupBy::Object)["objects"][0].get("pages").is_none());
    let report = parsed(GroupBy::Page);
    let affinity = &attribution.objects[0].affinity;
    let pages = report["objects"][0]["pages"].as_array().expect("pages");
    let all = affinity.cells.iter().chain(&affinity.initialisation);
    let loads: f32 = all.clone().map(|cell| cell.loads).sum();
    let found = pages
        .iter()
        .flat_map(|page| page["threads"].as_object().expect("by thread"));
    let found: u64 = found
        .map(|(_, uses)| uses["loads"].as_u64().expect("loads"))
        .sum();
    assert_eq!(found, loads.round() as u64);
    let first = all.map(|cell| cell.page).min().expect("a cell");
    assert_eq!(pages[0]["at_bytes"], u64::from(first) * affinity.page_bytes);
}

/// Column titles, and the sum of all cells, of a matrix's text.
fn matrix_of(text: &str) -> (Vec<String>, f64) {
    let lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let amount = |cell: &str| match cell.strip_suffix('k') {
        Some(thousands) => 1000.0 * thousands.parse::<f64>().expect("a number"),
        None => cell.parse::<f64>().unwrap_or(0.0),
    };
    let (mut threads, mut sum, mut columns) = (Vec::new(), 0.0, 0);
    for words in lines {
        match words.as_slice() {
            ["at", tids @ ..] => {
                columns = tids.len();
                threads.extend(tids.iter().map(|tid| (*tid).to_owned()));
            }
            row if columns > 0 && row.len() > columns => {
                sum += row[row.len() - columns..]
                    .iter()
                    .map(|cell| amount(cell))
                    .sum::<f64>();
            }
            _ => columns = 0,
        }
    }
    (threads, sum)
}

#[test]
fn matrices_have_every_access_however_few_rows_and_columns_there_are() {
    let attribution = attribution();
    let affinity = &attribution.objects[0].affinity;
    let cells = || affinity.cells.iter().chain(&affinity.initialisation);
    let loads: f32 = cells().map(|cell| cell.loads).sum();
    let users: std::collections::BTreeSet<_> = cells()
        .filter(|cell| cell.loads > 0.0)
        .map(|cell| cell.thread)
        .collect();
    for (columns, top) in [(40, 3), (80, 20), (300, 100_000)] {
        let report = render(&TextOptions {
            by: GroupBy::Matrix,
            count: Count::Loads,
            width: columns,
            top,
            ..TextOptions::default()
        });
        assert!(
            report.lines().all(|line| width(line) <= columns),
            "{report}"
        );
        let first = report.split("\n\n").nth(1).expect("the first object's");
        let (threads, sum) = matrix_of(first);
        assert_eq!(threads.len(), users.len(), "{first}");
        assert!(
            (sum / f64::from(loads) - 1.0).abs() < 0.02,
            "{sum} of {loads}: {first}"
        );
    }
}

#[test]
fn stores_alone_leave_out_what_only_loads() {
    let report = render(&TextOptions {
        count: Count::Stores,
        top: 1,
        ..TextOptions::default()
    });
    assert!(
        !report.contains("loads") && report.contains("… and 1 more, 28 % of the cost"),
        "{report}"
    );
}

#[test]
fn nothing_hostile_gets_through_and_colour_is_asked_for() {
    for by in [
        GroupBy::Object,
        GroupBy::Thread,
        GroupBy::Page,
        GroupBy::Matrix,
    ] {
        let plain = render(&TextOptions {
            by,
            ..TextOptions::default()
        });
        assert!(plain.chars().all(|c| c == '\n' || !c.is_control()));
        assert!(
            render(&TextOptions {
                by,
                colour: true,
                ..TextOptions::default()
            })
            .contains("\x1b[1m")
        );
    }
}

/// Statistics of a trace in which nine tenths of the data misses are in chains of 8 and more reads.
fn statistics() -> TraceStatistics {
    let share = |length, share| ChainShare { length, share };
    TraceStatistics {
        data_misses: 2_190_000,
        fetch_misses: 313,
        code_pages: 9,
        data_pages: 30,
        tlb_misses: 40_000,
        chains: ReadChains {
            shares: vec![
                share(1, 0.95),
                share(2, 0.94),
                share(4, 0.92),
                share(8, 0.9),
            ],
            longest: 15,
        },
        hot_pages: HotPages {
            pages: 1255,
            by_cache_misses: (0..=100).map(|at| 1.0 - 0.9f64.powi(at)).collect(),
            by_tlb_misses: (0..=100).map(|at| f64::from(at) / 100.0).collect(),
            tlb_misses: (0..=100).map(|at| 1.0 - 0.8f64.powi(at)).collect(),
        },
        read_mostly: ReadMostly {
            page: 0.16,
            line: 0.17,
            word: 0.26,
            writes: 0.413,
            one_page_in: 4,
        },
        system: None,
    }
}

#[test]
fn a_full_recording_has_chains_hot_pages_and_read_mostly_shares() {
    let (attribution, tables, statistics) = (attribution(), tables(), statistics());
    let content = Content {
        attribution: &attribution,
        tables: &tables,
        source: Source::Tracer,
        notes: &[],
        nodes: 2,
        trace: Some(&statistics),
        sampling: None,
    };
    let options = TextOptions {
        top: 1,
        ..TextOptions::default()
    };
    let report = text(&content, &options, &mut locate);
    assert!(report.lines().all(|line| width(line) <= 80), "{report}");
    insta::assert_snapshot!(report);
    let report: serde_json::Value =
        serde_json::from_str(&json(&content, 0, GroupBy::Object, &mut locate)).expect("valid JSON");
    let trace = &report["trace"];
    assert_eq!(
        keys(trace),
        [
            "code_pages",
            "data_misses",
            "data_pages",
            "fetch_misses",
            "hot_pages",
            "read_chains",
            "read_mostly",
            "tlb_misses"
        ]
    );
    assert_eq!(trace["read_chains"]["shares"][3]["length"], 8);
    assert_eq!(trace["hot_pages"]["by_tlb_misses"][50], 0.5);
    assert_eq!(trace["hot_pages"]["tlb_misses"][0], 0.0);
    assert_eq!(trace["hot_pages"]["tlb_misses"][1], 1.0 - 0.8);
    assert_eq!(trace["read_mostly"]["one_page_in"], 4);
}

/// Keys of an object as JSON, in order of appearance in the text.
fn keys(value: &serde_json::Value) -> Vec<&str> {
    value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn json_has_every_key_and_its_counts_add_up() {
    let (attribution, tables) = (attribution(), tables());
    let content = Content {
        attribution: &attribution,
        tables: &tables,
        source: Source::Clock,
        notes: &["source clock, not pmu: there is none".to_owned()],
        nodes: 2,
        trace: None,
        sampling: None,
    };
    let written = json(&content, usize::MAX, GroupBy::Object, &mut locate);
    insta::assert_snapshot!(written.chars().take(700).collect::<String>());
    let report: serde_json::Value = serde_json::from_str(&written).expect("valid JSON");

    let sorted = |mut keys: Vec<&'static str>| {
        keys.sort_unstable();
        keys
    };
    let expect = |value: &serde_json::Value, expected: Vec<&'static str>| {
        let mut found = keys(value);
        found.sort_unstable();
        assert_eq!(found, sorted(expected));
    };
    expect(
        &report,
        vec![
            "version",
            "accesses",
            "cached",
            "compute",
            "notes",
            "lost",
            "undecoded",
            "source",
            "attribution",
            "objects",
            "threads",
        ],
    );
    expect(
        &report["attribution"],
        vec![
            "heap",
            "heap_unresolved",
            "static",
            "mapping",
            "stack",
            "tls",
            "code",
            "unknown",
        ],
    );
    let object = &report["objects"][1];
    expect(
        object,
        vec![
            "name",
            "kind",
            "size_bytes",
            "instances",
            "call_site",
            "accesses",
            "cost_ns",
            "cost_share",
            "loads",
            "stores",
            "remote",
            "threads",
            "pattern",
            "hot",
        ],
    );
    expect(
        &object["call_site"][1],
        vec!["function", "file", "line", "module", "offset"],
    );
    for operations in [&object["loads"], &object["stores"]] {
        expect(
            operations,
            vec!["count", "remote", "node_known", "cost_ns", "remote_cost_ns"],
        );
    }
    expect(
        &object["threads"]["103"],
        vec!["loads", "stores", "cost_ns"],
    );
    expect(
        &object["pattern"],
        vec![
            "kind",
            "samples",
            "confidence",
            "block_bytes",
            "period_bytes",
            "part_bytes",
            "segments",
        ],
    );
    expect(
        &object["hot"][0],
        vec!["function", "file", "line", "cost_ns"],
    );
    expect(
        &report["threads"][0],
        vec![
            "tid",
            "name",
            "accesses",
            "remote",
            "node_known",
            "cost_ns",
            "remote_cost_ns",
            "cpus",
        ],
    );

    let number = |value: &serde_json::Value| value.as_u64().expect("a whole number");
    let kinds: u64 = report["attribution"]
        .as_object()
        .unwrap()
        .values()
        .map(number)
        .sum();
    assert_eq!(kinds, number(&report["accesses"]));
    for object in report["objects"].as_array().unwrap() {
        let parts = number(&object["loads"]["count"]) + number(&object["stores"]["count"]);
        assert_eq!(parts, number(&object["accesses"]));
    }
    for thread in report["threads"].as_array().unwrap() {
        let cpus: u64 = thread["cpus"]
            .as_object()
            .unwrap()
            .values()
            .map(number)
            .sum();
        assert_eq!(cpus, number(&thread["accesses"]));
    }
    assert_eq!(report["objects"][0]["pattern"]["period_bytes"], 160 << 20);
    assert_eq!(report["objects"][1]["name"], "main cg.c:120 (malloc)");
}
