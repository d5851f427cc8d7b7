// Axes of pictures: conversion between values and pixels, and the ticks beside an axis.

import { bytes, count, exact, timeAt } from "./format.ts";

export interface Axis {
  label: string;
  from: number;
  to: number;
  unit: "bytes" | "bytes/s" | "time" | "count" | "names" | "share" | "pages";
  /** For unit `names`: a name for each whole number. */
  names?: string[];
  /** Tick values and their texts, instead of round values. */
  ticks?: [number, string][];
  /** For a vertical axis: values grow upwards, as figures do. Otherwise downwards, as addresses in a listing. */
  up?: boolean;
}

export interface Area { x: number; y: number; width: number; height: number }

export interface Axes { x: Axis; y: Axis }

/** Room at the right, in pixels, for half of the last number below an axis. */
export const RIGHT = 24;

export const FONT = "12px system-ui, sans-serif";

export const span = (axis: Axis) => axis.to - axis.from;

export function toPixels(axes: Axes, area: Area, [x, y]: [number, number]): [number, number] {
  const share = (y - axes.y.from) / span(axes.y);
  return [
    area.x + ((x - axes.x.from) / span(axes.x)) * area.width,
    area.y + (axes.y.up ? 1 - share : share) * area.height,
  ];
}

export function fromPixels(axes: Axes, area: Area, [x, y]: [number, number]): [number, number] {
  const share = (y - area.y) / area.height;
  return [
    axes.x.from + ((x - area.x) / area.width) * span(axes.x),
    axes.y.from + (axes.y.up ? 1 - share : share) * span(axes.y),
  ];
}

/** Texts of the ticks along an axis that is `pixels` long, with their values. */
export function written(axis: Axis, pixels: number, isVertical: boolean): [number, string][] {
  if (axis.ticks !== undefined) {
    const [apart, before] = (isVertical ? [14, 0] : [120, RIGHT]).map((room) => (room / pixels) * span(axis));
    let free = -Infinity;
    return axis.ticks.filter(([at]) => {
      const fits = at >= axis.from && at <= axis.to - before && at >= free;
      if (fits) free = at + apart;
      return fits;
    });
  }
  const least = isVertical ? (axis.unit === "names" ? 15 : 26) : axis.unit === "names" ? 70 : 100;
  const { values, step } = round(axis, pixels / least);
  if (axis.unit !== "names") return values.map((value) => [value, label(axis, value, step)]);
  return values.filter((value) => value + 0.5 <= axis.to).map((value) => [value + 0.5, axis.names?.[value] ?? ""]);
}

/** Round values on an axis, `most` at most, and the step between them. */
function round(axis: Axis, most: number): { values: number[]; step: number } {
  const least = span(axis) / Math.max(most, 1);
  if (!(least > 0)) return { values: [], step: 1 };
  const base = axis.unit === "bytes" || axis.unit === "bytes/s" ? 2 : 10;
  let step = base ** Math.ceil(Math.log(least) / Math.log(base) - 1e-9);
  if (base === 10) for (const part of [5, 2]) if (step / part >= least) { step /= part; break; }
  if (axis.unit === "pages" || axis.unit === "bytes" || axis.unit === "names") step = Math.max(step, 1);
  const values: number[] = [];
  for (let value = Math.ceil(axis.from / step - 1e-9) * step; value <= axis.to + step * 1e-9; value += step) values.push(value === 0 ? 0 : value);
  return { values, step };
}

function label(axis: Axis, value: number, step: number): string {
  switch (axis.unit) {
    case "bytes":
      return step < 1024 && value >= 1024 ? `${exact(value)} B` : bytes(value);
    case "bytes/s":
      return `${bytes(value)}/s`;
    case "time":
      return timeAt(value, step);
    case "share":
      return `${+(value * 100).toFixed(Math.max(1, Math.ceil(-Math.log10(step * 100) - 1e-9)))} %`;
    case "names":
      return axis.names?.[value] ?? "";
    case "pages":
      return exact(value);
    case "count":
      return step < 1 ? exact(value) : count(value);
  }
}

/** As much of a text as fits into `width` pixels, with an ellipsis in place of the end that is cut off. */
export function fitted(g: CanvasRenderingContext2D, text: string, width: number): string {
  if (g.measureText(text).width <= width) return text;
  let length = Math.max(1, Math.floor((text.length * width) / g.measureText(text).width));
  while (length > 1 && g.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return `${text.slice(0, length)}…`;
}
