// Attention: where every head of every layer looks, one head in large, and one token's row in numbers.

import { slice } from "./api.js";
import { bar, fill, h, menu, refill, shown, table } from "./dom.js";
import { canvasOf, combined, lines, planes, planesOfLayer, redraw, without } from "./matrix.js";

const NAMES = { encoder: "the text at itself", decoder: "the translation at itself", cross: "the translation at the text" };
const MANY = 24; // columns, from which on they are narrow
const WORDS = { mean: "mean of all heads", max: "largest of all heads" };
const NOTE = "Attention shows where numbers come from. That is no proof of why the model says what it says.";
const SHIFTED = ` In the last layer the attention to the text is often shifted by one token: what is looked at belongs to the token before
or behind.`;
const RAMP = Float32Array.from({ length: 64 }, (_, at) => at / 63);
const part = {};
let store, section, asked = "", least = 0.05, drop = false;

export const view = {
  name: "attention",

  mount(itsSection, itsStore) {
    [section, store] = [itsSection, itsStore];
    section.append(part.controls = h("div", {}), part.body = h("div", {}), part.notes = h("p", { class: "dim" }));
  },

  show(state) {
    const place = placeOf(state), now = JSON.stringify([place, drop]);
    if (part.explanation !== state.explanation || asked !== now) {
      [part.explanation, asked] = [state.explanation, now];
      controls(place);
      fill(part.notes, NOTE, place.kind === "cross" && SHIFTED);
      showPlace(state.explanation, place, now);
    } else if (part.theme !== state.theme) redraw(section);
    part.theme = state.theme;
  },
};

/** What is looked at: kind, layer, head and row from 1, with the pieces of rows and columns. What is not chosen is chosen here. */
export function placeOf({ explanation, kind: wanted, layer, head, token, target }) {
  const within = (value, most, otherwise) => (Number.isInteger(value) ? Math.min(Math.max(value, 1), most) : otherwise);
  const { model, source, target: said, read, candidates } = explanation;
  const kinds = Object.keys(model.layers), kind = kinds.includes(wanted) ? wanted : kinds.at(-1), layers = model.layers[kind];
  const queries = { encoder: source.pieces, decoder: read, cross: said.pieces }[kind];
  const keys = kind === "decoder" ? read : source.pieces, last = keys.length - 1;
  const own = kind === "encoder" || !candidates ? "token" : "target"; // in the state, and in the address
  return {
    kind, kinds, layers, queries, keys, own, heads: model.heads, single: !candidates,
    layer: within(layer, layers, Math.max(layers - 1, 1)), head: head in WORDS ? head : within(head, model.heads, "mean"),
    row: within(own === "token" ? token : target, queries.length, 1),
    ends: kind === "decoder" ? [0] : candidates ? [last] : [0, last], // where heads rest that look for nothing
    name: `${kind === "encoder" ? kind : "decoder"}.%.${kind === "cross" ? kind : "self"}.weights`,
  };
}

const counted = (count, word) => Array.from({ length: count }, (_, at) => [at + 1, `${word} ${at + 1}`]);
const named = (head) => WORDS[head] ?? `head ${head}`;

function controls({ kind, kinds, layer, layers, head, heads, keys, ends, single }) {
  refill(part.controls,
    h("fieldset", { class: "row" }, h("legend", {}, "Who looks at what"), kinds.map((each) => {
      const attributes = { type: "radio", name: "kind", id: `a-${each}`, value: each, checked: each === kind };
      const name = NAMES[single ? "encoder" : each];
      return h("label", {}, h("input", { ...attributes, onchange: () => store.set({ kind: each }) }), ` ${name} (${each})`);
    })),
    h("div", { class: "row" },
      menu("Layer", "a-layer", counted(layers, "layer"), layer, (chosen) => store.set({ layer: chosen })),
      menu("Head", "a-head", [...Object.entries(WORDS), ...counted(heads, "head")], head, (chosen) => store.set({ head: chosen })),
      h("label", {},
        h("input", { type: "checkbox", id: "a-drop", checked: drop, onchange: dropEnds }),
        ` leave out ${[...new Set(ends.map((at) => keys[at]))].join(" and ")}, and let the rest add up to 1`),
      h("span", { class: "dim" }, "weight 0 ", canvasOf(RAMP, RAMP.length, { class: "ramp", "aria-hidden": "true" }), " 1")));
}

function dropEnds({ target }) {
  drop = target.checked;
  view.show(store.state);
}

