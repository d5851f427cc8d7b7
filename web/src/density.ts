// Accesses over time and a range of the address space. Each bin has the colour of most of its accesses, and is
// stronger the more accesses it has.

import { api, standalone, type Frame, type Picture } from "./api.ts";
import { type Area, type Axes, toPixels } from "./axis.ts";
import { type By, BY, chosenColour, ink, othersColour, rgb, scheme } from "./colours.ts";
import { type Context, threadColours } from "./context.ts";
import { h } from "./dom.ts";
import { bytes, exact, percent, counted, time } from "./format.ts";
import type { Picture as Painting } from "./plot.ts";
import { go } from "./state.ts";

export interface DensityRequest {
  /** Place in the address space of offset 0. */
  origin: number;
  from: number;
  to: number;
  from_ns: number;
  to_ns: number;
  by: By;
  /** Expected number of accesses: the fewer, the larger the dots. */
  accesses: number;
  /** Label of the vertical axis, which names the origin of the offsets. */
  label: string;
  /** Most accesses of a dot, shared by pictures that have a common scale. */
  scale?: { most: number };
  overlay?(g: CanvasRenderingContext2D, area: Area, axes: Axes): void;
  describe?(offset: number): string[];
  open?(offset: number, ns: number): void;
}

/** A picture, and the number of accesses of each colour. */
export interface Density extends Painting {
  totals: number[];
  /** The note below the picture if the strongest dot of several joined pictures has `most` accesses. */
  noted(most: number): string;
}

/** Names and colours of a colouring for a recording. */
export function schemeOf(context: Context, by: By): { names: string[]; colours: string[] } {
  const nodes = context.recording.machine.nodes.map((node) => node.id);
  return scheme(by, nodes, threadColours(context.recording), context.recording.functions);
}

/** Colour of the chosen function; null if none is chosen, or if the function has no colour of its own. */
function chosenFunction(context: Context): number | null {
  const at = context.recording.functions.indexOf(context.state.function ?? "");
  return at < 0 ? null : at;
}

export function chooser(context: Context, chosen: By, choose: (by: By) => void): HTMLElement {
  const select = h("select", { onchange: () => choose(select.value as By), id: "by", "aria-label": "colour by" },
    BY.map(([name, words]) => h("option", { value: name, selected: name === chosen }, words)));
  return h("label", {}, "colour by ", select, context.recording.measures_latency ? null : h("small", {}, ` source ${context.recording.source} knows no levels`));
}

