// Threads: who shares pages with whom, and where each ran.

import { api } from "./api.ts";
import { among, ramp } from "./colours.ts";
import { type Context, cpuNodes, threadName } from "./context.ts";
import { h } from "./dom.ts";
import { count, exact, time } from "./format.ts";
import { type Content, ink, Plot, toPixels } from "./plot.ts";
import { table } from "./table.ts";

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
  // Threads of one node stand together, each team in its order.
  const order = recording.threads
    .map((thread, number) => ({ thread, number, node: home(number) }))
    .filter(({ number }) => (report[number]?.accesses ?? 0) > 0)
    .sort((a, b) => a.node - b.node || a.thread.pid - b.thread.pid || a.thread.order - b.thread.order);
  const names = order.map(({ thread }) => threadName(thread));
  const nodeName = (position: number) => (position < 0 ? "node not known" : `node ${machine.nodes[position].id}`);
  const found = api.threads(context.number);
  const height = Math.min(560, 80 + 16 * Math.max(order.length, 6));

  const shared = new Plot({
    title: "Pages that threads share",
    height,
    left: 120,
    async load() {
      const { shared } = await found;
      const cell = (x: number, y: number) => shared[order[y]?.number]?.[order[x]?.number] ?? 0;
      let most = 0;
      for (let y = 0; y < order.length; y += 1) for (let x = 0; x < order.length; x += 1) if (x !== y) most = Math.max(most, cell(x, y));
      const content: Content = {
        x: { label: "", from: 0, to: Math.max(order.length, 1), unit: "names", names },
        y: { label: "", from: 0, to: Math.max(order.length, 1), unit: "names", names },
        step: [1, 1],
        legend: [["none", ink("--paper")], ["few in common", ramp(0)], ["more", ramp(0.5)], [`most (${count(most)})`, ramp(1)]],
        note: "Accesses in common: over all pages, the smaller of both threads' numbers. Lines stand between nodes.",
        draw(g, area) {
          for (let y = 0; y < order.length; y += 1) {
            for (let x = 0; x < order.length; x += 1) {
              const value = cell(x, y);
              if (x === y || value === 0) continue;
              const [left, top] = toPixels(content, area, [x, y]);
              const [right, bottom] = toPixels(content, area, [x + 1, y + 1]);
              g.fillStyle = ramp(Math.log1p(value) / Math.log1p(most));
              g.fillRect(left, top, right - left + 0.5, bottom - top + 0.5);
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

  const ran = new Plot({
    title: "Where threads ran",
    height,
    left: 120,
    async load() {
      const { timeline } = await found;
      const part = recording.duration_ns / timeline.parts;
      const single = machine.nodes.length === 1;
      const cpus = [...new Set(order.flatMap(({ number }) => timeline.cpus[number] ?? []))].filter((cpu) => cpu >= 0).sort((a, b) => a - b);
      const colour = (cpu: number) => (single ? among(cpus.indexOf(cpu), cpus.length) : among(nodes.get(cpu) ?? 0, machine.nodes.length));
      const content: Content = {
        x: { label: "time since the recording began", from: 0, to: recording.duration_ns, unit: "time" },
        y: { label: "", from: 0, to: Math.max(order.length, 1), unit: "names", names },
        step: [part, 1],
        legend: single
          ? cpus.slice(0, 24).map((cpu): [string, string] => [`CPU ${cpu}`, colour(cpu)])
          : machine.nodes.map((node, position): [string, string] => [`node ${node.id}`, among(position, machine.nodes.length)]),
        note: `Each part of ${time(part)} has the colour of where most of its accesses were made; parts without an access are empty.`,
        draw(g, area) {
          order.forEach(({ number }, line) => {
            (timeline.cpus[number] ?? []).forEach((cpu, position) => {
              if (cpu < 0) return;
              const [left, top] = toPixels(content, area, [position * part, line]);
              const [right, bottom] = toPixels(content, area, [(position + 1) * part, line + 1]);
              g.fillStyle = colour(cpu);
              // Whole pixels: neighbours show no seam.
              g.fillRect(Math.floor(left), top + 1, Math.ceil(right) - Math.floor(left), bottom - top - 2);
            });
          });
        },
        at(x, y) {
          const position = Math.floor(x / part);
          const cpu = timeline.cpus[order[Math.floor(y)].number]?.[position] ?? -1;
          return [names[Math.floor(y)], `${time(position * part)} to ${time((position + 1) * part)}`, cpu < 0 ? "no access" : `mostly CPU ${cpu}, ${nodeName(nodes.get(cpu) ?? -1)}`];
        },
        csv: () => [["thread", "from_ns", "cpu", "node"], ...order.flatMap(({ number }, line) =>
          (timeline.cpus[number] ?? []).map((cpu, position): [string, number, number, string] => [names[line], position * part, cpu, cpu < 0 ? "" : nodeName(nodes.get(cpu) ?? -1)]).filter(([, , cpu]) => cpu >= 0))],
      };
      return content;
    },
  });
  return h(
    "section",
    {},
    h("h2", {}, "Threads"),
    order.length < recording.threads.length ? h("p", { className: "note" }, `${recording.threads.length - order.length} threads without an access are left out.`) : null,
    shared.element,
    ran.element,
    table({
      name: "threads",
      rows: order,
      sort: null,
      columns: [
        { title: "thread", value: ({ thread }) => threadName(thread) },
        { title: "process", value: ({ thread }) => thread.pid, number: true },
        { title: "tid", value: ({ thread }) => thread.tid, number: true },
        { title: "starts at", value: ({ thread }) => thread.start },
        { title: "mostly on", value: ({ node }) => nodeName(node) },
        { title: "accesses", value: ({ number }) => report[number].accesses, cell: ({ number }) => count(report[number].accesses), number: true },
        { title: "CPUs", value: ({ number }) => Object.keys(report[number].cpus).length, number: true },
      ],
    }),
  );
}

