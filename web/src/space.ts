// The address space without gaps and with untouched ranges folded away: a histogram with objects marked, and accesses
// over time.

import { api } from "./api.ts";
import { type Area, type Axes, fitted, toPixels } from "./axis.ts";
import { Chart, type Values } from "./chart.ts";
import { type By, byName, ink } from "./colours.ts";
import { type Context, objects } from "./context.ts";
import { chooser, density, schemeOf } from "./density.ts";
import { h } from "./dom.ts";
import { broken, Folding, joined } from "./fold.ts";
import { bytes, exact, percent, counted } from "./format.ts";
import { Plot } from "./plot.ts";
import { go, number, step } from "./state.ts";

interface Mark { from: number; to: number; name: string; object: number | null; kind: string }

/** Instances of all objects of the report, in order of their place. */
function marks(context: Context): Mark[] {
  const found = objects(context).flatMap(({ row, shown, number }) =>
    shown.instances.map((instance) => ({ from: instance.place, to: instance.place + instance.bytes, name: row.name, object: number, kind: row.kind })));
  return found.sort((a, b) => a.from - b.from);
}

/** Parts of the address space in which the view counts accesses, to find untouched ranges. */
const PARTS = 2048;

export function spaceView(context: Context): HTMLElement {
  const { state, recording } = context;
  const by = byName(state.by, recording.machine.nodes.length > 1 ? "cpu-node" : "thread");
  const space = Math.max(recording.space_bytes, 1);
  const all = marks(context);
  const at = (place: number) => all.filter((mark) => mark.from <= place && place < mark.to);
  const address = (place: number) => {
    const extent = recording.extents.findLast(([begin]) => begin <= place);
    return extent ? `0x${(BigInt(extent[2]) + BigInt(Math.floor(place - extent[0]))).toString(16)}` : "";
  };
  const describe = (place: number): string[] => {
    const names = at(place).map((mark) => mark.name);
    return [`address ${address(place)}`, names.length > 0 ? [...new Set(names)].slice(0, 3).join(", ") : "no object known one by one"];
  };
  const open = (place: number) => {
    const mark = at(place)[0];
    if (mark && mark.object !== null) go({ view: "object", recording: String(context.number), object: String(mark.object), instance: "", from: "", to: "", t0: "", t1: "", by });
  };
  // Folding depends on the whole recording, so that the axis stays when another time is selected.
  const found = api.histogram(context.number, "kind", { place_from: 0, place_to: space, from_ns: 0, to_ns: recording.duration_ns, columns: 1, rows: PARTS });
  const folding = found.then(({ slots, sums, frame }) => {
    const touched = Array.from({ length: frame.rows }, (_, row) => sums.slice(row * slots, (row + 1) * slots).reduce((a, b) => a + b, 0));
    const shown = new Folding(touched, space, state.fold !== "0");
    const gaps = shown.pieces.length - 1;
    away.textContent = shown.away > 0 ? `${bytes(shown.away)} of it that nothing accesses are folded away${gaps > 0 ? `, at ${counted(gaps, "break")} of the axis` : ""}.` : "";
    return shown;
  });
  const away = h("span", {});
  let [from, to] = [number(state, "from") ?? 0, number(state, "to") ?? space];
  let [t0, t1] = [number(state, "t0") ?? context.range[0], number(state, "t1") ?? context.range[1]];
  /** The shown range as positions on the axis. */
  const positions = (folded: Folding): [number, number] => {
    const [low, high] = [folded.position(from), folded.position(to)];
    return high - low >= 1 ? [low, high] : [0, folded.length];
  };
  const zoom = async (range: [number, number] | null, times: [number, number] | null | undefined) => {
    const folded = await folding;
    const bounded = (range: [number, number], high: number, least: number): [number, number] => {
      const width = Math.min(Math.max(range[1] - range[0], least), high);
      const begin = Math.min(Math.max(range[0], 0), high - width);
      return [begin, begin + width];
    };
    [from, to] = range === null ? [0, space] : bounded(range, folded.length, recording.machine.page_bytes).map((position) => folded.place(position)) as [number, number];
    if (times !== undefined) [t0, t1] = times === null ? context.range : bounded(times, recording.duration_ns, recording.tick_ns * 10);
    step(range === null
      ? { from: "", to: "", t0: "", t1: "" }
      : { from: String(Math.round(from)), to: String(Math.round(to)), t0: String(Math.round(t0)), t1: String(Math.round(t1)) });
    for (const plot of plots) void plot.refresh();
  };
  const accesses = context.report.report.accesses;
  const plots = [
    new Chart({
      title: "Accesses over the address space",
      height: 300,
      left: 96,
      load: async (width) => {
        const folded = await folding;
        return histogram(context, by, { folded, range: positions(folded), times: [t0, t1], width, marks: all, describe, open, address });
      },
      zoom: (x) => void zoom(x, x === null ? null : undefined),
      controls: chooser(context, by, (by) => go({ by })),
    }),
    new Plot({
      title: "Address space over time",
      height: 460,
      left: 140,
      async load(width, height) {
        const folded = await folding;
        const range = positions(folded);
        const scale = { most: 0 };
        const parts = await Promise.all(folded.shown(...range).map(async (piece) => {
          const share = (piece.to - piece.from) / (range[1] - range[0]);
          const content = await density(context, { origin: 0, from: piece.from, to: piece.to, from_ns: t0, to_ns: t1, by, scale, accesses: accesses * share, label: "", describe, open, overlay: (g, area, content) => labels(all, g, area, content) }, width, Math.max(1, height * share));
          return { piece, content };
        }));
        return { ...joined(parts, range, (piece) => address(piece.from)), note: parts[0].content.noted(scale.most), legend: () => shares(context, by, parts.map(({ content }) => content.totals)) };
      },
      zoom: (x, y) => void zoom(y, x),
      controls: h("label", {}, h("input", { type: "checkbox", id: "fold", checked: state.fold !== "0", onchange: () => go({ fold: state.fold === "0" ? "" : "0", from: "", to: "" }) }), " fold what nothing accesses"),
    }),
  ];
  return h(
    "section",
    {},
    h("h2", {}, "Address space"),
    h("p", {}, `${bytes(recording.space_bytes)} in ${counted(recording.extents.length, "range")} of objects and modules, without the gaps between them. `, away,
      context.progress.elsewhere > 0 ? ` ${counted(context.progress.elsewhere, "access")} to addresses where no object or module is known: in no picture.` : "",
      " Enter or a click on an object opens it."),
    plots.map((plot) => plot.element),
  );
}

