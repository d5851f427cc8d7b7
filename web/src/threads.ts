// Threads: which of them share pages, and where each ran.

import { api, type LineUser, type SharedLine, type SharedLines, type Thread } from "./api.ts";
import { toPixels } from "./axis.ts";
import { among, ink, over, ramp } from "./colours.ts";
import { type Context, cpuNodes, members, objects, threadName } from "./context.ts";
import { type Child, h } from "./dom.ts";
import { bytes, count, counted, exact, percent, time } from "./format.ts";
import { type Picture, Plot } from "./plot.ts";
import { link } from "./state.ts";
import { table } from "./table.ts";

/** A thread, its number, and the position of the node on which most of its samples were; -1 if unknown. */
interface Row { thread: Thread; number: number; node: number }

/** Fewest accesses to a line from which the view tells whether threads share bytes of the line. */
const TELLING = 8;

export function threadsView(context: Context): HTMLElement {
  const { recording } = context;
  const { machine } = recording;
  const nodes = cpuNodes(recording);
  const report = context.report.report.threads;
  const home = (thread: number): number => {
    const sums = new Map<number, number>();
    for (const [cpu, accesses] of Object.entries(report[thread]?.cpus ?? {})) {
      const node = nodes.get(Number(cpu)) ?? -1;
      sums.set(node, (sums.get(node) ?? 0) + accesses);
    }
    return [...sums].sort((a, b) => b[1] - a[1])[0]?.[0] ?? -1;
  };
  // Threads of one node stand together, in the order of their process and team.
  const order = recording.threads
    .map((thread, number) => ({ thread, number, node: home(number) }))
    .filter(({ number }) => (report[number]?.accesses ?? 0) > 0)
    .sort((a, b) => a.node - b.node || a.thread.pid - b.thread.pid || a.thread.order - b.thread.order);
  const unseen = members(recording).length - order.length;
  const names = order.map(({ thread }) => threadName(thread));
  const nodeName = (position: number) => (position < 0 ? "node not known" : `node ${machine.nodes[position].id}`);
  const remote = (number: number) => (report[number].node_known > 0 ? report[number].remote / report[number].node_known : null);
  const found = api.threads(context.number, context.selection);
  const height = Math.min(560, 80 + 16 * Math.max(order.length, 6));

  const side = Math.min(Math.max(40 * order.length, 288), 560);
  const shared = new Plot({
    title: "Pages that threads share",
    height: side + 48,
    left: 120,
    async load() {
      const { shared } = await found;
      const cell = (x: number, y: number) => shared[order[y]?.number]?.[order[x]?.number] ?? 0;
      let most = 0;
      for (let y = 0; y < order.length; y += 1) for (let x = 0; x < order.length; x += 1) if (x !== y) most = Math.max(most, cell(x, y));
      const content: Picture = {
        x: { label: "", from: 0, to: Math.max(order.length, 1), unit: "names", names },
        y: { label: "", from: 0, to: Math.max(order.length, 1), unit: "names", names },
        step: [1, 1],
        empty: order.length < 2 ? `${order.length === 0 ? "No thread" : "One thread"} accessed memory${context.selection === null ? "" : " in the selected time"}: none shares pages with another.` : most === 0 ? "No page of an object was accessed by two threads." : undefined,
        legend: () => [["none", ink("--paper")], ["few in common", ramp(0)], ["more", ramp(0.5)], [`most (${count(most)})`, ramp(1)]],
        note: "Accesses in common: over all pages, the smaller of both threads' numbers, coloured by its logarithm. Lines stand between nodes.",
        draw(g, area) {
          for (let y = 0; y < order.length; y += 1) {
            for (let x = 0; x < order.length; x += 1) {
              const value = cell(x, y);
              if (x === y || value === 0) continue;
              const [left, top] = toPixels(content, area, [x, y]);
              const [right, bottom] = toPixels(content, area, [x + 1, y + 1]);
              const colour = ramp(Math.log1p(value) / Math.log1p(most));
              g.fillStyle = colour;
              g.fillRect(left, top, right - left + 0.5, bottom - top + 0.5);
              if (right - left < 36) continue;
              g.fillStyle = over(colour);
              g.font = "12px system-ui, sans-serif";
              g.textAlign = "center";
              g.textBaseline = "middle";
              g.fillText(count(value), (left + right) / 2, (top + bottom) / 2);
            }
          }
          g.strokeStyle = ink("--ink");
          order.forEach(({ node }, position) => {
            if (position === 0 || order[position - 1].node === node) return;
            const [x, y] = toPixels(content, area, [position, position]);
            g.strokeRect(x, area.y, 0, area.height);
            g.strokeRect(area.x, y, area.width, 0);
          });
        },
        at(x, y) {
          const [a, b] = [Math.floor(x), Math.floor(y)];
          const where = `${nodeName(order[b].node)}, ${nodeName(order[a].node)}`;
          return a === b
            ? [names[a], nodeName(order[a].node), `${exact(cell(a, a))} accesses to pages of objects`]
            : [`${names[b]} and ${names[a]}`, where, `${exact(cell(a, b))} accesses in common`];
        },
        csv: () => [["thread", ...names], ...order.map((_, y) => [names[y], ...order.map((_, x) => cell(x, y))])],
      };
      return content;
    },
  });

  shared.element.style.maxWidth = `${side + 144}px`;

  const ran = new Plot({
    title: "Where threads ran",
    height,
    left: 120,
    async load() {
      const { timeline } = await found;
      const part = timeline.part_ns;
      const begin = timeline.from_ns;
      const single = machine.nodes.length === 1;
      const cpus = [...new Set(order.flatMap(({ number }) => timeline.cpus[number] ?? []))].filter((cpu) => cpu >= 0).sort((a, b) => a - b);
      const colour = (cpu: number) => (single ? among(cpus.indexOf(cpu), cpus.length) : among(nodes.get(cpu) ?? 0, machine.nodes.length));
      const content: Picture = {
        x: { label: "time since the recording began", from: context.range[0], to: context.range[1], unit: "time" },
        y: { label: "", from: 0, to: Math.max(order.length, 1), unit: "names", names },
        step: [part, 1],
        empty: order.length === 0 ? "No thread accessed memory: record for longer, or select a longer time." : undefined,
        legend: () => single
          ? cpus.slice(0, 24).map((cpu): [string, string] => [`CPU ${cpu}`, colour(cpu)])
          : machine.nodes.map((node, position): [string, string] => [`node ${node.id}`, among(position, machine.nodes.length)]),
        note: `Each part of ${time(part)} has the colour of where most of its accesses were made; parts without an access are empty.`,
        draw(g, area) {
          order.forEach(({ number }, line) => {
            (timeline.cpus[number] ?? []).forEach((cpu, position) => {
              if (cpu < 0) return;
              const [left, top] = toPixels(content, area, [begin + position * part, line]);
              const [right, bottom] = toPixels(content, area, [begin + (position + 1) * part, line + 1]);
              g.fillStyle = colour(cpu);
              // Edges at whole pixels, so that neighbours show no seam.
              g.fillRect(Math.floor(left), top + 1, Math.ceil(right) - Math.floor(left), bottom - top - 2);
            });
          });
        },
        at(x, y) {
          const position = Math.floor((x - begin) / part);
          const cpu = timeline.cpus[order[Math.floor(y)].number]?.[position] ?? -1;
          return [names[Math.floor(y)], `${time(begin + position * part)} to ${time(begin + (position + 1) * part)}`, cpu < 0 ? "no access" : `mostly CPU ${cpu}, ${nodeName(nodes.get(cpu) ?? -1)}`];
        },
        csv: () => [["thread", "from_ns", "cpu", "node"], ...order.flatMap(({ number }, line) =>
          (timeline.cpus[number] ?? []).map((cpu, position): [string, number, number, string] => [names[line], begin + position * part, cpu, cpu < 0 ? "" : nodeName(nodes.get(cpu) ?? -1)]).filter(([, , cpu]) => cpu >= 0))],
      };
      return content;
    },
  });
  return h(
    "section",
    {},
    h("h2", {}, "Threads"),
    unseen > 0 ? h("p", { className: "note" }, `${counted(unseen, "thread")} without an access ${unseen === 1 ? "is" : "are"} left out.`) : null,
    shared.element,
    ran.element,
    sharedLines(context),
    h("h3", {}, "Threads one by one"),
    table({
      name: "threads",
      rows: order,
      sort: null,
      columns: [
        { title: "thread", value: ({ thread }) => threadName(thread) },
        { title: "process", value: ({ thread }) => thread.pid, number: true, minor: true },
        { title: "tid", value: ({ thread }) => thread.tid, number: true, minor: true },
        { title: "starts at", value: ({ thread }) => thread.start, minor: true },
        { title: "mostly on", value: ({ node }) => nodeName(node) },
        { title: "accesses", value: ({ number }) => report[number].accesses, cell: ({ number }) => count(report[number].accesses), number: true },
        { title: "time lost", value: ({ number }) => report[number].cost_ns, cell: ({ number }) => time(report[number].cost_ns), number: true },
        ...(machine.nodes.length < 2 ? [] : [
          { title: "remote", value: ({ number }: Row) => remote(number) ?? -1, cell: ({ number }: Row) => { const share = remote(number); return share === null ? "?" : percent(share); }, number: true, hint: "share of its accesses to another node's memory; ? where pages' nodes were not recorded" },
          { title: "lost to remote", value: ({ number }: Row) => report[number].remote_cost_ns, cell: ({ number }: Row) => (remote(number) === null ? "?" : time(report[number].remote_cost_ns)), number: true },
        ]),
        { title: "CPUs", value: ({ number }) => Object.keys(report[number].cpus).length, number: true },
      ],
    }),
  );
}


