//! Leases as they are after the way back from the store: what was left of them has become less.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{Lease, Released, Renewal, Renewed};
use crate::store::{Fault, StoreError};

/// What a lease is reported in.
const LEFT_MIN: Duration = Duration::from_millis(1);

/// The leases of a claim, unless one is over before it could be reported. etcd once reported such (Jepsen, etcd 3.4.3).
pub(super) fn acquired(
    leases: impl ExactSizeIterator<Item = Lease>,
    sent: Instant,
) -> Result<Vec<Lease>, StoreError> {
    // Not collected: that would take over the allocation of the grants and shrink it, which costs more than a new one.
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

/// Renewed leases. One that may be over before it could be reported is not reported; but it need not be over, because the
/// renewal was carried out at some moment since it was sent.
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

/// The same for a claim that holds on.
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

/// Counts the remaining time from before the request was sent, by this machine's monotonic clock: the lease was
/// granted somewhere between then and now, so it ends no earlier than what is reported. None if it is over. One with less
/// than [`LEFT_MIN`] is: it would be reported with nothing left.
pub(super) fn remaining(mut lease: Lease, sent: Instant) -> Option<Lease> {
    lease.holder.expires_in = lease.holder.expires_in.checked_sub(sent.elapsed())?;
    (lease.holder.expires_in >= LEFT_MIN).then_some(lease)
}
