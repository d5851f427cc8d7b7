// Questions to the server and their answers. In a file made by `report --html`, answers stored in the file.

export interface Node_ { id: number; cpus: number[]; memory_bytes?: number }
export interface Machine {
  name: string; page_bytes: number; nodes: Node_[]; weights: number[][];
  /** Devices on the PCI bus; `node` is absent where the firmware does not name a device's node. */
  devices: { kind: string; number: number; pci: string; node?: number }[];
  latency_ns: number[][] | null; links: { from?: number; to?: number; nodes?: number[] }[];
}
export interface Thread { pid: number; tid: number; name: string; team: string; team_index: number; order: number; start: string; slot: number; counts_as: number }
export interface Recording {
  folder: string; command: string[]; source: string; measures_latency: boolean; recorder: string; rate_hz: number; complete: boolean;
  notes: string[]; counts: { samples: number; accesses: number; compute: number; undecoded: number; lost: number };
  damaged_blocks: number; accesses: number; duration_ns: number; line_bytes: number; tick_ns: number;
  space_bytes: number; extents: [number, number, string, number][]; marks: [number, boolean][];
  machine: Machine; threads: Thread[]; colours: number;
  /** Names of functions with a colour of their own; the last entry stands for all other functions. */
  functions: string[];
}
export interface Open {
  version: string; recordings: Recording[]; simulations: string[]; logs: string[]; target: Machine | null;
  plan_file: string | null; missing: string[];
  /** Folder of the job whose ranks the recordings belong to. */
  job: string | null; sweeps: string[];
  /** In a saved file: the address at which the file opens, and the selected time that it covers. */
  saved?: { address: string; selected: [number, number] | null };
}
export interface Progress { share: number; picture_share: number; done: number; all: number; elsewhere: number; missing: string[] }
export interface Call { function: string; file: string; line: number; module: string; offset: number }
export interface Hot { function: string; file: string; line: number; cost_ns: number }
export interface Operations { count: number; remote: number; node_known: number; cost_ns: number; remote_cost_ns: number }
export interface ObjectRow {
  name: string; kind: string; size_bytes: number; instances: number; call_site: Call[]; accesses: number; cost_ns: number;
  cost_share: number; loads: Operations; stores: Operations; remote: number;
  threads: Record<string, { loads: number; stores: number; cost_ns: number }>;
  pattern: { kind: string; samples: number; confidence: number | null; block_bytes: number | null; period_bytes: number | null };
  hot: Hot[];
}
export interface Instance {
  pid: number; address: string; place: number; bytes: number; page_offset: number; born_ns: number;
  died_ns: number | null; thread: number | null; user: number | null;
}
export interface Shown {
  /** Number of the object in the whole recording, independent of the selected time. */
  number: number | null;
  kind: string; words: string; pattern: { kind: string; block_bytes?: number; part_bytes?: [number, number]; threads?: number[] };
  strip: number[]; page_bytes: number; pages: number; instances: Instance[]; placeable: boolean;
}
export interface Report {
  report: {
    accesses: number; compute: number; lost: number; undecoded: number; source: string;
    attribution: Record<string, number>; objects: ObjectRow[];
    threads: { tid: number; name: string; accesses: number; remote: number; node_known: number; cost_ns: number; remote_cost_ns: number; cpus: Record<string, number> }[];
    remedy?: string;
  };
  share: number;
  /** Number of all objects; the report lists only the costliest. */
  objects: number;
  shown: Shown[]; teams: { name: string; pid: number; threads: number[] }[];
}
/** Objects that the report leaves out, column by column. */
export interface Brief {
  number: (number | null)[]; name: string[]; kind: string[]; cost_ns: number[]; loads: number[]; stores: number[]; remote: number[]; node_known: number[];
  size_bytes: number[]; instances: number[]; threads: number[]; function: string[]; file: string[];
}
export interface Matrix {
  from: number; to: number; bins: number; page_bytes: number; threads: number[];
  loads: number[]; stores: number[]; cost_ns: number[]; first_touches: [number, number, number][];
}
export interface Frame { place_from: number; place_to: number; from_ns: number; to_ns: number; columns: number; rows: number }
export interface Picture {
  frame: Frame; coarse: boolean; share: number; totals: number[]; colours: Uint8Array; accesses: Float32Array;
}
export interface Histogram { frame: Frame; coarse: boolean; share: number; slots: number; sums: number[] }
export interface OverTime { frame: Frame; coarse: boolean; share: number; slots: number; sums: number[] }
export interface Costly { name: string; cost_ns: number; cost_share: number; remote_cost_ns: number | null }
export interface Summary {
  samples: number; accesses: number; memory_share: number | null; cost_ns: number; remote_cost_ns: number | null;
  objects: Costly[]; functions: Costly[]; warnings: { words: string; view: string }[]; share: number;
}
export interface Sums { cost_ns: number; remote_cost_ns: number; loads: number; stores: number }
export interface Branch extends Sums {
  level: "all" | "object" | "call-site" | "function" | "line" | "others"; name: string;
  /** Number of the object in the whole recording. */
  object?: number;
  module?: number;
  /** The function that a line belongs to. */
  function?: string;
  branches: Branch[];
}
export interface Flame { all: Branch; left_out: number; share: number }
export interface CodeFunction extends Sums { name: string; module: number | null; module_name: string; file: string }
export interface CodeFunctions { functions: CodeFunction[]; count: number; share: number }
export interface Source { path: string; is_newer: boolean; lines: string[]; costs: [number, Sums][]; function_lines: [number, number] | null }
export interface Instruction extends Sums { address: string; text: string; line: string }
export interface Code { name: string; file: string; source: Source | { missing: string }; instructions: Instruction[] | { missing: string }; share: number }
export interface LineUser { thread: number; loads: number; stores: number; offsets: number[] }
export interface SharedLine { address: string; pid: number; place: number | null; cost_ns: number; is_apart: boolean; threads: LineUser[] }
export interface SharedLines { lines: SharedLine[]; count: number; cost_ns: number; left_out: number; share: number }
export interface Value { samples: number; accesses: number; cost_ns: number; by: [string, [number, number][]][] }
export interface Threads {
  shared: number[][];
  timeline: {
    parts: number; from_ns: number; part_ns: number; cpus: number[][]; traffic: number[][];
    /** By part of the time and node of the memory. `lines`: cache lines known to come from memory or a remote cache. */
    memory: { local: number; remote: number; lines: number }[][];
  };
}
/** `mean_latency_ns` where the machine has latencies, otherwise `mean_distance`, a relative distance. */
export interface Outcome { local_share: number; mean_latency_ns?: number; mean_distance?: number }
export interface Planned {
  name: string; object: number; size_bytes: number; instances: number; accesses: number; cost_share: number; placement: string; why: string | null;
  confidence: number | null; first_touch_assumed: boolean; first_touch: Outcome; interleave: Outcome; planned: Outcome;
}
/** Nodes that the threads are assumed to run on. */
export interface ThreadsAssumed { layout: "as-recorded" | "compact" | "scatter"; why?: string; threads: number; nodes_used: number; nodes: number }
export interface PlanTime {
  by: "replay" | "model"; first_touch_ns: number; planned_ns: number; runtime_scale: number; scaled_first_touch_ns: number; scaled_planned_ns: number;
  uncertainty: Uncertainty;
}
/** Uncertainty of a predicted time: bounds of the change from the number of samples, and the model's error. */
export interface Uncertainty {
  change: [number, number] | null; model: { nine_in_ten: number; pairs: number; source: "benchmark" | "history" } | null;
  model_less_replay: number | null; doubt: "none" | "samples" | "model";
}
export interface Plan {
  machine: string; nodes: number; policy: string; program: string; accesses: number; first_touch: Outcome;
  interleave: Outcome; planned: Outcome; objects: Planned[]; time: PlanTime | null; assumed?: string; threads: ThreadsAssumed;
  threads_of_plan: string | null; phases: { function: string }[]; online_migration: Record<string, number> | null; origin: string;
  may_be_decided_afresh: boolean; misfits: string[]; saved: string | null; warnings: string[]; notes: string[];
  thread_nodes: number[]; toml: string; traffic?: { first_touch: number[][]; planned: number[][] };
}
/** Time in ns, page, kind of movement, home before, and the node that the page or its copy went to. */
export type Movement = [number, number, string, number, number];
export interface Movements {
  page_bytes: number; kept: Movement[]; omitted?: number; pages_omitted?: number;
  /** Names of `omitted` and `pages_omitted` in files of earlier versions. */
  beyond?: number; pages_beyond?: number;
  /** `objects`: first page within the extent, number of pages, name. A nested object follows the object around it. */
  extents: { process: number; address: string; first: string; last: string; objects?: [number, number, string][] }[];
}
export interface Timeline { part_ns: number; parts: number[][] }
export interface Result {
  policy: string; time_ns: number; timeline?: Timeline | null; movements?: Movements | null; [figure: string]: unknown;
}
export interface Simulation { machine: string; recording: string | string[]; threads?: number; results: Result[]; notes?: string[] }
/** Memory use of a rank, a group or a host. */
export interface Use { samples: number; remote_share: number | null; cost_ns: number }
export interface JobRank extends Use {
  rank: number; folder: string; host: string; local_rank: number | null; group: number | null; exit_status: number | null;
  elapsed_ns: number; memory_bytes: number | null; cpus: string | null; memory_nodes: string | null; gpus: string | null;
}
export interface JobGroup extends Use {
  ranks: number[]; difference: string | null; objects: (Use & { name: string; share: number; pattern: string })[];
}
export interface JobNode extends Use { node: number; memory_bytes: number | null }
export interface JobHost extends Use { host: string; ranks: number[]; memory_bytes: number | null; nodes: JobNode[] }
export interface JobReport {
  job: string | null; size: number | null; notes: string[]; rank_notes: { ranks: number[]; note: string }[];
  groups: JobGroup[]; too_few_samples: number[]; ranks: JobRank[]; hosts: JobHost[];
  binding: { kind: string; host: string; ranks: number[]; sentence: string; remedy: string | null }[];
}
/** `opened`: positions of ranks in the report, with the numbers of their recordings. */
export interface Job { report: JobReport; opened: [number, number][] }
export interface SweepRow {
  recording: string; machine: string | null; policy: string; parameters: Record<string, string>; times_first: number | null;
  time_ns: number; parallel_ns: number; misses: number; local_share: number; local_stall_ns: number; remote_stall_ns: number;
  move_ns: number; migrated: number; replicated: number;
}
export interface Sweep { rows: SweepRow[]; status: { cells: number; done: number; failed: { cell: string; cause: string }[] } }
export interface LiveProcess {
  pid: number; name: string; lost_per_1000: number; local_per_1000: number; accesses: number; requested: number;
  outcomes: Record<string, number>; longest_call_ns: number;
  /** How online migration treats the process, in words. */
  treated: string;
}
export interface LiveLog {
  log: string; intervals: number; policy: string; parameters: [string, string][]; nodes: number[]; source: string;
  estimated: string[]; problem: string | null; decided: Record<string, number>;
  latest: { samples: number; local_share: number | null; processes: LiveProcess[] } | null;
  decisions: {
    interval: number; pages: number; threads: unknown[];
    such_as: { page: [number, string] | null; kind: string; node: number; rule: string; counts: number[]; stores: number }[];
  } | null;
  result: Result;
}

