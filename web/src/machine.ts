// The machine: shares of the accesses from each node's CPUs to each node's memory, before and after the plan.

import { api, type Machine, type Node_, type Threads } from "./api.ts";
import { fitted, toPixels } from "./axis.ts";
import { Chart, type Values } from "./chart.ts";
import { among, ink, over, ramp } from "./colours.ts";
import type { Context } from "./context.ts";
import { coded, h } from "./dom.ts";
import { bytes, count, counted, exact, percent, time } from "./format.ts";
import { note } from "./state.ts";
import { type Picture, Plot } from "./plot.ts";
import { table } from "./table.ts";

interface Row { node: Node_; position: number }

/** Imbalance of values: standard deviation over mean. */
function imbalance(values: number[]): number {
  const mean = values.reduce((a, b) => a + b, 0) / Math.max(values.length, 1);
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / Math.max(values.length, 1);
  return mean > 0 ? Math.sqrt(variance) / mean : 0;
}

/** Devices next to a node, such as `gpu0, nic1`; without `node`, the devices whose node is unknown. */
function devices(machine: Machine, node?: number): string {
  return machine.devices.filter((device) => device.node === node).map(({ kind, number }) => `${kind}${number}`).join(", ");
}

export function machineView(context: Context): HTMLElement {
  const { recording, open } = context;
  const maps = h("div", { className: "side" });
  const course = h("div");
  const say = h("p", { className: "note" });
  const draw = async () => {
    const threads = await api.threads(context.number, context.selection);
    course.replaceChildren(overTime(context, threads).element);
    const plan = await api.plan(context.number).catch(() => null);
    const recorded = threads.timeline.traffic.slice(1).map((row) => row.slice(1));
    const known = recorded.flat().reduce((a, b) => a + b, 0);
    const all = threads.timeline.traffic.flat().reduce((a, b) => a + b, 0);
    const target = open.target ?? recording.machine;
    const found: [string, Machine, number[][]][] = [];
    if (known > 0) found.push([`As recorded on ${recording.machine.name}`, recording.machine, recorded]);
    else say.append("The recording does not know on which node pages were, as on a machine of one node. ");
    if (plan?.traffic && target.nodes.length > 1) {
      found.push([`First touch on ${plan.machine}`, target, plan.traffic.first_touch], [`As planned on ${plan.machine}`, target, plan.traffic.planned]);
      if (context.selection !== null) say.append("The plan, and first touch beside it, are of the whole recording, whatever time is selected. ");
    } else if (target.nodes.length === 1) say.append(...coded("On one node there is nothing to place: `nearpage view --machine NAME` shows what a plan would do on another machine.").filter((part): part is Node | string => part instanceof Node || typeof part === "string"));
    if (known > 0 && known < 0.999 * all) say.append(`${percent(known / all)} of the accesses are known by both nodes.`);
    const most = Math.max(...found.map(([, , traffic]) => busiest(traffic)), 0);
    maps.replaceChildren(...found.map(([title, machine, traffic]) => heat(title, machine, traffic, most || 1).element));
  };
  draw().catch((error) => say.replaceChildren(String(error.message)));
  const machine = open.target ?? recording.machine;
  const weights = machine.weights;
  return h(
    "section",
    {},
    h("h2", {}, "Machine"),
    say,
    maps,
    course,
    h("h3", {}, `${machine.name}: ${counted(machine.nodes.length, "node")}`),
    table({
      name: "nodes",
      rows: machine.nodes.map((node, position): Row => ({ node, position })),
      sort: null,
      columns: [
        { title: "node", value: ({ node }) => node.id, number: true },
        { title: "CPUs", value: ({ node }) => node.cpus.length, number: true },
        { title: "memory", value: ({ node }) => node.memory_bytes ?? 0, cell: ({ node }) => (node.memory_bytes === undefined ? "not known" : bytes(node.memory_bytes)), number: true },
        ...(machine.devices.length > 0 ? [{ title: "devices", value: ({ node }: Row) => devices(machine, node.id), hint: "GPUs, network adapters and NVMe drives on the node's PCI bus" }] : []),
        ...machine.nodes.map((to, column) => ({
          title: `to ${to.id}`,
          value: ({ position }: Row) => weights[position][column],
          number: true,
          hint: machine.latency_ns === null ? "relative distance: 10 is local" : "latency in nanoseconds, unloaded",
        })),
      ],
    }),
    ...(devices(machine) === "" ? [] : [h("p", { className: "note" }, `The firmware does not say which node ${devices(machine)} is next to.`)]),
  );
}

