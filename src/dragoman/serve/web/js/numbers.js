// The paper's equations in the browser's own arithmetic, float64, and the checks that need them in the walk.

const whole = (numbers) => numbers.reduce((sum, number) => sum + number, 0);
const root = Math.sqrt;

export const dot = (one, other, bias = 0) => one.reduce((sum, number, at) => sum + number * other[at], bias);
export const cosine = (one, other) => dot(one, other) / root(dot(one, one) * dot(other, other));

/** The rows of a matrix that comes as one list. */
export const rowsOf = (values, width) => Array.from({ length: values.length / width }, (_, row) => Array.from(values.slice(row * width, (row + 1) * width)));

/** softmax of equation (1); where `blocked` the exponent is -∞. A row in which all is blocked gets zeros. */
export function softmax(scores, blocked = []) {
  const open = scores.map((score, at) => (blocked[at] ? -Infinity : score));
  const most = Math.max(...open);
  if (most === -Infinity) return scores.map(() => 0);
  const grown = open.map((score) => Math.exp(score - most)), total = whole(grown);
  return grown.map((each) => each / total);
}

/** Q Kᵀ / √d_k of one query. */
export const scoresOf = (query, keys) => keys.map((key) => dot(query, key) / root(key.length));

/** log p of each entry: x - log Σ exp(x). Spreading a whole vocabulary into arguments is what a loop avoids. */
export function logSoftmax(logits) {
  const most = logits.reduce((greatest, each) => Math.max(greatest, each), -Infinity);
  const log = most + Math.log(logits.reduce((sum, each) => sum + Math.exp(each - most), 0));
  return Array.from(logits, (each) => each - log);
}

/** LayerNorm (3.1), or RMSNorm, which subtracts nothing and shifts nothing. */
export function norm(x, { gain, shift, epsilon, kind = "LayerNorm" }) {
  const mean = kind === "LayerNorm" ? whole(x) / x.length : 0;
  const deviation = root(whole(x.map((each) => (each - mean) ** 2)) / x.length + epsilon);
  return x.map((each, at) => ((each - mean) / deviation) * gain[at] + (shift?.[at] ?? 0));
}

/** PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos(…) (3.5); concatenated: all sines first. */
export function sinusoid(position, size, concatenated = false) {
  return Array.from({ length: size }, (_, place) => {
    const [i, odd] = concatenated ? [place % (size / 2), place >= size / 2] : [place >> 1, place % 2];
    const angle = position / 10000 ** ((2 * i) / size);
    return odd ? Math.cos(angle) : Math.sin(angle);
  });
}

/** Equation (3). */
export const learningRate = (step, size, warmup) => size ** -0.5 * Math.min(step ** -0.5, step * warmup ** -1.5);

/** The penalty of a length (6.1). */
export const lengthPenalty = (tokens, alpha) => ((5 + tokens) / 6) ** alpha;

/** The loss of a token with label smoothing (5.4): ε/V for every class, and 1 - ε more for the right one. */
export const smoothedLoss = (logProbs, right, epsilon) => -(1 - epsilon) * logProbs[right] - (epsilon / logProbs.length) * whole(logProbs);

/** Two lists of one length: the pair with the largest number, and the largest difference among all. */
export function compared(what, browser, model) {
  const [ours, its] = [[browser].flat(), Array.from([model].flat())];
  const at = its.reduce((best, each, place) => (Math.abs(each) > Math.abs(its[best]) ? place : best), 0);
  const difference = ours.reduce((most, each, place) => Math.max(most, Math.abs(each - its[place])), 0);
  return { what, browser: ours[at], model: its[at], difference, count: its.length };
}

const list = (values) => Array.from(values);

/**
 * What the browser can compute again of a step of the walk: [{what, browser, model, difference, count}].
 * `ask(name, at)` gives exact numbers of the trace; `explanation` and `focus` are those of the walk. Empty where it would take too much.
 */
export async function recomputed(step, { explanation, focus, ask }) {
  const { given } = step, known = RECIPES[step.number];
  if (!known || !given) return [];
  const source = focus.source, own = (name, row = source) => ask(name, { rows: `${row}:${row + 1}` }).then(({ values }) => list(values));
  const head = async (name, of) => {
    const { shape, values } = await ask(name, { index: [of] });
    return rowsOf(values, shape.at(-1));
  };
  return known({ given, explanation, focus, ask, own, head, source, step, of: given.head ?? focus.head });
}

async function linear({ given, own }, name, row, what) {
  const computed = dot(await own(given.x, row), given.weight, given.bias);
  return compared(what, computed, (await own(name, row))[given.number]);
}

/** What a query may not see, of each row; nothing is blocked where no mask was applied. */
async function blockedRows({ explanation, ask }, at, rows) {
  const name = `${at}.blocked`;
  if (!explanation.walk.some((each) => each.name === name)) return [];
  const { shape, values } = await ask(name);
  const found = rowsOf(values, shape.at(-1));
  return Array.from({ length: rows }, (_, row) => found[found.length > 1 ? row : 0]);
}

