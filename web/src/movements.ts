// ARS's three views of page movements (§4.2): movements as they happen, the sequence of each page's homes, and each
// page's first and last home.

import type { Movement, Movements, Result } from "./api.ts";
import { type Area, toPixels } from "./axis.ts";
import { among, ink } from "./colours.ts";
import { h } from "./dom.ts";
import { bytes, count, exact, percent, time } from "./format.ts";
import { type Picture, Plot } from "./plot.ts";
import { note, number, type State } from "./state.ts";
import { table } from "./table.ts";

const DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+/";
/** Pages shown at once in the picture of homes. */
const ROWS = 24;
/** Homes of a page that fit side by side. */
const HOMES_MAX = 16;
/** Movements listed beside the map, latest first. */
const LISTED = 12;
/** Seconds of playback for which the map keeps showing a movement. */
const TRAIL_S = 0.6;

/** Movements of pages in one result, decoded. */
interface Course {
  movements: Movements;
  kept: Movement[];
  nodes: number;
  first: number[];
  last: number[];
  /** The page's address, with its process where there are several. */
  address(page: number): string;
  /** Name of the object on the page; "" if unknown. */
  object(page: number): string;
  name(page: number): string;
  end: number;
}

const moves = (kind: string) => kind === "migrate" || kind === "interleave" || kind === "collapse";

function course(result: Result, nodes: number): Course | null {
  const { movements } = result;
  if (!movements || !Array.isArray(movements.kept) || !Array.isArray(movements.extents)) return null;
  const homes = (text: string) => [...text].map((digit) => Math.max(0, DIGITS.indexOf(digit)));
  const first = movements.extents.flatMap((extent) => homes(extent.first));
  const last = movements.extents.flatMap((extent) => homes(extent.last));
  const kept = movements.kept.filter(([, page, , from, to]) => page >= 0 && page < first.length && from < nodes && to < nodes);
  const begins: number[] = [];
  let pages = 0;
  for (const extent of movements.extents) {
    begins.push(pages);
    pages += extent.first.length;
  }
  const several = new Set(movements.extents.map((extent) => extent.process)).size > 1;
  const extentOf = (page: number) => {
    let [low, high] = [0, begins.length - 1];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (begins[middle] <= page) low = middle;
      else high = middle - 1;
    }
    return { extent: movements.extents[low], here: page - begins[low] };
  };
  const address = (page: number) => {
    const { extent, here } = extentOf(page);
    const at = (BigInt(extent.address) + BigInt(here) * BigInt(movements.page_bytes)).toString(16);
    return `${several ? `process ${extent.process} ` : ""}0x${at}`;
  };
  const object = (page: number) => {
    const { extent, here } = extentOf(page);
    return (extent.objects ?? []).findLast(([first, pages]) => first <= here && here < first + pages)?.[2] ?? "";
  };
  const name = (page: number) => [address(page), object(page)].filter((text) => text !== "").join(", ");
  return { movements, kept, nodes, first, last, address, object, name, end: Math.max(result.time_ns, kept.at(-1)?.[0] ?? 0, 1) };
}

