// What the page asks its own server, and nobody else. Addresses are below the folder that this file's own folder lies in.

const ROOT = new URL("../../", import.meta.url);
const secret = { key: "" }; // of a server that wants one; kept until the page is closed

export const useKey = (key) => { secret.key = key; };

/** An error whose message is the server's sentence. */
export class Refusal extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

async function request(path, { body, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (secret.key) headers.Authorization = `Bearer ${secret.key}`;
  if (body) headers["Content-Type"] = "application/json";
  const options = { headers, signal, cache: "no-store", credentials: "omit" };
  if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  let answer;
  try {
    answer = await fetch(new URL(path, ROOT), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The server does not answer; is it still running?");
  }
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({}));
  throw new Refusal(answer.status, error || `The server answered ${answer.status}.`);
}

/** What the rest of an answer holds; that it breaks off is told in words. */
const arrived = (rest) => rest.catch((error) => {
  throw error.name === "AbortError" ? error : new Refusal(0, "The connection ended before the answer did; try again.");
});

export const getJson = async (path, signal) => arrived((await request(path, { signal })).json());
export const postJson = async (path, body, signal) => arrived((await request(path, { body, signal })).json());

/** Events of a stream, one after another: {event, data}. Leaving the loop, or the signal, closes the connection. */
export async function* stream(path, body, signal) {
  const reader = (await request(path, { body, signal })).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", ended = false;
  try {
    for (;;) {
      const { value, done } = await arrived(reader.read());
      ended = done;
      if (done) return;
      const found = eventsIn(rest + value);
      rest = found.rest;
      yield* found.events;
    }
  } finally {
    if (!ended) reader.cancel().catch(() => {}); // the signal may have closed it already
  }
}

/** The whole events in a text, and what is left of one that is not whole yet. Comments are passed over. */
export function eventsIn(text) {
  const blocks = text.split("\n\n");
  const rest = blocks.pop();
  const events = blocks.map((block) => {
    const field = (name) => block.split("\n").filter((line) => line.startsWith(name)).map((line) => line.slice(name.length)).join("\n");
    return { event: field("event: "), data: field("data: ") };
  }).filter(({ data }) => data).map(({ event, data }) => ({ event, data: JSON.parse(data) }));
  return { events, rest };
}

/** Bytes of base64. */
export const unpackBytes = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

/** Numbers of base64: float32, the lowest byte first. */
export function unpackFloats(base64) {
  const bytes = new DataView(unpackBytes(base64).buffer);
  return Float32Array.from({ length: bytes.byteLength / 4 }, (_, place) => bytes.getFloat32(4 * place, true));
}

/** Everything about one sentence, as /api/v1/explain answers it; it remembers what was asked, to ask again. */
export async function explain(body, signal) {
  return { ...(await postJson("api/v1/explain", body, signal)), asked: body };
}

/** What the server keeps of an explanation, which it forgets after some others: then it is asked for anew, once. */
async function kept(explanation, path, signal) {
  try {
    return await getJson(path(explanation.id), signal);
  } catch (error) {
    if (error.status !== 404 || !error.message.includes("expired")) throw error;
    explanation.again ??= explain({ ...explanation.asked, attention: [] }).finally(() => { explanation.again = null; });
    explanation.id = (await explanation.again).id;
    return getJson(path(explanation.id), signal);
  }
}

/** Exact numbers of a tensor: {shape, values}. `at` may have index (an array), rows and cols ("0:8"). */
export async function slice(explanation, name, at = {}, signal) {
  const asked = new URLSearchParams(Object.entries(at).map(([key, value]) => [key, String(value)]));
  const { shape, f32 } = await kept(explanation, (id) => `api/v1/trace/${id}/${name}?${asked}`, signal);
  return { shape, values: unpackFloats(f32) };
}

/** The walk through the paper at {layer, head, token, target_token}, of which any may be missing. */
export function walk(explanation, at = {}, signal) {
  const asked = new URLSearchParams(Object.entries(at).filter(([, value]) => value != null));
  return kept(explanation, (id) => `api/v1/walk/${id}?${asked}`, signal);
}
