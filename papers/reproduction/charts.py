"""Charts as SVG files, drawn by gnuplot."""
import dataclasses
import html
import math
import os
import re
import shutil
import subprocess

# The command and its Debian package.
COMMAND, PACKAGE = "gnuplot", "gnuplot-nox"
# Okabe and Ito's colours, which colour-blind readers can tell apart (jfly.uni-koeln.de/color). Published values are
# grey.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000"]
SHAPES = [5, 7, 9, 11, 13, 4, 6]
PUBLISHED, GREY = "published", "#888888"
POINT = "with points pt 13 ps 1.2 lc rgb '#000000'"
LEVEL = "with lines dt 2 lw 1.5 lc rgb '#000000'"
# Tick values of an axis that is logarithmic on both sides of zero.
MARKS = [-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50]
# The attributes that gnuplot writes for every word.
FONT = ' font-family="sans-serif" font-size="13.00" '
# Pixels; a letter's width and a line's height in this font.
WIDTH, LETTER, LINE = 800, 7, 17
TITLE, LEFT, GAP = 30, 70, 14


@dataclasses.dataclass
class Panel:
    """One plot of a chart. Values are by series, then by label; None is not drawn."""

    title: str
    unit: str
    labels: list
    values: list
    # Published values by label, drawn over stacks of simulated values.
    published: list = dataclasses.field(default_factory=list)
    # Reference values by name, drawn as lines.
    levels: dict = dataclasses.field(default_factory=dict)
    # Logarithmic axes, such as "xy".
    log: str = ""
    # `marks`: ticks of the vertical axis in place of gnuplot's; `notes`: texts in the picture, as across, up, text.
    marks: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)


