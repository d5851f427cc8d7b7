// The page: the address holds all of its state, and each view draws itself.

import { api, forgetToken, type Open, type Progress, standalone } from "./api.ts";
import { paintOn } from "./colours.ts";
import { compareView } from "./compare.ts";
import { type Context, createdThreads } from "./context.ts";
import { download, fileName, h } from "./dom.ts";
import { redrawAll } from "./figure.ts";
import { flameView } from "./flame.ts";
import { hint, listen, searchIfAsked, toggle } from "./help.ts";
import { jobView, openRank } from "./job.ts";
import { liveView } from "./live.ts";
import { count, exact, percent, counted, time } from "./format.ts";
import { machineView } from "./machine.ts";
import { objectView } from "./object.ts";
import { objectsView } from "./objects.ts";
import { planView } from "./plan.ts";
import { simulationView } from "./simulation.ts";
import { sourceView } from "./source.ts";
import { spaceView } from "./space.ts";
import { go, link, number, read, type State } from "./state.ts";
import { selectionOf, strip } from "./strip.ts";
import { summaryView } from "./summary.ts";
import { sweepView } from "./sweep.ts";
import { threadsView } from "./threads.ts";

const VIEWS: Record<string, [string, (context: Context) => HTMLElement]> = {
  summary: ["Summary", summaryView],
  objects: ["Objects", objectsView],
  object: ["Object", objectView],
  flame: ["Flame graph", flameView],
  source: ["Source", sourceView],
  space: ["Address space", spaceView],
  threads: ["Threads", threadsView],
  machine: ["Machine", machineView],
  plan: ["Plan", planView],
  compare: ["Compare", compareView],
};

/** Is the view in the navigation? Not if only other views lead to it, or if a saved file can't show it. */
const isOffered = (name: string, open: Open) => name !== "object" && (name !== "compare" || open.recordings.length > 1) && (name !== "source" || !standalone);

const main = h("main", { id: "main", tabIndex: -1 });
const nav = h("nav", { "aria-label": "views" });
const status = h("div", { id: "status", role: "status" });
const over = h("div", { id: "over" });

/** Name of the view; without one in the address, the view that suits what is open. */
function shown(open: Open, state: State): string {
  if (open.job !== null && !state.view) return "job";
  if (open.recordings.length > 0 || ["simulation", "sweep", "live"].includes(state.view ?? "")) return state.view || "summary";
  if (open.sweeps.length > 0) return "sweep";
  return open.simulations.length > 0 ? "simulation" : "live";
}

function navigation(open: Open): void {
  const state = read();
  const view = shown(open, state);
  const tab = (name: string, words: string, changes: Record<string, string>) =>
    h("a", { href: link({ view: name, recording: state.recording ?? "", theme: state.theme ?? "", ...(VIEWS[name] === undefined ? {} : { since: state.since ?? "", until: state.until ?? "", strip: state.strip ?? "" }), ...changes }, false), "aria-current": view === name && (changes.simulation ?? "") === (state.simulation ?? changes.simulation ?? "") && (changes.log ?? "") === (state.log ?? changes.log ?? "") ? "page" : undefined }, words);
  const select = h("select", { id: "recording", "aria-label": "recording", onchange: () => go({ view: view === "object" ? "objects" : view, recording: select.value, theme: state.theme ?? "" }, false) },
    open.recordings.map((recording, at) => h("option", { value: at, selected: at === (number(state, "recording") ?? 0) }, recording.folder)));
  const theme = h("button", { id: "theme", title: "light or dark", onclick: () => { dress(isDark() ? "light" : "dark"); void draw(open).catch(fail); } }, "◐");
  nav.replaceChildren(
    h("h1", {}, "nearpage"),
    ...(open.job !== null ? [tab("job", "Job", {})] : []),
    ...(open.recordings.length > 1 ? [select] : []),
    ...(open.recordings.length > 0
      ? Object.entries(VIEWS).filter(([name]) => isOffered(name, open)).map(([name, [words]]) => tab(name, words, {}))
      : []),
    ...open.sweeps.map(() => tab("sweep", "Sweep", {})),
    ...open.simulations.map((_, at) => tab("simulation", open.simulations.length > 1 ? `Simulation ${at + 1}` : "Simulation", { simulation: String(at) })),
    ...open.logs.map((_, at) => tab("live", open.logs.length > 1 ? `Online ${at + 1}` : "Online", { log: String(at) })),
    ...(standalone ? [] : [h("button", { id: "save-view", title: "this page as a file that needs no server and opens at this view", onclick: (event: Event) => save(open, event.currentTarget as HTMLButtonElement) }, "Save as file")]),
    h("button", { id: "keys", title: "all keys and mouse actions (?)", onclick: toggle }, "?"),
    theme,
  );
}

