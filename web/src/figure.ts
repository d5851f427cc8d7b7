// Base of all pictures: title, controls, legend, read-out, keys, gestures, zoom, selection of a range, export.
// `plot.ts` paints dense pictures itself; `chart.ts` has uPlot draw bars, lines and areas.

import { type Area, type Axes, type Axis, fromPixels, RIGHT, span } from "./axis.ts";
import { ink } from "./colours.ts";
import { type Child, download, downloadCsv, fileName, h } from "./dom.ts";
import { continues } from "./state.ts";

/** Content of a picture. */
export interface Content extends Axes {
  /** Read-out of a point of the axes. */
  at(x: number, y: number): string[] | Promise<string[]>;
  csv(): (string | number | null)[][] | Promise<(string | number | null)[][]>;
  /** Names and colours, in the current theme. */
  legend(): [string, string][];
  note?: string | undefined;
  /** A sentence that replaces the axes when there is nothing to show. */
  empty?: string | undefined;
  /** The selected range of the horizontal axis. */
  selected?: [number, number] | null | undefined;
  /** Size of one bin: how far a key moves the cursor. */
  step?: [number, number] | undefined;
  /** Opens the thing at a point. */
  open?(x: number, y: number): void;
}

export interface Options<Loaded> {
  title: string;
  height: number;
  /** Width of the vertical axis, in pixels. */
  left?: number;
  load(width: number, height: number): Promise<Loaded> | Loaded;
  /** Zooms to new ranges, null for the whole axis; absent: the picture has no zoom. */
  zoom?(x: [number, number] | null, y: [number, number] | null): void;
  /** Selects a range of the horizontal axis, null for none; the axes stay as they are. */
  select?(x: [number, number] | null): void;
  /** Height of the horizontal axis, in pixels. */
  bottom?: number;
  /** Class of the element, `plot` by default. */
  className?: string;
  controls?: Child;
}

/** All figures by element. Weak: a figure goes with its element. */
const figures = new WeakMap<Element, Figure>();

/** Draws all figures again after the colours of the page have changed. */
export function redrawAll(): void {
  for (const element of document.querySelectorAll("figure")) figures.get(element)?.draw();
}

export abstract class Figure<Loaded = unknown, Shown extends Content = Content> {
  readonly element: HTMLElement;
  /** The element that is drawn on, which gets the key and pointer events. */
  protected readonly surface = h("div", { className: "surface", tabIndex: 0, role: "img" });
  protected readonly legend = h("div", { className: "legend" });
  protected content: Shown | null = null;
  protected cursor: [number, number] | null = null;
  protected drag: { x: number; y: number; pan: boolean; to: [number, number] } | null = null;
  protected width = 0;
  private readout = h("output", { className: "readout" }, "Point at the picture, or use the arrow keys.");
  private note = h("p", { className: "note" });
  private blank = h("p", { className: "blank" });
  /** Positions of fingers by pointer, and the distance of two fingers when the second touched. */
  private fingers = new Map<number, [number, number]>();
  private apart = 0;
  /** Position of the last tap: a second tap there opens the thing that the first tap described. */
  private tapped: [number, number] = [-1, -1];
  private request = 0;
  private waiting = 0;

