// The strip above every view: accesses over the whole time. Dragging over it selects a time, which every
// view, table and share then is of.

import { api, type Recording, standalone } from "./api.ts";
import { BY, type By, byName, scheme } from "./colours.ts";
import { threadColours } from "./context.ts";
import { h } from "./dom.ts";
import { count, exact, percent, time } from "./format.ts";
import { type Content, ink, Plot, stacked, toPixels } from "./plot.ts";
import { go } from "./state.ts";

/** The part of the time that is selected, in nanoseconds since the recording began; null: all of it. */
export type Selection = [number, number] | null;

/** Which of what `since` and `until` in the address say there is in a recording. */
export function selectionOf(recording: Recording, since: number | null, until: number | null): Selection {
  if (since === null && until === null) return null;
  const end = recording.duration_ns;
  const from = Math.min(Math.max(Math.floor(since ?? 0), 0), end - 1);
  const to = Math.min(Math.max(Math.ceil(until ?? end), from + 1), end);
  return from === 0 && to === end ? null : [from, to];
}

/** Few accesses make wide bars: of narrow ones, most would be empty. */
const columns = (width: number, accesses: number) => Math.max(1, Math.round(Math.min(width / 3, Math.max(accesses / 6, 24))));

function select(range: [number, number] | null): void {
  go(range === null ? { since: "", until: "" } : { since: String(Math.floor(range[0])), until: String(Math.ceil(range[1])), t0: "", t1: "" });
}

const STRIP_BY: By[] = ["thread", "cpu-node", "node", "locality", "function", "kind"];

export function strip(number: number, recording: Recording, chosen: string | undefined, selection: Selection): Plot {
  const several = recording.machine.nodes.length > 1;
  const by = byName(chosen, "thread");
  const offered = BY.filter(([name]) => STRIP_BY.includes(name) && (several || !["cpu-node", "node", "locality"].includes(name)));
  const choose = h("select", { id: "strip-by", "aria-label": "strip: colour by", onchange: () => go({ strip: choose.value }) },
    offered.map(([name, words]) => h("option", { value: name, selected: name === by }, words)));
  const whole: [number, number] = [0, recording.duration_ns];
  const plot: Plot = new Plot({
    title: selection === null ? "All of the time" : `${time(selection[0])} to ${time(selection[1])}, ${percent((selection[1] - selection[0]) / recording.duration_ns)} of the time`,
    className: "whole-time",
    height: 78,
    bottom: 20,
    left: 76,
    controls: choose,
    ...(standalone ? {} : { select }),
    async load(width) {
      const found = await api.overTime(number, by, columns(width, recording.accesses));
      const nodes = recording.machine.nodes.map((node) => node.id);
      const shades = () => scheme(by, nodes, threadColours(recording), recording.functions);
      const { slots, sums, frame } = found;
      const column = (frame.to_ns - frame.from_ns) / frame.columns;
      const bars = Array.from({ length: frame.columns }, (_, at) => sums.slice(at * slots, (at + 1) * slots));
      const total = (bar: number[]) => bar.reduce((a, b) => a + b, 0);
      const most = bars.reduce((high, bar) => Math.max(high, total(bar)), 0);
      const used = Array.from({ length: slots }, (_, slot) => bars.reduce((sum, bar) => sum + bar[slot], 0));
      const content: Content = {
        x: { label: "", from: whole[0], to: whole[1], unit: "time" },
        y: { label: "", from: 0, to: most * 1.05 || 1, unit: "count", up: true, ticks: [[0, "0"], [most, count(most)]] },
        step: [column, most],
        selected: selection,
        empty: most === 0 ? "No access over time: the recording has none to a known object." : undefined,
        legend: () => used.flatMap((sum, slot): [string, string][] => (sum > 0 ? [[shades().names[slot], shades().colours[slot]]] : [])).slice(0, 8),
        draw(g, area) {
          const { colours } = shades();
          bars.forEach((bar, at) => {
            // Whole pixels: neighbours show no seam.
            const left = Math.round(toPixels(content, area, [frame.from_ns + at * column, 0])[0]);
            const right = Math.round(toPixels(content, area, [frame.from_ns + (at + 1) * column, 0])[0]);
            stacked(g, content, area, [left, right], bar, colours);
          });
          g.font = "11px system-ui, sans-serif";
          g.textBaseline = "top";
          g.textAlign = "left";
          for (const [ns, begins] of recording.marks) {
            const x = Math.round(toPixels(content, area, [ns, 0])[0]);
            g.fillStyle = ink("--ink");
            g.fillRect(x, area.y, 1, area.height);
            g.fillText(begins ? "begin" : "end", x + 3, area.y + 1);
          }
          if (selection === null) return;
          const [from, to] = selection.map((ns) => toPixels(content, area, [ns, 0])[0]);
          g.fillStyle = ink("--paper");
          g.globalAlpha = 0.72;
          g.fillRect(area.x, area.y, from - area.x, area.height);
          g.fillRect(to, area.y, area.x + area.width - to, area.height);
          g.globalAlpha = 1;
          g.fillStyle = ink("--link");
          g.fillRect(from - 1, area.y, 2, area.height);
          g.fillRect(to - 1, area.y, 2, area.height);
        },
        at(x) {
          const bar = bars[Math.min(Math.max(Math.floor((x - frame.from_ns) / column), 0), bars.length - 1)];
          const { names } = shades();
          return [
            time(x),
            `${exact(total(bar))} accesses`,
            bar.map((sum, slot): [number, string] => [sum, `${names[slot]} ${exact(sum)}`]).filter(([sum]) => sum > 0).sort((a, b) => b[0] - a[0]).slice(0, 3).map(([, text]) => text).join(", "),
          ];
        },
        csv: () => [["from_ns", "to_ns", ...shades().names.slice(0, slots)], ...bars.map((bar, at) => [frame.from_ns + at * column, frame.from_ns + (at + 1) * column, ...bar])],
      };
      return content;
    },
  });
  return plot;
}
