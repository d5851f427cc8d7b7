// What is being looked at, all of it in the address: a link reopens the same view.

export type State = Record<string, string>;

export function read(): State {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

function address(state: State): string {
  const kept = Object.entries(state).filter(([, value]) => value !== "");
  return `#${new URLSearchParams(kept)}`;
}

/** An address with these changes to what is being looked at. */
export const link = (changes: State, keep = true) => address(keep ? { ...read(), ...changes } : changes);

/** Goes there: the page is drawn anew, and Back leads here. */
export function go(changes: State, keep = true): void {
  location.hash = link(changes, keep);
}

/** Notes a change that has been drawn already and that Back does not undo, such as a table's order. */
export function note(changes: State): void {
  history.replaceState(null, "", link(changes));
}

// A turn of the wheel is many zooms: Back undoes them together.
const TOGETHER_MS = 700;
let turned = -Infinity;
let joins = false;

/** The next step comes from a wheel. */
export function continues(): void {
  joins = performance.now() - turned < TOGETHER_MS;
  turned = performance.now();
}

/** Notes a change that has been drawn already and that Back undoes: a zoom. */
export function step(changes: State): void {
  if (joins) history.replaceState(null, "", link(changes));
  else history.pushState(null, "", link(changes));
  joins = false;
}

export function number(state: State, name: string): number | null {
  const value = state[name];
  return value === undefined || value === "" || !Number.isFinite(Number(value)) ? null : Number(value);
}
