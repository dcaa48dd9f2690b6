// OpenAI's client for Node before an endpoint. Prints one JSON object, as the Python probes do.
import OpenAI from "openai";

const [, , url] = process.argv;
const MODEL = "tiny";
const LIMIT = 12;
const TEXT = "The crowd counts the steps of the runner who hands the baton to the next one. ".repeat(3);
const messages = [{ role: "user", content: TEXT }];
// Left to itself the tiny model fills a shape with white space and never ends it. 257: end of text.
const ENDS = { 32: -100, 9: -100, 13: -100, 10: -100, 257: 100 };
const SHAPE = {
  type: "object",
  properties: { city: { type: "string", enum: ["Berlin", "Tokyo"] } },
  required: ["city"],
  additionalProperties: false,
};
const client = new OpenAI({
  baseURL: `${url}/v1`,
  apiKey: "none",
  maxRetries: 0,
  timeout: 120_000,
  defaultHeaders: { "x-baton-disaggregate": "always" },
});
const asked = { model: MODEL, messages, temperature: 0, max_tokens: LIMIT };

function check(holds, why) {
  if (!holds) throw new Error(why);
}

async function text() {
  return (await client.chat.completions.create(asked)).choices[0].message.content;
}

const cases = {
  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    check(ids.includes(MODEL), `models are ${ids}`);
  },
  async chat() {
    const told = await client.chat.completions.create(asked);
    check(told.choices[0].message.content, "no text");
    check(told.choices[0].finish_reason === "length", told.choices[0].finish_reason);
    check(told.usage.completion_tokens === LIMIT, JSON.stringify(told.usage));
  },
  async stream() {
    const parts = [];
    const usages = [];
    const stream = await client.chat.completions.create({
      ...asked, stream: true, stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      if (chunk.choices.length) parts.push(chunk.choices[0].delta.content ?? "");
      if (chunk.usage) usages.push(chunk.usage);
    }
    check(parts.length > 3, `${parts.length} chunks`);
    check(parts.join("") === (await text()), `${parts.join("")} against the whole`);
    check(usages.length === 1 && usages[0].completion_tokens === LIMIT, JSON.stringify(usages));
  },
  async hang_up() {
    const stream = await client.chat.completions.create({ ...asked, max_tokens: 64, stream: true });
    for await (const _ of stream) break;
    check(await text(), "no answer after a caller hung up");
  },
  async tools() {
    const told = await client.chat.completions.create({
      ...asked, max_tokens: 220, logit_bias: ENDS,
      tools: [{ type: "function", function: { name: "forecast", parameters: SHAPE } }],
      tool_choice: { type: "function", function: { name: "forecast" } },
    });
    const [call] = told.choices[0].message.tool_calls;
    check(call.function.name === "forecast", JSON.stringify(call));
    check(["Berlin", "Tokyo"].includes(JSON.parse(call.function.arguments).city), call.function.arguments);
  },
  async structured() {
    const told = await client.chat.completions.parse({
      ...asked, max_tokens: 220, logit_bias: ENDS,
      response_format: {
        type: "json_schema", json_schema: { name: "forecast", strict: true, schema: SHAPE },
      },
    });
    const { city } = JSON.parse(told.choices[0].message.content);
    check(["Berlin", "Tokyo"].includes(city), city);
  },
  async responses() {
    const told = await client.responses.create({ model: MODEL, input: TEXT, max_output_tokens: 16 });
    check(told.output_text, JSON.stringify(told.output));
    check(told.usage.output_tokens === 16, JSON.stringify(told.usage));
  },
  async bad_request() {
    try {
      await client.chat.completions.create({ ...asked, top_p: 7 });
    } catch (error) {
      check(error instanceof OpenAI.BadRequestError, String(error));
      check(error.message.includes("top_p"), error.message);
      return;
    }
    throw new Error("top_p 7 was answered");
  },
  async unknown_model() {
    try {
      await client.chat.completions.create({ ...asked, model: "nobody" });
    } catch (error) {
      check(error instanceof OpenAI.NotFoundError && error.code === "model_not_found", String(error));
      return;
    }
    throw new Error("a model that nobody serves was answered");
  },
  async embeddings() {
    try {
      await client.embeddings.create({ model: MODEL, input: "a text" });
    } catch (error) {
      check(error instanceof OpenAI.NotFoundError, String(error));
      return;
    }
    throw new Error("embeddings of a model that makes none");
  },
};

const told = {};
for (const [name, one] of Object.entries(cases)) {
  try {
    await one();
    told[name] = "ok";
  } catch (error) {
    told[name] = String(error).slice(0, 600);
  }
}
console.log(JSON.stringify(told));
