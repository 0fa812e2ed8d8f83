// The paper's equations in the browser's own float64, and what of the walk is computed again with them.

import { unpackFloats } from "./api.js";

const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);
const largest = (numbers) => numbers.reduce((most, each) => Math.max(most, each), -Infinity);

export const dot = (one, other, bias = 0) => one.reduce((total, each, at) => total + each * other[at], bias);

/** Equation (1): q kᵀ / √d_k of one query with every key. */
export const scoresOf = (query, keys) => keys.map((key) => dot(query, key) / Math.sqrt(key.length));

/** Equation (1): the softmax; where `blocked` the exponent is -∞, and a row in which all is blocked gets zeros. */
export function softmax(scores, blocked = []) {
  const most = largest(scores.filter((_, at) => !blocked[at]));
  const grown = scores.map((score, at) => (blocked[at] ? 0 : Math.exp(score - most))), total = sum(grown) || 1;
  return grown.map((each) => each / total);
}

/** x - log Σ exp(x), of a whole vocabulary. */
export function logSoftmax(logits) {
  const most = largest(logits), log = most + Math.log(sum(logits.map((each) => Math.exp(each - most))));
  return logits.map((each) => each - log);
}

/** LayerNorm (3.1), or RMSNorm, which subtracts nothing. */
export function norm(x, { gain, shift, epsilon, kind = "LayerNorm" }) {
  const mean = kind === "LayerNorm" ? sum(x) / x.length : 0;
  const deviation = Math.sqrt(sum(x.map((each) => (each - mean) ** 2)) / x.length + epsilon);
  return x.map((each, at) => ((each - mean) / deviation) * gain[at] + (shift?.[at] ?? 0));
}

/** PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos(…) (3.5); concatenated: all sines first. */
export const sinusoid = (position, size, concatenated) => Array.from({ length: size }, (_, place) => {
  const [i, odd] = concatenated ? [place % (size / 2), place >= size / 2] : [place >> 1, place % 2];
  return Math[odd ? "cos" : "sin"](position / 10000 ** ((2 * i) / size));
});

/** Equation (3). */
export const learningRate = (step, size, warmup) => size ** -0.5 * Math.min(step ** -0.5, step * warmup ** -1.5);

/** The penalty of a length (6.1). */
export const lengthPenalty = (tokens, alpha) => ((5 + tokens) / 6) ** alpha;

/** The loss of a token with label smoothing (5.4): ε/V for every class, and 1 - ε more for the right one. */
export const smoothedLoss = (logProbs, right, epsilon) => -(1 - epsilon) * logProbs[right] - (epsilon / logProbs.length) * sum(logProbs);

/** By the names that the server gives them: of what a step has `given`, and of rows and matrices of the trace. */
const EQUATIONS = {
  scaled: ({ row_of: row, scale }) => row.map((each) => each * scale),
  placed: (_, x, position, concatenated) => sinusoid(position, x.length, concatenated).map((each, at) => x[at] + each),
  linear: ({ weight, bias }, x) => dot(x, weight, bias),
  scores: (_, queries, keys) => queries.map((query) => scoresOf(query, keys)),
  masked: (_, rows, columns) => (rows > 1 ? (rows * (columns - 1)) / 2 : 0),
  weights: (_, scores, blocked = []) => scores.map((each, at) => softmax(each, blocked[at] ?? blocked[0])),
  joined: (_, weights, values) => weights.map((row) => values[0].map((_, at) => dot(row, values.map((each) => each[at])))),
  summed: ({ alpha }, x, added) => x.map((each, at) => alpha * each + added[at]),
  normed: (learnt, x) => norm(x, learnt),
  unit: ({ weight, bias }, x) => Math.max(0, dot(x, weight, bias)),
  unitsJoined: ({ weight_2: weight, bias_2: bias }, inner) => dot(inner, weight, bias),
  length: (_, x) => Math.sqrt(dot(x, x)),
  cosine: (_, x, first) => dot(x, first) / Math.sqrt(dot(x, x) * dot(first, first)),
  logProbability: ({ id }, logits) => logSoftmax(logits)[id],
  penalised: (_, sums, lengths, alpha) => sums.map((each, at) => each / lengthPenalty(lengths[at], alpha)),
  loss: ({ id, epsilon }, logits) => smoothedLoss(logSoftmax(logits), id, epsilon),
  rate: ({ step, d_model: size, warmup_steps: warmup }) => learningRate(step, size, warmup),
};

/** What of a step is computed again; `ask(name, at)` gives exact numbers of the trace. */
export const recomputed = ({ again, given }, ask) => Promise.all(again.map(async ({ what, by, of, model }) => {
  const read = async (part) => {
    if (!part.tensor) return part;
    const { tensor, ...at } = part, { shape, values } = await ask(tensor, at), all = Array.from(values), width = shape.at(-1);
    return at.rows ? all : Array.from({ length: all.length / width }, (_, row) => all.slice(row * width, (row + 1) * width));
  };
  const unpacked = Object.entries(given).map(([name, value]) => [name, value?.f32 ? Array.from(unpackFloats(value.f32)) : value]);
  const [its, ...parts] = await Promise.all([model, ...of].map(read)), all = [its].flat(2);
  const ours = [EQUATIONS[by](Object.fromEntries(unpacked), ...parts)].flat(2);
  const sizes = all.map(Math.abs), at = sizes.indexOf(largest(sizes));
  const difference = largest(all.map((each, place) => Math.abs(each - ours[place])));
  return { what, browser: ours[at], model: all[at], difference, count: all.length };
}));
