// The paper's equations in the browser's own arithmetic, float64, and what of the walk is computed again with them.

const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);

export const dot = (one, other, bias = 0) => one.reduce((total, each, at) => total + each * other[at], bias);

/** The rows of a matrix that comes as one list. */
export function rowsOf(values, width) {
  return Array.from({ length: values.length / width }, (_, row) => Array.from(values.subarray(row * width, (row + 1) * width)));
}

/** Equation (1): q kᵀ / √d_k of one query with every key. */
export const scoresOf = (query, keys) => keys.map((key) => dot(query, key) / Math.sqrt(key.length));

/** Equation (1): the softmax; where `blocked` the exponent is -∞, and a row in which all is blocked gets zeros. */
export function softmax(scores, blocked = []) {
  const open = scores.map((score, at) => (blocked[at] ? -Infinity : score)), most = Math.max(...open);
  const grown = open.map((score) => (score === -Infinity ? 0 : Math.exp(score - most))), total = sum(grown) || 1;
  return grown.map((each) => each / total);
}

/** x - log Σ exp(x), of a whole vocabulary. */
export function logSoftmax(logits) {
  const most = logits.reduce((greatest, each) => Math.max(greatest, each), -Infinity);
  const log = most + Math.log(sum(logits.map((each) => Math.exp(each - most))));
  return logits.map((each) => each - log);
}

/** LayerNorm (3.1), or RMSNorm, which subtracts nothing. */
export function norm(x, { gain, shift, epsilon, kind = "LayerNorm" }) {
  const mean = kind === "LayerNorm" ? sum(x) / x.length : 0;
  const deviation = Math.sqrt(sum(x.map((each) => (each - mean) ** 2)) / x.length + epsilon);
  return x.map((each, at) => ((each - mean) / deviation) * gain[at] + (shift?.[at] ?? 0));
}

/** PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos(…) (3.5); concatenated: all sines first. */
export function sinusoid(position, size, concatenated = false) {
  return Array.from({ length: size }, (_, place) => {
    const [i, odd] = concatenated ? [place % (size / 2), place >= size / 2] : [place >> 1, place % 2];
    return Math[odd ? "cos" : "sin"](position / 10000 ** ((2 * i) / size));
  });
}

/** Equation (3). */
export const learningRate = (step, size, warmup) => size ** -0.5 * Math.min(step ** -0.5, step * warmup ** -1.5);

/** The penalty of a length (6.1). */
export const lengthPenalty = (tokens, alpha) => ((5 + tokens) / 6) ** alpha;

/** The loss of a token with label smoothing (5.4): ε/V for every class, and 1 - ε more for the right one. */
export const smoothedLoss = (logProbs, right, epsilon) => -(1 - epsilon) * logProbs[right] - (epsilon / logProbs.length) * sum(logProbs);

/** Of all numbers of both the largest difference, and the largest number. */
export function compared(what, browser, model) {
  const ours = [browser].flat(2), its = [model].flat(2);
  const at = its.reduce((best, each, place) => (Math.abs(each) > Math.abs(its[best]) ? place : best), 0);
  const difference = ours.reduce((most, each, place) => Math.max(most, Math.abs(each - its[place])), 0);
  return { what, browser: ours[at], model: its[at], difference, count: its.length };
}

/**
 * What the browser computes again of a step of the walk: [{what, browser, model, difference, count}]; nothing where it would need too much.
 * `explanation` and `focus` are the walk's, `ask(name, at)` gives exact numbers of the trace.
 */
export async function recomputed(step, { explanation, focus, ask }) {
  const { given, tensor } = step, known = AGAIN[step.number], concatenated = explanation.model.positions === "sinusoidal-concat";
  const row = async (name, at = focus.source) => Array.from((await ask(name, { rows: `${at}:${at + 1}` })).values);
  const all = (read) => (...names) => Promise.all(names.map((name) => read(given[name])));
  const matrix = async (name, index = []) => {
    const { shape, values } = await ask(name, index.length ? { index } : {});
    return rowsOf(values, shape.at(-1));
  };
  const masked = async (at) => (explanation.walk.some(({ name }) => name === at) ? matrix(at) : []);
  return known ? known({
    ...given, step, tensor, explanation, focus, concatenated, row, rows: all((name) => row(name)), matrix, masked,
    heads: all((name) => matrix(name, [given.head ?? focus.head])),
  }) : [];
}

