//! The words of Leasehold as types: names, tokens, fencing tokens, claims, leases, outcomes.
//!
//! Nothing here knows HTTP, Redis, JSON or the async runtime, and nothing here does I/O or reads a clock. What a
//! type accepts is checked once, in its only constructor; the rooms above and below never check again.

pub mod claim;
pub mod duration;
pub mod fence;
pub mod lease;
pub mod name;
pub mod outcome;
pub mod token;

pub use claim::{Attempt, Bounds, Claim, HoldCount, InvalidField, Metadata, Owner, Ttl};
pub use fence::Fence;
pub use lease::{Holder, Lease, Timestamp};
pub use name::{Bucket, InvalidName, LockName};
pub use outcome::{Acquired, Listing, LockState, LockView, NotHolder, Released, Renewal, Renewed};
pub use token::{ClaimDigest, InvalidToken, Token};
