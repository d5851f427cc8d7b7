// The plan: each decision with its reason and predicted gain, and the effect of other placements.

import { api, type Outcome, type Plan, type Planned, type PlanTime, standalone } from "./api.ts";
import { Chart, named, type Values } from "./chart.ts";
import { few } from "./colours.ts";
import type { Context } from "./context.ts";
import { coded, download, h } from "./dom.ts";
import { bytes, count, percent, time } from "./format.ts";
import { link, note } from "./state.ts";
import { table } from "./table.ts";

const BARS: [keyof Planned & ("first_touch" | "interleave" | "planned"), string, number][] = [
  ["first_touch", "first touch", 7],
  ["interleave", "interleaved", 1],
  ["planned", "as planned", 0],
];
const SHOWN = 20;

/** Changes of placement while the program runs, which the figures leave out. */
function notCounted(plan: Plan): string {
  const parts = [
    ...(plan.phases.length > 0 ? [`what changes when ${plan.phases.map((phase) => phase.function).join(", ")} begin${plan.phases.length === 1 ? "s" : ""}`] : []),
    ...(plan.online_migration !== null ? ["that auto moves pages while the program runs"] : []),
  ];
  return parts.length > 0 ? ` Not counted here: ${parts.join(", and ")}.` : "";
}

/** Where the threads are assumed to run. */
function layout({ threads, threads_of_plan: threadsOfPlan }: Plan): string {
  const words = { "as-recorded": "as recorded", compact: "compact", scatter: "scatter" }[threads.layout];
  const on = threads.nodes_used === 0 ? "" : `, on ${threads.nodes_used} of ${threads.nodes} node${threads.nodes === 1 ? "" : "s"}`;
  return `threads ${words}${threadsOfPlan === null ? "" : " as the plan says"}${threads.why === undefined ? "" : ` (${threads.why})`}${on}`;
}

/** Uncertainty of the predicted time, in sentences; empty if there is none. */
export function howSure({ uncertainty: { change, model, model_less_replay: less, doubt }, planned_ns, first_touch_ns }: PlanTime): string {
  const signed = (share: number) => `${share > 0 ? "+" : ""}${(100 * share).toFixed(1)} %`;
  const words = [
    ...(change !== null && change[1] > change[0] ? [`In nine of ten recordings as long, the change horizontal between ${signed(change[0])} and ${signed(change[1])}.`] : []),
    ...(model !== null && model.pairs > 0 && change !== null && change[1] > change[0] ? [`Nine of ten predictions for such machines are within ${(100 * model.nine_in_ten).toFixed(0)} % of ${model.source === "benchmark" ? "replays" : "what was measured here"}.`] : []),
    ...(less !== null && planned_ns !== first_touch_ns ? [`Without the replay, the model would predict ${signed(less)} of the time more.`] : []),
    ...(doubt === "samples" ? ["It may as well be the other way round."] : doubt === "model" ? ["Most plans with so little to gain lost."] : []),
  ];
  return words.length > 0 ? ` ${words.join(" ")}` : "";
}

/** Effect of the plan on the time. */
function inTime(found: PlanTime): string {
  const instead = (planned: number, touched: number) => time(planned) === time(touched) ? `${time(planned)}, as under first touch` : `${time(planned)} instead of ${time(touched)} under first touch`;
  const scaled = found.runtime_scale > 1 ? `; ${instead(found.scaled_planned_ns, found.scaled_first_touch_ns)} of a run whose parallel part is ${found.runtime_scale} times as long` : "";
  return `Time, ${found.by === "replay" ? "replayed" : "modelled with contention"}: ${instead(found.planned_ns, found.first_touch_ns)}${scaled}.${howSure(found)}`;
}

/** Undo and redo history of each recording's edits, in the address's notation. */
interface Steps { before: string[]; after: string[] }
const steps = new Map<number, Steps>();

/** An object and its number in the plan. */
interface Row { object: Planned; number: number }

