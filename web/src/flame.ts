// Costs as a flame graph: each object, the call site that allocated it, the functions that access it, and their lines.
//
// It is a `Plot` because the libraries fall short: with d3-flame-graph 5.0.0 and flame-chart-js 3.3.0 no key reaches a
// frame, frames have no accessible name, pictures can't be saved, and no frame spans two rows.

import { api, type Branch, type Flame } from "./api.ts";
import { fitted, toPixels } from "./axis.ts";
import { chosenColour, few, ink, othersColour, over } from "./colours.ts";
import type { Context } from "./context.ts";
import { h } from "./dom.ts";
import { count, exact, percent, time } from "./format.ts";
import { type Picture, Plot } from "./plot.ts";
import { go, link, note, number, step } from "./state.ts";
import { bar, table } from "./table.ts";

export type Measure = "cost_ns" | "remote_cost_ns" | "loads" | "stores";

export const MEASURES: [Measure, string, (value: number) => string][] = [
  ["cost_ns", "time lost", time],
  ["remote_cost_ns", "time lost to remote memory", time],
  ["loads", "loads", count],
  ["stores", "stores", count],
];

/** Rows of the picture. */
const ROWS = ["all", "object", "allocated by", "accessed in", "line"];
const ROW_OF: Record<Branch["level"], number> = { all: 0, object: 1, "call-site": 2, function: 3, line: 4, others: 0 };
const ROW_HEIGHT = 34;

/** A branch and its place in the picture. */
interface Box { branch: Branch; path: Branch[]; from: number; to: number; top: number; bottom: number; hue: number }

/** All boxes, widest first on each row. */
function boxes(all: Branch, measure: Measure): Box[] {
  const found: Box[] = [];
  const place = (branch: Branch, path: Branch[], from: number, top: number, hue: number) => {
    const value = branch[measure];
    if (value <= 0) return;
    const below = [...branch.branches].sort((a, b) => b[measure] - a[measure]);
    // An object without a call site spans the row of call sites, too.
    const bottom = branch.level === "object" && !below.some(({ level }) => level === "call-site") ? 3 : top + 1;
    found.push({ branch, path, from, to: from + value, top, bottom, hue });
    let at = from;
    below.forEach((child, position) => {
      place(child, [...path, child], at, bottom, branch.level === "all" ? position : hue);
      at += Math.max(child[measure], 0);
    });
  };
  place(all, [], 0, ROW_OF.all, 0);
  return found;
}

const at = (found: Box[], x: number, y: number) => found.find((box) => x >= box.from && x < box.to && y >= box.top && y < box.bottom);

/** Changes to the address that a press on a branch makes. */
function target(branch: Branch): Record<string, string> | null {
  const place = { instance: "", from: "", to: "", t0: "", t1: "", x0: "", x1: "", search: "" };
  if (branch.level === "line") return { ...place, view: "source", function: branch.function ?? "", module: String(branch.module ?? "") };
  if (branch.object === undefined) return null;
  const code: Record<string, string> = branch.level === "function" ? { by: "function", function: branch.name } : {};
  return { ...place, view: "object", object: String(branch.object), ...code };
}

