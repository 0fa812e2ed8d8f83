// Run: how the model was trained, or is being trained: curves, and the same numbers in tables.

import { getJson } from "./api.js";
import { lineChart } from "./chart.js";
import { fill, h, number, table } from "./dom.js";

const SECONDS = 2, ROWS = 12;
let body, name = null, run = null, timer = null, place = null;

export const view = {
  name: "run",

  mount(section) {
    place = section;
    section.append(body = h("div"));
  },

  async show(state) {
    const wanted = state.models ? state.model?.run ?? null : await waiting();
    if (wanted === name && run) return watch();
    [name, run] = [wanted, null];
    fill(body, h("p", {}, wanted === null ? "No model is chosen that a run could be of." : `Reading the log of ${wanted} …`));
    if (wanted !== null) await read();
  },
};

/** The run of a server whose model is still to come. */
const waiting = () => getJson("api/v1/runs").then(({ runs }) => runs[0] ?? null).catch(() => null);

async function read() {
  const own = name;
  try {
    const more = await getJson(`api/v1/runs/${encodeURIComponent(own)}?from=${run?.next ?? 0}`);
    if (own !== name) return;
    const changed = !run || more.train.length + more.eval.length > 0 || more.status !== run.status;
    run = joined(run, more);
    if (changed) draw();
  } catch (error) {
    if (own === name) fill(body, h("p", { class: "error" }, error.message));
    if (error.status === 404) return;
  }
  watch();
}

/** Asks again after a while, as long as the view is open and the run goes on. */
function watch() {
  clearTimeout(timer);
  const goes = !run || ["running", "preparing"].includes(run.status);
  if (goes && !place.hidden) timer = setTimeout(() => (document.hidden ? watch() : read()), 1000 * SECONDS);
}

/** What is known with what has come; a run that went back to a checkpoint has its later records anew. */
export function joined(before, more) {
  if (!before) return more;
  const both = (kind) => {
    const first = more[kind][0]?.step ?? Infinity;
    return [...before[kind].filter(({ step }) => step < first), ...more[kind]];
  };
  return { ...before, ...more, train: both("train"), eval: both("eval") };
}

const points = (records, field) => records.filter((record) => record[field] != null).map((record) => [record.step, record[field]]);

function draw() {
  const { train, eval: evals } = run;
  const charts = [
    ["Loss", { training: points(train, "loss"), validation: points(evals, "loss") }],
    ["Scores of the validation text", { BLEU: points(evals, "bleu"), chrF: points(evals, "chrf") }],
    ["Learning rate", { "learning rate": points(train, "lr") }],
    ["Tokens a second", { "tokens a second": points(train, "tok_s") }],
  ];
  const open = [...body.querySelectorAll("details")].map((details) => details.open);
  fill(body,
    h("h2", {}, run.name, run.pair ? `: ${run.pair}` : ""),
    h("p", {}, facts()),
    h("div", { class: "two" }, charts.map(([title, curves]) => {
      const chart = lineChart(title, curves);
      return chart && h("figure", {}, h("figcaption", {}, title), chart);
    })),
    evals.length > 0 && table(lastOf("Evaluations", evals), ["step", "loss", "perplexity", "BLEU", "chrF"], evals.slice(-ROWS).map((record) => [
      number(record.step), [number(record.loss)], [number(record.ppl, 2)], [number(record.bleu, 2)], [number(record.chrf, 2)],
    ])),
    samples(evals),
    train.length > 0 && h("details", {}, h("summary", {}, "Training, in numbers"),
      table(lastOf("Updates", train), ["step", "loss", "perplexity", "learning rate", "gradient norm", "tokens a second"], train.slice(-ROWS).map((record) => [
        number(record.step), [number(record.loss)], [number(record.ppl, 2)], [record.lr.toPrecision(4)], [number(record.grad_norm, 3)], [number(Math.round(record.tok_s))],
      ]))));
  body.querySelectorAll("details").forEach((details, at) => { details.open = open[at] ?? false; });
}

const lastOf = (what, records) => (records.length > ROWS ? `${what}, the last ${ROWS}` : what);

function facts() {
  const last = run.train.at(-1)?.step ?? run.eval.at(-1)?.step ?? 0;
  const best = run.eval.find(({ step }) => step === run.best_step);
  return [
    `Status: ${run.status}`, `step ${number(last)}`,
    best && `best at step ${number(best.step)}${best.bleu == null ? "" : ` with BLEU ${best.bleu.toFixed(2)}`}, validation loss ${number(best.loss)}`,
    run.warmup_steps && `warm-up ${number(run.warmup_steps)} steps`, run.d_model && `d_model ${run.d_model}`,
  ].filter(Boolean).join(" · ");
}

/** Sentences of the validation text, with what became of each wherever it changed. */
function samples(evals) {
  const histories = new Map();
  for (const { step, samples: shown = [] } of evals) {
    for (const { source, reference, output } of shown ?? []) {
      const history = histories.get(source) ?? { reference, outputs: [] };
      if (history.outputs.at(-1)?.output !== output) history.outputs.push({ step, output });
      histories.set(source, history);
    }
  }
  return [...histories].map(([source, { reference, outputs }]) => table(`“${source}”`, ["", "translation"], [
    ...outputs.slice(-5).map(({ step, output }) => [`step ${number(step)}`, output]), ["reference", reference],
  ]));
}
