// The one state of the page, and the explanation that the views share.

import { explain } from "./api.js";

export const state = { inside: true, text: "", options: {}, translated: 0, problem: "" };
let tell, going = new AbortController();

export const onChange = (listener) => { tell = listener; };

export function set(changes) {
  const names = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  Object.assign(state, changes);
  if (names.length) tell(names);
}

/** `more` are further fields of /api/v1/explain. */
export const question = (more) =>
  ({ q: state.text, ...(state.pair ? { ...state.pair, ...state.options } : { model: state.model.run }), ...more });

export async function look(more) {
  going.abort();
  const { signal } = (going = new AbortController());
  set({ busy: true, problem: "" });
  const found = await explain(question(more), signal)
    .then((explanation) => ({ explanation }), ({ message, status }) => ({ problem: message, locked: status === 403 }));
  if (!signal.aborted) set({ ...found, busy: false });
}

/** Another sentence; what was known of the last is forgotten. */
export function choose(text) {
  going.abort();
  set({ text, explanation: null, busy: false, problem: "", token: null, target: null });
}