/** Names with their shares of the accesses, and colours, over several pictures. */
function shares(context: Context, by: By, totals: number[][]): [string, string][] {
  const { names, colours } = schemeOf(context, by);
  const sums = names.map((_, slot) => totals.reduce((sum, of) => sum + (of[slot] ?? 0), 0));
  const all = sums.reduce((a, b) => a + b, 0);
  return sums.flatMap((sum, slot): [string, string][] => (sum > 0 ? [[`${names[slot]} ${percent(sum / all)}`, colours[slot]]] : [])).slice(0, 24);
}

/** Names at the left of the picture, for objects that are high enough. */
function labels(marks: Mark[], g: CanvasRenderingContext2D, area: Area, content: Axes): void {
  g.font = "11px system-ui, sans-serif";
  g.textBaseline = "middle";
  g.textAlign = "left";
  let free = -Infinity;
  for (const mark of marks) {
    const top = Math.max(toPixels(content, area, [content.x.from, mark.from])[1], area.y);
    const bottom = Math.min(toPixels(content, area, [content.x.from, mark.to])[1], area.y + area.height);
    if (bottom - top < 13 || top < free) continue;
    free = top + 14;
    const text = fitted(g, mark.name, Math.min(260, area.width / 2));
    g.globalAlpha = 0.8;
    g.fillStyle = ink("--paper");
    g.fillRect(area.x + 2, top + 1, g.measureText(text).width + 6, 13);
    g.globalAlpha = 1;
    g.fillStyle = ink("--ink");
    g.fillText(text, area.x + 5, top + 8);
    g.strokeStyle = ink("--line");
    g.strokeRect(area.x, Math.round(top) + 0.5, area.width, 0);
  }
}

interface HistogramRequest {
  folded: Folding;
  /** Shown range, as positions on the axis. */
  range: [number, number];
  times: [number, number];
  width: number;
  marks: Mark[];
  describe(place: number): string[];
  open(place: number): void;
  address(place: number): string;
}

