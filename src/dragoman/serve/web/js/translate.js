// Translate: a text in, its translation as the search finds it, and both in pieces.

import { stream, useKey } from "./api.js";
import { fill, h, number, shown } from "./dom.js";
import { choose, look } from "./look.js";

const SHORT = 64; // tokens of a sentence that is looked into at once; longer ones are when a view wants them
const part = {}; // the elements that change
let store;
let going = null; // what stops the translation that runs
let said = null; // the events of the last one: {start, done}
let at = 0; // the sentence that all views are about
let seen = {}; // the state that is shown

export const view = {
  name: "translate",

  mount(section, itsStore) {
    store = itsStore;
    part.text = h("textarea", { id: "text", rows: 4, dir: "auto", spellcheck: "false", onkeydown: onKey });
    part.said = h("div", { class: "said", dir: "auto", role: "region", "aria-label": "Translation", "aria-live": "polite", tabindex: "0" });
    part.beam = h("input", { type: "number", min: 1 });
    part.alpha = h("input", { type: "number", step: 0.1, "aria-label": "α of the length penalty" });
    part.most = h("input", { type: "number", min: 1, placeholder: "auto" });
    part.search = h("span", { class: "row" },
      h("label", {}, "Beam ", part.beam), h("label", {}, "α ", part.alpha), h("label", {}, "Most tokens ", part.most));
    part.go = h("button", { class: "main" });
    part.stop = h("button", { type: "button", disabled: true, onclick: stop }, "Stop");
    part.status = h("span", { class: "dim", role: "status" });
    part.error = h("p", { class: "error", role: "alert" });
    part.key = h("label", { hidden: true }, "Key ",
      h("input", { type: "password", autocomplete: "off", oninput: (event) => useKey(event.target.value) }));
    part.pieces = h("div");
    part.detail = h("p", { class: "dim detail" });
    section.append(
      h("form", { onsubmit: (event) => { event.preventDefault(); start(); } },
        h("div", { class: "two" },
          h("div", {}, h("label", { for: "text" }, "Text"), part.text, part.error, part.key),
          h("div", {}, h("span", { "aria-hidden": "true" }, "Translation"), part.said)),
        h("div", { class: "row" }, part.search, part.go, part.stop, part.status)),
      part.pieces, part.detail);
    part.text.focus();
  },

  show(state) {
    const before = seen;
    seen = { ...state };
    if (state.locked) part.key.hidden = false; // and it stays: the key may be wrong
    if (before.model !== state.model || before.pair !== state.pair) newModel(state);
    else if (before.explanation !== state.explanation) showPieces(state);
  },
};

const stop = () => going?.abort();
addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });

function onKey(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) part.text.form.requestSubmit();
}

function newModel({ model, pair }) {
  const single = model && !pair;
  stop();
  said = null;
  part.search.hidden = single;
  fill(part.go, single ? "Look inside" : "Translate");
  part.beam.value = model?.beam ?? "";
  part.alpha.value = model?.alpha ?? "";
  part.text.lang = pair?.source ?? "";
  part.said.lang = pair?.target ?? "";
  fill(part.error);
  fill(part.status);
  fill(part.said, single && `${model.run} is ${model.architecture}: it reads one text and translates nothing. `
    + "Attention, Steps and Paper show what it makes of a text.");
  showPieces(store.state);
}

async function start() {
  const { model, pair, inside } = store.state;
  const text = part.text.value;
  const missing = !model ? "The server is still loading its model." : !text.trim() ? "There is no text yet; type one."
    : !pair && !inside ? "This server was started with --no-explain, so it cannot look inside." : "";
  fill(part.error, missing);
  if (missing) return part.text.focus();
  stop();
  choose(store, pair ? "" : text);
  if (pair) return translate(text, pair);
  await look(store);
  fill(part.error, store.state.problem);
}

