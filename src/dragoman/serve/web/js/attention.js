// Attention: where every head of every layer looks, one head in large, and one token's row in numbers.

import { slice } from "./api.js";
import { arrive, bar, fill, find, h, menu, refill, shown, table, wide, within } from "./dom.js";
import { canvasOf, combined, lines, planes, without } from "./matrix.js";
import { set, state } from "./state.js";

const MANY = 24; // columns, from which on they are narrow
const WORDS = { mean: "mean of all heads", max: "largest of all heads" };
const RAMP = Float32Array.from({ length: 64 }, (_, at) => at / 63);
const controls = h("div"), body = h("div"), note = h("p.dim");
let least = 0.05, drop = false;

find("attention").append(controls, body, note);

export const on = ["explanation", "kind", "layer", "head", "token", "target"];

export function show({ explanation }) {
  const place = placeOf(state);
  showControls(place);
  fill(note, place.note);
  arrive(body, pictures(explanation, place));
}

/** What is looked at, from 1; what is not chosen is chosen here. */
function placeOf({ explanation: { model: { layers: all, heads }, kinds, candidates }, kind: wanted, layer, head, token, target }) {
  const kind = wanted in kinds ? wanted : Object.keys(kinds).at(-1), layers = all[kind];
  const own = kind === "encoder" || !candidates ? "token" : "target"; // in the state, and in the address
  return {
    kind, kinds, layers, own, heads, ...kinds[kind], row: within(own === "token" ? token : target, kinds[kind].queries.length, 1),
    layer: within(layer, layers, Math.max(layers - 1, 1)), head: head in WORDS ? head : within(head, heads, "mean"),
  };
}

const counted = (count, word) => Array.from({ length: count }, (_, at) => [at + 1, `${word} ${at + 1}`]);
const named = (head) => WORDS[head] ?? `head ${head}`;

function showControls({ kind, kinds, layer, layers, head, heads, keys, rests }) {
  const dropRests = ({ target }) => {
    drop = target.checked;
    show(state);
  };
  refill(controls,
    h("fieldset.row", h("legend", "Who looks at what"), Object.entries(kinds).map(([each, { label }]) => h("label",
      h("input", { type: "radio", name: "kind", id: `a-${each}`, checked: each === kind, onchange: () => set({ kind: each }) }),
      ` ${label} (${each})`))),
    h("div.row",
      menu("Layer", "a", "layer", counted(layers, "layer"), layer),
      menu("Head", "a", "head", [...Object.entries(WORDS), ...counted(heads, "head")], head),
      h("label", h("input", { type: "checkbox", id: "a-drop", checked: drop, onchange: dropRests }),
        ` leave out ${[...new Set(rests.map((at) => keys[at]))].join(" and ")}, and let the rest add up to 1`),
      h("span.dim", "weight 0 ", canvasOf("canvas.ramp", RAMP, RAMP.length), " 1")));
}

async function pictures(explanation, place) {
  const { kind, layer, head, heads, row, keys, queries, rests, tensor } = place;
  const columns = keys.length, exact = tensor.replace("%", layer - 1);
  const whole = explanation.attention[kind]; // of a long text there is none: then one layer of this kind alone is asked for
  const [{ values }, all] = await Promise.all([
    slice(explanation, exact, { rows: `${row - 1}:${row}` }), // heads × 1 × columns
    whole ?? slice(explanation, exact),
  ]);
  const kept = (weights) => (drop ? without(weights, columns, rests) : weights), ofAll = planes(all);
  const plane = (at, of) => kept(ofAll(at - 1, of - 1)), own = counted(heads).map(([of]) => of);
  const each = own.map((of) => kept(values.subarray((of - 1) * columns, of * columns)));
  const rows = { mean: combined(each, "mean"), max: combined(each, "max") }, chosen = rows[head] ?? each[head - 1];
  const matrix = head in rows ? combined(own.map((of) => plane(layer, of)), head) : plane(layer, head);
  return h("div.two",
    h("div", h("h2", `Layer ${layer}, ${named(head)}`), matrixOf(matrix, place), grid(plane, place, whole)),
    h("div", h("h2", `From “${shown(queries[row - 1])}”`), linesFrom(chosen, place), numbers(chosen, rows, place)));
}

function matrixOf(weights, { queries, keys, row, own }) {
  const what = `Rows are the ${queries.length} tokens that look, columns the ${keys.length} that they look at`;
  const go = (at) => set({ [own]: Math.min(at + 1, queries.length) });
  const onclick = ({ offsetY, target }) => go(Math.floor((offsetY / target.clientHeight) * queries.length));
  return h("figure.wide",
    h(`div.matrix.${keys.length > MANY ? "many" : "few"}`, { "--rows": queries.length, "--columns": keys.length },
      h("div.keys", { "aria-hidden": "true" }, keys.map((key) => h("span", shown(key)))),
      h("div.queries", { role: "group", "aria-label": "From one token" }, queries.map((query, at) =>
        h("button", {
          id: `a-row-${at + 1}`, "aria-pressed": String(at + 1 === row), title: shown(query), onclick: () => go(at),
        }, shown(query)))),
      canvasOf("canvas", weights, keys.length, { role: "img", "aria-label": `${what}; the table has the numbers of a row`, onclick })),
    h("figcaption", `${what}. Choose a row by its token.`));
}

function linesFrom(weights, { queries, keys, row }) {
  const picture = wide("Lines"), said = h("output");
  const range = h("input", { type: "range", id: "a-least", min: 0, max: 1, step: 0.01, value: least, oninput });
  function oninput() {
    least = Number(range.value);
    fill(said, least.toFixed(2));
    fill(picture, lines(weights, queries, keys, row - 1, least));
  }
  oninput();
  return [h("label.row", "Lines from a weight of ", range, said), picture];
}

/** From exact floats: what every picture here says, for those who read it. */
function numbers(chosen, rows, { kind, layer, head, queries, keys, row }) {
  const others = Object.keys(WORDS).filter((word) => word !== head);
  const caption = `${kind}, layer ${layer}, from token ${row}, “${shown(queries[row - 1])}”`;
  return table(caption, ["looks at", ...[head, ...others].map(named)],
    keys.map((key, at) => [shown(key), bar(chosen[at]), ...others.map((word) => [rows[word][at].toFixed(4)])]));
}

function grid(plane, { kind, layer, layers, head, heads, keys }, whole) {
  const small = (at, of) => [h("button", {
    id: `a-${at}-${of}`, "aria-label": `layer ${at}, head ${of}`, "aria-pressed": String(at === layer && of === head),
    onclick: () => set({ layer: at, head: of }),
  }, canvasOf("canvas", plane(at, of), keys.length))];
  const said = whole ? "" : " The text is long, so those of one layer are here.";
  return [h("h2", "All heads"), h("div.grid", table(`Rows are layers, columns heads (${kind}); choose one to see it in large.${said}`,
    ["layer", ...counted(heads, "head").map(([, text]) => text)],
    counted(layers, "layer").filter(([at]) => whole || at === layer)
      .map(([at, text]) => [text, ...counted(heads).map(([of]) => small(at, of))])))];
}
