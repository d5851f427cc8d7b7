"""The section on NumaMMA: tables and figures, published and ours. Ours are from replays, benches/sampler_cost, benches/lossy_traces and traces."""
import os

from reproduction import charts, document, pictures

PAPER, PRESET = "NumaMMA", "amd48"
# A further plan, made of the judged run itself: the paper also places the very program that it has analysed.
SAME_RUN, SAME_RUN_POLICY = "object, of the same run", "plan:object"
# Speed-ups over first touch of interleaved, block-naive, NumaMMA (Tables 3 and 4).
SPEEDUPS = {"lu_blocks": (0.96, 0.93, 1.27), "cluster": (1.22, 1.17, 1.28)}
# Overhead with every 2,000th and every 10,000th access sampled, % (Table 1); million samples with these, and % of the
# first on stacks (Table 2).
SAMPLED = {
    "bt": ((1.30, 5.46), (0.7, 172), 54.55), "cg": ((8.01, 2.93), (0.7, 41), 12.41), "ep": ((3.81, 4.40), (0.6, 19), 99.76),
    "ft": ((3.14, 10.77), (0.5, 39), 43.88), "is": ((-2.11, -4.35), (0.18, 3), 96.01), "nas_lu": ((-6.11, -0.12), (0.65, 110), 35.19),
    "mg": ((9.01, 5.48), (0.8, 22), 35.68), "sp": ((0.68, 0.59), (0.5, 334), 17.29), "ua": ((8.00, 11.37), (0.6, 171), 30.92),
}


def section(results, found, drawing):
    """Returns the section's text. `results`: those of the papers' machines; `found`: the runs for the pictures."""
    return document.joined("\n### NumaMMA\n", [sampling(), speedups(results, drawing), pictures.section(found, drawing)])


def sampling():
    """Tables 1 and 2."""
    costs_from, costs = document.measured("????-??-??.md", r"^(\w+) +ours +bare .* ([\d.]+) % at the default (\d+) Hz$")
    counts_from, counts = document.measured("*-lossy-traces.md", r"^(\w+) .*; clock (\d+) samples$")
    rows = []
    for program, (overheads, samples, of_stacks) in SAMPLED.items():
        cost = "{} at {} Hz".format(*costs[program]) if program in costs else "–"
        rows.append([
            program, f"{overheads[0]:.2f}, {overheads[1]:.2f} / {cost}", f"{samples[0]:g}, {samples[1]:g} million / {''.join(counts.get(program, ['–']))}", f"{of_stacks:.1f} / –",
        ])
    return (
        "\n#### Tables 1 and 2: what sampling costs, and how many samples there are\n\n"
        + document.table(["", "longer, %", "samples", "of stacks, %"], rows)
        + "\nPublished values are for every 2,000th and every 10,000th access sampled, with class C on 32 CPUs. Ours are by the clock source, which needs "
          f"no PMU: `benches/sampler_cost` at the rate that nearpage chooses ([{os.path.basename(costs_from)[:10]}]({document.link(costs_from)}), only `cg` "
          f"of the paper's programs), and the samples that `benches/lossy_traces` took at default settings in 0.5 to 2 s ([{os.path.basename(counts_from)[:10]}]({document.link(counts_from)})). "
          "Samples on stacks were not counted. [benches/preload_overhead](../benches/README.md) has the additional cost of logging allocations.\n"
    )


def speedups(results, drawing):
    """Tables 3 and 4."""
    found = document.of_machine(results, PRESET)
    policies = {"interleave": "interleave", "block-naive": "block-naive", "`object`": SAME_RUN}
    rows, panels = [], []
    for workload, published in SPEEDUPS.items():
        if workload in found:
            ours = document.times(found[workload])
            own = [ours["first-touch"] / ours[policy] for policy in policies.values()]
            panels.append(charts.Panel(workload, "speedup", [head.strip("`") for head in policies], [published, own], levels={"first touch": 1}))
            running = found[workload]["results"]
            several = [running["first-touch"]["parallel_ns"] / running[policy]["parallel_ns"] for policy in policies.values()]
            rows.append([workload, *[f"{theirs:.2f} / {speedup:.2f} ({part:.2f})" for theirs, speedup, part in zip(published, own, several)],
                         document.agreement(published, own), f"{ours['first-touch'] / ours['plan:object']:.2f}"])
    if not rows:
        return ""
    return (
        f"\n#### Tables 3 and 4 (`{PRESET}`): speedup over first touch\n\n"
        + drawing.bars("numamma-tables-3-4", "Tables 3 and 4: speedup over first touch, published and ours", [charts.PUBLISHED, "ours"], panels, columns=2, height=160)
        + document.table(["", *policies, "rankings", "`object`, of another input"], rows)
        + "\nPages are placed by a plan from the same run, as in the paper. Values in brackets are for the time while several threads run. Ours has 16 threads "
          "instead of 48, and pages of 4 KiB instead of 2 MiB. A plan of `lu_blocks` from another input loses, because its blocks have another size in objects "
          "of the same size (see above).\n"
    )
