// Attention as pictures: matrices of one hue on canvas, and lines from one token as SVG.

import { unpackBytes } from "./api.js";
import { h, shown, svg } from "./dom.js";

/** How strong a weight is shown: its root, so that small ones are seen too. */
export const strength = (weight) => Math.sqrt(Math.min(Math.max(weight, 0), 1));

/** Matrices of all layers and heads in 8 bits, as a function of both, from 0. */
export function planes({ shape: [, heads, rows, columns], u8 }) {
  const bytes = unpackBytes(u8), size = rows * columns;
  return (layer, head) => {
    const start = (layer * heads + head) * size;
    return Float32Array.from(bytes.subarray(start, start + size), (byte) => byte / 255);
  };
}

/** The same from exact numbers of the heads of one layer. */
export function planesOfLayer({ shape: [, rows, columns], values }) {
  return (_, head) => values.subarray(head * rows * columns, (head + 1) * rows * columns);
}

/** One matrix of several: their mean, or the largest of each place. */
export function combined(all, how) {
  const largest = (place) => all.reduce((most, each) => Math.max(most, each[place]), 0);
  const mean = (place) => all.reduce((sum, each) => sum + each[place], 0) / all.length;
  return all[0].map((_, place) => (how === "max" ? largest : mean)(place));
}

/** Rows without some columns, the rest of each made to add up to 1 again; of a row that looks nowhere else nothing is left. */
export function without(weights, columns, dropped) {
  const kept = weights.map((weight, place) => (dropped.includes(place % columns) ? 0 : weight));
  for (let start = 0; start < kept.length; start += columns) {
    const row = kept.subarray(start, start + columns), total = row.reduce((sum, each) => sum + each, 0);
    if (total > 0) row.set(row.map((each) => each / total));
  }
  return kept;
}

/** A canvas of weights, a row of pixels for each token that looks, in the colour of its style: `redraw` when that has changed. */
export function canvasOf(weights, columns, attributes = {}) {
  const canvas = h("canvas", { width: columns, height: weights.length / columns, ...attributes });
  canvas.redraw = () => {
    const context = canvas.getContext("2d"), picture = context.createImageData(canvas.width, canvas.height);
    const colour = getComputedStyle(canvas).color.match(/[\d.]+/g).slice(0, 3).map(Number);
    weights.forEach((weight, place) => picture.data.set([...colour, Math.round(255 * strength(weight))], 4 * place));
    context.putImageData(picture, 0, 0);
  };
  return canvas;
}

/** Draws all canvases in an element. */
export const redraw = (element) => element.querySelectorAll("canvas").forEach((canvas) => canvas.redraw());

const LINE = 26, LEFT = 150, RIGHT = 310, WIDTH = 460, LETTERS = 15;
const short = (text) => ([...text].length > LETTERS ? `${[...text].slice(0, LETTERS - 1).join("")}…` : text);

/** Lines from one query to the keys that it looks at, as wide as the weights; those below `least` are left out. */
export function lines(row, queries, keys, chosen, least) {
  const y = (place) => LINE * (place + 0.5), drawn = (key) => row[key] >= least && row[key] > 0;
  const label = (pieces, x, anchor, look) => pieces.map((piece, at) =>
    svg("text", { x, y: y(at) + 5, "text-anchor": anchor, class: look(at) }, svg("title", {}, shown(piece)), short(shown(piece))));
  return svg("svg", { class: "links", viewBox: `0 0 ${WIDTH} ${LINE * Math.max(queries.length, keys.length)}`, width: WIDTH, role: "img",
    "aria-label": `Lines from ${shown(queries[chosen])}; the table has the numbers` },
  keys.map((_, key) => drawn(key) && svg("path", {
    d: `M${LEFT + 8} ${y(chosen)}L${RIGHT - 8} ${y(key)}`,
    "stroke-width": (0.8 + 7 * row[key]).toFixed(2), "stroke-opacity": strength(row[key]).toFixed(3),
  })),
  label(queries, LEFT, "end", (at) => (at === chosen ? "chosen" : "dim")),
  label(keys, RIGHT, "start", (at) => (drawn(at) ? "" : "dim")));
}
