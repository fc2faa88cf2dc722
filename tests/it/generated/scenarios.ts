// Carries out clients/scenarios.json with the types that openapi-typescript generated. The test compiles it first, in strict
// mode. Such a client neither repeats a request nor renews by itself, so the driver does.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import createClient, { type Client } from "openapi-fetch";
import type { components, paths } from "./leasehold.js";
import { eventually, type Server, type Step, scenarios, Testbed } from "./testbed.js";

type Problem = components["schemas"]["Problem"];
type Grant = components["schemas"]["Grant"];
type Fields = components["schemas"]["AcquireRequest"];

/** The longest wait of one request. */
const POLL_MS = 25_000;

interface Lease {
  readonly names: string[];
  readonly token: string;
  readonly holdCount: number;
  readonly fencingTokens: number[];
}

/** The answer to an acquire. */
interface Answer {
  readonly grants: Grant[] | undefined;
  readonly problem: Problem | undefined;
}

class Refused extends Error {
  constructor(readonly problem: Problem) {
    super(problem.code);
  }
}

function numberIn(step: Step, field: string): number {
  const value = step[field];
  assert(typeof value === "number", `${field} is a number`);
  return value;
}

function namesIn(step: Step): string[] {
  assert(step.names, "the step has names");
  return step.names;
}

class Driver {
  readonly client: Client<paths>;
  readonly leases = new Map<unknown, Lease>();
  readonly tasks = new Map<unknown, Promise<Lease>>();

  constructor(readonly server: Server) {
    const headers = { Authorization: `Bearer ${server.apiKey}` };
    this.client = createClient<paths>({ baseUrl: server.url, headers });
  }

  lease(subject: unknown): Lease {
    const lease = this.leases.get(subject);
    assert(lease, `${subject} has a lease`);
    return lease;
  }

  async acquire(step: Step): Promise<Lease> {
    const names = namesIn(step);
    const token = step.token_of ? this.lease(step.token_of).token : randomUUID();
    const fields: Fields = { ttl: `${numberIn(step, "ttl_ms")}ms` };
    if (step.mode === "shared") fields.mode = "shared";
    if (step.limit) fields.limit = numberIn(step, "limit");
    if (step.permits) fields.permits = numberIn(step, "permits");
    if (step.hold_count) fields.hold_count = numberIn(step, "hold_count");
    const waitMs = numberIn(step, "wait_ms");
    const giveUpAt = Date.now() + waitMs;
    for (;;) {
      const leftMs = Math.min(giveUpAt - Date.now(), POLL_MS);
      if (leftMs > 0) fields.wait = `${leftMs}ms`;
      const answer = await this.ask(names, token, fields);
      if (answer?.grants) {
        const fencingTokens = answer.grants.map((grant) => grant.fencing_token);
        return { names, token, holdCount: fields.hold_count ?? 1, fencingTokens };
      }
      const problem = answer?.problem;
      if (problem && ((problem.status !== 423 && problem.status !== 503) || Date.now() >= giveUpAt)) {
        if (waitMs > 0) await this.release({ names, token, holdCount: 1, fencingTokens: [] });
        throw new Refused(problem);
      }
      await sleep(50);
    }
  }

  /** Nothing if there was no answer. */
  async ask(names: string[], token: string, body: Fields): Promise<Answer | undefined> {
    const header = { "Lock-Token": token };
    const [name, ...others] = names;
    try {
      if (name !== undefined && others.length === 0) {
        const { data, error } = await this.client.POST("/locks/{name}", { params: { path: { name }, header }, body });
        return { grants: data && [data], problem: error };
      }
      const { data, error } = await this.client.POST("/locks", { params: { header }, body: { ...body, names } });
      return { grants: data?.locks, problem: error };
    } catch (error) {
      assert(error instanceof TypeError, `${error}`);
      return undefined;
    }
  }

