// Elements. Text enters the page as text nodes only: nothing that anybody typed is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** h("p", {class: "dim", onclick: f}, "text", element, [more]): an element. Names in "on…" listen, "--…" are style properties. */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/** Puts children in the place of what an element has. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child != null && child !== false));
}

/** The same; the keyboard stays where it was, if what comes has an element of the same id. */
export function refill(element, ...children) {
  const id = element.contains(document.activeElement) && document.activeElement.id;
  fill(element, ...children);
  if (id) document.getElementById(id)?.focus({ preventScroll: true });
}

/** A labelled menu of [value, text]; `choose` gets the value. */
export function menu(label, id, options, chosen, choose) {
  return h("label", {}, `${label} `, h("select", { id, onchange: ({ target }) => choose(options[target.selectedIndex][0]) },
    options.map(([value, text]) => h("option", { selected: value === chosen }, text))));
}

/** A share between 0 and 1 as a bar, before its number. */
export const bar = (share, digits = 4) => [h("span", { class: "bar", "--p": share.toFixed(3) }), ` ${share.toFixed(digits)}`];

/** A table: a caption, names of columns, rows whose first cell names them. Numbers are those cells that are [text] in an array. */
export function table(caption, heads, rows, attributes = {}) {
  const cell = (value) => (Array.isArray(value) ? h("td", { class: "n" }, ...value) : h("td", { dir: "auto" }, value));
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    h("table", attributes,
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map(([first, ...cells]) => h("tr", {}, h("th", { scope: "row" }, first), cells.map(cell))))));
}

/** A piece as it is shown: without the space before it; white space alone as ␣. */
export function shown(piece) {
  return piece.trim() || "␣".repeat(Math.max(piece.length, 1));
}

/** A number for people: to so many decimals; without them whole ones with commas, and others to four. */
export function number(value, digits) {
  if (!Number.isFinite(value)) return "–";
  if (digits === undefined && Number.isInteger(value)) return value.toLocaleString("en");
  return value === 0 || Math.abs(value) >= 1e-4 ? value.toFixed(digits ?? 4) : value.toExponential(1);
}
