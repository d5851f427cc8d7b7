//! C source of generated programs.

use super::kind::{Kind, Shares};
use super::program::{Initialiser, LINE_BYTES, Object, Program, Storage, Style};

/// Header of all programs, `program.h`.
pub const HEADER: &str = include_str!("program.h");

/// C source of a program, which includes [`HEADER`].
pub fn source(program: &Program) -> String {
    let mut text = format!("/* {program}. */\n#include \"program.h\"\n");
    if program.style.is_openmp() {
        text += "#include <omp.h>\n\n#define WAIT_FOR_TEAM _Pragma(\"omp barrier\")\n";
    } else {
        text += "\nstatic pthread_barrier_t barrier;\n#define WAIT_FOR_TEAM pthread_barrier_wait(&barrier);\n";
    }
    for object in &program.objects {
        text += &definition(object);
    }
    for site in sites(program) {
        text += &allocation(&site);
    }
    text += &preparation(program);
    text + &threads(program)
}

/// Objects by call site, in order of the sites' first objects.
fn sites(program: &Program) -> Vec<Vec<&Object>> {
    let mut sites: Vec<Vec<&Object>> = Vec::new();
    for object in &program.objects {
        match sites.iter_mut().find(|site| site[0].site == object.site) {
            Some(site) => site.push(object),
            None => sites.push(vec![object]),
        }
    }
    sites
}

/// C functions about an object: its loop, a thread's own parts, and a thread's accesses in a pass.
fn definition(object: &Object) -> String {
    let Object { name, lines, .. } = object;
    let mut text = format!(
        "\n/* {}: {lines} lines, {:?}. */\n",
        object.kind.name(),
        object.storage
    );
    if object.storage == Storage::Static {
        let cells = lines * LINE_BYTES / 8;
        text += &format!("static double {name}[{cells}] __attribute__((aligned(4096)));\n");
    }
    text += &format!(
        "static struct object {name}_object = {{.name = \"{name}\"}};\nSWEEP({name})\n\n\
         static void own_{name}(size_t me, size_t pass, enum mode mode) {{\n    \
         size_t lines = {name}_object.lines;\n{}    (void)me, (void)pass, (void)lines;\n}}\n\n\
         static void use_{name}(size_t me, size_t pass) {{\n    \
         size_t lines = {name}_object.lines;\n{}    (void)pass, (void)lines;\n}}\n",
        own(object),
        uses(object)
    );
    text
}

/// C expression for a length that is `lines` at size 1.
fn scaled(object: &Object, lines: u64) -> String {
    match object.storage {
        Storage::Static => format!("(size_t){lines}"),
        _ => format!("{lines} * scale"),
    }
}

/// C loop over the rows from `first` to `end`, with the lines from `left` to `right` of each row.
fn by_row(name: &str, row: u64, [first, end]: [&str; 2], [left, right]: [&str; 2]) -> String {
    format!(
        "    for (size_t row = {first}; row < {end}; row++)\n        \
         sweep_{name}(me, row * {row} + {left}, row * {row} + {right}, 1, mode);\n"
    )
}

/// C loop over the chunks for which `condition` holds.
fn by_chunk(name: &str, chunk: u64, condition: &str) -> String {
    format!(
        "    for (size_t chunk = 0; chunk * {chunk} < lines; chunk++)\n        if ({condition})\n            \
         sweep_{name}(me, chunk * {chunk}, smaller((chunk + 1) * {chunk}, lines), 1, mode);\n"
    )
}

/// C code for a share proportional to the thread's weight.
fn by_weight(name: &str, weights: &[u64]) -> String {
    let list: Vec<String> = weights.iter().map(u64::to_string).collect();
    let count = weights.len();
    let at = |number| format!("weighted_share(lines, {number}, team, weights, {count})");
    format!(
        "    static const size_t weights[] = {{{}}};\n    sweep_{name}(me, {}, {}, 1, mode);\n",
        list.join(", "),
        at("me"),
        at("me + 1")
    )
}

/// C code for a share of each of several arrays.
fn by_part(object: &Object, parts: &[u64]) -> String {
    let name = &object.name;
    let mut text = "    size_t begin = 0;\n".to_owned();
    for &part in parts {
        let part = scaled(object, part);
        text += &format!(
            "    sweep_{name}(me, begin + share({part}, me, team), begin + share({part}, me + 1, team), 1, mode);\n    \
             begin += {part};\n"
        );
    }
    text
}

