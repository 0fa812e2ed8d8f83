// Run: how the model was trained, or is being trained: curves, and the same numbers in tables, as the server draws them.

import { getJson } from "./api.js";
import { drawn, fill, find, h, tableOf } from "./dom.js";
import { set, state } from "./state.js";

const EVERY = 2000; // milliseconds
const body = find("run");
let name, stamp, ended, reading; // whose log it is, what of it is shown, and whether more may come

setInterval(() => { if (!body.hidden && name && !ended) read(); }, EVERY);

export const on = ["models", "model"];

export async function show({ models, model }) {
  const own = models ? model?.run : await getJson("api/v1/runs").then(({ runs }) => runs[0]?.name, () => null); // no model yet
  if (models !== state.models) return;
  if (own !== name) [name, stamp, ended] = [own, "", false];
  if (name) read();
  else fill(body, "There is no single run behind this choice; choose a model's own pair.");
}

async function read() {
  const own = name, since = stamp;
  if (reading === own) return;
  reading = own;
  try {
    const run = await getJson(`api/v1/runs/${encodeURIComponent(own)}/drawn?since=${since}`);
    if (own !== name || since !== stamp) return;
    if (run.stamp !== stamp) draw(run);
    ({ stamp, ended } = run);
  } catch ({ status, message }) {
    if (own !== name) return;
    if (!stamp) fill(body, h("p.error", message));
    if (status === 403) set({ locked: true });
    ended = status === 404;
  } finally {
    if (reading === own) reading = null;
  }
}

function draw({ title, said, charts, evaluations, samples, updates }) {
  const open = body.querySelector("details")?.open;
  fill(body, h("h2", title), h("p", said),
    h("div.two", charts.map(({ title, svg }) => h("figure", h("figcaption", title), drawn(svg)))),
    tableOf(evaluations), samples.map(tableOf),
    h("details", { open }, h("summary", "Training, in numbers"), tableOf(updates)));
}
