// Bars, lines and stacked areas. uPlot draws axes, scales, lines, the cross at the pointer and the selection's frame.
// `figure.ts` adds what uPlot lacks: keys, touch, a legend that the keyboard reaches, and an accessible name.

import uPlot from "uplot";
import { type Axis, fitted, FONT, RIGHT, span, toPixels, type Area, written } from "./axis.ts";
import { ink } from "./colours.ts";
import { h } from "./dom.ts";
import { bytes, exact, percent, time } from "./format.ts";
import { type Content, Figure } from "./figure.ts";

/** A value for each part of an axis; null for a part without a value. */
export interface Series {
  name: string;
  values: readonly (number | null)[];
  /** Text in the legend instead of the name. */
  legend?: string;
}

/** Values of the parts of an axis. A part begins where the part before ends. */
export interface Values {
  /** Bars on top of each other or side by side, lines, or dots. Neighbouring bars touch unless parts have names. */
  kind: "stacked" | "beside" | "lines" | "dots";
  series: Series[];
  /** Colours of the series, in the current theme. */
  colours(): string[];
  /** Begins of all parts and the end of the last; `from` and `to` bound the shown range where a part of it is shown. */
  parts: Omit<Axis, "from" | "to" | "up"> & { edges: readonly number[]; from?: number; to?: number };
  /** `to`: fixed end of the axis; `things`: the unit of a sum of stacked values. */
  measure: Pick<Axis, "label" | "unit" | "ticks"> & { from?: number; to?: number; things?: string; say?(value: number): string };
  /** Horizontal bars: names of parts at the left, values growing to the right. */
  horizontal?: boolean;
  /** Columns of the CSV that identify a part: its name, or its begin and end. */
  columns: string[];
  /** Read-out of a part instead of its values; `place` is the pointer's position within the part. */
  at?(part: number, place: number): string[];
  csv?(): (string | number | null)[][];
  open?(part: number, place: number): void;
  over?(g: CanvasRenderingContext2D, area: Area, content: Content): void;
  note?: string | undefined;
  empty?: string | undefined;
  selected?: [number, number] | null;
}

export const named = (label: string, names: string[]): Values["parts"] =>
  ({ label, unit: "names", names, edges: Array.from({ length: names.length + 1 }, (_, at) => at) });

interface Drawn extends Content {
  values: Values;
  /** Numbers of the series that are not hidden, and where each series' value begins in each part. */
  shown: number[];
  begins: number[][];
}

const SAY: Record<Axis["unit"], (value: number) => string> =
  { time, share: percent, count: exact, pages: exact, bytes, "bytes/s": (value) => `${bytes(value)}/s`, names: String };

/** Most names in a legend or a read-out. */
const LEGEND_MAX = 24;
const READOUT_MAX = 4;

function partAt({ edges }: Values["parts"], place: number): number {
  const after = edges.findIndex((edge) => edge > place);
  return Math.min(Math.max((after < 0 ? edges.length : after) - 1, 0), edges.length - 2);
}

/** The content to draw when some series are hidden. */
function described(values: Values, hidden: Set<string>): Drawn {
  const { kind, series, parts, measure, horizontal = false } = values;
  const { edges } = parts;
  const shown = series.flatMap(({ name }, number) => (hidden.has(name) ? [] : [number]));
  const sums = edges.slice(1).map(() => 0);
  const begins = shown.map((number) => {
    const begin = [...sums];
    if (kind === "stacked") series[number].values.forEach((value, part) => { sums[part] += value ?? 0; });
    return begin;
  });
  const tops = kind === "stacked" ? sums : shown.flatMap((number) => series[number].values);
  const top = tops.reduce<number>((high, value) => Math.max(high, value ?? 0), 0);
  const along: Axis = { from: edges[0], to: edges[edges.length - 1], ...parts };
  const across: Axis = { from: 0, ...measure, to: measure.to ?? (top * 1.1 || 1), up: true };
  const say = measure.say ?? SAY[measure.unit];
  const said = (number: number, part: number) => {
    const value = series[number].values[part] ?? null;
    return `${series[number].name} ${value === null ? "–" : say(value)}`;
  };
  const readOut = (part: number): string[] => {
    const where = parts.names?.[part] ?? `${SAY[parts.unit](edges[part])} to ${SAY[parts.unit](edges[part + 1])}`;
    if (kind !== "stacked") return [where, ...shown.map((number) => said(number, part))];
    const most = shown.filter((number) => (series[number].values[part] ?? 0) > 0).sort((a, b) => (series[b].values[part] ?? 0) - (series[a].values[part] ?? 0));
    return [where, `${say(sums[part])} ${measure.things ?? "in all"}`, ...most.slice(0, READOUT_MAX).map((number) => said(number, part))];
  };
  const place = (x: number, y: number) => (horizontal ? y : x);
  return {
    values,
    shown,
    begins,
    x: horizontal ? across : along,
    y: horizontal ? { ...along, up: false } : across,
    step: horizontal ? [span(across) / 50, 1] : [edges[1] - edges[0], span(across) / 50],
    note: values.note,
    empty: values.empty,
    selected: values.selected,
    legend() {
      const colours = values.colours();
      return series.slice(0, LEGEND_MAX).map(({ name, legend }, number) => [legend ?? name, colours[number]]);
    },
    at(x, y) {
      const part = partAt(parts, place(x, y));
      return values.at?.(part, place(x, y)) ?? readOut(part);
    },
    csv: () => values.csv?.() ?? [
      [...values.columns, ...series.map(({ name }) => name)],
      ...edges.slice(0, -1).map((edge, part) => [...(parts.names ? [parts.names[part]] : [edge, edges[part + 1]]), ...series.map(({ values }) => values[part] ?? null)]),
    ],
    ...(values.open ? { open: (x: number, y: number) => values.open?.(partAt(parts, place(x, y)), place(x, y)) } : {}),
  };
}

