//! The domain types of Leasehold: names, tokens, fencing tokens, claims, leases, outcomes.
//!
//! Nothing here knows HTTP, Redis, JSON or the async runtime, and nothing here does I/O or reads a clock. Each type
//! validates its input once, in its only constructor; the other layers never check again.

pub mod claim;
pub mod duration;
pub mod event;
pub mod lease;
pub mod lease_quota;
pub mod mode;
pub mod name;
pub mod name_groups;
pub mod outcome;
pub mod queue;
pub mod rights;
pub mod text;
pub mod token;
pub mod view;

pub use claim::{
    Attempt, Bounds, Claim, HoldCount, InvalidField, LimitBounds, Metadata, Owner, Ttl,
};
pub use event::{EventKind, LockEvent};
pub use lease::{AnswerRoom, Fence, Holder, Holders, Lease, PageRoom, Timestamp};
pub use lease_quota::{CountOutcome, CountStep, LeaseQuota, LeasesOf, UNCOUNTED_MAX, UndoneBy};
pub use mode::{Mode, Share};
pub use name::{Bucket, InvalidName, LockName, LockNames};
pub use name_groups::NameGroups;
pub use outcome::{
    Acquired, Conflict, ConflictKind, Evicted, GrantKind, Granted, HoldOptions, Mismatch, NotHeld,
    NotHolder, PreviousLease, Refused, Released, RenewOptions, Renewal, Renewed, Rollback,
    RollbackRight, StepBack, SuspendOptions, Suspended, Waiting,
};
pub use queue::{HeadWaiter, Position, Queue, QueueRequest, Ticket};
pub use rights::{NamePrefix, NamePrefixes, Rights, Rule, Verb, Verbs};
pub use token::{ClaimDigest, InvalidToken, Token};
pub use view::{Listing, LockState, LockView};
