// Paper: the walk through the paper's equations with this sentence's numbers, each computed again, here and by the server.

import { slice, walk } from "./api.js";
import { arrive, drawn, fill, find, h, menu, number, shown, tableOf, wide, within } from "./dom.js";
import { recomputed } from "./numbers.js";
import { set, state } from "./state.js";

const body = find("paper");
let current, asked, walking;

export const on = ["explanation", "layer", "head", "token", "target", "step"];

export function show({ explanation, layer, head, token, target }) {
  const { model, source, steps } = explanation, place = {
    layer: within(layer, Object.values(model.layers)[0]), head: within(head, model.heads),
    token: within(token, source.pieces.length), target_token: within(target, steps.length),
  }; // what is not chosen the walk chooses
  if (current !== explanation) fill(body, h("p", "Walking through the paper …"));
  if (current !== explanation || asked !== JSON.stringify(place)) walking = walk(explanation, place);
  [current, asked] = [explanation, JSON.stringify(place)];
  arrive(body, walking.then((found) => parts(found, explanation)));
}

function parts({ steps, focus }, explanation) {
  const { model, source, target, candidates } = explanation, layers = Object.values(model.layers)[0];
  const choice = (label, name, texts, at) =>
    menu(label, "p", name, Array.from(texts, (text, place) => [place + 1, `${place + 1} ${text ? shown(text) : ""}`]), at + 1);
  const step = steps.find((each) => each.number === state.step) ?? steps[0], at = steps.indexOf(step);
  const go = (to, id, text, more) => h("button", { id, disabled: !to, onclick: () => set({ step: to.number }), ...more }, text);
  const checks = h("ul.checks", h("li", "Computing …"));
  arrive(checks, check(step, explanation));
  return [
    h("div.row",
      choice("Layer", "layer", { length: layers }, focus.layer), choice("Head", "head", { length: model.heads }, focus.head),
      choice("Token of the text", "token", source.pieces, focus.source),
      candidates && choice("Token of the translation", "target", target.pieces, focus.target)),
    h("nav.row", { "aria-label": "Steps of the walk" }, go(steps[at - 1], "p-back", "Back"), go(steps[at + 1], "p-on", "Next"),
      steps.map((each) => go(each, `p-${each.number}`, each.number, {
        title: each.title, "aria-label": `${each.number}: ${each.title}`, "aria-current": each === step && "step",
      }))),
    h("article",
      h("h2", `${step.number} ${step.title} `, h("small.dim", step.place)),
      h("div.two",
        h("div", h("p", step.prose), wide("Equation", drawn(step.mathml)), checks, drawn(step.picture)),
        h("div", step.tables.map(tableOf))),
      step.sources.map(({ title, lines }) => listing(title, lines.map(([text, marked]) => h(marked ? "mark" : "span", `${text}\n`)))),
      step.command && listing("The tensor in a file", step.command)),
  ];
}

const listing = (title, text) => h("figure", h("figcaption", title), h("pre", { tabindex: 0 }, text));

async function check(step, explanation) {
  const own = await recomputed(step, (name, at) => slice(explanation, name, at)).catch(({ message }) => [{ what: message }]);
  return [...own, ...step.checks].map(checked);
}

export function checked({ what, model, difference, count, browser, recomputed: server }) {
  if (model === undefined) return h("li.error", what);
  const few = (value) => h("b", Number.isInteger(value) ? number(value) : value.toPrecision(5)), here = server === undefined;
  return h(here ? "li.browser" : "li.dim", `${what}: recomputed ${here ? "in your browser" : "by the server"}: `, few(browser ?? server),
    " – model: ", few(model), difference === 0 ? ", no difference" : `, difference ${difference.toExponential(0)}`,
    count > 1 && `${difference ? " at most" : ""} in ${number(count)} numbers`);
}
