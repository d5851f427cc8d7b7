// What happened in simulations, or under a daemon, over time: a line for each policy.

import type { Result, Timeline } from "./api.ts";
import { among } from "./colours.ts";
import { h } from "./dom.ts";
import { count, percent, time } from "./format.ts";
import { type Area, type Content, Plot, toPixels } from "./plot.ts";
import { note } from "./state.ts";

// Places in a part: local misses, remote ones, pages moved, copies made, collapses, then controllers.
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

/** Values of equal parts of time; null where there is none. */
export interface Line { part_ns: number; from_ns: number; values: (number | null)[]; colour(): string }

/** Do two lines lie on each other, for more than a third of the time that both have values for? */
function coincide(content: Content, area: Area, one: Line, other: Line): boolean {
  let [both, near] = [0, 0];
  one.values.forEach((value, position) => {
    const beside = other.values[Math.floor((position * one.part_ns) / other.part_ns)] ?? null;
    if (value === null || beside === null) return;
    both += 1;
    const [a, b] = [value, beside].map((value) => toPixels(content, area, [content.x.from, value])[1]);
    if (Math.abs(a - b) < 2.5) near += 1;
  });
  return near > both / 3;
}

/** Draws lines over time. */
export function lines(g: CanvasRenderingContext2D, content: Content, area: Area, drawn: Line[]): void {
  g.lineWidth = 2;
  drawn.forEach(({ part_ns, from_ns, values, colour }, line) => {
    g.strokeStyle = colour();
    // Of lines that lie on each other, each shows in the gaps of those drawn after it.
    const below = drawn.slice(0, line).filter((other) => coincide(content, area, drawn[line], other)).length;
    g.setLineDash(below === 0 ? [] : [10, 10 * below]);
    g.beginPath();
    let under = false;
    values.forEach((value, position) => {
      if (value === null) {
        under = false;
        return;
      }
      // A value without a neighbour is a stroke as long as its part.
      const at = (part: number) => toPixels(content, area, [from_ns + part * part_ns, value]);
      if (!under) g.moveTo(...at(position));
      g.lineTo(...at(position + 0.5));
      if ((values[position + 1] ?? null) === null) g.lineTo(...at(position + 1));
      under = true;
    });
    g.stroke();
  });
  g.setLineDash([]);
  g.lineWidth = 1;
}

/** Absent where no result has a timeline. */
export function coursePlot(results: Result[], chosen: string, clock = "simulated time", remark = "All of the simulated time, marked phases or not."): Plot | null {
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
      void plot.refresh();
    },
  }, FIGURES.map(({ name, words }) => h("option", { value: name, selected: name === figure.name }, words)));
  const colour = (number: number) => among(number, results.length);
  const plot = new Plot({
    title: "Over time",
    height: 300,
    left: 96,
    controls: select,
    load() {
      const drawn = timed.map(({ result, number, timeline }) => ({ result, number, part: timeline.part_ns, values: figure.of(timeline.parts) }));
      const end = Math.max(...drawn.map(({ part, values }) => part * values.length));
      const most = figure.share ? 1 : Math.max(1, ...drawn.flatMap(({ values }) => values.map((value) => value ?? 0)));
      const content: Content = {
        x: { label: clock, from: 0, to: end, unit: "time" },
        y: { label: figure.words, from: 0, to: most * 1.05, unit: figure.share ? "share" : "count", up: true },
        step: [end / 256, figure.share ? 0.02 : most / 50],
        legend: () => drawn.map(({ result, number }) => [result.policy, colour(number)]),
        ...(remark === "" ? {} : { note: remark }),
        draw(g, area) {
          lines(g, content, area, drawn.map(({ number, part, values }) => ({ part_ns: part, from_ns: 0, values, colour: () => colour(number) })));
        },
        at: (x) => [
          time(x),
          ...drawn.map(({ result, part, values }) => {
            const value = values[Math.floor(x / part)];
            return `${result.policy} ${value === undefined || value === null ? "–" : figure.share ? percent(value) : count(value)}`;
          }),
        ],
        csv: () => [
          ["policy", "from_ns", "to_ns", figure.words],
          ...drawn.flatMap(({ result, part, values }) => values.map((value, position): (string | number | null)[] => [result.policy, position * part, (position + 1) * part, value])),
        ],
      };
      return content;
    },
  });
  return plot;
}
