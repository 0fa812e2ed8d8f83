// The frame: which view is shown, which model is asked, light or dark, and the address, which never holds a text.

import { getJson } from "./api.js";
import { fill, find, h, redraw } from "./dom.js";
import { look, onChange, set, state } from "./state.js";

const links = [...document.querySelectorAll("nav a")], sections = [...document.querySelectorAll("section")];
const VIEWS = sections.map(({ id }) => id), INSIDE = VIEWS.slice(1, 5);
const PLACES = ["layer", "head", "token", "target", "kind", "step"]; // numbers from 1, or a word
const GONE = ", no longer served";
const list = find("model"), theme = find("theme"), dark = matchMedia("(prefers-color-scheme: dark)");
const views = {}, shownFor = {}; // the modules, and by view what of the state it shows
const wrong = (text) => h("span.error", text);

/** What an address says of the state; anything else in it is passed over. */
export function placeIn(hash) {
  const said = new URLSearchParams(hash.slice(1));
  const place = { view: VIEWS.find((name) => name === said.get("view")) ?? "translate" };
  for (const name of PLACES) {
    const [value] = /^([1-9]\d{0,3}|[a-z]{1,10})$/.exec(said.get(name) ?? "") ?? [null];
    place[name] = Number(value) || value;
  }
  return place;
}

export const hashOf = (state, view = state.view) =>
  `#view=${view}${PLACES.filter((name) => state[name]).map((name) => `&${name}=${state[name]}`).join("")}`;

async function showView() {
  const { view } = state;
  const shown = views[view] ??= await import(`./${view}.js`).catch(() => null); // at once when it is there: no view without its handlers
  if (view !== state.view) return;
  const inside = INSIDE.includes(view), waits = inside && !state.explanation;
  if (waits && state.text && state.model && state.inside && !state.busy && !state.problem) return look();
  fill(find("notice"), shown ? notice(inside, waits) : wrong("The server does not send this view; when it runs, load the page again."));
  links.forEach((link, at) => {
    const here = VIEWS[at] === view;
    sections[at].hidden = !here || waits || !shown;
    sections[at].ariaLabel = link.textContent;
    link.hidden = !state.inside && INSIDE.includes(VIEWS[at]);
    link.ariaCurrent = here ? "page" : null;
    if (here) document.title = `${link.textContent} · Dragoman`;
  });
  const now = shown?.on.map((name) => state[name]);
  if (!shown || waits || shownFor[view]?.every((each, at) => each === now[at])) return;
  shownFor[view] = now;
  shown.show(state);
}

function notice(inside, waits) {
  if (!state.models && state.view !== "run") return state.problem || "The server is loading its model …";
  if (!inside) return "";
  if (!state.inside) return "This server was started with --no-explain, so there is nothing to look at here.";
  if (state.problem) return wrong(state.problem);
  if (state.busy) return waits ? "Looking inside …" : "Looking again …";
  return waits && ["There is no sentence yet. ", h("a", { href: "#view=translate" }, "Give one under Translate"), "."];
}

/** Asks until the answer is there. Later the server may have a newer checkpoint; what was chosen and found then stays. */
async function loadModels() {
  const first = !state.models;
  const { models, choices, explain = true, status, message } = await getJson("api/v1/models").catch((error) => error);
  if (models) {
    offer(choices);
    set({ models, inside: explain, ...(first && { problem: "" }) });
    if (first) chooseModel();
    else chosen();
  } else if (first) {
    set({ problem: status === 503 ? "" : message });
    setTimeout(loadModels, 2000);
  }
}

/** Fills the list. What is chosen stays chosen; when the server has it no longer, the list says so. */
function offer(choices) {
  const before = list.value, label = list.selectedOptions[0]?.label.replace(GONE, "");
  const options = choices.map(({ label, ...choice }) => h("option", { value: JSON.stringify(choice) }, label));
  if (before && !options.some(({ value }) => value === before)) options.push(h("option", { value: before }, `${label}${GONE}`));
  fill(list, options);
  if (before) list.value = before;
}

/** Says of the chosen model what it is, and gives it and its pair. */
function chosen() {
  const { run, pair = null } = JSON.parse(list.value || "{}"), { models } = state;
  const model = models.find((each) => each.run === run) ?? models.find(({ pairs }) => pairs.some(({ target }) => target === pair?.target));
  fill(find("facts"), model?.said);
  return { model, pair };
}

const chooseModel = () => set({ ...chosen(), explanation: null, problem: "" });

function setTheme(isDark) {
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  fill(theme, isDark ? "Light" : "Dark");
  redraw(document);
}

const followTheme = () => setTheme(dark.matches);

function onKey(event) {
  const { key, target } = event, link = links[key - 1];
  if (target.closest("input:not([type=checkbox], [type=radio], [type=range]), textarea, select, dialog")) return;
  if (event.ctrlKey || event.altKey || event.metaKey || !find("single").checked) return;
  if (link && !link.hidden) link.click();
  if (key === "d") theme.click();
  if (key === "?") find("keys").click();
  if (key !== "/") return;
  event.preventDefault();
  set({ view: "translate" });
  find("text").focus();
}

onChange((names) => {
  if (names.includes("view")) state.problem = ""; // to try again
  if (names.includes("translated")) loadModels();
  links.forEach((link, at) => { link.href = hashOf(state, VIEWS[at]); });
  const hash = hashOf(state), push = names.includes("view") ? "pushState" : "replaceState";
  if (hashOf(placeIn(location.hash)) !== hash) history[push](null, "", hash);
  showView();
});
addEventListener("hashchange", () => set(placeIn(location.hash)));
addEventListener("keydown", onKey);
document.querySelector(".skip").onclick = (event) => {
  event.preventDefault(); // the address is the view's
  find("main").focus();
};
dark.onchange = followTheme;
list.onchange = chooseModel;
theme.onclick = () => setTheme(theme.textContent === "Dark");
find("keys").onclick = () => find("help").showModal();
followTheme();
set(placeIn(location.hash));
loadModels();
