// Run: how the model was trained, or is being trained: curves, and the same numbers in tables.

import { getJson } from "./api.js";
import { lineChart } from "./chart.js";
import { fill, h, number, table } from "./dom.js";

const EVERY = 2000; // milliseconds between two looks at a run that goes on
const ROWS = 12; // of a table
let store, place, body, timer;
let name = null, run = null; // whose log it is, and what of it is known
let reading = null;

export const view = {
  name: "run",

  mount(section, itsStore) {
    [place, store] = [section, itsStore];
    section.append(body = h("div"));
  },

  async show(state) {
    const wanted = state.models ? state.model?.run : await unloaded();
    if (wanted !== name) [name, run] = [wanted, null];
    if (!name) fill(body, "There is no single run behind this choice; choose a model's own pair.");
    else if (!run) await read();
    else watch();
  },
};

/** The run of a server that has no model yet. */
const unloaded = () => getJson("api/v1/runs").then(({ runs }) => runs[0]?.name, () => null);

async function read() {
  const own = name;
  if (reading === own) return;
  reading = own;
  clearTimeout(timer);
  try {
    const more = await getJson(`api/v1/runs/${encodeURIComponent(own)}?from=${run?.next ?? 0}`);
    if (own !== name) return;
    const before = run;
    run = joined(before, more);
    if (!before || more.status !== before.status || more.next !== before.next) draw();
  } catch (error) {
    if (own === name && !run) fill(body, h("p", { class: "error" }, error.message));
    if (error.status === 403) store.set({ locked: true });
    if (error.status === 404) return;
  } finally {
    if (reading === own) reading = null;
  }
  watch();
}

/** Reads on after a while, as long as the view is open and the run goes on. */
function watch() {
  clearTimeout(timer);
  if (!place.hidden && (!run || ["running", "preparing"].includes(run.status))) timer = setTimeout(read, EVERY);
}

/** What is known with what has come; a run that went back to a checkpoint has its later records anew. */
export function joined(before, more) {
  if (!before || more.from === 0) return more;
  const both = (kind) => {
    const first = more[kind][0]?.step ?? Infinity;
    return [...before[kind].filter(({ step }) => step < first), ...more[kind]];
  };
  return { ...before, ...more, train: both("train"), eval: both("eval") };
}

function draw() {
  const { train, eval: evals } = run;
  const points = (records, field) => records.map((record) => [record.step, record[field]]);
  const charts = {
    Loss: { training: points(train, "loss"), validation: points(evals, "loss") },
    "Scores of the validation text": { BLEU: points(evals, "bleu"), chrF: points(evals, "chrf") },
    "Learning rate": { "learning rate": points(train, "lr") },
    "Speed of training": { "tokens a second": points(train, "tok_s") },
  };
  const open = body.querySelector("details")?.open ?? false;
  fill(body,
    h("h2", {}, [run.name, run.pair].filter(Boolean).join(": ")),
    h("p", {}, facts()),
    h("div", { class: "two" }, Object.entries(charts).map(([title, curves]) => {
      const chart = lineChart(title, curves);
      return chart && h("figure", {}, h("figcaption", {}, title), chart);
    })),
    rows("Evaluations", evals, {
      loss: ["loss", 4], ppl: ["perplexity", 2], bleu: ["BLEU", 2], chrf: ["chrF", 2],
    }),
    samples(evals),
    h("details", { open }, h("summary", {}, "Training, in numbers"), rows("Updates", train, {
      loss: ["loss", 4], ppl: ["perplexity", 2], lr: ["learning rate", 7], grad_norm: ["gradient norm", 3], tok_s: ["tokens a second", 0],
    })));
}

function rows(title, records, columns) {
  const last = records.slice(-ROWS);
  const cells = (record) => Object.entries(columns).map(([field, [, digits]]) => [number(record[field], digits)]);
  return table(last.length < records.length ? `${title}, the last ${ROWS}` : title,
    ["step", ...Object.values(columns).map(([head]) => head)], last.map((record) => [number(record.step), ...cells(record)]));
}

function facts() {
  const best = run.eval.find(({ step }) => step === run.best_step);
  const last = Math.max(0, ...[run.train.at(-1), run.eval.at(-1)].map((record) => record?.step ?? 0));
  return [
    run.status, `step ${number(last)}`,
    best && `best at step ${number(best.step)}: validation loss ${number(best.loss, 4)}, BLEU ${number(best.bleu, 2)}`,
    run.warmup_steps && `warm-up ${number(run.warmup_steps)} steps`,
  ].filter(Boolean).join(" · ");
}

/** Sentences of the validation text, and what became of each wherever it changed. */
function samples(evals) {
  const histories = new Map();
  for (const { step, samples: several } of evals) {
    for (const { source, reference, output } of several ?? []) {
      const history = histories.get(source) ?? [["reference", reference]];
      if (history.at(-1)[1] !== output || history.length === 1) history.push([`step ${number(step)}`, output]);
      histories.set(source, history);
    }
  }
  return [...histories].map(([source, [reference, ...outputs]]) =>
    table(`“${source}”`, ["step", "translation"], [reference, ...outputs.slice(-5)]));
}
