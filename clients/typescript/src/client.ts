import { type Answer, Claim, type ClaimRequest, detailOf, isTemporary, type LockOptions, readGrant } from "./claim.js";
import { LeaseholdError, LeaseLostError, LockHeldError, type Problem, RefusedError, UnavailableError } from "./errors.js";
import { Lease } from "./lease.js";
import { type ApiKey, environment, Key, serviceUrl } from "./service.js";
import { before, later, Moment, sleep } from "./time.js";

/** The wait of one request: shorter than what most proxies allow a request to take. */
const POLL_MS = 25_000;
const [BACKOFF_MIN_MS, BACKOFF_MAX_MS] = [100, 2_000];

export interface ClientOptions {
  /**
   * Where the service is. By default `LEASEHOLD_URL`, else the origin of the page in a browser, else
   * `http://127.0.0.1:7625`.
   */
  url?: string;
  /**
   * The key of the service, or a function that returns it and is called for each request. By default it is the key in
   * the file `LEASEHOLD_API_KEY_FILE`, which is read for each request, or else `LEASEHOLD_API_KEY`.
   */
  apiKey?: ApiKey;
  /** How long an acquire repeats requests that get no useful answer, 30,000 by default. */
  retryForMs?: number;
  /** Another `fetch`, for example with other settings of TLS. */
  fetch?: typeof globalThis.fetch;
}

/** A service. All clients of a program share the connections of `fetch`. */
export class Client {
  readonly #url: URL;
  readonly #key: Key;
  readonly #retryForMs: number;
  readonly #fetch: typeof globalThis.fetch;

  constructor(options: ClientOptions = {}) {
    const url = options.url ?? environment("LEASEHOLD_URL") ?? globalThis.location?.origin ?? "http://127.0.0.1:7625";
    this.#url = serviceUrl(url);
    this.#key = new Key(options.apiKey);
    this.#retryForMs = options.retryForMs ?? 30_000;
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  /**
   * Acquires the lock, or all of several. By default it waits for as long as it takes.
   *
   * Rejects with a `LockHeldError` when the wait is over, an `UnavailableError` without a useful answer, a
   * `RefusedError` for a wrong request, and with the reason of `options.signal`. Then the claim is withdrawn.
   */
  async acquire(names: string | readonly string[], options: LockOptions = {}): Promise<Lease> {
    const claim = new Claim(typeof names === "string" ? [names] : names, options);
    // If there is no key, that is the error, and nothing has to be withdrawn.
    await before(this.#key.headers(), options.signal);
    const acquisition = new Acquisition(claim, this.#retryForMs, (request, signal) => this.#send(request, signal));
    return acquisition.run(options.signal);
  }

  /**
   * Holds the lock while `work` runs. `signal` is aborted when the lease is lost: pass it to what `work` awaits.
   *
   * If the lease was lost, it rejects with a `LeaseLostError` although `work` succeeded.
   */
  async withLock<T>(
    names: string | readonly string[],
    work: (lease: Lease, signal: AbortSignal) => T | Promise<T>,
    options: LockOptions = {},
  ): Promise<T> {
    const lease = await this.acquire(names, options);
    let result: T;
    try {
      result = await work(lease, lease.signal);
    } catch (error) {
      // The error of the work is the one to report.
      await lease.release().catch(() => false);
      throw error;
    }
    await lease.release();
    return result;
  }

  async #send(request: ClaimRequest, signal?: AbortSignal): Promise<Answer> {
    const { method, path, token, fields, timeoutMs } = request;
    const hasBody = Object.keys(fields).length > 0;
    const timeout = AbortSignal.timeout(Math.max(Math.ceil(timeoutMs), 1));
    const end = signal ? AbortSignal.any([signal, timeout]) : timeout;
    try {
      const key = await before(this.#key.headers(), end);
      const response = await this.#fetch(new URL(path, this.#url), {
        method,
        headers: { ...key, "Lock-Token": token, ...(hasBody && { "Content-Type": "application/json" }) },
        body: hasBody ? JSON.stringify(fields) : null,
        signal: end,
        // Another address must not get the token, and what it answers is no answer of the service.
        redirect: "manual",
        // A page that is closed still releases what it holds.
        keepalive: method === "DELETE",
      });
      const text = await response.text();
      const retryAfter = Number(response.headers.get("Retry-After") ?? 0);
      return { status: response.status, body: parse(text), retryAfterMs: retryAfter > 0 ? retryAfter * 1000 : 0 };
    } catch (error) {
      signal?.throwIfAborted();
      return { status: 0, body: { detail: `no answer: ${reason(error)}` }, retryAfterMs: 0 };
    }
  }
}

type SendRequest = (request: ClaimRequest, signal?: AbortSignal) => Promise<Answer>;

/** Repeats the request of one claim until it is granted, refused, or the wait is over. */
class Acquisition {
  readonly #begunAt = new Moment();
  #failures = 0;
  #failingSince = new Moment();
  /** Whether the service may have the claim in a queue, or may have granted it. */
  #needsWithdrawal = false;

