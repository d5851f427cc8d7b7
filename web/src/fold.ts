// Folds ranges without accesses out of the address space: an axis of pieces with breaks between them, and a picture
// that is joined from one picture per piece.

import { type Area, fitted, toPixels } from "./axis.ts";
import { ink } from "./colours.ts";
import { bytes } from "./format.ts";
import type { Picture } from "./plot.ts";

/** A range of places that is shown, and the position on the axis where it begins. */
export interface Piece { from: number; to: number; at: number }

/** Most breaks of an axis. */
const BREAKS_MAX = 8;
/** Smallest untouched range that is folded, as a share of the space. */
const LEAST = 0.01;
/** Length of a break, as a share of the length of all pieces. */
const BREAK = 0.014;

export class Folding {
  readonly pieces: Piece[];
  readonly length: number;

  /** `touched`: accesses in equal parts of the space; `space`: its length in bytes. */
  constructor(touched: number[], readonly space: number, isFolded: boolean) {
    const bin = space / Math.max(touched.length, 1);
    const gaps: [number, number][] = [];
    for (let from = 0; isFolded && from < touched.length; ) {
      let to = from;
      while (to < touched.length && touched[to] === 0) to += 1;
      if (to - from >= LEAST * touched.length && to - from < touched.length) gaps.push([from, to]);
      from = to + 1;
    }
    const folded = gaps.sort((a, b) => b[1] - b[0] - (a[1] - a[0])).slice(0, BREAKS_MAX).sort((a, b) => a[0] - b[0]);
    const kept = space - folded.reduce((sum, [from, to]) => sum + (to - from) * bin, 0);
    this.pieces = [];
    let [place, at] = [0, 0];
    for (const [from, to] of [...folded, [touched.length, touched.length]]) {
      const end = from === touched.length ? space : from * bin;
      if (end > place) {
        this.pieces.push({ from: place, to: end, at });
        at += end - place + kept * BREAK;
      }
      place = to * bin;
    }
    if (this.pieces.length === 0) this.pieces.push({ from: 0, to: Math.max(space, 1), at: 0 });
    const last = this.pieces[this.pieces.length - 1];
    this.length = last.at + last.to - last.from;
  }
  /** Bytes that are folded away. */
  get away(): number {
    return this.space - this.pieces.reduce((sum, { from, to }) => sum + to - from, 0);
  }

  /** The place at a position of the axis; within a break, the end of the piece before. */
  place(position: number): number {
    const piece = this.pieces.findLast(({ at }) => at <= position) ?? this.pieces[0];
    return Math.min(Math.max(piece.from + position - piece.at, piece.from), piece.to);
  }

  /** The position of a place on the axis; a place that is folded away is where its break begins. */
  position(place: number): number {
    const piece = this.pieces.findLast(({ from }) => from <= place) ?? this.pieces[0];
    return piece.at + Math.min(Math.max(place - piece.from, 0), piece.to - piece.from);
  }

  /** The parts of pieces within a range of the axis. */
  shown(from: number, to: number): Piece[] {
    const cut = this.pieces.map((piece): Piece => {
      const [low, high] = [Math.max(from, piece.at), Math.min(to, piece.at + piece.to - piece.from)];
      return { from: piece.from + low - piece.at, to: piece.from + high - piece.at, at: low };
    });
    const seen = cut.filter((piece) => piece.to > piece.from);
    return seen.length > 0 ? seen : cut.slice(0, 1).map(({ from, at }) => ({ from, to: from + 1, at }));
  }
}

/** Paints a break of an axis, between dashed lines. */
export function broken(g: CanvasRenderingContext2D, { x, y, width, height }: Area, along: "x" | "y"): void {
  g.fillStyle = ink("--soft");
  g.strokeStyle = ink("--line");
  g.fillRect(x, y, width, height);
  g.setLineDash([4, 3]);
  g.strokeRect(x, y, along === "x" ? 0 : width, along === "x" ? height : 0);
  g.strokeRect(along === "x" ? x + width : x, along === "x" ? y : y + height, along === "x" ? 0 : width, along === "x" ? height : 0);
  g.setLineDash([]);
}

/** Joins pictures of the pieces of a vertical axis. */
export function joined(parts: { piece: Piece; content: Picture }[], range: [number, number], ticks: (piece: Piece) => string): Picture {
  const [first] = parts;
  const of = (position: number) => {
    const { piece, content } = parts.findLast(({ piece }) => piece.at <= position) ?? first;
    const place = piece.from + position - piece.at;
    return { content, place, isInside: place < piece.to };
  };
  const content: Picture = {
    ...first.content,
    y: { label: "", from: range[0], to: range[1], unit: "bytes", ticks: parts.map(({ piece }): [number, string] => [piece.at, ticks(piece)]) },
    empty: parts.every(({ content }) => content.empty !== undefined) ? first.content.empty : undefined,
    draw(g, area) {
      const edge = (position: number) => toPixels(content, area, [content.x.from, position])[1];
      parts.forEach(({ piece, content: part }, number) => {
        const [low, high] = [edge(piece.at), edge(piece.at + piece.to - piece.from)];
        const inside: Area = { ...area, y: low, height: high - low };
        g.save();
        g.beginPath();
        g.rect(inside.x, inside.y, inside.width, inside.height);
        g.clip();
        if (part.empty === undefined) part.draw(g, inside);
        g.restore();
        const next = parts[number + 1];
        if (next === undefined) return;
        const height = edge(next.piece.at) - high;
        broken(g, { ...area, y: high, height }, "y");
        if (height < 8) return;
        g.fillStyle = ink("--faint");
        g.font = `${Math.min(11, height)}px system-ui, sans-serif`;
        g.textAlign = "center";
        g.textBaseline = "middle";
        g.fillText(fitted(g, `${bytes(next.piece.from - piece.to)} untouched`, area.width), area.x + area.width / 2, high + height / 2);
      });
    },
    at(x, y) {
      const { content: part, place, isInside } = of(y);
      return !isInside ? ["untouched"] : part.empty !== undefined ? ["no access"] : part.at(x, place);
    },
    open(x, y) {
      const { content: part, place, isInside } = of(y);
      if (isInside) part.open?.(x, place);
    },
    async csv() {
      const all = await Promise.all(parts.map(({ content }) => content.csv()));
      return all.flatMap((rows, number) => (number === 0 ? rows : rows.slice(1)));
    },
  };
  return content;
}