/** The file's stored answers by question; null where there is a server. */
const embedded: Record<string, string> | null = (() => {
  const element = document.getElementById("answers");
  return element === null ? null : JSON.parse(element.textContent ?? "{}");
})();

export const standalone = embedded !== null;

// The token that grants access. The first address has it; afterwards local storage keeps it for this origin alone,
// port included. The browser would send a cookie to every other server on 127.0.0.1.
const TOKEN_KEY = "nearpage-token";
const inAddress = /^\/([0-9a-f]{32})\//.exec(location.pathname)?.[1];

function storedToken(): string | null {
  try {
    return localStorage.getItem(TOKEN_KEY);
  } catch {
    return null;
  }
}

const token = inAddress ?? storedToken() ?? "-";

/** Keeps a token that the server has accepted, and replaces it in the address by the name of the recording. */
export function forgetToken(name: string): void {
  if (inAddress === undefined) return;
  try {
    localStorage.setItem(TOKEN_KEY, inAddress);
  } catch {
    // A private window may refuse to store anything: the token stays in the address.
    return;
  }
  const safe = name.split("/").filter((part) => part !== "").pop() ?? "";
  const segment = encodeURIComponent(safe === "" || /^[0-9a-f]{32}$/.test(safe) ? "view" : safe);
  history.replaceState(null, "", `/${segment}/${location.hash}`);
}

