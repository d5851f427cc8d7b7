// The table of objects.

import { api, type ObjectRow, standalone } from "./api.ts";
import { BriefObject, type Context, type ObjectAt, objects } from "./context.ts";
import { among } from "./colours.ts";
import { h } from "./dom.ts";
import { bytes, count, exact, percent, time } from "./format.ts";
import { link, note } from "./state.ts";
import { bar, type Column, table } from "./table.ts";

/** Words for kinds of objects whose name in the JSON is unclear. */
const KINDS: Record<string, string> = { heap_unresolved: "heap outside known objects", mapping: "mappings", stack: "stacks", tls: "thread-local" };

/**
 * An object's pages, coloured by the thread that uses each page most. A background of hard stops, because a canvas
 * in every row costs the browser 100 KiB per row.
 */
export function strip(context: Context, colours: number[], label: string): HTMLElement {
  const element = h("span", { className: "strip", role: "img", "aria-label": label, title: label });
  const stops: string[] = [];
  for (let from = 0; from < colours.length; ) {
    const slot = colours[from];
    let to = from + 1;
    while (to < colours.length && colours[to] === slot) to += 1;
    const at = (bin: number) => `${(100 * bin) / colours.length}%`;
    stops.push(`${slot < 0 ? "transparent" : among(slot, context.recording.colours)} ${at(from)} ${at(to)}`);
    from = to;
  }
  if (stops.length > 0) element.style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
  return element;
}

/** Share of the accesses that went to another node's memory; null where no page's node is known. */
function remoteShare({ loads, stores, remote }: ObjectRow): number | null {
  const known = loads.node_known + stores.node_known;
  return known > 0 ? remote / known : null;
}

const fileOf = ({ row }: ObjectAt) => row.hot[0]?.file.split("/").pop() || "(no debug information)";
const functionOf = ({ row }: ObjectAt) => row.hot[0]?.function || "(unknown)";

/** Ways to group objects: name in the address, words, and an object's value. */
const GROUPINGS: [string, string, (object: ObjectAt) => string][] = [
  ["kind", "kind", ({ shown }) => shown.kind],
  ["in", "function that accesses", functionOf],
  ["file", "file that accesses", fileOf],
];

/** Objects of equal value. */
interface Group { name: string; objects: ObjectAt[] }

function grouped(all: ObjectAt[], of: (object: ObjectAt) => string): Group[] {
  const groups = new Map<string, ObjectAt[]>();
  for (const object of all) {
    const name = of(object);
    const group = groups.get(name);
    if (group === undefined) groups.set(name, [object]);
    else group.push(object);
  }
  return [...groups].map(([name, objects]) => ({ name, objects }));
}

const searched = (object: ObjectAt) => (object instanceof BriefObject ? object.searched : words(object)).toLowerCase();

const words = ({ row, shown }: ObjectAt) =>
  [row.name, row.kind, shown.words, ...row.hot.map((hot) => hot.function), ...row.call_site.map((call) => call.function)].join("\n");

