/**
 * A moment, on two clocks. Nobody can set the monotonic clock, but on some systems it stops while the machine is
 * suspended; the wall clock goes on. What has elapsed is the larger of what both say. So a lease is never counted for
 * too long; a wall clock that is set forward ends it early.
 */
export class Moment {
  readonly #monotonic = performance.now();
  readonly #wall = Date.now();

  elapsedMs(): number {
    return Math.max(performance.now() - this.#monotonic, Date.now() - this.#wall);
  }
}

/** The longest time of a timer. A longer one would fire at once. */
const TIMER_MAX_MS = 2 ** 31 - 1;

/** Rejects with the reason of `signal` as soon as it is aborted. It takes 24 days at most. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, Math.min(ms, TIMER_MAX_MS));
    signal?.addEventListener("abort", abort, { once: true });
  });
}

/** What the promise resolves to. Rejects with the reason of `signal` if it is aborted before that. */
export function before<T>(promise: Promise<T>, signal?: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal?.reason);
    if (signal?.aborted) abort();
    signal?.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal?.removeEventListener("abort", abort));
  });
}

/** The same or up to a quarter more, so that many clients do not act at the same moment. */
export const later = (ms: number): number => ms * (1 + Math.random() / 4);
