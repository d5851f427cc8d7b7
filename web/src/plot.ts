// A picture with axes, legend, the value under the pointer, zoom, and export. What is drawn inside
// is its content's business.

import { type Child, download, downloadCsv, fileName, h } from "./dom.ts";
import { bytes, count, exact, time, timeAt } from "./format.ts";
import { continues } from "./state.ts";

export interface Axis {
  label: string;
  from: number;
  to: number;
  unit: "bytes" | "time" | "count" | "names" | "share" | "pages";
  /** With unit `names`: one for each whole number. */
  names?: string[];
  /** In place of round values. */
  ticks?: [number, string][];
}

export interface Area { x: number; y: number; width: number; height: number }

export interface Content {
  x: Axis;
  /** Grows downwards, as addresses in a listing do; `up` for figures. */
  y: Axis & { up?: boolean };
  draw(g: CanvasRenderingContext2D, area: Area): void;
  /** What is at a point of the axes. */
  at(x: number, y: number): string[] | Promise<string[]>;
  csv(): (string | number | null)[][] | Promise<(string | number | null)[][]>;
  /** Names and colours, of the paper of the moment. */
  legend(): [string, string][];
  note?: string;
  /** Why there is nothing to see: a sentence in place of axes. */
  empty?: string | undefined;
  /** A map: no axes. */
  plain?: boolean;
  /** The range of the horizontal axis that is chosen. */
  selected?: [number, number] | null;
  /** Size of one bin, for the keyboard. */
  step?: [number, number];
  /** Goes to what is at a point. */
  open?(x: number, y: number): void;
}

export interface Options {
  title: string;
  height: number;
  /** Smaller axes leave more room. */
  left?: number;
  load(width: number, height: number): Promise<Content> | Content;
  /** New ranges, or null for all; absent: no zoom. */
  zoom?(x: [number, number] | null, y: [number, number] | null): void;
  /** Chooses a range of the horizontal axis, or with null none, and the axes stay. */
  select?(x: [number, number] | null): void;
  /** Room for the horizontal axis. */
  bottom?: number;
  /** Class of the element; `plot` unless given. */
  className?: string;
  controls?: Child;
}

/** Height of a picture that has a sentence instead. */
const EMPTY_HEIGHT = 80;

/** By their elements, which alone keep them. */
const plots = new WeakMap<Element, Plot>();

/** Draws all of them again, after the colours of the page have changed. */
export function redrawAll(): void {
  for (const element of document.querySelectorAll("figure")) plots.get(element)?.draw();
}

export class Plot {
  readonly element: HTMLElement;
  private canvas = h("canvas", { tabIndex: 0, role: "img" });
  private readout = h("output", { className: "readout" }, "Point at the picture, or use the arrow keys.");
  private legend = h("div", { className: "legend" });
  private note = h("p", { className: "note" });
  private content: Content | null = null;
  private cursor: [number, number] | null = null;
  private drag: { x: number; y: number; pan: boolean; to: [number, number] } | null = null;
  /** Where fingers are, by pointer; and how far two were apart when the second came. */
  private fingers = new Map<number, [number, number]>();
  private apart = 0;
  /** Where a finger tapped before: another tap there opens what the first asked about. */
  private tapped: [number, number] = [-1, -1];
  private asked = 0;
  private waiting = 0;
  private width = 0;

