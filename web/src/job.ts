// A job: groups of ranks that behave alike, ranks that differ, bindings. Each rank links to its own recording.

import { api, type Job, type JobGroup, type JobHost, type JobNode, type JobRank, type JobReport, standalone, type Use } from "./api.ts";
import { Chart, named, type Values } from "./chart.ts";
import { among, few } from "./colours.ts";
import { h } from "./dom.ts";
import { bytes, count, exact, percent, counted, time } from "./format.ts";
import { go, link } from "./state.ts";
import { bar, type Column, sortedTable, table } from "./table.ts";

export function jobView(name: string): HTMLElement {
  const place = h("div", {}, "…");
  api.job().then((job) => place.replaceChildren(...show(job)))
    .catch((error) => place.replaceChildren(h("p", { className: "problem", role: "alert" }, `${name}: ${error.message}`)));
  return h("section", { className: "job" }, h("h2", {}, `Job ${name}`), place);
}

/** Opens the recording of a rank, and shows it. */
export async function openRank(position: number): Promise<void> {
  const { recording } = await api.rank(position);
  history.replaceState(null, "", link({ view: "summary", recording: String(recording) }, false));
}

/** Time lost to accesses over the recorded time; above 1 where several threads lose time. */
const lost = (rank: JobRank) => (rank.elapsed_ns > 0 ? rank.cost_ns / rank.elapsed_ns : 0);
const remote = (used: Use) => (used.remote_share === null ? "?" : percent(used.remote_share));
/** Ranks as in the report, such as `3, 5-8, 12`: at most 12 ranges. */
function ranges(ranks: number[]): string {
  const parts: string[] = [];
  for (let at = 0; at < ranks.length;) {
    let end = at;
    while (ranks[end + 1] === ranks[end] + 1) end += 1;
    parts.push(end === at ? `${ranks[at]}` : `${ranks[at]}-${ranks[end]}`);
    at = end + 1;
  }
  return parts.length > 12 ? `${parts.slice(0, 12).join(", ")} and more` : parts.join(", ");
}

function show({ report, opened }: Job): Element[] {
  const hasNodes = report.ranks.some((rank) => rank.remote_share !== null);
  const recorded = report.ranks.length;
  const of = report.size !== null && report.size > recorded ? ` of ${exact(report.size)}` : "";
  const samples = report.ranks.reduce((sum, rank) => sum + rank.samples, 0);
  const list = (id: string, lines: (string | Node)[][]) => (lines.length === 0 ? [] : [h("ul", { id, className: "note" }, lines.map((line) => h("li", {}, line)))]);
  return [
    h("p", {}, `${report.job === null ? "" : `Job ${report.job}: `}${counted(recorded, "rank")}${of} on ${counted(report.hosts.length, "host")}, ${count(samples)} effective samples of accesses.`),
    ...list("job-notes", [...report.notes.map((text) => [text]), ...report.rank_notes.map((about) => [`Ranks ${ranges(about.ranks)}: ${about.note}`])]),
    h("h3", {}, "Ranks that behave alike"),
    ...(report.groups.length === 0 ? [h("p", {}, "No rank has samples enough to tell: record longer, or with a higher --rate.")] : []),
    ...report.groups.map((group, number) => groupPart(group, number, report, hasNodes)),
    ...(report.too_few_samples.length === 0 ? [] : [h("p", { className: "note" }, `Ranks ${ranges(report.too_few_samples)}: too few samples to tell; record longer, or with a higher --rate.`)]),
    h("h3", {}, "Bindings"),
    report.binding.length === 0
      ? h("p", {}, report.ranks.some((rank) => rank.cpus !== null) ? "Nothing wrong was found." : "What ranks were bound to was not recorded.")
      : h("ul", { id: "binding" }, report.binding.map((finding) => h("li", {}, finding.sentence, finding.remedy === null ? "" : "; try ", finding.remedy === null ? null : h("code", {}, finding.remedy)))),
    chart(report, hasNodes).element,
    h("h3", {}, "Hosts"),
    hosts(report, hasNodes),
    ...(report.hosts.some((host) => host.nodes.length > 1) ? [h("h3", {}, "Memory nodes"), nodes(report.hosts)] : []),
    h("h3", {}, "Ranks"),
    ranks(report, opened, hasNodes),
  ];
}

function groupPart(group: JobGroup, number: number, report: JobReport, hasNodes: boolean): HTMLElement {
  const members = new Set(group.ranks);
  const shares = report.ranks.filter((rank) => members.has(rank.rank)).map(lost);
  const mean = shares.reduce((sum, share) => sum + share, 0) / Math.max(shares.length, 1);
  const who = members.size === report.ranks.length ? `all ${counted(members.size, "rank")}` : `${members.size} of ${counted(report.ranks.length, "rank")}: ${ranges(group.ranks)}`;
  const objects = group.objects.filter((object) => object.share >= 0.01);
  return h("details", { open: number < 3, className: "group" },
    h("summary", {}, h("b", {}, `Group ${number + 1}`), ` ${group.difference === null ? who : group.difference}; ${hasNodes ? `${remote(group)} remote, ` : ""}${percent(mean)} of the time lost`),
    table<JobGroup["objects"][number]>({
      name: `objects of group ${number + 1}`,
      rows: objects,
      sort: null,
      columns: [
        { title: "object", value: (object) => object.name },
        { title: "accesses", value: (object) => object.share, cell: (object) => [bar(object.share), percent(object.share)], number: true },
        ...(hasNodes ? [{ title: "remote", value: (object: Use) => object.remote_share ?? -1, cell: remote, number: true }] : []),
        { title: "time lost", value: (object) => object.cost_ns, cell: (object) => time(object.cost_ns), number: true },
        { title: "pattern", value: (object) => object.pattern },
      ],
    }));
}