/** Placements to choose from for any object, given the number of nodes. */
function choices(plan: Plan): string[] {
  const nodes = Array.from({ length: Math.min(plan.nodes, 8) }, (_, node) => `node:${node}`);
  return ["block", "block-cyclic:64K", "block-cyclic:1M", "interleave", "thread:0", ...nodes, "first-touch"];
}

export function planView(context: Context): HTMLElement {
  const place = h("div", {}, "…");
  const edits = edited(context.state.edits ?? "");
  const { before, after } = steps.get(context.number) ?? { before: [], after: [] };
  steps.set(context.number, { before, after });
  /** Placements by the unedited plan, as far as the server has sent them. */
  const unedited = new Map<number, string>();
  /** The field that was edited last, which shows the error of the edit. */
  let field: HTMLElement | null = null;
  const now = () => (Object.keys(edits).length === 0 ? "" : JSON.stringify(edits));
  const become = (text: string) => {
    for (const key of Object.keys(edits)) delete edits[key];
    Object.assign(edits, edited(text));
    note({ edits: text });
    void ask();
  };
  const change = (make: () => void) => {
    before.push(now());
    after.length = 0;
    make();
    note({ edits: now() });
    void ask();
  };
  const back = (from: string[], to: string[]) => {
    const text = from.pop();
    if (text === undefined) return;
    to.push(now());
    field = null;
    become(text);
  };
  const problem = h("p", { className: "problem", role: "alert" });
  let afresh = false;
  const ask = async (save = false) => {
    try {
      const isChanged = Object.keys(edits).length > 0 || save || afresh;
      const plan = await api.plan(context.number, isChanged ? { placements: edits, save, afresh } : undefined);
      problem.textContent = "";
      field = null;
      place.replaceChildren(...show(plan));
    } catch (error) {
      const said = error instanceof Error ? error.message : String(error);
      // The message goes beside the field, if the field is still shown.
      if (field?.isConnected) {
        field.querySelector(".problem")?.remove();
        field.append(h("span", { className: "problem", role: "alert" }, said));
        // The typed text stays for correction; the plan and the address go back to the state before the edit.
        const text = before.pop() ?? "";
        for (const key of Object.keys(edits)) delete edits[key];
        Object.assign(edits, edited(text));
        note({ edits: text });
      } else problem.textContent = said;
    }
  };
  const show = (plan: Plan): Element[] => {
    const rows = plan.objects.map((object, number) => ({ object, number })).filter(({ object, number }) => object.why !== null || object.cost_share >= 0.001 || edits[number] !== undefined);
    plan.objects.forEach((object, number) => {
      if (edits[number] === undefined) unedited.set(number, object.placement);
    });
    const mean = (outcome: Outcome) => outcome.mean_latency_ns === undefined ? `${(outcome.mean_distance ?? 0).toFixed(0)} in relative distance` : `${outcome.mean_latency_ns.toFixed(0)} ns`;
    const one = plan.nodes < 2;
    return [
      // With one node every placement is equal, so figures would say nothing.
      one ? h("p", { id: "prediction" }, `${plan.machine} has one memory node, where every placement is the same. `, h("code", {}, "nearpage view --machine NAME"), " shows what this plan would do on another machine.") : h("p", { id: "prediction" },
        `On ${plan.machine} (${plan.nodes} node${plan.nodes === 1 ? "" : "s"}), from ${plan.origin}, ${layout(plan)}: local accesses `,
        `by first touch ${percent(plan.first_touch.local_share)}, interleaved ${percent(plan.interleave.local_share)}, `, h("b", {}, `as planned ${percent(plan.planned.local_share)}`),
        `; mean of an access ${mean(plan.first_touch)}, ${mean(plan.interleave)}, `, h("b", {}, mean(plan.planned)), ", uncontended.", notCounted(plan)),
      ...(plan.time === null ? [] : [h("p", { id: "time" }, inTime(plan.time))]),
      ...changed(plan),
      ...plan.warnings.map((warning) => h("p", { className: "problem", role: "alert" }, `Warning: ${warning}.`)),
      ...[...(one ? [] : plan.notes), ...(plan.assumed === undefined ? [] : [`Assumed: ${plan.assumed}`])].map((note) => h("p", { className: "note" }, coded(note))),
      ...(plan.misfits.length > 0 ? [h("ul", { className: "problem" }, plan.misfits.slice(0, 20).map((misfit) => h("li", {}, misfit)))] : []),
      ...(one && rows.length > 0 ? [] : [chart(rows.slice(0, SHOWN).map(({ object }) => object)).element]),
      table({
        name: "plan",
        rows,
        sort: null,
        columns: [
          { title: "object", value: ({ object }) => object.name, cell: ({ object }) => h("a", { href: link({ view: "object", object: String(object.object), instance: "", from: "", to: "", t0: "", t1: "" }) }, object.name) },
          { title: "size", value: ({ object }) => object.size_bytes, cell: ({ object }) => (object.instances > 1 ? `${count(object.instances)} × ` : "") + bytes(object.size_bytes), number: true, minor: true, hint: "of the largest object of this name" },
          { title: "cost", value: ({ object }) => object.cost_share, cell: ({ object }) => percent(object.cost_share), number: true },
          { title: "placement", value: ({ object }) => object.placement, cell: ({ object, number }) => editor(plan, object, number) },
          ...(one ? [] : [
            { title: "first touch", value: ({ object }: Row) => object.first_touch.local_share, cell: ({ object }: Row) => percent(object.first_touch.local_share) + (object.first_touch_assumed ? "*" : ""), number: true, hint: "share of local accesses; * first touch is assumed" },
            { title: "interleaved", value: ({ object }: Row) => object.interleave.local_share, cell: ({ object }: Row) => percent(object.interleave.local_share), number: true, minor: true },
            { title: "planned", value: ({ object }: Row) => object.planned.local_share, cell: ({ object }: Row) => percent(object.planned.local_share), number: true },
          ]),
          ...(rows.some(({ object }) => object.why !== null) ? [{ title: "why", value: ({ object }: Row) => object.why ?? "" }] : []),
        ],
      }),
      h("datalist", { id: "placements" }, choices(plan).map((value) => h("option", { value }))),
      h("p", { className: "tools" },
        standalone ? null : h("button", { id: "save", onclick: () => void ask(true) }, "Save beside the recording"),
        h("button", { onclick: () => download("plan.toml", new Blob([plan.toml], { type: "application/toml" })) }, "Download plan.toml"),
        standalone ? null : [
          h("button", { id: "undo", disabled: before.length === 0, title: "Ctrl-Z", onclick: () => back(before, after) }, "Undo"),
          h("button", { id: "redo", disabled: after.length === 0, title: "Ctrl-Shift-Z", onclick: () => back(after, before) }, "Redo"),
        ],
        Object.keys(edits).length > 0 ? h("button", { id: "undo-all", onclick: () => change(() => { for (const key of Object.keys(edits)) delete edits[key]; }) }, "Undo all edits") : null,
        plan.may_be_decided_afresh && !standalone ? h("button", { id: "afresh", onclick: () => { afresh = true; void ask(); } }, "Decide afresh") : null,
        plan.saved === null ? null : h("span", { role: "status", id: "saved" }, `Saved as ${plan.saved}: nearpage run --plan '${plan.saved}' -- COMMAND`)),
    ];
  };
  /** Placements that edits change, compared with the plan's file or policy. */
  const changed = (plan: Plan): Element[] => {
    const items = Object.entries(edits).flatMap(([number, placement]) => {
      const object = plan.objects[Number(number)];
      const before = unedited.get(Number(number));
      return object === undefined ? [] : [h("li", {}, h("a", { href: link({ view: "object", object: String(object.object), instance: "", from: "", to: "", t0: "", t1: "" }) }, object.name), `: ${before ?? "as decided"} → `, h("b", {}, placement))];
    });
    return items.length === 0 ? [] : [h("h3", {}, `Changed against ${plan.origin}`), h("ul", { id: "changed" }, items)];
  };
  const editor = (plan: Plan, object: Planned, number: number) => {
    if (standalone) return object.placement;
    const set = (placement: string) => {
      field = whole;
      change(() => {
        if (placement === unedited.get(number)) delete edits[number];
        else edits[number] = placement;
      });
    };
    const input = h("input", {
      value: object.placement,
      size: 18,
      list: "placements",
      className: edits[number] === undefined ? "placement" : "placement edited",
      "aria-label": `placement of ${object.name}`,
      onchange: () => set(input.value.trim()),
    });
    const decided = unedited.get(number);
    const offered = [...new Set([...(decided === undefined ? [] : [decided]), ...choices(plan)])];
    const select = h("select", {
      className: "choices",
      "aria-label": `placements for ${object.name}`,
      onchange: () => set(select.value),
    }, h("option", { value: "", selected: !offered.includes(object.placement), disabled: true }, "…"), offered.map((value) => h("option", { value, selected: value === object.placement }, value === decided ? `${value} (as decided)` : value)));
    const whole = h("span", { className: "editor" }, input, select, edits[number] === undefined || decided === undefined ? null : h("span", { className: "note" }, `was ${decided}`));
    return whole;
  };
  const undone = (event: KeyboardEvent) => {
    if (!place.isConnected) {
      document.removeEventListener("keydown", undone);
      return;
    }
    const key = event.key.toLowerCase();
    // Inside a text field, the browser's own undo applies.
    if (event.target instanceof HTMLInputElement || !(event.ctrlKey || event.metaKey) || (key !== "z" && key !== "y")) return;
    event.preventDefault();
    if (key === "y" || event.shiftKey) back(after, before);
    else back(before, after);
  };
  if (!standalone) document.addEventListener("keydown", undone);
  void ask();
  return h(
    "section",
    {},
    h("h2", {}, "Plan"),
    h("p", {}, "Where each object's pages would live. Choose or type another placement to see what it would do: ", h("code", {}, "block"), ", ", h("code", {}, "block-cyclic:1M"), ", ", h("code", {}, "interleave"), ", ", h("code", {}, "thread:2"), ", ", h("code", {}, "node:1"), ", ", h("code", {}, "first-touch"), "."),
    context.selection === null ? null : h("p", { className: "note" }, "The plan is of the whole recording, whatever time is selected."),
    problem,
    place,
  );
}

