// Google's SDK: generateContent, countTokens, embedContent, models. Run: node check_genai.mjs BASE_URL PACKAGE

import { deepEqual, equal, ok } from "node:assert/strict";
import { collected, run, thrown } from "./checking.mjs";

const [, , baseUrl, name] = process.argv;
const { GoogleGenAI, ApiError, FunctionCallingConfigMode } = await import(name);
const client = new GoogleGenAI({ apiKey: "key", httpOptions: { baseUrl, timeout: 30_000 } });

const SAID = "Hello, wörld! 🚀";
const ASKED = "What is the weather in Zürich?";
const TOOLS = [
  {
    functionDeclarations: [
      {
        name: "weather",
        parametersJsonSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      },
      { name: "now", parametersJsonSchema: { type: "object", properties: {} } },
    ],
  },
];
const whole = async (model, contents, config) => [
  await client.models.generateContent({ model, contents: contents ?? ASKED, config }),
];
const streamed = async (model, contents, config) =>
  collected(await client.models.generateContentStream({ model, contents: contents ?? ASKED, config }));
const partsOf = (answers) => answers.flatMap((answer) => answer.candidates?.[0]?.content?.parts ?? []);
const textOf = (answers) =>
  partsOf(answers)
    .filter((part) => !part.thought)
    .map((part) => part.text ?? "")
    .join("");

async function text() {
  for (const ask of [whole, streamed]) {
    const answers = await ask("plain", ASKED, { systemInstruction: "Be brief." });
    equal(textOf(answers), SAID);
    equal(answers.at(-1).candidates[0].finishReason, "STOP");
    equal(answers.at(-1).modelVersion, "plain");
    ok(answers.at(-1).usageMetadata.totalTokenCount > 0);
  }
}

async function chatWithAMemory() {
  const chat = client.chats.create({ model: "plain" });
  equal((await chat.sendMessage({ message: "Hello." })).text, SAID);
  equal(textOf(await collected(await chat.sendMessageStream({ message: "Again." }))), SAID);
}

async function thoughtsAndToolsThereAndBack() {
  const config = { tools: TOOLS, thinkingConfig: { includeThoughts: true } };
  for (const ask of [whole, streamed]) {
    const answers = await ask("calls", ASKED, config);
    const parts = partsOf(answers);
    equal(
      parts
        .filter((part) => part.thought)
        .map((part) => part.text)
        .join(""),
      "The user asks for\nthe weather.",
    );
    equal(textOf(answers), "Let me look.");
    const calls = parts.filter((part) => part.functionCall).map((part) => part.functionCall);
    deepEqual(
      calls.map((call) => [call.name, call.args]),
      [
        ["weather", { city: "Zürich" }],
        ["now", {}],
      ],
    );
    const results = calls.map((call) => ({
      functionResponse: { id: call.id, name: call.name, response: { output: "21 degrees" } },
    }));
    const contents = [
      { role: "user", parts: [{ text: ASKED }] },
      ...answers.map((answer) => answer.candidates?.[0]?.content).filter(Boolean),
      { role: "user", parts: results.reverse() },
    ];
    equal(textOf(await ask("says", contents, config)), "It is sunny.");
  }
}

async function toolThatMustBeCalled() {
  for (const [model, calling] of [
    ["must", { mode: FunctionCallingConfigMode.ANY }],
    ["named", { mode: FunctionCallingConfigMode.ANY, allowedFunctionNames: ["weather"] }],
  ]) {
    const [answer] = await whole(model, ASKED, { tools: TOOLS, toolConfig: { functionCallingConfig: calling } });
    deepEqual(
      answer.functionCalls.map((call) => [call.name, call.args]),
      [["weather", { city: "Bern" }]],
    );
  }
}

async function structured() {
  const schema = { type: "object", properties: { degrees: { type: "integer" } }, required: ["degrees"] };
  const [answer] = await whole("json", ASKED, { responseMimeType: "application/json", responseJsonSchema: schema });
  deepEqual(JSON.parse(answer.text), { degrees: 21 });
}

async function stops() {
  equal(textOf(await streamed("plain", ASKED, { stopSequences: ["zz", "wö"] })), "Hello, ");
  const [short] = await whole("plain", ASKED, { maxOutputTokens: 1 });
  equal(short.candidates[0].finishReason, "MAX_TOKENS");
}

async function countingEmbeddingAndModels() {
  ok((await client.models.countTokens({ model: "plain", contents: ASKED })).totalTokens > 0);
  const names = (await collected(await client.models.list())).map((model) => model.name);
  ok(names.includes("models/plain") && names.includes("models/calls"));
  const { embeddings } = await client.models.embedContent({ model: "vectors", contents: ["a", "b"] });
  deepEqual(
    embeddings.map((one) => one.values.length),
    [8, 8],
  );
}

async function errors() {
  for (const [call, status] of [
    [() => whole("plain", ASKED, { temperature: -9 }), 400],
    [() => whole("none"), 404],
    [() => whole("full"), 429],
  ]) {
    const error = await thrown(call);
    ok(error instanceof ApiError, String(error));
    equal(error.status, status);
  }
  const broken = await thrown(() => streamed("breaks"));
  ok(String(broken).includes("injected fault"), String(broken));
}

await run([
  text,
  chatWithAMemory,
  thoughtsAndToolsThereAndBack,
  toolThatMustBeCalled,
  structured,
  stops,
  countingEmbeddingAndModels,
  errors,
]);