/// C code for the parts that a thread uses alone.
fn own(object: &Object) -> String {
    let name = object.name.as_str();
    let share = |function: &str, begin: &str, all: &str, number: &str| {
        format!(
            "    sweep_{name}(me, {begin}{function}({all}, {number}, team), \
             {begin}{function}({all}, {number} + 1, team), 1, mode);\n"
        )
    };
    let rows = |row: u64| {
        format!(
            "    sweep_{name}(me, share(lines / {row}, me, team) * {row}, share(lines / {row}, me + 1, team) * {row}, \
             1, mode);\n"
        )
    };
    let columns = |row: u64| {
        let parts = [0, 1].map(|more| format!("share({row}, me + {more}, team)"));
        let all_rows = format!("lines / {row}");
        by_row(name, row, ["0", &all_rows], [&parts[0], &parts[1]])
    };
    match object.kind {
        Kind::Block {
            shares,
            is_reversed,
        } => {
            let number = if is_reversed { "team - 1 - me" } else { "me" };
            let function = match shares {
                Shares::Even => "share",
                Shares::Full => "full_share",
            };
            share(function, "", "lines", number)
        }
        Kind::Unequal { ref weights } => by_weight(name, weights),
        Kind::Extent { head, used } => {
            let begin = format!("{} + ", scaled(object, head));
            share("share", &begin, &scaled(object, used), "me")
        }
        Kind::Padded { row, used } => {
            let rows = [0, 1].map(|more| format!("share(lines / {row}, me + {more}, team)"));
            by_row(name, row, [&rows[0], &rows[1]], ["0", &used.to_string()])
        }
        Kind::Halo { row }
        | Kind::Rows {
            row,
            is_cyclic: false,
        } => rows(row),
        Kind::Columns { row } => columns(row),
        Kind::Tiles { row } => {
            let rows =
                [0, 1].map(|more| format!("share(lines / {row}, me / across + {more}, down)"));
            let columns = [0, 1].map(|more| format!("share({row}, me % across + {more}, across)"));
            let tiles = by_row(name, row, [&rows[0], &rows[1]], [&columns[0], &columns[1]]);
            format!("    size_t down = tile_rows(team), across = team / down;\n{tiles}")
        }
        Kind::Cyclic { block: chunk }
        | Kind::Rows {
            row: chunk,
            is_cyclic: true,
        } => by_chunk(name, chunk, "chunk % team == me"),
        Kind::Packed { ref parts } => by_part(object, parts),
        Kind::Pool { chunk } => by_chunk(name, chunk, "owner(chunk, team) == me"),
        Kind::Stolen { chunk } => by_chunk(name, chunk, "(owner(chunk, team) + pass) % team == me"),
        Kind::PrivateOne { thread } => {
            format!(
                "    if ({thread} % team == me)\n        sweep_{name}(me, 0, lines, 1, mode);\n"
            )
        }
        Kind::Transposed { row } => {
            format!(
                "    if (pass % 2) {{\n{}    }} else {{\n{}    }}\n",
                columns(row),
                rows(row)
            )
        }
        Kind::Grown
        | Kind::Arena { .. }
        | Kind::Private { .. }
        | Kind::MasterWorker
        | Kind::OneWriter { .. }
        | Kind::ReadShared
        | Kind::Shared => share("share", "", "lines", "me"),
    }
}

/// C code for a thread's accesses in a pass.
fn uses(object: &Object) -> String {
    let name = object.name.as_str();
    let mode = object.operation.name();
    let everywhere = |fraction: u64, mode: &str| {
        format!(
            "    size_t stride = larger(team / {fraction}, 1);\n    \
             sweep_{name}(me, (me + pass) % stride, lines, stride, {mode});\n"
        )
    };
    let mut text = match object.kind {
        Kind::OneWriter { thread } => format!(
            "    if ({thread} % team == me)\n        sweep_{name}(me, 0, lines, 1, STORE);\n{}",
            everywhere(4, "LOAD")
        ),
        Kind::ReadShared | Kind::Shared => everywhere(2, mode),
        Kind::MasterWorker => format!(
            "    if (me == 0)\n        sweep_{name}(me, 0, lines, 1, STORE);\n    \
             own_{name}(me, pass, LOAD);\n    own_{name}(me, pass, LOAD);\n"
        ),
        _ => format!("    own_{name}(me, pass, {mode});\n"),
    };
    if let Kind::Halo { row } = object.kind {
        text += &format!(
            "    size_t first = share(lines / {row}, me, team) * {row}, end = share(lines / {row}, me + 1, team) * {row};\n    \
             if (first > 0)\n        sweep_{name}(me, first - {row}, first, 1, LOAD);\n    \
             if (end < lines)\n        sweep_{name}(me, end, end + {row}, 1, LOAD);\n"
        );
    }
    if object.has_noise {
        let (first, end) = extent(object);
        text += &format!(
            "    if (pass % team == me)\n        sweep_{name}(me, {first} + pass * 7 % 32, {end}, 32, LOAD);\n"
        );
    }
    text
}

