// The frame: which view is shown, which model is asked, light or dark, and the address, which never holds a text.

import { getJson } from "./api.js";
import { fill, h, number } from "./dom.js";
import { look } from "./look.js";
import { createStore } from "./store.js";

const VIEWS = ["translate", "attention", "beams", "steps", "paper", "run"];
const INSIDE = VIEWS.slice(1, 5);
const GONE = ", no longer served";
const PLACES = ["layer", "head", "token", "target", "kind", "step"]; // numbers from 1, or a word
const find = (id) => document.getElementById(id);
const links = [...document.querySelectorAll("nav a")];
const dark = matchMedia("(prefers-color-scheme: dark)");

const store = createStore({
  view: "translate", layer: null, head: null, token: null, target: null, kind: null, step: null,
  models: null, inside: true, model: null, pair: null, text: "", options: {},
  explanation: null, translated: 0, busy: false, problem: "", locked: false, theme: "light",
});

// The address

/** What an address says of the state; anything else in it is passed over. */
export function placeIn(hash) {
  const said = new URLSearchParams(hash.slice(1));
  const place = { view: VIEWS.find((name) => name === said.get("view")) ?? "translate" };
  for (const name of PLACES) {
    const value = said.get(name) ?? "";
    place[name] = /^[1-9]\d{0,3}$/.test(value) ? Number(value) : /^[a-z]{1,10}$/.test(value) ? value : null;
  }
  return place;
}

/** The address of a state, or of another view of it. */
export function hashOf(state, view = state.view) {
  const places = PLACES.filter((name) => state[name] !== null).map((name) => `&${name}=${state[name]}`);
  return `#view=${view}${places.join("")}`;
}

function keepAddress(state, names) {
  links.forEach((link, at) => { link.href = hashOf(state, VIEWS[at]); });
  if (hashOf(placeIn(location.hash)) === hashOf(state)) return;
  history[names.includes("view") ? "pushState" : "replaceState"](null, "", hashOf(state));
}

// The views

const views = new Map(); // name -> promise of its view, mounted

async function mounted(name) {
  const { view } = await import(`./${name}.js`);
  view.mount(find(name), store);
  return view;
}

async function showView(state) {
  const { view } = state;
  const waits = INSIDE.includes(view) && !state.explanation;
  if (waits && state.text && state.model && state.inside && !state.busy && !state.problem) return look(store);
  fill(find("notice"), notice(state, waits));
  VIEWS.forEach((name, at) => {
    find(name).hidden = name !== view || waits;
    links[at].hidden = !state.inside && INSIDE.includes(name);
    links[at].ariaCurrent = name === view ? "page" : null;
    if (name === view) document.title = `${links[at].textContent} · Dragoman`;
  });
  if (waits) return;
  if (!views.has(view)) views.set(view, mounted(view));
  const shown = await views.get(view).catch(() => views.delete(view) && null);
  if (find(view).hidden) return;
  if (shown) shown.show(store.state);
  else fill(find("notice"), h("span", { class: "error" }, "The server does not send this view; when it runs, load the page again."));
}

function notice(state, waits) {
  if (!state.models && state.view !== "run") return state.problem || "The server is loading its model …";
  if (!INSIDE.includes(state.view)) return "";
  if (!state.inside) return "This server was started with --no-explain, so there is nothing to look at here.";
  if (state.problem) return h("span", { class: "error" }, state.problem);
  if (state.busy) return waits ? "Looking inside …" : "Looking again …";
  return waits && ["There is no sentence yet. ", h("a", { href: "#view=translate" }, "Give one under Translate"), "."];
}

// The models

async function loadModels() {
  try {
    const { models, languages, explain = true } = await getJson("api/v1/models");
    offer(models, languages);
    store.set({ models, inside: explain, problem: "" });
    chooseModel();
  } catch (error) {
    store.set({ problem: error.status === 503 ? "" : error.message });
    setTimeout(loadModels, 2000);
  }
}