/** Names of everything that is open; a job's name instead of its ranks'. */
const names = (open: Open) => [...(open.job !== null ? [open.job] : open.recordings.map((recording) => recording.folder)), ...open.sweeps, ...open.simulations, ...open.logs];

/** Saves the page as one file that opens at the current view and covers the selected time. */
function save(open: Open, button: HTMLButtonElement): void {
  button.disabled = true;
  const state = read();
  const at = Math.min(number(state, "recording") ?? 0, open.recordings.length - 1);
  const selection = open.recordings.length > 0 ? selectionOf(open.recordings[at], number(state, "since"), number(state, "until")) : null;
  const name = names(open)[0] ?? "page";
  api.file(location.hash.slice(1), selection)
    .then((file) => download(`${fileName(name.split("/").pop() ?? name)}-${shown(open, state)}.html`, new Blob([file], { type: "text/html" })), fail)
    .finally(() => { button.disabled = false; });
}

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function dress(theme: string): void {
  if (theme === "") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  repaint();
}

/** Paints all pictures again, in the colours of the current theme. */
function repaint(): void {
  paintOn(isDark() ? "dark" : "light");
  redrawAll();
}

/** Shows problems of a recording, and how much of the recording has been read. */
function tell(open: Open, at: number, progress: Progress): void {
  const recording = open.recordings[at];
  const said: (Node | string)[] = [];
  const line = (text: string, problem = false) => said.push(h("p", { className: problem ? "problem" : "note" }, text));
  if (progress.share < 1 || progress.picture_share < 1) {
    said.push(h("p", {}, h("progress", { max: Math.max(progress.all, 1), value: progress.done }), ` shown from a sample of ${percent(Math.min(progress.share, progress.picture_share))}; reading all ${count(recording.accesses)} accesses: part ${progress.done} of ${progress.all}`));
  }
  if (!recording.complete) line("The recording is incomplete (its recorder was killed, ran out of disk, or is still running): this is what there is.", true);
  if (recording.damaged_blocks > 0) line(`${recording.damaged_blocks} damaged blocks of its log were left out.`, true);
  for (const missing of [...open.missing, ...progress.missing]) line(missing, true);
  if (recording.counts.lost > 0) line(`${exact(recording.counts.lost)} samples were lost.`, true);
  for (const note of recording.notes) line(note);
  const summary = `${recording.command.join(" ") || "a program"}: ${time(recording.duration_ns)} at ${recording.rate_hz > 0 ? `${recording.rate_hz.toFixed(0)} Hz` : "every miss"}, source ${recording.source}, ${counted(recording.accesses, "access")}, ${createdThreads(recording)}, on ${recording.machine.name}`;
  status.replaceChildren(h("details", { open: said.some((child) => child instanceof Element && (child.className === "problem" || child.querySelector("progress") !== null)) }, h("summary", {}, summary), ...said));
}

/** Name of the focused picture; fixed for the strip, whose title changes with the selection. */
const pictureOf = (element: Element | null) =>
  !element?.classList.contains("surface") ? null : element.closest(".whole-time") ? "strip" : element.getAttribute("aria-label");

let drawn = "";
let drawing = 0;
/** What was open when the page was last drawn: recordings of ranks are opened later. */
let latest: Open;

