// The data that every view gets.

import type { Brief, ObjectRow, Open, Progress, Recording, Report, Shown, Thread } from "./api.ts";
import { among } from "./colours.ts";
import { counted, exact } from "./format.ts";
import type { State } from "./state.ts";
import type { Selection } from "./strip.ts";

export interface Context {
  open: Open;
  /** Number of the recording among the open ones. */
  number: number;
  recording: Recording;
  report: Report;
  progress: Progress;
  state: State;
  /** The selected time; null: the whole recording. */
  selection: Selection;
  /** The selected time as a range in ns; the whole recording if nothing is selected. */
  range: [number, number];
}

export const threadName = (thread: Thread) =>
  thread.team === "main" || thread.team === "" ? `${thread.name || "thread"} ${thread.tid}` : `${thread.team} ${thread.team_index}`;

/** Threads without later ones that replace them: of threads created anew for every step, the first. */
export const members = (recording: Recording): Thread[] => recording.threads.filter((thread, number) => thread.counts_as === number);

/** Number of threads in words. */
export const createdThreads = (recording: Recording): string => {
  const [all, apart] = [recording.threads.length, members(recording).length];
  return `${counted(apart, "thread")}${apart < all ? ` (${exact(all)} with those that replaced them)` : ""}`;
};

/** Names for the colours of threads; all threads beyond the 63 busiest share a colour. */
export function threadColours(recording: Recording): string[] {
  const names: string[] = Array.from({ length: recording.colours }, () => "");
  recording.threads.forEach((thread, number) => {
    // A thread that replaces an earlier one has the earlier one's colour and name.
    if (thread.counts_as === number) names[thread.slot] = names[thread.slot] === "" ? threadName(thread) : "other threads";
  });
  return names;
}

export const threadColour = (recording: Recording, thread: number) =>
  among(recording.threads[thread]?.slot ?? 0, recording.colours);

/** An object and its number in the whole recording; null if the whole recording does not have the object. */
export interface ObjectAt { row: ObjectRow; shown: Shown; number: number | null }

export const objects = (context: Context): ObjectAt[] =>
  context.report.report.objects.map((row, at) => ({ row, shown: context.report.shown[at], number: context.report.shown[at].number }));

/** A cheap object, kept in columns and turned into a row only when it is shown: there may be a million. */
export class BriefObject implements ObjectAt {
  constructor(private columns: Brief, private at: number, private cost: number) {}

  get number(): number | null {
    return this.columns.number[this.at];
  }

  /** The text that a search matches, made without a row. */
  get searched(): string {
    const { columns, at } = this;
    return `${columns.name[at]}\n${columns.kind[at]}\n${columns.function[at]}`;
  }

  get row(): ObjectRow {
    const { columns, at } = this;
    const known = columns.node_known[at];
    const operations = (count: number, node_known: number) => ({ count, remote: 0, node_known, cost_ns: 0, remote_cost_ns: 0 });
    return {
      name: columns.name[at], kind: columns.kind[at], size_bytes: columns.size_bytes[at], instances: columns.instances[at], call_site: [],
      accesses: columns.loads[at] + columns.stores[at], cost_ns: columns.cost_ns[at], cost_share: columns.cost_ns[at] / this.cost,
      loads: operations(columns.loads[at], known), stores: operations(columns.stores[at], 0), remote: columns.remote[at],
      threads: Object.fromEntries(Array.from({ length: columns.threads[at] }, (_, thread) => [thread, { loads: 0, stores: 0, cost_ns: 0 }])),
      pattern: { kind: "unknown", samples: 0, confidence: null, block_bytes: null, period_bytes: null },
      hot: [{ function: columns.function[at], file: columns.file[at], line: 0, cost_ns: columns.cost_ns[at] }],
    };
  }

  get shown(): Shown {
    const { columns, at } = this;
    return { number: this.number, kind: columns.kind[at], words: "", pattern: { kind: "none" }, strip: [], page_bytes: 4096, pages: 0, instances: [], placeable: false };
  }
}

/** Position of each CPU's node in the machine's list of nodes. */
export function cpuNodes(recording: Recording): Map<number, number> {
  const nodes = new Map<number, number>();
  recording.machine.nodes.forEach((node, position) => node.cpus.forEach((cpu) => nodes.set(cpu, position)));
  return nodes;
}