  constructor(private options: Options) {
    const { canvas } = this;
    const keys = options.zoom
      ? "Arrows move, + and − zoom, Shift with arrows pans, 0 shows all."
      : options.select ? "Arrows move, [ and ] set begin and end of the selection, 0 selects all." : "Arrows move.";
    canvas.setAttribute("aria-label", `${options.title}. ${keys}`);
    this.element = h(
      "figure",
      { className: options.className ?? "plot" },
      h(
        "figcaption",
        {},
        h("h3", {}, options.title),
        options.controls ?? null,
        h("span", { className: "tools" },
          options.zoom ? h("button", { onclick: () => options.zoom?.(null, null), title: "show all (0)" }, "All") : null,
          options.select ? h("button", { onclick: () => options.select?.(null), title: "select all of the time (0)", className: "unselect" }, "All") : null,
          h("button", { onclick: () => this.png(), className: "png" }, "PNG"),
          h("button", { onclick: () => this.csv(), className: "csv" }, "CSV"),
        ),
      ),
      canvas,
      this.legend,
      this.readout,
      this.note,
    );
    this.listen();
    new ResizeObserver(() => {
      const width = Math.floor(this.element.clientWidth);
      if (width > 0 && width !== this.width) {
        this.width = width;
        void this.refresh();
      }
    }).observe(this.element);
    plots.set(this.element, this);
  }

  /** Loads and draws again. */
  async refresh(): Promise<void> {
    if (this.width === 0) return;
    const asked = ++this.asked;
    this.element.classList.add("busy");
    try {
      const area = this.area();
      const content = await this.options.load(Math.max(area.width, 1), Math.max(area.height, 1));
      if (asked !== this.asked) return;
      this.content = content;
      this.note.textContent = content.note ?? "";
      this.draw();
    } catch (error) {
      if (asked !== this.asked) return;
      this.content = null;
      this.note.textContent = error instanceof Error ? error.message : String(error);
    }
    if (asked === this.asked) {
      this.element.classList.remove("busy");
      this.element.dataset.ready = String(asked);
    }
  }

  private area(): Area {
    const left = this.options.left ?? 76;
    return { x: left, y: 8, width: this.width - left - 12, height: this.options.height - 8 - (this.options.bottom ?? 40) };
  }

  draw(): void {
    const scale = window.devicePixelRatio || 1;
    const { canvas } = this;
    const { content } = this;
    const isEmpty = content?.empty !== undefined;
    const height = isEmpty ? Math.min(this.options.height, EMPTY_HEIGHT) : this.options.height;
    this.element.classList.toggle("empty", isEmpty);
    canvas.width = this.width * scale;
    canvas.height = height * scale;
    canvas.style.height = `${height}px`;
    const g = canvas.getContext("2d");
    if (g === null || content === null) return;
    this.legend.replaceChildren(
      ...(content.empty === undefined ? content.legend() : []).map(([name, colour]) => {
        const swatch = h("i");
        swatch.style.background = colour;
        return h("span", {}, swatch, name);
      }),
    );
    g.scale(scale, scale);
    this.paint(g);
    this.paintCursor(g);
  }

  private paint(g: CanvasRenderingContext2D): void {
    const { content } = this;
    if (content === null) return;
    const area = this.area();
    g.fillStyle = ink(content.empty === undefined ? "--paper" : "--soft");
    g.fillRect(0, 0, this.width, this.options.height);
    if (content.empty !== undefined) {
      g.fillStyle = ink("--faint");
      g.font = "14px system-ui, sans-serif";
      g.textAlign = "center";
      g.textBaseline = "middle";
      const lines = wrapped(g, content.empty, this.width - 40);
      const middle = Math.min(this.options.height, EMPTY_HEIGHT) / 2;
      lines.forEach((line, number) => g.fillText(line, this.width / 2, middle + (number - (lines.length - 1) / 2) * 20));
      return;
    }
    g.save();
    g.beginPath();
    g.rect(area.x, area.y, area.width, area.height);
    g.clip();
    content.draw(g, area);
    g.restore();
    if (!content.plain) axes(g, area, content);
  }

