// Comparison of two recordings, largest differences first.

import { api, type ObjectRow, type Report, type Shown } from "./api.ts";
import { Chart, named, type Values } from "./chart.ts";
import { few } from "./colours.ts";
import type { Context } from "./context.ts";
import { h } from "./dom.ts";
import { percent, time } from "./format.ts";
import { go, link, number } from "./state.ts";
import { table } from "./table.ts";

interface Side { row: ObjectRow; shown: Shown; number: number }
interface Pair { name: string; sides: [Side | null, Side | null] }

/** Pairs objects of equal name and kind; among several of one name, the costliest are paired first. */
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

function chart(rows: Pair[], names: string[]): Chart {
  return new Chart({
    title: "Share of the cost, what differs most first",
    height: Math.max(140, 60 + 30 * rows.length),
    left: 200,
    load: (): Values => ({
      kind: "beside",
      horizontal: true,
      series: ([0, 1] as const).map((side) => ({ name: names[side], values: rows.map((pair) => share(pair, side)) })),
      colours: () => [few(0), few(1)],
      parts: named("", rows.map((pair) => pair.name)),
      measure: { label: "share of the recording's cost", unit: "share" },
      columns: ["object"],
      empty: rows.length === 0 ? "Neither recording has an access to an object." : undefined,
    }),
  });
}
