// What a client does with the types that openapi-typescript generated: `node scenario.js URL`. The test compiles it first,
// in strict mode and without a cast.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import createClient from "openapi-fetch";
import type { components, paths } from "./leasehold.js";

type Problem = components["schemas"]["Problem"];

const client = createClient<paths>({ baseUrl: process.argv[2] });
const path = { name: "orders/42" };

function refused(problem: Problem | undefined, status: number, code: string): Problem {
  assert(problem, `not refused with ${code}`);
  assert.deepEqual([problem.status, problem.code], [status, code]);
  return problem;
}

// Acquire: the lease is of the lock with the slash, and the second claim is refused with its holder.
const first = await client.POST("/locks/{name}", {
  params: { path },
  body: { ttl: "30s", owner: "one", mode: "exclusive" },
});
assert(first.data, "not granted");
assert.deepEqual([first.response.status, first.data.name], [201, "orders/42"]);
const fencingToken: number = first.data.fencing_token;
const held = await client.POST("/locks/{name}", { params: { path } });
const problem = refused(held.error, 423, "lock_held");
assert.equal(problem.holders?.[0]?.owner, "one");

// Renew, with the token in the header.
const header = { "Lock-Token": first.data.token };
const renewed = await client.PUT("/locks/{name}", { params: { path, header }, body: { ttl: "1m" } });
assert.equal(renewed.data?.ttl_ms, 60_000);

// A wait that times out keeps its place for the token of the refusal.
const late = await client.POST("/locks/{name}", { params: { path }, body: { wait: "100ms" } });
const { token, position } = refused(late.error, 423, "wait_timeout");
assert(token && position === 1);

// Wait: the claim is granted when the holder releases.
const waiting = client.POST("/locks/{name}", { params: { path }, body: { wait: "20s", token } });
for (;;) {
  const lock = await client.GET("/locks/{name}", { params: { path } });
  assert.equal(lock.data?.state, "held");
  if (lock.data.queue_length === 1) break;
}
const released = await client.DELETE("/locks/{name}", { params: { path, header } });
assert.equal(released.response.status, 204);
const second = await waiting;
assert(second.data, "not granted");
assert(second.data.token === token && second.data.fencing_token > fencingToken);
await client.DELETE("/locks/{name}", { params: { path, header: { "Lock-Token": token } } });

// Stop working (412), and do not reuse a token (409).
const lost = await client.PUT("/locks/{name}", { params: { path, header } });
refused(lost.error, 412, "lease_released");
const ended = await client.POST("/locks/{name}", { params: { path, header } });
refused(ended.error, 409, "claim_ended");

// Several locks, under a token of the client.
const names = ["acct/1", "acct/2"];
const own = { "Lock-Token": randomUUID() };
const grants = await client.POST("/locks", { params: { header: own }, body: { names } });
assert.deepEqual(grants.data?.locks.map((grant) => grant.name), names);
const gone = await client.DELETE("/locks", { params: { header: own, query: { names } } });
assert.equal(gone.response.status, 204);
console.log("done");
