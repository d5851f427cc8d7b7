// Costs of lines and instructions: source code if available, and machine code.

import { api, type Code, type CodeFunction, type Instruction, type Source, type Sums } from "./api.ts";
import type { Context } from "./context.ts";
import { type Child, h } from "./dom.ts";
import { count, percent, time } from "./format.ts";
import { go, link } from "./state.ts";
import { bar, table } from "./table.ts";

/** Lines shown before and after a line with costs, and before and after the function. */
const AROUND = 4;

export function sourceView(context: Context): HTMLElement {
  const { state } = context;
  const place = h("div", { id: "code" }, "…");
  const list = h("div", {}, "…");
  const fail = (error: Error) => place.replaceChildren(h("p", { className: "problem", role: "alert" }, error.message));
  api.functions(context.number, context.selection).then((found) => {
    const { functions } = found;
    const columns = costColumns(context, functions.reduce((sum, { cost_ns }) => sum + cost_ns, 0));
    if (functions.length === 0) {
      list.replaceChildren(h("p", { className: "note" }, `No function accesses an object ${context.selection === null ? "in this recording: record for longer, or with a higher --rate" : "in the selected time: select a longer one"}.`));
      place.replaceChildren();
      return;
    }
    const chosen = functions.find((one) => one.name === state.function && String(one.module ?? "") === (state.module ?? ""))
      ?? functions.find((one) => one.name === state.function) ?? functions[0];
    list.replaceChildren(
      ...(found.share < 1 ? [h("p", { className: "note" }, `From a sample of ${percent(found.share)} of the accesses.`)] : []),
      functionTable(functions, columns, chosen),
      ...(found.count > functions.length ? [h("p", { className: "note" }, `${found.count - functions.length} further functions cost less.`)] : []));
    api.code(context.number, chosen.name, chosen.module, context.selection)
      .then((code) => {
        place.replaceChildren(...show(code, columns, state.code ?? ""));
        toFunction(place);
      }, fail);
  }, fail);
  return h("section", {}, h("h2", {}, "Source"), list, place);
}

/** Scrolls to the beginning of the function, or else to the first row with costs. */
function toFunction(place: HTMLElement): void {
  const frame = place.querySelector<HTMLElement>(".window");
  const row = frame?.querySelector<HTMLElement>("tr.begins") ?? frame?.querySelector<HTMLElement>("tr.costs");
  if (frame && row) frame.scrollTop = row.offsetTop - 80;
}

const address = (one: CodeFunction) => link({ view: "source", function: one.name, module: String(one.module ?? "") });

function functionTable(functions: CodeFunction[], columns: CostColumn[], chosen: CodeFunction): HTMLElement {
  return table<CodeFunction>({
    name: "functions",
    rows: functions,
    sort: null,
    most: 8,
    columns: [
      { title: "function", value: ({ name }) => name, cell: (one) => h("a", { href: address(one), "aria-current": one === chosen ? "true" : undefined }, one.name) },
      ...columns.map((column) => ({ ...column, number: true })),
      { title: "file", value: ({ file }) => file },
      { title: "program or library", value: ({ module_name }) => module_name },
    ],
  });
}

function show(code: Code, columns: CostColumn[], form: string): HTMLElement[] {
  const hasSource = !("missing" in code.source);
  const isSource = hasSource && form !== "instructions";
  const choose = (name: string, words: string, is: boolean) =>
    h("button", { onclick: () => go({ code: name }), "aria-pressed": String(is), disabled: name === "source" && !hasSource }, words);
  const missing = (what: string, why: { missing: string }) => h("p", { className: "note", id: `no-${what}` }, `No ${what}: ${why.missing}.`);
  return [
    h("p", { className: "tools" }, h("strong", {}, code.name), choose("source", "Source", isSource), choose("instructions", "Instructions", !isSource)),
    ...("missing" in code.source ? [missing("source", code.source)] : []),
    ...(isSource && !("missing" in code.source) ? sourceLines(code.source, columns) : Array.isArray(code.instructions) ? [instructions(code.instructions, columns)] : [missing("instructions", code.instructions)]),
  ];
}