async function unpacked(text: string): Promise<ArrayBuffer> {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer();
}

async function ask(question: string, body?: string): Promise<ArrayBuffer> {
  if (embedded !== null) {
    const found = embedded[question];
    if (found === undefined) throw new Error("this is not in the file: open the recording with `nearpage view`");
    return unpacked(found);
  }
  const options = body === undefined ? {} : { method: "POST", body };
  let response;
  try {
    response = await fetch(`/${token}/${question}`, options);
  } catch {
    throw new Error("no answer: has `nearpage view` ended?");
  }
  if (!response.ok) throw new Error(await response.text());
  return response.arrayBuffer();
}

async function json<T>(question: string, body?: string): Promise<T> {
  return JSON.parse(new TextDecoder().decode(await ask(question, body))) as T;
}

const parameters = (values: Record<string, string | number>) =>
  Object.entries(values).map(([name, value]) => `${name}=${encodeURIComponent(typeof value === "number" ? Math.round(value) : value)}`).join("&");

const timed = (path: string, values: Record<string, string | number>, selection: [number, number] | null) =>
  // A file has answers for a single selected time.
  `${path}?${parameters({ ...values, ...(selection === null || standalone ? {} : { since: selection[0], until: selection[1] }) })}`;

const reports = new Map<string, Promise<Report>>();

