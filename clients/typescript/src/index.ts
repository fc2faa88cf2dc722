/** Client of Leasehold, distributed locks over HTTP. Begin with {@link Client}. */
export { Client, type ClientOptions } from "./client.js";
export type { LockOptions } from "./claim.js";
export { LeaseholdError, LeaseLostError, LockHeldError, RefusedError, UnavailableError, type Problem } from "./errors.js";
export type { Lease } from "./lease.js";
export type { ApiKey } from "./service.js";