/** Do two lines coincide in more than a third of the parts for which both have values? */
function coincide(one: Series, other: Series, top: number): boolean {
  let [both, near] = [0, 0];
  one.values.forEach((value, part) => {
    const beside = other.values[part] ?? null;
    if (value === null || beside === null) return;
    both += 1;
    if (Math.abs(value - beside) < top / 100) near += 1;
  });
  return near > both / 3;
}

/** A box for each value, with edges at whole pixels: neighbours show no seam. */
function boxes({ values: { kind, series, parts, horizontal }, shown, begins }: Drawn, number: number): uPlot.Series.PathBuilder {
  const { edges, names } = parts;
  const { values } = series[number];
  const position = shown.indexOf(number);
  const slots = kind === "beside" ? shown.length : 1;
  const slot = kind === "beside" ? position : 0;
  const margin = names === undefined ? 0 : 0.12;
  return (u) => {
    const fill = new Path2D();
    values.forEach((value, part) => {
      if (value === null || (value === 0 && kind === "stacked")) return;
      const below = begins[position][part];
      const [width, inner] = [edges[part + 1] - edges[part], (1 - 2 * margin) / slots];
      const [from, to] = [slot, slot + 1].map((at) => Math.round(u.valToPos(edges[part] + width * (margin + at * inner), "x", true)));
      const [low, high] = [below, below + value].map((at) => Math.round(u.valToPos(at, "y", true)));
      // Small values stay visible.
      const thick = Math.max(to - from - (slots > 1 ? 1 : 0), 1);
      const long = Math.max(Math.abs(high - low), kind === "beside" ? 1 : 0);
      if (horizontal) fill.rect(low, from, long, thick);
      else fill.rect(from, Math.min(low, high), thick, long);
    });
    return { fill };
  };
}

export class Chart extends Figure<Values, Drawn> {
  private hidden = new Set<string>();
  private chart: uPlot | null = null;

  protected describe(values: Values): Drawn {
    return described(values, this.hidden);
  }

  /** uPlot listens to the window, so a chart that is not destroyed would stay in memory. */
  protected override clear(): void {
    this.chart?.destroy();
    this.chart = null;
  }

  /** A press on a name in the legend hides its series or shows the series again. */
  protected override entry(name: string, swatch: HTMLElement, number: number): HTMLElement {
    const series = this.content?.values.series[number];
    const isShown = series === undefined || !this.hidden.has(series.name);
    return h("button", { "aria-pressed": String(isShown), title: isShown ? "hide" : "show", onclick: () => {
      if (series === undefined || this.content === null) return;
      if (isShown) this.hidden.add(series.name);
      else this.hidden.delete(series.name);
      this.content = this.describe(this.content.values);
      this.draw();
      this.legend.querySelectorAll("button")[number]?.focus();
    } }, swatch, name);
  }

  protected paint(content: Drawn): void {
    this.clear();
    this.chart = this.built(content, this.surface);
  }

  protected mark(content: Drawn): void {
    const { chart, cursor } = this;
    if (chart === null) return;
    const area = this.area();
    const [x, y] = cursor === null ? [-1, -1] : toPixels(content, area, cursor);
    if (this.isHeld && cursor !== null) chart.setCursor({ left: x - area.x, top: y - area.y }, false);
    else chart.setCursor({ left: -10, top: -10 }, false);
    const frame = this.framed();
    chart.setSelect(frame === null ? { left: 0, top: 0, width: 0, height: 0 } : { left: frame.x - area.x, top: frame.y - area.y, width: frame.width, height: frame.height }, false);
  }

