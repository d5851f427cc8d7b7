// What lines and instructions cost: the source where it is at hand, and the machine code.

import { api, type Code, type CodeFunction, type Instruction, type Source, type Sums } from "./api.ts";
import type { Context } from "./context.ts";
import { type Child, h } from "./dom.ts";
import { count, percent, time } from "./format.ts";
import { go, link } from "./state.ts";
import { bar, table } from "./table.ts";

/** Lines around those that cost something, and around the function, that are shown. */
const AROUND = 4;

export function sourceView(context: Context): HTMLElement {
  const { state } = context;
  const place = h("div", { id: "code" }, "…");
  const list = h("div", {}, "…");
  const fail = (error: Error) => place.replaceChildren(h("p", { className: "problem", role: "alert" }, error.message));
  api.functions(context.number, context.selection).then((found) => {
    const { functions } = found;
    const whole = functions.reduce((sum, { cost_ns }) => sum + cost_ns, 0);
    if (functions.length === 0) {
      list.replaceChildren(h("p", { className: "note" }, `No function accesses an object ${context.selection === null ? "in this recording: record for longer, or with a higher --rate" : "in the selected time: select a longer one"}.`));
      place.replaceChildren();
      return;
    }
    const chosen = functions.find((one) => one.name === state.function && String(one.module ?? "") === (state.module ?? ""))
      ?? functions.find((one) => one.name === state.function) ?? functions[0];
    list.replaceChildren(
      ...(found.share < 1 ? [h("p", { className: "note" }, `From a sample of ${percent(found.share)} of the accesses.`)] : []),
      functionTable(functions, whole, chosen),
      ...(found.count > functions.length ? [h("p", { className: "note" }, `${found.count - functions.length} further functions cost less.`)] : []));
    api.code(context.number, chosen.name, chosen.module, context.selection)
      .then((code) => place.replaceChildren(...show(code, whole, state.code ?? "")), fail);
  }, fail);
  return h("section", {}, h("h2", {}, "Source"), list, place);
}

const address = (one: CodeFunction) => link({ view: "source", function: one.name, module: String(one.module ?? "") });

function functionTable(functions: CodeFunction[], whole: number, chosen: CodeFunction): HTMLElement {
  return table({
    name: "functions",
    rows: functions,
    sort: null,
    most: 8,
    columns: [
      { title: "function", value: ({ name }) => name, cell: (one) => h("a", { href: address(one), "aria-current": one === chosen ? "true" : undefined }, one.name) },
      { title: "cost", value: ({ cost_ns }) => cost_ns, cell: ({ cost_ns }) => [bar(cost_ns / Math.max(whole, 1e-9)), percent(cost_ns / Math.max(whole, 1e-9))], number: true },
      { title: "time", value: ({ cost_ns }) => cost_ns, cell: ({ cost_ns }) => time(cost_ns), number: true },
      { title: "of it remote", value: ({ cost_ns, remote_cost_ns }) => remote_cost_ns / Math.max(cost_ns, 1e-9), cell: ({ cost_ns, remote_cost_ns }) => percent(remote_cost_ns / Math.max(cost_ns, 1e-9)), number: true },
      { title: "loads", value: ({ loads }) => loads, cell: ({ loads }) => count(loads), number: true },
      { title: "stores", value: ({ stores }) => stores, cell: ({ stores }) => count(stores), number: true },
      { title: "file", value: ({ file }) => file },
      { title: "program or library", value: ({ module_name }) => module_name },
    ],
  });
}

