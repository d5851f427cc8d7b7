"""NumaMMA's Figures 1 to 6: which threads access which pages of an object, and when."""
import collections
import colorsys
import csv
import dataclasses
import io
import os

from reproduction import charts, document

# The machine of the paper's pictures (§4).
PAPER, PRESET = "NumaMMA", "intel32"
# Rectangles in a picture: number across, and largest number upwards.
ACROSS, UP = 200, 64
# Most accesses in a picture; a random selection if there are more.
AT_MOST = 200_000
PAGE_BYTES = 4096
WORKLOADS = os.path.join(os.path.dirname(__file__), "../../workloads")


@dataclasses.dataclass
class Figure:
    """A picture of one object. `ours`: a variable of the workload."""

    number: int
    workload: str
    theirs: str
    ours: str
    # A picture by thread instead of over time.
    by_thread: bool = False
    # Shown part of the accesses, as shares where it begins and ends.
    window: tuple = (0, 1)
    # The object's share of the paper's samples of variables and the heap, % (§4.1.3, §4.2).
    samples: int | None = None


# A few passes, where the paper shows a part of many.
FIGURES = [
    Figure(1, "cg", "main_flt_mem of CG", "values", by_thread=True),
    Figure(2, "cg", "main_flt_mem of CG", "values"),
    Figure(3, "lu_blocks", "cvar of LU", "cvar", window=(0.25, 1), samples=58),
    Figure(4, "lu_blocks", "cjac of LU", "cjac", window=(0.25, 1), samples=10),
    Figure(5, "cluster", "block of Streamcluster", "block", window=(0.6, 0.8), samples=66),
    Figure(6, "cluster", "points of Streamcluster", "closest", samples=31),
]


def name_of(figure):
    """Returns the object's name in `nearpage export`: a heap object has that of its line of allocation."""
    source = f"{figure.workload}.c"
    with open(os.path.join(WORKLOADS, source)) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip().startswith(f"{figure.ours} = allocate("):
                return f"main {source}:{number}"
    return figure.ours


def jobs(tools):
    """Returns the runs by workload: functions whose results `section` draws."""
    machine = {"preset": PRESET, "layout": "compact"}
    machine["file"] = tools.scaled(machine)
    return {name: lambda name=name, how=how: run(tools, {**machine, **how}, name) for name, how in tools.matrix["numamma"].items()}


def run(tools, machine, workload):
    path = os.path.join(tools.folder, f"{PRESET}-{workload}-pictures")
    key, tracing = tools.traced(machine, workload, machine["arguments"], path)

    def pictures():
        text = tools.command(["export", path, "--to", "csv", "-o", "-", "--at-most", str(AT_MOST), "-q"], 1)
        rows = list(csv.DictReader(io.StringIO(text)))
        return {figure.number: picture(figure, name, rows) for figure, name in zip(FIGURES, names) if figure.workload == workload}
    names = [name_of(figure) for figure in FIGURES]
    found = tools.cached(path + ".pictures.json", [*key, tools.version, AT_MOST, repr(FIGURES), names, ACROSS, UP], pictures)
    # JSON turns keys into text.
    return {"arguments": machine["arguments"], "threads": machine["threads"], "pictures": {int(number): one for number, one in found.items()}, "tracing_s": tracing}


