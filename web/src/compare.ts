// Two recordings: what differs first.

import { api, type ObjectRow, type Report, type Shown } from "./api.ts";
import { few } from "./colours.ts";
import type { Context } from "./context.ts";
import { h } from "./dom.ts";
import { percent, time } from "./format.ts";
import { type Content, Plot, toPixels } from "./plot.ts";
import { go, link, number } from "./state.ts";
import { table } from "./table.ts";

interface Side { row: ObjectRow; shown: Shown; number: number }
interface Pair { name: string; sides: [Side | null, Side | null] }

const colour = (side: number) => few(side);

/** Objects of one name and kind belong together, the costliest of several first. */
function pairs(left: Report, right: Report): Pair[] {
  const found: Pair[] = [];
  [left, right].forEach((report, at) => {
    const taken = new Set<Pair>();
    report.report.objects.forEach((row, number) => {
      const side = { row, shown: report.shown[number], number };
      const partner = at === 1 ? found.find((pair) => pair.name === row.name && pair.sides[0]?.row.kind === row.kind && !taken.has(pair)) : undefined;
      if (partner !== undefined) {
        partner.sides[1] = side;
        taken.add(partner);
      } else {
        const pair: Pair = { name: row.name, sides: at === 0 ? [side, null] : [null, side] };
        taken.add(pair);
        found.push(pair);
      }
    });
  });
  const apart = (pair: Pair) => Math.abs(share(pair, 1) - share(pair, 0));
  return found.sort((a, b) => apart(b) - apart(a));
}

const share = (pair: Pair, side: 0 | 1) => pair.sides[side]?.row.cost_share ?? 0;

export function compareView(context: Context): HTMLElement {
  const { open, state } = context;
  const other = number(state, "with") ?? (context.number === 0 ? 1 : 0);
  const place = h("div", {}, "…");
  const choose = h("select", { id: "with", onchange: () => go({ with: choose.value }) },
    open.recordings.map((recording, at) => (at === context.number ? null : h("option", { value: at, selected: at === other }, recording.folder))));
  const names = [open.recordings[context.number].folder, open.recordings[other]?.folder ?? ""];
  const draw = async () => {
    const { share: read } = await api.progress(other);
    const right = await api.report(other, read, null);
    const left = context.report;
    const rows = pairs(left, right);
    const lost = (report: Report) => report.report.objects.reduce((sum, row) => sum + row.cost_ns, 0);
    const local = (report: Report) => {
      const [all, remote] = report.report.objects.reduce(([all, remote], row) => [all + row.accesses, remote + row.remote], [0, 0]);
      return percent(all > 0 ? 1 - remote / all : 0);
    };
    const words = (pair: Pair, side: 0 | 1) => pair.sides[side]?.shown.words ?? "absent";
    place.replaceChildren(
      table({
        name: "recordings",
        rows: [left, right].map((report, at) => ({ report, at })),
        sort: null,
        columns: [
          { title: "recording", value: ({ at }) => names[at] },
          { title: "lasted", value: ({ at }) => open.recordings[at === 0 ? context.number : other].duration_ns, cell: ({ at }) => time(open.recordings[at === 0 ? context.number : other].duration_ns), number: true },
          { title: "source", value: ({ report }) => report.report.source },
          { title: "accesses", value: ({ report }) => report.report.accesses, number: true },
          { title: "time lost", value: ({ report }) => lost(report), cell: ({ report }) => time(lost(report)), number: true },
          { title: "local, where known", value: ({ report }) => local(report), number: true },
        ],
      }),
      chart(rows.slice(0, 15), names).element,
      table({
        name: "comparison",
        rows,
        sort: null,
        most: 100,
        columns: [
          { title: "object", value: (pair) => pair.name, cell: (pair) => {
            const side = pair.sides[0] ? 0 : 1;
            return h("a", { href: link({ view: "object", recording: String(side === 0 ? context.number : other), object: String(pair.sides[side]?.shown.number ?? 0), since: "", until: "", instance: "", from: "", to: "", t0: "", t1: "" }) }, pair.name);
          } },
          { title: "cost, first", value: (pair) => share(pair, 0), cell: (pair) => percent(share(pair, 0)), number: true },
          { title: "cost, second", value: (pair) => share(pair, 1), cell: (pair) => percent(share(pair, 1)), number: true },
          { title: "difference", value: (pair) => share(pair, 1) - share(pair, 0), cell: (pair) => `${(100 * (share(pair, 1) - share(pair, 0))).toFixed(1)} points`, number: true },
          { title: "pattern", value: (pair) => (words(pair, 0) === words(pair, 1) ? words(pair, 0) : `${words(pair, 0)} → ${words(pair, 1)}`) },
        ],
      }),
    );
  };
  draw().catch((error) => place.replaceChildren(String(error.message)));
  return h("section", {}, h("h2", {}, "Compare"), context.selection === null ? null : h("p", { className: "note" }, "The selected time is of the first recording alone: the other one is shown whole."), h("p", {}, names[0], " with ", open.recordings.length > 2 ? choose : names[1]), place);
}

function chart(rows: Pair[], names: string[]): Plot {
  const most = Math.max(...rows.flatMap((pair) => [share(pair, 0), share(pair, 1)]), 0.01);
  return new Plot({
    title: "Share of the cost, what differs most first",
    height: Math.max(140, 60 + 30 * rows.length),
    left: 200,
    load() {
      const content: Content = {
        x: { label: "share of the recording's cost", from: 0, to: most * 1.05, unit: "share" },
        y: { label: "", from: 0, to: Math.max(rows.length, 1), unit: "names", names: rows.map((pair) => pair.name) },
        step: [most / 50, 1],
        empty: rows.length === 0 ? "Neither recording has an access to an object." : undefined,
        legend: () => names.map((name, at) => [name, colour(at)]),
        draw(g, area) {
          rows.forEach((pair, line) => {
            for (const side of [0, 1] as const) {
              const [left, top] = toPixels(content, area, [0, line + 0.15 + side * 0.35]);
              const [right, bottom] = toPixels(content, area, [share(pair, side), line + 0.15 + (side + 1) * 0.35]);
              g.fillStyle = colour(side);
              g.fillRect(left, top, Math.max(right - left, 1), bottom - top - 1);
            }
          });
        },
        at(_, y) {
          const pair = rows[Math.floor(y)];
          return [pair.name, ...names.map((name, side) => `${name} ${percent(share(pair, side as 0 | 1))}`)];
        },
        csv: () => [["object", ...names], ...rows.map((pair) => [pair.name, share(pair, 0), share(pair, 1)])],
      };
      return content;
    },
  });
}
