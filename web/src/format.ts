// Numbers for people, with units.

const three = (value: number) => {
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1).replace(/\.0$/, "") : value.toFixed(2).replace(/\.?0+$/, "");
};

function scaled(value: number, base: number, units: string[]): string {
  let at = 0;
  while (Math.abs(value) >= base * 0.9995 && at + 1 < units.length) {
    value /= base;
    at += 1;
  }
  return `${three(value)} ${units[at]}`;
}

export const bytes = (value: number) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);

export function time(ns: number): string {
  if (Math.abs(ns) < 1) return ns === 0 ? "0 s" : `${three(ns)} ns`;
  return Math.abs(ns) >= 999.5e6 ? `${three(ns / 1e9)} s` : scaled(ns, 1000, ["ns", "µs", "ms"]);
}

export function count(value: number): string {
  if (Math.abs(value) < 10_000) return Number.isInteger(value) ? String(value) : three(value);
  return scaled(value, 1000, ["", "thousand", "million", "billion"]);
}

/** Every digit. */
export const exact = (value: number) => value.toLocaleString("en", { maximumFractionDigits: 3 });

export const percent = (share: number) =>
  share > 0 && share < 0.001 ? "<0.1 %" : `${share > 0 && share < 0.0995 ? (share * 100).toFixed(1) : (share * 100).toFixed(0)} %`;

/** A time as precise as the distance between two of them asks for. */
export function timeAt(ns: number, step: number): string {
  const [unit, name] = step >= 1e8 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"] : step >= 100 ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  return `${(ns / unit).toFixed(Math.min(digits, 3))} ${name}`;
}