async function draw(open: Open): Promise<void> {
  latest = open;
  const state = read();
  const requested = ++drawing;
  navigation(open);
  if (state.theme) dress(state.theme);
  const name = shown(open, state);
  const alone = (view: HTMLElement) => {
    status.replaceChildren();
    over.replaceChildren();
    main.replaceChildren(view);
  };
  if (name === "job") {
    alone(jobView(open.job ?? ""));
  } else if (name === "rank") {
    alone(h("p", {}, "opening the rank's recording …"));
    await openRank(number(state, "position") ?? 0);
    return draw(await api.open());
  } else if (name === "sweep") {
    alone(sweepView(0, open.sweeps[0] ?? ""));
  } else if (name === "simulation") {
    const at = number(state, "simulation") ?? 0;
    alone(simulationView(at, open.simulations[at] ?? ""));
  } else if (name === "live") {
    const at = number(state, "log") ?? 0;
    alone(liveView(at, open.logs[at] ?? ""));
  } else {
    const at = Math.min(number(state, "recording") ?? 0, open.recordings.length - 1);
    const progress = await api.progress(at);
    tell(open, at, progress);
    const recording = open.recordings[at];
    const selection = open.saved !== undefined ? open.saved.selected : selectionOf(recording, number(state, "since"), number(state, "until"));
    const report = await api.report(at, progress.share, selection);
    if (requested !== drawing) return;
    const isRead = progress.share >= 1;
    const context: Context = { open, number: at, recording, report, progress, state: read(), selection, range: selection ?? [0, recording.duration_ns] };
    const [, view] = VIEWS[name] ?? VIEWS.summary;
    // The focused picture keeps the focus when its view is drawn again.
    const held = pictureOf(document.activeElement);
    over.replaceChildren(strip(at, recording, state.strip, selection).element, report.share < 1 && selection !== null ? h("p", { className: "note sampled" }, `Tables are of a sample of ${percent(report.share)} of the accesses in the selected time${isRead ? "; all of them are being counted" : ""}.`) : "");
    main.replaceChildren(view(context));
    if (held !== null) [...document.querySelectorAll<HTMLElement>(".surface")].find((surface) => pictureOf(surface) === held)?.focus();
    searchIfAsked();
    drawn = `${at} ${progress.share} ${progress.picture_share}`;
    if (!isRead || progress.picture_share < 1) setTimeout(() => void watch(open, at), 700);
    else if (report.share < 1 && selection !== null && !standalone) {
      api.exact(at, progress.share, selection).then((isExact) => (isExact && requested === drawing ? draw(latest) : undefined)).catch(fail);
    }
  }
  main.dataset.view = name;
}

/** While a recording is being read: shows the progress, and draws the view again once more has been read. */
async function watch(open: Open, at: number): Promise<void> {
  if ((number(read(), "recording") ?? 0) !== at || ["job", "simulation", "sweep", "live"].includes(read().view ?? "")) return;
  try {
    const progress = await api.progress(at);
    tell(open, at, progress);
    if (drawn !== `${at} ${progress.share} ${progress.picture_share}`) await draw(await api.open());
    else setTimeout(() => void watch(open, at), 700);
  } catch (error) {
    fail(error);
  }
}

function fail(error: unknown): void {
  main.replaceChildren(h("p", { className: "problem", role: "alert" }, error instanceof Error ? error.message : String(error)));
  main.dataset.view = read().view ?? "summary";
}

async function start(): Promise<void> {
  document.body.append(h("a", { href: "#main", className: "skip", onclick: (event: Event) => { event.preventDefault(); main.focus(); } }, "to the content"), nav, h("section", { "aria-label": "recording and time" }, status, hint, over), main);
  listen();
  repaint();
  const open = await api.open();
  if (standalone) document.body.classList.add("standalone");
  if (open.saved !== undefined && location.hash === "") history.replaceState(null, "", `#${open.saved.address}`);
  forgetToken(names(open)[0] ?? "");
  document.title = `${names(open).join(", ")} – nearpage`;
  window.addEventListener("hashchange", () => draw(latest).catch(fail));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { repaint(); draw(latest).catch(fail); });
  // Printing uses the light theme.
  let worn: string | null = null;
  window.addEventListener("beforeprint", () => {
    // Browsers send the event for the preview and again for the print: the first theme counts.
    worn ??= document.documentElement.dataset.theme ?? "";
    dress("light");
  });
  window.addEventListener("afterprint", () => {
    if (worn !== null) dress(worn);
    worn = null;
  });
  await draw(open);
}

start().catch(fail);
