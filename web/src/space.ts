// The whole address space, without its gaps and with untouched ranges folded away: a histogram with the objects marked, and the same over
// time.

import { api, type Frame } from "./api.ts";
import { type By, byName } from "./colours.ts";
import { type Context, objects } from "./context.ts";
import { chooser, density, schemeOf } from "./density.ts";
import { h } from "./dom.ts";
import { Folding, joined, type Piece } from "./fold.ts";
import { bytes, exact, percent, counted } from "./format.ts";
import { type Area, type Content, fitted, ink, Plot, stacked, toPixels } from "./plot.ts";
import { go, number, step } from "./state.ts";

interface Mark { from: number; to: number; name: string; object: number | null; kind: string }

/** Instances known by number, of all objects, in order of place. */
function marks(context: Context): Mark[] {
  const found = objects(context).flatMap(({ row, shown, number }) =>
    shown.instances.map((instance) => ({ from: instance.place, to: instance.place + instance.bytes, name: row.name, object: number, kind: row.kind })));
  return found.sort((a, b) => a.from - b.from);
}

/** Parts of the space in which it is looked for accesses. */
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
  // What is folded is of all of the time, so that the axis stays where another time is selected.
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
  /** The shown range of the axis, in positions. */
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
    new Plot({
      title: "Accesses over the address space",
      height: 300,
      left: 96,
      async load(width) {
        const folded = await folding;
        const range = positions(folded);
        const rows = (piece: Piece) => Math.max(1, Math.floor((width / 2) * ((piece.to - piece.from) / (range[1] - range[0]))));
        const parts = await Promise.all(folded.shown(...range).map(async (piece) => ({
          piece,
          content: await histogram(context, by, { place_from: Math.floor(piece.from), place_to: Math.ceil(piece.to), from_ns: Math.floor(t0), to_ns: Math.ceil(t1), columns: 1, rows: rows(piece) }, all, describe, open),
        })));
        return { ...joined(parts, "x", range, "address", (piece) => address(piece.from)), legend: () => shares(context, by, parts.map(({ content }) => content.totals)) };
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
        return { ...joined(parts, "y", range, "", (piece) => address(piece.from)), note: parts[0].content.noted(scale.most), legend: () => shares(context, by, parts.map(({ content }) => content.totals)) };
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

/** Names and colours with their shares of the accesses, over several pictures. */
function shares(context: Context, by: By, totals: number[][]): [string, string][] {
  const { names, colours } = schemeOf(context, by);
  const sums = names.map((_, slot) => totals.reduce((sum, of) => sum + (of[slot] ?? 0), 0));
  const all = sums.reduce((a, b) => a + b, 0);
  return sums.flatMap((sum, slot): [string, string][] => (sum > 0 ? [[`${names[slot]} ${percent(sum / all)}`, colours[slot]]] : [])).slice(0, 24);
}

/** Names of the objects that are large enough, at the left of a picture over time. */
function labels(marks: Mark[], g: CanvasRenderingContext2D, area: Area, content: Content): void {
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

async function histogram(
  context: Context, by: By, frame: Frame, marks: Mark[], describe: (place: number) => string[], open: (place: number) => void,
): Promise<Content & { totals: number[] }> {
  const found = await api.histogram(context.number, by, frame);
  const { names } = schemeOf(context, by);
  const colours = () => schemeOf(context, by).colours;
  const { slots, sums } = found;
  const shown = found.frame;
  const bin = (shown.place_to - shown.place_from) / shown.rows;
  const bars = Array.from({ length: shown.rows }, (_, row) => sums.slice(row * slots, (row + 1) * slots));
  const total = (bar: number[]) => bar.reduce((a, b) => a + b, 0);
  const most = bars.reduce((high, bar) => Math.max(high, total(bar)), 0);
  const totals = Array.from({ length: slots }, (_, slot) => bars.reduce((sum, bar) => sum + bar[slot], 0));
  const whole = total(totals);
  const content: Content & { totals: number[] } = {
    totals,
    x: { label: "place (address space without gaps)", from: frame.place_from, to: frame.place_to, unit: "bytes" },
    y: { label: "accesses", from: 0, to: most * 1.15 || 1, unit: "count", up: true },
    step: [bin, most / 20 || 1],
    empty: most === 0 ? "No access here: zoom out, select a longer time, or record for longer." : undefined,
    legend: () => totals.map((sum, slot): [number, string, string] => [sum, `${names[slot]} ${percent(whole > 0 ? sum / whole : 0)}`, colours()[slot]])
      .filter(([sum]) => sum > 0).slice(0, 24).map(([, name, colour]) => [name, colour]),
    note: `A bar is ${bytes(bin)}. The line at the top marks objects.${found.share < 1 ? ` From a sample of ${percent(found.share)}.` : ""}`,
    draw(g, area) {
      const shades = colours();
      bars.forEach((bar, row) => {
        const left = toPixels(content, area, [shown.place_from + row * bin, 0])[0];
        const right = toPixels(content, area, [shown.place_from + (row + 1) * bin, 0])[0];
        stacked(g, content, area, [left, right], bar, shades);
      });
      g.font = "11px system-ui, sans-serif";
      g.textBaseline = "top";
      g.textAlign = "left";
      let free = area.x;
      marks.forEach((mark, position) => {
        const [left, right] = [toPixels(content, area, [mark.from, 0])[0], toPixels(content, area, [mark.to, 0])[0]];
        if (right < area.x || left > area.x + area.width) return;
        g.fillStyle = position % 2 === 0 ? ink("--ink") : ink("--faint");
        g.fillRect(left, area.y, Math.max(right - left, 1), 4);
        const text = Math.max(left, area.x) + 2;
        if (right - left > 60 && text >= free) {
          g.fillText(fitted(g, mark.name, Math.min(right, area.x + area.width) - text - 4), text, area.y + 6);
          free = right;
        }
      });
    },
    at(x) {
      const row = Math.min(Math.max(Math.floor((x - shown.place_from) / bin), 0), shown.rows - 1);
      const bar = bars[row];
      const place = shown.place_from + row * bin;
      return [
        ...describe(x),
        `${bytes(place)} to ${bytes(place + bin)}`,
        `${exact(total(bar))} accesses`,
        bar.map((sum, slot): [number, string] => [sum, `${names[slot]} ${exact(sum)}`]).filter(([sum]) => sum > 0).sort((a, b) => b[0] - a[0]).slice(0, 4).map(([, text]) => text).join(", "),
      ];
    },
    csv: () => [
      ["place_from", "place_to", ...names.slice(0, slots)],
      ...bars.map((bar, row) => [shown.place_from + row * bin, shown.place_from + (row + 1) * bin, ...bar]),
    ],
    open: (x) => open(x),
  };
  return content;
}