class Charts:
    """The charts of one page. Their folder is beside the page and has the page's name."""

    def __init__(self, page):
        self.folder = os.path.splitext(os.path.abspath(page))[0]
        self.there = shutil.which(COMMAND) is not None
        self.scripts = {}

    def bars(self, name, says, series, panels, columns=1, height=210, stacked=False):
        """Draws a bar for each series at each label: side by side, or stacked."""
        colours = coloured(series)
        beside = 1 if stacked else len(series)
        axes = []
        for panel in panels:
            parts, sums = [], [0] * len(panel.labels)
            for at, (values, colour) in enumerate(zip(panel.values, colours)):
                rows = []
                for label, value in enumerate(values):
                    if value is not None:
                        middle = label if stacked else label + 0.8 * ((at + 0.5) / beside - 0.5)
                        rows += [(middle, sums[label]), (middle, sums[label] + value), ()]
                        sums[label] += value if stacked else 0
                parts.append((rows, bar(colour, 0.76 / beside * width(columns) / len(panel.labels))))
            parts.append(([(label, value) for label, value in enumerate(panel.published) if value is not None], POINT))
            axes.append(Axes(panel, parts, [row[1] for rows, _ in parts for row in rows if row]))
        published = [(POINT, PUBLISHED)] if any(panel.published for panel in panels) else []
        legend = [(f"with boxes fs solid 1 noborder fc rgb '{colour}'", title) for title, colour in zip(series, colours)] if len(series) > 1 or published else []
        return self.draw(name, says, script(axes, legend + published, columns, height))

    def rows(self, name, says, panels):
        """Draws horizontal bars, one for each label. The labels are at the left of the first panel."""
        parts = lambda values: [([row for at, value in enumerate(values) for row in [(0, -at), (value, -at), ()]], bar(COLOURS[0], 0.72 * LINE))]
        axes = [Axes(panel, parts(panel.values), panel.values) for panel in panels]
        return self.draw(name, says, script(axes, [], len(panels), LINE * len(panels[0].labels) + 12, sideways=True))

    def lines(self, name, says, x, series, panels, columns=1, height=220):
        """Draws lines over numeric labels. On a logarithmic axis, zero is at the edge."""
        how = [f"with linespoints lw 2 pt {shape} ps 0.6 lc rgb '{colour}'" for shape, colour in zip(SHAPES, coloured(series))]
        axes = []
        for panel in panels:
            alike = [value for other in panels if other.unit == panel.unit for values in other.values for value in values if value]
            zero = spread(alike, True)[0] if "y" in panel.log else 0
            parts = [([(at, value or zero) for at, value in zip(panel.labels, values) if value is not None], line) for values, line in zip(panel.values, how)]
            axes.append(Axes(panel, parts, [value for values in panel.values for value in values if value]))
        return self.draw(name, says, script(axes, list(zip(how, series)) if len(series) > 1 else [], columns, height, x))

    def dashes(self, name, says, panel, height=300):
        """Draws a dash for each value; values are by label. The vertical axis is linear near zero and logarithmic far from zero (asinh)."""
        values = [value for values in panel.values for value in values]
        marks = [(mark, f"{math.asinh(mark):.6g}") for mark in MARKS if min(values) <= mark <= max(values)]
        panel = dataclasses.replace(
            panel, values=[list(map(math.asinh, values)) for values in panel.values], marks=marks,
            levels={level: math.asinh(value) for level, value in panel.levels.items()}, notes=[(across, math.asinh(up), text) for across, up, text in panel.notes],
        )
        rows = [row for at, values in enumerate(panel.values) for value in values for row in [(at - 0.3, value), (at + 0.3, value), ()]]
        axes = [Axes(panel, [(rows, f"with lines lw 1.5 lc rgb '{COLOURS[0]}'")], [value for values in panel.values for value in values])]
        return self.draw(name, says, script(axes, [], 1, height))

    def draw(self, name, says, words):
        """Keeps the gnuplot script for `write`, and returns the Markdown line that shows its picture."""
        if not self.there:
            return ""
        self.scripts[name] = says, words
        return f"![{says}]({os.path.basename(self.folder)}/{name}.svg)\n\n"

    def write(self):
        """Runs all kept scripts."""
        for name, (says, words) in self.scripts.items():
            os.makedirs(self.folder, exist_ok=True)
            drawn = subprocess.run([COMMAND, "-"], input=words, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
            with open(os.path.join(self.folder, name + ".svg"), "w") as file:
                file.write(smaller(drawn.stdout).replace("<title>Gnuplot</title>", f"<title>{html.escape(says)}</title>"))


@dataclasses.dataclass
class Axes:
    """A panel, its rows of numbers with their gnuplot styles, and the values that its scale must cover."""

    panel: Panel
    parts: list
    values: list


def smaller(svg):
    """Halves gnuplot's output: removes empty groups, unused filters, generated names, SVG's defaults, hundredths of a pixel and repeated fonts."""
    svg = re.sub(r' stroke-linecap="butt" stroke-linejoin="miter"| color="black"(?= stroke)| stroke-width="1.00"| class="gridline"|<title>gnuplot_plot_\w+</title>', "", svg)
    svg = svg.replace('stroke="currentColor"', 'stroke="black"').replace(FONT, "").replace("<svg ", "<svg" + FONT, 1)
    svg = re.sub(r"rgb\( *(\d+), *(\d+), *(\d+)\)", lambda parts: "#" + "".join(f"{int(part):02x}" for part in parts.groups()), svg)
    svg = re.sub(r"<g [^>]*>\s*</g>\s*|(?s:<filter .*?</filter>)\s*", "", svg)
    svg = re.sub(r"(\.\d)\d\b", r"\1", svg)
    return re.sub(r"\n\s+", "\n", svg)


def coloured(series):
    colours = iter(COLOURS)
    return [GREY if one.startswith(PUBLISHED) else next(colours) for one in series]


def width(columns):
    """Width in pixels of a panel that has its labels underneath."""
    return (WIDTH - GAP) / columns - LEFT


def terminal(height):
    return f"set terminal svg size {WIDTH},{height} font 'sans-serif,13' background '#ffffff' noenhanced"


def bar(colour, pixels):
    """Returns the style of a bar. Bars are thick lines: gnuplot writes all lines as one path, but a shape for each box."""
    return f"with lines lw {pixels:.1f} lc rgb '{colour}'"


def quoted(text):
    return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def tics(places):
    """Returns gnuplot's list of labels and positions. Each % is doubled, because gnuplot reads labels as formats."""
    return "(" + ", ".join(f"{quoted(label)} {place}".replace("%", "%%") for label, place in places) + ")"


def spread(values, logarithmic):
    """Returns the range of an axis. A linear axis includes zero."""
    if logarithmic:
        return min(values) / 2, max(values) * 1.3
    low, high = min([*values, 0]), max([*values, 0])
    room = 0.06 * ((high - low) or 1)
    return low - room * (low < 0), high + room * (high > 0)


def margins(shares):
    """Sets a plot's left, right, bottom and top edges, as shares of the picture."""
    return [f"set {edge} at screen {share:.5f}" for edge, share in zip(["lmargin", "rmargin", "bmargin", "tmargin"], shares)]


def upright(panel, scale, named):
    """Axes of horizontal bars."""
    labels = tics((label, -place) for place, label in enumerate(panel.labels))
    return [
        f"set ytics scale 0 {labels}" if named else "unset ytics", f"set yrange [{0.4 - len(panel.labels)}:0.6]",
        f"set xrange [{scale[0]:.6g}:{scale[1]:.6g}]", f"set xlabel {quoted(panel.unit)} offset 0,0.5",
    ]


def vertical(panel, scale):
    words = [f"set yrange [{scale[0]:.6g}:{scale[1]:.6g}]", "unset mytics"]
    words += [f"set ytics scale 0.5 {tics(panel.marks)}"] if panel.marks else []
    # Writes 10k instead of 10000, for which there is no room.
    return [*words, f"set format y '{'%.0s%c' if 'y' in panel.log and scale[1] > 1 else '%h'}'"]


def numbers(panel, x):
    """The horizontal axis of lines."""
    least, most = panel.labels[0], panel.labels[-1]
    labels = "autofreq"
    if "x" in panel.log:
        least, most, labels = least / 1.2, most * 1.2, tics((label, label) for label in panel.labels)
    return [f"set xtics {labels}", f"set xrange [{least:.6g}:{most:.6g}]", f"set xlabel {quoted(x)} offset 0,0.5", "unset mxtics"]


def places(panel, turned):
    """The horizontal axis of bars and dashes."""
    labels = tics((label, place) for place, label in enumerate(panel.labels))
    return [f"set xtics scale 0 {'rotate by 35 right' if turned else 'norotate'} {labels}", f"set xrange [-0.6:{len(panel.labels) - 0.4}]"]


def script(axes, legend, columns, height, x="", sideways=False):
    """Returns the gnuplot script for panels in columns under one legend. Panels of the same unit have the same scale."""
    panels = [one.panel for one in axes]
    legend = [*legend, *((LEVEL, level) for level in dict.fromkeys(level for panel in panels for level in panel.levels))]
    names = [line for panel in panels for label in panel.labels for line in str(label).split("\n")]
    longest, deep = LETTER * max(map(len, names)), 1 + max(str(label).count("\n") for panel in panels for label in panel.labels)
    # Labels at the left appear once, other axes in every panel.
    first, left = (longest + 12, 2 * GAP) if sideways else (LEFT, LEFT)
    wide = (WIDTH - first - (columns - 1) * left - GAP) / columns
    turned = not x and not sideways and longest > wide / max(len(panel.labels) for panel in panels)
    under = 50 if x or sideways else 0.6 * longest + LINE if turned else LINE * deep + 16
    over = TITLE if any(panel.title for panel in panels) else 8
    beside = max(1, (WIDTH - 2 * GAP) // (LETTER * max((len(title) for _, title in legend), default=0) + 76))
    above = LINE * -(-len(legend) // beside) + 12 if legend else 0
    whole = round(above + -(-len(panels) // columns) * (over + height + under))

    words, data = [], []
    for at, one in enumerate(axes):
        panel = one.panel
        row, column = divmod(at, columns)
        begin, top = first + column * (wide + left), above + row * (over + height + under) + over
        words += margins([begin / WIDTH, (begin + wide) / WIDTH, 1 - (top + height) / whole, 1 - top / whole])
        # Placed here, because gnuplot would place an axis's label by the longest number.
        told = column > 0 and panel.unit == panels[at - 1].unit
        unit = [] if told or sideways else [f"set label {quoted(panel.unit)} at screen {(begin - LEFT + 12) / WIDTH:.5f}, graph 0.5 center rotate by 90"]
        words += [f"set title {quoted(panel.title)} offset 0,-0.6", "unset label", *unit, "unset arrow", "unset logscale", *(f"set logscale {axis}" for axis in panel.log)]
        if sideways:
            words += upright(panel, spread(one.values + list(panel.levels.values()), False), named=column == 0)
        else:
            alike = [value for other in axes if other.panel.unit == panel.unit for value in [*other.values, *other.panel.levels.values()]]
            words += vertical(panel, spread(alike, "y" in panel.log))
            words += numbers(panel, x) if x else places(panel, turned)
        for across, up, text in panel.notes:
            words.append(f"set label {quoted(text)} at {across:.6g},{up:.6g} center offset 0,0.5 font ',10' front")
        for level in panel.levels.values():
            line = f"{level},graph 0 to {level},graph 1" if sideways else f"graph 0,first {level} to graph 1,first {level}"
            words.append(f"set arrow from {line} nohead dt 2 lw 1.5 lc rgb '#000000' front")
        plots = []
        for rows, how in one.parts:
            if rows:
                lines = "\n".join(" ".join(f"{number:.6g}" for number in row) for row in rows)
                plots.append(f"$d{len(data)} {how} notitle")
                data.append(f"$d{len(data)} << EOD\n{lines}\nEOD")
        words.append("plot " + ", ".join(plots))

    frame = [
        "unset key", "set border 3 lc rgb '#444444'", "set xtics nomirror scale 0.5", "set ytics nomirror scale 0.5",
        f"set grid {'x' if sideways else 'y'}tics back lt 1 lw 0.5 lc rgb '#dddddd'",
        f"set {'y' if sideways else 'x'}zeroaxis lt 1 lc rgb '#444444'",
    ]
    # The legend is an empty plot over the whole picture.
    keys = [*margins([0, 1, 0, 1]), "unset border", "unset xtics", "unset ytics", "set xrange [0:1]", "set yrange [0:1]"]
    keys += [f"set key at screen 0.5, screen {1 - 4 / whole:.5f} center top horizontal Left reverse samplen 1.6 maxcols {beside}"]
    keys += ["plot 2 notitle, " + ", ".join(f"keyentry {how} title {quoted(title)}" for how, title in legend)]
    return "\n".join([terminal(whole), *data, "set multiplot", *(keys if legend else []), *frame, *words, "unset multiplot", ""])
