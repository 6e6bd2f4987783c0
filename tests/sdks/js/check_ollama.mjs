// Ollama's SDK: chat, generate, embed, models. Run: node check_ollama.mjs BASE_URL PACKAGE

import { deepEqual, equal, ok } from "node:assert/strict";
import { collected, run, thrown } from "./checking.mjs";

const [, , host, name] = process.argv;
const { Ollama } = await import(name);
const client = new Ollama({ host });

const SAID = "Hello, wörld! 🚀";
const ASKED = [{ role: "user", content: "What is the weather in Zürich?" }];
const TOOLS = [
  {
    type: "function",
    function: {
      name: "weather",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
  { type: "function", function: { name: "now", parameters: { type: "object", properties: {} } } },
];
const whole = async (model, fields) => [await client.chat({ model, messages: ASKED, ...fields })];
const streamed = async (model, fields) =>
  collected(await client.chat({ model, messages: ASKED, ...fields, stream: true }));
const textOf = (answers) => answers.map((answer) => answer.message.content).join("");

async function text() {
  for (const ask of [whole, streamed]) {
    const answers = await ask("plain");
    equal(textOf(answers), SAID);
    deepEqual([answers.at(-1).done, answers.at(-1).done_reason, answers.at(-1).model], [true, "stop", "plain"]);
    ok(answers.at(-1).eval_count > 0);
  }
}

async function toolsThereAndBack() {
  for (const ask of [whole, streamed]) {
    const answers = await ask("calls", { tools: TOOLS });
    const calls = answers.flatMap((answer) => answer.message.tool_calls ?? []);
    deepEqual(
      calls.map((call) => [call.function.name, call.function.arguments]),
      [
        ["weather", { city: "Zürich" }],
        ["now", {}],
      ],
    );
    const results = calls.map((call) => ({ role: "tool", tool_name: call.function.name, content: "21 degrees" }));
    const said = { role: "assistant", content: textOf(answers), tool_calls: calls };
    const again = await ask("says", { messages: [...ASKED, said, ...results.reverse()], tools: TOOLS });
    equal(textOf(again), "It is sunny.");
  }
}

async function structured() {
  const format = { type: "object", properties: { degrees: { type: "integer" } }, required: ["degrees"] };
  deepEqual(JSON.parse(textOf(await whole("json", { format }))), { degrees: 21 });
}

async function generateAndEmbed() {
  equal((await client.generate({ model: "plain", prompt: "Hello." })).response, SAID);
  const { embeddings } = await client.embed({ model: "vectors", input: ["a", "b"] });
  deepEqual(
    embeddings.map((one) => one.length),
    [8, 8],
  );
}

async function models() {
  const names = (await client.list()).models.map((model) => model.model);
  ok(names.includes("plain") && names.includes("calls"));
  await client.show({ model: "plain" });
}

async function errors() {
  equal((await thrown(() => whole("none"))).status_code, 404);
  equal((await thrown(() => whole("full"))).status_code, 429);
  const broken = await thrown(() => streamed("breaks"));
  ok(String(broken).includes("injected fault"), String(broken));
}

await run([text, toolsThereAndBack, structured, generateAndEmbed, models, errors]);
