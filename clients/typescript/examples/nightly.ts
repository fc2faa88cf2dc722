/** A job that all machines start and one of them runs. It takes LEASEHOLD_URL and LEASEHOLD_API_KEY_FILE. */
import { hostname } from "node:os";
import { Client, LockHeldError } from "../src/index.js";

const client = new Client();
try {
  const pages = await client.withLock(
    "nightly-report",
    async (lease, signal) => {
      let page = 0;
      for (; page < 3; page += 1) {
        // Between steps, stop if the lease is lost.
        signal.throwIfAborted();
        console.log(`page ${page}, written with fencing token ${lease.fencingToken}`);
      }
      return page;
    },
    // minHoldMs keeps the lock from machines whose clocks are up to a minute late.
    { waitMs: 0, minHoldMs: 60_000, owner: hostname() },
  );
  console.log(`${pages} pages`);
} catch (error) {
  if (!(error instanceof LockHeldError)) throw error;
  console.log(`another machine runs it: ${error.message}`);
}
