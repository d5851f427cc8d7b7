// One object: which thread uses which page, when it is accessed, and by which code.

import { api, type Instance, type Plan, type Shown, standalone } from "./api.ts";
import { type Area, type Axes, toPixels } from "./axis.ts";
import { byName, ink } from "./colours.ts";
import { type Context, type ObjectAt, objects, threadColour, threadName } from "./context.ts";
import { chooser, density } from "./density.ts";
import { h } from "./dom.ts";
import { bytes, count, exact, percent, counted, time } from "./format.ts";
import { type Picture, Plot } from "./plot.ts";
import { go, link, number, step } from "./state.ts";
import { table } from "./table.ts";

export function objectView(context: Context): HTMLElement {
  const chosen = number(context.state, "object") ?? 0;
  const object = objects(context).find(({ number }) => number === chosen);
  if (object !== undefined) return view(context, object, chosen);
  const absent = () => (context.selection === null
    ? h("p", {}, `The recording has no object ${chosen}.`)
    : h("p", {}, "In the selected time nothing accesses this object. ", h("a", { href: link({ since: "", until: "" }) }, "Select all of the time")));
  // The report has only the costliest objects: the server sends others one at a time.
  const place = h("section", {}, h("h2", {}, "Object"));
  if (context.report.objects > context.report.shown.length && !standalone) {
    api.object(context.number, chosen, context.selection).then(
      ({ row, shown }) => place.replaceWith(view(context, { row, shown, number: chosen }, chosen)),
      () => place.append(absent()));
  } else place.append(absent());
  return place;
}

function view(context: Context, { row, shown }: ObjectAt, chosen: number): HTMLElement {
  const { state, recording } = context;
  const by = byName(state.by, "thread");
  const instances = shown.instances;
  const instance = instances[number(state, "instance") ?? 0] ?? instances[0];

  const whole = Math.max(shown.pages, 1) * shown.page_bytes;
  const lived: [number, number] = instance
    ? within([instance.born_ns, instance.died_ns ?? recording.duration_ns], context.range)
    : context.range;
  let [from, to] = [number(state, "from") ?? 0, number(state, "to") ?? whole];
  let [t0, t1] = [number(state, "t0") ?? lived[0], number(state, "t1") ?? lived[1]];

  const plots: Plot[] = [];
  const zoom = (offsets: [number, number] | null, times: [number, number] | null) => {
    const bounded = (range: [number, number], low: number, high: number, least: number): [number, number] => {
      const width = Math.min(Math.max(range[1] - range[0], least), high - low);
      const begin = Math.min(Math.max(range[0], low), high - width);
      return [begin, begin + width];
    };
    [from, to] = offsets === null ? [0, whole] : bounded(offsets, 0, whole, shown.page_bytes);
    if (times !== undefined) [t0, t1] = times === null ? lived : bounded(times, 0, recording.duration_ns, recording.tick_ns * 10);
    step({ from: offsets === null ? "" : String(Math.round(from)), to: offsets === null ? "" : String(Math.round(to)), t0: times === null ? "" : String(Math.round(t0)), t1: times === null ? "" : String(Math.round(t1)) });
    for (const plot of plots) void plot.refresh();
  };

  plots.push(
    new Plot({
      title: `${row.name}: pages by thread`,
      height: Math.min(460, 90 + 18 * Math.max(Object.keys(row.threads).length, 2)),
      left: 120,
      load: (width) => matrix(context, chosen, shown, from, to, width),
      zoom: (x) => zoom(x === null ? null : [x[0] * shown.page_bytes, x[1] * shown.page_bytes], x === null ? null : [t0, t1]),
    }),
  );
  if (instance !== undefined) {
    plots.push(
      new Plot({
        title: `${row.name}: offset over time`,
        height: 420,
        left: 96,
        load: (width, height) =>
          density(
            context,
            {
              origin: instance.place - instance.page_offset, from, to, from_ns: t0, to_ns: t1, by,
              accesses: (row.accesses / Math.max(instances.length, 1)) * ((to - from) / whole),
              label: "offset in the object",
              overlay: (g, area, content) => pattern(context, shown.pattern, instance, row.size_bytes, g, area, content),
              describe: (offset) => [`page ${exact(Math.floor(offset / shown.page_bytes))}`],
            },
            width,
            height,
          ),
        zoom: (x, y) => zoom(y, x),
        controls: chooser(context, by, (by) => go({ by })),
      }),
    );
  }
  const choose = h("select", { onchange: () => go({ instance: choose.value, from: "", to: "", t0: "", t1: "" }), id: "instance" },
    instances.map((one, position) => h("option", { value: position, selected: one === instance },
      `${one.address}, ${bytes(one.bytes)}${one.user === null ? "" : `, mostly ${threadName(recording.threads[one.user])}`}`)));
  const placement = h("p", { id: "placement" }, "Planned: …");
  api.plan(context.number).then((plan) => placement.replaceChildren(...planned(plan, chosen)), (error) => placement.replaceChildren(String(error.message)));

  return h(
    "section",
    {},
    h("h2", {}, row.name),
    h("p", {}, `${shown.kind}, ${row.instances === 1 ? "" : `${count(row.instances)} of up to `}${bytes(row.size_bytes)}; ${percent(row.cost_share)} of the cost, ${time(row.cost_ns)}; ${exact(row.loads.count)} loads, ${exact(row.stores.count)} stores. Pattern: `, h("b", {}, shown.words), "."),
    placement,
    instances.length > 1 ? h("p", {}, h("label", {}, "instance ", choose), ` of the ${instances.length} that are known one by one; the matrix lays all over each other`) : null,
    plots.map((plot) => plot.element),
    instance === undefined ? h("p", { className: "note" }, "No instance of it is known by its address, so there is no picture over time.") : null,
    h("h3", {}, "Who accesses it"),
    instance === undefined ? null : h("p", { className: "note" }, "A function stands out in the picture over time when its name is pressed here; a press on a dot there chooses the function that made most of its accesses."),
    table({
      name: `${row.name} functions`,
      rows: row.hot,
      sort: null,
      columns: [
        {
          title: "function",
          value: (hot) => hot.function || "(unknown)",
          cell: (hot) => {
            const name = hot.function || "(unknown)";
            const shown = by === "function" && state.function === name;
            return h("a", { href: link({ by: "function", function: shown ? "" : name }), "aria-current": shown ? "true" : undefined, title: "show its accesses in the picture" }, name);
          },
        },
        {
          title: "elsewhere",
          value: () => "",
          cell: (hot) => h("a", { href: link({ view: "objects", search: hot.function }), title: "all objects that it accesses" }, "objects"),
        },
        {
          title: "line",
          value: (hot) => (hot.file ? `${hot.file}:${hot.line}` : ""),
          cell: (hot) => (standalone ? (hot.file ? `${hot.file}:${hot.line}` : "") : h("a", { href: link({ view: "source", function: hot.function || "(unknown)", module: "" }), title: "lines or instructions with their cost" }, hot.file ? `${hot.file}:${hot.line}` : "instructions")),
        },
        { title: "time", value: (hot) => hot.cost_ns, cell: (hot) => time(hot.cost_ns), number: true },
        { title: "share", value: (hot) => hot.cost_ns / Math.max(row.cost_ns, 1e-9), cell: (hot) => percent(hot.cost_ns / Math.max(row.cost_ns, 1e-9)), number: true },
      ],
    }),
    row.call_site.length > 0
      ? h("details", {}, h("summary", {}, "Allocated by"), h("ol", {}, row.call_site.map((call) => h("li", {}, call.function || "(unknown)", call.file ? ` ${call.file}:${call.line}` : "", h("small", {}, ` ${call.module}+0x${call.offset.toString(16)}`)))))
      : null,
  );
}

