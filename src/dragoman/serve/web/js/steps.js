// Steps: each token of the translation, what else could have stood there, and the run that goes another way.

import { explain } from "./api.js";
import { bar, h, number, refill, shown, table } from "./dom.js";
import { look, question } from "./look.js";

const part = {};
let store, other = null; // other: {prefix, at, explanation or error} of a forced beginning

export const view = {
  name: "steps",

  mount(section, itsStore) {
    store = itsStore;
    part.text = h("input", { type: "text", size: 40, dir: "auto" });
    part.form = h("form", { class: "row", onsubmit: compare },
      h("label", {}, "A translation of yours, to be judged token by token ", part.text), h("button", {}, "Compare"));
    section.append(part.form, part.body = h("div", {}));
  },

  show({ explanation, target: chosen, token }) {
    const target = explanation.candidates ? chosen : token; // of a model of one text there is but one row of tokens
    if (part.explanation === explanation && part.target === target && part.other === other) return;
    if (part.explanation !== explanation) {
      other = null;
      part.text.value = explanation.reference?.text ?? "";
    }
    Object.assign(part, { explanation, target, other });
    part.form.hidden = !explanation.candidates;
    draw(explanation, Math.min(Number.isInteger(target) ? target : 1, explanation.steps.length) - 1); // an address may have a word there
  },
};

function compare(event) {
  event.preventDefault();
  const { target_prefix, chosen } = store.state.explanation.asked;
  look(store, { target_prefix, chosen, reference: part.text.value || null });
}

function draw(explanation, at) {
  const { candidates, reference } = explanation;
  refill(part.body,
    h("p", { class: "dim" }, "Bars are entropy: how much the model doubted what to say there; 0 nats is no doubt."),
    h("div", { class: "two" },
      column(explanation, at, candidates ? "The translation" : "The text", "own",
        (place) => store.set({ [candidates ? "target" : "token"]: place + 1 }), candidates),
      h("div", { "aria-live": "polite" }, other && forced(explanation))),
    reference && [h("h2", {}, "Your translation"),
      table(`“${reference.text}”, token by token`, ["token", "probability", "rank", "entropy", "the model's first"],
        reference.steps.map(({ piece, logprob, rank, entropy, top }) => [
          shown(piece), [number(Math.exp(logprob))], [number(rank)], [number(entropy, 3)], rank === 1 ? "the same" : shown(top[0][0]),
        ]))]);
}

/** Tokens with their entropy, and of one of them what could have stood there. */
function column(explanation, at, title, name, choose, forces = false) {
  const { steps, reference } = explanation, most = Math.max(...steps.map(({ entropy }) => entropy), 1);
  const { piece: own, logprob, rank, entropy: doubt, top } = steps[at];
  return h("div", {},
    h("h2", {}, title),
    h("div", { class: "spark", role: "group", "aria-label": `${title}, token by token` },
      steps.map(({ piece, entropy }, place) => h("button", {
        type: "button", id: `${name}-${place + 1}`, "aria-pressed": String(place === at), "--p": (entropy / most).toFixed(3),
        onclick: () => choose(place), "aria-label": `${place + 1}: ${shown(piece)}, entropy ${number(entropy, 3)} nats`,
      }, shown(piece)))),
    h("p", {}, `Token ${at + 1}, “${shown(own)}”: probability ${number(Math.exp(logprob))}, rank ${number(rank)}, `,
      `entropy ${number(doubt, 3)} nats.`),
    reference && h("p", {}, inReference(steps, reference, at)),
    table(`What could stand at token ${at + 1}`, ["piece", "probability", ...(forces ? ["another way"] : [])],
      top.map(([piece, p], place) => [shown(piece), bar(p), ...(forces ? [another(explanation, at, piece, place)] : [])])));
}

function another(explanation, at, piece, place) {
  if (piece === explanation.steps[at].piece) return "it stands there";
  const prefix = beginning(explanation, at, piece);
  if (prefix === null) return "–";
  const attributes = { type: "button", id: `use-${place + 1}`, "aria-label": `Use this instead: ${shown(piece)}` };
  return h("button", { ...attributes, onclick: () => force(explanation, at, prefix) }, "Use this instead");
}

/** The text that ends with another piece at a step; null where pieces make no text: of an end token, and of a part of a character. */
export function beginning({ target: { pieces, text } }, at, piece) {
  const special = (each) => /^<.*>$/.test(each), words = special(pieces.at(-1)) ? pieces.slice(0, -1) : pieces;
  const glue = ["", " "].find((each) => words.join(each).trim() === text.trim());
  if (glue === undefined || special(piece) || /\\x[0-9a-f]{2}/.test(piece)) return null;
  return [...words.slice(0, at), piece].join(glue).trimStart();
}

/** What the model thought of the reference's token at a step, as long as both say the same before it. */
function inReference(steps, { pieces, steps: theirs }, at) {
  const apart = steps.findIndex(({ piece }, place) => piece !== pieces[place]);
  if (apart >= 0 && at > apart) return `Your translation went another way at token ${apart + 1}; the table below follows it.`;
  const { rank, logprob } = theirs[at];
  return `Your translation has “${shown(pieces[at])}” here: rank ${number(rank)}, probability ${number(Math.exp(logprob))}.`;
}

/** Asks for the best translation with a given beginning. */
async function force(explanation, at, prefix) {
  const mine = (other = { prefix, at });
  view.show(store.state);
  const found = await explain({ ...question(store.state, { target_prefix: prefix }), attention: [] })
    .then((answer) => ({ explanation: answer }), (error) => ({ error: error.message }));
  if (other !== mine || store.state.explanation !== explanation) return;
  other = { ...mine, ...found };
  view.show(store.state);
}

function forced({ candidates, chosen }) {
  const { prefix, at, error, explanation } = other;
  if (error) return h("p", { class: "error" }, error);
  if (!explanation) return h("p", {}, `Looking for what begins with “${prefix}” …`);
  const [best] = explanation.candidates, choose = (place) => { other = { ...other, at: place }; view.show(store.state); };
  return [
    column(explanation, Math.min(at, explanation.steps.length - 1), `If it began with “${prefix}”`, "other", choose),
    h("p", { class: "answer", dir: "auto" }, best.text),
    h("p", {}, `Its score is ${number(best.score)}; that of the one beside it is ${number(candidates[chosen].score)}.`),
    h("button", { type: "button", id: "take", onclick: () => look(store, { target_prefix: prefix }) }, "Show this one in all views"),
  ];
}