async function linear({ x, weight, bias, number, at, tensor, row }) {
  if (!x) return [];
  return [compared(`number ${number} of ${tensor}`, dot(await row(x, at), weight, bias), (await row(tensor, at))[number])];
}

async function scores({ heads }) {
  const [queries, keys, model] = await heads("queries", "keys", "scores");
  return [compared("all scores of the head", queries.map((query) => scoresOf(query, keys)), model)];
}

async function weights({ heads, masked, weights: name }) {
  const [given, model] = await heads("scores", "weights"), blocked = await masked(name.replace("weights", "blocked"));
  return [compared("all weights of the head", given.map((each, at) => softmax(each, blocked[blocked.length > 1 ? at : 0])), model)];
}

const both = async (given) => [...await scores(given), ...await weights(given)];

const AGAIN = {
  2: async ({ row, tensor, row_of: own, scale }) => [compared("the whole vector", own.map((each) => each * scale), await row(tensor))],
  3: async ({ x, rows, focus, concatenated }) => {
    if (!x) return [];
    const [before, after] = await rows("x", "sum"), added = sinusoid(focus.source, before.length, concatenated);
    return [compared("embedding + PE", before.map((each, at) => each + added[at]), after)];
  },
  4: linear, 5: scores,
  6: async ({ tensor, matrix }) => {
    if (!tensor) return [];
    const model = await matrix(tensor), wanted = model.map((each, i) => each.map((_, j) => Number(model.length > 1 && j > i)));
    return [compared("masked pairs", sum(wanted.flat()), sum(model.flat()))];
  },
  7: weights,
  8: async ({ heads }) => {
    const [given, values, model] = await heads("weights", "values", "heads");
    const columns = values[0].map((_, at) => values.map((each) => each[at]));
    return [compared("the head's output for every token", given.map((each) => columns.map((column) => dot(each, column))), model)];
  },
  9: linear,
  10: async ({ rows, alpha, norm_first: first, ...learnt }) => {
    const [x, added, model, normed] = await rows("x", "added", "sum", "normed");
    return [
      compared("the sum", x.map((each, at) => alpha * each + added[at]), model),
      compared(learnt.kind, norm(first ? x : model, learnt), normed),
    ];
  },
  11: async ({ rows, row, tensor, weight, bias, number, weight_2: second, bias_2: shift, number_2: place, inner: name }) => {
    if (!name) return [];
    const [x, inner] = await rows("x", "inner");
    return [
      compared(`unit ${number}, max(0, x W_1 + b_1)`, Math.max(0, dot(x, weight, bias)), inner[number]),
      compared(`number ${place} of FFN(x)`, dot(inner, second, shift), (await row(tensor))[place]),
    ];
  },
  12: async ({ rows, step }) => {
    const [x, first] = await rows("x", "first"), [, length, , cosine] = step.tables[0].rows.at(-1), long = Math.sqrt(dot(x, x));
    return [
      compared("the length after the last layer", long, length),
      compared("its cosine with the first", dot(x, first) / long / Math.sqrt(dot(first, first)), cosine),
    ];
  },
  13: both, 14: both, 15: linear,
  16: async ({ x, id, row, focus, explanation }) => [
    compared("log p of what stands there", logSoftmax(await row(x, focus.target))[id], explanation.steps[focus.target].logprob)],
  17: async ({ explanation: { candidates, alpha } }) => [compared("all scores",
    candidates.map(({ logprob, pieces }) => logprob / lengthPenalty(pieces.length, alpha)), candidates.map(({ score }) => score))],
  18: async ({ x, id, epsilon, loss, row, focus }) => (x ? [
    compared("the loss of the chosen token", smoothedLoss(logSoftmax(await row(x, focus.target)), id, epsilon), loss)] : []),
  19: async ({ step: { given } }) => [compared("equation (3)", learningRate(given.step, given.d_model, given.warmup_steps), given.rate)],
};