export function movementsView(results: Result[], state: State): Element[] {
  const nodes = Math.max(1, ...results.map((result) => (Array.isArray(result.controller_load) ? result.controller_load.length : 1)));
  const all = results.map((result) => ({ result, found: course(result, nodes) }));
  const able = all.filter(({ found }) => found !== null);
  if (able.length === 0) return [h("p", { className: "note" }, "Single movements of pages are not in this file: `nearpage simulate --json` keeps them, unless --movements is 0.")];
  const busiest = [...able].sort((a, b) => (b.found?.kept.length ?? 0) - (a.found?.kept.length ?? 0))[0];
  const chosen = able.find(({ result }) => result.policy === state.policy) ?? busiest;
  const place = h("div");
  const select = h("select", {
    id: "policy",
    onchange: () => {
      note({ policy: select.value, t: "", homes: "", from: "", to: "" });
      draw(able[select.selectedIndex], {});
    },
  }, able.map(({ result, found }) => h("option", { value: result.policy, selected: result === chosen.result }, `${result.policy}: ${count(found?.kept.length ?? 0)} movements`)));
  const draw = ({ result, found }: (typeof able)[number], state: State) => {
    if (found === null) return;
    const { movements, kept } = found;
    const omitted = movements.omitted ?? movements.beyond ?? 0;
    const pagesOmitted = movements.pages_omitted ?? movements.pages_beyond ?? 0;
    const missing = [
      omitted > 0 ? `${exact(omitted)} later movements are not in the file (--movements), so homes in between are those of the first ${exact(kept.length)}.` : "",
      pagesOmitted > 0 ? `${exact(pagesOmitted)} pages are not in the file.` : "",
    ].filter((text) => text !== "");
    const some = kept.length > 0;
    place.replaceChildren(
      ...missing.map((text) => h("p", { className: "problem" }, text)),
      ...(some ? [player(found, result.policy, state), homesPlot(found, result.policy, state)] : [h("p", {}, "It moved no page.")]),
      locations(found, result.policy, state),
      crossing(found),
    );
  };
  draw(chosen, state);
  return [h("h3", {}, "What pages did"), h("p", {}, h("label", {}, "policy ", select)), place];
}

// ---- as they happen ----

