// Attention: where every head of every layer looks, one head in large, and one token's row in numbers.

import { slice } from "./api.js";
import { fill, h, shown, table } from "./dom.js";
import { combined, draw, legend, lines, planes, planesOfLayer, without } from "./matrix.js";

const NAMES = { encoder: "the text at itself", decoder: "the translation at itself", cross: "the translation at the text" };
const MANY = 64; // pieces; of longer texts one kind and one layer are asked for
const part = {};
let store, ramp, redraw = () => {}, shownFor = null, least = 0.05, drop = false;

export const view = {
  name: "attention",

  mount(section, itsStore) {
    store = itsStore;
    ramp = legend();
    part.controls = h("div", {});
    part.body = h("div", {});
    part.notes = h("p", { class: "dim" },
      "Attention shows where numbers come from. That is no proof of why the model says what it says. ",
      "In the last layer the attention to the text is often shifted by one token: what is looked at there belongs to the token before or behind.");
    section.append(part.controls, part.body, part.notes);
  },

  show(state) {
    const place = placeOf(state);
    const asked = JSON.stringify([place, drop]);
    if (part.explanation === state.explanation && shownFor === asked) {
      if (part.theme !== state.theme) redraw();
      part.theme = state.theme;
      return;
    }
    Object.assign(part, { explanation: state.explanation, theme: state.theme });
    shownFor = asked;
    controls(place, state.explanation);
    showPlace(state.explanation, place, asked);
  },
};

const clamped = (value, most, otherwise) => (Number.isInteger(value) ? Math.min(Math.max(value, 1), most) : otherwise);

/** What is looked at: kind, layer, head and row from 1, with the pieces of rows and columns. What is not chosen is chosen here. */
export function placeOf({ explanation, kind: wanted, layer, head, token, target }) {
  const { model, source, target: said, read } = explanation;
  const kinds = Object.keys(model.layers), kind = kinds.includes(wanted) ? wanted : kinds.at(-1);
  const layers = model.layers[kind], queries = { encoder: source.pieces, decoder: read, cross: said.pieces }[kind];
  const keys = kind === "decoder" ? read : source.pieces;
  return {
    kind, kinds, layers, queries, keys, layer: clamped(layer, layers, Math.max(layers - 1, 1)),
    head: ["mean", "max"].includes(head) ? head : clamped(head, model.heads, "mean"), heads: model.heads,
    row: clamped(kind === "encoder" ? token : target, queries.length, 1),
    ends: kind === "decoder" ? [0] : explanation.candidates ? [keys.length - 1] : [0, keys.length - 1], // where heads rest that look for nothing
  };
}

/** Keeps the place of the keyboard when elements are made anew. */
function again(make, ...given) {
  const id = document.activeElement?.id;
  make(...given);
  if (id?.startsWith("attention-")) document.getElementById(id)?.focus();
}

const menu = (label, name, options, value) => h("label", {}, `${label} `,
  h("select", { id: `attention-${name}`, onchange: ({ target }) => store.set({ [name]: Number(target.value) || target.value }) },
    options.map(([each, text]) => h("option", { value: each, selected: each === value }, text))));

const counted = (count, word) => Array.from({ length: count }, (_, at) => [at + 1, `${word} ${at + 1}`]);

function controls(place, explanation) {
  const ends = [...new Set(place.ends.map((at) => place.keys[at]))].join(" and ");
  const single = !explanation.candidates;
  again(fill, part.controls,
    h("fieldset", { class: "row" }, h("legend", {}, "Who looks at what"), place.kinds.map((kind) => h("label", {},
      h("input", { type: "radio", name: "kind", id: `attention-${kind}`, value: kind, checked: kind === place.kind, onchange: () => store.set({ kind }) }),
      ` ${single ? NAMES.encoder : NAMES[kind]}`))),
    h("div", { class: "row" },
      menu("Layer", "layer", counted(place.layers, "layer"), place.layer),
      menu("Head", "head", [["mean", "mean of all heads"], ["max", "largest of all heads"], ...counted(place.heads, "head")], place.head),
      h("label", {}, h("input", { type: "checkbox", id: "attention-drop", checked: drop, onchange: ({ target }) => { drop = target.checked; view.show(store.state); } }),
        ` leave out ${ends}, and let the rest add up to 1`)),
    ramp.element);
}

