"""The section on Verghese, Devine, Gupta and Rosenblum: Tables 5 and 7 to 12, and the figures of §6 and §7.

Raytrace and Splash are run here. papers/trace_real_programs runs present-day programs in place of Engineering, Database
and Pmake. The machines are as published, with undivided caches. Our runs count after initialisation, because his
checkpoints were taken there (§5). Times are sums over processors without waiting, as his cumulative CPU time.
"""
import bisect
import collections
import itertools
import json
import os
import tomllib

from reproduction import charts, document, seeds

PAPER = "Verghese"
STATIC = ["round-robin", "first-touch", "post-facto"]
DYNAMIC = ["migrate", "replicate", "migrate-replicate"]
# Names of the bars in his figures, and their policies.
HEADS, POLICIES = ["RR", "FT", "PF", "Migr", "Repl", "Base"], [*STATIC, *DYNAMIC]
TRACES, NOW, FLASH = "flash-8", "now-8", "flash-8-contended"
BASE = "migrate-replicate"
TRIGGERS, HOLDS = [32, 64, 128, 256], [16, 32, 64]
# Cycles: 400 ms of his 300 MHz (Figure 6.7).
LONG_RESET = 128_000_000
# Pages to an interrupt, on average (§8.1).
BATCH = 2.5
SOURCES = ["cache", "sampled-cache", "tlb", "sampled-tlb"]
IMPROVEMENTS = {"copy=hardware": "copies by the directory controller", "flush=mapping": "flushes where a page is mapped", "adaptive=1": "a trigger that follows contention"}

# Processors of Splash's three programs in each phase; Raytrace's as published (§5). The first processors are
# Raytrace's, the next Volume rendering's, the last Ocean's.
PROCESSORS = {"raytrace": [8, 4, 3, 6, 8], "volrend": [0, 4, 3, 0, 0], "ocean": [0, 0, 2, 2, 0]}

PROGRAMS = {"raytrace": "Raytrace", "splash": "Splash", "engineering": "Engineering", "database": "Database"}
# Trigger on FLASH, where it differs from 128 (§8.3).
FLASH_TRIGGERS = {"engineering": 96}
# Table 5, round-robin and base policy: replicated, migrated, mean and most pages, % local, seconds of stall, overhead,
# all.
TABLE_5 = {
    "raytrace": [(0, 0, 5279, 7379, 11, 11.6, 0, 29.1), (1727, 780, 6031, 8798, 64, 6.6, 0.9, 25.0)],
    "splash": [(0, 0, 10792, 14739, 11, 21.4, 0, 49.4), (2013, 4131, 11341, 16355, 66, 11.8, 2.2, 42.0)],
    "engineering": [(0, 0, 5028, 7032, 10, 29.2, 0, 48.06), (2394, 5071, 6731, 9339, 76, 13.7, 2.6, 35.16)],
    "database": [(0, 0, 4418, 5332, 14, 3.5, 0, 7.0), (209, 103, 4595, 5533, 43, 2.6, 0.1, 6.2)],
}
# Figure 6.2, in the text: share of data misses in read chains longer than 512.
CHAINS = {"raytrace": 0.60, "splash": 0.30}
# Table 7, without and with a limit: replicated, migrated, mean and most pages, % more pages, % local.
TABLE_7 = {
    "raytrace": [(1727, 780, 6031, 8798, 19, 64), (2557, 987, 5597, 7685, 4, 61)],
    "splash": [(2013, 4131, 11341, 16355, 11, 66), (2569, 4291, 10929, 14790, 0.3, 64)],
    "engineering": [(2394, 5071, 6731, 9339, 33, 76), (5905, 5214, 5858, 7778, 11, 72)],
}
# Table 8, µs a page: interrupt, decision, allocation, links and mapping, flush, copy, end, all; replication, migration.
STEPS = ["interrupt", "decision", "allocation", "mapping", "flush", "copy", "end"]
TABLE_8 = {
    "raytrace": [(24.4, 16.0, 74.4, 34.3, 61.5, 106.7, 77.4, 394.7), (24.4, 16.0, 74.4, 100.5, 61.5, 106.7, 64.9, 448.4)],
    "splash": [(22.2, 12.8, 170.6, 40.2, 51.3, 97.1, 91.9, 486.1), (22.2, 12.8, 170.6, 99.7, 51.3, 97.1, 62.4, 516.1)],
    "engineering": [(13.0, 12.6, 184.3, 28.6, 35.9, 87.0, 80.5, 441.9), (13.0, 12.6, 184.3, 75.8, 35.9, 87.0, 63.4, 472.0)],
}
# Table 9: seconds, then % of flush, allocation, copy, fault, links and mapping, end, decision, interrupt.
FUNCTIONS = ["flush", "allocation", "copy", "fault", "mapping", "end", "decision", "interrupt"]
TABLE_9 = {
    "raytrace": (1.80, 54.4, 7.6, 10.8, 5.4, 7.4, 7.4, 2.6, 2.6),
    "splash": (4.00, 44.1, 20.7, 8.1, 7.3, 6.5, 6.3, 2.0, 1.9),
    "engineering": (4.54, 34.5, 25.5, 11.1, 8.9, 8.3, 8.8, 2.1, 1.7),
}
# §8.2: share of that time spent waiting for the memory lock.
LOCK = {"splash": 17, "engineering": 33}
# Table 10, first touch and the policy: % local, seconds of user stall, user, kernel, all.
TABLE_10 = {
    "raytrace": [(16, 28.4, 51.3, 18.2, 69.4), (53, 18.2, 40.9, 18.3, 59.2)],
    "splash": [(18, 28.2, 56.5, 15.0, 71.5), (50, 21.5, 49.3, 19.1, 68.4)],
    "engineering": [(12, 35.4, 45.7, 3.6, 49.3), (63, 17.0, 27.4, 7.7, 35.1)],
}
# Table 11, µs of a local and a remote miss: first touch, the policy.
TABLE_11 = {"raytrace": [(1.15, 2.93), (0.69, 2.78)], "splash": [(0.74, 2.20), (0.60, 2.28)], "engineering": [(0.78, 2.26), (0.51, 2.01)]}
# Table 12: % local, % less user stall, % less time; by traces and on FLASH.
TABLE_12 = {
    "raytrace": [(64, 35.0, 9.6), (53, 35.8, 14.7)],
    "splash": [(66, 35.6, 9.4), (50, 23.7, 4.4)],
    "engineering": [(76, 51.5, 27.7), (63, 52.1, 28.9)],
}
# §6.2.1: share of Database's data misses to read-mostly pages.
READ_MOSTLY = {"database": 0.10}


