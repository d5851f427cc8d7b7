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


def offline_row(name, found, threads):
    """Returns how much slower the plan of `auto` is than the best other policy, and the table row. `threads`: the plan's thread layout if it differs."""
    touch, ours, rival = found["first-touch"], found["plan:auto"], best(found, ["first-touch", *OFFLINE, *ONLINE])
    behind = ours / found[rival] - 1
    return behind, [
        name, ms(touch), f"{ms(ours)} {threads}".strip(), f"{ms(found[rival])} {rival}", percent(behind), percent(ours / touch - 1), percent(ours / found["post-facto"] - 1),
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
        "## Offline `auto` against every other policy\n\n"
        "Plans are of the first input and judged on the second, with copies of objects and code allowed, and placements that begin when a second thread runs or hold while several do; `object`, `uniform` and "
        "`hop-sensitive` likewise. Of `auto` the program is also recorded with its threads `compact` or `scatter` over the nodes where that differs, and "
        "its plan may have them there; the row says so then, and the plan is judged on a run with threads there. Its plans may have online `auto` look after the program from there (`plan --online-migration`). Negative is faster. The last two "
        "columns: against first touch, and against post-facto, which knows the judged run, both with threads where all policies have them.\n\n"
        + chart + table(OFFLINE_HEADS, [row[1] for row in rows])
        + f"\n- Never more than 1 % slower than the best other: {held(losses == 0)}; slower by more in {losses} of {len(rows)}, "
        f"in {worse} of them than the best other that leaves pages where they are.\n"
        f"- At least 5 % faster than the best other somewhere on every machine: {held(all(gain <= -0.05 for gain in leads.values()))}; most on {somewhere}.\n"
    )


