// The frame: which view is shown, which model is asked, light or dark, and the address, which never holds a text.

import { getJson } from "./api.js";
import { fill, h, number } from "./dom.js";
import { look } from "./look.js";
import { createStore } from "./store.js";

const VIEWS = ["translate", "attention", "beams", "steps", "paper", "run"];
const INSIDE = new Set(["attention", "beams", "steps", "paper"]);
const PLACES = ["layer", "head", "token", "target", "kind", "step"]; // numbers from 1, or one word
const find = (id) => document.getElementById(id);
const links = [...document.querySelectorAll("nav a")];

export const store = createStore({
  view: "translate", layer: null, head: null, token: null, target: null, kind: null, step: null,
  models: null, languages: [], inside: true, model: null, pair: null,
  text: "", options: {}, explanation: null, busy: false, problem: "", theme: "light",
});

// The address

/** What an address says of the state; anything else in it is passed over. */
export function placeIn(hash) {
  const said = new URLSearchParams(hash.slice(1));
  const place = { view: VIEWS.includes(said.get("view")) ? said.get("view") : "translate" };
  for (const name of PLACES) {
    const value = said.get(name) ?? "";
    place[name] = /^[1-9]\d{0,3}$/.test(value) ? Number(value) : /^[a-z]{1,10}$/.test(value) ? value : null;
  }
  return place;
}

/** The address of a state, or of another view of it. */
export function hashOf(state, view = state.view) {
  const said = PLACES.filter((name) => state[name] != null).map((name) => `&${name}=${state[name]}`);
  return `#view=${view}${said.join("")}`;
}

function keepAddress(state, names) {
  const hash = hashOf(state);
  links.forEach((link, at) => { link.hash = hashOf(state, VIEWS[at]); });
  if (hash === location.hash || !names.some((name) => name === "view" || PLACES.includes(name))) return;
  if (!location.hash && state.view === "translate") return;
  history[names.includes("view") ? "pushState" : "replaceState"](null, "", hash);
}

// The views

const views = new Map(); // name -> promise of its module, mounted

async function mounted(name) {
  const { view } = await import(`./${name}.js`);
  view.mount(find(name), store);
  return view;
}

async function showView(state) {
  const waits = INSIDE.has(state.view) && !state.explanation;
  const asked = state.text && state.model && state.inside;
  if (waits && asked && !state.busy && !state.problem) return look(store);
  fill(find("notice"), notice(state, waits));
  for (const name of VIEWS) find(name).hidden = name !== state.view || waits;
  links.forEach((link, at) => {
    link.hidden = !state.inside && INSIDE.has(VIEWS[at]);
    if (VIEWS[at] === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  document.title = `${links[VIEWS.indexOf(state.view)].textContent} · Dragoman`;
  if (waits) return;
  const { view } = state;
  if (!views.has(view)) views.set(view, mounted(view));
  const shown = await views.get(view);
  if (store.state.view === view && (!INSIDE.has(view) || store.state.explanation)) shown.show(store.state);
}

function notice(state, waits) {
  if (!state.models) return state.problem || "The server is loading its model …";
  if (!INSIDE.has(state.view)) return "";
  if (!state.inside) return "This server was started with --no-explain, so there is nothing to look at here.";
  if (state.problem) return h("span", { class: "error" }, state.problem);
  if (!waits) return state.busy ? "Looking again …" : "";
  if (state.busy) return "Looking inside …";
  return ["There is no sentence yet. ", h("a", { href: "#view=translate" }, "Give one under Translate"), ", and this view shows it."];
}

// The models

async function loadModels() {
  try {
    const { models, languages, explain = true } = await getJson("api/v1/models");
    store.set({ models, languages, inside: explain, problem: "" });
    fill(find("model"), choices(models, languages).map(({ label, ...choice }) =>
      h("option", { value: JSON.stringify(choice) }, label)));
    chooseModel();
  } catch (error) {
    store.set({ problem: [0, 503].includes(error.status) ? "" : error.message });
    setTimeout(loadModels, 2000);
  }
}

/** What can be chosen: a pair of languages with the model that translates it, or a model that does not translate. */
export function choices(models, languages) {
  const name = (code) => languages.find((language) => language.code === code)?.name ?? code;
  const direct = models.flatMap((model) => model.pairs.map((pair) => ({
    label: `${name(pair.source)} → ${name(pair.target)}`, run: model.run, pair,
  })));
  const known = (source, target) => direct.some(({ pair }) => pair.source === source && pair.target === target);
  const indirect = languages.flatMap(({ code, targets = [] }) => targets.filter((target) => target !== code && !known(code, target))
    .map((target) => ({ label: `${name(code)} → ${name(target)}, through another`, run: null, pair: { source: code, target } })));
  const single = models.filter((model) => !model.pairs.length)
    .map((model) => ({ label: `${model.run}: ${model.architecture ?? "one language"}`, run: model.run, pair: null }));
  return [...direct, ...indirect, ...single];
}

function chooseModel() {
  const { run, pair } = JSON.parse(find("model").value || "{}");
  const { models } = store.state;
  const model = models.find((each) => each.run === run) ?? models.find((each) => each.pairs.some(({ target }) => target === pair?.target));
  const { bleu } = model?.scores ?? {};
  find("facts").textContent = !model ? "" : [
    model.run, model.step && `step ${number(model.step)}`, bleu && `BLEU ${bleu.toFixed(1)}`, `${number(model.parameters)} parameters`,
  ].filter(Boolean).join(", ");
  store.set({ model, pair, explanation: null, problem: "" });
}

// Light and dark, keys

function setTheme(theme, { keep = false } = {}) {
  document.documentElement.dataset.theme = theme;
  find("theme").textContent = theme === "dark" ? "Light" : "Dark";
  try { if (keep) localStorage.setItem("theme", theme); } catch { /* a browser that keeps nothing */ }
  store.set({ theme });
}

function wishedTheme() {
  try { if (localStorage.getItem("theme")) return localStorage.getItem("theme"); } catch { /* the system's, then */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

const otherTheme = () => setTheme(store.state.theme === "dark" ? "light" : "dark", { keep: true });

function onKey(event) {
  const typing = event.target.closest?.("input:not([type=checkbox], [type=radio], [type=range]), textarea, select, dialog");
  if (typing || event.ctrlKey || event.altKey || event.metaKey || !find("single").checked) return;
  const at = "123456".indexOf(event.key);
  if (at >= 0 && !links[at].hidden) store.set({ view: VIEWS[at] });
  else if (event.key === "d") otherTheme();
  else if (event.key === "?") find("help").showModal();
  else if (event.key === "/") {
    store.set({ view: "translate" });
    event.preventDefault();
    requestAnimationFrame(() => find("text")?.focus());
  }
}

setTheme(wishedTheme());
store.set(placeIn(location.hash));
store.subscribe(keepAddress);
store.subscribe((state, names) => { if (names.some((name) => !["options", "models"].includes(name)) || names.includes("models")) showView(state); });
addEventListener("hashchange", () => { if (location.hash !== "#main") store.set(placeIn(location.hash)); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(wishedTheme()));
document.addEventListener("keydown", onKey);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); find("main").focus(); });
find("model").addEventListener("change", chooseModel);
find("theme").addEventListener("click", otherTheme);
find("keys").addEventListener("click", () => find("help").showModal());
keepAddress(store.state, []);
showView(store.state);
loadModels();
