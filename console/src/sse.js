// Reads an event stream: data, and comments, in which the gateway puts a request's timeline.

const TIMING = "baton-timing ";

/** Splits text into events; what is not whole yet stays. */
export class Events {
  #rest = "";

  /** The events that `text` completes: `{data}` or `{timing}`. */
  push(text) {
    // Together: a piece may end between CR and LF.
    const parts = (this.#rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.#rest = parts.pop();
    return parts.flatMap((part) => part.split("\n").flatMap(line));
  }
}

function line(text) {
  if (text.startsWith("data:")) return [{ data: text.slice(5).trim() }];
  if (!text.startsWith(":")) return [];
  const said = text.slice(1).trimStart();
  if (!said.startsWith(TIMING)) return []; // a sign of life
  try {
    return [{ timing: JSON.parse(said.slice(TIMING.length)) }];
  } catch {
    return [];
  }
}

/** All events of an answer, as they come. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const split = new Events();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* split.push(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
