// Attention as pictures: matrices of one hue on canvas, and lines from one token as SVG.

import { unpackBytes } from "./api.js";
import { h, short, shown } from "./dom.js";

/** The root, so that small weights are seen too. */
const strength = (weight) => Math.sqrt(Math.min(Math.max(weight, 0), 1));

/** Matrices by layer and head, from 0: of all layers in 8 bits, or of one layer in exact numbers. */
export function planes({ shape, u8, values = Float32Array.from(unpackBytes(u8), (byte) => byte / 255) }) {
  const [heads, rows, columns] = shape.slice(-3), size = rows * columns;
  return (layer, head) => {
    const start = (shape.length > 3 ? layer * heads + head : head) * size;
    return values.subarray(start, start + size);
  };
}

/** One matrix of several: their mean, or the largest of each place. */
export function combined(all, how) {
  const join = how === "max" ? Math.max : (total, each) => total + each / all.length;
  return all[0].map((_, place) => all.reduce((joined, each) => join(joined, each[place]), 0));
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

/** A row of pixels for each token that looks. */
export function canvasOf(name, weights, columns, attributes = { "aria-hidden": "true" }) {
  const canvas = h(name, { width: columns, height: weights.length / columns, ...attributes });
  canvas.draw = () => {
    const context = canvas.getContext("2d"), picture = context.createImageData(canvas.width, canvas.height);
    const colour = getComputedStyle(canvas).color.match(/[\d.]+/g).slice(0, 3);
    weights.forEach((weight, place) => picture.data.set([...colour, Math.round(255 * strength(weight))], 4 * place));
    context.putImageData(picture, 0, 0);
  };
  return canvas;
}

const LINE = 26, LEFT = 150, RIGHT = 310, WIDTH = 460, LETTERS = 15;

/** Lines are as wide as the weights; those below `least` are left out. */
export function lines(row, queries, keys, chosen, least) {
  const y = (place) => LINE * (place + 0.5), drawn = (key) => row[key] >= least && row[key] > 0;
  const label = (pieces, x, anchor, look) => pieces.map((piece, at) =>
    h("text", { x, y: y(at) + 5, "text-anchor": anchor, class: look(at) }, h("title", shown(piece)), short(piece, LETTERS)));
  return h("svg.links", {
    viewBox: `0 0 ${WIDTH} ${LINE * Math.max(queries.length, keys.length)}`, width: WIDTH, role: "img",
    "aria-label": `Lines from ${shown(queries[chosen])}; the table has the numbers`,
  },
  keys.map((_, key) => drawn(key) && h("path", {
    d: `M${LEFT + 8} ${y(chosen)}L${RIGHT - 8} ${y(key)}`, "stroke-width": 0.8 + 7 * row[key], "stroke-opacity": strength(row[key]),
  })),
  label(queries, LEFT, "end", (at) => (at === chosen ? "chosen" : "dim")),
  label(keys, RIGHT, "start", (at) => (drawn(at) ? "" : "dim")));
}
