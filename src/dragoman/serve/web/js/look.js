// The explanation that the views share: of one sentence, with the settings under Translate.

import { explain } from "./api.js";

let going = new AbortController();

/** What is asked about the sentence of the state; `more` are further fields of /api/v1/explain, such as {chosen: 1}. */
export function question({ text, pair, model, options }, more = {}) {
  return pair ? { q: text, ...pair, ...options, ...more } : { q: text, model: model.run, ...more };
}

/** Asks, and puts the answer into the state as `explanation`, or why there is none as `problem`. */
export async function look(store, more) {
  going.abort();
  const { signal } = (going = new AbortController());
  store.set({ busy: true, problem: "" });
  let found;
  try {
    found = { explanation: await explain(question(store.state, more), signal) };
  } catch (error) {
    found = { problem: error.message, locked: error.status === 403 };
  }
  if (!signal.aborted) store.set({ ...found, busy: false });
}

/** Another sentence; what was known of the last is forgotten. */
export function choose(store, text) {
  going.abort();
  store.set({ text, explanation: null, busy: false, problem: "", token: null, target: null });
}