async function showPlace(explanation, place, asked) {
  const { kind, layer, head, row, keys, queries, ends } = place, columns = keys.length;
  const few = explanation.attention[kind], exact = `${explanation.model.heads > 0 && kind === "encoder" ? "encoder" : "decoder"}.${layer - 1}.${kind === "cross" ? "cross" : "self"}.weights`;
  try {
    const [own, all] = await Promise.all([
      slice(explanation, exact, { rows: `${row - 1}:${row}` }), // heads × 1 × columns
      few ? planes(few) : slice(explanation, exact).then((found) => planesOfLayer(found, place.layers)),
    ]);
    if (asked !== shownFor || explanation !== part.explanation) return;
    const kept = (weights) => (drop ? without(weights, columns, ends) : weights);
    const heads = Array.from({ length: place.heads }, (_, at) => own.values.subarray(at * columns, (at + 1) * columns));
    const rows = { mean: kept(combined(heads, "mean")), max: kept(combined(heads, "max")) };
    const chosen = rows[head] ?? kept(heads[head - 1]);
    const matrix = head in rows ? combined(heads.map((_, at) => all.at(layer - 1, at)), head) : all.at(layer - 1, head - 1);
    again(fill, part.body,
      h("div", { class: "two" },
        h("div", {}, h("h2", {}, `Layer ${layer}, ${named(head)}`), pictureOf(kept(matrix), place)),
        h("div", {}, h("h2", {}, `From “${shown(queries[row - 1])}”`), fromOne(chosen, place), numbers(chosen, rows, place))),
      grid(all, place, few, kept));
    redraw = () => { ramp.redraw(); part.body.querySelectorAll("canvas").forEach((canvas) => canvas.redraw()); };
    redraw();
  } catch (error) {
    if (asked === shownFor) fill(part.body, h("p", { class: "error" }, error.message));
  }
}

const named = (head) => ({ mean: "mean of all heads", max: "largest of all heads" })[head] ?? `head ${head}`;

function canvasOf(weights, columns, attributes) {
  const canvas = h("canvas", attributes);
  canvas.redraw = () => draw(canvas, weights, columns);
  return canvas;
}

/** The matrix of a head: rows are the tokens that look, each a button, columns what they look at. */
function pictureOf(weights, place) {
  const { kind, queries, keys, row } = place, name = kind === "encoder" ? "token" : "target";
  const what = `Rows are the ${queries.length} tokens that look, columns the ${keys.length} that they look at`;
  return h("figure", { class: "wide" },
    h("div", { class: "matrix", "--rows": queries.length, "--columns": keys.length },
      h("div", { class: "heads", "aria-hidden": "true" }, keys.map((key) => h("span", {}, shown(key)))),
      h("div", { class: "sides", role: "group", "aria-label": "From one token" }, queries.map((query, at) => h("button", {
        type: "button", id: `attention-row-${at + 1}`, "aria-pressed": String(at + 1 === row), title: shown(query), onclick: () => store.set({ [name]: at + 1 }),
      }, shown(query)))),
      canvasOf(weights, keys.length, { role: "img", "aria-label": `${what}; the numbers of a row are in the table`, onclick: ({ offsetY, target }) =>
        store.set({ [name]: Math.min(Math.floor((offsetY / target.clientHeight) * queries.length), queries.length - 1) + 1 }) })),
    h("figcaption", { class: "dim" }, `${what}. Choose a row by its token.`));
}

function fromOne(weights, { queries, keys, row }) {
  const picture = h("div", { class: "wide" }), said = h("output", {});
  const show = () => {
    said.textContent = least.toFixed(2);
    fill(picture, lines(weights, queries, keys, row - 1, least));
  };
  show();
  return [h("label", { class: "row" }, "Links from ", h("input", {
    type: "range", id: "attention-least", min: 0, max: 1, step: 0.01, value: least, oninput: ({ target }) => { least = Number(target.value); show(); },
  }), said, " on"), picture];
}

/** The row in numbers, of exact floats: what every picture here says, for those who read it. */
function numbers(chosen, { mean, max }, { kind, layer, head, queries, keys, row }) {
  const exact = (weight) => [weight.toFixed(4)];
  const bar = (weight) => [h("span", { class: "bar", "--p": weight.toFixed(3) }), ` ${weight.toFixed(4)}`];
  const rows = keys.map((key, at) => [shown(key), bar(chosen[at]), ...(head === "mean" ? [] : [exact(mean[at])]), ...(head === "max" ? [] : [exact(max[at])])]);
  const heads = ["looks at", named(head), ...(head === "mean" ? [] : ["mean"]), ...(head === "max" ? [] : ["largest"])];
  return table(`${kind}, layer ${layer}, from token ${row}, “${shown(queries[row - 1])}”`, heads, rows);
}

/** All heads in small: rows are layers, columns heads. */
function grid(all, { kind, layer, layers, head }, whole, kept) {
  const own = whole ? counted(layers, "layer") : [[layer, `layer ${layer}`]];
  const each = (at, of) => h("td", {}, h("button", { type: "button", id: `attention-${at}-${of}`, "aria-label": `layer ${at}, head ${of}`,
    "aria-pressed": String(at === layer && of === head), onclick: () => store.set({ layer: at, head: of }) },
  canvasOf(kept(all.at(at - 1, of - 1)), all.columns, {})));
  return [h("h2", {}, "All heads"), h("div", { class: "wide" }, h("table", { class: "grid" },
    h("caption", {}, `Rows are layers, columns heads (${kind}); choose one to see it in large.${whole ? "" : ` Of a text of more than ${MANY} pieces, those of one layer.`}`),
    h("tr", {}, h("td", {}), counted(all.heads, "head").map(([, text]) => h("th", { scope: "col" }, text))),
    own.map(([at, text]) => h("tr", {}, h("th", { scope: "row" }, text), counted(all.heads, "").map(([of]) => each(at, of))))))];
}
