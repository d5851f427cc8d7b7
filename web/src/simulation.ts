// Results of simulations: what each policy's time went to, as in Verghese's Figure 6.1.

import { api, type Result, type Simulation } from "./api.ts";
import { among, few, PARTS } from "./colours.ts";
import { coursePlot } from "./course.ts";
import { h } from "./dom.ts";
import { count, exact, percent, counted, time } from "./format.ts";
import { movementsView } from "./movements.ts";
import { type Content, Plot, toPixels } from "./plot.ts";
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
  const course = coursePlot(results, state.figure ?? "");
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
        // What is nothing under every policy would only take room.
        ...figures.filter(([key]) => results.some((result) => (figure(result, key) ?? 0) !== 0)).map(([key, title, format]) => ({
          title,
          value: (result: Result) => figure(result, key) ?? "",
          cell: (result: Result) => { const value = figure(result, key); return value === null ? "–" : format(value); },
          number: true,
        })),
      ],
    }),
    ...movementsView(results, state),
    ...parameters(results),
  ];
}

/** A policy's name: where threads moved, other misses would have been. */
const named = (result: Result) => `${result.policy}${result.estimated === true ? " (estimated)" : ""}`;

/** What each result depends on. */
function parameters(results: Result[]): Element[] {
  const words = (result: Result) => Object.entries(result.parameters ?? {}).map(([name, value]) => `${name} ${value}`).join(", ");
  if (results.every((result) => words(result) === "")) return [];
  return [h("h3", {}, "Parameters"), h("dl", { id: "parameters" }, results.flatMap((result) => [h("dt", {}, named(result)), h("dd", {}, words(result) || "none")]))];
}

function bars(results: Result[]): Plot {
  const total = (result: Result) => PARTS.reduce((sum, [key]) => sum + (figure(result, key) ?? 0), 0);
  const most = Math.max(...results.map(total), 1);
  const base = total(results[0]) || 1;
  return new Plot({
    title: "All threads' time by policy",
    height: Math.max(160, 60 + 34 * results.length),
    left: 150,
    load() {
      const content: Content = {
        x: { label: "time of all threads together", from: 0, to: most * 1.05, unit: "time" },
        y: { label: "", from: 0, to: results.length, unit: "names", names: results.map(named) },
        step: [most / 50, 1],
        legend: () => PARTS.map(([, name, colour]) => [name, few(colour)]),
        draw(g, area) {
          results.forEach((result, line) => {
            let sum = 0;
            for (const [key, , colour] of PARTS) {
              const value = figure(result, key) ?? 0;
              const [left, top] = toPixels(content, area, [sum, line + 0.15]);
              const [right, bottom] = toPixels(content, area, [(sum += value), line + 0.85]);
              g.fillStyle = few(colour);
              g.fillRect(left, top, right - left, bottom - top);
            }
          });
        },
        at(_, y) {
          const result = results[Math.floor(y)];
          return [result.policy, `${time(total(result))}, ${((100 * total(result)) / base).toFixed(0)} where ${results[0].policy} is 100`, ...PARTS.map(([key, name]) => `${name} ${time(figure(result, key) ?? 0)}`)];
        },
        csv: () => [["policy", ...PARTS.map(([key]) => key)], ...results.map((result) => [result.policy, ...PARTS.map(([key]) => figure(result, key))])],
      };
      return content;
    },
  });
}

function controllers(results: Result[], load: (result: Result) => number[]): Plot {
  const nodes = Math.max(...results.map((result) => load(result).length));
  const share = (result: Result, node: number) => (load(result)[node] ?? 0) / (load(result).reduce((a, b) => a + b, 0) || 1);
  const most = Math.max(...results.flatMap((result) => load(result).map((_, node) => share(result, node))), 0);
  return new Plot({
    title: "Load of memory controllers by policy",
    height: Math.max(160, 60 + Math.max(34, 9 * nodes) * results.length),
    left: 150,
    load() {
      const content: Content = {
        x: { label: "share of the policy's requests", from: 0, to: Math.max(most * 1.1, 1 / nodes), unit: "share" },
        y: { label: "", from: 0, to: results.length, unit: "names", names: results.map((result) => result.policy) },
        step: [most / 50 || 0.01, 1],
        legend: () => Array.from({ length: nodes }, (_, node) => [`node ${node}`, among(node, nodes)]),
        draw(g, area) {
          results.forEach((result, line) => {
            for (let node = 0; node < nodes; node += 1) {
              const [left, top] = toPixels(content, area, [0, line + 0.1 + (0.8 * node) / nodes]);
              const [right, bottom] = toPixels(content, area, [share(result, node), line + 0.1 + (0.8 * (node + 1)) / nodes]);
              g.fillStyle = among(node, nodes);
              g.fillRect(left, top, right - left, bottom - top - 1);
            }
          });
        },
        at(_, y) {
          const result = results[Math.floor(y)];
          return [result.policy, ...load(result).map((requests, node) => `node ${node} ${exact(requests)} (${percent(share(result, node))})`), ...(typeof result.controller_imbalance === "number" ? [`imbalance ${result.controller_imbalance.toFixed(2)}`] : [])];
        },
        csv: () => [["policy", ...Array.from({ length: nodes }, (_, node) => `node ${node}`)], ...results.map((result) => [result.policy, ...load(result)])],
      };
      return content;
    },
  });
}
