// Colours that colour-blind people can tell apart: Okabe and Ito's for a few things without order,
// a ramp that grows in lightness (after cividis) for many things in order.

const OKABE_ITO = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a500", "#7f7f7f"];
const GREY = "#bcbcbc";
const CIVIDIS = ["#1b3b70", "#3e4e6c", "#5c616e", "#787776", "#959078", "#b4a971", "#d5c363", "#f2df45"];

/** Position 0 to 1 on the ramp. */
export function ramp(position: number): string {
  const at = Math.min(Math.max(position, 0), 1) * (CIVIDIS.length - 1);
  const low = Math.min(Math.floor(at), CIVIDIS.length - 2);
  const [a, b] = [rgb(CIVIDIS[low]), rgb(CIVIDIS[low + 1])];
  const mixed = a.map((value, part) => Math.round(value + (b[part] - value) * (at - low)));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

export function rgb(colour: string): number[] {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

/** The colour of thing `number` of so many. */
export const among = (number: number, all: number) =>
  all <= OKABE_ITO.length ? OKABE_ITO[number % OKABE_ITO.length] : ramp(all > 1 ? number / (all - 1) : 0);

export type By = "thread" | "function" | "node" | "cpu-node" | "kind" | "level" | "latency" | "locality";

export const BY: [By, string][] = [
  ["thread", "thread"],
  ["function", "function that accesses"],
  ["node", "node of the page"],
  ["cpu-node", "node of the CPU"],
  ["kind", "load or store"],
  ["level", "level that served it"],
  ["latency", "latency"],
  ["locality", "local or remote"],
];

/** A colouring as an address names it. */
export const byName = (name: string | undefined, otherwise: By): By => BY.find(([by]) => by === name)?.[0] ?? otherwise;

const LEVELS = ["not known", "L1", "L2", "L3", "line fill buffer", "local memory", "remote memory", "remote cache"];

const power = (exponent: number) => (exponent < 10 ? `${2 ** exponent} ns` : exponent < 20 ? `${2 ** (exponent - 10)} µs` : `${2 ** (exponent - 20)} ms`);

/** Names and colours of a colouring, by number. */
export function scheme(by: By, nodes: number[], threads: string[], functions: string[]): { names: string[]; colours: string[] } {
  switch (by) {
    case "thread":
      return { names: threads, colours: threads.map((_, number) => among(number, threads.length)) };
    case "function": {
      // The costliest have hues of their own, the next ones grow in lightness.
      const own = OKABE_ITO.length - 1;
      const last = functions.length - 1;
      return {
        names: functions,
        colours: functions.map((_, number) => (number === last ? GREY : number < own ? OKABE_ITO[number] : ramp((number - own) / Math.max(last - own - 1, 1)))),
      };
    }
    case "node":
    case "cpu-node":
      return {
        names: ["not known", ...nodes.map((node) => `node ${node}`)],
        colours: [GREY, ...nodes.map((_, number) => among(number, nodes.length))],
      };
    case "kind":
      return { names: ["load", "store", "fetch"], colours: [OKABE_ITO[0], OKABE_ITO[5], OKABE_ITO[2]] };
    case "level":
      return {
        names: LEVELS,
        colours: [GREY, "#56b4e9", "#0072b2", "#009e73", "#b5a500", "#e69f00", "#d55e00", "#cc79a7"],
      };
    case "latency":
      return {
        names: Array.from({ length: 24 }, (_, n) => (n === 0 ? "none" : n === 23 ? `${power(22)} and more` : `${power(n - 1)} to ${power(n)}`)),
        colours: Array.from({ length: 24 }, (_, n) => (n === 0 ? GREY : ramp((n - 1) / 22))),
      };
    case "locality":
      return { names: ["not known", "local", "remote"], colours: [GREY, "#0072b2", "#d55e00"] };
  }
}

/** Computing, local, remote, moving, waiting: a simulation's bars. */
export const PARTS: [string, string, string][] = [
  ["compute_ns", "computing", "#0072b2"],
  ["local_stall_ns", "local memory", "#56b4e9"],
  ["remote_stall_ns", "remote memory", "#d55e00"],
  ["move_ns", "moving pages", "#e69f00"],
  ["wait_ns", "waiting", "#8a8a8a"],
];
