// The official client with the tasks extension: calls tools that become tasks, answers, cancels. Reads where the server
// is as JSON on stdin, and prints what it saw as JSON.
import { readFileSync } from "node:fs";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { createTaskSessionFromClient } from "@modelcontextprotocol/ext-tasks/client";

const { url, command, env, gate } = JSON.parse(readFileSync(0, "utf8"));
const transport =
  url === undefined
    ? new StdioClientTransport({ command: command[0], args: command.slice(1), env, stderr: "ignore" })
    : new StreamableHTTPClientTransport(new URL(url));
const clientInfo = { name: "official", version: "1" };
const capabilities = { elicitation: { form: {} } };
const client = new Client(clientInfo, { capabilities, versionNegotiation: { mode: "auto" } });
await client.connect(transport);

// The client's own reader knows no tasks: messages about them go past it, over the same transport.
const waiting = new Map();
const read = transport.onmessage;
transport.onmessage = (message, extra) => {
  const settle = waiting.get(message.id);
  if (settle === undefined) return read?.(message, extra);
  waiting.delete(message.id);
  settle(
    message.error === undefined
      ? { kind: "result", result: message.result }
      : { kind: "error", error: message.error },
  );
};
const sent = [];
async function rawDispatch(request) {
  const id = `task-request-${sent.push(request.method)}`;
  const answer = new Promise((settle) => waiting.set(id, settle));
  await transport.send({ jsonrpc: "2.0", id, ...request });
  return answer;
}

const asked = [];
const session = createTaskSessionFromClient(client, {
  endpointId: "dragoman",
  rawDispatch,
  v2RequestFraming: { protocolVersion: "2026-07-28", clientInfo, clientCapabilities: capabilities },
  onInputRequest: async (request) => {
    asked.push(request.params.message);
    return { action: "accept", content: { sure: true } };
  },
});

async function outcomeOf(name, params, cancels = false) {
  const execution = await session.callTool(name, params);
  if (cancels) await execution.cancel();
  const { outcome } = await execution.settle();
  return {
    kind: execution.kind,
    status: outcome.status,
    content: outcome.result?.structuredContent ?? null,
    isError: outcome.result?.isError ?? null,
    error: outcome.error?.message ?? null,
  };
}

const outcomes = {};
outcomes.add = await outcomeOf("add", { a: 2, b: 3 });
outcomes.refuse = await outcomeOf("refuse", {});
outcomes.fault = await outcomeOf("fault", {});
outcomes.pay = await outcomeOf("pay", { gate: `${gate}.never` }, true);
outcomes.confirm = await outcomeOf("confirm", { gate });
await session.close();
await client.close();
console.log(JSON.stringify({ outcomes, asked, methods: [...new Set(sent)].sort() }));
