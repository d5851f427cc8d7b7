// The state of the page, held in the address alone: a link reopens the same view.

export type State = Record<string, string>;

export function read(): State {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

function address(state: State): string {
  const kept = Object.entries(state).filter(([, value]) => value !== "");
  return `#${new URLSearchParams(kept)}`;
}

/** The address with changes to the state. */
export const link = (changes: State, keep = true) => address(keep ? { ...read(), ...changes } : changes);

/** Changes the state and draws the page anew; Back returns to the current state. */
export function go(changes: State, keep = true): void {
  location.hash = link(changes, keep);
}

/** Records a change that is already drawn and that Back does not undo, such as a table's order. */
export function note(changes: State): void {
  history.replaceState(null, "", link(changes));
}

// A turn of the wheel makes many zooms: Back undoes all of them together.
const TOGETHER_MS = 700;
let turned = -Infinity;
let joins = false;

/** Marks the next step as part of the same turn of the wheel, if the last one was recent. */
export function continues(): void {
  joins = performance.now() - turned < TOGETHER_MS;
  turned = performance.now();
}

/** Records a change that is already drawn and that Back undoes, such as a zoom. */
export function step(changes: State): void {
  if (joins) history.replaceState(null, "", link(changes));
  else history.pushState(null, "", link(changes));
  joins = false;
}

export function number(state: State, name: string): number | null {
  const value = state[name];
  return value === undefined || value === "" || !Number.isFinite(Number(value)) ? null : Number(value);
}