def jobs(tools):
    """Returns the runs by workload: functions whose results `section` writes about."""
    chosen = tools.matrix["verghese"]
    # As published, caches are not divided.
    file = os.path.join(tools.folder, f"verghese-{TRACES}.toml")
    with open(file, "w") as machine_file:
        machine_file.write(tools.command(["machine", "--machine", TRACES, "--toml"], 1))
    machine = {"file": file, "threads": chosen["threads"], "layout": chosen["layout"]}
    how = chosen["workloads"]
    return {"raytrace": lambda: raytrace(tools, machine, how["raytrace"]), "splash": lambda: splash(tools, machine, how["splash"])}


def raytrace(tools, machine, arguments):
    path = os.path.join(tools.folder, "verghese-raytrace")
    key, tracing = tools.traced(machine, "raytrace", arguments, path)
    results, replaying = tools.cached(path + ".results.json", [*key, tools.version], lambda: tools.timed(lambda: replay(tools.command, [path], counted(tools.command, [path]))))
    return {"arguments": f"raytrace {arguments}", "tracing_s": tracing, "replaying_s": replaying, **results}


def splash(tools, machine, how):
    """Records the three programs, each on its own processors, and replays them together."""
    programs, keys, tracing = {}, [], 0
    for program, arguments in how["programs"].items():
        path = os.path.join(tools.folder, f"verghese-splash-{program}")
        schedule = path + ".moves.toml"
        with open(schedule, "w") as file:
            file.write(moves(program, how))
        key, seconds = tools.traced({**machine, "threads": max(PROCESSORS[program]), "schedule": schedule}, program, arguments, path)
        programs[program], keys, tracing = path, [*keys, *key], tracing + seconds
    starts = "".join(f"[[program]]\nstart_ns = {enters(program) * how['phase_ns']}\nfrom_mark = {json.dumps(enters(program) > 0)}\n" for program in programs)
    file = os.path.join(tools.folder, "verghese-splash.toml")
    with open(file, "w") as schedule:
        schedule.write(starts)
    paths = list(programs.values())
    judge = lambda: replay(tools.command, paths, counted(tools.command, paths), "--schedule", file)
    results, replaying = tools.cached(os.path.join(tools.folder, "verghese-splash.results.json"), [*keys, starts, tools.version], lambda: tools.timed(judge))
    return {"arguments": ", ".join(f"{program} {arguments}" for program, arguments in how["programs"].items()), "tracing_s": tracing, "replaying_s": replaying, **results}


def enters(program):
    """Returns the first phase in which the program runs."""
    return next(phase for phase, processors in enumerate(PROCESSORS[program]) if processors)


def moves(program, how):
    """Returns the schedule file of a program: its threads go round the program's processors of each phase."""
    first, before = enters(program), list(PROCESSORS)[:list(PROCESSORS).index(program)]
    build_ns, phase_ns = (how["raytrace_build_ns"], how["raytrace_phase_ns"]) if program == "raytrace" else (0, how["phase_ns"])
    text = ""
    for phase, processors in enumerate(PROCESSORS[program]):
        if processors:
            lowest = sum(PROCESSORS[other][phase] for other in before)
            at_ns = build_ns + (phase - first) * phase_ns if phase > first else 0
            text += "".join(f"[[move]]\nthread = {thread}\nat_ns = {at_ns}\ncpu = {lowest + thread % processors}\n" for thread in range(max(PROCESSORS[program])))
    return text


def simulate(command, paths, machine, policies, *words):
    """Returns results by policy. With random samples: the run with the median time of several seeds."""
    def once(policies, *more):
        arguments = ["simulate", *paths, "--machine", machine, "--json", "--movements", "0", "--policy", ",".join(policies), *words, *more]
        return {result["policy"]: result for result in json.loads(command(arguments, 1))["results"]}

    return seeds.medians(once(policies), words, lambda policy, *more: once([policy], *more)[policy])


def chains(reports):
    """Returns shares of the data misses by length of read chain, over all programs. Programs share no written pages."""
    sums = collections.Counter()
    for report in reports:
        for chain in report["read_chains"]["shares"]:
            sums[chain["length"]] += chain["share"] * report["data_misses"]
    return {length: misses / sum(report["data_misses"] for report in reports) for length, misses in sums.items()}


