// Speaks to the gateway that served this page, and to nobody else. The caller's key is kept for
// this tab only and goes into a header: an address ends up in logs and histories.

import { baseOf, chatPath } from "./paths.js";

const KEY = "baton-key";

const BASE = baseOf(location.pathname);

export function key() {
  return sessionStorage.getItem(KEY);
}

export function keep(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

function headers(more = {}) {
  const own = key();
  return own ? { ...more, authorization: `Bearer ${own}` } : more;
}

/** The gateway refused: with its status and its own words. */
class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function refusal(response) {
  let message = `The gateway answered with status ${response.status}.`;
  try {
    const said = (await response.json())?.error?.message;
    if (typeof said === "string" && said) message = said;
  } catch {
    // no JSON: the status says it
  }
  return new Refused(response.status, message);
}

async function get(path, timeoutMs) {
  const response = await fetch(BASE + path, {
    headers: headers(),
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: AbortSignal.timeout(timeoutMs),
  });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** What is so now, and the requests that ended since. `seen`: gateways and how far they were read. */
export function view(seen) {
  const query = [...seen].map(([id, number]) => `${id}.${number}`).join(",");
  return get(`baton/console${query ? `?seen=${query}` : ""}`, 8000);
}

/** What the engines' workers say of their KV transfer. Each engine is asked, so: seldom. */
export function evidence() {
  return get("baton/evidence", 40000);
}

/** Begins a streamed chat answer that tells its timeline at the end. */
export async function chat(body, signal) {
  const response = await fetch(chatPath(BASE), {
    method: "POST",
    headers: headers({ "content-type": "application/json", "x-baton-timing": "1" }),
    body: JSON.stringify(body),
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal,
  });
  if (!response.ok) throw await refusal(response);
  return response;
}