/** Edited placements by number of the object, from the address's notation. */
function edited(text: string): Record<string, string> {
  if (text === "") return {};
  try {
    const found: unknown = JSON.parse(text);
    if (typeof found === "object" && found !== null) return Object.fromEntries(Object.entries(found).map(([number, placement]) => [number, String(placement)]));
  } catch {
    // The error below reports it.
  }
  throw new Error("the edits in this address can't be read: it was cut short or changed");
}

function chart(rows: Planned[]): Chart {
  return new Chart({
    title: "Local accesses by object",
    height: Math.max(140, 60 + 34 * rows.length),
    left: 200,
    load: (): Values => ({
      kind: "beside",
      horizontal: true,
      series: BARS.map(([key, name]) => ({ name, values: rows.map((row) => row[key].local_share) })),
      colours: () => BARS.map(([, , colour]) => few(colour)),
      parts: named("", rows.map((row) => row.name)),
      measure: { label: "share of accesses to the thread's own node", unit: "share", to: 1 },
      columns: ["object"],
      empty: rows.length === 0 ? "No object of this recording costs enough to be placed: record for longer." : undefined,
      at: (at) => [rows[at].name, ...BARS.map(([key, name]) => `${name} ${percent(rows[at][key].local_share)}`), `${percent(rows[at].cost_share)} of the cost`],
      csv: () => [["object", "cost_share", ...BARS.map(([, name]) => name)], ...rows.map((row) => [row.name, row.cost_share, ...BARS.map(([key]) => row[key].local_share)])],
    }),
  });
}
