// The log of a running or ended daemon, shown again whenever it has grown (ARS §4.2, the runtime window).

import { api, type LiveLog, type LiveProcess, standalone } from "./api.ts";
import { courseChart } from "./course.ts";
import { h } from "./dom.ts";
import { count, exact, percent, time } from "./format.ts";
import { movementsView } from "./movements.ts";
import { note, read } from "./state.ts";
import { table } from "./table.ts";

/** Interval between two requests for the log. */
const LOOK_MS = 1000;

export function liveView(number: number, name: string): HTMLElement {
  const place = h("div", {}, "…");
  const follow = h("input", { type: "checkbox", id: "follow", checked: read().follow !== "0", onchange: () => { note({ follow: follow.checked ? "" : "0" }); void look(); } });
  const status = h("output", { className: "note" });
  const section = h("section", {}, h("h2", {}, `Online: ${name}`), h("p", {}, standalone ? null : h("label", {}, follow, " follow"), " ", status), place);
  let seen: number | null = null;
  let waiting = 0;
  const look = async () => {
    clearTimeout(waiting);
    try {
      const log = await api.log(number, seen);
      if ("result" in log) {
        place.replaceChildren(...show(log, follow.checked && seen !== null));
        seen = log.intervals;
      }
      status.textContent = `${exact(log.intervals)} intervals`;
      if ("problem" in log && log.problem !== null) return;
    } catch (error) {
      place.replaceChildren(h("p", { className: "problem", role: "alert" }, `${name}: ${error instanceof Error ? error.message : error}`));
      return;
    }
    // Stops when another view is shown or "follow" is off.
    if (!standalone && follow.checked && (section.isConnected || seen === null)) waiting = window.setTimeout(() => void (section.isConnected && look()), LOOK_MS);
  };
  void look();
  return section;
}

/** `latest`: the map shows the movements of the last interval instead of the time in the address. */
function show(log: LiveLog, latest: boolean): Element[] {
  const { result } = log;
  const state = read();
  const course = courseChart([result], state.figure ?? "", "time since the daemon began", "");
  const part = result.timeline?.part_ns ?? 1e9;
  const at = latest || state.t === undefined ? { ...state, t: String(Math.round(result.time_ns)), speed: Math.log10(Math.max(part, 1) / 0.6).toFixed(2) } : state;
  return [
    ...(log.problem === null ? [] : [h("p", { className: "problem" }, `The log is followed no longer: ${log.problem}`)]),
    h("p", {}, summary(log)),
    ...(log.estimated.length === 0 ? [] : [h("p", { className: "note" }, `Estimated from samples: ${log.estimated.join(", ")}.`)]),
    ...(log.nodes.some((node, position) => node !== position) ? [h("p", { className: "note" }, `Nodes are numbered by position; the machine's are ${log.nodes.join(", ")}.`)] : []),
    ...(log.latest === null ? [] : [processes(log.latest.processes)]),
    ...(course === null ? [] : [course.element]),
    ...decisions(log),
    ...movementsView([result], at),
  ];
}

function summary(log: LiveLog): string {
  const { latest, decided } = log;
  const parameters = log.parameters.map(([name, value]) => `${name}=${value}`).join(" ");
  const made = Object.entries(decided).filter(([, pages]) => pages > 0).map(([kind, pages]) => `${kind} ${count(pages)}`);
  const now = latest === null ? "nothing yet" : `${count(latest.samples)} samples, ${latest.local_share === null ? "no accesses" : `${percent(latest.local_share)} local`}`;
  return `Policy ${log.policy}${parameters === "" ? "" : ` (${parameters})`}, source ${log.source}. In the last interval: ${now}. Decided so far: ${made.length === 0 ? "nothing" : made.join(", ")}.`;
}

function processes(all: LiveProcess[]): HTMLElement {
  const refused = (process: LiveProcess) => Object.entries(process.outcomes).filter(([reason, pages]) => reason !== "moved" && pages > 0).map(([reason, pages]) => `${pages} ${reason.replaceAll("_", " ")}`).join(", ");
  return table<LiveProcess>({
    name: "processes",
    rows: all,
    sort: null,
    columns: [
      { title: "process", value: ({ pid, name }) => `${pid} ${name}` },
      { title: "local", value: (one) => one.local_per_1000 / 1000, cell: (one) => (one.accesses > 0 ? percent(one.local_per_1000 / 1000) : "–"), number: true },
      { title: "lost to memory", value: (one) => one.lost_per_1000 / 1000, cell: (one) => percent(one.lost_per_1000 / 1000), number: true },
      { title: "accesses seen", value: ({ accesses }) => accesses, number: true },
      { title: "pages requested", value: ({ requested }) => requested, number: true },
      { title: "moved", value: ({ outcomes }) => outcomes.moved ?? 0, number: true },
      { title: "longest call", value: ({ longest_call_ns }) => longest_call_ns, cell: ({ longest_call_ns }) => time(longest_call_ns), number: true },
      { title: "now", value: ({ treated }) => treated },
      { title: "not moved", value: refused },
    ],
  });
}

function decisions({ decisions, intervals }: LiveLog): Element[] {
  if (decisions === null) return [h("p", {}, "Nothing was decided yet.")];
  const ago = intervals - decisions.interval;
  return [
    h("h3", {}, ago === 0 ? "Decided in the last interval" : `Decided ${exact(ago)} interval${ago === 1 ? "" : "s"} ago`),
    h("p", {}, `${exact(decisions.pages)} page${decisions.pages === 1 ? "" : "s"}${decisions.threads.length > 0 ? `, ${exact(decisions.threads.length)} threads` : ""}.`),
    table({
      name: "decisions",
      rows: decisions.such_as,
      sort: null,
      most: 10,
      columns: [
        { title: "page", value: ({ page }) => (page === null ? "gone" : page[1]) },
        { title: "decision", value: ({ kind, node }) => `${kind} to node ${node}` },
        { title: "rule", value: ({ rule }) => rule },
        { title: "accesses by node", value: ({ counts }) => counts.join(" ") },
        { title: "stores", value: ({ stores }) => stores, number: true },
      ],
    }),
  ];
}
