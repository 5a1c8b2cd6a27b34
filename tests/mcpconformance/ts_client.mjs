// A session of the TypeScript SDK's client against nsm: see clients.py, which starts it and reads
// what it prints. It is copied to where npm's packages are: modules are found from there only.
import process from "node:process";

const task = JSON.parse(process.argv[2]);

async function connect() {
  if (task.sdk === "v1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const client = new Client({ name: "ts-v1", version: "1" });
    if (task.url) {
      const { StreamableHTTPClientTransport } = await import(
        "@modelcontextprotocol/sdk/client/streamableHttp.js"
      );
      const transport = new StreamableHTTPClientTransport(new URL(task.url), {
        requestInit: { headers: task.headers },
      });
      await client.connect(transport);
      return [client, transport, () => transport.protocolVersion];
    }
    const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
    const transport = new StdioClientTransport({
      command: task.command[0],
      args: task.command.slice(1),
      env: task.variables,
    });
    await client.connect(transport);
    return [client, transport, () => client.getNegotiatedProtocolVersion?.() ?? null];
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const mode = task.mode === "legacy" ? "legacy" : { pin: task.mode };
  const client = new Client({ name: "ts-v2", version: "1" }, { versionNegotiation: { mode } });
  let transport;
  if (task.url) {
    transport = new StreamableHTTPClientTransport(new URL(task.url), {
      requestInit: { headers: task.headers },
    });
  } else {
    const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
    transport = new StdioClientTransport({
      command: task.command[0],
      args: task.command.slice(1),
      env: task.variables,
    });
  }
  await client.connect(transport);
  return [client, transport, () => client.getNegotiatedProtocolVersion()];
}

const text = (result) => result.content.map((part) => part.text).join("");
const [client, transport, revision] = await connect();
const call = (name, args, options) =>
  task.sdk === "v1"
    ? client.callTool({ name, arguments: args }, undefined, options)
    : client.callTool({ name, arguments: args }, options);

const seen = { revision: revision(), tools: [], calls: {}, progress: [] };
seen.tools = (await client.listTools()).tools.map((tool) => tool.name);
for (const { key, name, args, progress } of task.calls) {
  const options = progress
    ? { onprogress: ({ message }) => seen.progress.push(message ?? null) }
    : undefined;
  const result = await call(name, args, options);
  seen.calls[key] = { text: text(result), error: result.isError === true };
}
seen.atOnce = await Promise.all(
  task.atOnce.map(async ({ name, args }) => text(await call(name, args))),
);
const stop = new AbortController();
const { name, args, until } = task.cancelled;
const heard = [];
seen.cancelled = await call(name, args, {
  signal: stop.signal,
  onprogress: ({ message }) => {
    heard.push(message);
    if (heard.join("").includes(until)) stop.abort("taken back");
  },
}).then(
  () => "answered",
  () => "taken back",
);
seen.after = text(await call(task.after.name, task.after.args));
if (transport.terminateSession && seen.revision !== "2026-07-28") await transport.terminateSession();
await client.close();
process.stdout.write(`${JSON.stringify(seen)}\n`);
