// Paper: the walk through the paper's equations with this sentence's numbers, each computed again, here and by the server.

import { getJson, slice, unpackFloats, walk } from "./api.js";
import { lineChart } from "./chart.js";
import { bar, fill, h, menu, number, refill, shown, table } from "./dom.js";
import { canvasOf, redraw } from "./matrix.js";
import { learningRate, recomputed, sinusoid } from "./numbers.js";

const part = {};
let store, found = null, wanted = [], current = null;

export const view = {
  name: "paper",

  mount(section, itsStore) {
    store = itsStore;
    part.controls = h("div", { class: "row" });
    part.list = h("nav", { class: "row", "aria-label": "Steps of the walk" });
    section.append(part.controls, part.list, part.step = h("article", {}));
  },

  async show(state) {
    const { explanation, step, theme } = state, now = [explanation, state.layer, state.head, state.token, state.target];
    if (now.some((each, at) => each !== wanted[at])) {
      [wanted, current] = [now, null];
      if (found?.explanation !== explanation) fill(part.step, h("p", {}, "Walking through the paper …"));
      try {
        const answer = await walk(explanation, placeOf(state));
        if (wanted !== now) return;
        found = { ...answer, explanation };
        controls();
      } catch (error) {
        if (wanted === now) fill(part.step, h("p", { class: "error" }, error.message));
        return;
      }
    } else if (!found || found.explanation !== explanation || (current && current.number === step && part.theme === theme)) return;
    part.theme = theme;
    showStep(found.steps.find((each) => each.number === store.state.step) ?? found.steps[0]);
  },
};

/** The place that is asked for: nothing beyond what there is; what is not chosen the walk chooses. */
function placeOf({ explanation: { model, source, steps }, layer, head, token, target }) {
  const within = (value, most) => (Number.isInteger(value) ? Math.min(value, most) : null);
  return {
    layer: within(layer, Object.values(model.layers)[0]), head: within(head, model.heads),
    token: within(token, source.pieces.length), target_token: within(target, steps.length),
  };
}

function controls() {
  const { explanation: { model, source, target, candidates }, focus } = found, [layers] = Object.values(model.layers);
  const choice = (label, name, texts, at) => {
    const options = texts.map((text, place) => [place + 1, `${place + 1} ${text}`]);
    return menu(label, `p-${name}`, options, at + 1, (value) => store.set({ [name]: value }));
  };
  refill(part.controls,
    choice("Layer", "layer", Array(layers).fill(""), focus.layer), choice("Head", "head", Array(model.heads).fill(""), focus.head),
    choice("Token of the text", "token", source.pieces.map(shown), focus.source),
    candidates && choice("Token of the translation", "target", target.pieces.map(shown), focus.target));
}

function showStep(step) {
  current = step;
  const { steps } = found, at = steps.indexOf(step), checks = h("ul", { class: "checks" }, h("li", {}, "Computing …"));
  const go = (to, id, text, more) =>
    h("button", { type: "button", id, disabled: !to, onclick: () => store.set({ step: to.number }), ...more }, text);
  refill(part.list, go(steps[at - 1], "p-back", "Back"), go(steps[at + 1], "p-on", "Next"),
    steps.map((each) => go(each, `p-${each.number}`, String(each.number), {
      title: each.title, "aria-label": `${each.number}: ${each.title}`, "aria-current": each === step && "step",
    })));
  const place = `Section ${step.section}${step.equation && `, equation (${step.equation})`}`;
  fill(part.step,
    h("h2", {}, `${step.number} ${step.title} `, h("small", { class: "dim" }, place)),
    h("div", { class: "two" },
      h("div", {}, h("p", {}, step.prose), mathOf(step.mathml), checks, pictureOf(step)),
      h("div", {}, step.tables.map(numbersOf))),
    [...new Set(step.lines.map(({ file }) => file))].map((file) => source(file, step.lines.filter((line) => line.file === file))),
    step.command && h("figure", {}, h("figcaption", {}, "The tensor in a file"), h("pre", { tabindex: "0" }, step.command)));
  redraw(part.step);
  check(step, checks);
}

/** Of MathML that the server made an element of this page. */
function mathOf(text) {
  const { documentElement: made } = new DOMParser().parseFromString(text, "application/xml");
  const attributes = { class: "wide", tabindex: "0", role: "region", "aria-label": "Equation" };
  return made.localName === "math" && h("div", attributes, document.importNode(made, true));
}

