// The whole address space, without its gaps: a histogram with the objects marked, and the same over
// time.

import { api, type Frame } from "./api.ts";
import { type By, byName } from "./colours.ts";
import { type Context, objects } from "./context.ts";
import { chooser, density, schemeOf } from "./density.ts";
import { h } from "./dom.ts";
import { bytes, count, exact, percent } from "./format.ts";
import { type Content, fitted, ink, Plot, toPixels } from "./plot.ts";
import { go, note, number } from "./state.ts";

interface Mark { from: number; to: number; name: string; object: number; kind: string }

/** Instances known by number, of all objects, in order of place. */
function marks(context: Context): Mark[] {
  const found = objects(context).flatMap(({ row, shown, number }) =>
    shown.instances.map((instance) => ({ from: instance.place, to: instance.place + instance.bytes, name: row.name, object: number, kind: row.kind })));
  return found.sort((a, b) => a.from - b.from);
}

export function spaceView(context: Context): HTMLElement {
  const { state, recording } = context;
  const by = byName(state.by, recording.machine.nodes.length > 1 ? "cpu-node" : "thread");
  let [from, to] = [number(state, "from") ?? 0, number(state, "to") ?? recording.space_bytes];
  let [t0, t1] = [number(state, "t0") ?? 0, number(state, "t1") ?? recording.duration_ns];
  const all = marks(context);
  const at = (place: number) => all.filter((mark) => mark.from <= place && place < mark.to);
  const describe = (place: number): string[] => {
    const names = at(place).map((mark) => mark.name);
    const extent = recording.extents.findLast(([begin]) => begin <= place);
    const address = extent ? `0x${(BigInt(extent[2]) + BigInt(Math.floor(place - extent[0]))).toString(16)}` : "";
    return [`address ${address}`, names.length > 0 ? [...new Set(names)].slice(0, 3).join(", ") : "no object known one by one"];
  };
  const open = (place: number) => {
    const mark = at(place)[0];
    if (mark) go({ view: "object", recording: String(context.number), object: String(mark.object), instance: "", from: "", to: "", t0: "", t1: "", by });
  };
  const zoom = (places: [number, number] | null, times: [number, number] | null | undefined) => {
    const bounded = (range: [number, number], high: number, least: number): [number, number] => {
      const width = Math.min(Math.max(range[1] - range[0], least), high);
      const begin = Math.min(Math.max(range[0], 0), high - width);
      return [begin, begin + width];
    };
    [from, to] = places === null ? [0, recording.space_bytes] : bounded(places, recording.space_bytes, recording.machine.page_bytes);
    if (times !== undefined) [t0, t1] = times === null ? [0, recording.duration_ns] : bounded(times, recording.duration_ns, recording.tick_ns * 10);
    note({ from: String(Math.round(from)), to: String(Math.round(to)), t0: String(Math.round(t0)), t1: String(Math.round(t1)) });
    for (const plot of plots) void plot.refresh();
  };
  const accesses = context.report.report.accesses;
  const plots = [
    new Plot({
      title: "Accesses over the address space",
      height: 300,
      left: 96,
      load: (width) => histogram(context, by, { place_from: Math.floor(from), place_to: Math.ceil(to), from_ns: Math.floor(t0), to_ns: Math.ceil(t1), columns: 1, rows: Math.floor(width / 2) }, all, describe, open),
      zoom: (x) => zoom(x, x === null ? null : undefined),
      controls: chooser(context, by, (by) => go({ by })),
    }),
    new Plot({
      title: "Address space over time",
      height: 420,
      left: 96,
      load: (width, height) =>
        density(context, { origin: 0, from, to, from_ns: t0, to_ns: t1, by, accesses: accesses * ((to - from) / Math.max(recording.space_bytes, 1)), label: "place (address space without gaps)", describe, open }, width, height),
      zoom: (x, y) => zoom(y, x),
    }),
  ];
  return h(
    "section",
    {},
    h("h2", {}, "Address space"),
    h("p", {}, `${bytes(recording.space_bytes)} in ${recording.extents.length} ranges of objects and modules; the gaps between them are left out. `,
      context.progress.elsewhere > 0 ? `${count(context.progress.elsewhere)} accesses were to addresses where no object or module is known: they are in no picture.` : "",
      " Enter or a click on an object opens it."),
    plots.map((plot) => plot.element),
  );
}

async function histogram(
  context: Context, by: By, frame: Frame, marks: Mark[], describe: (place: number) => string[], open: (place: number) => void,
): Promise<Content> {
  const found = await api.histogram(context.number, by, frame);
  const { names, colours } = schemeOf(context, by);
  const { slots, sums } = found;
  const shown = found.frame;
  const bin = (shown.place_to - shown.place_from) / shown.rows;
  const bars = Array.from({ length: shown.rows }, (_, row) => sums.slice(row * slots, (row + 1) * slots));
  const total = (bar: number[]) => bar.reduce((a, b) => a + b, 0);
  const most = bars.reduce((high, bar) => Math.max(high, total(bar)), 0);
  const totals = Array.from({ length: slots }, (_, slot) => bars.reduce((sum, bar) => sum + bar[slot], 0));
  const whole = total(totals);
  const content: Content = {
    x: { label: "place (address space without gaps)", from: frame.place_from, to: frame.place_to, unit: "bytes" },
    y: { label: "accesses", from: 0, to: most * 1.15 || 1, unit: "count", up: true },
    step: [bin, most / 20 || 1],
    legend: totals.map((sum, slot): [number, string, string] => [sum, `${names[slot]} ${percent(whole > 0 ? sum / whole : 0)}`, colours[slot]])
      .filter(([sum]) => sum > 0).slice(0, 24).map(([, name, colour]) => [name, colour]),
    note: `A bar is ${bytes(bin)}. The line at the top marks objects.${found.share < 1 ? ` From a sample of ${percent(found.share)}.` : ""}`,
    draw(g, area) {
      bars.forEach((bar, row) => {
        const left = toPixels(content, area, [shown.place_from + row * bin, 0])[0];
        const right = toPixels(content, area, [shown.place_from + (row + 1) * bin, 0])[0];
        let sum = 0;
        bar.forEach((value, slot) => {
          if (value === 0) return;
          const [low, high] = [toPixels(content, area, [0, sum])[1], toPixels(content, area, [0, (sum += value)])[1]];
          g.fillStyle = colours[slot];
          g.fillRect(left, high, Math.max(right - left, 1), low - high);
        });
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