function player(found: Course, policy: string, state: State): HTMLElement {
  const { kept, nodes, end } = found;
  let now = Math.min(number(state, "t") ?? 0, end);
  // Nanoseconds per second of playback, as a power of ten; by default the whole course takes ten seconds.
  let speed = number(state, "speed") ?? Math.log10(end / 10);
  let playing = 0;
  // Homes of all pages and number of pages per node, after `done` movements.
  const homes = [...found.first];
  const pages = Array.from({ length: nodes }, (_, node) => homes.filter((home) => home === node).length);
  let done = 0;
  const advance = () => {
    if (done > 0 && kept[done - 1][0] > now) {
      homes.splice(0, homes.length, ...found.first);
      for (let node = 0; node < nodes; node += 1) pages[node] = homes.filter((home) => home === node).length;
      done = 0;
    }
    for (; done < kept.length && kept[done][0] <= now; done += 1) {
      const [, page, kind, , to] = kept[done];
      if (!moves(kind)) continue;
      pages[homes[page]] -= 1;
      pages[(homes[page] = to)] += 1;
    }
  };
  const at = (node: number, area: Area): [number, number] => {
    const angle = (2 * Math.PI * node) / nodes - Math.PI / 2 - (nodes === 4 ? Math.PI / 4 : 0);
    // An ellipse, with room at its edges for the nodes' circles.
    return [area.x + area.width * (0.27 + 0.2 * Math.cos(angle)), area.y + area.height / 2 + (area.height / 2 - 44) * Math.sin(angle)];
  };
  const trail = () => 10 ** speed * TRAIL_S;
  const words = ([ns, page, kind, from, to]: Movement) => `${time(ns)}: ${kind} page ${found.name(page)}, node ${from} → node ${to}`;
  const content: Picture = {
    x: { label: "", from: 0, to: 1, unit: "count" },
    y: { label: "", from: 0, to: 1, unit: "count" },
    plain: true,
    step: [0.05, 0.05],
    legend: () => Array.from({ length: nodes }, (_, node) => [`node ${node}`, among(node, nodes)]),
    note: "Circles are nodes, as large as they are home to pages; arrows are the movements of the last moments, as wide as there are many, the most of them with their number. At the right the latest ones.",
    draw(g, area) {
      advance();
      const since = kept.slice(Math.max(0, done - 5000), done).filter(([ns]) => ns > now - trail());
      const between = new Map<string, number>();
      for (const [, , , from, to] of since) if (from !== to) between.set(`${from} ${to}`, (between.get(`${from} ${to}`) ?? 0) + 1);
      g.lineCap = "round";
      // Busiest arrow last, on top of the others; the six busiest show their number.
      [...between].sort((a, b) => a[1] - b[1]).forEach(([key, moved], position) => {
        const [from, to] = key.split(" ").map(Number);
        arrow(g, at(from, area), at(to, area), 1 + 1.5 * Math.log2(1 + moved), among(to, nodes), 40, between.size - position <= 6 ? String(moved) : "");
      });
      const whole = found.first.length || 1;
      for (let node = 0; node < nodes; node += 1) {
        const [x, y] = at(node, area);
        g.fillStyle = among(node, nodes);
        g.strokeStyle = ink("--ink");
        g.lineWidth = 1;
        g.beginPath();
        g.arc(x, y, 22 + 20 * Math.sqrt(pages[node] / whole), 0, 2 * Math.PI);
        g.fill();
        g.stroke();
        plate(g, x, y, [`node ${node}`, `${count(pages[node])} pages`]);
      }
      // Each item is an arrow between two circles, as in ARS.
      const left = area.x + area.width * 0.56;
      g.textAlign = "left";
      g.textBaseline = "middle";
      g.font = "12px system-ui, sans-serif";
      kept.slice(Math.max(0, done - LISTED), done).reverse().forEach(([ns, page, kind, from, to], line) => {
        const y = area.y + 14 + (line * (area.height - 20)) / LISTED;
        for (const [node, x] of [[from, left], [to, left + 50]] as const) {
          g.fillStyle = among(node, nodes);
          g.beginPath();
          g.arc(x, y, 7, 0, 2 * Math.PI);
          g.fill();
        }
        arrow(g, [left + 7, y], [left + 43, y], 1.5, ink("--ink"), 0, "");
        g.fillStyle = ink("--ink");
        g.fillText(`${kind} ${found.name(page)}, ${from} → ${to}, at ${time(ns)}`, left + 66, y, area.x + area.width - left - 68);
      });
    },
    at(x, y) {
      advance();
      // The right half lists single movements.
      if (x > 0.53) {
        const movement = kept.slice(Math.max(0, done - LISTED), done).reverse()[Math.floor(y * LISTED)];
        return movement === undefined ? ["no movement yet"] : [words(movement)];
      }
      const area = { x: 0, y: 0, width: 1000, height: 300 };
      const distance = (node: number) => Math.hypot(at(node, area)[0] - x * area.width, at(node, area)[1] - y * area.height);
      const node = Array.from({ length: nodes }, (_, node) => node).sort((a, b) => distance(a) - distance(b))[0];
      const came = kept.slice(0, done).filter(([, , , from, to]) => to === node && from !== to).length;
      const went = kept.slice(0, done).filter(([, , kind, from, to]) => from === node && from !== to && moves(kind)).length;
      return [`node ${node} at ${time(now)}`, `home to ${exact(pages[node])} of ${exact(found.first.length)} pages`, `${exact(came)} movements to it so far, ${exact(went)} away`];
    },
    csv: () => [["time_ns", "page", "address", "object", "what", "from_node", "to_node"], ...kept.map(([ns, page, kind, from, to]) => [ns, page, found.address(page), found.object(page), kind, from, to])],
  };
  const clock = h("output", { id: "clock" });
  const slider = h("input", { type: "range", id: "when", min: "0", max: "10000", "aria-label": "time", oninput: () => { now = (end * Number(slider.value)) / 10_000; show(); settle(); } });
  const rate = h("output", { id: "rate" });
  const pace = h("input", { type: "range", id: "speed", min: "0", max: "10.5", step: "0.1", value: String(speed), "aria-label": "speed", oninput: () => { speed = Number(pace.value); show(); settle(); } });
  const button = h("button", { id: "play", onclick: () => (playing === 0 ? play() : pause()) }, "Play");
  const plot = new Plot({ title: `${policy}: movements as they happen`, height: 400, left: 12, load: () => content });
  const show = () => {
    clock.textContent = `${time(now)} of ${time(end)}`;
    rate.textContent = `${time(10 ** speed)} in a second`;
    slider.value = String(Math.round((10_000 * now) / end));
    plot.draw();
  };
  const settle = () => note({ t: String(Math.round(now)), speed: speed.toFixed(2) });
  const pause = () => {
    cancelAnimationFrame(playing);
    playing = 0;
    button.textContent = "Play";
    settle();
  };
  const play = () => {
    if (now >= end) now = 0;
    button.textContent = "Pause";
    let before: number | null = null;
    const step = (stamp: number) => {
      // Stops when another view is shown.
      if (!button.isConnected) return;
      now = Math.min(end, now + ((stamp - (before ?? stamp)) / 1000) * 10 ** speed);
      before = stamp;
      show();
      if (now >= end) pause();
      else playing = requestAnimationFrame(step);
    };
    playing = requestAnimationFrame(step);
  };
  // Jumps to the next or the previous movement.
  const jump = (forward: boolean) => {
    const times = kept.map(([ns]) => ns);
    const next = forward ? times.find((ns) => ns > now) : times.findLast((ns) => ns < now);
    now = next ?? (forward ? end : 0);
    show();
    settle();
  };
  show();
  return h("div", { className: "player" }, plot.element,
    h("p", { className: "tools" }, button,
      h("button", { onclick: () => jump(false), title: "to the movement before" }, "◀"),
      h("button", { onclick: () => jump(true), title: "to the next movement" }, "▶"),
      slider, clock, h("label", {}, "speed ", pace), rate));
}