/** A column about lines, instructions or functions. */
interface CostColumn { title: string; value(sums: Sums): number; cell(sums: Sums): Child }

/** The columns for a recording; `whole` is the cost of all functions. */
function costColumns(context: Context, whole: number): CostColumn[] {
  const remote = ({ cost_ns, remote_cost_ns }: Sums) => remote_cost_ns / Math.max(cost_ns, 1e-9);
  const share = ({ cost_ns }: Sums) => cost_ns / Math.max(whole, 1e-9);
  const isKnown = context.report.report.threads.some(({ node_known }) => node_known > 0);
  return [
    { title: "cost", value: share, cell: (sums) => [bar(share(sums)), percent(share(sums))] },
    { title: "time", value: ({ cost_ns }) => cost_ns, cell: ({ cost_ns }) => time(cost_ns) },
    ...(isKnown ? [{ title: "of it remote", value: remote, cell: (sums: Sums) => percent(remote(sums)) }] : []),
    { title: "loads", value: ({ loads }) => loads, cell: ({ loads }) => count(loads) },
    { title: "stores", value: ({ stores }) => stores, cell: ({ stores }) => count(stores) },
  ];
}

/** Cells of a line or an instruction; empty where nothing was sampled. */
const cells = (columns: CostColumn[], sums: Sums | undefined) => columns.map(({ cell }) =>
  h("td", { className: "number" }, sums === undefined || (sums.loads === 0 && sums.stores === 0 && sums.cost_ns === 0) ? "" : cell(sums)));

const head = (first: string, columns: CostColumn[], last: string) =>
  h("thead", {}, h("tr", {}, h("th", { scope: "col", className: "number" }, first), columns.map(({ title }) => h("th", { scope: "col", className: "number" }, title)), h("th", { scope: "col" }, last)));

function sourceLines(source: Source, columns: CostColumn[]): HTMLElement[] {
  const sums = new Map(source.costs);
  const [first, last] = source.function_lines ?? [1, 0];
  const row = (number: number) => h("tr", { className: `${sums.has(number) ? "costs" : ""}${number === first ? " begins" : ""}` },
    h("td", { className: "number" }, String(number)), cells(columns, sums.get(number)), h("td", {}, h("code", {}, source.lines[number - 1])));
  // Numbers of the lines to show; all other lines are folded.
  const near = new Set<number>();
  const keep = (line: number) => {
    for (let at = Math.max(1, line - AROUND); at <= Math.min(source.lines.length, line + AROUND); at += 1) near.add(at);
  };
  source.costs.forEach(([line]) => keep(line));
  for (let line = first; line <= Math.min(last, source.lines.length); line += 1) keep(line);
  const rows: HTMLElement[] = [];
  for (let line = 1; line <= source.lines.length; ) {
    let end = line;
    while (end <= source.lines.length && !near.has(end)) end += 1;
    if (end > line) {
      const folded = { from: line, to: end };
      const fold: HTMLElement = h("tr", {}, h("td", { colSpan: columns.length + 2 }, h("button", {
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
    h("div", { className: "table window", tabIndex: 0, role: "group", "aria-label": "code, scrolls" }, h("table", { className: "code", "aria-label": "source" }, head("line", columns, "source"), h("tbody", {}, rows))),
  ];
}

function instructions(found: Instruction[], columns: CostColumn[]): HTMLElement {
  const row = (one: Instruction) => h("tr", { className: one.cost_ns > 0 ? "costs" : "" },
    h("td", { className: "number" }, one.address), cells(columns, one),
    h("td", {}, h("code", {}, one.text), one.line === "" ? null : h("small", {}, ` ${one.line}`)));
  return h("div", { className: "table window", tabIndex: 0, role: "group", "aria-label": "code, scrolls" }, h("table", { className: "code", "aria-label": "instructions" }, head("address", columns, "instruction"), h("tbody", {}, found.map(row))));
}