async function showPlace(explanation, place, now) {
  const { kind, layer, head, heads, row, keys, queries, ends, name } = place, columns = keys.length, exact = name.replace("%", layer - 1);
  const few = explanation.attention[kind]; // a long text has no pictures: then one layer of this kind alone is asked for
  try {
    const [{ values }, all] = await Promise.all([
      slice(explanation, exact, { rows: `${row - 1}:${row}` }), // heads × 1 × columns
      few ? planes(few) : slice(explanation, exact).then(planesOfLayer),
    ]);
    if (now !== asked || explanation !== part.explanation) return;
    const kept = (weights) => (drop ? without(weights, columns, ends) : weights), own = [...Array(heads).keys()];
    const plane = (...at) => kept(all(...at)), each = own.map((at) => kept(values.subarray(at * columns, (at + 1) * columns)));
    const rows = { mean: combined(each, "mean"), max: combined(each, "max") }, chosen = rows[head] ?? each[head - 1];
    const matrix = head in rows ? combined(own.map((at) => plane(layer - 1, at)), head) : plane(layer - 1, head - 1);
    refill(part.body, h("div", { class: "two" },
      h("div", {}, h("h2", {}, `Layer ${layer}, ${named(head)}`), matrixOf(matrix, place), grid(plane, place, few)),
      h("div", {}, h("h2", {}, `From “${shown(queries[row - 1])}”`), linesFrom(chosen, place), numbers(chosen, rows, place))));
    redraw(section);
  } catch (error) {
    if (now === asked) fill(part.body, h("p", { class: "error" }, error.message));
  }
}

/** The matrix of a head: rows are the tokens that look, each a button, columns what they look at. */
function matrixOf(weights, { queries, keys, row, own }) {
  const what = `Rows are the ${queries.length} tokens that look, columns the ${keys.length} that they look at`;
  const go = (at) => store.set({ [own]: at + 1 });
  const goThere = ({ offsetY, target }) => go(Math.min(Math.floor((offsetY / target.clientHeight) * queries.length), queries.length - 1));
  return h("figure", { class: "wide" },
    h("div", { class: `matrix${keys.length > MANY ? " many" : ""}`, "--rows": queries.length, "--columns": keys.length },
      h("div", { class: "keys", "aria-hidden": "true" }, keys.map((key) => h("span", {}, shown(key)))),
      h("div", { class: "queries", role: "group", "aria-label": "From one token" }, queries.map((query, at) => h("button", {
        type: "button", id: `a-row-${at + 1}`, "aria-pressed": String(at + 1 === row), title: shown(query), onclick: () => go(at),
      }, shown(query)))),
      canvasOf(weights, keys.length, { role: "img", "aria-label": `${what}; the table has the numbers of a row`, onclick: goThere })),
    h("figcaption", { class: "dim" }, `${what}. Choose a row by its token.`));
}

function linesFrom(weights, { queries, keys, row }) {
  const picture = h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Lines" }), said = h("output", {});
  const show = () => {
    said.textContent = least.toFixed(2);
    fill(picture, lines(weights, queries, keys, row - 1, least));
  };
  show();
  const choose = ({ target }) => {
    least = Number(target.value);
    show();
  };
  const range = h("input", { type: "range", id: "a-least", min: 0, max: 1, step: 0.01, value: least, oninput: choose });
  return [h("label", { class: "row" }, "Lines from a weight of ", range, said), picture];
}

/** The row in numbers, from exact floats: what every picture here says, for those who read it. */
function numbers(chosen, rows, { kind, layer, head, queries, keys, row }) {
  const others = Object.keys(WORDS).filter((word) => word !== head);
  const caption = `${kind}, layer ${layer}, from token ${row}, “${shown(queries[row - 1])}”`;
  return table(caption, ["looks at", named(head), ...others.map(named)],
    keys.map((key, at) => [shown(key), bar(chosen[at]), ...others.map((word) => [rows[word][at].toFixed(4)])]));
}

/** All heads in small: rows are layers, columns heads. */
function grid(plane, { kind, layer, layers, head, heads, keys }, whole) {
  const small = (at, of) => h("td", {}, h("button", {
    type: "button", id: `a-${at}-${of}`, "aria-label": `layer ${at}, head ${of}`, "aria-pressed": String(at === layer && of === head),
    onclick: () => store.set({ layer: at, head: of }),
  }, canvasOf(plane(at - 1, of - 1), keys.length)));
  const said = whole ? "" : " The text is long, so those of one layer are here.";
  return [h("h2", {}, "All heads"), h("div", { class: "wide" }, h("table", { class: "grid" },
    h("caption", {}, `Rows are layers, columns heads (${kind}); choose one to see it in large.${said}`),
    h("tr", {}, h("td", {}), counted(heads, "head").map(([, text]) => h("th", { scope: "col" }, text))),
    counted(layers, "layer").filter(([at]) => whole || at === layer).map(([at, text]) =>
      h("tr", {}, h("th", { scope: "row" }, text), counted(heads, "").map(([of]) => small(at, of))))))];
}
