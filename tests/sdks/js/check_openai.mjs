// OpenAI's SDK: Chat Completions and Responses. Run: node check_openai.mjs BASE_URL PACKAGE

import { deepEqual, equal, ok } from "node:assert/strict";
import { z } from "zod";
import { collected, run, thrown } from "./checking.mjs";

const [, , baseURL, name] = process.argv;
const { default: OpenAI, NotFoundError, BadRequestError, RateLimitError, APIError } = await import(name);
const { zodResponseFormat, zodTextFormat } = await import(`${name}/helpers/zod`);
const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: "key", maxRetries: 0, timeout: 30_000 });

const SAID = "Hello, wörld! 🚀";
const PARAMETERS = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const TOOLS = [
  { type: "function", function: { name: "weather", parameters: PARAMETERS } },
  { type: "function", function: { name: "now" } },
];
const FLAT = [
  { type: "function", name: "weather", parameters: PARAMETERS, strict: false },
  { type: "function", name: "now", parameters: { type: "object", properties: {} }, strict: false },
];
const ASKED = [{ role: "user", content: "What is the weather in Zürich?" }];
const CALLS = [
  ["weather", '{"city": "Zürich"}'],
  ["now", "{}"],
];
const Answer = z.object({ degrees: z.number() });

async function chatWhole() {
  const answer = await client.chat.completions.create({ model: "plain", messages: ASKED });
  equal(answer.choices[0].message.content, SAID);
  equal(answer.choices[0].finish_reason, "stop");
  equal(answer.model, "plain");
  ok(answer.usage.total_tokens > 0);
}

async function chatStreamed() {
  const chunks = await collected(
    await client.chat.completions.create({
      model: "plain",
      messages: ASKED,
      stream: true,
      stream_options: { include_usage: true },
    }),
  );
  equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), SAID);
  deepEqual(chunks.at(-1).choices, []);
  ok(chunks.at(-1).usage.completion_tokens > 0);
}

async function chatToolsThereAndBack() {
  const request = { model: "calls", messages: ASKED, tools: TOOLS };
  const streamed = await client.chat.completions.stream(request).finalChatCompletion();
  const whole = await client.chat.completions.create(request);
  for (const { choices } of [streamed, whole]) {
    const { message, finish_reason } = choices[0];
    equal(finish_reason, "tool_calls");
    equal(message.content, "Let me look.");
    deepEqual(
      message.tool_calls.map((call) => [call.function.name, call.function.arguments]),
      CALLS,
    );
    const results = message.tool_calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: "21 degrees" }));
    const again = await client.chat.completions.create({
      model: "says",
      messages: [...ASKED, message, ...results.reverse()],
      tools: TOOLS,
    });
    equal(again.choices[0].message.content, "It is sunny.");
  }
  equal(whole.choices[0].message.reasoning_content, "The user asks for\nthe weather.");
}

async function chatToolThatMustBeCalled() {
  for (const [model, choice] of [
    ["must", "required"],
    ["named", { type: "function", function: { name: "weather" } }],
  ]) {
    const answer = await client.chat.completions.create({ model, messages: ASKED, tools: TOOLS, tool_choice: choice });
    const [call] = answer.choices[0].message.tool_calls;
    deepEqual([call.function.name, call.function.arguments], ["weather", '{"city": "Bern"}']);
  }
}

async function chatStructured() {
  const answer = await client.chat.completions.parse({
    model: "json",
    messages: ASKED,
    response_format: zodResponseFormat(Answer, "answer"),
  });
  deepEqual(answer.choices[0].message.parsed, { degrees: 21 });
}

async function errors() {
  const create = (request) => client.chat.completions.create({ messages: ASKED, ...request });
  const refused = await thrown(() => create({ model: "plain", temperature: 9 }));
  ok(refused instanceof BadRequestError);
  deepEqual([refused.param, refused.type], ["temperature", "invalid_request_error"]);
  ok(refused.requestID);
  ok((await thrown(() => create({ model: "none" }))) instanceof NotFoundError);
  ok((await thrown(() => create({ model: "full" }))) instanceof RateLimitError);
  const broken = await thrown(async () => collected(await create({ model: "breaks", stream: true })));
  ok(broken instanceof APIError, String(broken));
}

async function responsesWhole() {
  const answer = await client.responses.create({ model: "plain", input: "Hello.", instructions: "Be brief." });
  deepEqual([answer.output_text, answer.status, answer.model], [SAID, "completed", "plain"]);
}

async function responsesStreamed() {
  const events = await collected(await client.responses.create({ model: "plain", input: "Hello.", stream: true }));
  equal(events[0].type, "response.created");
  equal(events.at(-1).type, "response.completed");
  deepEqual(
    events.map((event) => event.sequence_number),
    [...events.keys()],
  );
}

async function responsesToolsThereAndBack() {
  const request = { model: "calls", input: ASKED, tools: FLAT };
  const streamed = await client.responses.stream(request).finalResponse();
  const whole = await client.responses.create(request);
  for (const { output } of [streamed, whole]) {
    deepEqual(
      output.map((item) => item.type),
      ["reasoning", "message", "function_call", "function_call"],
    );
    const calls = output.filter((item) => item.type === "function_call");
    deepEqual(
      calls.map((call) => [call.name, call.arguments]),
      CALLS,
    );
    const results = calls.map((call) => ({
      type: "function_call_output",
      call_id: call.call_id,
      output: "21 degrees",
    }));
    const again = await client.responses.create({
      model: "says",
      input: [...ASKED, ...output, ...results.reverse()],
      tools: FLAT,
    });
    equal(again.output_text, "It is sunny.");
  }
}

async function responsesStructured() {
  const answer = await client.responses.parse({
    model: "json",
    input: "Degrees?",
    text: { format: zodTextFormat(Answer, "answer") },
  });
  deepEqual(answer.output_parsed, { degrees: 21 });
}

async function responsesCutShort() {
  const answer = await client.responses
    .stream({ model: "plain", input: "Hello.", max_output_tokens: 1 })
    .finalResponse();
  deepEqual([answer.status, answer.incomplete_details.reason], ["incomplete", "max_output_tokens"]);
}

async function models() {
  const names = (await collected(client.models.list())).map((model) => model.id);
  ok(names.includes("plain") && names.includes("calls"));
  equal((await client.models.retrieve("plain")).id, "plain");
}

await run([
  chatWhole,
  chatStreamed,
  chatToolsThereAndBack,
  chatToolThatMustBeCalled,
  chatStructured,
  errors,
  responsesWhole,
  responsesStreamed,
  responsesToolsThereAndBack,
  responsesStructured,
  responsesCutShort,
  models,
]);