export function flameView(context: Context): HTMLElement {
  const { state } = context;
  const found = api.flame(context.number, context.selection);
  let measure = MEASURES.find(([name]) => name === state.measure)?.[0] ?? "cost_ns";
  let search = state.search ?? "";
  let range: [number, number] | null = number(state, "x0") === null || number(state, "x1") === null ? null : [Number(state.x0), Number(state.x1)];
  const leaves = h("div");
  const say = h("p", { className: "note", role: "status" });
  const choose = h("select", { id: "measure", "aria-label": "width by", onchange: () => {
    measure = MEASURES[choose.selectedIndex][0];
    range = null;
    note({ measure, x0: "", x1: "" });
    void draw();
  } }, MEASURES.map(([name, words]) => h("option", { value: name, selected: name === measure }, words)));
  const input = h("input", { type: "search", id: "search", value: search, placeholder: "object, call, function, line", "aria-label": "search the flame graph", oninput: () => {
    search = input.value;
    note({ search });
    void draw();
  } });
  const plot: Plot = new Plot({
    title: "Cost by object and code",
    height: ROWS.length * ROW_HEIGHT + 48,
    left: 120,
    controls: [h("label", {}, "width by ", choose), h("label", {}, "highlight ", input)],
    zoom(x) {
      range = x;
      step({ x0: x === null ? "" : String(x[0]), x1: x === null ? "" : String(x[1]) });
      void plot.refresh();
    },
    load: async () => picture(context, await found, measure, search, range),
  });
  const draw = async () => {
    const flame = await found;
    const drawn = boxes(flame.all, measure);
    const matches = matching(drawn, search);
    const [, , words] = MEASURES.find(([name]) => name === measure) ?? MEASURES[0];
    const sum = matches.reduce((sum, { branch }) => sum + branch[measure], 0);
    say.textContent = [
      search === "" ? "" : `${exact(matches.length)} found, ${words(sum)}, ${percent(sum / Math.max(flame.all[measure], 1e-9))}.`,
      flame.share < 1 ? `From a sample of ${percent(flame.share)} of the accesses.` : "",
      flame.left_out > 0 ? `${count(flame.left_out)} accesses of rare instructions were left out.` : "",
    ].filter((part) => part !== "").join(" ");
    leaves.replaceChildren(costliest(drawn, flame, measure, search));
    await plot.refresh();
  };
  draw().catch((error) => say.replaceChildren(String(error.message)));
  return h("section", {},
    h("h2", {}, "Flame graph"),
    h("p", {}, "What is wide costs much. Drag over the picture to zoom, press a part of it to go to the object, to the accesses of a function, or to the source of a line."),
    plot.element,
    say,
    h("h3", {}, "Costliest lines"),
    leaves);
}

const isMatch = (branch: Branch, search: string) => branch.name.toLowerCase().includes(search.toLowerCase());

/** Boxes whose own name contains the text, without boxes below another match. */
const matching = (found: Box[], search: string) =>
  search === "" ? [] : found.filter(({ branch, path }) => isMatch(branch, search) && !path.slice(0, -1).some((above) => isMatch(above, search)));

