"""The section on Marathe, Thakkar and Mueller: Table 1 and Figures 3 to 18, published and ours. Ours are from replays, the
table of all pairs, and the results of benches/lossy_traces."""
import csv
import os
import re
import statistics

from reproduction import charts, document

PRESET, OPTERON = "altix-4-small", "opteron-4"
# Table 1, cycles of 1.5 GHz: local, remote.
TABLE_1, CLOCK_GHZ = (207, 430), 1.5
# Averages over their nine programs by figure and sampling interval, as far as the text has numbers, in %. For Figure 8
# at interval 1 the text has 60 once and 54 twice.
AVERAGES = {
    3: {1: 0.1, 200: 0.001}, 5: {1: 99, 10: 94, 50: 76, 200: 47}, 7: {1: 93, 10: 87, 50: 68, 200: 40}, 8: {1: 54, 10: 55, 50: 48, 200: 28}, 9: {1: 21},
    12: {1: 74, 16: 35}, 14: {1: 58, 16: 22}, 15: {1: 29}, 16: {1: 11},
}
# Single programs at interval 1.
PROGRAMS = {8: {"cg": 98, "mg": 97, "quake": 69}, 9: {"cg": 73, "mg": 17, "ammp": 18}, 15: {"mg": 67, "quake": 20}, 16: {"cg": 67, "mg": 7, "ammp": 6}}
# LU, whose full trace misleads (§7): fewer remote accesses and less time, by the source of the hints; %.
ANOMALY = {8: {"full": -28, 50: 10}, 9: {"full": 0, 50: 8}}
# Figure 18: plans from second-level misses: mean, least, most; and LU's plan from first-level misses; %.
FIGURE_18, LU_BY_FIRST_LEVEL = (12.2, -7, 30), -21
ON_OPTERON = ["sp", "ft", "mg", "cg", "bt", "is", "nas_lu", "quake"]
# Tracing time at interval 1: % of FULL's, by sampled event (Figures 4 and 11); for long-latency loads also % of the
# program's.
TRACE_TIME, OF_PROGRAM = {"long-latency loads": 20, "DTLB misses": 18}, 2.7
# Largest share of a program's misses that PEBS sampled at interval 1, % (Figure 17).
PEBS_MOST = 10
# Figures by sampled event: those about cost and quality, and those about benefit.
SAMPLED = {"long-latency loads": ([3, 5, 6, 7], [8, 9]), "DTLB misses": ([10, 12, 13, 14], [15, 16])}


def lossy_traces(path):
    """Reads a result of benches/lossy_traces. Returns for each figure its name, sampling intervals, and values by program."""
    with open(path) as file:
        text = file.read()
    found = {}
    for name, figure, table in re.findall(r"^(.*) \(Figure (\d+)\)\n\n((?:\|.*\n?)+)", text, re.MULTILINE):
        heads, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        found[int(figure)] = {
            "name": name.split(",")[0],
            "sources": [int(head.split("-")[1]) if "-" in head else head for head in heads[1:]],
            "rows": {program: [float(value.rstrip(" %")) for value in values] for program, *values in rows},
        }
    return found


def section(results, drawing):
    """Returns the section's text. `results`: those of the papers' machines."""
    return document.joined("\n### Marathe, Thakkar and Mueller\n", [replays(results, drawing), hop_sensitive(drawing), lossy(drawing), costs(), lost(drawing)])