  private paintCursor(g: CanvasRenderingContext2D): void {
    const { content, cursor, drag } = this;
    if (content === null || content.empty !== undefined) return;
    const area = this.area();
    if (cursor !== null && document.activeElement === this.canvas) {
      const [x, y] = toPixels(content, area, cursor);
      g.strokeStyle = ink("--ink");
      g.setLineDash([3, 3]);
      g.strokeRect(Math.round(x) + 0.5, area.y, 0, area.height);
      g.strokeRect(area.x, Math.round(y) + 0.5, area.width, 0);
      g.setLineDash([]);
    }
    if (drag !== null && !drag.pan) {
      g.fillStyle = "rgb(86 180 233 / 25%)";
      g.strokeStyle = ink("--link");
      const [top, height] = this.options.select ? [area.y, area.height] : [drag.y, drag.to[1] - drag.y];
      g.fillRect(drag.x, top, drag.to[0] - drag.x, height);
      g.strokeRect(drag.x, top, drag.to[0] - drag.x, height);
    }
  }

  private listen(): void {
    const { canvas } = this;
    const position = (event: PointerEvent | WheelEvent | MouseEvent): [number, number] => [event.offsetX, event.offsetY];
    canvas.onpointerdown = (event) => {
      if (event.button !== 0 || this.content === null || this.content.empty !== undefined) return;
      canvas.focus();
      const [x, y] = position(event);
      canvas.setPointerCapture(event.pointerId);
      if (event.pointerType === "touch") {
        this.fingers.set(event.pointerId, [x, y]);
        // A finger points nowhere before it touches.
        this.look(fromPixels(this.content, this.area(), [x, y]));
        if (this.fingers.size > 1) {
          this.drag = null;
          this.apart = this.pinch().apart;
          return this.draw();
        }
      }
      this.drag = { x, y, pan: event.shiftKey, to: [x, y] };
    };
    canvas.onpointermove = (event) => {
      if (this.content === null) return;
      const at = position(event);
      if (this.fingers.has(event.pointerId)) this.fingers.set(event.pointerId, at);
      if (this.fingers.size > 1) return;
      if (this.drag !== null && (this.options.zoom || this.options.select)) {
        this.drag.to = at;
        this.draw();
      } else this.look(fromPixels(this.content, this.area(), at));
    };
    // The browser took the finger, to scroll.
    canvas.onpointercancel = (event) => {
      this.fingers.delete(event.pointerId);
      this.drag = null;
      this.draw();
    };
    canvas.onpointerup = (event) => {
      const { drag, content } = this;
      const fingers = this.fingers.size;
      const { apart, middle } = this.pinch();
      this.fingers.delete(event.pointerId);
      if (fingers > 1 && this.apart > 0 && apart > 0 && content !== null) {
        this.zoomAt(fromPixels(content, this.area(), middle), this.apart / apart);
        this.apart = 0;
      }
      this.drag = null;
      if (drag === null || content === null) return;
      const area = this.area();
      const at = position(event);
      const moved = [Math.abs(at[0] - drag.x), Math.abs(at[1] - drag.y)];
      if (this.options.select && moved[0] >= 4) {
        const [from, to] = [drag.x, at[0]].map((x) => fromPixels(content, area, [x, area.y])[0]);
        this.options.select([Math.min(from, to), Math.max(from, to)]);
        return;
      }
      if (Math.max(...moved) < 4 || !this.options.zoom) {
        const isAsking = event.pointerType === "touch" && Math.hypot(at[0] - this.tapped[0], at[1] - this.tapped[1]) > 24;
        this.tapped = at;
        if (isAsking) return;
        content.open?.(...fromPixels(content, area, at));
        return;
      }
      const [from, to] = [fromPixels(content, area, [drag.x, drag.y]), fromPixels(content, area, at)];
      if (drag.pan) this.pan((from[0] - to[0]) / span(content.x), (from[1] - to[1]) / span(content.y));
      else {
        // A drag along one axis keeps the other.
        const range = (a: number, b: number, axis: Axis, pixels: number): [number, number] =>
          pixels < 8 ? [axis.from, axis.to] : [Math.min(a, b), Math.max(a, b)];
        this.options.zoom(range(from[0], to[0], content.x, moved[0]), range(from[1], to[1], content.y, moved[1]));
      }
    };
    canvas.ondblclick = () => (this.options.select ? this.options.select(null) : this.options.zoom?.(null, null));
    canvas.onwheel = (event) => {
      if (!this.options.zoom || this.content === null || !(event.ctrlKey || document.activeElement === canvas)) return;
      event.preventDefault();
      continues();
      this.zoomAt(fromPixels(this.content, this.area(), position(event)), event.deltaY > 0 ? 1.3 : 1 / 1.3);
    };
    canvas.onkeydown = (event) => this.key(event);
    canvas.onfocus = canvas.onblur = () => this.draw();
  }