async function weightsAgain(all) {
  const { given, of, head } = all;
  const [queries, keys, weights] = await Promise.all([given.queries, given.keys, given.weights].map((name) => head(name, of)));
  const blocked = await blockedRows(all, given.weights.replace(/\.weights$/, ""), queries.length);
  const again = queries.map((query, row) => softmax(scoresOf(query, keys), blocked[row]));
  return [compared("all weights of the head, from queries and keys", again.flat(), weights.flat())];
}

const RECIPES = {
  2: async ({ given, own, step }) => "row" in given && [
    compared("the whole vector", given.row.map((each) => each * given.scale), await own(step.tensor))],
  3: async ({ given, own, source, explanation: { model } }) => {
    if (!given.sum) return [];
    const [x, sum] = await Promise.all([own(given.x), own(given.sum)]);
    const added = sinusoid(source, x.length, model.positions === "sinusoidal-concat");
    return [compared("embedding + PE, the whole vector", x.map((each, at) => each + added[at]), sum)];
  },
  4: async (all) => [await linear(all, all.step.tensor, all.source, "the query's first number, x · its column of W^Q")],
  5: async ({ given, of, head }) => {
    const [queries, keys, scores] = await Promise.all([given.queries, given.keys, given.scores].map((name) => head(name, of)));
    return [compared("all scores of the head", queries.flatMap((query) => scoresOf(query, keys)), scores.flat())];
  },
  6: async ({ step, ask }) => {
    if (!step.tensor) return [];
    const { shape, values } = await ask(step.tensor);
    const rows = rowsOf(values, shape.at(-1)), causal = rows.length > 1;
    return [compared("pairs that are masked", whole(rows.flatMap((row, i) => row.map((_, j) => Number(causal && j > i)))), whole(values))];
  },
  7: async (all) => {
    const { given, of, head } = all;
    const [scores, weights] = await Promise.all([given.scores, given.weights].map((name) => head(name, of)));
    const blocked = await blockedRows(all, given.weights.replace(/\.weights$/, ""), scores.length);
    return [compared("all weights of the head", scores.flatMap((row, at) => softmax(row, blocked[at])), weights.flat())];
  },
  8: async ({ given, of, head }) => {
    const [weights, values, heads] = await Promise.all([given.weights, given.values, given.heads].map((name) => head(name, of)));
    const again = weights.map((row) => values[0].map((_, at) => whole(row.map((weight, key) => weight * values[key][at]))));
    return [compared("the head's output for every token", again.flat(), heads.flat())];
  },
  9: async (all) => [await linear(all, all.step.tensor, all.source, "the first number of MultiHead, Concat(…) · a column of W^O")],
  10: async ({ given, own, explanation: { model } }) => {
    const [x, added, sum, normed] = await Promise.all([given.x, given.added, given.sum, given.normed].map((name) => own(name)));
    return [
      compared("the sum, the whole vector", x.map((each, at) => given.alpha * each + added[at]), sum),
      compared(`${given.kind}, the whole vector`, norm(model.norm === "pre" ? x : sum, given), normed),
    ];
  },
  11: async ({ given, own, source, step }) => {
    if (!given.inner) return [];
    const [x, inner, output] = await Promise.all([own(given.x), own(given.inner), own(step.tensor)]);
    return [
      compared(`unit ${given.number}: max(0, x · its column of W_1 + b)`, Math.max(0, dot(x, given.weight, given.bias)), inner[given.number]),
      compared("the first number of the output", dot(inner, given.weight_2, given.bias_2), output[given.number_2]),
    ];
  },
  12: async ({ given, own, step }) => {
    const [x, first] = await Promise.all([own(given.x), own(given.first)]), [, length, , like] = step.tables[0].rows.at(-1);
    return [compared("the length after the last layer", root(dot(x, x)), length), compared("its cosine with the first", cosine(x, first), like)];
  },
  13: weightsAgain,
  14: weightsAgain,
  15: async ({ given, own, focus, step }) => given.x ? [compared(`the logit of id ${given.number}`,
    dot(await own(given.x, focus.target), given.weight, given.bias), (await own(step.tensor, focus.target))[given.number])] : [],
  16: async ({ given, own, focus, explanation }) => {
    const all = logSoftmax(await own(given.x, focus.target));
    return [compared("log p of what stands there", all[given.id], explanation.steps[focus.target].logprob)];
  },
  17: async ({ explanation: { candidates, alpha } }) => [compared("scores of the finished hypotheses",
    candidates.map(({ logprob, pieces }) => logprob / lengthPenalty(pieces.length, alpha)), candidates.map(({ score }) => score))],
  18: async ({ given, own, focus }) => given.x ? [compared("the loss of the chosen token",
    smoothedLoss(logSoftmax(await own(given.x, focus.target)), given.id, given.epsilon), given.loss)] : [],
  19: async ({ given }) => [compared("equation (3) at this step", learningRate(given.step, given.d_model, given.warmup_steps), given.rate)],
};