  constructor(protected readonly options: Options<Loaded>) {
    const keys = options.zoom
      ? "Arrows move, + and − zoom, Shift with arrows pans, 0 shows all."
      : options.select ? "Arrows move, [ and ] set begin and end of the selection, 0 selects all." : "Arrows move.";
    this.surface.setAttribute("aria-label", `${options.title}. ${keys}`);
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
      this.surface,
      this.blank,
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
      } else if (!this.element.isConnected) {
        this.width = 0;
        this.clear();
      }
    }).observe(this.element);
    figures.set(this.element, this);
  }

  /** Turns loaded data into content. */
  protected abstract describe(loaded: Loaded): Shown;
  /** Puts a new picture on the surface. */
  protected abstract paint(content: Shown): void;
  /** Shows the cursor and the frame of a drag. */
  protected abstract mark(content: Shown): void;
  /** Paints for an exported file, whose resolution differs from the screen's. */
  protected abstract paintOn(g: CanvasRenderingContext2D, content: Shown): void;
  /** Removes what `paint` put up, when there is nothing to show or another view replaces this one. */
  protected clear(): void {}

  /** The legend's entry for a name; subclasses also use its number. */
  protected entry(name: string, swatch: HTMLElement, _: number): HTMLElement {
    return h("span", {}, swatch, name);
  }

  async refresh(): Promise<void> {
    if (this.width === 0) return;
    const request = ++this.request;
    this.element.classList.add("busy");
    try {
      const area = this.area();
      const loaded = await this.options.load(Math.max(area.width, 1), Math.max(area.height, 1));
      if (request !== this.request) return;
      this.content = this.describe(loaded);
      this.draw();
    } catch (error) {
      if (request !== this.request) return;
      this.content = null;
      this.note.textContent = error instanceof Error ? error.message : String(error);
    }
    if (request === this.request) {
      this.element.classList.remove("busy");
      this.element.dataset.ready = String(request);
    }
  }

  protected area(): Area {
    const left = this.options.left ?? 76;
    return { x: left, y: 8, width: this.width - left - RIGHT, height: this.options.height - 8 - (this.options.bottom ?? 40) };
  }

  draw(): void {
    const { content } = this;
    if (content === null || this.width === 0) return;
    const isEmpty = content.empty !== undefined;
    this.element.classList.toggle("empty", isEmpty);
    this.blank.textContent = content.empty ?? "";
    this.note.textContent = content.note ?? "";
    this.legend.replaceChildren(
      ...(isEmpty ? [] : content.legend()).map(([name, colour], number) => {
        const swatch = h("i");
        swatch.style.background = colour;
        return this.entry(name, swatch, number);
      }),
    );
    if (isEmpty) return this.clear();
    this.paint(content);
    this.mark(content);
  }

  /** Does the picture have the keyboard focus? */
  protected get isHeld(): boolean {
    return document.activeElement === this.surface;
  }

  /** The area that a drag frames; a selection frames the full height. */
  protected framed(): Area | null {
    const { drag } = this;
    if (drag === null || drag.pan || !(this.options.zoom || this.options.select)) return null;
    const area = this.area();
    const [y, height] = this.options.select ? [area.y, area.height] : [Math.min(drag.y, drag.to[1]), Math.abs(drag.to[1] - drag.y)];
    return { x: Math.min(drag.x, drag.to[0]), y, width: Math.abs(drag.to[0] - drag.x), height };
  }

  private remark(): void {
    if (this.content !== null && this.content.empty === undefined && this.width > 0) this.mark(this.content);
  }

  private listen(): void {
    const { surface } = this;
    const position = (event: MouseEvent): [number, number] => {
      const { x, y } = surface.getBoundingClientRect();
      return [event.clientX - x, event.clientY - y];
    };
    surface.onpointerdown = (event) => {
      if (event.button !== 0 || this.content === null) return;
      surface.focus();
      const [x, y] = position(event);
      surface.setPointerCapture(event.pointerId);
      if (event.pointerType === "touch") {
        this.fingers.set(event.pointerId, [x, y]);
        // There is no pointer position before a finger touches.
        this.look(fromPixels(this.content, this.area(), [x, y]));
        if (this.fingers.size > 1) {
          this.drag = null;
          this.apart = this.pinch().apart;
          return this.remark();
        }
      }
      this.drag = { x, y, pan: event.shiftKey, to: [x, y] };
    };
    surface.onpointermove = (event) => {
      if (this.content === null) return;
      const at = position(event);
      if (this.fingers.has(event.pointerId)) this.fingers.set(event.pointerId, at);
      if (this.fingers.size > 1) return;
      if (this.drag !== null && (this.options.zoom || this.options.select)) {
        this.drag.to = at;
        this.remark();
      } else this.look(fromPixels(this.content, this.area(), at));
    };
    // The browser took over the finger's movement, to scroll.
    surface.onpointercancel = (event) => {
      this.fingers.delete(event.pointerId);
      this.drag = null;
      this.remark();
    };
    surface.onpointerup = (event) => this.lift(event, position(event));
    surface.ondblclick = () => (this.options.select ? this.options.select(null) : this.options.zoom?.(null, null));
    surface.onwheel = (event) => {
      if (!this.options.zoom || this.content === null || !(event.ctrlKey || this.isHeld)) return;
      event.preventDefault();
      continues();
      this.zoomAt(fromPixels(this.content, this.area(), position(event)), event.deltaY > 0 ? 1.3 : 1 / 1.3);
    };
    surface.onkeydown = (event) => this.key(event);
    surface.onfocus = surface.onblur = () => this.remark();
  }

  /** A button or finger is lifted: zooms to or selects a framed range, or opens a pressed point. */
  private lift(event: PointerEvent, at: [number, number]): void {
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
    this.remark();
    const area = this.area();
    const moved = [Math.abs(at[0] - drag.x), Math.abs(at[1] - drag.y)];
    const [from, to] = [fromPixels(content, area, [drag.x, drag.y]), fromPixels(content, area, at)];
    if (this.options.select && moved[0] >= 4) {
      this.options.select([Math.min(from[0], to[0]), Math.max(from[0], to[0])]);
      return;
    }
    if (Math.max(...moved) < 4 || !this.options.zoom) {
      const isAsking = event.pointerType === "touch" && Math.hypot(at[0] - this.tapped[0], at[1] - this.tapped[1]) > 24;
      this.tapped = at;
      if (!isAsking) content.open?.(...to);
    } else if (drag.pan) this.pan((from[0] - to[0]) / span(content.x), (from[1] - to[1]) / span(content.y));
    else {
      // A drag along one axis keeps the other axis.
      const range = (a: number, b: number, axis: Axis, pixels: number): [number, number] =>
        pixels < 8 ? [axis.from, axis.to] : [Math.min(a, b), Math.max(a, b)];
      this.options.zoom(range(from[0], to[0], content.x, moved[0]), range(from[1], to[1], content.y, moved[1]));
    }
  }

  /** Distance of two fingers, and the middle between them. */
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
    const down = content.y.up ? -1 : 1;
    if (move !== undefined && event.shiftKey) this.pan(move[0] / 4, (move[1] / 4) * down);
    else if (move !== undefined) {
      const step = content.step ?? [span(content.x) / 50, span(content.y) / 50];
      const moved = (axis: Axis, value: number) => Math.min(Math.max(value, axis.from), axis.to - 1e-9 * span(axis));
      this.look([moved(content.x, cursor[0] + move[0] * step[0]), moved(content.y, cursor[1] + move[1] * step[1] * down)]);
      this.remark();
    } else if ((event.key === "+" || event.key === "=") && options.zoom) this.zoomAt(cursor, 1 / 2);
    else if (event.key === "-" && options.zoom) this.zoomAt(cursor, 2);
    else if ((event.key === "0" || event.key === "Home") && options.zoom) options.zoom(null, null);
    else if ((event.key === "[" || event.key === "]") && options.select) this.bound(event.key === "[", cursor[0]);
    else if ((event.key === "0" || event.key === "Escape") && options.select) options.select(null);
    else if (event.key === "Enter") content.open?.(...cursor);
    else return;
    event.preventDefault();
  }

  /** Sets one end of the selection. The other end stays, unless the range would be empty. */
  private bound(begins: boolean, at: number): void {
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

  /** Shows the read-out of a point. */
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
    this.paintOn(g, content);
    g.font = "12px system-ui, sans-serif";
    g.textAlign = "left";
    g.textBaseline = "alphabetic";
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
