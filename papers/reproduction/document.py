"""Writes papers/reproduction.md: the goals, and the papers' tables beside ours."""
import glob
import os
import re

from reproduction import ars, carrefour, charts, marathe, must_hold, numamma, pictures, seeds, verghese

RESULTS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "benches", "results")

# Prefix of columns with the time from the second thread's start to the end.
SEVERAL = "several threads: "
OFFLINE = ["round-robin", "interleave", "block-naive", "plan:object", "plan:uniform", "plan:hop-sensitive"]
ONLINE = [
    "migrate", "replicate", "migrate-replicate", "replicate-on-first-touch", "out-u", "out-w", "in-w", "out-u-local",
    "out-w-local", "carrefour", "kernel-balancing",
]


def table(heads, rows):
    return "\n".join(["| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows]]) + "\n"


def times(result):
    return {policy: outcome["time_ns"] for policy, outcome in result["results"].items()}


def best(found, policies):
    return min(policies, key=lambda policy: found[policy])


def ms(ns):
    return f"{ns / 1e6:.1f} ms"


def percent(share):
    return f"{100 * share:+.1f} %"


def name(result):
    return f"{result['workload']} on {result['machine']}"


def rounded(number):
    """Formats a published number, or a dash if there is none."""
    return "–" if number is None else f"{number:g}"


def newest(name):
    """Returns the path of the newest dated file with this name in benches/results, or None."""
    return max(glob.glob(os.path.join(RESULTS, f"*-{name}")), default=None)


def link(path):
    """Returns the link from papers/ to a file of benches/results."""
    return f"../benches/results/{os.path.basename(path)}"


def measured(names, line):
    """Reads the newest file of benches/results in which `line` matches. Returns its path and, by name, the values of each name's last line."""
    for path in sorted(glob.glob(os.path.join(RESULTS, names)), reverse=True):
        with open(path) as file:
            found = {name: values for name, *values in re.findall(line, file.read(), re.MULTILINE)}
        if found:
            return path, found
    raise LookupError(f"no file {names} in {RESULTS} has a line as {line!r}")


def joined(heading, parts):
    """Returns the parts under their heading, or nothing if all parts are empty."""
    return heading + "".join(parts) if any(parts) else ""


def held(holds):
    return "**held**" if holds else "**missed**"


OFFLINE_HEADS = ["", "first touch", "`auto`", "best of the others", "against it", "first touch", "post-facto"]
ONLINE_HEADS = ["", "first touch", "`auto`", "against it", "best online", "against it"]


def behind(found):
    """Returns how much slower the plan of `auto` is than the best other policy, and that policy."""
    rival = best(found, ["first-touch", *OFFLINE, *ONLINE])
    return found["plan:auto"] / found[rival] - 1, rival


def offline_row(name, found, threads):
    """Returns how much slower the plan of `auto` is than the best other policy, and the table row. `threads`: the plan's thread layout if it differs."""
    touch, ours, (slower, rival) = found["first-touch"], found["plan:auto"], behind(found)
    return slower, [
        name, ms(touch), f"{ms(ours)} {threads}".strip(), f"{ms(found[rival])} {rival}", percent(slower), percent(ours / touch - 1), percent(ours / found["post-facto"] - 1),
    ]


def online_row(name, found):
    """Returns how much slower online `auto` is than first touch and than the best online policy, and the table row."""
    touch, ours, rival = found["first-touch"], found["auto"], best(found, ONLINE)
    slower, behind = ours / touch - 1, ours / found[rival] - 1
    return slower, behind, [name, ms(touch), ms(ours), percent(slower), f"{ms(found[rival])} {rival}", percent(behind)]


def gains(found):
    """Returns the shares of first touch's time that `carrefour` saves: with the samples that it asks for, and with every miss."""
    return [1 - found[policy] / found["first-touch"] for policy in ["carrefour", "carrefour, all misses"]]


def share(sampled, full):
    """Formats the sampled gain as a share of the full gain, if the full gain exceeds 1 %."""
    return f"{sampled / full:.0%}" if full > 0.01 else "–"


def total_gains(pairs):
    """Sums both gains over the pairs that gain more than 1 % with every miss."""
    worth = [pair for pair in pairs if pair[1] > 0.01]
    return sum(sampled for sampled, _ in worth), sum(full for _, full in worth)


def list_chart(drawing, name, says, rows, limits):
    """Draws the policy's changes against others, in percent, by pair. `limits`: limit lines by comparison."""
    names, *columns = zip(*rows)
    panels = [charts.Panel(title, "%", names, [100 * ratio for ratio in ratios], levels=levels) for (title, levels), ratios in zip(limits.items(), columns)]
    return drawing.rows(name, says, panels)


def auto(results, drawing):
    rows, losses, leads = [], 0, {}
    for result in results:
        ratio, row = offline_row(name(result), times(result), result["threads"] or "")
        losses += ratio > 0.01
        leads[result["machine"]] = min(leads.get(result["machine"], 1), ratio)
        found = times(result)
        rows.append((ratio, row, found["plan:auto"] / found["first-touch"] - 1))
    rows.sort(key=lambda row: -row[0])
    chart = list_chart(drawing, "offline", "Time of offline auto's plans against the best other policy and against first touch, by pair; negative is faster", [
        (row[0], ratio, saved) for ratio, row, saved in rows
    ], {"against the best other": {"1 % slower": 1}, "against first touch": {}})
    somewhere = ", ".join(f"{machine} {percent(gain)}" for machine, gain in leads.items())
    statics = [min(times(result)[policy] for policy in ["first-touch", *OFFLINE]) for result in results]
    worse = sum(times(result)["plan:auto"] > 1.01 * least for result, least in zip(results, statics))
    return (
        "## Offline `auto` against every other policy\n\nPlans are made from the first input and judged with the second. This holds for `auto`, `object`, "
        "`uniform` and `hop-sensitive`. Plans may copy objects and code, and placements may begin when a second thread runs, or hold while several threads "
        "run. For `auto`, the program is also recorded with its threads `compact` or `scatter` over the nodes, if that differs. Its plan may choose this "
        "layout; then the row says so, and the plan is judged with a run in this layout. Its plans may also begin online migration by `auto` (`plan --online-migration`). "
        "Negative is faster. The last two columns are changes against first touch, and against post-facto, which knows the judged run. Both have the thread "
        "layout of all other policies.\n\n"
        + chart + table(OFFLINE_HEADS, [row[1] for row in rows])
        + f"\n- Never more than 1 % slower than the best other: {held(losses == 0)}; slower by more in {losses} of {len(rows)}, in {worse} of them than the "
          f"best other policy that moves no pages.\n- At least 5 % faster than the best other somewhere on every machine: {held(all((gain <= -0.05 for gain in leads.values())))}; "
          f"most on {somewhere}.\n"
    )


WHY = """
### What was behind, and what is (2026-11-25 and 30)

Each tracing of a workload runs threads on other CPUs at other times, so results differ by some percent between tracings.

- **Offline, `lu_blocks` on `amd48` takes 3.1 % longer than under first touch** in the table above (2026-11-30; on 2026-11-25, when stores to lines in a cache did not collapse copies, its plan copied pages and saved 23 %). The plan shares the used part of two static arrays among the threads (`block:0-4M/160M`). The second input uses 2.25 times as much of
  them, so that pages are near other threads (67 % local), and threads wait for each other. Since then, `auto` judges shares of parts also as an input of another size would have them, as it does page runs and pieces. It leaves the arrays alone and begins online migration: 45.1 ms with the second input, 19.7 % less than first touch.
- **Online, `lu_blocks` on `amd48` takes 9.9 % longer than under first touch** in the table above (5.6 to 23.8 %): 20 to 24 pages are copied before the first copy is stored to, and each collapse takes 296 µs. Since then, `auto` makes no more copies than have lasted, where a store to one costs more than the copy: it takes 0.5 to 0.6 % longer (five
  seeds). Programs whose copies last lose some of their gain by this: `faces long` saves 24.9 % of the time instead of 29.2, `pca` 19.9 instead of 25.6 (one seed each). On the machines of other papers a collapse costs no more than a move, and nothing changes.
- Offline, six pairs had been behind at some time. `sor` lost 7 % to `out-u-local`; now its pages go back to the one thread that verifies the grid at the end (`start = "parallel"`). `raytrace` and `ocean` lost 4 and 2 %; now code is copied (`code = "raytrace"`). `cluster` on `amd48` lost 4 %; now its
  threads are compact on three of the eight nodes, whose six CPUs share a cache. `mg` on `altix-4-small` lost 3 %: page runs of the heap cost 3 % with the first input and save 3 % with the second, which has five iterations instead of three after the same
  initialisation. Plans are for longer runs now. `pca` on `carrefour-a` lost 2 %: interleaving its matrix saves as much with the second input as it costs with the first, in which filling the matrix is a larger part; in these tracings it does neither.
- Offline, `lu_blocks` is copied where it is first read, because moving a page costs 10 µs. With blocks of the first input's size, `object` loses 10 %: the second input's blocks are 1.5 times as large in an object of the same size, which a recording of
  the first input cannot show. Until 2026-11-26, traces had no stores that hit in a cache, so such stores removed no copies, for any policy.
- Online, `lu_blocks`: moves may cost a small share of the time (1 %) plus the savings of earlier moves, so 1,500 pages at 10 µs move only when most of the run is over. Three changes were tried: moves may cost the future savings of earlier moves, if these continue for as long as the program has
  run; accesses of a single node before other nodes begin do not count; and a move's flushes count only for CPUs with threads. Together they bring `lu_blocks` to 4.7 % behind `in-w`, but `cluster` on `amd48` to 2.5 % behind first touch, because its 17 ms end before the
  moves have paid. The rule against losses to first touch was kept.
- Online, `mg` on `altix-4-small` is 4 to 6 % behind `kernel-balancing`, depending on the tracing. Its runs take 28 ms, and pages pay for their moves late, as on other machines ([below](#every-workload-on-every-preset)).
- Online, `ocean` had lost 6 %: at the end, the main thread alone goes over all data, which had moved to threads that have ended, and pages did not come back. `raytrace` had lost 23 % to `migrate-replicate`, because the stores that fill its scene prevented copies.
"""


def online(results, drawing):
    rows, first, rivals = [], 0, 0
    for result in results:
        touch, ratio, row = online_row(name(result), times(result))
        first += touch > 0.01
        rivals += ratio > 0.05
        outcome, base_ns = result["results"]["auto"], result["results"]["first-touch"]["time_ns"]
        row[3] = seeds.ranged(outcome, base_ns)
        moved = outcome["migrated"] + outcome["interleaved"]
        rows.append((max(touch, ratio), [*row, f"{moved} / {outcome['replicated']}"], ratio, touch))
    rows.sort(key=lambda row: -row[0])
    chart = list_chart(drawing, "online", "Time of online auto against the best online policy and against first touch, by pair; negative is faster", [
        (row[0], ratio, touch) for _, row, ratio, touch in rows
    ], {"against the best online policy": {"5 % slower": 5}, "against first touch": {"1 % slower": 1}})
    return (
        "## Online `auto`\n\nOnline `auto` sees one in ten misses, drawn at random, and only the past. Its figures, and those of `carrefour`, are from the "
        f"run with the median time of {len(seeds.SEEDS)} seeds, with the range of all seeds in brackets.\n"
        "\n"
        + chart + table([*ONLINE_HEADS, "moved / copied"], [row[1] for row in rows])
        + f"\n- Never more than 1 % slower than first touch: {held(first == 0)}; slower by more in {first} of {len(rows)}.\n"
          f"- Never more than 5 % slower than the best online policy: {held(rivals == 0)}; slower by more in {rivals} of {len(rows)}. The others see every "
          "miss, except `carrefour` and `kernel-balancing`.\n"
    )


def carrefour_with_samples(results, further):
    rows, in_quick, longer, in_longer = [], [], [], []
    for result in results:
        sampled, full = gains(times(result))
        in_quick.append((sampled, full))
        touch = result["results"]["first-touch"]
        rate = touch["misses"] / touch["time_ns"] * 1000
        said = [seeds.ranged(result["results"][policy], touch["time_ns"]) for policy in ["carrefour", "carrefour, all misses"]]
        rows.append((sampled, [name(result), f"{rate:.0f}", *said, share(sampled, full)]))
    long_runs = [(name(result), result["longer"]) for result in results if "longer" in result]
    long_runs += [(f"{workload} on {carrefour.PRESET}", run) for workload, run in carrefour.longer(further.get(carrefour.PAPER, {}))]
    for called, run in long_runs:
        found = times(run)
        sampled, full = gains(found)
        in_longer.append((sampled, full))
        said = [seeds.ranged(run["results"][policy], found["first-touch"]) for policy in ["carrefour", "carrefour, all misses"]]
        longer.append([called, run["input"], ms(found["first-touch"]), *said, share(sampled, full)])
    rows.sort(key=lambda row: row[0])
    gained, possible = total_gains(in_quick)
    long_gained, long_possible = total_gains(in_longer)
    over_all = f"{gained / possible:.0%} of the gain over all where there is one of more than 1 %" if possible else "no gain anywhere"
    return (
        "## `carrefour` with samples\n\nThe table has the change of time against first touch, with the samples that `carrefour` requests and with every "
        "miss.\n\n"
        + table(["", "misses/µs", "samples", "all misses", "share of the gain"], [row[1] for row in rows])
        + f"\n- At least 90 % of the gain with full information: {held(possible and gained >= 0.9 * possible)}; {over_all}.\n"
          f"- Loses at most 4 % to first touch: {held(-rows[0][0] <= 0.04)}; at most {percent(-rows[0][0])}.\n"
          "\nThe next table has runs of thirty decisions and more. The paper's programs have some hundreds:\n"
          "\n"
        + table(["", "input", "first touch", "samples", "all misses", "share of the gain"], longer)
        + f"\n- At least 90 % of the gain with full information, over these: {held(long_possible and long_gained >= 0.9 * long_possible)}; {long_gained / long_possible if long_possible else 0:.0%}.\n"
          "\n`carrefour` does nothing for programs with fewer than 50 misses per microsecond, and takes no samples (§3.2.1, step 1). Most of our programs "
          "are below, because their few simulated CPUs wait for each miss. The miss rate is unknown before the first decision, so no samples are taken until "
          "then. With samples, `carrefour` therefore decides about `lu_blocks` an epoch later than with every miss, after 10 ms of the 37 ms in which its "
          "threads run, and gains less accordingly. The paper's runs take minutes. By the paper's figures, a sample every 65,000 cycles costs 8 % of the "
          "time (5,200 cycles each, from Table 4) while each decision places ten pages or more. `lu_blocks` had lost 5.5 %, because one of its threads made "
          "all 1,600 moves of a decision while the others waited: for 10 ms, a hundredth of the paper's second between decisions, but the whole interval "
          "here. The algorithm is in the kernel (§3.3), and kernel threads run on idle CPUs, here 32 of 48. If no CPU is idle, a thread of the program still "
          "pays. Another scale gives other results. Divided by 1000, `cluster` lost 13 % on `amd48` and 10 % on `carrefour-a`, and `pca` 6 % (before samples "
          "waited for step 1): memory is then a hundredth of the paper's, but the run that pays for its moves is a thousandth as long.\n"
    )


def of_machine(results, preset):
    return {result["workload"]: result for result in results if result["machine"] == preset}


def agreement(published, ours, apart=0.0):
    """Counts the published pairs that differ by at least the share `apart` of the smaller value, and those that we order alike."""
    differ = lambda one, other: one != other and max(one, other) >= (1 + apart) * min(one, other)
    pairs = [(i, j) for i in range(len(published)) for j in range(i) if differ(published[i], published[j])]
    same = sum((published[i] - published[j]) * (ours[i] - ours[j]) > 0 for i, j in pairs)
    return f"{same} of {len(pairs)}"


def in_all(rows):
    """Adds up the agreements that are the last cells of a table's rows."""
    counts = [map(int, row[-1].split(" of ")) for row in rows]
    return "Rankings in all: {} of {}.\n".format(*map(sum, zip(*counts)))


def papers(results, further, drawing):
    text = ("## The papers' tables\n\nPublished figures come first, ours after the slash. \"Rankings\" counts the pairs that the paper distinguishes, and those "
           "that our results order in the same way.\n")
    return text + ars.section(results, drawing) + marathe.section(results, drawing) + numamma.section(results, further.get(pictures.PAPER, {}), drawing) + carrefour.section(further.get(carrefour.PAPER, {}), drawing)


def text(results, left_out, matrix, further, drawing):
    scale = matrix["scale"]
    tracing, replaying = sum(one["tracing_s"] for one in results), sum(one["replaying_s"] for one in results)
    sizes = [[one["workload"], one["machine"], *one["inputs"]] for one in results]
    parts = [
        "# The papers' policies, reproduced\n\nWritten by `papers/reproduce --quick`; do not edit. Every workload is traced in emulation with two inputs, "
        "on the machine of the paper that used it. All times are simulated. The top of `crates/simulator/src/lib.rs` lists what is modelled. The end of "
        "this page lists the parts of the papers that are not reproduced. In charts, published values are grey, or diamonds.\n"
        f"\nThe page has {len(results)} pairs of workload and machine. Replaying them took {replaying:.0f} s of processor time. Tracing took {tracing:.0f} "
        "s (for traces from before 2026-11-22: elapsed time beside other work).\n",
        *(["Left out:\n\n" + "".join(f"- {what}.\n" for what in left_out)] if left_out else []),
        must_hold.section(),
        *([auto(results, drawing), online(results, drawing), WHY, carrefour_with_samples(results, further)] if results else []), papers(results, further, drawing),
        verghese.section(further.get(verghese.PAPER, {}), drawing),
        "## How\n\n- Runs take tens or hundreds of milliseconds instead of the papers' tens of seconds. `carrefour`'s second between decisions, the kernel's "
        f"scan periods and the size of a scan are divided by {scale['time']}. Caches beyond the first level are divided by {scale['caches']} (at least "
        f"16 KiB). The number of samples per decision is divided by {scale['caches']}, too, because programs have fewer pages by this factor. The interval "
        f"and cost of samples are divided by {scale['time'] / scale['caches']:g}, so that samples take the published share of the time. Latencies, bandwidths, "
        "the cost of moving pages, thresholds and counts are as published.\n"
        "- Free parameters have one value for all workloads: those at the end of [papers.md](../docs/papers.md), the margins of `auto` in `crates/planner/src/auto/model.rs`, "
        "`crates/planner/src/replay/mod.rs` and `crates/planner/src/recordings.rs`, the share of misses that makes a phase long (a tenth, `crates/planner/src/replay/phases.rs`), "
        "the share of the cost that makes pages of code hot (half and nine tenths, `crates/planner/src/auto/choice.rs`), and the parameters of `crates/online/src/auto`.\n"
        "- These choices were made after first results of this page had been seen:\n"
        "  - Sizes of `cluster`, `lu_blocks`, `faces` and `pca`, whose runs had lasted milliseconds.\n"
        "  - The cost of a move is no longer divided with the interval. On machines without a published cost, a move takes about as long as in Linux (10 "
        "µs for 4 KiB, 16 µs for the 16 KiB of `altix-4`) instead of Verghese's 350 µs of a machine with 300 MHz; on `amd48` since 2026-11-22, on the "
        "others since the 24th.\n  - Online `auto`: after the matrix of 2026-11-24, its interval between checks (`check_ns`). After `lu_blocks` on `amd48`, on 2026-11-30, how many copies it makes at a time. After `ocean` and `raytrace`: "
        "accesses of ended threads and stores that initialise do not count, pages go back without a budget, and simultaneous moves are paid for once. "
        "After `ammp`, `bt` and `is`: the cost of a store to a copied page, and the assumed share of copies with stores (at first one in twenty); no margin "
        "for pages that go back to a thread that runs alone; threads change places only if both gain.\n"
        "  - Plans: after `sor`, `ocean` and `raytrace`, placements while several threads run, pages near the next thread that uses them, and copies of "
        "code. After the matrix of 2026-11-22, limits for losses with an input of another size, and for added time in relation to saved time. After the "
        "matrix of 2026-11-24: plans are for runs with a parallel part that is 1.5 times as long (`plan --runtime-scale`). They may lose nothing with "
        "an input of another size. They begin online migration unless the recording shows that it costs more than 0.33 % of the time, with ten times the "
        "budget if the recording shows a gain (`plan --online-migration`).\n"
        "  - `carrefour`: after `lu_blocks`, a kernel thread moves its pages. After `ammp`, on 2026-11-27, samples show stores that hit in the first level, "
        "as often as programs store.\n  - Carrefour's section: after `pca`, thread clustering is off, as in the paper. After Table 1, on 2026-11-26, `cluster` "
        "has points of 128 dimensions, as in PARSEC's native input. On 2026-11-27, `cluster` takes distances to one candidate after the other, as in PARSEC's "
        "`pgain`, with steps for 300 ms again; the square has AMD's routes; and machine B, which has a directory, sends no probes. After Table 4, on 2026-11-27, "
        "a decision has as many samples per page as the paper's; before, it had as many in total, and so sixteen times as many per page. `pca` and `faces` "
        "now compute the same as Metis's PCA and FaceRec. On 2026-11-30: `soft_body` in place of `quake` as Facesim, after `quake` had lost by copies, and its second form, after the first had gained 3 % (a cube, each of whose tetrahedra two threads computed, in 1,500 instructions an iteration): it stores the matrices that facesim stores, is a long bar, and is built with `-O3`, as PARSEC is (with `-O2` a short run gained 16 %, with `-O3` 108 %); "
        "`sp` runs for twelve times as many steps, after its two decisions had done nothing; and programs that gain run two and three times as long on "
        "machine B, after `faces` had lost 13 % in four decisions, and three pairs up to 18 % in seven.\n  - ARS: after its Table 2, a fixed number of checks per run, with the machine's own caches.\n"
        "  - Marathe's Figure 8: runs have class C's steps.\n  - Verghese's section: on 2026-11-28, after its statements, `raytrace` renders one image "
        "of 512 by 512 pixels from 190,000 spheres instead of four of 192 by 192 from 20,000, so that it has 5,550 pages (his program 7,257); threads "
        "take tiles from queues with locks, and from each other's, as SPLASH's do; and only mirrors, a third of the spheres, reflect rays.\n- Offline, `auto` replays the first recording under its alternatives. With samples, it predicts "
        "by a model of the same queues.\n\n"
        + table(["workload", "machine", "first input", "second input"], sizes),
        "## Not here\n\n- [real_programs.md](real_programs.md) has real programs (logic simulation, a threaded ray tracer, a parallel make with its kernel's "
        "references, a database) in place of Verghese's Engineering, Pmake and Database workloads, with their tables and figures, his Tables 2 to 4 and "
        "6, and his Figure 6.4.\n- The papers' own input sizes are not used, except for ARS.\n"
        "- Carrefour's energy (Figure 14) is missing; its section says why. [benches/README.md](../benches/README.md) has the cost of `nearpage live`, "
        "for comparison with §4.4.\n- The other tables and figures of the papers describe systems, algorithms and machines: Marathe's Figures 1 and 2 and "
        "Table 2 (the latencies of `opteron-4`), Carrefour's Figures 1 and 4 and Table 2, Verghese's Figures 3.1, 4.1, 4.2, 8.1 and 8.2 and Table 1, ARS's "
        "Figures 1 to 4 and Table 1 (the sizes above).\n- Plans of `auto` know two kinds of phases: those in which a single thread runs, and long phases "
        "that begin with a parallel region or a start routine, in which pages or threads may move ([figures](../benches/results/2026-11-23-phases.md)). "
        "Few of the plans above have phases. Otherwise, plans place threads for a whole run, compact or scattered. Online, `auto` moves threads during "
        "the run.\n",
    ]
    return "\n".join(parts)
