// Talks to a server with OpenAI's client for JavaScript: node client.mjs PACKAGE/index.mjs BASE_URL
import assert from "node:assert";
import { pathToFileURL } from "node:url";

const { default: OpenAI } = await import(pathToFileURL(process.argv[2]));
const client = new OpenAI({ baseURL: process.argv[3], apiKey: "none", maxRetries: 0 });

const request = {
  model: "tiny",
  messages: [{ role: "system", content: "be short" }, { role: "user", content: [{ type: "text", text: "weather?" }] }],
  tools: [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }, { type: "function", function: { name: "time" } }],
  temperature: 0.7, seed: 3, logprobs: true, top_logprobs: 1,
};

const whole = await client.chat.completions.create(request);
const call = whole.choices[0].message.tool_calls;
assert.equal(whole.choices[0].finish_reason, "tool_calls");
assert.deepEqual(call.map((c) => c.function.name), ["weather", "time"]);
assert.equal(call[0].function.arguments, '{"city": "Ulm"}');
assert.ok(whole.usage.total_tokens > 0 && whole.choices[0].logprobs.content.length > 0);

const runner = client.chat.completions.stream({ ...request, stream_options: { include_usage: true } });
const streamed = await runner.finalChatCompletion();
assert.equal(streamed.choices[0].message.content, whole.choices[0].message.content);
assert.deepEqual(streamed.choices[0].message.tool_calls.map((c) => c.function), call.map((c) => c.function));
assert.equal(streamed.usage.total_tokens, whole.usage.total_tokens);

const text = await client.completions.create({ model: "tiny", prompt: ["a", "b"], n: 2, max_tokens: 3 });
assert.deepEqual(text.choices.map((c) => c.index), [0, 1, 2, 3]);
assert.equal((await client.models.list()).data[0].id, "tiny");

const asked = { model: "tiny", instructions: "be short", input: [{ role: "user", content: "weather?" }], max_output_tokens: 50 };
const response = await client.responses.create(asked);
assert.equal(response.status, "completed");
assert.ok(response.output_text.startsWith("I look.") && response.usage.output_tokens > 0);
const responding = client.responses.stream(asked);
let heard = "";
responding.on("response.output_text.delta", (event) => { heard += event.delta; });
const final = await responding.finalResponse();
assert.equal(heard, response.output_text);
assert.equal(final.output_text, heard);
await assert.rejects(client.responses.create({ ...asked, previous_response_id: "resp_1" }), (err) => err.status === 400 && err.param === "previous_response_id");

await assert.rejects(client.chat.completions.create({ ...request, top_p: 2 }), (err) => err.status === 400 && err.param === "top_p");
await assert.rejects(client.completions.create({ model: "gpt-4", prompt: "x" }), (err) => err.status === 404 && err.code === "model_not_found");
console.log("done");
