// Paper: the walk through the paper's equations with this sentence's numbers, each computed again, here and by the server.

import { getJson, slice, unpackFloats, walk } from "./api.js";
import { lineChart } from "./chart.js";
import { fill, h, number, shown, table } from "./dom.js";
import { draw } from "./matrix.js";
import { learningRate, recomputed, sinusoid } from "./numbers.js";

const part = {};
let store, found = null, wanted = null, shownStep = null;

export const view = {
  name: "paper",

  mount(section, itsStore) {
    store = itsStore;
    part.controls = h("div", { class: "row" });
    part.list = h("ol", { class: "walk", "aria-label": "Steps" });
    part.step = h("article", { "aria-live": "polite" });
    section.append(part.controls, h("nav", { "aria-label": "The walk" }, part.list), part.step);
  },

  async show(state) {
    const { explanation, layer, head, token, target, theme } = state;
    const at = { layer: whole(layer), head: whole(head), token: whole(token), target_token: whole(target) };
    const asked = [explanation, ...Object.values(at)];
    if (!wanted || asked.some((each, place) => each !== wanted[place])) {
      wanted = asked;
      try {
        const answer = await walk(explanation, clamped(at, explanation));
        if (wanted !== asked) return;
        found = { ...answer, explanation };
        shownStep = null;
        controls();
      } catch (error) {
        if (wanted === asked) fill(part.step, h("p", { class: "error" }, error.message));
        return;
      }
    }
    if (!found || found.explanation !== explanation) return;
    const step = found.steps.find((each) => each.number === store.state.step) ?? found.steps[0];
    if (shownStep === step && part.theme === theme) return;
    [shownStep, part.theme] = [step, theme];
    showStep(step);
  },
};

const whole = (value) => (Number.isInteger(value) ? value : null);

/** No place beyond what there is; the walk chooses what is null. */
function clamped({ layer, head, token, target_token: target }, { model, source, steps }) {
  const within = (value, most) => (value === null ? null : Math.min(value, most));
  const [layers] = Object.values(model.layers);
  return { layer: within(layer, layers), head: within(head, model.heads), token: within(token, source.pieces.length), target_token: within(target, steps.length) };
}

function controls() {
  const { explanation: { model, source, steps, candidates }, focus } = found, [layers] = Object.values(model.layers);
  const menu = (label, name, options, at) => h("label", {}, `${label} `, h("select", { id: `paper-${name}`, onchange: ({ target }) => store.set({ [name]: Number(target.value) }) },
    options.map((text, place) => h("option", { value: place + 1, selected: place === at }, text))));
  const counted = (count) => Array.from({ length: count }, (_, at) => String(at + 1));
  const pieces = (list) => list.map((piece, at) => `${at + 1} ${shown(piece)}`);
  const id = document.activeElement?.id;
  fill(part.controls,
    menu("Layer", "layer", counted(layers), focus.layer), menu("Head", "head", counted(model.heads), focus.head),
    menu("Token of the text", "token", pieces(source.pieces), focus.source),
    candidates && menu("Token of the translation", "target", pieces(steps.map(({ piece }) => piece)), focus.target));
  if (id?.startsWith("paper-")) document.getElementById(id)?.focus();
}

function showStep(step) {
  const { steps } = found, at = steps.indexOf(step), go = (to) => () => store.set({ step: to.number });
  const onList = part.list.contains(document.activeElement);
  fill(part.list, steps.map((each) => h("li", { value: each.number }, h("button", {
    type: "button", title: each.title, "aria-label": `${each.number}: ${each.title}`, "aria-current": each === step && "step", onclick: go(each),
  }, String(each.number)))));
  if (onList) part.list.children[at].firstChild.focus();
  const equation = step.equation ? `, equation (${step.equation})` : "";
  const here = h("ul", { class: "checks" }, h("li", {}, "Computing …"));
  fill(part.step,
    h("h2", {}, `${step.number} ${step.title} `, h("small", { class: "dim" }, `Section ${step.section}${equation}`)),
    h("div", { class: "two" },
      h("div", {},
        h("p", {}, step.prose), mathOf(step.mathml), here, pictureOf(step),
        step.lines.length > 0 && sources(step.lines),
        step.command && [h("p", { class: "dim" }, "The tensor in a file:"), h("pre", { tabindex: "0" }, step.command)]),
      h("div", {}, step.tables.map(numbersOf))),
    h("p", { class: "row" },
      at > 0 && h("button", { type: "button", onclick: go(steps[at - 1]) }, `Back: ${steps[at - 1].title}`),
      at < steps.length - 1 && h("button", { type: "button", class: "main", onclick: go(steps[at + 1]) }, `On: ${steps[at + 1].title}`)));
  checks(step, here);
}