  /** How far two fingers are apart, and the middle between them. */
  private pinch(): { apart: number; middle: [number, number] } {
    const [one, other] = [...this.fingers.values()];
    if (one === undefined || other === undefined) return { apart: 0, middle: [0, 0] };
    return { apart: Math.hypot(one[0] - other[0], one[1] - other[1]), middle: [(one[0] + other[0]) / 2, (one[1] + other[1]) / 2] };
  }

  private key(event: KeyboardEvent): void {
    const { content, options } = this;
    if (content === null || event.ctrlKey || event.altKey || event.metaKey) return;
    const moves: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const middle: [number, number] = [(content.x.from + content.x.to) / 2, (content.y.from + content.y.to) / 2];
    const cursor = this.cursor ?? middle;
    const move = moves[event.key];
    if (move !== undefined && event.shiftKey) this.pan(move[0] / 4, (move[1] / 4) * (content.y.up ? -1 : 1));
    else if (move !== undefined) {
      const step = content.step ?? [span(content.x) / 50, span(content.y) / 50];
      const moved = (axis: Axis, value: number) => Math.min(Math.max(value, axis.from), axis.to - 1e-9 * span(axis));
      this.look([moved(content.x, cursor[0] + move[0] * step[0]), moved(content.y, cursor[1] + move[1] * step[1] * (content.y.up ? -1 : 1))]);
      this.draw();
    } else if ((event.key === "+" || event.key === "=") && options.zoom) this.zoomAt(cursor, 1 / 2);
    else if (event.key === "-" && options.zoom) this.zoomAt(cursor, 2);
    else if ((event.key === "0" || event.key === "Home") && options.zoom) options.zoom(null, null);
    else if ((event.key === "[" || event.key === "]") && options.select) this.mark(event.key === "[", cursor[0]);
    else if ((event.key === "0" || event.key === "Escape") && options.select) options.select(null);
    else if (event.key === "Enter") content.open?.(...cursor);
    else return;
    event.preventDefault();
  }

  /** Sets one end of the selection, and leaves the other where it makes one. */
  private mark(begins: boolean, at: number): void {
    const { content, options } = this;
    if (content === null) return;
    const [from, to] = content.selected ?? [content.x.from, content.x.to];
    if (begins) options.select?.([at, to > at ? to : content.x.to]);
    else options.select?.([from < at ? from : content.x.from, at]);
  }

  private zoomAt(at: [number, number], factor: number): void {
    const { content } = this;
    if (content === null) return;
    const around = (axis: Axis, value: number): [number, number] =>
      axis.unit === "names" ? [axis.from, axis.to] : [value - (value - axis.from) * factor, value + (axis.to - value) * factor];
    this.options.zoom?.(around(content.x, at[0]), around(content.y, at[1]));
  }

  private pan(x: number, y: number): void {
    const { content } = this;
    if (content === null) return;
    const moved = (axis: Axis, share: number): [number, number] =>
      axis.unit === "names" ? [axis.from, axis.to] : [axis.from + share * span(axis), axis.to + share * span(axis)];
    this.options.zoom?.(moved(content.x, x), moved(content.y, y));
  }

