// A table that sorts by any column, by mouse and keyboard.

import { type Child, csv, download, fileName, h } from "./dom.ts";
import { exact } from "./format.ts";
import { note, read } from "./state.ts";

export interface Column<Row> {
  title: string;
  /** Value for sorting and export. */
  value(row: Row): string | number;
  cell?(row: Row): Child;
  /** Aligned to the right, and sorted with the largest first. */
  number?: boolean;
  hint?: string;
  /** Hidden in narrow windows; the CSV has the column. */
  minor?: boolean;
}

/** A share as a bar, beside its number. */
export function bar(share: number): HTMLElement {
  const inside = h("i");
  inside.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  return h("span", { className: "bar", "aria-hidden": "true" }, inside);
}

export interface Table<Row> {
  name: string;
  rows: Row[];
  columns: Column<Row>[];
  sort: { column: number; up: boolean } | null;
  sorted?(column: number, up: boolean): void;
  /** Number of rows shown at first. */
  most?: number;
}

const classOf = <Row>(column: Column<Row>) => `${column.number ? "number" : ""}${column.minor ? " minor" : ""}`.trim();

/** Above this number of rows, the page holds only the rows in sight. */
const WINDOWED = 1000;
/** Rows beyond the visible edges that are drawn in advance. */
const MARGIN = 20;

/** Makes a table's body scroll by itself, holding only the rows in sight. */
function windowed(body: HTMLElement, count: number, row: (at: number) => HTMLElement): void {
  const element = body.closest("table");
  const frame = element?.parentElement;
  if (!element || !frame) return;
  // Fixes the widths of columns, which would otherwise change with the rows in sight.
  element.querySelectorAll("th").forEach((cell) => { cell.style.width = `${cell.offsetWidth}px`; });
  element.style.width = `${element.offsetWidth}px`;
  element.classList.add("windowed");
  frame.classList.add("window");
  const height = body.querySelector("tr")?.getBoundingClientRect().height || 27;
  const space = (rows: number) => {
    const empty = h("tr", { "aria-hidden": "true" }, h("td", { colSpan: element.querySelectorAll("th").length }));
    empty.style.height = `${rows * height}px`;
    return empty;
  };
  let [drawnFrom, drawnTo] = [-1, -1];
  const draw = () => {
    const from = Math.max(0, Math.floor(frame.scrollTop / height) - MARGIN);
    const to = Math.min(count, Math.ceil((frame.scrollTop + frame.clientHeight) / height) + MARGIN);
    if (from === drawnFrom && to === drawnTo) return;
    [drawnFrom, drawnTo] = [from, to];
    body.replaceChildren(space(from), ...Array.from({ length: to - from }, (_, position) => row(from + position)), space(count - to));
  };
  frame.addEventListener("scroll", draw, { passive: true });
  draw();
}

export function table<Row>({ name, rows, columns, sort, sorted, most = 200 }: Table<Row>): HTMLElement {
  const order = [...rows];
  if (sort !== null && columns[sort.column] !== undefined) {
    const { value } = columns[sort.column];
    const direction = sort.up ? 1 : -1;
    // Computes each value once: there may be a million rows.
    const keys = new Map(order.map((row) => [row, value(row)]));
    const { compare } = new Intl.Collator(undefined, { numeric: true });
    order.sort((left, right) => {
      const [a, b] = [keys.get(left) ?? "", keys.get(right) ?? ""];
      return direction * (typeof a === "number" && typeof b === "number" ? a - b : compare(String(a), String(b)));
    });
  }
  const head = columns.map((column, number) => {
    const by = sort !== null && sort.column === number;
    const sortBy = () => sorted?.(number, by ? !sort.up : !column.number);
    return h(
      "th",
      { scope: "col", className: classOf(column), "aria-sort": by ? (sort.up ? "ascending" : "descending") : "none", title: column.hint },
      sorted ? h("button", { onclick: sortBy }, column.title, by ? (sort.up ? " ▲" : " ▼") : "") : column.title,
    );
  });
  const line = (row: Row) => h("tr", {}, columns.map((column) => h("td", { className: classOf(column) }, column.cell ? column.cell(row) : column.value(row))));
  const body = h("tbody", {}, order.slice(0, most).map(line));
  const more = h("button", {
    className: "more",
    onclick: () => {
      if (order.length > WINDOWED) windowed(body, order.length, (at) => line(order[at]));
      else body.append(...order.slice(most).map(line));
      more.remove();
    },
  }, `show all ${exact(order.length)} rows`);
  const save = () => {
    const text = csv([columns.map((column) => column.title), ...order.map((row) => columns.map((column) => column.value(row)))]);
    download(`${fileName(name)}.csv`, new Blob([text], { type: "text/csv" }));
  };
  return h(
    "div",
    {},
    h("div", { className: "table", tabIndex: 0, role: "group", "aria-label": `${name}, scrolls` }, h("table", { "aria-label": name }, h("thead", {}, h("tr", {}, head)), body)),
    h("p", { className: "tools" }, order.length > most ? more : null, h("button", { onclick: save, className: "csv" }, "CSV")),
  );
}

/** A table whose order is kept in the address. */
export function sortedTable<Row>(name: string, rows: Row[], columns: Column<Row>[]): HTMLElement {
  const place = h("div");
  const draw = () => {
    const state = read();
    const column = columns.findIndex(({ title }) => title === (state.sort ?? ""));
    place.replaceChildren(table({
      name,
      rows,
      columns,
      sort: column < 0 ? null : { column, up: state.up === "1" },
      sorted: (by, up) => { note({ sort: columns[by].title, up: up ? "1" : "" }); draw(); },
    }));
  };
  draw();
  return place;
}
