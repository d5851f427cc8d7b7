// The machine as a map: nodes and the traffic between them (Carrefour's Figure 3), before and after.

import { api, type Machine, type Node_ } from "./api.ts";
import { ramp } from "./colours.ts";
import type { Context } from "./context.ts";
import { h } from "./dom.ts";
import { bytes, count, exact, percent } from "./format.ts";
import { type Content, ink, Plot } from "./plot.ts";
import { table } from "./table.ts";

interface Row { node: Node_; position: number }

/** Standard deviation over mean. */
function imbalance(values: number[]): number {
  const mean = values.reduce((a, b) => a + b, 0) / Math.max(values.length, 1);
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / Math.max(values.length, 1);
  return mean > 0 ? Math.sqrt(variance) / mean : 0;
}

export function machineView(context: Context): HTMLElement {
  const { recording, open } = context;
  const maps = h("div", { className: "side" });
  const say = h("p", { className: "note" });
  const draw = async () => {
    const [threads, plan] = await Promise.all([api.threads(context.number), api.plan(context.number).catch(() => null)]);
    const recorded = threads.timeline.traffic.slice(1).map((row) => row.slice(1));
    const known = recorded.flat().reduce((a, b) => a + b, 0);
    const all = threads.timeline.traffic.flat().reduce((a, b) => a + b, 0);
    const target = open.target ?? recording.machine;
    const drawn: Element[] = [];
    if (known > 0) drawn.push(map(`As recorded on ${recording.machine.name}`, recording.machine, recorded).element);
    else say.append("The recording does not know on which node pages were, as on a machine of one node. ");
    if (plan?.traffic && target.nodes.length > 1) {
      drawn.push(map(`First touch on ${plan.machine}`, target, plan.traffic.first_touch).element, map(`As planned on ${plan.machine}`, target, plan.traffic.planned).element);
    } else if (target.nodes.length === 1) say.append("On one node there is nothing to place: `nearpage view --machine NAME` shows what a plan would do on another machine.");
    if (known > 0 && known < 0.999 * all) say.append(`${percent(known / all)} of the accesses are known by both nodes.`);
    maps.replaceChildren(...drawn);
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
    h("h3", {}, `${machine.name}: ${machine.nodes.length} nodes`),
    table({
      name: "nodes",
      rows: machine.nodes.map((node, position): Row => ({ node, position })),
      sort: null,
      columns: [
        { title: "node", value: ({ node }) => node.id, number: true },
        { title: "CPUs", value: ({ node }) => node.cpus.length, number: true },
        { title: "memory", value: ({ node }) => node.memory_bytes ?? 0, cell: ({ node }) => (node.memory_bytes === undefined ? "not known" : bytes(node.memory_bytes)), number: true },
        ...machine.nodes.map((to, column) => ({
          title: `to ${to.id}`,
          value: ({ position }: Row) => weights[position][column],
          number: true,
          hint: machine.latency_ns === null ? "relative distance: 10 is local" : "latency in nanoseconds, unloaded",
        })),
      ],
    }),
  );
}

/** Traffic `[CPU's node][memory's node]`. */
function map(title: string, machine: Machine, traffic: number[][]): Plot {
  const nodes = machine.nodes;
  const all = traffic.flat().reduce((a, b) => a + b, 0) || 1;
  const load = nodes.map((_, memory) => traffic.reduce((sum, row) => sum + row[memory], 0));
  // A node without memory has no controller to share the load with.
  const controllers = load.filter((_, memory) => nodes[memory].memory_bytes !== 0);
  const local = nodes.reduce((sum, _, node) => sum + traffic[node][node], 0);
  const between = (a: number, b: number) => traffic[a][b] + traffic[b][a];
  const pairs = nodes.flatMap((_, a) => nodes.slice(a + 1).map((_, b): [number, number] => [a, a + 1 + b]));
  const busiest = pairs.reduce((most, [a, b]) => Math.max(most, between(a, b)), 0) || 1;
  const heaviest = Math.max(...load) || 1;
  const at = (node: number): [number, number] => {
    const angle = (2 * Math.PI * node) / nodes.length - Math.PI / 2 - (nodes.length === 4 ? Math.PI / 4 : 0);
    return [0.5 + 0.36 * Math.cos(angle), 0.5 + 0.36 * Math.sin(angle)];
  };
  const nearest = (x: number, y: number) => {
    const distance = (node: number) => Math.hypot(at(node)[0] - x, at(node)[1] - y);
    return nodes.map((_, node) => node).sort((a, b) => distance(a) - distance(b))[0];
  };
  const plot = new Plot({
    title,
    height: 360,
    left: 12,
    load: () => {
      const content: Content = {
        x: { label: "", from: 0, to: 1, unit: "count" },
        y: { label: "", from: 0, to: 1, unit: "count" },
        plain: true,
        step: [0.1, 0.1],
        legend: [["little load", ramp(0.1)], ["more", ramp(0.5)], ["most of this map", ramp(1)]],
        note: `${percent(local / all)} local; imbalance of the controllers ${imbalance(controllers).toFixed(2)} (standard deviation over mean). Circles and lines grow with the accesses to a node's memory and between two nodes; percentages are shares of all accesses.`,
        draw(g, area) {
          const side = Math.min(area.width, area.height);
          const [left, top] = [area.x + (area.width - side) / 2, area.y + (area.height - side) / 2];
          const pixels = (node: number): [number, number] => [left + at(node)[0] * side, top + at(node)[1] * side];
          g.textAlign = "center";
          g.textBaseline = "middle";
          for (const [a, b] of pairs) {
            const share = between(a, b) / busiest;
            if (share === 0) continue;
            g.strokeStyle = ramp(share);
            g.lineWidth = 1 + 11 * share;
            g.beginPath();
            g.moveTo(...pixels(a));
            g.lineTo(...pixels(b));
            g.stroke();
          }
          nodes.forEach((node, position) => {
            const share = load[position] / heaviest;
            const [x, y] = pixels(position);
            g.fillStyle = ramp(share);
            g.strokeStyle = ink("--ink");
            g.lineWidth = 1;
            g.beginPath();
            g.arc(x, y, 27 + 18 * Math.sqrt(share), 0, 2 * Math.PI);
            g.fill();
            g.stroke();
            g.fillStyle = share > 0.55 ? "#000" : "#fff";
            g.font = "bold 13px system-ui, sans-serif";
            g.fillText(`node ${node.id}`, x, y - 7);
            g.font = "12px system-ui, sans-serif";
            g.fillText(percent(load[position] / all), x, y + 9);
          });
        },
        at(x, y) {
          // The map is square and in the middle.
          const node = nearest(x, y);
          return [
            `node ${nodes[node].id}: ${exact(load[node])} accesses to its memory, ${percent(load[node] / all)}`,
            `${percent(load[node] > 0 ? traffic[node][node] / load[node] : 0)} of them from its own CPUs`,
            ...nodes.map((other, from) => (from === node ? "" : `from node ${other.id} ${count(traffic[from][node])}`)).filter((text) => text !== ""),
          ];
        },
        csv: () => [["CPUs of", ...nodes.map((node) => `memory of node ${node.id}`)], ...nodes.map((node, from) => [`node ${node.id}`, ...traffic[from]])],
      };
      return content;
    },
  });
  return plot;
}