  /** Shows what is at a point. */
  private look(at: [number, number]): void {
    const { content } = this;
    if (content === null) return;
    this.cursor = at;
    if (content.empty !== undefined) return;
    const inside = at[0] >= content.x.from && at[0] < content.x.to && at[1] >= content.y.from && at[1] < content.y.to;
    window.clearTimeout(this.waiting);
    if (!inside) return;
    this.waiting = window.setTimeout(async () => {
      try {
        const lines = await content.at(...at);
        if (this.cursor === at) this.readout.textContent = lines.join(" · ");
      } catch (error) {
        this.readout.textContent = error instanceof Error ? error.message : String(error);
      }
    }, 60);
  }

  private png(): void {
    const { content } = this;
    if (content === null) return;
    const scale = 2;
    const legend = content.legend();
    const legendRows = Math.ceil(legend.length / 6);
    const canvas = h("canvas", { width: this.width * scale, height: (this.options.height + 30 + 18 * legendRows) * scale });
    const g = canvas.getContext("2d");
    if (g === null) return;
    g.scale(scale, scale);
    g.fillStyle = ink("--paper");
    g.fillRect(0, 0, canvas.width, canvas.height);
    g.fillStyle = ink("--ink");
    g.font = "bold 14px system-ui, sans-serif";
    g.fillText(this.options.title, 8, 20, this.width - 16);
    g.translate(0, 28);
    this.paint(g);
    g.font = "12px system-ui, sans-serif";
    legend.forEach(([name, colour], number) => {
      const x = 8 + ((number % 6) * (this.width - 16)) / 6;
      const y = this.options.height + 2 + 18 * Math.floor(number / 6);
      g.fillStyle = colour;
      g.fillRect(x, y, 10, 10);
      g.fillStyle = ink("--ink");
      g.fillText(name, x + 14, y + 10, (this.width - 16) / 6 - 18);
    });
    canvas.toBlob((blob) => blob && download(`${fileName(this.options.title)}.png`, blob), "image/png");
  }

  private async csv(): Promise<void> {
    if (this.content !== null) downloadCsv(this.options.title, await this.content.csv());
  }
}

export const ink = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#000";

const span = (axis: Axis) => axis.to - axis.from;

export function toPixels(content: Content, area: Area, [x, y]: [number, number]): [number, number] {
  const share = (y - content.y.from) / span(content.y);
  return [
    area.x + ((x - content.x.from) / span(content.x)) * area.width,
    area.y + (content.y.up ? 1 - share : share) * area.height,
  ];
}

function fromPixels(content: Content, area: Area, [x, y]: [number, number]): [number, number] {
  const share = (y - area.y) / area.height;
  return [
    content.x.from + ((x - area.x) / area.width) * span(content.x),
    content.y.from + (content.y.up ? 1 - share : share) * span(content.y),
  ];
}

/** Round values on an axis, at most so many, and their distance. */
function ticks(axis: Axis, most: number): { values: number[]; step: number } {
  const wanted = span(axis) / Math.max(most, 1);
  if (!(wanted > 0)) return { values: [], step: 1 };
  const base = axis.unit === "bytes" ? 2 : 10;
  let step = base ** Math.ceil(Math.log(wanted) / Math.log(base) - 1e-9);
  if (base === 10) for (const part of [5, 2]) if (step / part >= wanted) { step /= part; break; }
  if (axis.unit === "pages" || axis.unit === "bytes" || axis.unit === "names") step = Math.max(step, 1);
  const values: number[] = [];
  for (let value = Math.ceil(axis.from / step - 1e-9) * step; value <= axis.to + step * 1e-9; value += step) values.push(value === 0 ? 0 : value);
  return { values, step };
}

function label(axis: Axis, value: number, step: number): string {
  if (axis.ticks) return axis.ticks.find(([at]) => at === value)?.[1] ?? "";
  switch (axis.unit) {
    case "bytes":
      return step < 1024 && value >= 1024 ? `${exact(value)} B` : bytes(value);
    case "time":
      return timeAt(value, step);
    case "share":
      return `${+(value * 100).toFixed(1)} %`;
    case "names":
      return axis.names?.[value] ?? "";
    case "pages":
      return exact(value);
    case "count":
      return step < 1 ? exact(value) : count(value);
  }
}