function arrow(g: CanvasRenderingContext2D, [x0, y0]: [number, number], [x1, y1]: [number, number], width: number, colour: string, ends: number, label: string): void {
  const length = Math.hypot(x1 - x0, y1 - y0) || 1;
  const [dx, dy] = [(x1 - x0) / length, (y1 - y0) / length];
  // The arrows of both directions run side by side, and end at the edges of the circles.
  const aside = ends > 0 ? 7 : 0;
  const head = 6 + width;
  const from = [x0 + dx * ends - dy * aside, y0 + dy * ends + dx * aside];
  const to = [x1 - dx * ends - dy * aside, y1 - dy * ends + dx * aside];
  g.strokeStyle = g.fillStyle = colour;
  g.lineWidth = width;
  g.beginPath();
  g.moveTo(from[0], from[1]);
  g.lineTo(to[0] - dx * head, to[1] - dy * head);
  g.stroke();
  g.lineWidth = 1;
  g.beginPath();
  g.moveTo(to[0], to[1]);
  g.lineTo(to[0] - dx * head - (dy * head) / 2, to[1] - dy * head + (dx * head) / 2);
  g.lineTo(to[0] - dx * head + (dy * head) / 2, to[1] - dy * head - (dx * head) / 2);
  g.fill();
  if (label !== "") plate(g, from[0] + (to[0] - from[0]) * 0.35, from[1] + (to[1] - from[1]) * 0.35, [label]);
}

/** Text on a plate of the background's colour, readable on any picture. */
function plate(g: CanvasRenderingContext2D, x: number, y: number, lines: string[]): void {
  g.font = "12px system-ui, sans-serif";
  g.textAlign = "center";
  g.textBaseline = "middle";
  const width = Math.max(...lines.map((line) => g.measureText(line).width)) + 8;
  g.fillStyle = ink("--paper");
  g.globalAlpha = 0.85;
  g.fillRect(x - width / 2, y - 8 * lines.length, width, 16 * lines.length);
  g.globalAlpha = 1;
  g.fillStyle = ink("--ink");
  lines.forEach((line, at) => g.fillText(line, x, y + (at - (lines.length - 1) / 2) * 15));
}

// ---- homes ----

/** The homes of each page that moved, in order of time. Pages that moved back and forth most often come first. */
function histories(found: Course): { page: number; homes: number[]; back: number }[] {
  const homes = new Map<number, number[]>();
  for (const [, page, kind, , to] of found.kept) {
    if (!moves(kind)) continue;
    const known = homes.get(page) ?? [found.first[page]];
    if (known.at(-1) !== to) known.push(to);
    homes.set(page, known);
  }
  return [...homes]
    .filter(([, nodes]) => nodes.length > 1)
    .map(([page, nodes]) => ({ page, homes: nodes, back: nodes.filter((node, at) => nodes[at - 2] === node).length }))
    .sort((a, b) => b.back - a.back || b.homes.length - a.homes.length || a.page - b.page);
}