def replays(results, drawing):
    """Table 1 and Figure 9, from replays."""
    found = document.of_machine(results, PRESET)
    if not found:
        return ""
    touch = [one["results"]["first-touch"] for one in found.values()]
    latencies = [statistics.mean(result[side + "_latency_ns"] for result in touch) * CLOCK_GHZ for side in ["local", "remote"]]
    less = lambda one, what: 100 * (1 - one["results"]["plan:uniform"][what] / one["results"]["first-touch"][what])
    saved = {workload: (less(one, "parallel_ns"), less(one, "time_ns")) for workload, one in found.items()}
    saved = dict(sorted(saved.items(), key=lambda one: -one[1][0]))
    rows = [[workload, f"{document.rounded(PROGRAMS[9].get(workload))} / {running:.1f}", f"{whole:.1f}"] for workload, (running, whole) in saved.items()]
    panel = charts.Panel("", "% less time", list(saved), [[PROGRAMS[9].get(workload) for workload in saved], [running for running, _ in saved.values()]])
    running, whole = (statistics.mean(shares) for shares in zip(*saved.values()))
    return (
        f"\n#### Table 1: cycles of a local and a remote access (`{PRESET}`)\n\n"
        + document.table(["", "local", "remote"], [["", *[f"{theirs} / {own:.0f}" for theirs, own in zip(TABLE_1, latencies)]]])
        + "\nThe machine's unloaded latencies are the paper's. Ours are the mean times of misses in the replays of first touch.\n"
          f"\n#### Figure 9: less time by a full trace's page hints (`{PRESET}`, Eq. 1), %\n"
          "\n"
        + drawing.bars("marathe-figure-9", "Figure 9: less time by page hints, published at a sampling interval of 1 and ours of all misses", [charts.PUBLISHED, "ours"], [panel], height=160)
        + document.table(["", "while several threads run", "ours, the whole run"], rows)
        + f"\nAverage: published {AVERAGES[9][1]} % on the Altix and 12 % on Opterons, ours {running:.1f} %. Published: CG gains most (73 %), IS alone loses. "
          "The paper's runs have hundreds of iterations, so their initialisation hardly counts. Ours have a few iterations, so the compared time is from "
          "the start of the second thread to the end. The initialisation, by the main thread alone, is a large part of our whole runs, and it is slower "
          f"under a plan, because most pages are away from the main thread. For the whole runs, the average is {whole:.1f} %.\n"
    )


def hop_sensitive(drawing):
    """Figure 18, from the table of all pairs."""
    path = document.newest("matrix.csv")
    if not path:
        return ""
    with open(path, newline="") as file:
        pairs = {line["workload"]: line for line in csv.DictReader(file) if line["machine"] == OPTERON and not line["missing"]}
    found = {workload: pairs[workload] for workload in ON_OPTERON if workload in pairs}
    if not found:
        return ""
    policies = ["plan:hop-sensitive", "interleave"]
    saved, whole = ([[100 * (1 - float(pair[part + policy]) / float(pair[part + "first-touch"])) for pair in found.values()] for policy in policies] for part in [document.SEVERAL, ""])
    mean, least, most = FIGURE_18
    names = ["`hop-sensitive`", "`interleave`"]
    rows = [[said, *[f"{share:.1f}" for share in shares], f"{statistics.mean(shares):.1f}"]
            for said, shares in [*zip(names, saved), *((f"{said}, the whole run", shares) for said, shares in zip(names, whole))]]
    panel = charts.Panel("", "% less time", list(found), saved, levels={"published: mean of hints": mean})
    return (
        f"\n#### Figure 18: less time by hop-sensitive page hints and by interleaving (`{OPTERON}`, Eq. 2), %\n\n"
        + drawing.bars("marathe-figure-18", "Figure 18: less time by hop-sensitive page hints and by interleaving", ["hop-sensitive", "interleave"], [panel], height=180)
        + document.table(["", *found, "mean"], rows)
        + f"\nPublished of second-level misses: {least} to {most} %, {mean} on average, of first-level misses the same except for LU ({LU_BY_FIRST_LEVEL} "
          "%), and interleaving nearly as good on so small a machine, but for Equake, which it harms. Ours are plans from every miss with another input, "
          f"from the [table of all pairs]({document.link(path)}): for the time while several threads run, and for the whole run, as in Figure 9. Here, `quake` "
          "gains most by interleaving, because its main thread has initialised all data, so one controller gets nearly all requests under first touch.\n"
    )


