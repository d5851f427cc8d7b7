// Colours that colour-blind people can tell apart: Okabe and Ito's for few things without order, a ramp of growing
// contrast (after cividis) for many ordered things. All have a contrast of at least 3:1 with the background, so each
// theme has its own palette. Code asks for colours when it paints: the theme may change after a picture has loaded,
// for example for printing.

interface Palette { few: string[]; unknown: string; ramp: string[] }

export const PALETTES: Record<"light" | "dark", Palette> = {
  light: {
    few: ["#0072b2", "#b87a00", "#00865f", "#b8568f", "#2f8fc9", "#c85200", "#857a00", "#767676"],
    unknown: "#8c8c8c",
    ramp: ["#8f8b6a", "#7d7c72", "#686d78", "#4f5f80", "#34507f", "#1b3b70", "#0f2a55", "#071a38"],
  },
  dark: {
    few: ["#4aa3df", "#e69f00", "#1fb58a", "#d88ab3", "#8fd0f5", "#ee7733", "#d6c94a", "#a0a0a0"],
    unknown: "#7d848b",
    ramp: ["#586f9f", "#6d7ba0", "#85868f", "#9b957d", "#b4a971", "#cbbb68", "#dfce55", "#f2df45"],
  },
};

let palette = PALETTES.light;

/** Selects the palette for all later painting. */
export function paintOn(paper: "light" | "dark"): void {
  palette = PALETTES[paper];
}

/** Value of a CSS colour variable, such as `--paper`. */
export const ink = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#000";

/** Colour of the ramp at a position from 0 to 1. */
export function ramp(position: number): string {
  const steps = palette.ramp;
  const at = Math.min(Math.max(position, 0), 1) * (steps.length - 1);
  const low = Math.min(Math.floor(at), steps.length - 2);
  const [a, b] = [rgb(steps[low]), rgb(steps[low + 1])];
  const mixed = a.map((value, part) => Math.round(value + (b[part] - value) * (at - low)));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

export function rgb(colour: string): number[] {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

/** Black or white text, whichever is easier to read on a colour. */
export function over(colour: string): string {
  const [r, g, b] = rgb(colour).map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#ffffff";
}

/** Colour of thing `number` of `all` things. */
export const among = (number: number, all: number) =>
  all <= palette.few.length ? palette.few[number % palette.few.length] : ramp(all > 1 ? number / (all - 1) : 0);

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

/** The colouring with a name from the address. */
export const byName = (name: string | undefined, otherwise: By): By => BY.find(([by]) => by === name)?.[0] ?? otherwise;

const LEVELS = ["not known", "L1", "L2", "L3", "line fill buffer", "local memory", "remote memory", "remote cache"];

const power = (exponent: number) => (exponent < 10 ? `${2 ** exponent} ns` : exponent < 20 ? `${2 ** (exponent - 10)} µs` : `${2 ** (exponent - 20)} ms`);

/** Names and colours of a colouring, indexed by the numbers that the server uses. */
export function scheme(by: By, nodes: number[], threads: string[], functions: string[]): { names: string[]; colours: string[] } {
  switch (by) {
    case "thread":
      return { names: threads, colours: threads.map((_, number) => among(number, threads.length)) };
    case "function": {
      // The costliest functions have hues of their own, the next ones shades of the ramp.
      const own = palette.few.length - 1;
      const last = functions.length - 1;
      return {
        names: functions,
        colours: functions.map((_, number) => (number === last ? palette.unknown : number < own ? palette.few[number] : ramp((number - own) / Math.max(last - own - 1, 1)))),
      };
    }
    case "node":
    case "cpu-node":
      return {
        names: ["not known", ...nodes.map((node) => `node ${node}`)],
        colours: [palette.unknown, ...nodes.map((_, number) => among(number, nodes.length))],
      };
    case "kind":
      return { names: ["load", "store", "fetch"], colours: [palette.few[0], palette.few[5], palette.few[2]] };
    case "level":
      return {
        names: LEVELS,
        colours: [palette.unknown, ...[4, 0, 2, 6, 1, 5, 3].map((slot) => palette.few[slot])],
      };
    case "latency":
      return {
        names: Array.from({ length: 24 }, (_, n) => (n === 0 ? "none" : n === 23 ? `${power(22)} and more` : `${power(n - 1)} to ${power(n)}`)),
        colours: Array.from({ length: 24 }, (_, n) => (n === 0 ? palette.unknown : ramp((n - 1) / 22))),
      };
    case "locality":
      return { names: ["not known", "local", "remote"], colours: [palette.unknown, palette.few[0], palette.few[5]] };
  }
}

/** Parts of a simulation's bars: field, name, number of the colour. */
export const PARTS: [string, string, number][] = [
  ["compute_ns", "computing", 0],
  ["local_stall_ns", "local memory", 4],
  ["remote_stall_ns", "remote memory", 5],
  ["move_ns", "moving pages", 1],
  ["wait_ns", "waiting", 7],
];

/** Colours of a chosen thing and of all others. */
export const chosenColour = () => palette.few[5];
export const othersColour = () => palette.unknown;

/** Colour `number` of the palette for few things. */
export const few = (number: number) => palette.few[number];