/** A figure of each node's memory in a part of the time. */
interface Figure { name: string; words: string; unit: "share" | "count" | "bytes/s"; of(served: Served, seconds: number): number | null; say(value: number): string }
type Served = Threads["timeline"]["memory"][number][number];

const FIGURES: Figure[] = [
  { name: "local", words: "local share", unit: "share", of: ({ local, remote }) => (local + remote > 0 ? local / (local + remote) : null), say: percent },
  { name: "accesses", words: "accesses a second", unit: "count", of: ({ local, remote }, seconds) => (local + remote) / seconds, say: count },
];

/** Bytes of the lines that came from memory, for sample sources that report where data came from. */
const BANDWIDTH: Figure =
  { name: "bandwidth", words: "bytes a second", unit: "bytes/s", of: ({ lines }, seconds) => (lines * 64) / seconds, say: (value) => `${bytes(value)}/s` };

/** Use of each node's memory over time. */
function overTime(context: Context, { timeline }: Threads): Chart {
  const { recording, state } = context;
  const { nodes } = recording.machine;
  const { memory } = timeline;
  const served = memory.flat();
  const isMeasured = recording.measures_latency && served.some(({ lines }) => lines > 0);
  const figures = [...FIGURES, ...(isMeasured ? [BANDWIDTH] : [])];
  let figure = figures.find(({ name }) => name === state.figure) ?? figures[0];
  // Bars of few accesses would be noise: parts are merged until each bar has about 4 accesses on average.
  const all = served.reduce((sum, { local, remote }) => sum + local + remote, 0);
  const together = Math.max(1, Math.ceil((timeline.parts * nodes.length * 4) / Math.max(Math.min(all, recording.accesses), 1)));
  const parts = Math.max(1, Math.ceil(timeline.parts / Math.min(together, timeline.parts)));
  const merged = Array.from({ length: parts }, (_, part) => nodes.map((_, node): Served => memory.slice(part * together, (part + 1) * together)
    .reduce((sum, row) => ({ local: sum.local + row[node].local, remote: sum.remote + row[node].remote, lines: sum.lines + row[node].lines }), { local: 0, remote: 0, lines: 0 })));
  const part_ns = timeline.part_ns * Math.min(together, timeline.parts);
  const select = h("select", { id: "memory-figure", "aria-label": "figure of each node over time", onchange: () => {
    figure = figures[select.selectedIndex];
    note({ figure: figure.name });
    void chart.refresh();
  } }, figures.map(({ name, words }) => h("option", { value: name, selected: name === figure.name }, words)));
  const chart: Chart = new Chart({
    title: "Each node's memory over time",
    height: 260,
    left: 96,
    controls: select,
    load: (): Values => ({
      kind: "lines",
      series: nodes.map(({ id }, node) => ({ name: `memory of node ${id}`, values: merged.map((row) => figure.of(row[node], part_ns / 1e9)) })),
      colours: () => nodes.map((_, node) => among(node, nodes.length)),
      parts: { label: "time since the recording began", unit: "time", edges: Array.from({ length: parts + 1 }, (_, part) => timeline.from_ns + part * part_ns), from: context.range[0], to: context.range[1] },
      measure: { label: figure.words, unit: figure.unit, ...(figure.unit === "share" ? { to: 1.05 } : {}) },
      columns: ["from_ns", "to_ns"],
      empty: all > 0 ? undefined : nodes.length === 1
        ? "The recording was made on one memory node: which accesses are local is no question there."
        : "No access is known whose CPU and page have a node: there is no local share over time.",
      note: `Each part is ${time(part_ns)}.${isMeasured ? " Bytes: lines of 64 that came from memory or another node's cache, estimated from the samples; what caches write back is not counted." : recording.measures_latency ? "" : " Bytes a second are not known: samples of this kind do not say what served them."}`,
      at: (part, ns) => [
        time(ns),
        ...nodes.map(({ id }, node) => {
          const served = merged[part][node];
          const value = figure.of(served, part_ns / 1e9);
          return `node ${id} ${value === null ? "–" : figure.say(value)}${figure.name === "local" ? "" : ` (${percent(served.local / Math.max(served.local + served.remote, 1e-9))} local)`}`;
        }),
      ],
      csv: () => [
        ["from_ns", "to_ns", "node", "local_accesses", "remote_accesses", "lines_from_memory"],
        ...merged.flatMap((row, part) => row.map((served, node): number[] => [timeline.from_ns + part * part_ns, timeline.from_ns + (part + 1) * part_ns, nodes[node].id, served.local, served.remote, served.lines])),
      ],
    }),
  });
  return chart;
}