def lossy(drawing):
    """Figures 3 to 16, from the newest results of benches/lossy_traces."""
    path = document.newest("lossy-traces.md")
    if not path:
        return ""
    found = lossy_traces(path)
    text = (
        f"\n#### Figures 3, 5 to 10 and 12 to 16: lossy traces\n\nWritten by `benches/lossy_traces`, {os.path.basename(path)[:10]}; the table has means over "
        "nine programs, published / ours, and the pictures also have our lowest and highest values. For each program, an explanation and the clock source's "
        f"results, see [{os.path.basename(path)}]({document.link(path)}). As in Figure 9 above, times are those while several threads run.\n"
    )
    for source, kinds in SAMPLED.items():
        pictures, rows = "", []
        for kind, figures in zip(["quality", "benefit"], kinds):
            panels = []
            for figure in figures:
                own = found[figure]
                intervals = [interval for interval in own["sources"] if interval != "full"]
                by_interval = {program: dict(zip(own["sources"], values)) for program, values in own["rows"].items()}
                theirs, mean = AVERAGES.get(figure, {}), by_interval.pop("mean")
                full = {"FULL, ours": mean["full"]} if "full" in mean else {}
                values = [list(map(theirs.get, intervals)), list(map(mean.get, intervals))]
                values += [[worth(program[interval] for program in by_interval.values()) for interval in intervals] for worth in (min, max)]
                name = own["name"][0].lower() + own["name"][1:]
                panels.append(charts.Panel(f"Figure {figure}: {name}", "of FULL's" if "samples" in name else "%" if not full else f"% of {name.split(' while ')[0].split(' ', 1)[1]}", intervals, values, levels=full, log="xy" if "samples" in name else "x"))
                rows.append([
                    f"Figure {figure}: {name}", f"{full['FULL, ours']:g}" if full else "",
                    *[f"{document.rounded(theirs.get(interval))} / {mean[interval]:g}" for interval in intervals],
                ])
            pictures += drawing.lines(
                f"marathe-{kind}-{source.split()[-1]}", f"Figures {', '.join(map(str, figures))}: {kind} of lossy traces of {source} by sampling interval", "sampling interval",
                [f"{charts.PUBLISHED}, mean", "ours, mean", "ours, least", "ours, most"], panels, columns=2, height=130)
        text += f"\n##### By {source}, one in so many sampled (samples of FULL's; else %)\n\n" + pictures + document.table(["", "FULL", *map(str, intervals)], rows)
    single = [
        [program, *[f"{document.rounded(PROGRAMS[figure].get(program))} / {found[figure]['rows'][program][found[figure]['sources'].index(1)]:g}" for figure in PROGRAMS]]
        for program in dict.fromkeys(program for programs in PROGRAMS.values() for program in programs)
    ]
    own = lambda figure, source: found[figure]["rows"]["nas_lu"][found[figure]["sources"].index(source)]
    by_full, by_every = (found[8]["sources"].index(source) for source in ["full", 1])
    misled = [program for program, shares in found[8]["rows"].items() if program != "mean" and shares[by_full] <= shares[by_every] - 1]
    lu = [[found[figure]["name"].lower(), *[f"{theirs} / {own(figure, source):g}" for source, theirs in of.items()]] for figure, of in ANOMALY.items()]
    return (
        text + "\nFor Figure 8 at an interval of 1, the paper's text says 60 % once and 54 % twice; the table has 54.\n"
               "\nSingle programs at an interval of 1, if the paper's text has them, %:\n"
               "\n" + document.table(["", *[f"Figure {figure}" for figure in PROGRAMS]], single)
        + ("\nThis is the anomaly of LU (§7), in %: hints from all loads are worse than hints from one long-latency load in 50, because most loads of `rsd` "
          "hit. Ours is `nas_lu`.\n\n")
        + document.table(["", "of FULL", "of one in 50"], lu)
        + f"\nIn ours FULL's hints leave more remote misses than those of every long-latency load, by a point and more, in: {', '.join(misled) or 'none'}. "
          "Most accesses of the row-wise threads in `nas_lu` hit in the second level, because floating-point loads bypass the first. Until 2026-11-25, they "
          "hit in a first level, which FULL (loads of 4 cycles and more) did not see. And with 24 points per side, a thread's share of `rsd` fitted into "
          "its caches, so ours was not misled. FULL still saves more here than in the paper, because its hints are wrong only about `rsd`, and right about "
          "the other arrays.\n"
    )


