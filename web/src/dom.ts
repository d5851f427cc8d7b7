// Elements without a framework. Text is always inserted as text, never as HTML: a program can put anything into the
// names of its recording.

export type Child = Node | string | number | null | undefined | false | Child[];
type Properties = Record<string, unknown>;

/** An element with properties (`onclick`, `className`, …; `aria-…` and `data-…` as attributes) and children. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Properties = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.includes("-") || name === "role" || name === "colspan" || name === "list") element.setAttribute(name, String(value));
    else (element as unknown as Properties)[name] = value;
  }
  add(element, children);
  return element;
}

/** Turns words in backquotes into `code` elements. */
export const coded = (text: string): Child[] => text.split("`").map((part, at) => (at % 2 === 1 ? h("code", {}, part) : part));

function add(element: Element, children: Child[]): void {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== false) element.append(String(child));
  }
}

/** Lets the browser save a file. */
export function download(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** Rows as CSV (RFC 4180). A quote before text that a spreadsheet would read as a formula keeps it text. */
export function csv(rows: (string | number | null | undefined)[][]): string {
  const cell = (value: string | number | null | undefined) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}

export function downloadCsv(name: string, rows: (string | number | null | undefined)[][]): void {
  download(`${fileName(name)}.csv`, new Blob([csv(rows)], { type: "text/csv" }));
}

/** A file name that every file system accepts. */
export function fileName(name: string): string {
  return name.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[-.]+|-+$/g, "").slice(0, 80) || "nearpage";
}
