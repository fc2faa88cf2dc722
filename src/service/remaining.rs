//! Subtracts the time since a request was sent from the remaining times of the leases in its reply.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{Lease, Released, Renewal, Renewed};
use crate::store::{Fault, StoreError};

/// The unit in which remaining times are reported.
const LEFT_MIN: Duration = Duration::from_millis(1);

/// The leases of a claim, or an error if one expired before it could be reported. etcd once reported such leases
/// (Jepsen, etcd 3.4.3).
pub(super) fn acquired(
    leases: impl ExactSizeIterator<Item = Lease>,
    sent: Instant,
) -> Result<Vec<Lease>, StoreError> {
    // No `collect`: it would reuse the allocation of the grants and shrink it, which costs more than a new one.
    let mut aged = Vec::with_capacity(leases.len());
    for lease in leases {
        aged.push(remaining(lease, sent).ok_or_else(over)?);
    }
    Ok(aged)
}

fn over() -> StoreError {
    StoreError::unknown(
        Fault::Timeout,
        "a lease may have ended before it could be reported",
    )
}

/// Renewed leases, or an error if one may have expired before it could be reported. It may also still be valid, because
/// the store applied the renewal some time after it was sent.
pub(super) fn renewed(renewed: Renewed, sent: Instant) -> Result<Renewed, StoreError> {
    let Renewed::Extended(renewals) = renewed else {
        return Ok(renewed);
    };
    let aged = renewals.into_iter().map(|renewal| {
        let lease = remaining(renewal.lease, sent).ok_or_else(over)?;
        Ok(Renewal { lease, ..renewal })
    });
    aged.collect::<Result<_, _>>().map(Renewed::Extended)
}

/// The same for a claim that still holds.
pub(super) fn released(released: Released, sent: Instant) -> Result<Released, StoreError> {
    Ok(match released {
        Released::SteppedBack(lease) => {
            Released::SteppedBack(remaining(lease, sent).ok_or_else(over)?)
        }
        released @ (Released::Freed { .. }
        | Released::LeftQueue
        | Released::Repeated
        | Released::NotHolder(_)) => released,
    })
}

/// Whether a lease has expired before it can be reported, counted as by [`remaining`].
pub(super) fn is_over(lease: &Lease, sent: Instant) -> bool {
    lease.holder.expires_in < sent.elapsed() + LEFT_MIN
}

/// Counts the remaining time from before the request was sent, by this machine's monotonic clock. The store applied the
/// request after that, so the lease ends no earlier than reported. `None` if it has expired, or has less than
/// [`LEFT_MIN`] left, which would be reported as zero.
pub(super) fn remaining(mut lease: Lease, sent: Instant) -> Option<Lease> {
    lease.holder.expires_in = lease.holder.expires_in.checked_sub(sent.elapsed())?;
    (lease.holder.expires_in >= LEFT_MIN).then_some(lease)
}