/// C expressions for the first used line and the line after the last.
fn extent(object: &Object) -> (String, String) {
    match object.kind {
        Kind::Extent { head, used } => (scaled(object, head), scaled(object, head + used)),
        _ => ("0".to_owned(), "lines".to_owned()),
    }
}

/// C function that allocates the objects of a call site.
fn allocation(site: &[&Object]) -> String {
    let name = site[0].site.as_str();
    let call = match site[0].storage {
        Storage::Heap => "checked(malloc(bytes))",
        Storage::Zeroed => "checked(calloc(bytes, 1))",
        Storage::Mapping => "mapped(bytes)",
        Storage::Static => return String::new(),
    };
    format!(
        "\nstatic __attribute__((noinline)) char *allocate_{name}(size_t bytes) {{ return {call}; }}\n"
    )
}

/// C expressions for the number of an object's pieces and the lines of a piece.
fn pieces(object: &Object) -> [String; 2] {
    let lines = scaled(object, object.lines);
    match object.kind {
        Kind::Rows { row, .. } => [format!("{lines} / {row}"), row.to_string()],
        Kind::Arena { chunk } => [
            format!("larger({lines} / {chunk} / team, 1) * team"),
            chunk.to_string(),
        ],
        Kind::Private { .. } => ["team".to_owned(), format!("{lines} / team")],
        _ => ["1".to_owned(), lines],
    }
}

/// C code that allocates and initialises the objects of a call site by the main thread, in one loop so that their
/// stacks are equal.
fn allocate_by_main(site: &[&Object]) -> String {
    let mut text = String::new();
    for object in site {
        let [pieces, piece_lines] = pieces(object);
        text += &format!(
            "    describe(&{}_object, {pieces}, {piece_lines});\n",
            object.name
        );
    }
    let Object { name, kind, .. } = site[0];
    if site[0].storage == Storage::Static {
        text += &format!("    {name}_object.piece[0] = (char *){name};\n");
    } else if *kind == Kind::Grown {
        text += &format!(
            "    size_t {name}_had = 0, {name}_lines = {name}_object.lines;\n    \
             for (size_t has = {name}_lines / 8; has <= {name}_lines; has *= 2) {{\n        \
             {name}_object.piece[0] = grow_{name}({name}_object.piece[0], has * LINE_BYTES);\n        \
             sweep_{name}(main_thread, {name}_had, has, 1, INITIALISE);\n        \
             {name}_had = has;\n    }}\n"
        );
        return text;
    } else if !site[0].is_allocated_by_threads() {
        let objects: Vec<String> = site
            .iter()
            .map(|one| format!("&{}_object", one.name))
            .collect();
        text += &format!(
            "    struct object *const {name}_site[] = {{{}}};\n    \
             for (size_t object = 0; object < {}; object++)\n        \
             for (size_t i = 0; i < {name}_site[object]->pieces; i++)\n            \
             {name}_site[object]->piece[i] = allocate_{name}({name}_site[object]->piece_lines * LINE_BYTES);\n",
            objects.join(", "),
            objects.len()
        );
    }
    let by_main = |one: &&&Object| one.initialiser == Initialiser::Main;
    for object in site.iter().filter(by_main) {
        let name = &object.name;
        let (first, end) = extent(object);
        let end = match end.as_str() {
            "lines" => format!("{name}_object.lines"),
            _ => end,
        };
        text += &format!("    sweep_{name}(main_thread, {first}, {end}, 1, INITIALISE);\n");
    }
    text
}