export function objectsView(context: Context): HTMLElement {
  const { report } = context.report;
  const nodes = context.recording.machine.nodes.length;
  const columns: Column<ObjectAt>[] = [
    {
      title: "object",
      value: ({ row }) => row.name,
      cell: ({ row, number }) => number === null ? row.name : h("a", { href: link({ view: "object", recording: String(context.number), object: String(number), instance: "", from: "", to: "", t0: "", t1: "" }) }, row.name),
    },
    { title: "cost", value: ({ row }) => row.cost_ns, cell: ({ row }) => [bar(row.cost_share), percent(row.cost_share)], number: true, hint: "share of the time lost to accesses" },
    { title: "time", value: ({ row }) => row.cost_ns, cell: ({ row }) => time(row.cost_ns), number: true, minor: true },
    { title: "loads", value: ({ row }) => row.loads.count, cell: ({ row }) => count(row.loads.count), number: true },
    { title: "stores", value: ({ row }) => row.stores.count, cell: ({ row }) => count(row.stores.count), number: true },
    ...(nodes > 1
      ? [{ title: "remote", value: ({ row }: ObjectAt) => remoteShare(row) ?? -1, cell: ({ row }: ObjectAt) => { const share = remoteShare(row); return share === null ? "?" : percent(share); }, number: true, hint: "share of its accesses to another node's memory; ? where pages' nodes were not recorded" }]
      : []),
    { title: "size", value: ({ row }) => row.size_bytes, cell: ({ row }) => bytes(row.size_bytes), number: true },
    { title: "objects", value: ({ row }) => row.instances, cell: ({ row }) => count(row.instances), number: true, hint: "how many there were", minor: true },
    { title: "threads", value: ({ row }) => Object.keys(row.threads).length, number: true, minor: true },
    { title: "pages, by thread", value: ({ shown }) => shown.pages, cell: ({ shown, row }) => strip(context, shown.strip, `${row.name}: its pages by the thread that uses each most`) },
    { title: "pattern", value: ({ shown }) => shown.words },
    {
      title: "sure", value: ({ row }) => row.pattern.confidence ?? -1, number: true, minor: true,
      cell: ({ row }) => (row.pattern.confidence === null ? "" : percent(row.pattern.confidence)),
      hint: "share of resamples of the recording with the same pattern; none for small objects and traces",
    },
    { title: "function", value: ({ row }) => row.hot[0]?.function ?? "", hint: "where most of the time is lost" },
  ];
  const place = h("div");
  const chips = h("div", { className: "chips", role: "group", "aria-label": "filters" });
  const all = objects(context);
  /** Active filters, by name of the grouping. */
  const only: Record<string, string> = Object.fromEntries(GROUPINGS.map(([name]) => [name, context.state[name] ?? ""]));
  let grouping = GROUPINGS.find(([name]) => name === context.state.group)?.[0] ?? "";
  const filter = (name: string, value: string) => {
    only[name] = only[name] === value ? "" : value;
    grouping = "";
    group.selectedIndex = 0;
    note({ [name]: only[name], group: "" });
    draw();
  };
  const group = h("select", { id: "group", "aria-label": "group by", onchange: () => {
    grouping = group.value;
    note({ group: grouping });
    draw();
  } }, h("option", { value: "" }, "no groups"), GROUPINGS.map(([name, words]) => h("option", { value: name, selected: name === grouping }, words)));
  const isLeft = (object: ObjectAt) => GROUPINGS.every(([name, , of]) => only[name] === "" || of(object) === only[name]);
  let { search = "", sort = "1", up = "" } = context.state;
  const draw = () => {
    const words = search.toLowerCase().split(/\s+/).filter((word) => word !== "");
    const rows = all.filter((object) => isLeft(object) && (words.length === 0 || words.every((word) => searched(object).includes(word))));
    chips.replaceChildren(
      ...grouped(all, ({ shown }) => shown.kind).map(({ name, objects }) =>
        h("button", { "aria-pressed": String(only.kind === name), onclick: () => filter("kind", name) }, `${name} (${exact(objects.length)})`)),
      ...GROUPINGS.filter(([name]) => name !== "kind" && only[name] !== "").map(([name, words]) =>
        h("button", { "aria-pressed": "true", title: "show all again", onclick: () => filter(name, only[name]) }, `${words} ${only[name]} ×`)));
    const by = GROUPINGS.find(([name]) => name === grouping);
    if (by !== undefined) {
      place.replaceChildren(groupTable(grouped(rows, by[2]), by, filter, nodes > 1));
      return;
    }
    place.replaceChildren(
      h("p", { className: "note", role: "status" }, all.length === 0
        ? `Nothing was accessed ${context.selection === null ? "in this recording: record for longer, or with a higher --rate" : "in the selected time: select a longer one"}.`
        : `${exact(rows.length)} of ${exact(Math.max(all.length, context.report.objects))} objects`),
      table({
        name: "objects",
        rows,
        columns,
        // By default the table shows objects of at least 0.1 % of the cost, 10 to 200 rows; a button shows more.
        ...(sort === "1" && up === "" && words.length === 0 ? { most: Math.min(200, Math.max(10, rows.filter(({ row }) => row.cost_share >= 0.001).length)) } : {}),
        sort: { column: Number(sort), up: up !== "" },
        sorted(column, ascending) {
          [sort, up] = [String(column), ascending ? "1" : ""];
          note({ sort, up });
          draw();
          place.querySelectorAll<HTMLElement>("th button")[column]?.focus();
        },
      }),
    );
  };
  const input = h("input", {
    type: "search",
    value: search,
    placeholder: "object, function, pattern",
    id: "search",
    oninput: () => {
      search = input.value;
      note({ search });
      draw();
    },
  });
  draw();
  if (context.report.objects > all.length && !standalone) {
    const cost = report.objects.reduce((sum, { cost_ns }) => sum + cost_ns, 0) / Math.max(report.objects.reduce((sum, { cost_share }) => sum + cost_share, 0), 1e-9);
    api.objects(context.number, context.selection).then((columns) => {
      columns.name.forEach((_, at) => all.push(new BriefObject(columns, at, cost)));
      draw();
    }, (error) => place.append(h("p", { className: "problem", role: "alert" }, String(error.message))));
  }
  const kinds = Object.entries(report.attribution).filter(([, accesses]) => accesses > 0);
  return h(
    "section",
    {},
    h("h2", {}, "Objects"),
    h("p", {}, `${count(report.accesses)} accesses: `, kinds.map(([kind, accesses]) => `${KINDS[kind] ?? kind} ${percent(accesses / Math.max(report.accesses, 1))}`).join(", "), "."),
    h("p", { className: "tools" }, h("label", {}, "search ", input), h("label", {}, "group by ", group)),
    chips,
    place,
  );
}

