// The one state of the page, and who is told when it changes.

export function createStore(state) {
  const listeners = new Set();
  return {
    state,
    /** Takes over what is new; listeners get the state and the names that changed. */
    set(changes) {
      const names = Object.keys(changes).filter((name) => !Object.is(state[name], changes[name]));
      Object.assign(state, changes);
      if (names.length) for (const listener of [...listeners]) listener(state, names);
    },
    /** Calls the listener at every change, until the function it returns is called. */
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}