  protected paintOn(g: CanvasRenderingContext2D): void {
    const canvas = this.chart?.ctx.canvas;
    if (canvas !== undefined) g.drawImage(canvas, 0, 0, this.width, this.options.height);
  }

  private built(content: Drawn, place: HTMLElement): uPlot {
    const { values, shown } = content;
    const { kind, series, parts, horizontal = false } = values;
    const { edges } = parts;
    const colours = values.colours();
    const area = this.area();
    const [along, across] = horizontal ? [content.y, content.x] : [content.x, content.y];
    const line = (number: number): uPlot.Series => {
      const below = shown.slice(0, shown.indexOf(number)).filter((other) => coincide(series[number], series[other], across.to)).length;
      return {
        stroke: colours[number],
        width: 2,
        // Where lines coincide, each line shows in the gaps of the lines drawn after it.
        ...(below === 0 ? {} : { dash: [10, 10 * below] }),
        paths: uPlot.paths.stepped?.({ align: 1, alignGaps: 1 }),
        points: { show: false },
      };
    };
    const dot = (number: number): uPlot.Series =>
      ({ paths: () => null, points: { show: true, size: 10, width: 0, fill: colours[number], stroke: colours[number] } });
    const box = (number: number): uPlot.Series =>
      ({ fill: colours[number], width: 0, paths: boxes(content, number), points: { show: false } });
    const drawn = shown.map((number) => ({ label: series[number].name, ...(kind === "lines" ? line : kind === "dots" ? dot : box)(number) }));
    // Dots stand in the middle of their part; a line's last value reaches to the end of its part.
    const places = kind === "dots" ? edges.slice(0, -1).map((edge, part) => (edge + edges[part + 1]) / 2) : edges.slice();
    const reaching = ({ values }: Series) => {
      const found = [...values];
      const last = found.findLastIndex((value) => value !== null);
      while (found.length < places.length) found.push(null);
      if (kind !== "dots" && last >= 0) found[last + 1] = found[last];
      return found;
    };
    return new uPlot({
      width: this.width,
      height: this.options.height,
      padding: [area.y, RIGHT, 0, 0],
      legend: { show: false },
      // `Figure` handles the pointer and the keys; uPlot's cross follows the pointer.
      cursor: {
        drag: { x: false, y: false },
        points: { show: false },
        bind: { mousedown: () => null, mouseup: () => null, click: () => null, dblclick: () => null },
      },
      scales: {
        x: { time: false, ori: horizontal ? 1 : 0, dir: horizontal ? -1 : 1, range: [along.from, along.to] },
        y: { ori: horizontal ? 0 : 1, range: [across.from, across.to] },
      },
      axes: [this.axis(along, "x", horizontal, false), this.axis(across, "y", !horizontal, true)],
      series: [{}, ...drawn],
      hooks: { draw: [(u) => this.over(u, content)] },
    }, [places, ...shown.map((number) => reaching(series[number]))], place);
  }

  private over({ ctx: g, width }: uPlot, content: Drawn): void {
    const scale = g.canvas.width / width;
    g.save();
    g.scale(scale, scale);
    g.font = FONT;
    content.values.over?.(g, this.area(), content);
    g.restore();
  }

  private axis(axis: Axis, scale: "x" | "y", isVertical: boolean, hasGrid: boolean): uPlot.Axis {
    const area = this.area();
    const room = isVertical ? area.x : this.options.height - area.y - area.height;
    const labelSize = axis.label === "" ? 0 : 18;
    const marks = written(axis, isVertical ? area.height : area.width, isVertical);
    const line = { show: true, stroke: ink("--line"), width: 1 };
    return {
      scale,
      side: isVertical ? 3 : 2,
      size: room - labelSize,
      ...(axis.label === "" ? {} : { label: axis.label, labelSize, labelGap: 0, labelFont: FONT }),
      font: FONT,
      gap: 3,
      stroke: ink("--ink"),
      splits: () => marks.map(([at]) => at),
      values: ({ ctx: g }) => {
        g.font = FONT;
        return marks.map(([, text]) => fitted(g, text, isVertical ? area.x - 26 : 112));
      },
      grid: { show: hasGrid, stroke: ink("--soft"), width: 1 },
      ticks: { ...line, size: 4 },
      border: line,
    };
  }
}
