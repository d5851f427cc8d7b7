// What to look at first: lost time, its causes, the saving that a plan predicts, and warnings about the recording.

import { api, type Costly, type Plan, standalone, type Summary } from "./api.ts";
import { type Context, objects } from "./context.ts";
import { type Child, coded, h } from "./dom.ts";
import { percent, counted, time } from "./format.ts";
import { howSure } from "./plan.ts";
import { link, type State } from "./state.ts";
import { bar } from "./table.ts";

/** A link without the zoom, search and order of other views. */
const to = (changes: State) => link({ instance: "", from: "", to: "", t0: "", t1: "", search: "", sort: "", up: "", ...changes });

export function summaryView(context: Context): HTMLElement {
  const found = h("div", {}, "…");
  const plan = h("div", { id: "saving" }, h("p", {}, "Working out what a plan would save …"));
  api.summary(context.number, context.selection).then((summary) => found.replaceChildren(...facts(context, summary)), (error) => found.replaceChildren(String(error.message)));
  api.plan(context.number).then((answer) => plan.replaceChildren(...saving(answer, context)), (error) =>
    plan.replaceChildren(h("p", {}, `No plan: ${error.message}.`)));
  return h("section", { className: "summary" }, h("h2", {}, "Summary"), found, h("h3", {}, "What placing would save"), plan);
}

function facts(context: Context, summary: Summary): HTMLElement[] {
  const { report, selection } = context;
  const remote = summary.remote_cost_ns;
  const tile = (view: string, figure: string, words: Child) => h("a", { className: "tile", href: to({ view }) }, h("b", {}, figure), h("span", {}, words));
  const found = objects(context);
  const object = (costly: Costly, position: number) => {
    const number = found[position]?.number ?? null;
    return h("li", {},
      bar(costly.cost_share),
      h("b", {}, percent(costly.cost_share)), " ",
      number === null ? costly.name : h("a", { href: to({ view: "object", object: String(number) }) }, costly.name),
      ` ${time(costly.cost_ns)}${costly.remote_cost_ns === null ? "" : `, ${percent(costly.cost_ns > 0 ? costly.remote_cost_ns / costly.cost_ns : 0)} of it remote`}`,
      found[position] === undefined ? null : h("small", {}, ` ${found[position].shown.words}`));
  };
  const code = (costly: Costly) => h("li", {},
    bar(costly.cost_share),
    h("b", {}, percent(costly.cost_share)), " ",
    h("a", { href: to({ view: "objects", search: costly.name }), title: "the objects that it accesses" }, costly.name), ` ${time(costly.cost_ns)} `,
    standalone ? null : h("a", { href: to({ view: "source", function: costly.name, module: "" }), title: "its lines with their cost" }, "source"));
  const warnings = [...summary.warnings, ...(report.report.remedy === undefined ? [] : [{ words: `${sentence(report.report.remedy)}.`, view: "objects" }])];
  return [
    h("div", { className: "tiles" },
      tile("objects", time(summary.cost_ns), `lost to ${counted(summary.accesses, "access")} to memory${summary.memory_share === null ? "" : `; ${percent(summary.memory_share)} of the samples were at one`}`),
      context.recording.machine.nodes.length < 2 ? tile("machine", "none", "lost to remote memory: the machine has one memory node")
        : tile("machine", remote === null ? "not known" : time(remote), remote === null ? "lost to remote memory: pages' nodes were not recorded" : `lost to remote memory, ${percent(summary.cost_ns > 0 ? remote / summary.cost_ns : 0)} of it`)),
    ...(summary.share < 1 ? [h("p", { className: "note" }, `From a sample of ${percent(summary.share)} of the accesses${selection === null ? "" : " in the selected time"}.`)] : []),
    ...(summary.objects.length > 0
      ? [h("h3", {}, "Objects that cost most"), h("ol", { id: "costliest-objects" }, summary.objects.map(object))]
      : [h("p", {}, "No object was accessed, so there is nothing to place.")]),
    ...(summary.functions.length > 0 ? [h("h3", {}, "Functions that cost most"), h("ol", { id: "costliest-functions" }, summary.functions.map(code))] : []),
    ...(warnings.length > 0
      ? [h("h3", {}, "What to know about this recording"), h("ul", { id: "warnings" }, warnings.map(({ words, view }) => h("li", {}, coded(words), " ", h("a", { href: to({ view }) }, view === "space" ? "address space" : view))))]
      : []),
  ];
}

const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

/** The plan's prediction, in the words of the plan's view, and its uncertainty. */
function saving(plan: Plan, context: Context): Element[] {
  const open = h("a", { href: to({ view: "plan" }) }, "plan");
  const placed = plan.objects.filter((object) => object.why !== null);
  const sure = placed.filter((object) => object.confidence !== null);
  const least = sure.reduce((low, object) => Math.min(low, object.confidence ?? 1), 1);
  const one = plan.nodes < 2;
  const lines: Child[][] = [];
  if (one) lines.push([`${plan.machine} has one memory node: no placement changes anything there. `, h("code", {}, "nearpage view --machine NAME"), " shows what a plan would do on another machine."]);
  else if (plan.accesses === 0) lines.push(["The recording has no access that a plan could place."]);
  else if (plan.time !== null) {
    const { first_touch_ns: touched, planned_ns: planned, by } = plan.time;
    const saved = touched > 0 ? 1 - planned / touched : 0;
    lines.push([h("b", {}, saved > 0 ? `${percent(saved)} of the time` : "Nothing"), ` on ${plan.machine}: ${time(planned)} instead of ${time(touched)} under first touch (${by === "replay" ? "every miss replayed" : "modelled with contention"}).${howSure(plan.time)} `, open]);
  } else lines.push([`No time can be predicted. Local accesses on ${plan.machine}: ${percent(plan.first_touch.local_share)} by first touch, ${percent(plan.planned.local_share)} as planned. `, open]);
  if (!one && plan.accesses > 0) {
    lines.push([
      placed.length === 0
        ? "The plan leaves every object to first touch."
        : sure.length > 0
          ? `It places ${counted(placed.length, "object")}; resamples of the recording place ${sure.length === 1 ? "it" : "the least sure one"} the same in ${percent(least)} of the cases.`
          : `It places ${counted(placed.length, "object")}${context.recording.source === "tracer" ? ", from a trace of every miss" : "; how sure that is, is not known"}.`,
    ]);
  }
  if (context.selection !== null) lines.push(["The plan is of the whole recording, whatever time is selected."]);
  return [
    ...lines.map((line) => h("p", {}, line)),
    ...plan.warnings.map((warning) => h("p", { className: "problem" }, `Warning: ${warning}.`)),
    // With one node, the notes would only repeat that there is one.
    ...(one ? [] : plan.notes).map((note) => h("p", { className: "note" }, coded(`${sentence(note)}.`))),
  ];
}