function homesPlot(found: Course, policy: string, state: State): HTMLElement {
  const all = histories(found);
  if (all.length === 0) return h("p", {}, "No page changed its home.");
  const last = Math.floor((all.length - 1) / ROWS) * ROWS;
  let first = Math.min(Math.max(0, Math.floor((number(state, "homes") ?? 0) / ROWS) * ROWS), last);
  const where = h("span");
  const turn = (to: number) => {
    first = Math.min(Math.max(0, to), last);
    note({ homes: first === 0 ? "" : String(first) });
    void plot.refresh();
  };
  const back = all.filter(({ back }) => back > 0).length;
  const plot: Plot = new Plot({
    title: `${policy}: homes that each page has had`,
    height: 60 + 17 * Math.min(all.length, ROWS) + 8,
    left: 170,
    controls: h("span", { className: "tools" },
      h("button", { onclick: () => turn(first - ROWS), title: "pages before" }, "◀"), where, h("button", { onclick: () => turn(first + ROWS), title: "next pages", id: "next-homes" }, "▶")),
    load() {
      const rows = all.slice(first, first + ROWS);
      where.textContent = `pages ${exact(first + 1)} to ${exact(first + rows.length)} of ${exact(all.length)}`;
      const columns = Math.min(HOMES_MAX, Math.max(2, ...rows.map(({ homes }) => homes.length)));
      const content: Picture = {
        x: { label: "home: the first, and each after a movement", from: 0, to: columns, unit: "names", names: Array.from({ length: columns }, (_, at) => (at === 0 ? "first" : String(at + 1))) },
        y: { label: "", from: 0, to: rows.length, unit: "names", names: rows.map(({ page }) => found.name(page)) },
        step: [1, 1],
        legend: () => [...Array.from({ length: found.nodes }, (_, node): [string, string] => [`node ${node}`, among(node, found.nodes)]), ["↩ back to where it came from: a ping-pong", ink("--paper")]],
        note: `${exact(all.length)} pages moved, ${exact(back)} of them came back to the node that they had come from. Those stand first.${rows.some(({ homes }) => homes.length > columns) ? ` Of more than ${columns} homes the first ${columns} are drawn.` : ""}`,
        draw(g, area) {
          rows.forEach(({ homes }, line) => {
            homes.slice(0, columns).forEach((node, at) => {
              const [left, top] = toPixels(content, area, [at, line]);
              const [right, bottom] = toPixels(content, area, [at + 1, line + 1]);
              g.fillStyle = among(node, found.nodes);
              g.fillRect(left + 1, top + 1, right - left - 2, bottom - top - 2);
              const pingPong = homes[at - 2] === node;
              if (right - left > 34) plate(g, (left + right) / 2, (top + bottom) / 2, [pingPong ? `↩ ${node}` : String(node)]);
              if (pingPong) {
                g.strokeStyle = ink("--ink");
                g.lineWidth = 2;
                g.strokeRect(left + 2, top + 2, right - left - 4, bottom - top - 4);
                g.lineWidth = 1;
              }
            });
          });
        },
        at(x, y) {
          const { page, homes, back } = rows[Math.floor(y)];
          const at = Math.floor(x);
          return [
            `page ${found.name(page)}`,
            at < homes.length ? `home ${at + 1} is node ${homes[at]}${homes[at - 2] === homes[at] ? ", where it came from" : ""}` : "it had no more homes",
            `${homes.length} homes: ${homes.slice(0, 40).join(" → ")}${homes.length > 40 ? " …" : ""}`,
            `${back} ping-pong${back === 1 ? "" : "s"}`,
          ];
        },
        csv: () => [["page", "address", "object", "ping_pongs", "homes"], ...all.map(({ page, homes, back }) => [page, found.address(page), found.object(page), back, homes.join(" ")])],
      };
      return content;
    },
  });
  return plot.element;
}

// ---- first against last ----

