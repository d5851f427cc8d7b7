// Numbers with units for people, formatted as the terminal does: `cases.json` of `crates/amount` tests both.

const three = (value: number) => {
  const size = Math.abs(value);
  return size >= 99.95 ? value.toFixed(0) : size >= 9.995 ? value.toFixed(1).replace(/\.0$/, "") : value.toFixed(2).replace(/\.?0+$/, "");
};

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let at = 0;
  while (Math.abs(value) >= 1023.995 && at + 1 < units.length) {
    value /= 1024;
    at += 1;
  }
  return `${three(value)} ${units[at]}`;
}

export function time(ns: number): string {
  const size = Math.abs(ns);
  if (size < 0.5) return "0";
  const [unit, name] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${three(ns / unit)} ${name}`;
}

export function count(value: number): string {
  const size = Math.abs(value);
  if (size < 10_000) return value.toFixed(0);
  const [unit, name] = size >= 1e12 ? [1e12, "T"] : size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return `${three(value / unit)}${name}`;
}

/** A number and its noun: `1 access`, `2 accesses`. */
export const counted = (number: number, thing: string) => `${count(number)} ${thing}${count(number) === "1" ? "" : thing.endsWith("s") ? "es" : "s"}`;

/** A number with all its digits. */
export const exact = (value: number) => value.toLocaleString("en", { maximumFractionDigits: 3 });

export function percent(share: number): string {
  const value = 100 * share;
  if (!(value > 0) || !Number.isFinite(value)) return "0 %";
  return value < 0.1 ? "<0.1 %" : `${value.toFixed(value < 9.95 ? 1 : 0)} %`;
}

/** A time, precise enough to tell times apart that are `step` ns from each other. */
export function timeAt(ns: number, step: number): string {
  const [unit, name] = step >= 1e8 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"] : step >= 100 ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  return `${(ns / unit).toFixed(Math.min(digits, 3))} ${name}`;
}
