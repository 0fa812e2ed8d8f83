// Translate: a text in, its translation as the search finds it, and both in pieces.

import { secret, stream } from "./api.js";
import { fill, find, h, number, shown } from "./dom.js";
import { choose, look, set, state } from "./state.js";

const SHORT = 64; // tokens of a sentence looked into at once; longer ones when a view wants them
const form = find("translate").firstElementChild, { text, beam, alpha, key, go, stop } = form.elements;
const output = form.querySelector(".said"), refusal = find("refusal"), status = find("status"), detail = find("detail");
let going = new AbortController();
let said = {}; // the events of the last one: {start, done}
let at = 0; // the sentence that the views are about
let model, pair;

const halt = () => going.abort();
stop.onclick = halt;
addEventListener("keydown", ({ key }) => key === "Escape" && halt());
text.onkeydown = ({ key, ctrlKey, metaKey }) => { if (key === "Enter" && (ctrlKey || metaKey)) form.requestSubmit(); };
key.oninput = () => { secret.key = key.value; };
form.onsubmit = (event) => {
  event.preventDefault();
  start();
};
setTimeout(() => text.focus()); // when it is shown

export const on = ["locked", "model", "pair", "explanation"];

export function show(state) {
  if (state.locked) key.parentElement.hidden = false; // and it stays: the key may be wrong
  if (model !== state.model || pair !== state.pair) newModel(state);
  showPieces();
}

function newModel(state) {
  ({ model, pair } = state);
  const single = model && !pair;
  halt();
  find("search").hidden = single;
  fill(go, single ? "Look inside" : "Translate");
  beam.value = model?.beam ?? "";
  alpha.value = model?.alpha ?? "";
  text.lang = pair?.source ?? "";
  output.lang = pair?.target ?? "";
  fill(refusal);
  clear(single && `${model.run} is ${model.architecture}: it reads one text and translates nothing. `
    + "Attention, Steps and Paper show what it makes of a text.");
}

function clear(note) {
  said = {};
  fill(status);
  fill(output, note);
  showPieces();
}

async function start() {
  const missing = !model ? "The server is still loading its model." : !text.value.trim() ? "There is no text yet; type one."
    : !pair && !state.inside && "This server was started with --no-explain, so it cannot look inside.";
  fill(refusal, missing);
  if (missing) return text.focus();
  halt();
  choose(pair ? "" : text.value);
  if (pair) return translate();
  await look();
  fill(refusal, state.problem);
}

async function translate() {
  const fields = Array.from(new FormData(form)).filter(([, value]) => value), began = performance.now();
  set({ options: Object.fromEntries(fields.map(([name, value]) => [name, Number(value)])) });
  const { signal } = (going = new AbortController());
  const seconds = () => `${((performance.now() - began) / 1000).toFixed(1)} s`;
  const runs = (is) => {
    stop.disabled = !is;
    output.ariaBusy = String(is); // read aloud when it is whole
  };
  clear();
  runs(true);
  try {
    for await (const { event, data } of stream("api/v1/stream", { q: text.value, ...pair, ...state.options }, signal)) {
      if (event === "error") throw new Error(data.error);
      said[event] = data;
      if (event === "step") paint(data);
      fill(status, seconds(), event === "step" && `, step ${data.i}`);
    }
    if (!said.done) throw new Error("The connection ended before the translation did; try again.");
    finish(said.done, seconds());
  } catch (error) {
    if (going.signal !== signal) return; // another has begun
    fill(status, signal.aborted && `Stopped after ${seconds()}.`);
    fill(refusal, !signal.aborted && error.message);
    if (error.status === 403) set({ locked: true });
  }
  if (going.signal === signal) runs(false);
}

/** What can no longer change, and what still can. */
function paint({ best, stable_text: stable }) {
  const fixed = best.startsWith(stable) ? stable : "";
  fill(output, fixed, h("span.open", best.slice(fixed.length)));
}

function finish({ text, sentences, warnings }, seconds) {
  const tokens = sentences.reduce((sum, { tokens }) => sum + tokens.length, 0);
  fill(output, text);
  fill(status, [seconds, `${number(tokens)} tokens`, ...warnings].join(", "));
  lookAt(0);
  set({ translated: state.translated + 1 });
}

function lookAt(place) {
  at = place;
  const sentence = said.done.sentences[at];
  choose(sentence?.source ?? "");
  showPieces();
  if (sentence?.tokens.length <= SHORT && state.inside) look();
}

function showPieces() {
  const { explanation } = state, sentences = said.done?.sentences ?? [], { tokens, token_scores: scores } = sentences[at] ?? {};
  const source = explanation?.source ?? said.start?.sentences[at];
  const target = tokens?.map((piece, place) => ({ piece, logprob: scores[place] })) ?? explanation?.steps;
  fill(detail);
  fill(find("pieces"),
    sentences.length > 1 && h("p", h("label", "Sentence ", h("select", { onchange: (event) => lookAt(event.target.selectedIndex) },
      sentences.map((each, place) => h("option", { selected: place === at }, `${place + 1}: ${each.source}`))))),
    source?.pieces?.length > 0 && pieces("The text in pieces", pair?.source, source.pieces.map((piece, place) => {
      const unknown = source.unk?.includes(place), id = source.ids ? `, id ${source.ids[place]}` : "";
      return button(`piece ${place + 1}`, piece, unknown ? "unknown" : "known", `${id}${unknown ? ", not in the vocabulary" : ""}`,
        { view: "attention", kind: "encoder", token: place + 1 });
    })),
    target?.length > 0 && [
      pieces("Token by token", pair?.target, target.map(({ piece, logprob }, place) => {
        const p = Math.exp(logprob), mark = p < 0.5 ? "doubt" : "tinted";
        return button(`token ${place + 1}`, piece, mark, `, probability ${number(p, 4)}`, { view: "steps", target: place + 1 }, p);
      })),
      h("p.dim", "The stronger the colour the more probable; ", h("span.token.doubt", "striped"),
        " is below one half. Pieces that the vocabulary lacks have a ", h("span.unknown", "wavy line"), "."),
    ]);
}

const pieces = (title, lang, children) => [h("h2", title), h("p.tokens", { dir: "auto", lang }, children)];

/** Says its facts when pointed at or reached by keys, and leads to a view. */
function button(name, piece, mark, facts, place, p) {
  const title = `${name}: “${piece}”${facts}`, onfocus = () => fill(detail, title), onclick = () => state.inside && set(place);
  return h(`button.token.${mark}`, { title, "--p": p, onclick, onfocus, onmouseenter: onfocus }, shown(piece));
}