function locations(found: Course, policy: string, state: State): HTMLElement {
  const { first, last } = found;
  const pages = Math.max(first.length, 1);
  let [from, to] = [Math.max(0, number(state, "from") ?? 0), Math.min(pages, number(state, "to") ?? pages)];
  const plot: Plot = new Plot({
    title: `${policy}: first and last home of each page`,
    height: 190,
    left: 96,
    zoom(x) {
      const width = Math.min(Math.max(x === null ? pages : x[1] - x[0], 4), pages);
      const begin = x === null ? 0 : Math.min(Math.max(x[0], 0), pages - width);
      [from, to] = [begin, begin + width];
      note({ from: x === null ? "" : String(Math.round(from)), to: x === null ? "" : String(Math.round(to)) });
      void plot.refresh();
    },
    load(width) {
      const begin = Math.floor(from);
      const end = Math.min(Math.ceil(to), pages);
      const column = Math.max(1, Math.ceil((end - begin) / Math.max(width, 1)));
      const changed = last.filter((node, page) => node !== first[page]).length;
      const most = (homes: number[], at: number) => {
        const counts = new Map<number, number>();
        for (let page = at; page < Math.min(at + column, end); page += 1) counts.set(homes[page], (counts.get(homes[page]) ?? 0) + 1);
        return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0];
      };
      const content: Picture = {
        x: { label: `page of ${bytes(found.movements.page_bytes)}, in order of address`, from, to, unit: "pages" },
        y: { label: "", from: 0, to: 3, unit: "names", names: ["first", "last", "changed"] },
        step: [column, 1],
        legend: () => [...Array.from({ length: found.nodes }, (_, node): [string, string] => [`node ${node}`, among(node, found.nodes)]), ["changed", ink("--ink")]],
        note: `${exact(changed)} of ${exact(first.length)} pages (${percent(first.length > 0 ? changed / first.length : 0)}) ended on another node than they were on at first.${column > 1 ? ` A column is ${column} pages, in the colour of most of them.` : ""}`,
        draw(g, area) {
          for (let at = begin; at < end; at += column) {
            const left = toPixels(content, area, [at, 0])[0];
            const right = toPixels(content, area, [Math.min(at + column, end), 0])[0];
            [first, last].forEach((homes, line) => {
              const node = most(homes, at);
              if (node === undefined) return;
              const top = toPixels(content, area, [0, line + 0.06])[1];
              const bottom = toPixels(content, area, [0, line + 0.94])[1];
              g.fillStyle = among(node, found.nodes);
              g.fillRect(left, top, Math.max(right - left, 0.7) + 0.3, bottom - top);
            });
            let moved = 0;
            for (let page = at; page < Math.min(at + column, end); page += 1) moved += Number(first[page] !== last[page]);
            if (moved === 0) continue;
            const bottom = toPixels(content, area, [0, 2.94])[1];
            const top = toPixels(content, area, [0, 2.94 - (0.8 * moved) / column])[1];
            g.fillStyle = ink("--ink");
            g.fillRect(left, top, Math.max(right - left, 0.7) + 0.3, bottom - top);
          }
        },
        at(x) {
          const page = Math.min(Math.floor(x), first.length - 1);
          const moved = found.kept.filter(([, moved]) => moved === page).length;
          return [`page ${exact(page)}: ${found.name(page)}`, `first on node ${first[page]}, last on node ${last[page]}`, `${exact(moved)} movement${moved === 1 ? "" : "s"}`];
        },
        csv: () => [["page", "address", "object", "first_node", "last_node"], ...first.map((node, page) => [page, found.address(page), found.object(page), node, last[page]])],
      };
      return content;
    },
  });
  return plot.element;
}

interface From { row: number[]; node: number }

/** Number of pages by first and last home. */
function crossing(found: Course): HTMLElement {
  const counts = Array.from({ length: found.nodes }, () => Array.from({ length: found.nodes }, () => 0));
  found.first.forEach((node, page) => { if (node < found.nodes && found.last[page] < found.nodes) counts[node][found.last[page]] += 1; });
  return table({
    name: "pages by first and last home",
    rows: counts.map((row, node): From => ({ row, node })),
    sort: null,
    columns: [
      { title: "first home", value: ({ node }: From) => `node ${node}` },
      ...counts.map((_, to) => ({ title: `last on node ${to}`, value: ({ row }: From) => row[to], number: true })),
    ],
  });
}
