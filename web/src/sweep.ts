// Results of a sweep: a table that sorts by any figure, and a chart that compares settings over traces and machines.

import { api, type Sweep, type SweepRow } from "./api.ts";
import { Chart, named, type Values } from "./chart.ts";
import { among } from "./colours.ts";
import { h } from "./dom.ts";
import { count, percent, counted, time } from "./format.ts";
import { type Column, sortedTable } from "./table.ts";

/** Most settings in the chart; if there are more, the quickest. */
const SETTINGS_MAX = 60;

export function sweepView(number: number, name: string): HTMLElement {
  const place = h("div", {}, "…");
  api.sweep(number).then((sweep) => place.replaceChildren(...show(sweep)))
    .catch((error) => place.replaceChildren(h("p", { className: "problem", role: "alert" }, `${name}: ${error.message}`)));
  return h("section", {}, h("h2", {}, `Sweep ${name}`), place);
}

const place = (row: SweepRow) => `${row.recording} on ${row.machine ?? "its own machine"}`;
const setting = (row: SweepRow) => [row.policy, ...Object.entries(row.parameters).map(([name, value]) => `${name}=${value}`)].join(", ");

function show({ rows, status }: Sweep): Element[] {
  const missing = status.cells - status.done - status.failed.length;
  const counts = [`${status.done} of ${counted(status.cells, "cell")} computed`, ...(status.failed.length > 0 ? [`${status.failed.length} failed`] : []), ...(missing > 0 ? [`${missing} missing`] : [])];
  return [
    h("p", {}, `${counts.join(", ")}.`),
    ...(status.failed.length > 0 ? [h("ul", { className: "problem", id: "failed" }, status.failed.slice(0, 20).map(({ cell, cause }) => h("li", {}, `${cell}: ${cause}`)))] : []),
    ...(rows.length > 0 ? [chart(rows).element, cells(rows)] : []),
  ];
}

function cells(rows: SweepRow[]): HTMLElement {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.parameters)))].sort();
  const nanoseconds = (title: string, value: (row: SweepRow) => number, hint: string): Column<SweepRow> => ({ title, value, cell: (row) => time(value(row)), number: true, hint });
  const columns: Column<SweepRow>[] = [
    { title: "trace", value: (row) => row.recording },
    { title: "machine", value: (row) => row.machine ?? "", cell: (row) => row.machine ?? "its own" },
    { title: "policy", value: (row) => row.policy },
    ...names.map((name): Column<SweepRow> => ({ title: name, value: (row) => row.parameters[name] ?? "" })),
    nanoseconds("time", (row) => row.time_ns, "simulated time"),
    { title: "× first", value: (row) => row.times_first ?? "", cell: (row) => row.times_first?.toFixed(3) ?? "–", number: true, hint: "time over that of the first policy on the same trace and machine" },
    { title: "local", value: (row) => row.local_share, cell: (row) => percent(row.local_share), number: true, hint: "misses to the own node" },
    nanoseconds("local stall", (row) => row.local_stall_ns, "stalled on the own node's memory, all threads"),
    nanoseconds("remote stall", (row) => row.remote_stall_ns, "stalled on another node's memory, all threads"),
    nanoseconds("moving", (row) => row.move_ns, "moving pages and threads, all threads"),
    { title: "migrated", value: (row) => row.migrated, cell: (row) => count(row.migrated), number: true },
    { title: "replicated", value: (row) => row.replicated, cell: (row) => count(row.replicated), number: true },
  ];
  return sortedTable("cells", rows, columns);
}

/** A row for each setting with a dot for each trace and machine: its time relative to the first policy's. */
function chart(rows: SweepRow[]): Chart {
  const places = [...new Set(rows.map(place))];
  const ratios = new Map<string, [number, SweepRow][]>();
  for (const row of rows) {
    if (row.times_first === null) continue;
    const of = ratios.get(setting(row)) ?? [];
    of.push([places.indexOf(place(row)), row]);
    ratios.set(setting(row), of);
  }
  const mean = (name: string) => {
    const of = ratios.get(name) ?? [];
    return Math.exp(of.reduce((sum, [, row]) => sum + Math.log(row.times_first ?? 1), 0) / Math.max(of.length, 1));
  };
  const all = [...ratios.keys()].sort((a, b) => mean(a) - mean(b));
  const settings = all.slice(0, SETTINGS_MAX);
  const values = settings.flatMap((name) => (ratios.get(name) ?? []).map(([, row]) => row.times_first ?? 1));
  const [least, most] = [Math.min(...values, 1), Math.max(...values, 1)];
  const margin = Math.max((most - least) * 0.05, 0.01);
  const found = (name: string, place: number) => (ratios.get(name) ?? []).find(([of]) => of === place)?.[1];
  return new Chart({
    title: "Time over that of the first policy",
    height: Math.max(160, 70 + 20 * settings.length),
    left: 220,
    load: (): Values => ({
      kind: "dots",
      horizontal: true,
      series: places.map((name, place) => ({ name, values: settings.map((setting) => found(setting, place)?.times_first ?? null) })),
      colours: () => places.map((_, place) => among(place, places.length)),
      parts: named("", settings),
      measure: { label: "time over that of the first policy", unit: "count", from: Math.max(least - margin, 0), to: most + margin },
      columns: ["setting"],
      empty: settings.length === 0 ? "The first policy has no result yet." : undefined,
      note: all.length > settings.length ? `The ${settings.length} quickest of ${counted(all.length, "setting")}, by the geometric mean of the ratios.` : "The quickest setting first, by the geometric mean of the ratios.",
      at(row) {
        const name = settings[row];
        return [name, ...(ratios.get(name) ?? []).slice(0, 8).map(([place, of]) => `${places[place]} ${of.times_first?.toFixed(3)}, ${time(of.time_ns)}`)];
      },
    }),
  });
}
