//! Leases as they are after the way back from the store: what was left of them has become less.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{Lease, LockNames, Lost, NotHolder, Released, Renewed};
use crate::store::{Fault, StoreError};

/// What a lease is reported in.
const LEFT_MIN: Duration = Duration::from_millis(1);

/// The leases of a claim, unless one is over before it could be reported. etcd once reported such (Jepsen, etcd 3.4.3).
pub(super) fn acquired(
    leases: impl IntoIterator<Item = Lease>,
    sent: Instant,
) -> Result<Vec<Lease>, StoreError> {
    leases
        .into_iter()
        .map(|lease| age(lease, sent))
        .collect::<Option<_>>()
        .ok_or_else(|| {
            StoreError::unknown(Fault::Timeout, "a lease ended before it could be reported")
        })
}

/// A renewal that is over before it could be reported is none.
pub(super) fn renewed(renewed: Renewed, names: &LockNames, sent: Instant) -> Renewed {
    let Renewed::Extended(mut renewals) = renewed else {
        return renewed;
    };
    let mut over = Vec::new();
    for (renewal, name) in renewals.iter_mut().zip(names.iter()) {
        match age(renewal.lease.clone(), sent) {
            Some(lease) => renewal.lease = lease,
            None => over.push(Lost {
                name: name.clone(),
                how: NotHolder::Expired,
            }),
        }
    }
    if over.is_empty() {
        Renewed::Extended(renewals)
    } else {
        Renewed::NotHolder(over)
    }
}

/// A claim that holds on, unless its lease is over by now.
pub(super) fn released(released: Released, sent: Instant) -> Released {
    match released {
        Released::SteppedBack(lease) => age(lease, sent).map_or(
            Released::NotHolder(NotHolder::Expired),
            Released::SteppedBack,
        ),
        released @ (Released::Freed { .. }
        | Released::LeftQueue
        | Released::Repeated
        | Released::NotHolder(_)) => released,
    }
}

/// Counts the remaining time from before the request was sent, by this machine's monotonic clock: the lease was
/// granted somewhere between then and now, so it ends no earlier than what is reported. None if it is over. One with less
/// than [`LEFT_MIN`] is: it would be reported with nothing left.
pub(super) fn age(mut lease: Lease, sent: Instant) -> Option<Lease> {
    lease.holder.expires_in = lease.holder.expires_in.checked_sub(sent.elapsed())?;
    (lease.holder.expires_in >= LEFT_MIN).then_some(lease)
}