/** Histogram of accesses by place, in bars about two pixels wide. */
async function histogram(context: Context, by: By, { folded, range, times, width, marks, describe, open, address }: HistogramRequest): Promise<Values> {
  const pieces = folded.shown(...range);
  const rows = (bytes: number) => Math.max(1, Math.floor((width / 2) * (bytes / (range[1] - range[0]))));
  const found = await Promise.all(pieces.map(({ from, to }) => api.histogram(context.number, by, {
    place_from: Math.floor(from), place_to: Math.ceil(to), from_ns: Math.floor(times[0]), to_ns: Math.ceil(times[1]), columns: 1, rows: rows(to - from),
  })));
  const [{ slots, share, frame }] = found;
  const bin = (frame.place_to - frame.place_from) / frame.rows;
  // The bars of all pieces; a part without value separates two pieces.
  const bars: { at: number; place: [number, number]; sums: number[] | null }[] = [];
  pieces.forEach((piece, number) => {
    const { frame, sums } = found[number];
    const bin = (frame.place_to - frame.place_from) / frame.rows;
    for (let row = 0; row < frame.rows; row += 1) {
      const from = Math.max(frame.place_from + row * bin, piece.from);
      const to = Math.min(frame.place_from + (row + 1) * bin, piece.to);
      if (from < to) bars.push({ at: piece.at + from - piece.from, place: [from, to], sums: sums.slice(row * slots, (row + 1) * slots) });
    }
    bars.push({ at: piece.at + piece.to - piece.from, place: [piece.to, pieces[number + 1]?.from ?? piece.to], sums: null });
  });
  const edges = bars.map(({ at }) => at);
  bars.pop();
  const totals = Array.from({ length: slots }, (_, slot) => bars.reduce((sum, { sums }) => sum + (sums?.[slot] ?? 0), 0));
  const whole = totals.reduce((a, b) => a + b, 0);
  const used = totals.flatMap((sum, slot) => (sum > 0 ? [slot] : []));
  const { names } = schemeOf(context, by);
  return {
    kind: "stacked",
    series: used.map((slot) => ({ name: names[slot], legend: `${names[slot]} ${percent(totals[slot] / whole)}`, values: bars.map(({ sums }) => sums?.[slot] ?? null) })),
    colours: () => { const { colours } = schemeOf(context, by); return used.map((slot) => colours[slot]); },
    parts: { label: "address", unit: "bytes", edges, from: range[0], to: range[1], ticks: pieces.map((piece) => [piece.at, address(piece.from)]) },
    measure: { label: "accesses", unit: "count" },
    columns: ["place_from", "place_to"],
    empty: whole === 0 ? "No access here: zoom out, select a longer time, or record for longer." : undefined,
    note: `A bar is ${bytes(bin)}. The line at the top marks objects.${share < 1 ? ` From a sample of ${percent(share)}.` : ""}`,
    over(g, area, axes) {
      const pixel = (position: number) => toPixels(axes, area, [position, 0])[0];
      g.font = "11px system-ui, sans-serif";
      g.textBaseline = "top";
      g.textAlign = "left";
      let free = area.x;
      marks.forEach((mark, position) => {
        const [left, right] = [mark.from, mark.to].map((place) => Math.min(Math.max(pixel(folded.position(place)), area.x), area.x + area.width));
        if (right <= area.x || left >= area.x + area.width) return;
        g.fillStyle = ink(position % 2 === 0 ? "--ink" : "--faint");
        g.fillRect(left, area.y, Math.max(right - left, 1), 4);
        if (right - left <= 60 || left + 2 < free) return;
        g.fillText(fitted(g, mark.name, right - left - 6), left + 2, area.y + 6);
        free = right;
      });
      bars.forEach(({ sums }, part) => {
        const [left, right] = [pixel(edges[part]), pixel(edges[part + 1])];
        if (sums === null) broken(g, { ...area, x: left, width: right - left }, "x");
      });
    },
    at(part, position) {
      const { sums, place } = bars[part];
      if (sums === null) return ["untouched"];
      const most = used.filter((slot) => sums[slot] > 0).sort((a, b) => sums[b] - sums[a]).slice(0, 4);
      return [
        ...describe(folded.place(position)),
        `${bytes(place[0])} to ${bytes(place[1])}`,
        `${exact(sums.reduce((a, b) => a + b, 0))} accesses`,
        ...most.map((slot) => `${names[slot]} ${exact(sums[slot])}`),
      ];
    },
    csv: () => [["place_from", "place_to", ...used.map((slot) => names[slot])], ...bars.flatMap(({ place, sums }) => (sums === null ? [] : [[...place, ...used.map((slot) => sums[slot])]]))],
    open: (_, position) => open(folded.place(position)),
  };
}
