// Elements. Text enters the page as text nodes only: nothing that anybody typed is ever read as HTML.

import { set } from "./state.js";

const SVG = /^(svg|path|text|title)$/;

export const find = (id) => document.getElementById(id);

/** h("p.dim", {onclick: f}, "text", element, [more]): an element of a class. Names in "--…" are of its style. */
export function h(name, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = SVG.test(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  const attributes = children[0]?.constructor === Object ? children.shift() : {};
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element[name] = value;
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (value != null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  fill(element, children);
  return element;
}

/** Puts children in the place of what an element has. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child != null && child !== false));
  if (element.isConnected) redraw(element);
}

/** Canvases take the colour of their style: they are drawn once they are in the page, and when it changes. */
export const redraw = (element) => element.querySelectorAll("canvas").forEach((canvas) => canvas.draw());

/** The keyboard stays where it was, if what comes has an element of the same id. */
export function refill(element, ...children) {
  const id = element.contains(document.activeElement) && document.activeElement.id;
  fill(element, ...children);
  if (id) find(id)?.focus({ preventScroll: true });
}

/** What a promise brings, or why it brings nothing, unless another has taken its place meanwhile. */
export async function arrive(element, promise) {
  element.awaited = promise;
  element.ariaBusy = "true";
  const found = await promise.catch(({ message }) => h("p.error", message));
  if (element.awaited !== promise) return;
  refill(element, found);
  element.ariaBusy = "false";
}

/** A menu of [value, text] for a name of the state, in the view of a letter. */
export const menu = (label, letter, name, options, chosen) => h("label", `${label} `,
  h("select", { id: `${letter}-${name}`, onchange: ({ target }) => set({ [name]: options[target.selectedIndex][0] }) },
    options.map(([value, text]) => h("option", { selected: value === chosen }, text))));

export const bar = (share) => [h("span.bar", { "--p": share }), ` ${share.toFixed(4)}`];

/** What may be wider than the screen scrolls by itself, by keys too. */
export const wide = (label, ...children) => h("div.wide", { tabindex: 0, role: "region", "aria-label": label }, children);

/** Rows begin with their name; numbers are those cells that are [text]. */
export const table = (caption, heads, rows) => wide(caption, h("table", h("caption", caption),
  h("thead", h("tr", heads.map((head) => h("th", { scope: "col" }, head)))),
  h("tbody", rows.map(([first, ...cells]) => h("tr", h("th", { scope: "row" }, first),
    cells.map((cell) => h(...(Array.isArray(cell) ? ["td.n"] : ["td", { dir: "auto" }]), cell)))))));

/** A piece without the space before it; white space alone as ␣. */
export const shown = (piece) => piece.trim() || "␣".repeat(piece.length || 1);

export const short = (piece, most) => shown(piece).replace(RegExp(`^(.{${most - 1}}).{2,}`, "su"), "$1…");

/** For people: to so many decimals, else to four; whole ones that need none have commas. */
export function number(value, digits) {
  if (!Number.isFinite(value)) return "–";
  if (!digits && Number.isInteger(value)) return value.toLocaleString("en");
  const least = digits ? 1e-4 : 1e-3;
  return value && Math.abs(value) < least ? value.toExponential(digits ? 1 : 2) : value.toFixed(digits ?? 4);
}

/** What the server draws: SVG, MathML or XHTML, which all are XML, where nothing but an element makes an element; none of no text. */
export const drawn = (xml) => xml && document.importNode(new DOMParser().parseFromString(xml, "application/xml").documentElement, true);

/** A table as the server sends it: the numbers of the columns in `shares` have bars, those in `digits` so many decimals. */
export function tableOf({ caption, header, rows, shares, digits = {} }) {
  const numeral = (value, at) => (shares.includes(header[at]) ? bar(value) : [number(value, digits[header[at]])]);
  const cell = (value, at) => (typeof value === "number" ? numeral(value, at) : at ? value : shown(value));
  return table(caption, header, rows.map((cells) => cells.map(cell)));
}

/** A place of an address, from 1, not beyond the last; there may be none, or a word. */
export const within = (place, most, otherwise) => (Number.isInteger(place) ? Math.min(place, most) : otherwise);
