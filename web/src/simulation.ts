// Results of simulations: the parts of each policy's time, as in Verghese's Figure 6.1.

import { api, type Result, type Simulation } from "./api.ts";
import { Chart, named as rows, type Values } from "./chart.ts";
import { among, few, PARTS } from "./colours.ts";
import { courseChart } from "./course.ts";
import { h } from "./dom.ts";
import { count, exact, percent, counted, time } from "./format.ts";
import { movementsView } from "./movements.ts";
import { read } from "./state.ts";
import { table } from "./table.ts";

const figure = (result: Result, name: string) => {
  const value = result[name];
  return typeof value === "number" ? value : null;
};

export function simulationView(number: number, name: string): HTMLElement {
  const place = h("div", {}, "…");
  api.simulation(number).then((simulation) => place.replaceChildren(...show(simulation)))
    .catch((error) => place.replaceChildren(h("p", { className: "problem", role: "alert" }, `${name}: ${error.message}`)));
  return h("section", {}, h("h2", {}, `Simulation ${name}`), place);
}

function show(simulation: Simulation): Element[] {
  const { results } = simulation;
  const [first] = results;
  const state = read();
  const course = courseChart(results, state.figure ?? "");
  const load = (result: Result) => (Array.isArray(result.controller_load) ? (result.controller_load as number[]) : []);
  const figures: [string, string, (value: number) => string][] = [
    ["time_ns", "time", time],
    ["local_share", "local", percent],
    ["local_latency_ns", "local ns", (ns) => ns.toFixed(0)],
    ["remote_latency_ns", "remote ns", (ns) => ns.toFixed(0)],
    ["migrated", "migrated", count],
    ["replicated", "replicated", count],
    ["collapsed", "collapsed", count],
    ["interleaved", "spread", count],
    ["ping_pong", "ping-pongs", count],
    ["multiple", "moved again", count],
    ["incorrect", "moved wrongly", count],
    ["controller_imbalance", "imbalance", (value) => value.toFixed(2)],
    ["pages_max", "pages at most", count],
    ["energy_j", "energy J", (value) => value.toPrecision(3)],
  ];
  return [
    h("p", {}, `${[simulation.recording].flat().join(" and ")} on ${simulation.machine}${typeof simulation.threads === "number" ? `: ${counted(simulation.threads, "thread")}` : ""}${first === undefined || figure(first, "misses") === null ? "" : `, ${count(figure(first, "misses") ?? 0)} misses`}.`),
    ...((simulation.notes ?? []).length > 0 ? [h("ul", { className: "note", id: "notes" }, simulation.notes?.map((note) => h("li", {}, note)))] : []),
    bars(results).element,
    ...(results.some((result) => load(result).length > 1) ? [controllers(results, load).element] : []),
    ...(course === null ? [] : [course.element]),
    table({
      name: "policies",
      rows: results,
      sort: null,
      columns: [
        { title: "policy", value: named },
        // Figures that are 0 under every policy are left out.
        ...figures.filter(([key]) => results.some((result) => (figure(result, key) ?? 0) !== 0)).map(([key, title, format]) => ({
          title,
          value: (result: Result) => figure(result, key) ?? "",
          cell: (result: Result) => { const value = figure(result, key); return value === null ? "–" : format(value); },
          number: true,
          minor: MINOR.has(key),
        })),
      ],
    }),
    ...movementsView(results, state),
    ...parameters(results),
  ];
}

/** Figures that narrow windows hide. */
const MINOR = new Set(["collapsed", "interleaved", "ping_pong", "multiple", "incorrect", "controller_imbalance", "pages_max"]);

/** A policy's name; "estimated" where moved threads would have had other misses than recorded. */
const named = (result: Result) => `${result.policy}${result.estimated === true ? " (estimated)" : ""}`;

/** Parameters of each result. */
function parameters(results: Result[]): Element[] {
  const words = (result: Result) => Object.entries(result.parameters ?? {}).map(([name, value]) => `${name} ${value}`).join(", ");
  if (results.every((result) => words(result) === "")) return [];
  return [h("h3", {}, "Parameters"), h("dl", { id: "parameters" }, results.flatMap((result) => [h("dt", {}, named(result)), h("dd", {}, words(result) || "none")]))];
}

function bars(results: Result[]): Chart {
  const total = (result: Result) => PARTS.reduce((sum, [key]) => sum + (figure(result, key) ?? 0), 0);
  const base = total(results[0]) || 1;
  return new Chart({
    title: "All threads' time by policy",
    height: Math.max(160, 60 + 34 * results.length),
    left: 150,
    load: (): Values => ({
      kind: "stacked",
      horizontal: true,
      series: PARTS.map(([key, name]) => ({ name, values: results.map((result) => figure(result, key)) })),
      colours: () => PARTS.map(([, , colour]) => few(colour)),
      parts: rows("", results.map(named)),
      measure: { label: "time of all threads together", unit: "time" },
      columns: ["policy"],
      at(row) {
        const result = results[row];
        return [result.policy, `${time(total(result))}, ${((100 * total(result)) / base).toFixed(0)} where ${results[0].policy} is 100`, ...PARTS.map(([key, name]) => `${name} ${time(figure(result, key) ?? 0)}`)];
      },
      csv: () => [["policy", ...PARTS.map(([key]) => key)], ...results.map((result) => [result.policy, ...PARTS.map(([key]) => figure(result, key))])],
    }),
  });
}

function controllers(results: Result[], load: (result: Result) => number[]): Chart {
  const nodes = Math.max(...results.map((result) => load(result).length));
  const share = (result: Result, node: number) => (load(result)[node] ?? 0) / (load(result).reduce((a, b) => a + b, 0) || 1);
  return new Chart({
    title: "Load of memory controllers by policy",
    height: Math.max(160, 60 + Math.max(34, 9 * nodes) * results.length),
    left: 150,
    load: (): Values => ({
      kind: "beside",
      horizontal: true,
      series: Array.from({ length: nodes }, (_, node) => ({ name: `node ${node}`, values: results.map((result) => share(result, node)) })),
      colours: () => Array.from({ length: nodes }, (_, node) => among(node, nodes)),
      parts: rows("", results.map((result) => result.policy)),
      measure: { label: "share of the policy's requests", unit: "share" },
      columns: ["policy"],
      at(row) {
        const result = results[row];
        return [result.policy, ...load(result).map((requests, node) => `node ${node} ${exact(requests)} (${percent(share(result, node))})`), ...(typeof result.controller_imbalance === "number" ? [`imbalance ${result.controller_imbalance.toFixed(2)}`] : [])];
      },
      csv: () => [["policy", ...Array.from({ length: nodes }, (_, node) => `node ${node}`)], ...results.map((result) => [result.policy, ...load(result)])],
    }),
  });
}