/** The server may have read a newer checkpoint since: what is said of the models follows, and what was chosen and found stays. */
async function renewModels() {
  const { models, languages } = await getJson("api/v1/models").catch(() => ({}));
  if (!models || JSON.stringify(models) === JSON.stringify(store.state.models)) return;
  offer(models, languages);
  store.set({ models });
  showFacts();
}

/** Fills the list. What is chosen stays chosen, for it is what is asked; when the server has it no longer, the list says so. */
function offer(models, languages) {
  const list = find("model"), chosen = list.value, label = list.selectedOptions[0]?.label.replace(GONE, "");
  const options = choices(models, languages).map(({ label, ...choice }) => h("option", { value: JSON.stringify(choice) }, label));
  if (chosen && !options.some(({ value }) => value === chosen)) options.push(h("option", { value: chosen }, `${label}${GONE}`));
  fill(list, options);
  if (chosen) list.value = chosen;
}

/** What can be chosen: a pair of languages and who translates it, or a model that does not translate. */
export function choices(models, languages) {
  const name = (code) => languages.find((language) => language.code === code)?.name ?? code;
  const label = ({ source, target }) => `${name(source)} → ${name(target)}`;
  const direct = models.flatMap(({ run, pairs }) => pairs.map((pair) => ({ label: label(pair), run, pair })));
  const indirect = languages.flatMap(({ code: source, targets }) => targets.map((target) => ({ source, target })))
    .filter(({ source, target }) => source !== target && !direct.some(({ pair }) => pair.source === source && pair.target === target))
    .map((pair) => ({ label: `${label(pair)}, through a third`, run: null, pair }));
  const single = models.filter(({ pairs }) => !pairs.length)
    .map(({ run, architecture }) => ({ label: `${run}: ${architecture}`, run, pair: null }));
  return [...direct, ...indirect, ...single];
}

function chooseModel() {
  store.set({ ...showFacts(), explanation: null, problem: "" });
}

/** Says of the chosen model what it is, and gives it and its pair. */
function showFacts() {
  const { run, pair = null } = JSON.parse(find("model").value || "{}");
  const { models } = store.state;
  const model = models.find((each) => each.run === run) ?? models.find(({ pairs }) => pairs.some(({ target }) => target === pair?.target));
  const bleu = model?.scores?.bleu;
  fill(find("facts"), model && [
    model.run, model.step && `step ${number(model.step)}`, bleu && `BLEU ${bleu.toFixed(1)}`, `${number(model.parameters)} parameters`,
  ].filter(Boolean).join(", "));
  return { model, pair };
}

// Light and dark, keys

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  fill(find("theme"), theme === "dark" ? "Light" : "Dark");
  store.set({ theme });
}

const otherTheme = () => setTheme(store.state.theme === "dark" ? "light" : "dark");
const help = () => find("help").showModal();

function onKey(event) {
  const typing = event.target.closest("input:not([type=checkbox], [type=radio], [type=range]), textarea, select, dialog");
  if (typing || event.ctrlKey || event.altKey || event.metaKey || !find("single").checked) return;
  const link = links["123456".indexOf(event.key)];
  if (link && !link.hidden) link.click();
  if (event.key === "d") otherTheme();
  if (event.key === "?") help();
  if (event.key === "/") {
    event.preventDefault();
    store.set({ view: "translate" });
    find("text")?.focus();
  }
}

setTheme(dark.matches ? "dark" : "light");
store.set(placeIn(location.hash));
store.subscribe((state, names) => {
  if (names.includes("view")) state.problem = ""; // to try again
  if (names.includes("translated")) renewModels();
  keepAddress(state, names);
  showView(state);
});
addEventListener("hashchange", () => store.set(placeIn(location.hash)));
addEventListener("keydown", onKey);
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is the view's
  find("main").focus();
});
find("model").addEventListener("change", chooseModel);
find("theme").addEventListener("click", otherTheme);
find("keys").addEventListener("click", help);
keepAddress(store.state, []);
showView(store.state);
loadModels();