def costs():
    """Figures 4 and 11, from the results of benches/lossy_traces and benches/sampler_cost."""
    traced_from, traced = document.measured("*-lossy-traces.md", r"^(\w+) .*, traced [\d.]+ s \((\d+) x,")
    clock_from, clock = document.measured("????-??-??.md", r"^(cg) +ours +bare ([\d.]+) s, sampled ([\d.]+) s: .* ([\d.]+) % at the default (\d+) Hz$")
    times = [int(slower) for slower, in traced.values()]
    bare, sampled, share, rate = map(float, clock["cg"])
    rows = [
        *[[f"Figure {figure}: {source}, interval 1, of FULL's time", f"{TRACE_TIME[source]} %", "–"] for figure, source in zip([4, 11], TRACE_TIME)],
        ["larger intervals", "hardly less", "–"],
        ["long-latency loads, interval 1: one time step's, of the whole program's time", f"{OF_PROGRAM} %", "–"],
        ["all misses, in emulation, of the run's time", "–", f"{min(times)} to {max(times)} times it"],
        ["the clock, of the run's time", "–", f"{100 * (sampled / bare - 1):.1f} % at 10,000 Hz, {share:g} % at {rate:.0f} Hz"],
    ]
    return (
        "\n#### Figures 4 and 11: what tracing costs\n\n" + document.table(["", "published", "ours"], rows)
        + "\nThe paper's text has only these values of the bars. Here, one trace of all misses is downsampled to each interval, so the cost is the same for "
          f"all intervals: `benches/lossy_traces` gives it for its nine programs ([{os.path.basename(traced_from)[:10]}]({document.link(traced_from)}), beside "
          f"other work). The clock source costs less at lower rates: `cg` under `benches/sampler_cost` ([{os.path.basename(clock_from)[:10]}]({document.link(clock_from)}), "
          f"nearpage chose {rate:.0f} Hz). Its cost falls with the rate. The paper's cost does not fall, because it includes the time step of the program "
          "itself.\n"
    )


def lost(drawing):
    """Figure 17, from the results of benches/live_cost."""
    path, found = document.measured("*-live-cost.md", r"^triad, (\d+) Hz +[\d.]+ % of a core, +(\d+) samples/s$")
    samples = {1e6 / int(rate): int(count) for rate, (count,) in found.items()}
    samples = dict(sorted(samples.items()))
    rarest = max(samples)
    reciprocal = {interval: samples[rarest] * rarest / interval for interval in samples}
    off = max(abs(samples[interval] / reciprocal[interval] - 1) for interval in samples)
    panel = charts.Panel("", "samples a second", list(map(round, samples)), [list(samples.values()), list(reciprocal.values())], log="xy")
    rows = [[name, *[f"{by_interval[interval]:.0f}" for interval in samples]] for name, by_interval in [("samples a second", samples), ("reciprocal, of the rarest", reciprocal)]]
    return (
        f"\n#### Figure 17, in shape: samples by interval\n\nPublished: of some six million misses PEBS samples less than {PEBS_MOST} % at an interval of "
        "1, of the first and of the second level nearly alike, and at larger intervals the number falls less than the reciprocal. Ours are samples of "
        f"the clock source, whose interval is a time: `triad` under `benches/live_cost` ([{os.path.basename(path)[:10]}]({document.link(path)}), beside "
        "other work).\n\n"
        + drawing.lines("marathe-figure-17", "Figure 17: samples a second by the clock's interval, and what the rarest says of the others", "µs between samples", ["ours", "reciprocal of the rarest"], [panel])
        + document.table(["µs between samples", *map(str, panel.labels)], rows)
        + (f"\nThe clock source's numbers are within {100 * off:.0f} % of the reciprocal. PEBS was not available for a test; the setting `pebs-10` of `nearpage "
          "downsample` takes every tenth load miss and loses none.\n")
    )
