import type { Problem } from "./errors.js";

/** How to acquire. */
export interface LockOptions {
  /** How long the lease lasts without renewal, 30,000 by default. The client renews it at a third of this. */
  ttlMs?: number;
  /** How long to wait for the lock: 0 does not wait, Infinity (the default) waits for as long as it takes. */
  waitMs?: number;
  /** `exclusive` (the default), or `shared`: held together with other shared claims. */
  mode?: "exclusive" | "shared";
  /** With `shared`: how many permits there are in all. Without it, the lock is a read lock. */
  limit?: number;
  /** With `limit`: how many permits this claim takes. */
  permits?: number;
  /** Who holds, for others to read. */
  owner?: string;
  /** For others to read. */
  metadata?: Readonly<Record<string, unknown>>;
  /** The lock stays taken at least this long, even if it is released earlier. */
  minHoldMs?: number;
  /** The lease ends after this at the latest, whatever the renewals. */
  maxHoldMs?: number;
  /** The lock stays closed for this long after the lease expired or was evicted. */
  lockDelayMs?: number;
  /** `false` takes a free lock ahead of the queue. */
  fair?: boolean;
  /**
   * The token of the claim, a new UUID by default. With the token of a held lease and a larger `holdCount`, the lock is
   * re-entered; releasing such a lease steps back.
   */
  token?: string;
  /** The depth of re-entry, 1 by default. */
  holdCount?: number;
  /** Stops the waiting and withdraws the claim. It has no effect on a lease that was granted. */
  signal?: AbortSignal;
}

export interface ClaimRequest {
  readonly method: "POST" | "PUT" | "DELETE";
  /** Relative to the URL of the service. */
  readonly path: string;
  readonly token: string;
  readonly fields: Readonly<Record<string, unknown>>;
  readonly timeoutMs: number;
}

/** What came back. A status of 0 means that nothing did. */
export interface Answer {
  readonly status: number;
  readonly body: Problem;
  readonly retryAfterMs: number;
}

/** What an answer says about a lease. Of several locks, the one that ends first counts. */
export interface Grant {
  readonly fencingTokens: ReadonlyMap<string, number>;
  readonly ttlMs: number;
  /** How long the lease lasts, counted from before the request was sent. */
  readonly validForMs: number;
}

const ANSWER_TIMEOUT_MS = 10_000;
const RELEASE_TIMEOUT_MS = 2_000;
/** Longer than any lease: 115 days. */
const LEASE_MAX_MS = 1e10;
const VALID_NAME = /^(?!.*(^|\/)\.{0,2}(\/|$))[A-Za-z0-9._~:@+,=/-]+$/;

/** One attempt to hold a lock or several. Its token never changes, so each of its requests may be repeated. */
export class Claim {
  readonly token: string;
  readonly waitMs: number;
  readonly #holdCount: number;
  readonly #fields: Readonly<Record<string, unknown>>;

  constructor(
    readonly names: readonly string[],
    options: LockOptions,
  ) {
    const { ttlMs, waitMs = Infinity, minHoldMs, maxHoldMs, lockDelayMs, token, holdCount = 1, signal: _, ...rest } = options;
    for (const [name, ms] of Object.entries({ ttlMs, waitMs, minHoldMs, maxHoldMs, lockDelayMs })) {
      const isDuration = ms === undefined || (typeof ms === "number" && !Number.isNaN(ms));
      if (!isDuration) throw new TypeError(`${name} is a number of milliseconds like 30000, not ${JSON.stringify(ms)}`);
    }
    this.token = token ?? randomUuid();
    this.waitMs = waitMs;
    this.#holdCount = holdCount;
    this.#fields = {
      ...rest,
      ...(ttlMs !== undefined && { ttl: duration(ttlMs) }),
      ...(minHoldMs !== undefined && { min_hold: duration(minHoldMs) }),
      ...(maxHoldMs !== undefined && { max_hold: duration(maxHoldMs) }),
      ...(lockDelayMs !== undefined && { lock_delay: duration(lockDelayMs) }),
      ...(holdCount > 1 && { hold_count: holdCount }),
    };
  }

  acquire(waitMs: number): ClaimRequest {
    const wait = waitMs > 0 ? { wait: duration(waitMs) } : {};
    return this.#request("POST", { ...this.#fields, ...wait }, waitMs + ANSWER_TIMEOUT_MS);
  }

  renew(timeoutMs: number): ClaimRequest {
    return this.#request("PUT", {}, timeoutMs);
  }

  release(): ClaimRequest {
    return this.#request("DELETE", this.#holdCount > 1 ? { hold_count: this.#holdCount - 1 } : {}, RELEASE_TIMEOUT_MS);
  }

  #request(method: ClaimRequest["method"], fields: ClaimRequest["fields"], timeoutMs: number): ClaimRequest {
    const [name, ...others] = this.names;
    // In a path, "a/../b" would become another name. The service refuses it, if it gets to see it.
    if (name === undefined || others.length > 0 || !VALID_NAME.test(name)) {
      return { method, path: "locks", token: this.token, fields: { ...fields, names: this.names }, timeoutMs };
    }
    return { method, path: `locks/${name}`, token: this.token, fields, timeoutMs };
  }
}

/** Whether the same request may succeed later although nothing is wrong with it. */
export function isTemporary({ status }: Answer): boolean {
  return status === 0 || status === 408 || status === 429 || status >= 500;
}

/** Whether the request is wrong or not allowed. */
export function isRefusal(answer: Answer): boolean {
  return answer.status >= 400 && answer.status < 500 && !isTemporary(answer);
}

/** What happened, for people. */
export function detailOf({ status, body }: Answer): string {
  return typeof body.detail === "string" ? body.detail : `the service answered ${status}`;
}

/** Nothing if the answer is not a grant of these locks. */
export function readGrant(body: Problem, names: readonly string[]): Grant | undefined {
  const grants = (Array.isArray(body.locks) ? body.locks : [body]) as (Problem | null)[];
  const tokens = new Map<string, number>();
  let [ttlMs, validForMs] = [0, Infinity];
  for (const grant of grants) {
    const { name, fencing_token, ttl_ms, waited_ms, expires_in_ms } = grant ?? {};
    if (typeof name !== "string" || typeof fencing_token !== "number" || !Number.isSafeInteger(fencing_token)) return undefined;
    if (!isDuration(ttl_ms) || !isDuration(waited_ms) || !isDuration(expires_in_ms) || ttl_ms === 0) return undefined;
    tokens.set(name, fencing_token);
    // The lease lasts for `expires_in_ms` from the answer, which came no sooner than after the wait.
    if (waited_ms + expires_in_ms < validForMs) [ttlMs, validForMs] = [ttl_ms, waited_ms + expires_in_ms];
  }
  return tokens.size > 0 && names.every((name) => tokens.has(name)) ? { fencingTokens: tokens, ttlMs, validForMs } : undefined;
}

function isDuration(ms: unknown): ms is number {
  return typeof ms === "number" && ms >= 0 && ms <= LEASE_MAX_MS;
}

function duration(ms: number): string {
  return `${Math.max(Math.round(ms), 1)}ms`;
}

/** A random UUID. `crypto.randomUUID` is missing from pages that were not loaded over TLS. */
function randomUuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
