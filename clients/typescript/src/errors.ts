/** All members of the service's answer, such as `holders` of a lock that is held. */
export type Problem = Readonly<Record<string, unknown>>;

/** The base of all errors of this package. */
export class LeaseholdError extends Error {
  constructor(
    message: string,
    /** What happened, for programs, such as `lock_held`; never renamed. Empty if the service did not say. */
    readonly code = "",
    /** The HTTP status, 0 if there was no answer. */
    readonly status = 0,
    readonly problem: Problem = {},
  ) {
    super(message);
    this.name = new.target.name;
  }
}

/** Somebody else has the lock, and the wait is over. */
export class LockHeldError extends LeaseholdError {}

/**
 * The lease is not ours any more: stop working. `code` is the service's, such as `lease_evicted`; or `lease_expired` if
 * it could not be renewed in time.
 */
export class LeaseLostError extends LeaseholdError {}

/** No useful answer for as long as the client retries. What was granted meanwhile is released, or expires. */
export class UnavailableError extends LeaseholdError {}

/** The request is wrong or not allowed, so that a retry cannot help. `code` says why. */
export class RefusedError extends LeaseholdError {}