function show(code: Code, whole: number, asked: string): Child[] & (Node | string)[] {
  const hasSource = !("missing" in code.source);
  const isSource = hasSource && asked !== "instructions";
  const choose = (name: string, words: string, is: boolean) =>
    h("button", { onclick: () => go({ code: name }), "aria-pressed": String(is), disabled: name === "source" && !hasSource }, words);
  const missing = (what: { missing: string }) => h("p", { className: "note", id: "no-source" }, what.missing);
  return [
    h("p", { className: "tools" }, h("strong", {}, code.name), choose("source", "Source", isSource), choose("instructions", "Instructions", !isSource)),
    ...("missing" in code.source ? [missing(code.source)] : []),
    ...(isSource && !("missing" in code.source) ? sourceLines(code.source, whole) : Array.isArray(code.instructions) ? [instructions(code.instructions, whole)] : [missing(code.instructions)]),
  ];
}

const HEADINGS = ["cost", "time", "of it remote", "loads", "stores"];

/** Cells of what a line or an instruction costs; empty where it costs nothing. */
function costs(sums: Sums | undefined, whole: number): HTMLElement[] {
  const cell = (content: Child) => h("td", { className: "number" }, content);
  if (sums === undefined || (sums.loads === 0 && sums.stores === 0 && sums.cost_ns === 0)) return HEADINGS.map(() => cell(""));
  const share = sums.cost_ns / Math.max(whole, 1e-9);
  return [cell([bar(share), percent(share)]), cell(time(sums.cost_ns)), cell(percent(sums.remote_cost_ns / Math.max(sums.cost_ns, 1e-9))), cell(count(sums.loads)), cell(count(sums.stores))];
}

const head = (first: string, last: string) =>
  h("thead", {}, h("tr", {}, h("th", { scope: "col", className: "number" }, first), HEADINGS.map((title) => h("th", { scope: "col", className: "number" }, title)), h("th", { scope: "col" }, last)));

function sourceLines(source: Source, whole: number): HTMLElement[] {
  const sums = new Map(source.costs);
  const row = (number: number) => h("tr", { className: sums.has(number) ? "costs" : "" },
    h("td", { className: "number" }, String(number)), costs(sums.get(number), whole), h("td", {}, h("code", {}, source.lines[number - 1])));
  // Lines near those that cost something; the others are folded away.
  const near = new Set<number>();
  const keep = (line: number) => {
    for (let at = Math.max(1, line - AROUND); at <= Math.min(source.lines.length, line + AROUND); at += 1) near.add(at);
  };
  source.costs.forEach(([line]) => keep(line));
  const [first, last] = source.function_lines ?? [1, 0];
  for (let line = first; line <= Math.min(last, source.lines.length); line += 1) keep(line);
  const rows: HTMLElement[] = [];
  for (let line = 1; line <= source.lines.length; ) {
    let end = line;
    while (end <= source.lines.length && !near.has(end)) end += 1;
    if (end > line) {
      const folded = { from: line, to: end };
      const fold: HTMLElement = h("tr", {}, h("td", { colSpan: HEADINGS.length + 2 }, h("button", {
        onclick: () => fold.replaceWith(...Array.from({ length: folded.to - folded.from }, (_, at) => row(folded.from + at))),
      }, `${end - line} line${end - line === 1 ? "" : "s"} without cost`)));
      rows.push(fold);
      line = end;
    } else {
      rows.push(row(line));
      line += 1;
    }
  }
  const beyond = source.costs.some(([line]) => line > source.lines.length);
  return [
    h("p", { className: "note" }, source.path,
      source.is_newer || beyond ? h("span", { className: "problem" }, " It was changed after the recording: lines may not be those that ran.") : ""),
    h("div", { className: "table" }, h("table", { className: "code", "aria-label": "source" }, head("line", "source"), h("tbody", {}, rows))),
  ];
}

function instructions(found: Instruction[], whole: number): HTMLElement {
  const row = (one: Instruction) => h("tr", { className: one.cost_ns > 0 ? "costs" : "" },
    h("td", { className: "number" }, one.address), costs(one, whole),
    h("td", {}, h("code", {}, one.text), one.line === "" ? null : h("small", {}, ` ${one.line}`)));
  return h("div", { className: "table" }, h("table", { className: "code", "aria-label": "instructions" }, head("address", "instruction"), h("tbody", {}, found.map(row))));
}