/** A number in few digits; a whole one with all of them. */
export function digits(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return typeof value === "number" ? number(value) : String(value);
  return Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5 ? value.toExponential(2) : value.toFixed(4);
}

function numbersOf({ caption, header, rows, shares }) {
  const cell = (value, name) => (typeof value !== "number" ? String(value) : shares.includes(name) ? bar(value) : [digits(value)]);
  const named = ([first, ...cells]) => [shown(digits(first)), ...cells.map((value, at) => cell(value, header[at + 1]))];
  return table(caption, header, rows.map(named));
}

/** The lines of an installed file that computed it, marked, between those around them. */
function source(file, lines) {
  const marked = lines.map(({ line }) => line).sort((one, other) => one - other), texts = new Map(lines.flatMap(({ around }) => around));
  const shownLines = [...texts.keys()].sort((one, other) => one - other);
  return h("figure", {}, h("figcaption", {}, `${file}:${marked.join(", ")}`), h("pre", { tabindex: "0" }, shownLines.map((at, place) => [
    place > 0 && at > shownLines[place - 1] + 1 && "   …\n",
    h(marked.includes(at) ? "mark" : "span", {}, `${String(at).padStart(4)}  ${texts.get(at)}\n`),
  ])));
}

/** What the step says, computed again in the browser from exact numbers, and by the server. */
async function check(step, list) {
  const { explanation, focus } = found, unpacked = (value) => (value?.f32 ? Array.from(unpackFloats(value.f32)) : value);
  const given = Object.fromEntries(Object.entries(step.given).map(([name, value]) => [name, unpacked(value)]));
  const own = await recomputed({ ...step, given }, { explanation, focus, ask: (name, at) => slice(explanation, name, at) })
    .catch((error) => [{ what: error.message }]);
  if (current === step) fill(list, [...own, ...step.checks].map(checked));
}

function checked({ what, model, difference, count, browser, recomputed: server }) {
  if (model === undefined) return h("li", { class: "error" }, what);
  const few = (value) => h("b", {}, Number.isInteger(value) ? number(value) : value.toPrecision(5));
  const who = server === undefined ? "in your browser" : "by the server";
  return h("li", { class: server === undefined ? "browser" : "dim" }, `${what}: recomputed ${who}: `, few(browser ?? server), " – model: ",
    few(model),
    difference ? `, difference ${difference.toExponential(0)}` : ", no difference",
    count > 1 && `${difference ? " at most" : ""} in ${number(count)} numbers`);
}

/** Of step 3 the sinusoids, of 7 the head's weights, of 19 the learning rate of the run. */
function pictureOf({ number: at, given, tensor }) {
  const { explanation, focus } = found, { model: { d_model: size, positions }, source: { pieces } } = explanation;
  const figure = h("figure", {});
  const say = (text, ...pictures) => figure.append(...pictures, h("figcaption", { class: "dim" }, text));
  if (at === 3 && given.sum) {
    const all = pieces.flatMap((_, place) => sinusoid(place, size, positions === "sinusoidal-concat"));
    const sign = (name, factor) =>
      canvasOf(Float32Array.from(all, (value) => Math.max(0, factor * value) ** 2), size, { class: name, "aria-hidden": "true" });
    say("PE: a row for each position, a column for each number; blue above 0, orange below",
      h("div", { class: "strip" }, sign("above", 1), sign("below", -1)));
  } else if (at === 7) {
    slice(explanation, tensor, { index: [focus.head] }).then(({ values, shape }) => {
      const picture = canvasOf(values, shape[1], { class: "one", "aria-hidden": "true" });
      say(`The head's weights: row ${focus.source + 1} is the one beside`, picture);
      redraw(figure);
    }).catch(() => {});
  } else if (at === 19) rates(given).then((chart) => say("The dotted line is this model's step", chart));
  return figure;
}

/** Equation (3), and what the run recorded. */
async function rates({ step, d_model: size, warmup_steps: warmup }) {
  const end = 2 * Math.max(step, warmup), steps = Array.from({ length: 200 }, (_, at) => Math.max(1, Math.round((end * (at + 1)) / 200)));
  const run = await getJson(`api/v1/runs/${encodeURIComponent(found.explanation.model.name)}?from=0`).catch(() => ({ train: [] }));
  return lineChart("Learning rate", {
    "equation (3)": steps.map((each) => [each, learningRate(each, size, warmup)]),
    "as trained": run.train.map((each) => [each.step, each.lr]),
  }, { mark: step });
}
