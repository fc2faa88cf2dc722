//! Limits on the renewals that the streams of one peer may have in flight.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use leasehold::domain::NotHolder;
use leasehold::limits::{Budget, Gate, Limit, PeerLimits, Slot};
use leasehold::service::HoldEvent;
use tokio::time::{Instant, sleep};

use super::LONG_WAIT;
use super::holding::{acquired, brief};
use super::staged::Staged;

/// The streams of one peer share its limit of renewals in flight, even if it has thousands.
#[tokio::test(start_paused = true)]
async fn a_stream_renews_within_the_limit_of_its_peer() {
    let (service, _) = Staged::service();
    let (all, peer) = (Gate::new(1), Arc::new(with_one_renewal()));
    let of_peer = Some((&peer, &peer.operations, Limit::OperationsPerPeer));
    let deadline = Instant::now() + Duration::from_secs(1);
    let slot = Slot::take((&all, Limit::Operations), of_peer, 1, deadline);
    let claim = brief();
    let within = service.within(slot.await.unwrap());
    let mut hold = within.hold(Arc::clone(&claim), None);
    acquired(&mut hold).await;
    let another = peer.renewals.pass(1, deadline).await.unwrap();
    sleep(Duration::from_millis(1_500)).await;
    assert!(hold.next().now_or_never().is_none(), "it has no permit");
    drop(another);
    let event = hold.next().await;
    assert!(matches!(event, Some(HoldEvent::Renewed(_))), "{event:?}");
    // It holds no permit between renewals.
    let another = peer.renewals.pass(1, Instant::now() + LONG_WAIT);
    let _another = another.await.unwrap();
    let event = hold.next().await;
    assert!(
        matches!(event, Some(HoldEvent::Lost(NotHolder::Expired))),
        "{event:?}"
    );
}

fn with_one_renewal() -> PeerLimits {
    PeerLimits {
        connections: Budget::new(1),
        http2_connections: Budget::new(1),
        requests: Budget::new(1),
        answer_bytes: Budget::new(1),
        body_bytes: Budget::new(1),
        operations: Gate::new(1),
        listings: Gate::new(1),
        event_streams: Gate::new(1),
        places: Budget::new(1),
        renewals: Gate::new(1),
    }
}