function planned(plan: Plan, number: number): (Node | string)[] {
  const found = plan.objects.find(({ object }) => object === number);
  if (found === undefined) return ["No plan places it: nothing recognises it in another run, or it is too small."];
  const local = (outcome: { local_share: number }) => percent(outcome.local_share);
  return [
    `Placed on ${plan.machine}: `, h("b", {}, found.placement),
    `; local accesses by first touch${found.first_touch_assumed ? " (assumed)" : ""} ${local(found.first_touch)}, interleaved ${local(found.interleave)}, as planned ${local(found.planned)}. `,
    h("a", { href: link({ view: "plan" }) }, "Try another"),
  ];
}

/** The part of a range within another range; the whole other range if they don't overlap. */
function within([from, to]: [number, number], [low, high]: [number, number]): [number, number] {
  const [begin, end] = [Math.max(from, low), Math.min(to, high)];
  return begin < end ? [begin, end] : [low, high];
}

/** Heat map of pages and threads. */
async function matrix(context: Context, object: number, shown: Shown, from: number, to: number, width: number): Promise<Picture> {
  const { recording } = context;
  const page = (offset: number) => offset / shown.page_bytes;
  const range = [Math.floor(page(from)), Math.ceil(page(to))];
  const found = await api.matrix(context.number, object, shown.pages, range[0], range[1], Math.floor(width), context.selection);
  const pagesOfBin = (found.to - found.from) / found.bins;
  const threads = found.threads;
  const most = found.loads.reduce((high, loads, at) => Math.max(high, loads + found.stores[at]), 0);
  const names = threads.map((thread) => threadName(recording.threads[thread]));
  const bin = (x: number) => Math.floor((x - found.from) / pagesOfBin);
  // The first and last page of a bin, rounded as the server rounds them.
  const pages = (position: number): [number, number] => [
    found.from + Math.ceil((position * (found.to - found.from)) / found.bins),
    found.from + Math.ceil(((position + 1) * (found.to - found.from)) / found.bins) - 1,
  ];
  const content: Picture = {
    x: { label: `page of ${bytes(found.page_bytes)}`, from: page(from), to: page(to), unit: "pages" },
    y: { label: "", from: 0, to: Math.max(threads.length, 1), unit: "names", names },
    step: [pagesOfBin, 1],
    empty: most === 0 ? "No page of this part was accessed: press All, or select a longer time." : undefined,
    legend: () => threads.slice(0, 24).map((thread, line) => [names[line], threadColour(recording, thread)]),
    note: `Stronger is more loads and stores. A column is ${exact(pagesOfBin)} page${pagesOfBin === 1 ? "" : "s"}; the strongest cell has ${counted(most, "access")}.${found.first_touches.length > 0 ? " The line below each row marks the pages that its thread touched first." : ""}`,
    draw(g, area) {
      threads.forEach((thread, line) => {
        const [, top] = toPixels(content, area, [0, line]);
        const [, bottom] = toPixels(content, area, [0, line + 1]);
        g.fillStyle = threadColour(recording, thread);
        for (let position = 0; position < found.bins; position += 1) {
          const sum = found.loads[line * found.bins + position] + found.stores[line * found.bins + position];
          if (sum === 0) continue;
          const [first, last] = pages(position);
          // Edges at whole pixels, so that neighbours show no seam.
          const left = Math.round(toPixels(content, area, [first, 0])[0]);
          const right = Math.round(toPixels(content, area, [last + 1, 0])[0]);
          g.globalAlpha = 0.5 + 0.5 * (Math.log1p(sum) / Math.log1p(most));
          g.fillRect(left, top + 1, Math.max(right - left, 1), bottom - top - 4);
        }
        g.globalAlpha = 1;
        for (const [first, length, toucher] of found.first_touches) {
          if (toucher !== thread) continue;
          const left = toPixels(content, area, [first, 0])[0];
          g.fillRect(left, bottom - 3, Math.max(toPixels(content, area, [first + length, 0])[0] - left, 1), 2);
        }
      });
    },
    at(x, y) {
      const [position, line] = [bin(x), Math.floor(y)];
      const [first, last] = pages(position);
      const at = line * found.bins + position;
      const toucher = found.first_touches.find(([begin, length]) => first >= begin && first < begin + length);
      return [
        first >= last ? `page ${exact(first)}` : `pages ${exact(first)} to ${exact(last)}`,
        `offset ${bytes(first * found.page_bytes)}`,
        names[line],
        `${exact(found.loads[at])} loads, ${exact(found.stores[at])} stores, ${time(found.cost_ns[at])} lost`,
        ...(toucher ? [`first touched by ${threadName(recording.threads[toucher[2]])}`] : []),
      ];
    },
    csv() {
      const rows: (string | number)[][] = [["first_page", "last_page", "thread", "loads", "stores", "cost_ns"]];
      threads.forEach((_, line) => {
        for (let position = 0; position < found.bins; position += 1) {
          const at = line * found.bins + position;
          if (found.loads[at] + found.stores[at] > 0) rows.push([...pages(position), names[line], found.loads[at], found.stores[at], found.cost_ns[at]]);
        }
      });
      return rows;
    },
  };
  return content;
}