  constructor(
    readonly claim: Claim,
    readonly retryForMs: number,
    readonly send: SendRequest,
  ) {}

  async run(signal?: AbortSignal): Promise<Lease> {
    try {
      return await this.#untilGranted(signal);
    } catch (error) {
      if (this.#needsWithdrawal) await this.send(this.claim.release());
      throw error;
    }
  }

  async #untilGranted(signal?: AbortSignal): Promise<Lease> {
    for (;;) {
      signal?.throwIfAborted();
      const pollMs = Math.min(this.#waitLeftMs(), POLL_MS);
      const sentAt = new Moment();
      const knownBefore = this.#needsWithdrawal;
      this.#needsWithdrawal = true;
      const answer = await this.send(this.claim.acquire(pollMs), signal);
      if (answer.status === 200 || answer.status === 201) {
        const grant = readGrant(answer.body, this.claim.names);
        if (!grant) throw failure(RefusedError, answer);
        if (sentAt.elapsedMs() < grant.validForMs) return new Lease(this.claim, grant, sentAt, this.send);
        // The answer was too long under way. The next one says what is left.
        await sleep(this.#pauseAfterTrouble(answer, sentAt), signal);
      } else if (answer.status === 423) {
        this.#failures = 0;
        this.#needsWithdrawal = knownBefore || pollMs > 0;
        if (this.#waitLeftMs() <= 0) throw failure(LockHeldError, answer);
        // After a wait the next request follows at once, so that the claim keeps its turn; otherwise there is a pause.
        const pauseMs = Math.max(later(answer.retryAfterMs), BACKOFF_MIN_MS - sentAt.elapsedMs());
        await sleep(Math.min(pauseMs, this.#waitLeftMs()), signal);
      } else if (isTemporary(answer)) {
        await sleep(this.#pauseAfterTrouble(answer, sentAt), signal);
      } else {
        this.#needsWithdrawal = knownBefore;
        throw failure(answer.body.code === "claim_ended" ? LeaseLostError : RefusedError, answer);
      }
    }
  }

  #waitLeftMs(): number {
    return Math.max(this.claim.waitMs - this.#begunAt.elapsedMs(), 0);
  }

  #pauseAfterTrouble(answer: Answer, sentAt: Moment): number {
    if (this.#failures === 0) this.#failingSince = sentAt;
    const backoff = Math.min(BACKOFF_MIN_MS * 2 ** this.#failures, BACKOFF_MAX_MS) * (0.5 + Math.random() / 2);
    this.#failures += 1;
    const pause = Math.max(backoff, later(answer.retryAfterMs));
    if (this.#failingSince.elapsedMs() + pause > this.retryForMs) throw failure(UnavailableError, answer);
    return pause;
  }
}

type ErrorClass = new (message: string, code: string, status: number, problem: Problem) => LeaseholdError;

function failure(Kind: ErrorClass, answer: Answer): LeaseholdError {
  const { status, body } = answer;
  return new Kind(detailOf(answer), typeof body.code === "string" ? body.code : "", status, body);
}

/** The JSON object, or nothing if the answer is not from the service but from a proxy. */
function parse(text: string): Problem {
  try {
    const body: unknown = JSON.parse(text);
    return typeof body === "object" && body !== null ? (body as Problem) : {};
  } catch {
    return {};
  }
}

/** `fetch` says "fetch failed", and its cause why. */
function reason(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return cause instanceof Error ? cause.message || cause.name : String(cause);
}
