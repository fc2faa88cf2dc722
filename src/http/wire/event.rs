//! The data of stream events, other than grants, locks and problems.

use serde::Serialize;
use utoipa::ToSchema;

use super::Rfc3339;
use crate::domain::{LockEvent, Position};

/// A public event of a lock; it never contains a token.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LockEvent)]
pub(in crate::http) struct LockEventBody<'a> {
    /// The lock.
    name: &'a str,
    /// The fencing token of the lease that this is about; null if there is no lease.
    #[schema(required)]
    fencing_token: Option<u64>,
    /// The owner text of the claim; it proves nothing.
    owner: &'a str,
    /// When it happened, by the store's clock.
    #[schema(value_type = String, format = DateTime)]
    at: Rfc3339,
    /// When the lease ends unless it is renewed, by the store's clock; null if no lease continues.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    expires_at: Option<Rfc3339>,
}

impl<'a> LockEventBody<'a> {
    pub(in crate::http) fn new(event: &'a LockEvent) -> Self {
        Self {
            name: event.name.as_str(),
            fencing_token: event.fence.map(|fence| fence.get()),
            owner: event.owner.as_str(),
            at: Rfc3339(event.at),
            expires_at: event.expires_at.map(Rfc3339),
        }
    }
}

/// The position of a waiting claim.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QueuePosition)]
pub(in crate::http) struct PositionView {
    /// The position; 1 is the head of the queue.
    position: u64,
    /// The length of the queue.
    queue_length: u64,
}

impl From<Position> for PositionView {
    fn from(position: Position) -> Self {
        Self {
            position: position.position,
            queue_length: position.queue_length,
        }
    }
}