const memory = (row: { memory_bytes: number | null }) => (row.memory_bytes === null ? "?" : bytes(row.memory_bytes));

/** Columns common to ranks, hosts and nodes. */
const uses = <Row extends Use & { memory_bytes: number | null }>(hasNodes: boolean): Column<Row>[] => [
  { title: "samples", value: (row) => row.samples, cell: (row) => count(row.samples), number: true },
  { title: "memory", value: (row) => row.memory_bytes ?? -1, cell: memory, number: true },
  ...(hasNodes ? [{ title: "remote", value: (row: Row) => row.remote_share ?? -1, cell: (row: Row) => remote(row), number: true }] : []),
];

function hosts(report: JobReport, hasNodes: boolean): HTMLElement {
  return table({
    name: "hosts",
    rows: report.hosts,
    sort: null,
    columns: [
      { title: "host", value: (host) => host.host || "?" },
      { title: "ranks", value: (host) => host.ranks.length, number: true },
      ...uses<JobHost>(hasNodes),
      { title: "time lost, all ranks", value: (host) => host.cost_ns, cell: (host) => time(host.cost_ns), number: true },
    ],
  });
}

function nodes(of: JobHost[]): HTMLElement {
  const rows = of.flatMap((host) => host.nodes.map((node) => ({ host: host.host, ...node })));
  return table<JobNode & { host: string }>({
    name: "memory nodes",
    rows,
    sort: null,
    columns: [
      { title: "host", value: (node) => node.host || "?" },
      { title: "node", value: (node) => node.node, number: true },
      ...uses<JobNode & { host: string }>(true),
      { title: "time lost to its memory", value: (node) => node.cost_ns, cell: (node) => time(node.cost_ns), number: true },
    ],
  });
}

function ranks(report: JobReport, opened: [number, number][], hasNodes: boolean): HTMLElement {
  const numbers = new Map(opened);
  const address = (position: number) => {
    const recording = numbers.get(position);
    if (recording !== undefined) return link({ view: "summary", recording: String(recording) }, false);
    // A file has only the recordings that were open when it was saved.
    return standalone ? null : link({ view: "rank", position: String(position) }, false);
  };
  const rows = report.ranks.map((rank, position) => ({ ...rank, position }));
  type Row = JobRank & { position: number };
  const columns: Column<Row>[] = [
    {
      title: "rank", value: (rank) => rank.rank, number: true,
      cell: (rank) => { const to = address(rank.position); return to === null ? rank.rank : h("a", { href: to, title: "its recording" }, String(rank.rank)); },
    },
    { title: "group", value: (rank) => (rank.group === null ? "" : rank.group + 1), cell: (rank) => (rank.group === null ? "–" : rank.group + 1), number: true },
    { title: "host", value: (rank) => rank.host || "?" },
    ...uses<Row>(hasNodes),
    { title: "time lost", value: lost, cell: (rank) => percent(lost(rank)), number: true },
    { title: "CPUs", value: (rank) => rank.cpus ?? "?" },
    { title: "memory nodes", value: (rank) => rank.memory_nodes ?? "?" },
    ...(rows.some((rank) => rank.gpus !== null) ? [{ title: "GPUs", value: (rank: Row) => rank.gpus ?? "" }] : []),
    { title: "exit", value: (rank) => rank.exit_status ?? "", cell: (rank) => (rank.exit_status === null ? "?" : rank.exit_status), number: true, hint: "exit status; from 129 on ended by a signal" },
  ];
  return sortedTable("ranks", rows, columns);
}

/** A bar for each rank: its lost time, in the colour of its group. */
function chart(report: JobReport, hasNodes: boolean): Chart {
  const { ranks, groups } = report;
  const of = (group: number | null, name: string) => ({ name, values: ranks.map((rank) => (rank.group === group ? lost(rank) : null)) });
  const isAlone = ranks.some((rank) => rank.group === null);
  return new Chart({
    title: "Time lost by rank",
    height: 240,
    load: (): Values => ({
      kind: "stacked",
      series: [...groups.map((group, number) => of(number, `group ${number + 1}, ${counted(group.ranks.length, "rank")}`)), ...(isAlone ? [of(null, "too few samples for a group")] : [])],
      colours: () => [...groups.map((_, number) => among(number, groups.length)), few(7)],
      parts: named("rank", ranks.map((rank) => String(rank.rank))),
      measure: { label: "share of the time", unit: "share" },
      columns: ["rank"],
      empty: ranks.every((rank) => rank.cost_ns === 0) ? "No time was lost to memory, as far as was sampled." : undefined,
      at(position) {
        const rank = ranks[position];
        return [`rank ${rank.rank}${rank.host === "" ? "" : ` on ${rank.host}`}`, `${percent(lost(rank))} of the time lost`, ...(hasNodes ? [`${remote(rank)} remote`] : []), rank.group === null ? "too few samples for a group" : `group ${rank.group + 1}`];
      },
      ...(standalone ? {} : { open: (position: number) => go({ view: "rank", position: String(position) }, false) }),
      csv: () => [["rank", "host", "group", "lost", "remote"], ...ranks.map((rank) => [rank.rank, rank.host, rank.group === null ? null : rank.group + 1, lost(rank), rank.remote_share])],
    }),
  });
}
