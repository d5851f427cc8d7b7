// Help on keys and mouse: a line until the reader has used it, and an overlay on "?".

import { h } from "./dom.ts";
import { go, read } from "./state.ts";

const KEYS: [string, [string, string][]][] = [
  ["Everywhere", [
    ["?", "shows or hides this"],
    ["/", "searches objects, functions and patterns"],
    ["Back", "undoes a zoom, a selection or a step to another view"],
    ["Save as file", "the page as one file that opens at this view and needs no server"],
    ["◐", "light or dark"],
  ]],
  ["The strip above the views", [
    ["drag", "selects a time: views, tables and shares are of it alone"],
    ["double click, 0 or Escape", "selects all of the time"],
    ["[ and ]", "begin and end the selection where the arrow keys are"],
  ]],
  ["Pictures", [
    ["drag", "zooms to what is framed; along one axis it keeps the other"],
    ["Shift and drag, Shift and arrows", "pan"],
    ["wheel over the picture in use, + and −", "zoom in and out"],
    ["double click, 0", "show all"],
    ["pointer, arrow keys", "say what is at a place, below the picture"],
    ["click, Enter", "open what is there: an object, or the function behind a dot"],
    ["two fingers", "zoom in and out; one drags; a tap says what is there, and another opens it"],
    ["click on a name below bars or lines", "hides what it stands for, or shows it again"],
    ["PNG, CSV", "save the picture, or its numbers"],
  ]],
  ["Plan", [
    ["Ctrl-Z, Ctrl-Shift-Z", "take a placement back, and have it again"],
  ]],
  ["Tables", [
    ["click on a heading", "sorts by it, and again the other way round"],
    ["CSV", "saves all rows"],
  ]],
];

const SEEN = "nearpage-help-seen";

/** Was the line used before? Files and private windows may have no storage. */
function remembered(): boolean {
  try {
    return localStorage.getItem(SEEN) !== null;
  } catch {
    return false;
  }
}

function remember(): void {
  try {
    localStorage.setItem(SEEN, "1");
  } catch {
    // Without storage, the line appears again next time.
  }
}

const overlay = h("dialog", { id: "help", "aria-label": "keys and mouse" },
  h("form", { method: "dialog" }, h("button", { "aria-label": "close" }, "×")),
  h("div", {}, KEYS.map(([title, keys]) => h("section", {}, h("h3", {}, title), h("dl", {}, keys.map(([key, words]) => [h("dt", {}, key), h("dd", {}, words)]))))));
overlay.addEventListener("click", (event) => {
  if (event.target === overlay) overlay.close();
});

export const hint = h("p", { className: "note", id: "hint" }, h("button", { onclick: () => toggle() }, "?"), " all keys and mouse actions · ", h("b", {}, "/"), " searches · drag over the strip to select a time, over a picture to zoom; Back undoes it");

export function toggle(): void {
  if (overlay.open) overlay.close();
  else overlay.showModal();
  remember();
  hint.remove();
}

/** Focuses the search box, in the view that has one. */
function search(): void {
  const box = document.querySelector<HTMLInputElement>("#search");
  if (box !== null) {
    box.focus();
    box.select();
    return;
  }
  if (document.querySelector("main")?.dataset.searches === "no") return;
  go({ view: "objects", search: "" });
  waiting = true;
}

let waiting = false;

/** Focuses the search box after its view was drawn, if a key had asked for the search. */
export function searchIfAsked(): void {
  if (!waiting || read().view !== "objects") return;
  waiting = false;
  document.querySelector<HTMLInputElement>("#search")?.focus();
}

export function listen(): void {
  document.body.append(overlay);
  if (remembered()) hint.remove();
  document.addEventListener("keydown", (event) => {
    const { target } = event;
    const types = target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
    if (event.ctrlKey || event.altKey || event.metaKey || types) return;
    if (event.key === "?") toggle();
    else if (event.key === "/" && !overlay.open) search();
    else return;
    event.preventDefault();
  });
}