  async release({ names, token, holdCount }: Lease): Promise<void> {
    const header = { "Lock-Token": token };
    // The names of several locks are in the query string, which takes no commas.
    if (names.length > 1 && !names.some((name) => name.includes(","))) {
      const released = await this.client.DELETE("/locks", { params: { header, query: { names } } });
      return this.expectStatus(204, released.response.status, released.error);
    }
    for (const name of names) {
      const query = holdCount > 1 ? { hold_count: holdCount - 1 } : {};
      const released = await this.client.DELETE("/locks/{name}", { params: { path: { name }, header, query } });
      this.expectStatus(holdCount > 1 ? 200 : 204, released.response.status, released.error);
    }
  }

  expectStatus(expected: number, status: number, problem: Problem | undefined): void {
    if (problem) throw new Refused(problem);
    assert.equal(status, expected);
  }

  async renew({ names, token, fencingTokens }: Lease): Promise<void> {
    const [name] = names;
    assert(name);
    const header = { "Lock-Token": token };
    const { data, error } = await this.client.PUT("/locks/{name}", { params: { path: { name }, header } });
    if (error) throw new Refused(error);
    assert.equal(data?.fencing_token, fencingTokens[0]);
  }

  async isHeld({ names, fencingTokens }: Lease): Promise<boolean> {
    const [name] = names;
    assert(name);
    const lock = await this.client.GET("/locks/{name}", { params: { path: { name } } });
    assert(lock.data);
    return lock.data.holders.some((holder) => holder.fencing_token === fencingTokens[0]);
  }

  async isLost(lease: Lease, code: unknown): Promise<boolean> {
    try {
      await this.renew(lease);
      return false;
    } catch (error) {
      assert(error instanceof Refused);
      return error.problem.status === 412 && error.problem.code === code;
    }
  }

  async expiresAt({ names }: Lease): Promise<string | undefined> {
    const [name] = names;
    assert(name);
    return (await this.server.lock(name)).holders[0]?.expires_at;
  }

  async carryOut(step: Step): Promise<void> {
    const [[kind, subject]] = Object.entries(step) as [[string, unknown]];
    const name = String(subject);
    switch (kind) {
      case "acquire":
        this.leases.set(subject, await this.acquire(step));
        break;
      case "begin":
        this.tasks.set(subject, this.acquire(step));
        break;
      case "finish": {
        const lease = await this.tasks.get(subject);
        assert(lease);
        this.leases.set(subject, lease);
        break;
      }
      case "release":
        await this.release(this.lease(subject));
        break;
      case "held":
        assert.equal(await this.isHeld(this.lease(subject)), step.is);
        break;
      case "until_lost":
        await eventually(() => this.isLost(this.lease(subject), step.code));
        break;
      case "until_renewed":
        for (let count = 0; count < numberIn(step, "times"); count += 1) {
          const lease = this.lease(subject);
          const before = await this.expiresAt(lease);
          await eventually(async () => {
            await this.renew(lease);
            return (await this.expiresAt(lease)) !== before;
          });
        }
        break;
      case "fencing_token_of": {
        const [larger] = this.lease(subject).fencingTokens;
        const [smaller] = this.lease(step.is_larger_than_of).fencingTokens;
        assert(larger && smaller && larger > smaller);
        break;
      }
      case "restart":
        await this.server.restart();
        break;
      case "evict":
        await this.server.evict(name);
        break;
      case "lock":
        assert.equal((await this.server.lock(name)).state, step.state);
        break;
      case "until_queued":
        await eventually(async () => (await this.server.lock(name)).queue_length === step.length);
        break;
      default:
        assert.fail(`unknown step ${kind}`);
    }
  }

  async run(steps: Step[]): Promise<void> {
    for (const step of steps) {
      let problem: Problem | undefined;
      try {
        await this.carryOut(step);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        problem = error.problem;
      }
      const expected = step.refused as { status: number; code?: string } | undefined;
      const told = problem && { status: problem.status, code: expected?.code && problem.code };
      assert.deepEqual(told, expected && { status: expected.status, code: expected.code }, JSON.stringify(step));
    }
  }
}

const testbed = await Testbed.start();
for (const { name, steps } of scenarios) {
  await new Driver(await testbed.server()).run(steps);
  console.log(name);
}
await testbed.stop();