/** The detected pattern over the picture: boundaries of the parts, and each part's thread at the right. */
function pattern(
  context: Context,
  found: { kind: string; block_bytes?: number; part_bytes?: [number, number]; threads?: number[] },
  instance: Instance,
  size: number,
  g: CanvasRenderingContext2D,
  area: Area,
  content: Axes,
): void {
  const { block_bytes: block = 0, threads = [] } = found;
  if (block <= 0 || threads.length === 0) return;
  // Blocks count from the beginning of the part that the threads share.
  const [start, end] = found.part_bytes ?? [0, size];
  const first = Math.max(0, Math.floor((content.y.from - instance.page_offset - start) / block));
  const last = Math.min(Math.ceil((end - start) / block) - 1, Math.ceil((content.y.to - instance.page_offset - start) / block));
  if (last - first > 200) return;
  g.strokeStyle = ink("--ink");
  g.setLineDash([6, 4]);
  for (let piece = first; piece <= last; piece += 1) {
    const at = (offset: number) => toPixels(content, area, [content.x.from, Math.min(start + offset, end) + instance.page_offset])[1];
    const [top, bottom] = [at(piece * block), at((piece + 1) * block)];
    g.globalAlpha = 0.6;
    if (piece > 0 || start > 0) g.strokeRect(area.x, Math.round(top) + 0.5, area.width, 0);
    g.globalAlpha = 1;
    g.fillStyle = threadColour(context.recording, threads[piece % threads.length]);
    g.fillRect(area.x + area.width - 7, top, 7, bottom - top);
  }
  g.setLineDash([]);
}
