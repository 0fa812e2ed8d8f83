// Attention as pictures: matrices of one hue on canvas, and lines from one token as SVG.

import { unpackBytes } from "./api.js";
import { h, shown, svg } from "./dom.js";

/** How strong a weight is shown: its root, so that small ones are seen too. */
export const strength = (weight) => Math.sqrt(Math.min(Math.max(weight, 0), 1));

/** Matrices of a kind of attention from its 8 bits: {layers, heads, rows, columns, at(layer, head)}, both from 0. */
export function planes({ shape: [layers, heads, rows, columns], u8 }) {
  const bytes = unpackBytes(u8), size = rows * columns;
  const at = (layer, head) => Float32Array.from(bytes.subarray((layer * heads + head) * size, (layer * heads + head + 1) * size), (byte) => byte / 255);
  return { layers, heads, rows, columns, at };
}

/** The same from exact numbers of one layer, of which alone it has matrices. */
export function planesOfLayer({ shape: [heads, rows, columns], values }, layers) {
  const size = rows * columns;
  return { layers, heads, rows, columns, at: (_, head) => values.subarray(head * size, (head + 1) * size) };
}

/** One matrix of several: their mean, or the largest of each place. */
export function combined(all, how) {
  const join = how === "max" ? (place) => Math.max(...all.map((each) => each[place])) : (place) => all.reduce((sum, each) => sum + each[place], 0) / all.length;
  return all[0].map((_, place) => join(place));
}

/** Rows without some columns, the rest of each made to add up to 1 again; of a row that looks nowhere else nothing is left. */
export function without(weights, columns, dropped) {
  const gone = new Set(dropped), kept = weights.map((weight, place) => (gone.has(place % columns) ? 0 : weight));
  for (let start = 0; start < kept.length; start += columns) {
    const row = kept.subarray(start, start + columns), total = row.reduce((sum, each) => sum + each, 0);
    if (total > 0) row.set(row.map((each) => each / total));
  }
  return kept;
}

/** Draws weights, a row of pixels for each token that looks, in the colour that style sheets give the canvas. */
export function draw(canvas, weights, columns) {
  Object.assign(canvas, { width: columns, height: weights.length / columns });
  const context = canvas.getContext("2d"), picture = context.createImageData(canvas.width, canvas.height);
  const [red, green, blue] = getComputedStyle(canvas).color.match(/[\d.]+/g).map(Number);
  weights.forEach((weight, place) => picture.data.set([red, green, blue, Math.round(255 * strength(weight))], 4 * place));
  context.putImageData(picture, 0, 0);
}

/** The ramp with its numbers. */
export function legend() {
  const canvas = h("canvas", { class: "ramp", "aria-hidden": "true" });
  const element = h("p", { class: "dim legend" }, "weight 0 ", canvas, " 1, as strong as its root");
  return { element, redraw: () => draw(canvas, Float32Array.from({ length: 64 }, (_, at) => at / 63), 64) };
}

const LINE = 26, LEFT = 150, RIGHT = 310, WIDTH = 460, LETTERS = 15;
const short = (text) => ([...text].length > LETTERS ? `${[...text].slice(0, LETTERS - 1).join("")}…` : text);

/** Lines from one query to the keys that it looks at, as wide as the weights; those below `least` are left out. */
export function lines(row, queries, keys, chosen, least) {
  const height = LINE * Math.max(queries.length, keys.length), y = (place) => LINE * (place + 0.5);
  const label = (pieces, x, anchor, look) => pieces.map((piece, at) =>
    svg("text", { x, y: y(at) + 5, "text-anchor": anchor, class: look(at) }, svg("title", {}, shown(piece)), short(shown(piece))));
  return svg("svg", { class: "links", viewBox: `0 0 ${WIDTH} ${height}`, width: WIDTH, role: "img",
    "aria-label": `Lines from ${shown(queries[chosen])}; the table has the numbers` },
  Array.from(row, (weight, key) => weight >= least && weight > 0 && svg("path", {
    d: `M${LEFT + 8} ${y(chosen)}L${RIGHT - 8} ${y(key)}`, "stroke-width": (0.8 + 7 * weight).toFixed(2), "stroke-opacity": strength(weight).toFixed(3),
  })),
  label(queries, LEFT, "end", (at) => (at === chosen ? "chosen" : "dim")),
  label(keys, RIGHT, "start", (at) => (row[at] >= least && row[at] > 0 ? "" : "dim")));
}