function picture(context: Context, flame: Flame, measure: Measure, search: string, range: [number, number] | null): Picture {
  const whole = flame.all[measure];
  const [, measured, words] = MEASURES.find(([name]) => name === measure) ?? MEASURES[0];
  const found = boxes(flame.all, measure);
  const shown: [number, number] = range === null ? [0, whole] : [Math.max(range[0], 0), Math.min(range[1], whole)];
  const objects = found.filter(({ branch }) => branch.level === "object");
  const hue = (box: Box) => (box.branch.level === "all" || box.hue >= 7 ? othersColour() : few(box.hue));
  const isKnown = context.recording.machine.nodes.length > 1;
  const content: Picture = {
    x: { label: measured, from: shown[0], to: shown[1] > shown[0] ? shown[1] : Math.max(whole, 1), unit: measure.endsWith("_ns") ? "time" : "count" },
    y: { label: "", from: 0, to: ROWS.length, unit: "names", names: ROWS },
    step: [(shown[1] - shown[0]) / 100, 1],
    empty: whole > 0 ? undefined
      : measure === "remote_cost_ns" ? (isKnown ? "No access is known to have gone to another node's memory." : "The recording was made on one memory node: nothing is remote.")
      : `No ${measured} ${context.selection === null ? "in this recording: record for longer, or with a higher --rate" : "in the selected time: select a longer one"}.`,
    legend: () => objects.slice(0, 7).map((box): [string, string] => [box.branch.name, hue(box)]),
    draw(g, area) {
      g.font = "13px system-ui, sans-serif";
      g.textBaseline = "middle";
      g.textAlign = "left";
      for (const box of found) {
        const [left, top] = toPixels(content, area, [Math.max(box.from, content.x.from), box.top]);
        const [right, bottom] = toPixels(content, area, [Math.min(box.to, content.x.to), box.bottom]);
        if (right - left < 0.3) continue;
        const fades = search !== "" && !box.path.some((branch) => isMatch(branch, search));
        const isFound = search !== "" && isMatch(box.branch, search);
        const colour = isFound ? chosenColour() : hue(box);
        g.fillStyle = fades ? ink("--soft") : colour;
        g.fillRect(left, top, Math.max(right - left - 1, 0.5), bottom - top - 1);
        if (right - left < 24) continue;
        g.fillStyle = fades ? ink("--faint") : over(colour);
        g.fillText(fitted(g, box.branch.level === "all" ? `all: ${words(whole)}` : box.branch.name, right - left - 9), left + 4, (top + bottom) / 2);
      }
    },
    at(x, y) {
      const box = at(found, x, y);
      if (box === undefined) return ["nothing"];
      const { branch, path } = box;
      return [
        path.map(({ name }) => name).join(" › ") || "all",
        `${percent(branch[measure] / Math.max(whole, 1e-9))} of ${measured}`,
        `${time(branch.cost_ns)} lost, ${time(branch.remote_cost_ns)} to remote memory, ${count(branch.loads)} loads, ${count(branch.stores)} stores`,
      ];
    },
    open(x, y) {
      const box = at(found, x, y);
      const leads = box === undefined ? null : target(box.branch);
      if (leads !== null) go(leads);
    },
    csv: () => [
      ["object", "allocated by", "accessed in", "line", "cost_ns", "remote_cost_ns", "loads", "stores"],
      ...found.filter(({ branch }) => branch.branches.length === 0).map(({ branch, path }): (string | number)[] => [
        ...(["object", "call-site", "function", "line"] as const).map((level) => path.find((one) => one.level === level)?.name ?? ""),
        branch.cost_ns, branch.remote_cost_ns, branch.loads, branch.stores,
      ]),
    ],
  };
  return content;
}

/** The flame graph's leaves as a table. */
function costliest(found: Box[], flame: Flame, measure: Measure, search: string): HTMLElement {
  const leaves = found.filter(({ branch, path }) => branch.branches.length === 0 && branch.level !== "all" && (search === "" || path.some((one) => isMatch(one, search))));
  const of = (box: Box, level: Branch["level"]) => box.path.find((one) => one.level === level);
  const linked = (branch: Branch | undefined) => {
    const leads = branch === undefined ? null : target(branch);
    return branch === undefined ? "" : leads === null ? branch.name : h("a", { href: link(leads) }, branch.name);
  };
  const [, measured, words] = MEASURES.find(([name]) => name === measure) ?? MEASURES[0];
  return table({
    name: "costliest lines",
    rows: leaves.sort((a, b) => b.branch[measure] - a.branch[measure]),
    sort: null,
    most: 20,
    columns: [
      { title: measured, value: ({ branch }) => branch[measure], cell: ({ branch }) => [bar(branch[measure] / Math.max(flame.all[measure], 1e-9)), percent(branch[measure] / Math.max(flame.all[measure], 1e-9))], number: true },
      { title: measure.endsWith("_ns") ? "time" : "number", value: ({ branch }) => branch[measure], cell: ({ branch }) => words(branch[measure]), number: true },
      { title: "object", value: (box) => of(box, "object")?.name ?? "", cell: (box) => linked(of(box, "object")) },
      { title: "accessed in", value: (box) => of(box, "function")?.name ?? "", cell: (box) => linked(of(box, "function")) },
      { title: "line", value: (box) => of(box, "line")?.name ?? "", cell: (box) => linked(of(box, "line")) },
    ],
  });
}
