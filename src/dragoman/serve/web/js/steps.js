// Steps: each token of the translation, what else could have stood there, and the run that goes another way.

import { explain } from "./api.js";
import { arrive, bar, find, h, number, refill, shown, table, tableOf, within } from "./dom.js";
import { look, question, set, state } from "./state.js";

const [form, body] = find("steps").children, [typed] = form.elements, beside = h("div", { "aria-live": "polite" });
let current;

form.onsubmit = (event) => {
  event.preventDefault();
  const { target_prefix, chosen } = state.explanation.asked;
  look({ target_prefix, chosen, reference: typed.value || null });
};

export const on = ["explanation", "target", "token"];

export function show({ explanation, target, token }) {
  const { candidates, reference, steps } = explanation;
  if (current !== explanation) {
    current = explanation;
    typed.value = reference?.text ?? "";
    arrive(beside, Promise.resolve());
  }
  form.hidden = !candidates;
  const place = candidates ? "target" : "token"; // a model of one text has but one row of tokens
  const at = within(candidates ? target : token, steps.length, 1) - 1, choose = (chosen) => set({ [place]: chosen + 1 });
  refill(body,
    h("p.dim", "Bars are entropy: how much the model doubted what to say there; 0 nats is no doubt."),
    h("div.two", column(explanation, at, candidates ? "The translation" : "The text", "own", choose), beside),
    reference && [h("h2", "Your translation"), tableOf(reference.table)]);
}

/** Tokens, and of one of them what could have stood there; of the `own` ones this can be tried. */
function column(explanation, at, title, name, choose) {
  const { steps, reference, candidates } = explanation, most = Math.max(...steps.map(({ entropy }) => entropy), 1);
  const { said, top } = steps[at], forces = candidates && name === "own";
  return h("div",
    h("h2", title),
    h("div.spark", { role: "group", "aria-label": `${title}, token by token` }, steps.map(({ piece, entropy, said }, place) => h("button", {
      id: `${name}-${place + 1}`, "aria-pressed": String(place === at), "aria-label": said, "--p": entropy / most,
      onclick: () => choose(place),
    }, shown(piece)))),
    h("p", said),
    h("p", reference?.said[at]),
    table(`What could stand at token ${at + 1}`, ["piece", "probability", ...(forces ? ["another way"] : [])],
      top.map(([piece, p], place) => [shown(piece), bar(p), ...(forces ? [another(explanation, at, piece, place)] : [])])));
}

function another(explanation, at, piece, place) {
  if (piece === explanation.steps[at].piece) return "it stands there";
  const prefix = beginning(explanation, at, piece), onclick = () => arrive(beside, forced(explanation, at, prefix));
  return prefix === null ? "–"
    : h("button", { id: `use-${place + 1}`, "aria-label": `Use this instead: ${shown(piece)}`, onclick }, "Use this instead");
}

/** The text that ends with another piece at a step; null where pieces make no text: an end token, a part of a character. */
export function beginning({ target: { pieces, text } }, at, piece) {
  const special = (each) => /^<.*>$/.test(each), words = special(pieces.at(-1)) ? pieces.slice(0, -1) : pieces;
  const glue = ["", " "].find((each) => words.join(each).replace(/@@ /g, "").trim() === text.trim());
  if (glue === undefined || special(piece) || /\\x[0-9a-f]{2}/.test(piece)) return null;
  return [...words.slice(0, at), piece].join(glue).trimStart();
}

async function forced({ candidates, chosen }, at, prefix) {
  refill(beside, h("p", `Looking for what begins with “${prefix}” …`));
  const other = await explain({ ...question({ target_prefix: prefix }), attention: [] });
  const { candidates: [{ text, score }], steps } = other, first = h("div");
  const choose = (place) =>
    refill(first, column(other, Math.min(place, steps.length - 1), `If it began with “${prefix}”`, "other", choose));
  choose(at);
  return [
    first, h("p.answer", { dir: "auto" }, text),
    h("p", `Its score is ${number(score)}; that of the one beside it is ${number(candidates[chosen].score)}.`),
    h("button", { id: "take", onclick: () => look({ target_prefix: prefix }) }, "Show this one in all views"),
  ];
}