export const api = {
  open: () => json<Open>("open"),
  progress: (recording: number) => json<Progress>(`progress?recording=${recording}`),
  report(recording: number, share: number, selection: [number, number] | null): Promise<Report> {
    const key = `${recording} ${share} ${selection}`;
    let found = reports.get(key);
    if (found === undefined && reports.size >= 8) reports.delete(reports.keys().next().value ?? "");
    if (found === undefined) reports.set(key, (found = json<Report>(timed("report", { recording }, selection))));
    return found;
  },
  /** Reads all accesses of a selection of which only a sample was read; false if the server did not do so. */
  async exact(recording: number, share: number, selection: [number, number]): Promise<boolean> {
    const is_exact = await json<boolean>(timed("exact", { recording }, selection));
    if (is_exact) reports.delete(`${recording} ${share} ${selection}`);
    return is_exact;
  },
  matrix(recording: number, object: number, pages: number, from: number, to: number, bins: number, selection: [number, number] | null): Promise<Matrix> {
    if (standalone) [from, to, bins] = [0, pages, 256];
    return json<Matrix>(timed("matrix", { recording, object, from, to, bins }, selection));
  },
  /** Bins with any access of colour `first` take this colour. */
  async picture(recording: number, by: string, frame: Frame, first: number | null): Promise<Picture> {
    const query = { recording, by, ...frame, ...(first === null ? {} : { first }) };
    const bytes = standalone ? await embeddedPicture(recording, by, frame) : await ask(`picture?${parameters(query)}`);
    const all = new Uint8Array(bytes);
    const end = all.indexOf(10);
    const head = JSON.parse(new TextDecoder().decode(all.subarray(0, end))) as Omit<Picture, "colours" | "accesses">;
    const bins = head.frame.columns * head.frame.rows;
    return { ...head, colours: all.subarray(end + 1, end + 1 + bins), accesses: new Float32Array(bytes.slice(end + 1 + bins)) };
  },
  histogram(recording: number, by: string, frame: Frame): Promise<Histogram> {
    if (standalone) return json<Histogram>(`histogram?${parameters({ recording, by })}`);
    return json<Histogram>(`histogram?${parameters({ recording, by, ...frame })}`);
  },
  value: (recording: number, frame: Frame) => json<Value>(`value?${parameters({ recording, ...frame })}`),
  threads: (recording: number, selection: [number, number] | null) => json<Threads>(timed("threads", { recording }, selection)),
  summary: (recording: number, selection: [number, number] | null) => json<Summary>(timed("summary", { recording }, selection)),
  objects: (recording: number, selection: [number, number] | null) => json<Brief>(timed("objects", { recording }, selection)),
  object: (recording: number, number: number, selection: [number, number] | null) => json<{ row: ObjectRow; shown: Shown }>(timed("object", { recording, object: number }, selection)),
  flame: (recording: number, selection: [number, number] | null) => json<Flame>(timed("flame", { recording }, selection)),
  functions: (recording: number, selection: [number, number] | null) => json<CodeFunctions>(timed("functions", { recording }, selection)),
  code: (recording: number, name: string, module: number | null, selection: [number, number] | null) =>
    json<Code>(timed("code", { recording, function: name, ...(module === null ? {} : { module }) }, selection)),
  /** The page in one file that opens at `address`. */
  file: (address: string, selection: [number, number] | null) => ask(timed("file", { address }, selection)),
  lines: (recording: number, selection: [number, number] | null) => json<SharedLines>(timed("lines", { recording }, selection)),
  overTime: (recording: number, by: string, columns: number) =>
    json<OverTime>(standalone ? `over-time?${parameters({ recording, by })}` : `over-time?${parameters({ recording, by, columns })}`),
  plan: (recording: number, request?: { placements: Record<string, string>; save: boolean; afresh: boolean }) =>
    json<Plan>(`plan?recording=${recording}`, request === undefined ? undefined : JSON.stringify(request)),
  /** A daemon's whole log; only its number of intervals if the log has not grown beyond `seen`. */
  log: (number: number, seen: number | null) =>
    json<LiveLog | { intervals: number }>(`log?${parameters({ number, ...(seen === null ? {} : { seen }) })}`),
  job: () => json<Job>("job"),
  /** Opens the recording of a rank, by its position in the job's report. */
  rank: (position: number) => json<{ recording: number }>(`rank?${parameters({ position })}`),
  sweep: (number: number) => json<Sweep>(`sweep?number=${number}`),
  simulation: (number: number) => json<Simulation>(`simulation?number=${number}`),
};

/** The file's smallest picture that contains the whole frame. */
async function embeddedPicture(recording: number, by: string, frame: Frame): Promise<ArrayBuffer> {
  let best: [number, string] | null = null;
  for (const question of Object.keys(embedded ?? {})) {
    if (!question.startsWith("picture?")) continue;
    const values = Object.fromEntries(question.slice(8).split("&").map((pair) => pair.split("=")));
    if (Number(values.recording) !== recording || values.by !== by) continue;
    const [place_from, place_to, from_ns, to_ns] = [values.place_from, values.place_to, values.from_ns, values.to_ns].map(Number);
    const has = place_from <= frame.place_from && place_to >= frame.place_to && from_ns <= frame.from_ns && to_ns >= frame.to_ns;
    const size = (place_to - place_from) * (to_ns - from_ns);
    if (has && (best === null || size < best[0])) best = [size, question];
  }
  if (best === null) throw new Error("no picture of this is in the file: open the recording with `nearpage view`");
  return ask(best[1]);
}