function axes(g: CanvasRenderingContext2D, area: Area, content: Content): void {
  const { x, y } = content;
  g.strokeStyle = ink("--line");
  g.lineWidth = 1;
  g.strokeRect(area.x + 0.5, area.y + 0.5, area.width - 1, area.height - 1);
  g.fillStyle = ink("--ink");
  g.font = "12px system-ui, sans-serif";
  g.textBaseline = "middle";
  g.textAlign = "right";
  const own = (axis: Axis) => axis.ticks && { values: axis.ticks.map(([value]) => value), step: 1 };
  const rows = own(y) ?? ticks(y, area.height / (y.unit === "names" ? 15 : 26));
  let last = -Infinity;
  for (const value of rows.values) {
    const at = y.unit === "names" ? value + 0.5 : value;
    const py = toPixels(content, area, [x.from, at])[1];
    const written = Math.min(Math.max(py, area.y + 6), area.y + area.height - 6);
    if (py < area.y - 1 || py > area.y + area.height + 1 || (y.ticks && Math.abs(written - last) < 14)) continue;
    last = written;
    g.fillText(fitted(g, label(y, value, rows.step), area.x - 26), area.x - 6, written);
    g.beginPath();
    g.moveTo(area.x - 4, py);
    g.lineTo(area.x, py);
    g.stroke();
  }
  g.textAlign = "center";
  g.textBaseline = "top";
  let free = -Infinity;
  const columns = own(x) ?? ticks(x, area.width / (x.unit === "names" ? 70 : 100));
  for (const value of columns.values) {
    const at = x.unit === "names" ? value + 0.5 : value;
    const px = toPixels(content, area, [at, y.from])[0];
    if (px < area.x - 1 || px > area.x + area.width + 1 || (x.ticks && px < free)) continue;
    free = px + 120;
    g.fillText(fitted(g, label(x, value, columns.step), x.ticks ? 112 : 96), Math.min(px, area.x + area.width - (x.ticks ? 44 : 18)), area.y + area.height + 5);
    g.beginPath();
    g.moveTo(px, area.y + area.height);
    g.lineTo(px, area.y + area.height + 4);
    g.stroke();
  }
  g.fillStyle = ink("--faint");
  g.fillText(x.label, area.x + area.width / 2, area.y + area.height + 22);
  g.save();
  g.translate(3, area.y + area.height / 2);
  g.rotate(-Math.PI / 2);
  g.fillText(y.label, 0, 0);
  g.restore();
}

/** A text in lines of some width. */
function wrapped(g: CanvasRenderingContext2D, text: string, width: number): string[] {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = `${lines[lines.length - 1]} ${word}`.trim();
    if (g.measureText(longer).width <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** A bar of a value for each colour, one on top of another, from one pixel to another. */
export function stacked(g: CanvasRenderingContext2D, content: Content, area: Area, [left, right]: [number, number], bar: readonly number[], colours: readonly string[]): void {
  let sum = 0;
  bar.forEach((value, slot) => {
    if (value === 0) return;
    const [low, high] = [toPixels(content, area, [0, sum])[1], toPixels(content, area, [0, (sum += value)])[1]];
    g.fillStyle = colours[slot];
    g.fillRect(left, high, Math.max(right - left, 1), low - high);
  });
}

/** As much of a text as fits, with an ellipsis where something is left out. */
export function fitted(g: CanvasRenderingContext2D, text: string, width: number): string {
  if (g.measureText(text).width <= width) return text;
  let length = Math.max(1, Math.floor((text.length * width) / g.measureText(text).width));
  while (length > 1 && g.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return `${text.slice(0, length)}…`;
}

/** What a time or a place is, in a readout. */
export const words = { bytes: (value: number) => `${bytes(value)} (${exact(value)} B)`, time: (ns: number) => `${time(ns)}` };
