// What the page asks its own server, and nobody else. Addresses are below the folder that this file's own folder lies in.

const ROOT = new URL("../../", import.meta.url);

export const secret = { key: "" }; // of a server that wants one; kept until the page is closed

const refusal = (sentence, status) => Object.assign(new Error(sentence), { status });

/** Says in words that something broke; that it was stopped is known. */
const told = (sentence) => (error) => { throw error.name === "AbortError" ? error : refusal(sentence); };

async function request(path, body, signal) {
  const headers = { Accept: "application/json" };
  if (secret.key) headers.Authorization = `Bearer ${secret.key}`;
  if (body) headers["Content-Type"] = "application/json";
  const options = { headers, signal, cache: "no-store", credentials: "omit", method: body ? "POST" : "GET", body: JSON.stringify(body) };
  const answer = await fetch(new URL(path, ROOT), options).catch(told("The server does not answer; is it still running?"));
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({}));
  throw refusal(error || `The server answered ${answer.status}.`, answer.status);
}

const ended = told("The connection ended before the answer did; try again.");

export const postJson = async (path, body, signal) => (await request(path, body, signal)).json().catch(ended);
export const getJson = (path) => postJson(path);

/** Leaving the loop, or the signal, closes the connection. */
export async function* stream(path, body, signal) {
  const reader = (await request(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let events, rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(ended);
      if (done) return;
      ({ events, rest } = eventsIn(rest + value));
      yield* events;
    }
  } finally {
    reader.cancel().catch(() => {}); // the signal may have closed it already
  }
}

/** The whole events in a text, and what is left of one that is not whole yet. Comments are passed over. */
export function eventsIn(text) {
  const whole = text.matchAll(/^event: ([^\n]*)\ndata: ([^\n]*)\n\n/gm);
  return { events: Array.from(whole, ([, event, data]) => ({ event, data: JSON.parse(data) })), rest: text.split("\n\n").at(-1) };
}

export const unpackBytes = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

/** float32, the lowest byte first. */
export function unpackFloats(base64) {
  const bytes = new DataView(unpackBytes(base64).buffer);
  return Float32Array.from({ length: bytes.byteLength / 4 }, (_, place) => bytes.getFloat32(4 * place, true));
}

export const explain = async (asked, signal) => ({ ...(await postJson("api/v1/explain", asked, signal)), asked });

/** The server forgets an explanation after some others: then it is asked for anew, once. */
async function kept(explanation, kind, name, at) {
  const asked = new URLSearchParams(Object.entries(at).filter(([, value]) => value != null));
  const get = () => getJson(`api/v1/${kind}/${explanation.id}${name}?${asked}`);
  return get().catch(async (error) => {
    if (error.status !== 404 || !error.message.includes("expired")) throw error;
    explanation.again ??= explain({ ...explanation.asked, attention: [] }).finally(() => { explanation.again = null; });
    explanation.id = (await explanation.again).id;
    return get();
  });
}

/** Exact numbers of a tensor: {shape, values}. `at` may have index, rows and cols ("0:8"). */
export async function slice(explanation, name, at = {}) {
  const { shape, f32 } = await kept(explanation, "trace", `/${name}`, at);
  return { shape, values: unpackFloats(f32) };
}

export const walk = (explanation, at) => kept(explanation, "walk", "", at);