async function translate(text, pair) {
  const fields = { beam: part.beam.value, alpha: part.alpha.value, max_length: part.most.value };
  const options = Object.fromEntries(Object.entries(fields).filter(([, value]) => value).map(([name, value]) => [name, Number(value)]));
  store.set({ options });
  const { signal } = (going = new AbortController());
  const began = performance.now();
  const seconds = () => `${((performance.now() - began) / 1000).toFixed(1)} s`;
  said = {};
  running(true);
  try {
    for await (const { event, data } of stream("api/v1/stream", { q: text, ...pair, ...options }, signal)) {
      if (event === "error") throw new Error(data.error);
      said[event] = data;
      if (event === "step") paint(data);
      fill(part.status, `${seconds()}${event === "step" ? `, step ${data.i}` : ""}`);
    }
    if (!said.done) throw new Error("The connection ended before the translation did; try again.");
    finish(said.done, seconds());
  } catch (error) {
    if (going?.signal !== signal) return; // another has begun
    fill(part.status, signal.aborted && `Stopped after ${seconds()}.`);
    fill(part.error, !signal.aborted && error.message);
    if (error.status === 403) store.set({ locked: true });
  }
  if (going?.signal === signal) running(false);
}

function running(is) {
  part.stop.disabled = !is;
  part.said.ariaBusy = String(is); // read aloud when it is whole
  if (is) fill(part.said);
  else going = null;
}

/** What can no longer change, and what still can. */
function paint({ best, stable_text: stable }) {
  const fixed = best.startsWith(stable) ? stable : "";
  fill(part.said, fixed, h("span", { class: "open" }, best.slice(fixed.length)));
}

function finish({ text, sentences, warnings }, seconds) {
  const tokens = sentences.reduce((sum, sentence) => sum + sentence.tokens.length, 0);
  fill(part.said, text);
  fill(part.status, [seconds, `${number(tokens)} tokens`, ...warnings].join(", "));
  lookAt(0);
  store.set({ translated: store.state.translated + 1 });
}

/** The sentence that all views are about. */
function lookAt(place) {
  at = place;
  const sentence = said.done.sentences[at];
  choose(store, sentence?.source ?? "");
  showPieces(store.state);
  if (sentence?.tokens.length <= SHORT && store.state.inside) look(store);
}

// The pieces

function showPieces({ pair, explanation }) {
  const sentences = said?.done?.sentences ?? [];
  const source = explanation?.source ?? said?.start?.sentences[at];
  const { tokens, token_scores: scores } = sentences[at] ?? {};
  const target = tokens?.map((piece, place) => ({ piece, logprob: scores[place] })) ?? explanation?.steps;
  fill(part.detail);
  fill(part.pieces,
    sentences.length > 1 && h("p", {}, h("label", {}, "Sentence ",
      h("select", { onchange: (event) => lookAt(Number(event.target.value)) },
        sentences.map((each, place) => h("option", { value: place, selected: place === at }, `${place + 1}: ${each.source}`))))),
    source?.pieces?.length > 0 && pieces("The text in pieces", pair?.source, source.pieces.map(sourcePiece, source)),
    target?.length > 0 && [
      pieces("Token by token", pair?.target, target.map(targetPiece)),
      h("p", { class: "dim" }, "The stronger the colour the more probable; ", h("span", { class: "token doubt" }, "striped"),
        " is below one half. Pieces that the vocabulary lacks are ", h("span", { class: "unknown" }, "underlined"), "."),
    ]);
}

const pieces = (title, lang, children) => [h("h2", {}, title), h("p", { class: "tokens", dir: "auto", lang }, children)];

function sourcePiece(piece, place) {
  const unknown = this.unk?.includes(place);
  const facts = `piece ${place + 1}: “${piece}”${this.ids ? `, id ${this.ids[place]}` : ""}${unknown ? ", not in the vocabulary" : ""}`;
  return button(piece, unknown ? "unknown" : "", facts, { view: "attention", kind: "encoder", token: place + 1 });
}

function targetPiece({ piece, logprob }, place) {
  const p = Math.exp(logprob);
  const facts = `token ${place + 1}: “${piece}”, probability ${number(p, 4)}`;
  return button(piece, p < 0.5 ? "doubt" : "tinted", facts, { view: "steps", target: place + 1 }, p);
}

/** A piece that says its facts when it is pointed at or reached by keys, and leads on to a view. */
function button(piece, mark, facts, place, p = 0) {
  const say = () => fill(part.detail, facts);
  const go = () => { if (store.state.inside) store.set(place); };
  const looks = { type: "button", class: `token ${mark}`, title: facts, "--p": p.toFixed(3) };
  return h("button", { ...looks, onclick: go, onfocus: say, onmouseenter: say }, shown(piece));
}
