/** The scenarios that every client runs. */
import { strict as assert } from "node:assert";
import { after, before, test } from "node:test";
import { Client, type Lease, LeaseholdError, LeaseLostError, type LockOptions } from "../src/index.js";
import { eventually, type Server, scenarios, type Step, Testbed } from "./testbed.js";

let testbed: Testbed;
before(async () => {
  testbed = await Testbed.start();
});
after(() => testbed.stop());

/** Carries out the steps of a scenario. */
class Driver {
  readonly client: Client;
  readonly leases = new Map<unknown, Lease>();
  readonly tasks = new Map<unknown, Promise<Lease>>();

  constructor(readonly server: Server) {
    this.client = new Client({ url: server.url, apiKey: server.apiKey });
  }

  lease(subject: unknown): Lease {
    const lease = this.leases.get(subject);
    assert.ok(lease, `${subject} has a lease`);
    return lease;
  }

  acquire(step: Step): Promise<Lease> {
    const options: LockOptions = { ttlMs: step.ttl_ms as number, waitMs: step.wait_ms as number };
    if (step.mode === "shared") options.mode = "shared";
    if (typeof step.limit === "number") options.limit = step.limit;
    if (typeof step.permits === "number") options.permits = step.permits;
    if (typeof step.hold_count === "number") options.holdCount = step.hold_count;
    if (step.token_of) options.token = this.lease(step.token_of).token;
    return this.client.acquire(step.names ?? [], options);
  }

  async expect<T>(step: Step, outcome: Promise<T>): Promise<T | undefined> {
    const refused = step.refused as { status: number; code?: string } | undefined;
    if (!refused) return outcome;
    await assert.rejects(outcome, (error) => {
      assert.ok(error instanceof LeaseholdError);
      assert.equal(error.status, refused.status);
      assert.equal(error.code, refused.code ?? error.code);
      return true;
    });
    return undefined;
  }

  async carryOut(step: Step): Promise<void> {
    const [kind, subject] = Object.entries(step)[0]!;
    const name = subject as string;
    switch (kind) {
      case "acquire": {
        const lease = await this.expect(step, this.acquire(step));
        if (lease) this.leases.set(subject, lease);
        break;
      }
      case "begin":
        this.tasks.set(subject, this.acquire(step));
        break;
      case "finish":
        this.leases.set(subject, await this.tasks.get(subject)!);
        break;
      case "release":
        assert.ok((await this.expect(step, this.lease(subject).release())) ?? step.refused);
        break;
      case "held":
        assert.equal(this.lease(subject).held, step.is);
        assert.equal(this.lease(subject).remainingMs() > 0, step.is);
        break;
      case "until_lost": {
        const loss = await this.lease(subject).lost;
        assert.ok(loss instanceof LeaseLostError);
        assert.equal(loss.code, step.code);
        assert.equal(this.lease(subject).signal.reason, loss);
        break;
      }
      case "fencing_token_of":
        assert.ok(this.lease(subject).fencingToken > this.lease(step.is_larger_than_of).fencingToken);
        break;
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
      case "until_renewed":
        for (let count = 0; count < (step.times as number); count += 1) {
          const end = async () => (await this.server.lock(this.lease(subject).names[0]!)).holders[0]?.expires_at;
          const first = await end();
          await eventually(async () => (await end()) !== first);
        }
        break;
      default:
        assert.fail(`unknown step ${kind}`);
    }
  }
}

for (const { name, steps } of scenarios) {
  test(name, async () => {
    const driver = new Driver(await testbed.server());
    for (const step of steps) await driver.carryOut(step);
  });
}