export async function density(context: Context, request: DensityRequest, width: number, height: number): Promise<Density> {
  const { recording, number } = context;
  const dot = request.accesses < 2_000 ? 6 : request.accesses < 30_000 ? 4 : request.accesses < 300_000 ? 2 : 1;
  const frame: Frame = {
    place_from: Math.max(0, Math.floor(request.origin + request.from)),
    place_to: Math.ceil(request.origin + request.to),
    from_ns: Math.floor(request.from_ns),
    to_ns: Math.ceil(request.to_ns),
    columns: Math.max(1, Math.round(width / dot)),
    rows: Math.max(1, Math.round(height / dot)),
  };
  const chosen = request.by === "function" ? chosenFunction(context) : null;
  const picture = await api.picture(number, request.by, frame, chosen);
  const { names } = schemeOf(context, request.by);
  const colours = () => schemeOf(context, request.by).colours.map((colour, slot) => (chosen === null ? colour : slot === chosen ? chosenColour() : othersColour()));
  const most = picture.accesses.reduce((a, b) => Math.max(a, b), 0);
  const scale = request.scale ?? { most: 0 };
  scale.most = Math.max(scale.most, most);
  const image = painted(picture, colours, scale);
  const shown = picture.frame;
  const row = (shown.place_to - shown.place_from) / shown.rows;
  const column = (shown.to_ns - shown.from_ns) / shown.columns;
  const all = picture.totals.reduce((a, b) => a + b, 0);
  const binAt = (x: number, y: number): { bin: Frame; position: number } => {
    const at = [Math.floor((x - shown.from_ns) / column), Math.floor((y + request.origin - shown.place_from) / row)];
    const bin: Frame = {
      place_from: shown.place_from + at[1] * row,
      place_to: shown.place_from + (at[1] + 1) * row,
      from_ns: shown.from_ns + at[0] * column,
      to_ns: shown.from_ns + (at[0] + 1) * column,
      columns: 1,
      rows: 1,
    };
    return { bin, position: at[1] * shown.columns + at[0] };
  };
  /** Function with the most accesses at a point; empty if there are none. */
  const functionAt = async (x: number, y: number): Promise<string> => {
    const { bin, position } = binAt(x, y);
    if (!(picture.accesses[position] > 0)) return "";
    if (standalone) return request.by === "function" ? names[picture.colours[position]] : "";
    const value = await api.value(number, bin);
    const slot = value.by.find(([by]) => by === "function")?.[1][0]?.[0];
    return slot === undefined ? "" : recording.functions[slot];
  };
  const noted = (most: number) => [
    `A dot is ${bytes(row)} by ${time(column)}; the strongest has ${counted(most, "access")}.`,
    picture.share < 1 ? `From a sample of ${percent(picture.share)} of the recording; all of it in a moment.` : "",
    chosen !== null ? `Dots with any access by ${names[chosen]} stand out.` : request.by === "function" && context.state.function ? `${context.state.function} has no colour of its own here: it is among the other functions.` : "",
    standalone && (shown.to_ns - shown.from_ns > 1.01 * (request.to_ns - request.from_ns)) ? "The file has this picture at one resolution." : "",
  ].join(" ");
  const content: Density = {
    totals: picture.totals,
    noted,
    x: { label: "time since the recording began", from: request.from_ns, to: request.to_ns, unit: "time" },
    y: { label: request.label, from: request.from, to: request.to, unit: "bytes" },
    step: [column, row],
    empty: most === 0 ? `No access ${all === 0 ? "here: zoom out, select a longer time, or record for longer" : "in this frame"}.` : undefined,
    legend: () => picture.totals
      .map((total, slot): [number, [string, string]] => [total, [`${names[slot]} ${percent(all > 0 ? total / all : 0)}`, colours()[slot]]])
      .filter(([total]) => total > 0)
      .slice(0, 24)
      .map(([, entry]) => entry),
    note: noted(most),
    draw(g, area) {
      const from = toPixels(content, area, [shown.from_ns, shown.place_from - request.origin]);
      const to = toPixels(content, area, [shown.to_ns, shown.place_to - request.origin]);
      g.imageSmoothingEnabled = false;
      g.drawImage(image(), from[0], from[1], to[0] - from[0], to[1] - from[1]);
      for (const [ns, begin] of recording.marks) {
        const x = toPixels(content, area, [ns, 0])[0];
        g.strokeStyle = g.fillStyle = ink("--ink");
        g.strokeRect(x, area.y, 0, area.height);
        g.fillText(begin ? "stable phase begins" : "ends", x + 3, area.y + 10);
      }
      request.overlay?.(g, area, content);
    },
    async at(x, y) {
      const { bin, position } = binAt(x, y);
      const offset = bin.place_from - request.origin;
      const lines = [`${time(bin.from_ns)} to ${time(bin.to_ns)}`, `offset ${bytes(offset)} (${exact(offset)} B)`, ...(request.describe?.(offset) ?? [])];
      if (!(picture.accesses[position] > 0)) return [...lines, "no access"];
      if (standalone) return [...lines, `${exact(picture.accesses[position])} accesses`, `mostly ${names[picture.colours[position]]}`];
      const value = await api.value(number, bin);
      lines.push(`${exact(value.accesses)} accesses in ${value.samples} samples, ${time(value.cost_ns)} lost`);
      for (const [by, sums] of value.by) {
        if (by !== request.by && by !== "thread" && by !== "kind" && by !== "function") continue;
        const scheme = schemeOf(context, by as By);
        lines.push(sums.slice(0, 4).map(([slot, sum]) => `${scheme.names[slot]} ${exact(sum)}`).join(", "));
      }
      return lines;
    },
    csv() {
      const rows: (string | number)[][] = [["from_ns", "to_ns", "offset_from", "offset_to", "accesses", `most by ${request.by}`]];
      picture.accesses.forEach((accesses, position) => {
        if (accesses === 0) return;
        const [x, y] = [position % shown.columns, Math.floor(position / shown.columns)];
        const offset = shown.place_from - request.origin + y * row;
        rows.push([shown.from_ns + x * column, shown.from_ns + (x + 1) * column, offset, offset + row, accesses, names[picture.colours[position]]]);
      });
      return rows;
    },
    open(x, y) {
      if (request.open) request.open(y, x);
      else void functionAt(x, y).then((name) => { if (name !== "" || context.state.function) go({ by: "function", function: name }); }, () => undefined);
    },
  };
  return content;
}

/** The picture as an image, painted again when the theme has changed. */
function painted(picture: Picture, colours: () => string[], scale: { most: number }): () => HTMLCanvasElement {
  const { columns, rows } = picture.frame;
  let made: { paper: string; canvas: HTMLCanvasElement } | null = null;
  return () => {
    const paper = ink("--paper");
    if (made !== null && made.paper === paper) return made.canvas;
    const palette = colours().map(rgb);
    const whole = Math.log1p(scale.most);
    const canvas = h("canvas", { width: columns, height: rows });
    const g = canvas.getContext("2d");
    if (g !== null) {
      const image = g.createImageData(columns, rows);
      for (let bin = 0; bin < columns * rows; bin += 1) {
        const colour = palette[picture.colours[bin]];
        if (colour === undefined) continue;
        image.data.set(colour, bin * 4);
        image.data[bin * 4 + 3] = 150 + (105 * Math.log1p(picture.accesses[bin])) / whole;
      }
      g.putImageData(image, 0, 0);
    }
    made = { paper, canvas };
    return canvas;
  };
}
