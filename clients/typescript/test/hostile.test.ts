/** What the client does when the answers are garbage, and that it runs where there is nothing of Node.js. */
import { strict as assert } from "node:assert";
import { readdirSync, readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { createContext, SourceTextModule } from "node:vm";
import { Client, LockHeldError, RefusedError } from "../src/index.js";
import { eventually, type Server, Testbed } from "./testbed.js";

let testbed: Testbed;
before(async () => {
  testbed = await Testbed.start();
});
after(() => testbed.stop());

async function started(retryForMs = 30_000): Promise<[Server, Client]> {
  const server = await testbed.server();
  return [server, new Client({ url: server.url, apiKey: server.apiKey, retryForMs })];
}

const count = async (server: Server, method: string): Promise<number> =>
  (await server.requests("a")).filter((request) => request.method === method).length;

const grant = (changes: object = {}): string =>
  JSON.stringify({ name: "a", fencing_token: 7, ttl_ms: 60_000, waited_ms: 0, expires_in_ms: 60_000, ...changes });

const garbage: Record<string, Record<string, string>> = {
  "broken compression": { status: "200", header: "Content-Encoding:gzip", body: "x" },
  "an hour": { status: "429", header: "Retry-After:3600" },
  "a century": { status: "503", header: "Retry-After:99999999999999999999" },
  "no end": { status: "503", header: "Retry-After:Infinity" },
  "no lease": { status: "200", body: '{"locks": [null]}' },
  "no locks": { status: "200", body: '{"locks": []}' },
  "an infinite number": { status: "200", body: grant({ expires_in_ms: 7 }).replace(":7}", ":1e999}") },
  "a huge number": { status: "200", body: grant({ expires_in_ms: 1e30 }) },
  "another lock": { status: "200", body: grant({ name: "b" }) },
  "no duration": { status: "200", body: grant({ ttl_ms: 0 }) },
  "a redirect": { status: "307", header: "Location:/locks/b" },
};

for (const [name, answer] of Object.entries(garbage)) {
  test(`garbage does not stop the renewals: ${name}`, async () => {
    const [server, client] = await started();
    await server.fault("answer", "PUT", 1, answer);
    await using lease = await client.acquire("a", { ttlMs: 3_000 });
    await eventually(async () => (await count(server, "PUT")) >= 2);
    assert.ok(lease.held);
    assert.ok(lease.fencingToken > 7);
  });
}

for (const name of ["another lock", "no lease", "no duration", "an infinite number"]) {
  test(`a grant that is none is refused and withdrawn: ${name}`, async () => {
    const [server, client] = await started();
    await server.fault("answer", "POST", 1, garbage[name]);
    await assert.rejects(client.acquire("a"), RefusedError);
    assert.equal(await count(server, "DELETE"), 1);
  });
}

test("a redirect is not followed, because it would take the token elsewhere and read a page as a release", async () => {
  const [server, client] = await started();
  await server.fault("answer", "POST", 1, { status: "307", header: "Location:/locks/b" });
  await assert.rejects(client.acquire("a", { waitMs: 0 }), RefusedError);
  const lease = await client.acquire("a");
  await server.fault("answer", "DELETE", 1, { status: "303", header: "Location:/livez" });
  assert.equal(await lease.release(), false);
  assert.deepEqual(await server.requests("b"), []);
});

test("an answer that drips is given up", async () => {
  const [server, client] = await started();
  await server.fault("drip", "PUT");
  await server.fault("drip", "DELETE");
  const lease = await client.acquire("a", { ttlMs: 3_000 });
  await eventually(async () => (await count(server, "PUT")) >= 2);
  assert.ok(lease.held);
  assert.ok(await lease.release());
});

test("answers that come at once are not asked for without a pause", async () => {
  const [server, client] = await started(1_000);
  await server.fault("answer", "POST", 100_000, { status: "423" });
  await assert.rejects(client.acquire("a", { waitMs: 1_000 }), LockHeldError);
  assert.ok((await count(server, "POST")) <= 12);
  const [other, otherClient] = await started(1_000);
  await other.fault("answer", "POST", 100_000, { status: "201", body: grant({ expires_in_ms: 0 }) });
  await assert.rejects(otherClient.acquire("a", { waitMs: 1_000 }));
  assert.ok((await count(other, "POST")) <= 12);
});

test("a wait of months is no pause of nothing", async () => {
  const [server, client] = await started();
  await server.fault("answer", "POST", 100_000, { status: "423", header: "Retry-After:9999999" });
  const stop = new AbortController();
  const waiting = client.acquire("a", { signal: stop.signal });
  await eventually(async () => (await count(server, "POST")) >= 1);
  await server.lock("b");
  stop.abort(new Error("enough"));
  await assert.rejects(waiting, /enough/);
  assert.equal(await count(server, "POST"), 1);
});

/** Runs the built client in a realm that has what browsers and Node.js share, and nothing else. */
test("the client imports nothing of Node.js and runs on the globals of a browser alone", async () => {
  const sources = new URL("../src/", import.meta.url);
  const texts = new Map<string, string>();
  for (const file of readdirSync(sources).filter((file) => file.endsWith(".js"))) {
    texts.set(`./${file}`, readFileSync(new URL(file, sources), "utf8"));
  }
  const server = await testbed.server();
  const page = { location: { origin: server.url }, fetch, URL, AbortSignal, AbortController, performance, crypto };
  const context = createContext({ ...page, setTimeout, clearTimeout });
  const modules = new Map<string, SourceTextModule>();
  const load = (specifier: string): SourceTextModule => {
    const text = texts.get(specifier);
    assert.ok(text !== undefined, `a browser cannot import ${specifier}`);
    const known = modules.get(specifier) ?? new SourceTextModule(text, { context, identifier: specifier });
    modules.set(specifier, known);
    return known;
  };
  const index = load("./index.js");
  await index.link(load);
  await index.evaluate();
  const { Client: PageClient } = index.namespace as { Client: typeof Client };
  const client = new PageClient({ apiKey: server.apiKey });
  const lease = await client.acquire("a", { ttlMs: 1_000 });
  await eventually(async () => (await count(server, "PUT")) >= 2);
  assert.ok(lease.held);
  assert.ok(await lease.release());
});