def merged(parts):
    """Returns the share of the cache misses in the hottest 0, 1, … 100 % of all pages. `parts`: groups of pages, as (sort key, pages, cache misses)."""
    parts = sorted(parts, key=lambda part: part[0] / part[1], reverse=True)
    pages, misses = (list(itertools.accumulate(part[what] for part in parts)) for what in [1, 2])
    def upto(wanted):
        at = bisect.bisect_left(pages, wanted)
        return misses[at] - parts[at][2] * (pages[at] - wanted) / parts[at][1]
    return [0, *[upto(pages[-1] * percent / 100) / misses[-1] for percent in range(1, 101)]]


def hot_pages(reports):
    """Returns Figure 7.2's curves over the pages of all programs. Each report has its program's pages in steps of one percent."""
    by_cache, by_tlb = [], []
    for report in reports:
        curves = report["hot_pages"]
        steps = lambda name, all_misses: [all_misses * (after - before) for before, after in itertools.pairwise(curves[name])]
        cache_misses = report["data_misses"] + report["fetch_misses"]
        pages = [after - before for before, after in itertools.pairwise(curves["pages"] * percent // 100 for percent in range(101))]
        of_cache, of_tlb = (steps(name, cache_misses) for name in ["by_cache_misses", "by_tlb_misses"])
        # With few pages, some steps have none.
        by_cache += [part for part in zip(of_cache, pages, of_cache) if part[1]]
        by_tlb += [part for part in zip(steps("tlb_misses", report["tlb_misses"]), pages, of_tlb) if part[1]]
    return {"by_cache_misses": merged(by_cache), "by_tlb_misses": merged(by_tlb)}


def counted(command, paths):
    """Returns the `trace` part of each recording's report."""
    return [json.loads(command(["report", path, "--json"], 1))["trace"] for path in paths]


def replay(command, paths, reports, *words, flash_trigger=128):
    """Simulates every policy on his three machines, and variants of the base policy. `reports`: from `counted`."""
    set_words = lambda settings: [word for setting in settings for word in ("--set", setting)]
    one = lambda machine, *settings: simulate(command, paths, machine, [BASE], *words, *set_words(settings))[BASE]
    base = lambda *settings: one(TRACES, *settings)
    on_flash = [f"trigger={flash_trigger}", f"hold={flash_trigger // 4}"] if flash_trigger != 128 else []
    found = {
        TRACES: simulate(command, paths, TRACES, POLICIES, *words),
        NOW: simulate(command, paths, NOW, POLICIES, *words),
        FLASH: simulate(command, paths, FLASH, ["first-touch", *DYNAMIC], *words, *set_words(on_flash)),
    }
    least, most = (found[TRACES][policy]["pages_max"] for policy in ["round-robin", BASE])
    # As in his Table 7, the limit leaves half of the additional pages that the policy had used.
    limit = (least + most) // 2
    return {
        **found,
        "steps": tomllib.loads(command(["machine", "--machine", FLASH, "--toml"], 1))["moves"]["steps"],
        "memory_pages": limit,
        "limited": base(f"memory_pages={limit}"),
        "limited, adaptive": base(f"memory_pages={limit}", "adaptive=1"),
        "trigger": {trigger: base(f"trigger={trigger}", f"hold={trigger // 4}") for trigger in TRIGGERS if trigger != 128},
        "hold": {hold: base(f"hold={hold}") for hold in HOLDS if hold != 32},
        "reset": base(f"reset={LONG_RESET}"),
        "source": {source: base(f"source={source}") for source in SOURCES if source != "cache"},
        "improved": {setting: one(FLASH, setting, *on_flash) for setting in IMPROVEMENTS},
        "sampled on FLASH": one(FLASH, "source=sampled-cache", *on_flash),
        "chains": chains(reports),
        "read_mostly": sum(report["read_mostly"]["page"] * report["data_misses"] for report in reports) / sum(report["data_misses"] for report in reports),
        "hot_pages": hot_pages(reports),
    }


def all_results(found):
    """Returns the results of all replays of a workload."""
    return [found] if "misses" in found else [result for part in found.values() if isinstance(part, dict) for result in all_results(part)]


def seconds(ns):
    return ns / 1e9


def stall(result):
    return result["local_stall_ns"] + result["remote_stall_ns"]


def user(result):
    return result["compute_ns"] + stall(result)


def busy(result):
    """Time of all processors without waiting, in nanoseconds."""
    return user(result) + result["move_ns"]


def less(result, than, of=busy):
    return 1 - of(result) / of(than)


def local(result):
    return f"{100 * result['local_share']:.0f}"


def keyed(results, middle, at):
    """Returns results by threshold, with the base policy's result `middle` at the threshold `at`. Keys from a JSON file are strings."""
    return {at: middle, **{int(value): result for value, result in results.items()}}


class Claims:
    """The paper's statements about workloads, and whether they hold here."""

    def __init__(self):
        self.rows = []

    def add(self, where, workload, words, holds, ours):
        self.rows.append([where, PROGRAMS.get(workload, workload), words, "yes" if holds else "**no**", ours])

    def table(self):
        return document.table(["", "", "published", "so here", "ours"], self.rows)

    def text(self):
        agreed = sum(row[3] == "yes" for row in self.rows)
        return (
            "### What the paper says of them, and ours\n\n"
            + self.table()
            + f"\n{agreed} of {len(self.rows)} agree. \"Hardly matters\" and \"as well\" mean within 2 % of the time or 5 points of locality. A published percentage "
              "agrees within 5 points of time and 15 points of misses.\n"
        )


PARTS = ["compute_ns", "local_stall_ns", "remote_stall_ns", "move_ns"]
BARS = "time against round-robin = computing + local + remote stall + overhead (% of misses local)"


def split(result, whole):
    """Formats a bar of Figure 6.1 in percent of the time of `whole`: computing, local and remote stall, overhead."""
    bar = " + ".join(f"{100 * result[part] / busy(whole):.0f}" for part in PARTS)
    return f"{100 * busy(result) / busy(whole):.0f} = {bar} ({local(result)})"


def published_time(workload, policy):
    """Published time in percent of round-robin's (Table 5), or None."""
    (*_, whole), (*_, base) = TABLE_5[workload]
    return 100 * {"round-robin": whole, BASE: base}[policy] / whole if policy in ["round-robin", BASE] else None


def bars(found, drawing, figure, heads, results, published, whole_of=lambda one: one[TRACES]["round-robin"]):
    """Draws a figure with bars like Figure 6.1's. `results` and `published` return a workload's simulated results and published values."""
    panels, rows = [], []
    for workload, one in found.items():
        whole, own = whole_of(one), results(one)
        name = PROGRAMS.get(workload, workload)
        parts = [[100 * result[part] / busy(whole) for result in own] for part in PARTS]
        labels = [f"{head.replace(' ', chr(10)) if len(head) > 8 else head}\n{local(result)} %" for head, result in zip(heads, own)]
        panels.append(charts.Panel(name, "% of round-robin's time", labels, parts, published(workload)))
        rows.append([name, *[split(result, whole) for result in own]])
    return (
        drawing.bars(f"verghese-figure-{figure}", f"Figure {figure}: time in percent of round-robin's, computing, stall and overhead; under each bar the share of misses that are local",
                     ["computing", "local stall", "remote stall", "overhead"], panels, columns=2, stacked=True),
        rows,
    )


def policies(found, drawing, title, figure, machine):
    published = lambda workload: [published_time(workload, policy) for policy in POLICIES] if machine == TRACES else []
    chart, rows = bars(found, drawing, figure, HEADS, lambda one: [one[machine][policy] for policy in POLICIES], published, lambda one: one[machine]["round-robin"])
    return f"### {title}: {BARS}\n\n" + chart + document.table(["", *HEADS], rows)


def kernel(command, paths, *words):
    """Figure 6.4: simulates every policy on a guest's recording with only the kernel's misses."""
    return {name: simulate(command, paths, machine, POLICIES, "--only", "kernel", *words) for name, machine in {"CC-NUMA": TRACES, "CC-NOW": NOW}.items()}


def figure_6_4(found, drawing):
    """Returns the text of Figure 6.4. `found`: the result of `kernel`."""
    chart, rows = bars(found, drawing, "6.4", HEADS, lambda one: [one[policy] for policy in POLICIES], lambda _: [], lambda one: one["round-robin"])
    said = Claims()
    for machine, one in found.items():
        against = lambda result: document.percent(busy(result) / busy(one["first-touch"]) - 1)
        add = lambda words, holds, ours: said.add("6.4", machine, words, holds, ours)
        rr = document.percent(busy(one["first-touch"]) / busy(one["round-robin"]) - 1)
        add("first touch gives some benefit over round-robin", busy(one["first-touch"]) < busy(one["round-robin"]), rr)
        dynamic = {policy: one[policy] for policy in DYNAMIC}
        all_against = ", ".join(f"{policy} {against(result)}" for policy, result in dynamic.items())
        add("no dynamic policy gives much beyond it", max(less(result, one["first-touch"]) for result in dynamic.values()) < 0.02, all_against)
        add("what little there is comes of replication", min(busy(one["replicate"]), busy(one[BASE])) < busy(one["migrate"]), all_against)
    return f"### Figure 6.4 (Pmake, the kernel's misses alone): {BARS}\n\n" + chart + document.table(["", *HEADS], rows) + "\n" + said.table()


def pair(theirs, own, digits=0):
    return f"{theirs:g} / {own:.{digits}f}"


def table_5(found):
    rows = []
    for workload, one in found.items():
        for policy, theirs in zip(["round-robin", BASE], TABLE_5[workload]):
            own = one[TRACES][policy]
            figures = [own["replicated"], own["migrated"], own["pages_mean"], own["pages_max"], 100 * own["local_share"]]
            times = [stall(own), own["move_ns"], busy(own)]
            rows.append([PROGRAMS[workload], policy, *[pair(*both) for both in zip(theirs, figures)],
                         *[pair(published, seconds(ns), 1) for published, ns in zip(theirs[5:], times)]])
    return "### Table 5 (`flash-8`): round-robin and the base policy\n\n" + document.table(
        ["", "", "replicated", "migrated", "pages, average", "most", "% local", "stall, s", "overhead, s", "all, s"], rows)


def table_7(found):
    rows = []
    for workload, one in found.items():
        for limit, own, theirs in zip(["unlimited", f"{one['memory_pages']} pages"], [one[TRACES][BASE], one["limited"]], TABLE_7[workload]):
            more = 100 * (own["pages_max"] / one[TRACES]["round-robin"]["pages_max"] - 1)
            figures = [own["replicated"], own["migrated"], own["pages_mean"], own["pages_max"], more, 100 * own["local_share"]]
            rows.append([PROGRAMS[workload], limit, *[pair(*both) for both in zip(theirs, figures)], str(own["reclaimed"])])
    return "### Table 7: half of the additional pages\n\n" + document.table(
        ["", "", "replicated", "migrated", "pages, average", "most", "% more pages", "% local", "reclaimed"], rows)


def functions(result):
    """Returns Table 9's functions in nanoseconds. Waits for the lock count as allocation, and flushes for other CPUs as flushes."""
    parts = result["move_split"]
    sums = {name: parts[name + "_ns"] for name in FUNCTIONS}
    sums["allocation"] += parts["lock_ns"]
    sums["flush"] += parts["flush_request_ns"]
    return sums


def table_8(found):
    rows = []
    for workload, one in found.items():
        for kind, policy, theirs in zip(["replication", "migration"], ["replicate", "migrate"], TABLE_8[workload]):
            own = one[FLASH][policy]
            parts = functions(own)
            # The table leaves out the time that other processors lose.
            parts["flush"] -= own["move_split"]["flush_request_ns"]
            pages = own["replicated"] + own["migrated"]
            each = [parts[step] / max(pages, 1) / 1e3 for step in STEPS]
            own_steps = one["steps"]
            once_ns = own_steps["interrupt_ns"] + own_steps["flush_ns"]
            batch = own_steps["interrupt_ns"] * pages / own["move_split"]["interrupt_ns"] if pages else 0
            at_his = sum(each) - each[STEPS.index("interrupt")] - each[STEPS.index("flush")] + once_ns / BATCH / 1e3
            rows.append([PROGRAMS[workload], kind, *[pair(*both, 1) for both in zip(theirs, [*each, sum(each)])], pair(BATCH, batch, 1), pair(theirs[-1], at_his, 1)])
    return "### Table 8 (`flash-8-contended`): µs a page\n\n" + document.table(
        ["", "", "interrupt", "decision", "allocation", "links, mapping", "flush", "copy", "end", "all", "pages a batch", "all, in batches of 2.5"], rows) + (
        "\nReplication is under `replicate`, migration under `migrate`; each figure is a mean over all moved pages. The machine's steps are those of his "
        "Raytrace, with interrupt and flush for a batch of two and a half pages. Measured here are the sizes of batches, and the waits for the lock (in "
        "allocation) and for controllers (in copy). A collapse's mapping, flush and end are in the columns of these names.\n")


def table_9(found):
    rows = []
    for workload, one in found.items():
        own = one[FLASH][BASE]
        parts, whole = functions(own), own["move_ns"]
        published, *theirs = TABLE_9[workload]
        shares = [100 * parts[name] / whole for name in FUNCTIONS]
        lock = 100 * own["move_split"]["lock_ns"] / whole
        rows.append([PROGRAMS[workload], pair(published, seconds(whole), 2), *[pair(*both, 1) for both in zip(theirs, shares)],
                     document.agreement(theirs, shares), f"{LOCK.get(workload, '–')} / {lock:.1f}"])
    return "### Table 9: the overhead by function, %\n\n" + document.table(
        ["", "s", "flush", "allocation", "copy", "fault", "links, mapping", "end", "decision", "interrupt", "rankings", "the lock"], rows) + (
        ("\nThe time that each of the other seven processors loses for a requested flush was derived from his row of Raytrace. So this row is not evidence; "
        "the others are.\n"))


def table_10(found):
    rows = []
    for workload, one in found.items():
        for policy, theirs in zip(["first-touch", BASE], TABLE_10[workload]):
            own = one[FLASH][policy]
            times = [stall(own), user(own), own["move_ns"], busy(own)]
            rows.append([PROGRAMS[workload], policy, pair(theirs[0], 100 * own["local_share"]),
                         *[pair(published, seconds(ns), 2) for published, ns in zip(theirs[1:], times)]])
    return "### Table 10 (`flash-8-contended`): first touch and the policy, seconds\n\n" + document.table(
        ["", "", "% local", "user stall", "user", "kernel", "all"], rows) + (
        "\nOur kernel time has only the cost of moving pages; his includes other work, also under first touch.\n")


def table_11(found):
    rows = []
    for workload, one in found.items():
        for machine in [FLASH, TRACES]:
            own = [[one[machine][policy][side + "_latency_ns"] / 1e3 for side in ["local", "remote"]] for policy in ["first-touch", BASE]]
            published = TABLE_11[workload] if machine == FLASH else None
            change = lambda pairs: [100 * (1 - after / before) for before, after in zip(*pairs)]
            cell = lambda theirs, ours, digits: f"{'–' if theirs is None else f'{theirs:.{digits}f}'} / {ours:.{digits}f}"
            cells = [cell(published and published[policy][side], own[policy][side], 2) for policy in range(2) for side in range(2)]
            gains = [cell(published and change(published)[side], change(own)[side], 1) for side in range(2)]
            rows.append([PROGRAMS[workload], f"`{machine}`", *cells, *gains])
    return "### Table 11: latency of a miss, µs\n\n" + document.table(
        ["", "", "first touch, local", "remote", "the policy, local", "remote", "% less, local", "remote"], rows) + (
        "\n`flash-8` has no contention, like his analysis of traces.\n")


def table_12(found):
    rows = []
    for workload, one in found.items():
        for model, machine, theirs in zip(["traces", "FLASH"], [TRACES, FLASH], TABLE_12[workload]):
            own, touch = one[machine][BASE], one[machine]["first-touch"]
            figures = [100 * own["local_share"], 100 * less(own, touch, stall), 100 * less(own, touch)]
            rows.append([PROGRAMS[workload], f"{model} (`{machine}`)", pair(theirs[0], figures[0]), *[pair(*both, 1) for both in zip(theirs[1:], figures[1:])]])
    return "### Table 12: less time than under first touch, %\n\n" + document.table(["", "", "% local", "less user stall", "less time"], rows)


def sensitivity(found, drawing):
    """Figures 6.5 to 6.7 and 7.1."""
    def figure(number, said, heads, results, base):
        published = lambda workload: [published_time(workload, BASE) if at == base else None for at in range(len(heads))]
        chart, rows = bars(found, drawing, number, heads, results, published)
        return chart + document.table([f"Figure {number}{said}", *heads], rows)
    base = lambda one: one[TRACES][BASE]
    triggers = lambda one: [keyed(one["trigger"], base(one), 128)[value] for value in TRIGGERS]
    holds = lambda one: [keyed(one["hold"], base(one), 32)[value] for value in HOLDS]
    sources = lambda one: [base(one), *[one["source"][source] for source in SOURCES[1:]]]
    return (
        ("### Figures 6.5 to 6.7 and 7.1 (`flash-8`), as Figure 6.1\n\nThe figures vary the trigger (with a hold threshold of a quarter of it), the hold "
        "threshold, the reset interval, and the events that the policy sees. Published in the pictures is only the base policy, which is one bar of each "
        "(Table 5).\n\n")
        + figure("6.5", ": trigger", list(map(str, TRIGGERS)), triggers, TRIGGERS.index(128)) + "\n"
        + figure("6.6", ": hold", list(map(str, HOLDS)), holds, HOLDS.index(32)) + "\n"
        + figure("6.7", ": reset", ["100 ms", "400 ms"], lambda one: [base(one), one["reset"]], 0) + "\n"
        + figure("7.1", "", ["full cache", "sampled cache", "full TLB", "sampled TLB"], sources, 0)
    )


def misses(found, drawing):
    """Figures 6.2 and 7.2."""
    lengths = [1, 8, 64, 512, 2048]
    chains = lambda one: {int(length): share for length, share in one["chains"].items()}
    chain_rows = [[PROGRAMS[workload], *[f"{100 * chains(one).get(length, 0):.0f}" for length in lengths]] for workload, one in found.items()]
    percents = [5, 10, 20, 30, 50]
    hot = lambda one, at: f"{100 * one['hot_pages']['by_cache_misses'][at]:.0f} / {100 * one['hot_pages']['by_tlb_misses'][at]:.0f}"
    hot_rows = [[PROGRAMS[workload], *[hot(one, at) for at in percents]] for workload, one in found.items()]
    names = [PROGRAMS[workload] for workload in found]
    theirs = [[100 * CHAINS[workload] if length == 512 and workload in CHAINS else None for length in lengths] for workload in found]
    ours = [[100 * chains(one).get(length, 0) for length in lengths] for one in found.values()]
    panels = [charts.Panel(name, "% of data misses", lengths, list(both), log="x") for name, both in zip(names, zip(theirs, ours))]
    long_chains = drawing.lines("verghese-figure-6.2", "Figure 6.2: percent of data misses in read chains of so many reads and more, published and ours", "reads in a chain, and more",
                                [charts.PUBLISHED, "ours"], panels, columns=len(panels))
    panels = [
        charts.Panel(PROGRAMS[workload], "% of cache misses", percents, [[100 * one["hot_pages"][kind][at] for at in percents] for kind in ["by_cache_misses", "by_tlb_misses"]])
        for workload, one in found.items()
    ]
    hottest = drawing.lines("verghese-figure-7.2", "Figure 7.2: percent of cache misses to the pages that have most cache misses, and to those that have most TLB misses", "% of the pages",
                            ["pages by cache misses", "pages by TLB misses"], panels, columns=len(panels))
    return (
        "### Figure 6.2: % of data misses in read chains of so many reads and more\n\n" + long_chains + document.table(["", *map(str, lengths)], chain_rows)
        + "\n### Figure 7.2: % of cache misses to the pages with most cache misses / most TLB misses\n\n"
        + hottest + document.table(["% of the pages", *map(str, percents)], hot_rows)
    )


def claims_of_settings(add, workload, one, against):
    """Checks the paper's statements about other thresholds, sources and costs."""
    rr, base, moved = one[TRACES]["round-robin"], one[TRACES][BASE], one[FLASH][BASE]
    triggers = keyed(one["trigger"], base, 128)
    falling = [triggers[value] for value in TRIGGERS]
    pairs = list(zip(falling, falling[1:]))
    add("6.5", "the smaller the trigger, the less stall, the more overhead", all(stall(a) <= stall(b) and a["move_ns"] >= b["move_ns"] for a, b in pairs),
        "; ".join(f"{value}: {100 * stall(triggers[value]) / busy(rr):.0f} + {100 * triggers[value]['move_ns'] / busy(rr):.0f}" for value in TRIGGERS))
    spread = lambda results: max(map(busy, results)) / min(map(busy, results)) - 1
    add("6.6", "the hold threshold hardly matters", spread([base, *one["hold"].values()]) < 0.02, f"{100 * spread([base, *one['hold'].values()]):.1f} % between all")
    add("6.7", "400 ms between resets hardly matter", spread([base, one["reset"]]) < 0.02, f"{against(one['reset'], base)}")
    if workload in TABLE_7:
        limited = one["limited"]
        (_, _, _, _, _, share), (_, _, _, _, _, limited_share) = TABLE_7[workload]
        add("Table 7", f"with half of the additional pages hardly less is local ({share} %, {limited_share} %)", base["local_share"] - limited["local_share"] < 0.05, f"{local(base)} %, {local(limited)} %")
        add("Table 7", "more replications", limited["replicated"] > base["replicated"], f"{base['replicated']}, {limited['replicated']}")
        adaptive, moves = one["limited, adaptive"], lambda result: result["replicated"] + result["migrated"]
        add("§6.2.2", "a trigger that follows memory pressure moves fewer pages then", moves(adaptive) < moves(limited),
            f"{moves(adaptive)} for {moves(limited)}, {local(adaptive)} % local for {local(limited)}, {against(adaptive, limited)}")
    source = one["source"]
    add("7.1", "sampled cache misses do as well as all", spread([base, source["sampled-cache"]]) < 0.02, f"{local(source['sampled-cache'])} % local, {against(source['sampled-cache'], base)}")
    tlb = f"{local(source['tlb'])} % local, {against(source['tlb'], base)}"
    if workload == "database":
        add("7.1", "TLB misses do as well, as much is local", abs(source["tlb"]["local_share"] - base["local_share"]) < 0.05, tlb)
    else:
        add("7.1", "TLB misses do worse", source["tlb"]["local_share"] < base["local_share"], tlb)
    add("7.1", "sampled TLB misses do as all of them", spread([source["tlb"], source["sampled-tlb"]]) < 0.02, f"{local(source['sampled-tlb'])} % local, {against(source['sampled-tlb'], base)}")
    if workload not in TABLE_9:
        return
    parts = functions(moved)
    largest = sorted(parts, key=parts.get, reverse=True)[:3]
    add("Table 9", "flushing, allocating and copying are most of the overhead", set(largest) == {"flush", "allocation", "copy"}, ", ".join(f"{name} {100 * parts[name] / moved['move_ns']:.0f} %" for name in largest))
    for setting, words in IMPROVEMENTS.items():
        better = one["improved"][setting]
        add("§8.2", f"{words}: less time", busy(better) < busy(moved), f"{against(better, moved)}, overhead {document.percent(better['move_ns'] / moved['move_ns'] - 1)}")
    add("§8.3", "sampling does as well on FLASH", spread([moved, one["sampled on FLASH"]]) < 0.02, against(one["sampled on FLASH"], moved))


def claims(found):
    said = Claims()
    for workload, one in found.items():
        add = lambda where, words, holds, ours: said.add(where, workload, words, holds, ours)
        traces, now, flash = one[TRACES], one[NOW], one[FLASH]
        rr, base = traces["round-robin"], traces[BASE]
        against = lambda result, than=rr: document.percent(busy(result) / busy(than) - 1)
        best_static = min((traces[policy] for policy in STATIC), key=busy)
        if workload != "database":
            add("6.1", "the base policy beats every static one, post-facto too", busy(base) < busy(best_static), f"{against(base)} of RR, the best static {against(best_static)}")
        halves = [traces[half] for half in ["migrate", "replicate"]]
        if workload == "raytrace":
            add("6.1", "both replication alone and the base policy take 15 % off", max(abs(less(result, rr) - 0.15) for result in [halves[1], base]) < 0.05,
                f"{against(halves[1])}, {against(base)}")
            add("6.1", "migration does not give much benefit", less(halves[0], rr) < 0.5 * less(base, rr), against(halves[0]))
        if workload in ["splash", "engineering"]:
            add("6.1", "each half alone has a part of the base policy's gain", min(busy(half) for half in halves) > 1.005 * busy(base),
                f"migrate {against(halves[0])}, replicate {against(halves[1])}, both {against(base)}")
        if workload == "engineering":
            add("6.1", "the base policy takes 28 % off", abs(less(base, rr) - 0.28) < 0.05, against(base))
            add("6.1", "both halves are successful", max(busy(half) for half in halves) < 0.98 * busy(traces["first-touch"]),
                ", ".join(f"{half} {against(traces[half], traces['first-touch'])} of FT" for half in ["migrate", "replicate"]))
        if workload == "database":
            touched = traces["first-touch"]
            add("6.1", "first touch takes 12 % off", abs(less(touched, rr) - 0.12) < 0.05, against(touched))
            others = {policy: less(traces[policy], touched) for policy in ["post-facto", *DYNAMIC]}
            add("6.1", "no other policy gives much beyond it", max(others.values()) < 0.02, ", ".join(f"{policy} {document.percent(-gain)}" for policy, gain in others.items()))
        if workload in READ_MOSTLY:
            add("6.1", f"only about {100 * READ_MOSTLY[workload]:.0f} % of the data misses are to read-mostly pages", abs(one["read_mostly"] - READ_MOSTLY[workload]) < 0.15, f"{100 * one['read_mostly']:.0f} %")
        long_chains = {int(length): share for length, share in one["chains"].items()}.get(512, 0)
        if workload in CHAINS:
            add("6.2", f"{100 * CHAINS[workload]:.0f} % of data misses in read chains longer than 512", abs(long_chains - CHAINS[workload]) < 0.15, f"{100 * long_chains:.0f} %")
        add("6.3", "gains more on CC-NOW than on CC-NUMA", less(now[BASE], now["round-robin"]) > less(base, rr), f"{against(now[BASE], now['round-robin'])} and {against(base)}")
        touch, moved = flash["first-touch"], flash[BASE]
        claims_of_settings(add, workload, one, against)
        if workload not in TABLE_12:
            continue
        add("Table 10", "less user stall, more kernel, less in all", stall(moved) < stall(touch) and moved["move_ns"] > 0 and busy(moved) < busy(touch), against(moved, touch))
        latency = lambda result, side: result[side + "_latency_ns"]
        add("Table 11", "a local miss takes less time under the policy", latency(moved, "local") < latency(touch, "local"), document.percent(latency(moved, "local") / latency(touch, "local") - 1))
        remote = [first[1] > second[1] for first, second in [TABLE_11[workload]]][0]
        add("Table 11", f"a remote miss takes {'less' if remote else 'more'}", (latency(moved, "remote") < latency(touch, "remote")) == remote, document.percent(latency(moved, "remote") / latency(touch, "remote") - 1))
        add("Table 12", "less is local on FLASH than by traces", moved["local_share"] < base["local_share"], f"{local(moved)} %, {local(base)} %")
        by_traces, on_flash = (theirs[2] for theirs in TABLE_12[workload])
        gains = less(base, traces["first-touch"]), less(moved, touch)
        add("Table 12", f"gains {'more' if on_flash > by_traces else 'less'} on FLASH", (gains[1] > gains[0]) == (on_flash > by_traces), f"{document.percent(-gains[1])}, {document.percent(-gains[0])}")
    return said.text()


WHY = """### Where ours differs, and why (2026-11-28)

- Until 2026-11-28, 35 of the 47 rows agreed. Two things were wrong. Raytrace rendered four small images of a small scene, all of whose spheres
  reflected: its misses were spread evenly over 770 pages, each near the trigger. Now it renders one image, as his does. It has 5,548 pages (his
  7,257, with its files), of which a tenth have 60 % of the misses. And replays did not know barriers: in Splash, the main thread ended the phase that
  counts before others had done their work, if their memory was slower than its own.
- Raytrace gains 16.3 % over round-robin (his 14.1 %), with 56 % local misses (64 %). Splash gains 17.6 % (15.0 %), with 61 % (66 %), and 7.4 % over first
  touch on FLASH (4.4 %). No parameter of the policy is ours.
- There are more misses than his: stall is 57 and 54 % of the time under round-robin, his 40 and 43 %.
- Figure 6.2, Splash: most misses are Raytrace's, to a scene that no thread writes. Our Volume rendering and Ocean miss less than his.
- Figure 6.1, Splash: threads move to their program's processors, and leave pages that they have written behind. 3,101 pages migrate (his 4,131). But
  migration alone gains nothing over first touch, and replication alone as much as both: migration could gain in Ocean's rows, whose misses are few.
- Volume rendering and Ocean begin at fixed times after Raytrace has built its scene. Raytrace gives up processors at fixed points of its own run, which it
  reaches sooner under a better policy. If programs overlap, they take turns on a processor. Waiting for a turn is not counted. Eight threads on three
  processors share their caches, as traced; he had as many processes as processors.
- Tables 8 and 9, flushes: in 500 µs, 1.1 to 1.4 hot pages come together here and two and a half in his runs, so each page pays for twice as many
  interrupts and flushes. With batches of his size, the sums are within 7 % of his for Raytrace (last column of Table 8). So the overhead on FLASH is
  three to four times that by traces, and Raytrace gains less on FLASH than by traces (Table 12). His lock explains his higher allocation time of Splash.
- A trigger that follows contention changes nothing, because there is no contention: about 1 % of the overhead is waiting for the lock (his 17 %).
  In his kernel, other code uses the lock, too. A trigger that follows memory pressure behaves as he expects.
- §8.3, Splash: with one miss in ten drawn at random, some pages at the border exceed the trigger that they do not reach with all misses; 2.1 % more
  time, where 2 % would count as the same.
- Table 9, faults: his faults are on pages that are read-only while they move. Here, a page moves at once, and at most 65 copies are stored to.
- Table 11: under the policy, local misses gain more than his. Here, only directories contend, for 270 ns per request, not buses or memory. Remote misses
  are an eighth to a fifth above their minimum, so they can gain little.
"""


def section(found, drawing):
    """Returns the section's text. `found`: results of the functions of `jobs`, by workload."""
    if not found:
        return ""
    found = {workload: found[workload] for workload in PROGRAMS if workload in found}
    counted = [[result["misses"] for result in all_results(one)] for one in found.values()]
    uncounted = max(100 * (1 - min(misses) / max(misses)) for misses in counted)
    spent = [sum(one[what] for one in found.values()) for what in ["tracing_s", "replaying_s"]]
    inputs = "; ".join(f"{PROGRAMS[workload]} is `{one['arguments']}`" for workload, one in found.items())
    return "\n".join([
        f"## Verghese's tables and figures\n\nThe machines are as published, including caches, and each workload has one input: {inputs}. Our own programs "
        "replace his, at their default sizes, but for a smaller volume. Splash "
        "consists of three programs. Each is recorded while its threads move to the program's processors in turn: Raytrace has 8, 4, 3, 6 and 8 processors "
        "while Volume rendering and Ocean start and end. `simulate` replays the three together. Runs count after initialisation, like his checkpoints; "
        f"Splash counts after Raytrace's initialisation, and ends with Raytrace. The other programs' remaining work is then at most {uncounted:.1f} % of "
        "the misses. Times are sums over processors without waiting. Figures are published / ours; if only directions can be compared, they are ours alone. "
        "Engineering and Database are in [real_programs.md](real_programs.md), so are Tables 2 to 4 and 6, and Pmake with its kernel (Figure 6.4). Tracing "
        f"took {spent[0]:.0f} s of processor time, replaying {spent[1]:.0f}.\n",
        *tables(found, drawing, WHY),
    ])


def tables(found, drawing, why):
    """Returns the tables and figures of the workloads. `why`: the text about the differences."""
    # He also ran these programs under his kernel (§8), with less memory.
    on_flash = {workload: one for workload, one in found.items() if workload in TABLE_12}
    return [
        claims(found), why, policies(found, drawing, "Figure 6.1 (`flash-8`)", "6.1", TRACES), policies(found, drawing, "Figure 6.3 (`now-8`)", "6.3", NOW),
        misses(found, drawing), table_5(found), sensitivity(found, drawing),
        *(table(on_flash) for table in [table_7, table_8, table_9, table_10, table_11, table_12] if on_flash),
    ]