def picture(figure, name, rows):
    """Divides the picture into rectangles. Finds for each accessed rectangle the thread with most accesses or, in a picture by thread, its thread's accesses."""
    weight = lambda rows: sum(float(row["weight"]) for row in rows)
    whole = weight(row for row in rows if row["object_kind"] in ["static", "heap"])
    rows = [row for row in rows if row["object"].split(" (")[0] == name]
    if not rows:
        raise RuntimeError(f"nothing in the recording is called {name}")
    share = weight(rows) / whole
    threads = sorted({int(row["tid"]) for row in rows})
    number = {tid: at for at, tid in enumerate(threads)}
    accesses = sorted((int(row["time_ns"]), int(row["address"], 16) - int(row["object_address"], 16), number[int(row["tid"])], float(row["weight"])) for row in rows)
    begin, end = (accesses[int(share * (len(accesses) - 1))][0] for share in figure.window)
    accesses = [access for access in accesses if begin <= access[0] <= end]
    pages = max(offset for _, offset, _, _ in accesses) // PAGE_BYTES + 1
    across = min(ACROSS, pages) if figure.by_thread else ACROSS
    up = len(threads) if figure.by_thread else min(UP, pages)
    cells = collections.defaultdict(collections.Counter)
    for time, offset, thread, weight in accesses:
        page = offset // PAGE_BYTES
        place = (page * across // pages, thread) if figure.by_thread else ((time - begin) * across // (end - begin + 1), page * up // pages)
        cells[place][thread] += weight
    shown = [[*place, count.total() if figure.by_thread else count.most_common(1)[0][0]] for place, count in sorted(cells.items())]
    return {"across": across, "up": up, "threads": len(threads), "pages": pages, "ms": (end - begin) / 1e6, "share": share, "cells": shown}


def colour(thread, threads):
    """Returns a thread's colour. Neighbouring threads also differ in lightness."""
    return [round(255 * part) for part in colorsys.hsv_to_rgb(0.85 * thread / threads, 0.9, 0.9 - 0.35 * (thread % 2))]


def script(figure, found):
    """Returns the gnuplot script of a picture."""
    across, up = found["across"], found["up"]
    pixels = {(right, above): what for right, above, what in found["cells"]}
    most = max(pixels.values())
    if figure.by_thread:
        shade = lambda count: [round(255 - (255 - part) * count / most) for part in (0, 0x72, 0xB2)]
        width, height, labels = found["pages"], up, ("page", "thread")
    else:
        shade = lambda thread: colour(thread, found["threads"])
        width, height, labels = found["ms"], found["pages"], ("ms of the traced run", "page")
    shades = [(right, above, *(shade(pixels[right, above]) if (right, above) in pixels else (255, 255, 255))) for above in range(up) for right in range(across)]
    # A thread is drawn in the middle of its row.
    lowest = -0.5 if figure.by_thread else 0
    place = f"(($1 + 0.5) * {width / across:.9g}):(($2 + 0.5) * {height / up:.9g} + {lowest}):3:4:5"
    return "\n".join([
        charts.terminal(170 if figure.by_thread else 250),
        "$cells << EOD", *(" ".join(map(str, one)) for one in shades), "EOD",
        "unset key", f"set tics out nomirror{'; set ytics 1' if figure.by_thread else ''}", f"set xrange [0:{width:.9g}]", f"set yrange [{lowest}:{height + lowest}]",
        f"set xlabel '{labels[0]}'", f"set ylabel '{labels[1]}'", f"plot $cells using {place} with rgbimage", "",
    ])


SHARES = (
    "The table has these objects' share of all samples of variables and the heap (§4.1.3, §4.2) and, for ours, of all misses. A sample of the paper "
    "may be a hit, like nearly all accesses. So the 520 bytes of `cexact`, with 23 % of LU's samples, have no misses, and repeatedly read data weighs "
    "less here. Where §4.1.3 names `cvar` a second time, with blocks of 5 MiB, it means `cjac`.\n"
    "\n"
)


def section(found, drawing):
    """Returns the section's text, with the figures that have recordings. `found`: results by workload."""
    parts, rows = [], []
    for figure in FIGURES:
        if figure.workload not in found:
            continue
        run = found[figure.workload]
        one = run["pictures"][figure.number]
        how = "how often each thread accesses each page" if figure.by_thread else "which thread accesses which page, over time"
        says = f"Figure {figure.number}: {how}, {figure.ours} of {figure.workload}"
        parts.append(
            f"Figure {figure.number}, {figure.theirs}; ours is `{figure.ours}` of `{figure.workload} {run['arguments']}` with {run['threads']} threads:\n\n"
            + drawing.draw(f"numamma-figure-{figure.number}", says, script(figure, one))
        )
        if figure.samples:
            rows.append([figure.theirs, figure.ours, f"{figure.samples} / {100 * one['share']:.0f}"])
    if not parts:
        return ""
    return (
        f"\n#### Figures 1 to 6 in shape (`{PRESET}`)\n\nThe pictures show misses of traced runs; the paper's show samples. A colour is a thread, from red "
        "for the first to violet for the last. The time is that of the traced run. As in the paper, each thread of `cg` has a part of the matrix, the "
        "threads of `lu_blocks` divide each period of both arrays, whose lengths differ, all threads read `block` at random, and each thread reads its "
        "share of the points.\n\n" + "".join(parts)
        + (SHARES + document.table(["", "ours", "%"], rows) if rows else "")
    )
