// Run: how the model was trained, or is being trained: curves, and the same numbers in tables.

import { getJson } from "./api.js";
import { lineChart } from "./chart.js";
import { fill, find, h, number, table } from "./dom.js";
import { set } from "./state.js";

const EVERY = 2000; // milliseconds between two looks
const ROWS = 12; // of a table
const body = find("run");
let name, run, ended, reading; // whose log it is, what of it is known, and whether more may come

setInterval(() => { if (!body.hidden && name && !ended) read(); }, EVERY);

export const on = ["models", "model"];

export async function show({ models, model }) {
  const own = models ? model?.run : await getJson("api/v1/runs").then(({ runs }) => runs[0]?.name, () => null); // there is no model yet
  if (own !== name) [name, run, ended] = [own, null, false];
  if (name) read();
  else fill(body, "There is no single run behind this choice; choose a model's own pair.");
}

async function read() {
  const own = name;
  if (reading === own) return;
  reading = own;
  try {
    const more = await getJson(`api/v1/runs/${encodeURIComponent(own)}?from=${run?.next ?? 0}`), before = run;
    if (own !== name) return;
    run = joined(before, more);
    ended = !["running", "preparing"].includes(run.status);
    if (!before || more.status !== before.status || more.next !== before.next) draw();
  } catch ({ status, message }) {
    if (own !== name) return;
    if (!run) fill(body, h("p.error", message));
    if (status === 403) set({ locked: true });
    ended = status === 404;
  } finally {
    if (reading === own) reading = null;
  }
}

/** A run that went back to a checkpoint has its later records anew. */
export function joined(before, more) {
  if (!before || more.from === 0) return more;
  const both = (kind) => [...before[kind].filter(({ step }) => !(step >= more[kind][0]?.step)), ...more[kind]];
  return { ...before, ...more, train: both("train"), eval: both("eval") };
}

const LOSS = { loss: ["loss", 4], ppl: ["perplexity", 2] };

function draw() {
  const { train, eval: evals } = run, points = (records, field) => records.map((record) => [record.step, record[field]]);
  const charts = {
    Loss: { training: points(train, "loss"), validation: points(evals, "loss") },
    "Scores of the validation text": { BLEU: points(evals, "bleu"), chrF: points(evals, "chrf") },
    "Learning rate": { "learning rate": points(train, "lr") },
    "Speed of training": { "tokens a second": points(train, "tok_s") },
  };
  const open = body.querySelector("details")?.open;
  fill(body,
    h("h2", [run.name, run.pair].filter(Boolean).join(": ")),
    h("p", facts()),
    h("div.two", Object.entries(charts).map(([title, curves]) => {
      const chart = lineChart(title, curves);
      return chart && h("figure", h("figcaption", title), chart);
    })),
    rows("Evaluations", evals, { ...LOSS, bleu: ["BLEU", 2], chrf: ["chrF", 2] }),
    samples(evals),
    h("details", { open }, h("summary", "Training, in numbers"), rows("Updates", train, {
      ...LOSS, lr: ["learning rate", 7], grad_norm: ["gradient norm", 3], tok_s: ["tokens a second", 0],
    })));
}

const rows = (title, records, columns) => table(
  records.length > ROWS ? `${title}, the last ${ROWS}` : title, ["step", ...Object.values(columns).map(([head]) => head)],
  records.slice(-ROWS).map((record) => [number(record.step),
    ...Object.entries(columns).map(([field, [, digits]]) => [number(record[field], digits)])]));

function facts() {
  const best = run.eval.find(({ step }) => step === run.best_step);
  const last = Math.max(run.train.at(-1)?.step ?? 0, run.eval.at(-1)?.step ?? 0);
  return [
    run.status, `step ${number(last)}`,
    best && `best at step ${number(best.step)}: validation loss ${number(best.loss, 4)}, BLEU ${number(best.bleu, 2)}`,
    run.warmup_steps && `warm-up ${number(run.warmup_steps)} steps`,
  ].filter(Boolean).join(" · ");
}

/** What became of each sentence of the validation text wherever it changed. */
function samples(evals) {
  const all = evals.flatMap(({ step, samples }) => (samples ?? []).map((each) => ({ step, ...each })));
  return Object.entries(Object.groupBy(all, ({ source }) => source)).map(([source, several]) => {
    const changed = several.filter(({ output }, at) => output !== several[at - 1]?.output).slice(-5);
    return table(`“${source}”`, ["step", "translation"],
      [["reference", several[0].reference], ...changed.map(({ step, output }) => [`step ${number(step)}`, output])]);
  });
}