WHY = """
### What was behind, and what is (2026-11-25)

Threads run on other CPUs at other times whenever a workload is traced, and results differ by some percent between tracings.

- Offline six had been behind at one time or another: `sor` (7 % against `out-u-local`: its pages go back to the one thread that verifies the grid at the end, `start = "parallel"`), `raytrace` and `ocean` (4 and 2 %: code is copied, `code = "raytrace"`), `cluster` on `amd48` (4 %: its
  threads are packed on three of the eight nodes, whose six CPUs share a cache), `mg` on `altix-4-small` (3 %: runs of the heap's pages cost the first input 3 % and save 3 % of the second, which has five iterations for three after the same
  initialisation; plans are for longer runs now), `pca` on `carrefour-a` (2 %: spreading its matrix saves the second input what it costs the first, where filling it is a greater part; in these tracings it does neither).
- `lu_blocks`: copies where they are first read, since moving a page costs 10 µs; as blocks of the size that the first input has, `object` loses 10 %: those of the second are half as large again in an object of the same size, which nothing in a recording of
  the first says. Until 2026-11-26 a store that hits in a cache was not in a trace and took no copy away, for any policy.
- Online, `lu_blocks`: moves may cost a small share of the time (1 %) and what they have saved; 1,500 pages at 10 µs are moved at last, when most of the run is over. It was tried to let moves cost what those before will save if they go on saving for as long as the program has
  run, to leave out what one node did before others came, and to count a move's flushes for CPUs that have threads alone: together they bring `lu_blocks` to 4.7 % behind `in-w`, and `cluster` on `amd48` to 2.5 % behind first touch, whose 17 ms end before the
  moves have paid. Of the two rules the one that holds is kept.
- Online, `mg` on `altix-4-small` is 4 to 6 % behind `kernel-balancing`, by the tracing: its runs take 28 ms, and pages pay for their moves late, as on other machines ([below](#every-workload-on-every-preset)).
- Online, `ocean` had lost 6 %: at the end the master alone goes over all data, which had moved to threads that have ended, and pages did not come back. `raytrace` had lost 23 % to `migrate-replicate`, since the stores that fill its scene kept it from being copied.
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
        "## Online `auto`\n\nIt sees one in ten misses, and what has passed. Which ones is drawn: its figures, and those of `carrefour`, are of the run of median "
        f"time of {len(seeds.SEEDS)} seeds, with the least and the most of them in brackets.\n\n"
        + chart + table([*ONLINE_HEADS, "moved / copied"], [row[1] for row in rows])
        + f"\n- Never more than 1 % slower than first touch: {held(first == 0)}; slower by more in {first} of {len(rows)}.\n"
        f"- Never more than 5 % slower than the best online policy: {held(rivals == 0)}; slower by more in {rivals} of {len(rows)}. "
        "The others see every miss, but for `carrefour` and `kernel-balancing`.\n"
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
        "## `carrefour` with samples\n\nTime against first touch, with the samples that it asks for and with every miss.\n\n"
        + table(["", "misses/µs", "samples", "all misses", "share of the gain"], [row[1] for row in rows])
        + f"\n- At least 90 % of the gain with full information: {held(possible and gained >= 0.9 * possible)}; {over_all}.\n"
        f"- Loses at most 4 % to first touch: {held(-rows[0][0] <= 0.04)}; at most {percent(-rows[0][0])}.\n"
        "\nThe same in runs that last thirty decisions and more, those of the paper's programs some hundreds:\n\n"
        + table(["", "input", "first touch", "samples", "all misses", "share of the gain"], longer)
        + f"\n- At least 90 % of the gain with full information, over these: {held(long_possible and long_gained >= 0.9 * long_possible)}; "
        f"{long_gained / long_possible if long_possible else 0:.0%}.\n"
        "\nBelow 50 misses a microsecond it leaves programs alone and takes no samples (§3.2.1, step 1), which most of ours are: their few "
        "simulated CPUs wait for each miss. Until the first decision nobody knows, and no samples are taken either: with samples it decides about "
        "`lu_blocks` an epoch later than with every miss, 10 ms of the 37 that its threads run, and gains so much less; there the paper's runs "
        "have minutes. A sample every 65,000 cycles costs 8 % of the time by the paper's figures (5,200 cycles each, from Table 4) for as long as each "
        "decision places ten pages or more. `lu_blocks` had lost 5.5 %, for one of its threads made all 1,600 moves of a decision while the others "
        "waited for it: 10 ms, a hundredth of the paper's second between decisions, and here all of it. The algorithm is in the kernel (§3.3), and the kernel's "
        "threads run where CPUs are idle: here 32 of 48. Where none is, a thread of the program pays still. "
        "With another scale the result is another: divided by 1000, `cluster` lost 13 % on `amd48`, "
        "10 % on `carrefour-a`, `pca` 6 % (before samples waited for step 1): there are pages for a hundredth of the paper's memory, and to move "
        "them is paid for by a run a thousandth as long.\n"
    )


def of_machine(results, preset):
    return {result["workload"]: result for result in results if result["machine"] == preset}


def agreement(published, ours, apart=0.0):
    """Counts the published pairs that differ by at least the share `apart` of the smaller value, and those that we order alike."""
    differ = lambda one, other: one != other and max(one, other) >= (1 + apart) * min(one, other)
    pairs = [(i, j) for i in range(len(published)) for j in range(i) if differ(published[i], published[j])]
    same = sum((published[i] - published[j]) * (ours[i] - ours[j]) > 0 for i, j in pairs)
    return f"{same} of {len(pairs)}"


def papers(results, further, drawing):
    text = "## The papers' tables\n\nPublished figures come first, ours after the slash. Rankings: of the pairs that the paper tells apart, how many ours orders alike.\n"
    return text + ars.section(results, drawing) + marathe.section(results, drawing) + numamma.section(results, further.get(pictures.PAPER, {}), drawing) + carrefour.section(further.get(carrefour.PAPER, {}), drawing)


def text(results, left_out, matrix, further, drawing):
    scale = matrix["scale"]
    tracing, replaying = sum(one["tracing_s"] for one in results), sum(one["replaying_s"] for one in results)
    sizes = [[one["workload"], one["machine"], *one["inputs"]] for one in results]
    parts = [
        "# The papers' policies, redone\n\n"
        "Written by `papers/reproduce --quick`; do not edit. Every workload is traced with two inputs in emulation, each on the "
        "machine of the paper that ran it; all times are simulated. What is modelled and what is not: top of "
        "`crates/simulator/src/lib.rs`. What of the papers is not redone: the end of this page. In charts grey, or a diamond, is what is published.\n\n"
        f"{len(results)} pairs of workload and machine. Replaying them took {replaying:.0f} s of processor time; tracing took {tracing:.0f} s (of traces kept from before 2026-11-22: by the clock, beside other work).\n",
        *(["Left out:\n\n" + "".join(f"- {what}.\n" for what in left_out)] if left_out else []),
        must_hold.section(),
        *([auto(results, drawing), online(results, drawing), WHY, carrefour_with_samples(results, further)] if results else []), papers(results, further, drawing),
        verghese.section(further.get(verghese.PAPER, {}), drawing),
        "## How\n\n"
        f"- Runs take tens or hundreds of milliseconds for the papers' tens of seconds. `carrefour`'s second between decisions, "
        f"and the kernel's scan periods and what a scan goes over are divided by {scale['time']}; caches beyond "
        f"the first level by {scale['caches']} (at least 16 KiB). Samples in a decision are divided by {scale['caches']}, too, as programs have so many fewer pages: their interval and cost are divided by {scale['time'] / scale['caches']:g}, so that they cost as large a part of the time as published. Latencies, bandwidths, the cost of moving pages, thresholds and counts are as published.\n"
        "- Free parameters, one value for all workloads: those at the end of [papers.md](../docs/papers.md), and of `auto` the margins in "
        "`crates/planner/src/auto/model.rs`, `crates/planner/src/replay/mod.rs` and `crates/planner/src/recordings.rs`, what is a long phase (a tenth of the misses, "
        "`crates/planner/src/replay/phases.rs`), which pages of code are hot (half and nine tenths of the cost, `crates/planner/src/auto/choice.rs`) and the parameters of "
        "`crates/online/src/auto`. Some choices came after first results of this page had been seen: "
        "the sizes of `cluster`, `lu_blocks`, `faces` and `pca` (their runs had lasted milliseconds), the cost of a move (no "
        "longer divided with the interval), what a move costs on machines of which no paper says so (Verghese's 350 µs, of a machine of 300 MHz, had been "
        "assumed; now about what Linux takes, 10 µs for 4 KiB and 16 for the 16 KiB of `altix-4`, on `amd48` since 2026-11-22, on the others since the 24th), and of online `auto`, after the matrix of 2026-11-24, how often it looks (`check_ns`), after `ocean` and "
        "`raytrace`: what ended threads did and stores that initialise do not count, pages go back without a budget, moves made side by side are "
        "paid for once, after `ammp`, `bt` and `is`: what a store to a copied page costs and how often copies meet with one (one in twenty, to begin "
        "with), no margin for what goes back to a thread that runs alone, threads change places only where both gain; of plans, after `sor`, `ocean` and `raytrace`: placements while several threads run, pages near who uses them next, copies of "
        "code; of `carrefour`, after `lu_blocks`: that a kernel thread moves its pages; in Carrefour's own section, after `pca`: that thread clustering is off, as in the paper; after its Table 1, on 2026-11-26: that `cluster` has points of 128 dimensions, as PARSEC's native input; after it, on 2026-11-27: that `cluster` takes distances to one candidate after the other, as PARSEC's `pgain`, with steps for 300 ms again, AMD's routes on the square, and no probes on machine B, which has a directory; after `ammp`, on 2026-11-27: that samples show stores that hit in the first level, as often as programs store; after Table 4, on 2026-11-27: that a decision has as many samples of a page as the paper's, where it had as many in all and so sixteen times as many of a page, and that `pca` and `faces` compute what Metis's PCA and FaceRec do; of ARS, after its Table 2: checks at so many times a run, with the machine's own caches; of Marathe's Figure 8: that runs have class C's steps; of plans, after the matrix of 2026-11-22: what they may lose with "
        "an input of another size, and what they have to save of what they make slower; after that of 2026-11-24: that plans are for runs "
        "with a parallel part half as long again (`plan --longer`), that they may lose nothing with an input of another size, and that `auto` looks after a program where a recording shows no more than a third of a hundredth lost by that, or with ten times its budget where it shows that this pays (`plan --online-migration`).\n"
        "- `auto` offline replays the first recording under its alternatives; of samples it predicts by a model of the same queues.\n\n"
        + table(["workload", "machine", "first input", "second input"], sizes),
        "## Not here\n\n"
        "- Real programs (logic simulation, a threaded ray tracer, a parallel make with its kernel's references, a database), so Verghese's "
        "Engineering, Pmake and Database workloads, their tables and figures, his Tables 2 to 4 and 6 and his Figure 6.4, are in [real_programs.md](real_programs.md).\n"
        "- The papers' own sizes, but for ARS's.\n"
        "- Of Carrefour: energy (Figure 14), why is said there. What `nearpage live` costs, "
        "beside §4.4, is in [benches/README.md](../benches/README.md).\n"
        "- The other tables and figures of the papers describe systems, algorithms and machines: Marathe's Figures 1 and 2 and Table 2 (the latencies of `opteron-4`), Carrefour's Figures 1 and 4 and Table 2, Verghese's Figures 3.1, 4.1, 4.2, 8.1 and 8.2 and Table 1, "
        "ARS's Figures 1 to 4 and Table 1 (the sizes above).\n"
        "- Of phases plans of `auto` know those in which a single thread runs, and long ones that begin with a parallel region or a start routine, where pages or threads may go elsewhere ([figures](../benches/results/2026-11-23-phases.md)); of the plans above few have any. "
        "Otherwise they place threads for a whole run, packed or spread; online it moves threads as the program runs.\n",
    ]
    return "\n".join(parts)
