// Steps: each token of the translation, what else could have stood there, and the run that goes another way.

import { explain } from "./api.js";
import { fill, h, number, shown, table } from "./dom.js";
import { look, question } from "./look.js";

const part = {};
let store, drawn = null, other = null; // other: {explanation, prefix, at, error} of a forced beginning

export const view = {
  name: "steps",

  mount(section, itsStore) {
    store = itsStore;
    part.text = h("input", { type: "text", id: "reference", size: 40, dir: "auto" });
    part.form = h("form", { class: "row", onsubmit: compare }, h("label", {}, "A translation of yours ", part.text), h("button", {}, "Compare"));
    part.body = h("div", {});
    section.append(part.form, part.body);
  },

  show(state) {
    const key = [state.explanation, state.target, other].map((each, at) => (at === 1 ? each : each === drawn?.[at] ? 0 : 1)).join();
    if (drawn && key === `0,${drawn[1]},0`) return;
    if (drawn?.[0] !== state.explanation) {
      other = null;
      part.text.value = state.explanation.reference?.text ?? part.text.value;
    }
    drawn = [state.explanation, state.target, other];
    part.form.hidden = !state.explanation.candidates;
    draw(state);
  },
};

function compare(event) {
  event.preventDefault();
  look(store, { ...kept(store.state.explanation), reference: part.text.value || null });
}

/** What was asked of an explanation beside its sentence. */
function kept({ asked: { target_prefix, chosen } }) {
  return { target_prefix, chosen };
}

function draw(state) {
  const { explanation } = state, { steps } = explanation;
  const at = Math.min(Math.max(state.target ?? 1, 1), steps.length) - 1;
  const id = document.activeElement?.id;
  fill(part.body,
    h("p", { class: "dim" }, "Bars are entropy: how much the model doubted what to say there; 0 nats is no doubt."),
    h("div", { class: "two" },
      column(explanation, at, {
        title: explanation.candidates ? "The translation" : "The text", name: "own",
        choose: (place) => store.set({ target: place + 1 }), use: explanation.candidates && ((piece) => force(explanation, at, piece)),
      }),
      other && h("div", { id: "forced" }, forced(explanation))),
    explanation.reference && reference(explanation));
  if (id && part.body.querySelector(`#${CSS.escape(id)}`)) document.getElementById(id).focus();
}

const most = ({ steps }) => Math.max(...steps.map(({ entropy }) => entropy), 1);

function column(explanation, at, { title, name, choose, use }) {
  const { steps, reference: given } = explanation, step = steps[at], greatest = most(explanation);
  const sure = (logprob) => number(Math.exp(logprob));
  return h("div", {},
    h("h2", {}, title),
    h("div", { class: "spark", role: "group", "aria-label": `${title}, token by token` }, steps.map((each, place) => h("button", {
      type: "button", id: `${name}-${place + 1}`, "aria-pressed": String(place === at), "--p": (each.entropy / greatest).toFixed(3), onclick: () => choose(place),
      "aria-label": `${place + 1}: ${shown(each.piece)}, entropy ${number(each.entropy, 3)} nats`,
    }, shown(each.piece)))),
    h("p", {}, `Token ${at + 1}, “${shown(step.piece)}”: probability ${sure(step.logprob)}, rank ${number(step.rank)}, entropy ${number(step.entropy, 3)} nats.`),
    given && h("p", {}, inReference(steps, given, at)),
    table(`What could stand at token ${at + 1}`, ["piece", "probability", ...(use ? ["another way"] : [])], step.top.map(([piece, p]) => [
      piece === step.piece ? h("b", {}, shown(piece)) : shown(piece), [h("span", { class: "bar", "--p": p.toFixed(3) }), ` ${number(p)}`],
      ...(use ? [another(explanation, at, piece, use)] : []),
    ])));
}

function another(explanation, at, piece, use) {
  if (piece === explanation.steps[at].piece) return "is there";
  if (beginning(explanation, at, piece) === null) return "–";
  return h("button", { type: "button", id: `use-${shown(piece)}`, onclick: () => use(piece) }, "Use this instead");
}

/** The text that ends with another piece at a step; null of an end token, and where pieces alone are no text. */
export function beginning({ target, steps }, at, piece) {
  const pieces = target.pieces, ended = /^<.*>$/;
  const parts = (ended.test(pieces.at(-1)) ? pieces.slice(0, -1) : pieces);
  const glue = ["", " "].find((each) => parts.join(each).trim() === target.text.trim());
  if (ended.test(piece) || glue === undefined || /\\x[0-9a-f]{2}/.test(piece) || at >= steps.length) return null;
  return [...parts.slice(0, at), piece].join(glue).trimStart();
}

/** What the model thought of the reference's token at a step, as long as both have said the same before it. */
function inReference(steps, { pieces, steps: theirs }, at) {
  const apart = steps.findIndex(({ piece }, place) => piece !== pieces[place]);
  if (apart >= 0 && at > apart) return `Your translation went another way at token ${apart + 1}; the table below follows it.`;
  const { piece, rank, logprob } = theirs[at];
  return `Your translation has “${shown(piece)}” here: rank ${number(rank)}, probability ${number(Math.exp(logprob))}.`;
}

function reference({ reference: { text, steps } }) {
  return [h("h2", {}, "Your translation"), table(`“${text}”, token by token`, ["token", "probability", "rank", "entropy", "the model's first"],
    steps.map(({ piece, logprob, rank, entropy, top }) => [
      shown(piece), [number(Math.exp(logprob))], [number(rank)], [number(entropy, 3)], rank === 1 ? "the same" : shown(top[0][0]),
    ]))];
}

/** Asks for the best translation that begins with the text up to a step and another piece there. */
async function force(explanation, at, piece) {
  const prefix = beginning(explanation, at, piece), mine = (other = { prefix, at });
  view.show(store.state);
  try {
    const found = await explain({ ...question(store.state, { target_prefix: prefix }), attention: [] });
    if (other === mine) other = { ...mine, explanation: found };
  } catch (error) {
    if (other === mine) other = { ...mine, error: error.message };
  }
  if (store.state.explanation === explanation) view.show(store.state);
}

function forced(explanation) {
  if (other.error) return h("p", { class: "error", role: "alert" }, other.error);
  if (!other.explanation) return h("p", { role: "status" }, `Looking for what begins with “${other.prefix}” …`);
  const found = other.explanation, [best] = found.candidates, own = explanation.candidates[explanation.chosen];
  return [
    column(found, Math.min(other.at, found.steps.length - 1), {
      title: `If it began with “${other.prefix}”`, name: "other", choose: (place) => { other = { ...other, at: place }; view.show(store.state); },
    }),
    h("p", { class: "answer", dir: "auto" }, best.text),
    h("p", {}, `Its score is ${number(best.score)}; that of the one beside it is ${number(own.score)}.`),
    h("p", {}, h("button", { type: "button", id: "take", onclick: () => look(store, { target_prefix: other.prefix }) }, "Show this one in all views")),
  ];
}