/** The busiest pair of nodes' share of all traffic. */
function busiest(traffic: number[][]): number {
  const all = traffic.flat().reduce((a, b) => a + b, 0);
  return all > 0 ? Math.max(...traffic.flat()) / all : 0;
}

/** Traffic `[CPU's node][memory's node]` as a heat map whose scale ends at the share `most`. */
function heat(title: string, machine: Machine, traffic: number[][], most: number): Plot {
  const nodes = machine.nodes;
  const all = traffic.flat().reduce((a, b) => a + b, 0) || 1;
  const load = nodes.map((_, memory) => traffic.reduce((sum, row) => sum + row[memory], 0));
  // A node without memory has no controller.
  const controllers = load.filter((_, memory) => nodes[memory].memory_bytes !== 0);
  const local = nodes.reduce((sum, _, node) => sum + traffic[node][node], 0);
  const names = nodes.map((node) => `node ${node.id}`);
  const near = nodes.map((node) => devices(machine, node.id));
  const share = (cpu: number, memory: number) => traffic[cpu][memory] / all;
  return new Plot({
    title,
    height: 58 + Math.min(Math.max(nodes.length * 52, 130), 460),
    left: 96,
    load: () => {
      const content: Picture = {
        // More than four nodes leave no room for the names of devices.
        x: { label: "memory of", from: 0, to: nodes.length, unit: "names", names: names.map((name, node) => (near[node] === "" || nodes.length > 4 ? name : `${name} (${near[node]})`)) },
        y: { label: "CPUs of", from: 0, to: nodes.length, unit: "names", names },
        step: [1, 1],
        empty: most > 0 && traffic.flat().some((value) => value > 0) ? undefined : "No access is known whose CPU and memory have a node.",
        legend: () => [["none", ink("--paper")], ["few", ramp(0)], ["more", ramp(0.5)], [`${percent(most)} of all accesses`, ramp(1)]],
        note: `${percent(local / all)} local (framed); imbalance of the controllers ${imbalance(controllers).toFixed(2)} (standard deviation over mean). All maps here are on one scale.`,
        draw(g, area) {
          g.textAlign = "center";
          g.textBaseline = "middle";
          nodes.forEach((_, cpu) => nodes.forEach((_, memory) => {
            const [left, top] = toPixels(content, area, [memory, cpu]);
            const [right, bottom] = toPixels(content, area, [memory + 1, cpu + 1]);
            const [width, height] = [right - left, bottom - top];
            const of = share(cpu, memory);
            const colour = of > 0 ? ramp(of / most) : ink("--paper");
            g.fillStyle = colour;
            g.fillRect(left + 1, top + 1, width - 2, height - 2);
            if (cpu === memory) {
              g.strokeStyle = ink("--ink");
              g.lineWidth = 2;
              g.strokeRect(left + 2, top + 2, width - 4, height - 4);
              g.lineWidth = 1;
            }
            if (width < 40 || height < 18) return;
            g.fillStyle = of > 0 ? over(colour) : ink("--faint");
            g.font = "bold 13px system-ui, sans-serif";
            const isTall = height >= 40;
            g.fillText(percent(of), left + width / 2, top + height / 2 - (isTall ? 8 : 0));
            g.font = "12px system-ui, sans-serif";
            if (isTall) g.fillText(fitted(g, count(traffic[cpu][memory]), width - 6), left + width / 2, top + height / 2 + 9);
          }));
        },
        at(x, y) {
          const [cpu, memory] = [Math.floor(y), Math.floor(x)];
          const far = machine.latency_ns?.[cpu]?.[memory];
          return [
            `CPUs of node ${nodes[cpu].id}, memory of node ${nodes[memory].id}${cpu === memory ? ": local" : ""}`,
            `${exact(traffic[cpu][memory])} accesses, ${percent(share(cpu, memory))}`,
            ...(far === undefined ? [] : [`${exact(far)} ns unloaded`]),
            `${percent(load[memory] / all)} of all accesses are to this memory`,
            ...(near[memory] === "" ? [] : [`next to node ${nodes[memory].id}: ${near[memory]}`]),
          ];
        },
        csv: () => [["CPUs of", ...nodes.map((node) => `memory of node ${node.id}`)], ...nodes.map((node, from) => [`node ${node.id}`, ...traffic[from]])],
      };
      return content;
    },
  });
}
