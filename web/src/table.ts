// A table that sorts by any column, by mouse and keyboard.

import { type Child, csv, download, fileName, h } from "./dom.ts";

export interface Column<Row> {
  title: string;
  /** What is sorted by and exported. */
  value(row: Row): string | number;
  cell?(row: Row): Child;
  /** Numbers are set to the right, and sorted from the largest. */
  number?: boolean;
  hint?: string;
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
  /** Rows shown at first. */
  most?: number;
}

export function table<Row>({ name, rows, columns, sort, sorted, most = 200 }: Table<Row>): HTMLElement {
  const order = [...rows];
  if (sort !== null && columns[sort.column] !== undefined) {
    const { value } = columns[sort.column];
    const direction = sort.up ? 1 : -1;
    order.sort((left, right) => {
      const [a, b] = [value(left), value(right)];
      return direction * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
    });
  }
  const head = columns.map((column, number) => {
    const by = sort !== null && sort.column === number;
    const sortBy = () => sorted?.(number, by ? !sort.up : !column.number);
    return h(
      "th",
      { scope: "col", className: column.number ? "number" : "", "aria-sort": by ? (sort.up ? "ascending" : "descending") : "none", title: column.hint },
      sorted ? h("button", { onclick: sortBy }, column.title, by ? (sort.up ? " ▲" : " ▼") : "") : column.title,
    );
  });
  const line = (row: Row) => h("tr", {}, columns.map((column) => h("td", { className: column.number ? "number" : "" }, column.cell ? column.cell(row) : column.value(row))));
  const body = h("tbody", {}, order.slice(0, most).map(line));
  const more = h("button", {
    onclick: () => {
      body.append(...order.slice(most).map(line));
      more.remove();
    },
  }, `show all ${order.length} rows`);
  const save = () => {
    const text = csv([columns.map((column) => column.title), ...order.map((row) => columns.map((column) => column.value(row)))]);
    download(`${fileName(name)}.csv`, new Blob([text], { type: "text/csv" }));
  };
  return h(
    "div",
    { className: "table" },
    h("table", { "aria-label": name }, h("thead", {}, h("tr", {}, head)), body),
    h("p", { className: "tools" }, order.length > most ? more : null, h("button", { onclick: save, className: "csv" }, "CSV")),
  );
}
