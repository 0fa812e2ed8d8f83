// Translate: a text in, its translation as the search finds it, and both in pieces.

import { stream, useKey } from "./api.js";
import { fill, h, number, shown } from "./dom.js";
import { choose, look } from "./look.js";

const part = {}; // the elements that change
let store, going = null, done = null, started = null;

export const view = {
  name: "translate",

  mount(section, itsStore) {
    store = itsStore;
    part.text = h("textarea", { id: "text", rows: 5, dir: "auto", spellcheck: "false", onkeydown: onKey });
    part.said = h("div", { id: "said", class: "said", dir: "auto", role: "region", "aria-labelledby": "said-label", "aria-live": "polite", tabindex: "0" });
    part.beam = setting("beam", 1, 1);
    part.alpha = setting("alpha", -10, 0.1);
    part.max_length = setting("max", 1, 1);
    part.max_length.placeholder = "auto";
    part.go = h("button", { class: "main" }, "Translate");
    part.stop = h("button", { type: "button", disabled: true, onclick: () => going?.abort() }, "Stop");
    part.status = h("span", { class: "dim", role: "status" });
    part.error = h("p", { class: "error", role: "alert" });
    part.key = h("label", { class: "row", hidden: true }, "The server's key ",
      h("input", { type: "password", autocomplete: "off", onchange: (event) => useKey(event.target.value) }));
    part.pieces = h("div", {});
    part.detail = h("p", { class: "dim detail" });
    section.append(
      h("form", { onsubmit: (event) => { event.preventDefault(); start(); } },
        h("div", { class: "two" },
          h("div", {}, h("label", { for: "text" }, "Text"), part.text, part.error, part.key),
          h("div", {}, h("span", { id: "said-label" }, "Translation"), part.said)),
        h("div", { class: "row" },
          part.search = h("span", { class: "row" },
            h("label", {}, "Beam ", part.beam), h("label", {}, "α ", part.alpha), h("label", {}, "Most tokens ", part.max_length)),
          part.go, part.stop, part.status)),
      part.pieces, part.detail);
    part.text.focus({ preventScroll: true });
  },

  show(state) {
    if (part.model !== state.model || part.pair !== state.pair) newModel(state);
    if (part.shown !== state.explanation) showPieces(state);
  },
};

function setting(name, min, step) {
  return h("input", { type: "number", name, min, step, "aria-label": { alpha: "α of the length penalty" }[name] });
}

function onKey(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) part.go.form.requestSubmit();
}

addEventListener("keydown", (event) => { if (event.key === "Escape") going?.abort(); });

function newModel(state) {
  Object.assign(part, { model: state.model, pair: state.pair });
  const single = state.model && !state.pair;
  part.search.hidden = single;
  part.go.textContent = single ? "Look inside" : "Translate";
  part.beam.value = state.model?.beam ?? "";
  part.alpha.value = state.model?.alpha ?? "";
  for (const [element, code] of [[part.text, state.pair?.source], [part.said, state.pair?.target]]) element.lang = code ?? "";
  done = started = null;
  fill(part.error);
  fill(part.status);
  fill(part.said, single && h("p", { class: "dim" },
    `${state.model.run} is of the kind ${state.model.architecture}: it reads one text and translates nothing. Attention, Steps and Paper show what it makes of a text.`));
  showPieces(state);
}

async function start() {
  going?.abort();
  const mine = (going = new AbortController());
  const text = part.text.value;
  const { pair } = store.state;
  fill(part.error);
  if (!store.state.model || !text.trim()) {
    fill(part.error, store.state.model ? "There is no text yet." : "The server is still loading its model.");
    part.text.focus();
    return;
  }
  const entries = ["beam", "alpha", "max_length"].map((name) => [name, part[name].value]).filter(([, value]) => value !== "");
  store.set({ options: pair ? Object.fromEntries(entries.map(([name, value]) => [name, Number(value)])) : {} });
  if (!pair) return lookAtText(text);
  done = started = null;
  choose(store, "");
  running(true);
  const began = performance.now();
  const seconds = () => `${((performance.now() - began) / 1000).toFixed(1)} s`;
  try {
    for await (const { event, data } of stream("api/v1/stream", { q: text, ...pair, ...store.state.options }, mine.signal)) {
      if (event === "error") throw new Error(data.error);
      if (event === "start") started = data;
      if (event === "step") {
        paint(data);
        fill(part.status, `${seconds()}, step ${data.i}`);
      }
      if (event === "done") finish(data, seconds());
    }
    if (!done) throw new Error("The connection ended before the translation did.");
  } catch (error) {
    if (mine !== going) return;
    fill(part.status, mine.signal.aborted ? `Stopped after ${seconds()}.` : "");
    if (!mine.signal.aborted) fill(part.error, error.message);
    part.key.hidden = error.status !== 403 && part.key.hidden;
  } finally {
    if (mine === going) running(false);
  }
}

