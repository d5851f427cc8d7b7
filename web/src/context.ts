// What every view is given.

import type { ObjectRow, Open, Progress, Recording, Report, Shown, Thread } from "./api.ts";
import { among } from "./colours.ts";
import type { State } from "./state.ts";
import type { Selection } from "./strip.ts";

export interface Context {
  open: Open;
  /** Number of the recording, and all about it. */
  number: number;
  recording: Recording;
  report: Report;
  progress: Progress;
  state: State;
  /** The time that was selected; null: all. */
  selection: Selection;
  /** The same as a range. */
  range: [number, number];
}

export const threadName = (thread: Thread) =>
  thread.team === "main" || thread.team === "" ? `${thread.name || "thread"} ${thread.tid}` : `${thread.team} ${thread.team_index}`;

/** Names of the colours of threads: beyond the 63 busiest, one for all. */
export function threadColours(recording: Recording): string[] {
  const names: string[] = Array.from({ length: recording.colours }, () => "");
  for (const thread of recording.threads) names[thread.slot] = names[thread.slot] === "" ? threadName(thread) : "other threads";
  return names;
}

export const threadColour = (recording: Recording, thread: number) =>
  among(recording.threads[thread]?.slot ?? 0, recording.colours);

/** An object, and its number in all of the recording; null where it is not found there. */
export interface ObjectAt { row: ObjectRow; shown: Shown; number: number | null }

export const objects = (context: Context): ObjectAt[] =>
  context.report.report.objects.map((row, at) => ({ row, shown: context.report.shown[at], number: context.report.shown[at].number }));

/** The node of each CPU, by position in the machine's nodes. */
export function cpuNodes(recording: Recording): Map<number, number> {
  const nodes = new Map<number, number>();
  recording.machine.nodes.forEach((node, position) => node.cpus.forEach((cpu) => nodes.set(cpu, position)));
  return nodes;
}