/** Groups with their sums; a press on a group filters by it. */
function groupTable(groups: Group[], [name, words]: (typeof GROUPINGS)[number], filter: (name: string, value: string) => void, hasRemote: boolean): HTMLElement {
  const sum = (objects: ObjectAt[], of: (row: ObjectRow) => number) => objects.reduce((sum, { row }) => sum + of(row), 0);
  const remote = ({ objects }: Group) => {
    const known = sum(objects, ({ loads, stores }) => loads.node_known + stores.node_known);
    return known > 0 ? sum(objects, ({ remote }) => remote) / known : null;
  };
  const largest = ({ objects }: Group) => objects.reduce((most, { row }) => Math.max(most, row.size_bytes), 0);
  const share = ({ objects }: Group) => sum(objects, ({ cost_share }) => cost_share);
  return table({
    name: `objects by ${words}`,
    rows: groups.sort((a, b) => share(b) - share(a)),
    sort: null,
    columns: [
      { title: words, value: ({ name }) => name, cell: (group) => h("button", { className: "link", title: "show its objects", onclick: () => filter(name, group.name) }, group.name) },
      { title: "objects", value: ({ objects }) => objects.length, cell: ({ objects }) => exact(objects.length), number: true },
      { title: "cost", value: share, cell: (group) => [bar(share(group)), percent(share(group))], number: true },
      { title: "time", value: ({ objects }) => sum(objects, (row) => row.cost_ns), cell: ({ objects }) => time(sum(objects, (row) => row.cost_ns)), number: true },
      { title: "loads", value: ({ objects }) => sum(objects, ({ loads }) => loads.count), cell: ({ objects }) => count(sum(objects, ({ loads }) => loads.count)), number: true },
      { title: "stores", value: ({ objects }) => sum(objects, ({ stores }) => stores.count), cell: ({ objects }) => count(sum(objects, ({ stores }) => stores.count)), number: true },
      ...(hasRemote ? [{ title: "remote", value: (group: Group) => remote(group) ?? -1, cell: (group: Group) => { const share = remote(group); return share === null ? "?" : percent(share); }, number: true }] : []),
      { title: "largest", value: largest, cell: (group) => bytes(largest(group)), number: true },
    ],
  });
}