function running(is) {
  part.stop.disabled = !is;
  part.said.setAttribute("aria-busy", is);
  if (!is) going = null;
  else fill(part.said);
}

/** What can no longer change, and what still can. */
function paint({ best, stable_text: stable }) {
  const fixed = best.startsWith(stable) ? stable : "";
  fill(part.said, fixed, h("span", { class: "open" }, best.slice(fixed.length)));
}

function finish(data, seconds) {
  done = data;
  fill(part.said, data.text);
  const tokens = data.sentences.reduce((sum, sentence) => sum + sentence.tokens.length, 0);
  const warned = data.warnings.length ? `, with a warning: ${data.warnings.join(", ")}` : "";
  fill(part.status, `${seconds}, ${tokens} tokens${warned}`);
  lookAt(0);
}

async function lookAtText(text) {
  choose(store, text);
  if (!store.state.inside) return fill(part.error, "This server was started with --no-explain, so it cannot look inside.");
  await look(store);
  fill(part.error, store.state.problem);
}

/** Another of the sentences is the one that all views are about. */
function lookAt(at) {
  part.at = at;
  const sentence = done.sentences[at];
  choose(store, sentence?.source ?? "");
  showPieces(store.state);
  if (sentence && store.state.inside && sentence.tokens.length <= 64) look(store); // longer ones when a view wants them
}

// The pieces

function showPieces(state) {
  const { explanation } = (part.shown = state.explanation, state);
  const sentence = done?.sentences[part.at];
  const source = explanation?.source ?? { pieces: started?.sentences[part.at]?.pieces ?? [] };
  const target = sentence
    ? sentence.tokens.map((piece, at) => ({ piece, p: Math.exp(sentence.token_scores[at]) }))
    : (explanation?.steps ?? []).map(({ piece, logprob }) => ({ piece, p: Math.exp(logprob) }));
  const sentences = done?.sentences.length > 1 && h("label", {}, "Sentence ",
    h("select", { onchange: (event) => lookAt(Number(event.target.value)) },
      done.sentences.map((each, at) => h("option", { value: at, selected: at === part.at }, `${at + 1}: ${each.source}`))));
  fill(part.detail);
  fill(part.pieces,
    sentences && h("p", { class: "row" }, sentences),
    source.pieces.length > 0 && [
      h("h2", {}, "The text in pieces"),
      h("p", { class: "tokens", dir: "auto", lang: state.pair?.source }, source.pieces.map((piece, at) => sourcePiece(source, piece, at))),
    ],
    target.length > 0 && [
      h("h2", {}, state.pair ? "The translation, token by token" : "How each follows from the others"),
      h("p", { class: "tokens", dir: "auto", lang: state.pair?.target }, target.map(targetPiece)),
      h("p", { class: "dim" }, "The stronger the colour, the more probable; ", h("span", { class: "token doubt" }, "striped"), " is below one half. Unknown pieces are ",
        h("span", { class: "unknown" }, "underlined"), "."),
    ]);
}

function sourcePiece({ ids, unk = [] }, piece, at) {
  const unknown = unk.includes(at);
  const facts = [`piece ${at + 1}: “${piece}”`, ids && `id ${ids[at]}`, unknown && "not in the vocabulary"].filter(Boolean).join(", ");
  return token(piece, `token${unknown ? " unknown" : ""}`, facts, { view: "attention", kind: "encoder", token: at + 1 });
}

function targetPiece({ piece, p }, at) {
  const facts = `token ${at + 1}: “${piece}”, probability ${number(p)}`;
  return token(piece, `token tinted${p < 0.5 ? " doubt" : ""}`, facts, { view: "steps", target: at + 1 }, p);
}

/** A piece that says its facts when it is pointed at or reached by keys, and leads on to a view. */
function token(piece, className, facts, place, p = 0) {
  const say = () => fill(part.detail, facts);
  return h("button", {
    type: "button", class: className, title: facts, "--p": p.toFixed(3), onfocus: say, onmouseenter: say,
    onclick: () => { if (store.state.inside) store.set(place); },
  }, shown(piece));
}
