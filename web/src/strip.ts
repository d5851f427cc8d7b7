// The strip above every view: accesses over the whole time. A drag selects a time, and all views, tables and shares
// then cover the selected time.

import { api, type Recording, standalone } from "./api.ts";
import { toPixels } from "./axis.ts";
import { Chart, type Values } from "./chart.ts";
import { BY, type By, byName, ink, scheme } from "./colours.ts";
import { threadColours } from "./context.ts";
import { h } from "./dom.ts";
import { count, percent, time } from "./format.ts";
import { go } from "./state.ts";

/** The selected time in nanoseconds since the recording began; null: the whole recording. */
export type Selection = [number, number] | null;

/** The selection by `since` and `until` in the address, cut to the recording. */
export function selectionOf(recording: Recording, since: number | null, until: number | null): Selection {
  if (since === null && until === null) return null;
  const end = recording.duration_ns;
  const from = Math.min(Math.max(Math.floor(since ?? 0), 0), end - 1);
  const to = Math.min(Math.max(Math.ceil(until ?? end), from + 1), end);
  return from === 0 && to === end ? null : [from, to];
}

/** Number of bars: few accesses get wide bars, because most narrow bars would be empty. */
const columns = (width: number, accesses: number) => Math.max(1, Math.round(Math.min(width / 3, Math.max(accesses / 6, 24))));

function select(range: [number, number] | null): void {
  go(range === null ? { since: "", until: "" } : { since: String(Math.floor(range[0])), until: String(Math.ceil(range[1])), t0: "", t1: "" });
}

const STRIP_BY: By[] = ["thread", "cpu-node", "node", "locality", "function", "kind"];

export function strip(number: number, recording: Recording, chosen: string | undefined, selection: Selection): Chart {
  const several = recording.machine.nodes.length > 1;
  const by = byName(chosen, "thread");
  const offered = BY.filter(([name]) => STRIP_BY.includes(name) && (several || !["cpu-node", "node", "locality"].includes(name)));
  const choose = h("select", { id: "strip-by", "aria-label": "strip: colour by", onchange: () => go({ strip: choose.value }) },
    offered.map(([name, words]) => h("option", { value: name, selected: name === by }, words)));
  return new Chart({
    title: selection === null ? "All of the time" : `${time(selection[0])} to ${time(selection[1])}, ${percent((selection[1] - selection[0]) / recording.duration_ns)} of the time`,
    className: "whole-time",
    height: 78,
    bottom: 20,
    left: 76,
    controls: choose,
    ...(standalone ? {} : { select }),
    async load(width): Promise<Values> {
      const { slots, sums, frame } = await api.overTime(number, by, columns(width, recording.accesses));
      const nodes = recording.machine.nodes.map((node) => node.id);
      const shades = () => scheme(by, nodes, threadColours(recording), recording.functions);
      const { names } = shades();
      const column = (frame.to_ns - frame.from_ns) / frame.columns;
      const values = Array.from({ length: slots }, (_, slot) => Array.from({ length: frame.columns }, (_, at) => sums[at * slots + slot]));
      const used = values.flatMap((of, slot) => (of.some((sum) => sum > 0) ? [slot] : []));
      const most = Math.max(...Array.from({ length: frame.columns }, (_, at) => used.reduce((sum, slot) => sum + values[slot][at], 0)));
      return {
        kind: "stacked",
        series: used.map((slot) => ({ name: names[slot], values: values[slot] })),
        colours: () => { const { colours } = shades(); return used.map((slot) => colours[slot]); },
        parts: { label: "", unit: "time", edges: Array.from({ length: frame.columns + 1 }, (_, at) => frame.from_ns + at * column), from: 0, to: recording.duration_ns },
        measure: { label: "", unit: "count", things: "accesses", to: most * 1.05 || 1, ticks: [[0, "0"], [most, count(most)]] },
        columns: ["from_ns", "to_ns"],
        selected: selection,
        empty: used.length === 0 ? "No access over time: the recording has none to a known object." : undefined,
        over(g, area, content) {
          g.font = "11px system-ui, sans-serif";
          g.textBaseline = "top";
          g.textAlign = "left";
          g.fillStyle = ink("--ink");
          for (const [ns, begins] of recording.marks) {
            const x = Math.round(toPixels(content, area, [ns, 0])[0]);
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
      };
    },
  });
}
