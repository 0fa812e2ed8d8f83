// The explanation that the views share: of one sentence, with the settings under Translate.

import { explain } from "./api.js";

let going = new AbortController();

/** What is asked about the sentence of the state; `more` are further fields of /api/v1/explain, such as {chosen: 1}. */
export function question(state, more = {}) {
  if (!state.pair) return { q: state.text, model: state.model.run, ...more };
  return { q: state.text, ...state.pair, ...state.options, ...more };
}

/** Asks, and puts the answer into the state as `explanation`, or why there is none as `problem`. */
export async function look(store, more) {
  going.abort();
  const mine = (going = new AbortController());
  store.set({ busy: true, problem: "" });
  try {
    const explanation = await explain(question(store.state, more), mine.signal);
    if (!mine.signal.aborted) store.set({ explanation, busy: false });
  } catch (error) {
    if (!mine.signal.aborted) store.set({ problem: error.message, busy: false });
  }
}

/** Another sentence; what was known of the last is forgotten. */
export function choose(store, text) {
  going.abort();
  store.set({ text, explanation: null, busy: false, problem: "", token: null, target: null });
}
