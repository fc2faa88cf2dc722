/** Which service the client asks, with which key, and what it says when that key is refused. */
import { strict as assert } from "node:assert";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { Client, LeaseLostError, RefusedError } from "../src/index.js";
import { eventually, type Server, Testbed } from "./testbed.js";

const WRONG = "wrong-key-0123456789abcdef";
let testbed: Testbed;
let directory: string;
before(async () => {
  testbed = await Testbed.start();
  directory = await mkdtemp(join(tmpdir(), "leasehold-"));
});
after(async () => {
  await testbed.stop();
  await rm(directory, { recursive: true });
});
afterEach(() => {
  delete process.env.LEASEHOLD_API_KEY_FILE;
  delete process.env.LEASEHOLD_API_KEY;
});

const count = async (server: Server, method: string): Promise<number> =>
  (await server.requests("a")).filter((request) => request.method === method).length;

async function keyFile(text: string): Promise<string> {
  const file = join(directory, "token");
  await writeFile(file, text);
  process.env.LEASEHOLD_API_KEY_FILE = file;
  return file;
}

test("a key file is read for each request", async () => {
  const server = await testbed.server();
  const file = await keyFile(WRONG);
  // The file comes first, as with the commands.
  process.env.LEASEHOLD_API_KEY = WRONG;
  const client = new Client({ url: server.url });
  await assert.rejects(client.acquire("a"), RefusedError);
  await keyFile(`${server.apiKey}\n`);
  await using lease = await client.acquire("a", { ttlMs: 2_000 });
  // Such a file is replaced now and then, and the key of before is good meanwhile.
  await rm(file);
  await eventually(async () => (await count(server, "PUT")) >= 2);
  assert.ok(lease.held);
});

test("a key that cannot be used is an error that does not show it", async () => {
  const server = await testbed.server();
  for (const key of [`${WRONG}\n\n`, `${WRONG} x`, `${WRONG}é`]) {
    const namesNoKey = (error: Error) => /visible ASCII/.test(error.message) && !error.message.includes(WRONG);
    assert.throws(() => new Client({ url: server.url, apiKey: key }), namesNoKey);
    await assert.rejects(new Client({ url: server.url, apiKey: () => key }).acquire("a"), namesNoKey);
  }
  for (const text of ["", "\n", `${WRONG}\n\n`]) {
    await keyFile(text);
    const namesFile = (error: Error) => /token/.test(error.message) && !error.message.includes(WRONG);
    await assert.rejects(new Client({ url: server.url }).acquire("a"), namesFile);
  }
  process.env.LEASEHOLD_API_KEY_FILE = join(directory, "none");
  await assert.rejects(new Client({ url: server.url }).acquire("a"), /none/);
  assert.deepEqual(await server.requests("a"), []);
  const lease = await new Client({ url: server.url, apiKey: `${server.apiKey}\r\n` }).acquire("a");
  assert.ok(await lease.release());
});

test("a key may come from a function, whose failure ends an acquire and no lease", async () => {
  const server = await testbed.server();
  let key = async (): Promise<string> => {
    throw new Error("the vault is sealed");
  };
  const client = new Client({ url: server.url, apiKey: () => key() });
  await assert.rejects(client.acquire("a"), /the vault is sealed/);
  const stop = new AbortController();
  key = () => new Promise(() => {});
  const waiting = client.acquire("a", { signal: stop.signal });
  stop.abort(new Error("enough"));
  await assert.rejects(waiting, /enough/);
  assert.deepEqual(await server.requests("a"), []);
  key = async () => server.apiKey;
  await using lease = await client.acquire("a", { ttlMs: 2_000 });
  key = async () => {
    throw new Error("the vault is sealed");
  };
  await eventually(async () => (await count(server, "PUT")) >= 2);
  assert.ok(lease.held);
});

test("a lease whose key does not come is lost in time", async () => {
  const server = await testbed.server();
  let key = async (): Promise<string> => server.apiKey;
  const lease = await new Client({ url: server.url, apiKey: () => key() }).acquire("a", { ttlMs: 1_000 });
  key = () => new Promise(() => {});
  assert.equal((await lease.lost).code, "lease_expired");
});

test("a refused renewal is logged once and named by the loss", async (context) => {
  const warn = context.mock.method(console, "warn", () => {});
  const server = await testbed.server();
  const body = '{"code":"unauthorized","detail":"the key is unknown"}';
  await server.fault("answer", "PUT", 100, { status: "401", body });
  const lease = await new Client({ url: server.url, apiKey: server.apiKey }).acquire("a", { ttlMs: 1_000 });
  const loss = await lease.lost;
  await assert.rejects(lease.release(), LeaseLostError);
  assert.equal(loss.code, "lease_expired");
  assert.match(loss.message, /401: the key is unknown/);
  const texts = warn.mock.calls.map((call) => String(call.arguments[0])).filter((text) => text.includes("401"));
  assert.equal(texts.length, 1);
  assert.match(texts[0]!, /the key is unknown/);
});

test("a URL needs no scheme, and what is none of a service is an error", async () => {
  const server = await testbed.server();
  const { host, port } = new URL(server.url);
  for (const url of [host, `:${port}`]) {
    const lease = await new Client({ url, apiKey: server.apiKey }).acquire("a");
    assert.ok(await lease.release());
  }
  for (const url of ["ftp://a", "localhost", "http://", "http://a:x"]) {
    assert.throws(() => new Client({ url }), /write one like/, url);
  }
  assert.throws(() => new Client({ url: "unix:/run/leasehold.sock" }), /Unix socket/);
});

test("a duration is a number", async () => {
  const client = new Client({ url: "http://127.0.0.1:9" });
  for (const options of [{ ttlMs: "30s" }, { waitMs: "1" }, { minHoldMs: NaN }]) {
    await assert.rejects(client.acquire("a", options as object), /Ms is a number of milliseconds/);
  }
});
