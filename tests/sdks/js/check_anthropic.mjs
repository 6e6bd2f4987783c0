// Anthropic's SDK: Messages, counting, models. Run: node check_anthropic.mjs BASE_URL PACKAGE

import { deepEqual, equal, ok } from "node:assert/strict";
import { collected, run, thrown } from "./checking.mjs";

const [, , baseURL, name] = process.argv;
const { default: Anthropic } = await import(name);
const client = new Anthropic({ baseURL, apiKey: "key", maxRetries: 0, timeout: 30_000 });

const SAID = "Hello, wörld! 🚀";
const TOOLS = [
  {
    name: "weather",
    input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
  { name: "now", input_schema: { type: "object", properties: {} } },
];
const ASKED = [{ role: "user", content: "What is the weather in Zürich?" }];
const request = (fields) => ({ max_tokens: 500, messages: ASKED, ...fields });
const whole = (fields) => client.messages.create(request(fields));
const streamed = (fields) => client.messages.stream(request(fields)).finalMessage();

async function text() {
  for (const ask of [whole, streamed]) {
    const answer = await ask({ model: "plain", system: "Be brief." });
    deepEqual([answer.content.length, answer.content[0].text, answer.stop_reason], [1, SAID, "end_turn"]);
    equal(answer.model, "plain");
    ok(answer.usage.output_tokens > 0);
  }
  const events = await collected(await whole({ model: "plain", stream: true }));
  equal(events[0].type, "message_start");
  equal(events.at(-1).type, "message_stop");
}

async function thinkingAndToolsThereAndBack() {
  for (const ask of [whole, streamed]) {
    const answer = await ask({ model: "calls", tools: TOOLS });
    deepEqual(
      answer.content.map((block) => block.type),
      ["thinking", "text", "tool_use", "tool_use"],
    );
    const [thinking, said, weather, now] = answer.content;
    equal(thinking.thinking, "The user asks for\nthe weather.");
    ok(thinking.signature);
    equal(said.text, "Let me look.");
    deepEqual([weather.name, weather.input, now.name, now.input], ["weather", { city: "Zürich" }, "now", {}]);
    equal(answer.stop_reason, "tool_use");
    const results = [
      { type: "tool_result", tool_use_id: now.id, content: "12:00" },
      { type: "tool_result", tool_use_id: weather.id, content: "no such city", is_error: true },
    ];
    const messages = [...ASKED, { role: "assistant", content: answer.content }, { role: "user", content: results }];
    const again = await ask({ model: "says", messages, tools: TOOLS });
    equal(again.content.at(-1).text, "It is sunny.");
  }
}

async function toolThatMustBeCalled() {
  for (const [model, choice] of [
    ["must", { type: "any" }],
    ["named", { type: "tool", name: "weather" }],
  ]) {
    const answer = await streamed({ model, tools: TOOLS, tool_choice: choice });
    deepEqual([answer.content[0].name, answer.content[0].input], ["weather", { city: "Bern" }]);
  }
}

async function structured() {
  const schema = {
    type: "object",
    properties: { degrees: { type: "integer" } },
    required: ["degrees"],
    additionalProperties: false,
  };
  const answer = await client.messages.parse(
    request({ model: "json", output_config: { format: { type: "json_schema", schema } } }),
  );
  equal(answer.content[0].text, '{"degrees": 21}');
}

async function stops() {
  const answer = await streamed({ model: "plain", stop_sequences: ["zz", "wö"] });
  deepEqual([answer.content[0].text, answer.stop_reason, answer.stop_sequence], ["Hello, ", "stop_sequence", "wö"]);
  equal((await whole({ model: "plain", max_tokens: 1 })).stop_reason, "max_tokens");
}

async function countingAndModels() {
  const counted = await client.messages.countTokens({ model: "plain", messages: ASKED });
  ok(counted.input_tokens > 0);
  const names = (await collected(client.models.list())).map((model) => model.id);
  ok(names.includes("plain") && names.includes("calls"));
  equal((await client.models.retrieve("plain")).id, "plain");
}

async function errors() {
  const refused = await thrown(() => whole({ model: "plain", tools: [{ name: "a b", input_schema: 1 }] }));
  ok(refused instanceof Anthropic.BadRequestError);
  ok(refused.requestID);
  ok((await thrown(() => whole({ model: "none" }))) instanceof Anthropic.NotFoundError);
  ok((await thrown(() => whole({ model: "full" }))) instanceof Anthropic.RateLimitError);
  const broken = await thrown(() => streamed({ model: "breaks" }));
  ok(broken instanceof Anthropic.APIError && String(broken).includes("injected fault"), String(broken));
}

await run([
  text,
  thinkingAndToolsThereAndBack,
  toolThatMustBeCalled,
  structured,
  stops,
  countingAndModels,
  errors,
]);
