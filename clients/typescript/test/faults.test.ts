/** What the client does when answers are lost, the service is busy, or its own process does not run. */
import { strict as assert } from "node:assert";
import { after, before, test } from "node:test";
import { Client, LeaseLostError, LockHeldError, RefusedError, UnavailableError } from "../src/index.js";
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

for (const kind of ["lose_answer", "refuse"]) {
  test(`an acquire is repeated with the same token: ${kind}`, async () => {
    const [server, client] = await started();
    await server.fault(kind, "POST", 2);
    await using lease = await client.acquire("a", { waitMs: 0 });
    const requests = await server.requests("a");
    assert.deepEqual(requests.map((request) => request.failed), [kind, kind, null]);
    assert.ok(requests.every((request) => request.token === lease.token));
    assert.equal((await server.lock("a")).holders.length, 1);
  });
}

test("Retry-After is honoured", async () => {
  const [server, client] = await started();
  await server.fault("refuse", "POST");
  await using _ = await client.acquire("a");
  const [first, second] = await server.requests("a");
  assert.ok(second!.at_ms - first!.at_ms >= 1000);
});

test("retries have a bound, and the claim is withdrawn", async () => {
  const [server, client] = await started(2_000);
  await server.fault("refuse", "POST", 100);
  await assert.rejects(client.acquire("a"), (error) => {
    assert.ok(error instanceof UnavailableError);
    assert.equal(error.code, "store_unavailable");
    return true;
  });
  assert.equal((await server.requests("a")).at(-1)?.method, "DELETE");
});

test("nobody listening is unavailable", async () => {
  const client = new Client({ url: "http://127.0.0.1:9", retryForMs: 200 });
  await assert.rejects(client.acquire("a", { waitMs: 0 }), UnavailableError);
});

test("a lost answer to a renewal or a release does no harm", async () => {
  const [server, client] = await started();
  const lease = await client.acquire("a", { ttlMs: 2_000 });
  await server.fault("lose_answer", "PUT");
  await server.fault("lose_answer", "DELETE");
  await eventually(async () => (await count(server, "PUT")) >= 2);
  assert.ok(lease.held);
  assert.ok(await lease.release());
  assert.equal((await server.lock("a")).state, "free");
});

test("a lease whose renewals hang is lost in time", async () => {
  const [server, client] = await started();
  await server.fault("hang", "PUT", 100);
  const lease = await client.acquire("a", { ttlMs: 1_000 });
  const loss = await lease.lost;
  assert.equal(loss.code, "lease_expired");
  assert.ok(!lease.held && lease.signal.aborted);
  await assert.rejects(lease.release(), LeaseLostError);
});

test("a lease is not held right after a pause beyond its TTL", async () => {
  const [server, client] = await started();
  void server;
  const lease = await client.acquire("a", { ttlMs: 1_000 });
  await testbed.pauseThisProcess(2);
  let before = performance.now();
  for (let now = before; now - before < 1_000; now = performance.now()) before = now;
  // The process was stopped between the last two readings of the clock, and no timer has run since.
  assert.ok(!lease.held);
  assert.throws(() => lease.throwIfLost(), LeaseLostError);
  assert.ok(lease.signal.aborted);
  await assert.rejects(lease.release(), LeaseLostError);
});

test("a cancelled wait leaves the queue", async () => {
  const [server, client] = await started();
  await using held = await client.acquire("a");
  const controller = new AbortController();
  const waiting = client.acquire("a", { signal: controller.signal });
  await eventually(async () => (await server.lock("a")).queue_length === 1);
  controller.abort(new Error("enough"));
  await assert.rejects(waiting, /enough/);
  assert.equal((await server.lock("a")).queue_length, 0);
  const last = (await server.requests("a")).at(-1);
  assert.equal(last?.method, "DELETE");
  assert.notEqual(last?.token, held.token);
});

test("the signal of withLock is aborted when the lease is lost", async () => {
  const [server, client] = await started();
  const work = client.withLock(
    "a",
    async (_, signal) => {
      await server.evict("a");
      await new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    },
    { ttlMs: 1_000 },
  );
  await assert.rejects(work, (error) => error instanceof LeaseLostError && error.code === "lease_evicted");
});

test("withLock reports a loss although the work succeeded, and the error of the work before that", async () => {
  const [server, client] = await started();
  const options = { ttlMs: 1_000 };
  const lostWork = client.withLock("a", async (lease) => (await server.evict("a"), await lease.lost), options);
  await assert.rejects(lostWork, LeaseLostError);
  const failed = client.withLock("a", () => Promise.reject(new RangeError("mine")), options);
  await assert.rejects(failed, RangeError);
  assert.equal(await client.withLock("a", () => 5, options), 5);
  assert.equal((await server.lock("a")).state, "free");
});

test("many waiters do not delay a renewal", async () => {
  const [server, client] = await started();
  await using lease = await client.acquire("a", { ttlMs: 6_000 });
  const controller = new AbortController();
  const waiting = Array.from({ length: 120 }, () => client.acquire("a", { signal: controller.signal }).catch(() => {}));
  await eventually(async () => (await server.lock("a")).queue_length === 120);
  const before = await count(server, "PUT");
  await eventually(async () => (await count(server, "PUT")) > before + 1);
  assert.ok(lease.held);
  controller.abort();
  await Promise.all(waiting);
});

test("a wrong key is refused at once, and a held lock says who holds it", async () => {
  const [server, client] = await started();
  const wrong = new Client({ url: server.url, apiKey: "wrong".repeat(8) });
  await assert.rejects(wrong.acquire("a"), (error) => error instanceof RefusedError && error.code === "unauthorized");
  await using _ = await client.acquire("a", { owner: "pod-1" });
  await assert.rejects(client.acquire("a", { waitMs: 0 }), (error) => {
    assert.ok(error instanceof LockHeldError);
    assert.equal((error.problem.holders as { owner: string }[])[0]?.owner, "pod-1");
    return true;
  });
});