/** Of a MathML text an element of this page. */
function mathOf(text) {
  const { documentElement } = new DOMParser().parseFromString(text, "application/xml");
  return documentElement.localName === "math" && h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Equation" }, document.importNode(documentElement, true));
}

/** A number in few digits, as the command line prints it. */
export function digits(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return typeof value === "number" ? number(value) : String(value);
  return Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5 ? value.toExponential(2) : value.toFixed(4);
}

function numbersOf({ caption, header, rows, shares = [] }) {
  const cell = (value, name) => {
    if (typeof value !== "number") return String(value);
    return shares.includes(name) ? [h("span", { class: "bar", "--p": value.toFixed(3) }), ` ${digits(value)}`] : [digits(value)];
  };
  return table(caption, header, rows.map(([first, ...cells]) => [shown(digits(first)), ...cells.map((value, at) => cell(value, header[at + 1]))]));
}

/** The lines of the installed files that computed it, marked, between those around them. */
function sources(lines) {
  const files = [...new Set(lines.map(({ file }) => file))];
  return files.map((file) => {
    const own = lines.filter((each) => each.file === file), marked = new Set(own.map(({ line }) => line));
    const around = [...new Map(own.flatMap((each) => each.around)).entries()].sort(([one], [other]) => one - other);
    return h("figure", {}, h("figcaption", {}, `${file}:${[...marked].join(", ")}`), h("pre", { tabindex: "0" }, around.map(([at, text]) =>
      h(marked.has(at) ? "mark" : "span", {}, `${String(at).padStart(4)}  ${text}\n`))));
  });
}

const difference = (value) => (value === 0 ? "no difference" : `difference ${value.toExponential(0)}`);
const among = (count) => (count > 1 ? ` at most, in ${number(count)} numbers` : "");

async function checks(step, here) {
  const { explanation, focus } = found;
  const given = Object.fromEntries(Object.entries(step.given ?? {}).map(([name, value]) => [name, value?.f32 ? Array.from(unpackFloats(value.f32)) : value]));
  let own = [], problem = "";
  try {
    own = await recomputed({ ...step, given }, { explanation, focus, ask: (name, at) => slice(explanation, name, at) });
  } catch (error) {
    problem = error.message;
  }
  if (shownStep !== step) return;
  const line = (who, { what, model, difference: most, count }, value) => h("li", { class: who },
    `${what}: ${who === "browser" ? "recomputed in your browser" : "recomputed by the server"}: `, h("b", {}, digits(value)), " – model: ", h("b", {}, digits(model)),
    `, ${difference(most)}${among(count)}`);
  fill(here, problem && h("li", { class: "error" }, problem), own.map((each) => line("browser", each, each.browser)), step.checks.map((each) => line("server", each, each.recomputed)));
}

// Pictures

function pictureOf(step) {
  const { explanation, focus } = found;
  const figure = h("figure", {});
  if (step.number === 3 && step.given?.sum) {
    const width = explanation.model.d_model, strip = explanation.source.pieces.map((_, at) => sinusoid(at, width, explanation.model.positions === "sinusoidal-concat"));
    for (const sign of [1, -1]) figure.append(canvas(Float32Array.from(strip.flat(), (value) => Math.max(0, sign * value) ** 2), width, `strip ${sign > 0 ? "above" : "below"}`));
    figure.append(h("figcaption", { class: "dim" }, "PE: a row for each position, a column for each number; first what is above 0, then what is below"));
  } else if (step.number === 7) {
    slice(explanation, step.tensor, { index: [focus.head] }).then(({ values, shape }) => figure.append(
      canvas(values, shape[1], "head"), h("figcaption", { class: "dim" }, `The head's weights: row ${focus.source + 1} is the one beside`))).catch(() => {});
  } else if (step.number === 19) {
    curves(step).then((chart) => chart && figure.append(h("figcaption", {}, "Learning rate; the dotted line is this model's step"), chart));
  }
  return figure;
}

function canvas(values, columns, name) {
  const made = h("canvas", { class: name, "aria-hidden": "true" });
  requestAnimationFrame(() => draw(made, values, columns));
  return made;
}

/** Equation (3) and what the run recorded, with this model's step on both. */
async function curves({ given }) {
  const { step, d_model: size, warmup_steps: warmup } = given, end = 2 * Math.max(step, warmup);
  const equation = Array.from({ length: 200 }, (_, at) => Math.max(1, Math.round((end * (at + 1)) / 200))).map((each) => [each, learningRate(each, size, warmup)]);
  const run = await getJson(`api/v1/runs/${encodeURIComponent(found.explanation.model.name ?? "")}?from=0`).catch(() => ({ train: [] }));
  return lineChart("Learning rate", { "equation (3)": equation, "as trained": run.train.map(({ step: at, lr }) => [at, lr]) }, { mark: step });
}
