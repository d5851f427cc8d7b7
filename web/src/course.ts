// Figures of simulations or of a daemon over time: a line for each policy.

import type { Result, Timeline } from "./api.ts";
import { Chart, type Values } from "./chart.ts";
import { among } from "./colours.ts";
import { h } from "./dom.ts";
import { count } from "./format.ts";
import { note } from "./state.ts";

// Columns of a part: local misses, remote misses, pages moved, copies made, collapses; then each controller's load.
const LOADS = 5;

interface Figure { name: string; words: string; share: boolean; of(parts: number[][]): (number | null)[] }

const soFar = (place: number) => (parts: number[][]) => {
  let sum = 0;
  return parts.map((part) => (sum += part[place] ?? 0));
};
const sum = (values: number[]) => values.reduce((a, b) => a + b, 0);

const FIGURES: Figure[] = [
  { name: "local", words: "local share", share: true, of: (parts) => parts.map(([local, remote]) => (local + remote > 0 ? local / (local + remote) : null)) },
  { name: "migrated", words: "pages moved so far", share: false, of: soFar(2) },
  { name: "replicated", words: "copies made so far", share: false, of: soFar(3) },
  { name: "collapsed", words: "replicated pages written to so far", share: false, of: soFar(4) },
  {
    name: "controller",
    words: "busiest controller's share of requests",
    share: true,
    of: (parts) => parts.map((part) => { const loads = part.slice(LOADS); return sum(loads) > 0 ? Math.max(...loads) / sum(loads) : null; }),
  },
];

/** The chart, or null where no result has a timeline. */
export function courseChart(results: Result[], chosen: string, clock = "simulated time", remark = "All of the simulated time, marked phases or not."): Chart | null {
  const timed = results
    .map((result, number) => ({ result, number, timeline: result.timeline }))
    .filter((line): line is typeof line & { timeline: Timeline } => Array.isArray(line.timeline?.parts) && line.timeline.parts.length > 0);
  if (timed.length === 0) return null;
  let figure = FIGURES.find(({ name }) => name === chosen) ?? FIGURES[0];
  const select = h("select", {
    id: "figure",
    "aria-label": "figure over time",
    onchange: () => {
      figure = FIGURES[select.selectedIndex];
      note({ figure: figure.name });
      void chart.refresh();
    },
  }, FIGURES.map(({ name, words }) => h("option", { value: name, selected: name === figure.name }, words)));
  // Policies have parts of different lengths: the chart's parts begin wherever any policy's part begins.
  const edges = [...new Set(timed.flatMap(({ timeline: { part_ns, parts } }) => Array.from({ length: parts.length + 1 }, (_, part) => part * part_ns)))].sort((a, b) => a - b);
  const middles = edges.slice(1).map((edge, part) => (edge + edges[part]) / 2);
  const chart = new Chart({
    title: "Over time",
    height: 300,
    left: 96,
    controls: select,
    load(): Values {
      return {
        kind: "lines",
        series: timed.map(({ result, timeline }) => {
          const values = figure.of(timeline.parts);
          return { name: result.policy, values: middles.map((ns) => values[Math.floor(ns / timeline.part_ns)] ?? null) };
        }),
        colours: () => timed.map(({ number }) => among(number, results.length)),
        parts: { label: clock, unit: "time", edges },
        measure: figure.share ? { label: figure.words, unit: "share", to: 1.05 } : { label: figure.words, unit: "count", say: count },
        columns: ["from_ns", "to_ns"],
        note: remark,
      };
    },
  });
  return chart;
}
