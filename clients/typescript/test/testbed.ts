/** The control of clients/testbed.py. The tests run in clients/typescript. */
import { strict as assert } from "node:assert";
import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

export interface Step {
  readonly [field: string]: unknown;
  readonly names?: string[];
}

export const scenarios = JSON.parse(readFileSync("../scenarios.json", "utf8")) as { name: string; steps: Step[] }[];

export interface LockState {
  readonly state: string;
  readonly queue_length: number;
  readonly holders: { readonly expires_at: string }[];
}

export interface SeenRequest {
  readonly method: string;
  readonly token: string;
  readonly at_ms: number;
  readonly failed: string | null;
}

export class Testbed {
  private constructor(
    private readonly process: ChildProcess,
    private readonly url: string,
  ) {}

  static async start(): Promise<Testbed> {
    const child = spawn("python3", ["../testbed.py"], { stdio: ["pipe", "pipe", "inherit"] });
    for await (const line of createInterface(child.stdout)) return new Testbed(child, line);
    throw new Error("the testbed does not start");
  }

  async stop(): Promise<void> {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.stdin?.end();
    await ended;
  }

  async call(method: string, path: string, query: Record<string, string> = {}): Promise<unknown> {
    const response = await fetch(`${this.url}${path}?${new URLSearchParams(query)}`, { method });
    assert.equal(response.status, 200);
    return response.json();
  }

  async server(): Promise<Server> {
    const { id, url, api_key } = (await this.call("POST", "/servers")) as { id: number; url: string; api_key: string };
    return new Server(this, id, url, api_key);
  }

  async pauseThisProcess(seconds: number): Promise<void> {
    await this.call("POST", "/pause", { pid: `${process.pid}`, seconds: `${seconds}` });
  }
}

export class Server {
  constructor(
    private readonly testbed: Testbed,
    private readonly id: number,
    readonly url: string,
    readonly apiKey: string,
  ) {}

  private call(method: string, action: string, query: Record<string, string> = {}): Promise<unknown> {
    return this.testbed.call(method, `/servers/${this.id}/${action}`, query);
  }

  async restart(): Promise<void> {
    await this.call("POST", "restart");
  }

  async evict(name: string): Promise<void> {
    const { status } = (await this.call("POST", "evict", { name })) as { status: number };
    assert.equal(status, 200);
  }

  async fault(kind: string, method: string, times = 1, more: Record<string, string> = {}): Promise<void> {
    await this.call("POST", "fault", { kind, method, times: `${times}`, ...more });
  }

  async lock(name: string): Promise<LockState> {
    return (await this.call("GET", "lock", { name })) as LockState;
  }

  async requests(name: string): Promise<SeenRequest[]> {
    return (await this.call("GET", "requests", { name })) as SeenRequest[];
  }
}

export async function eventually(what: () => Promise<boolean>): Promise<void> {
  const giveUpAt = Date.now() + 30_000;
  while (!(await what())) {
    assert.ok(Date.now() < giveUpAt, "it never happened");
    await sleep(20);
  }
}