/** False sharing, true sharing, or too few accesses to tell: with few samples, shared bytes may remain unseen. */
const sharing = ({ is_apart, threads }: SharedLine) =>
  !is_apart ? "true" : threads.reduce((sum, { loads, stores }) => sum + loads + stores, 0) < TELLING ? "too few to tell" : "false";

/** Cache lines that several threads write: each store takes the line from all other caches. */
function sharedLines(context: Context): HTMLElement {
  const { recording } = context;
  const place = h("div", {}, "…");
  const known = objects(context).flatMap(({ row, shown, number }) => shown.instances.map((instance) => ({ row, number, instance })))
    // The smallest object around a line comes first: an object may lie within another.
    .sort((a, b) => a.instance.bytes - b.instance.bytes);
  const at = (line: SharedLine) => known.find(({ instance }) => line.place !== null && instance.place <= line.place + 63 && line.place < instance.place + instance.bytes);
  const user = ({ thread, loads, stores, offsets }: LineUser) =>
    `${threadName(recording.threads[thread])}: ${counted(stores, "store")}, ${counted(loads, "load")} at byte${offsets.length === 1 ? "" : "s"} ${offsets.slice(0, 8).join(", ")}${offsets.length > 8 ? ", …" : ""}`;
  const show = (found: SharedLines): Child => [
    h("p", { className: "note" },
      found.count === 0
        ? "No line of 64 bytes was seen to be written by two threads."
        : `${exact(found.count)} line${found.count === 1 ? "" : "s"} of 64 bytes ${found.count === 1 ? "was" : "were"} written by several threads; accesses to ${found.count === 1 ? "it" : "them"} lost ${time(found.cost_ns)}. Where no byte that one thread writes is used by another, the sharing is false: padding would end it. Bytes are where accesses begin, of those that were recorded.`,
      found.left_out > 0 ? ` ${count(found.left_out)} accesses to further lines were left out.` : "",
      found.share < 1 ? ` From a sample of ${percent(found.share)} of the accesses.` : ""),
    found.count === 0 ? null : table({
      name: "lines that several threads write",
      rows: found.lines,
      sort: null,
      most: 20,
      columns: [
        { title: "line", value: ({ address }) => address },
        { title: "object", value: (line) => at(line)?.row.name ?? "", cell: (line) => {
          const mark = at(line);
          if (mark === undefined) return "no object known one by one";
          return mark.number === null ? mark.row.name : h("a", { href: link({ view: "object", object: String(mark.number), instance: "", from: "", to: "", t0: "", t1: "" }) }, mark.row.name);
        } },
        { title: "offset", value: (line) => { const mark = at(line); return mark === undefined ? -1 : (line.place ?? 0) - mark.instance.place; }, cell: (line) => { const mark = at(line); return mark === undefined ? "" : bytes(Math.max((line.place ?? 0) - mark.instance.place, 0)); }, number: true },
        { title: "time lost", value: ({ cost_ns }) => cost_ns, cell: ({ cost_ns }) => time(cost_ns), number: true },
        { title: "sharing", value: sharing, hint: "false: no byte that a thread writes is used by another" },
        { title: "who", value: ({ threads }) => threads.map(user).join("; ") },
      ],
    }),
  ];
  api.lines(context.number, context.selection).then((found) => place.replaceChildren(...[show(found)].flat().filter((child): child is HTMLElement => child instanceof Node)), (error) => place.replaceChildren(String(error.message)));
  return h("section", { id: "shared-lines" }, h("h3", {}, "Lines that several threads write"), place);
}