/// C code before the passes: the main thread's part, then each thread's.
fn preparation(program: &Program) -> String {
    let mut text = String::new();
    for object in program.objects.iter().filter(|one| one.kind == Kind::Grown) {
        let name = &object.name;
        text += &format!(
            "\nstatic __attribute__((noinline)) char *grow_{name}(char *old, size_t bytes) {{\n    \
             return checked(realloc(old, bytes));\n}}\n"
        );
    }
    let main = if program.style.main_is_worker() {
        "0"
    } else {
        "team"
    };
    text += &format!("\nstatic void prepare(void) {{\n    size_t main_thread = {main};\n");
    for site in sites(program) {
        text += &allocate_by_main(&site);
    }
    text += "    (void)main_thread;\n}\n\nstatic void prepare_own(size_t me) {\n    register_thread(me);\n";
    let own = program.objects.iter();
    for object in own.clone().filter(|one| one.is_allocated_by_threads()) {
        let Object { name, site, .. } = object;
        text += &format!(
            "    for (size_t i = share({name}_object.pieces, me, team); i < share({name}_object.pieces, me + 1, team); \
             i++)\n        {name}_object.piece[i] = allocate_{site}({name}_object.piece_lines * LINE_BYTES);\n"
        );
    }
    text += "    WAIT_FOR_TEAM\n";
    for object in own.filter(|one| one.initialiser == Initialiser::Threads) {
        text += &format!("    own_{}(me, 0, INITIALISE);\n", object.name);
    }
    text + "    WAIT_FOR_TEAM\n}\n"
}

/// C code that creates the team's threads from number `first`, does the main thread's own part, and joins the threads.
fn create_and_join(first: u64, own: &str) -> String {
    format!(
        "    for (size_t i = {first}; i < team; i++)\n        \
         if (pthread_create(&threads[i], 0, worker, (void *)i))\n            \
         die(\"cannot create a thread\");\n{own}    \
         for (size_t i = {first}; i < team; i++)\n        pthread_join(threads[i], 0);\n"
    )
}

/// C code of threads and of `main`.
fn threads(program: &Program) -> String {
    let names: Vec<&str> = program
        .objects
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    let list: Vec<String> = names.iter().map(|name| format!("&{name}_object")).collect();
    let passes = "for (size_t pass = 0; pass < passes; pass++) {\n";
    let mut work = format!("\nstatic void work(size_t me) {{\n    prepare_own(me);\n    {passes}");
    for name in &names {
        work += &format!("        use_{name}(me, pass);\n        WAIT_FOR_TEAM\n");
    }
    work += "    }\n}\n";
    let team_begins = "    pthread_t *threads = checked(calloc(team, sizeof *threads));\n    \
                       pthread_barrier_init(&barrier, 0, team);\n";
    let region = "#pragma omp parallel num_threads(team)\n";
    let run = match program.style {
        Style::OpenMp => format!("{region}    work(omp_get_thread_num());\n"),
        Style::OpenMpRegions => {
            work.clear();
            let mut run = format!("{region}    prepare_own(omp_get_thread_num());\n    {passes}");
            for name in &names {
                run += &format!("{region}        use_{name}(omp_get_thread_num(), pass);\n");
            }
            run + "    }\n"
        }
        Style::WorkersAnew => {
            work = "\nstatic size_t step;\n\nstatic void *worker(void *number) {\n    \
                    size_t me = (size_t)number, pass = step;\n    if (pass == 0)\n        prepare_own(me);\n"
                .to_owned();
            for name in &names {
                work += &format!("    use_{name}(me, pass);\n    WAIT_FOR_TEAM\n");
            }
            work += "    return 0;\n}\n";
            let team = create_and_join(0, "");
            format!("{team_begins}    for (; step < passes; step++) {{\n{team}    }}\n")
        }
        Style::Workers | Style::MainAndWorkers => {
            work += "\nstatic void *worker(void *number) {\n    work((size_t)number);\n    return 0;\n}\n";
            let (first, own) = match program.style {
                Style::Workers => (0, ""),
                _ => (1, "    work(0);\n"),
            };
            team_begins.to_owned() + &create_and_join(first, own)
        }
    };
    let Program { team, passes, .. } = program;
    format!(
        "{work}\nint main(int argc, char **argv) {{\n    \
         static struct object *const objects[] = {{{}}};\n    team = {team};\n    passes = {passes};\n    \
         read_options(argc, argv);\n    prepare();\n{run}    \
         write_objects(objects, sizeof objects / sizeof *objects);\n    \
         write_counts(objects, sizeof objects / sizeof *objects);\n}}\n",
        list.join(", ")
    )
}
