import { type Answer, type Claim, type ClaimRequest, detailOf, type Grant, isRefusal, isTemporary, readGrant } from "./claim.js";
import { LeaseLostError } from "./errors.js";
import { later, Moment, sleep } from "./time.js";

const RENEWAL_TIMEOUT_MS = 10_000;
const RELEASE_ATTEMPTS = 3;

/** A held lock, or several. It is renewed until it is released or lost. */
export class Lease implements AsyncDisposable {
  /** Resolves when the lease is lost, with the reason. It stays pending if that never happens. */
  readonly lost: Promise<LeaseLostError>;
  readonly #claim: Claim;
  readonly #send: (request: ClaimRequest, signal?: AbortSignal) => Promise<Answer>;
  readonly #lost = new AbortController();
  readonly #stopped = new AbortController();
  #grant: Grant;
  #confirmedAt: Moment;
  /** What the service last refused a renewal with. */
  #refusal: string | undefined;
  #loss: LeaseLostError | undefined;
  #release: Promise<boolean> | undefined;

  /** @internal */
  constructor(
    claim: Claim,
    grant: Grant,
    sentAt: Moment,
    send: (request: ClaimRequest, signal?: AbortSignal) => Promise<Answer>,
  ) {
    [this.#claim, this.#grant, this.#confirmedAt, this.#send] = [claim, grant, sentAt, send];
    this.lost = new Promise((resolve) => {
      this.#lost.signal.addEventListener("abort", () => resolve(this.#lost.signal.reason as LeaseLostError), { once: true });
    });
    // It ends with an error only when it is stopped.
    this.#keep().catch(() => {});
  }

  get names(): readonly string[] {
    return this.#claim.names;
  }

  /** Proves the claim. It is secret. */
  get token(): string {
    return this.#claim.token;
  }

  /** A number that is larger than that of every earlier grant of this lock. Send it with every write. */
  get fencingToken(): number {
    return this.#grant.fencingTokens.get(this.names[0]!)!;
  }

  /** The fencing token of each lock, by name. */
  get fencingTokens(): ReadonlyMap<string, number> {
    return this.#grant.fencingTokens;
  }

  /** Aborted, with a `LeaseLostError`, when the lease is lost. */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** Whether the lease is certainly ours at this moment. It reads the clock, and so is right before any timer ran. */
  get held(): boolean {
    return this.remainingMs() > 0;
  }

  /** How long the lease certainly lasts without another renewal. */
  remainingMs(): number {
    if (this.#loss || this.#release) return 0;
    const left = this.#grant.validForMs - this.#confirmedAt.elapsedMs();
    if (left <= 0) {
      const reason = this.#refusal ? `, because the service answered ${this.#refusal}` : "";
      this.#lose(new LeaseLostError(`the lease was not renewed in time${reason}`, "lease_expired"));
    }
    return Math.max(left, 0);
  }

  /** Throws the `LeaseLostError`, with the reason, if the lease is lost. */
  throwIfLost(): void {
    this.remainingMs();
    if (this.#loss) throw this.#loss;
  }

  /**
   * Releases the lock. Resolves with whether the service confirmed it; otherwise the lease ends with its TTL. Rejects
   * with a `LeaseLostError` if the lease was lost. A second release does nothing.
   */
  async release(): Promise<boolean> {
    // Before the request, which makes it too late to notice a loss.
    this.remainingMs();
    this.#release ??= this.#releaseOnce();
    const confirmed = await this.#release;
    if (this.#loss) throw this.#loss;
    return confirmed;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release().then(() => {});
  }

  #lose(loss: LeaseLostError): void {
    if (this.#loss) return;
    this.#loss = loss;
    this.#stopped.abort();
    this.#lost.abort(loss);
  }

  async #keep(): Promise<void> {
    let pause = this.#grant.ttlMs / 3 - this.#confirmedAt.elapsedMs();
    for (;;) {
      await sleep(Math.max(Math.min(pause, this.remainingMs()), 0), this.#stopped.signal);
      const left = this.remainingMs();
      if (left <= 0) return;
      const ttlMs = this.#grant.ttlMs;
      const sentAt = new Moment();
      const timeoutMs = Math.min(ttlMs / 4, RENEWAL_TIMEOUT_MS, left);
      const answer = await this.#send(this.#claim.renew(timeoutMs), this.#stopped.signal);
      // An answer that comes when the lease is over changes nothing: the lease was reported as lost.
      if (this.remainingMs() <= 0) return;
      const grant = answer.status === 200 ? readGrant(answer.body, this.names) : undefined;
      if (grant) {
        [this.#grant, this.#confirmedAt, this.#refusal] = [grant, sentAt, undefined];
        pause = grant.ttlMs / 3 - sentAt.elapsedMs();
      } else if (answer.status === 409 || answer.status === 412) {
        return this.#lose(lossOf(answer));
      } else {
        if (isRefusal(answer)) this.#noteRefusal(answer);
        const asked = Math.min(later(answer.retryAfterMs), ttlMs / 6);
        pause = Math.max(asked, (ttlMs / 10) * (0.5 + Math.random() / 2));
      }
    }
  }

  /** The key is wrong now, for example. Somebody may correct that in time, so the first refusal is logged. */
  #noteRefusal(answer: Answer): void {
    const isFirst = this.#refusal === undefined;
    this.#refusal = `${answer.status}: ${detailOf(answer)}`;
    if (isFirst) globalThis.console?.warn(`leasehold: ${this.names.join(" ")} is not renewed, because the service answered ${this.#refusal}`);
  }

  async #releaseOnce(): Promise<boolean> {
    this.#stopped.abort();
    // The service itself said that the lease is gone.
    if (this.#loss && this.#loss.status !== 0) return false;
    // A lease whose time is over here may still keep others waiting, but it is not worth more than one attempt.
    const attempts = this.#loss ? 1 : RELEASE_ATTEMPTS;
    for (let attempt = 0; attempt < attempts; attempt += 1) {
      if (attempt > 0) await sleep(200 + Math.random() * 200);
      const answer = await this.#send(this.#claim.release());
      if (answer.status === 200 || answer.status === 204) return true;
      if (answer.status === 412) this.#lose(lossOf(answer));
      if (!isTemporary(answer)) return false;
    }
    return false;
  }
}

function lossOf(answer: Answer): LeaseLostError {
  const { status, body } = answer;
  return new LeaseLostError(detailOf(answer), typeof body.code === "string" ? body.code : "", status, body);
}
