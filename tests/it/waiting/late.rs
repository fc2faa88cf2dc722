//! What comes late: the answers of the store at the end of a wait, renewals at the end of a lease, and readers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::domain::{Claim, LockState, NotHolder};
use leasehold::service::HoldEvent;
use tokio::time::{Instant, sleep};

use super::holding::{acquired, brief};
use super::{LONG_WAIT, Waiting, held, releases, view};
use crate::support::fixture::{at_depth, claim, rival};
use crate::support::scripted_store::{Behavior, Operation, ScriptedStore};
use crate::support::stores::stream_of;

/// How long the store may take after the end of a wait.
const IN_TIME: Duration = Duration::from_millis(90);
const WAIT: Duration = Duration::from_secs(1);

/// How long a quorum takes to change a lease while a node is slow.
const CHANGE: Duration = Duration::from_millis(500);

/// More than the shortest pause between two renewals of a brief lease.
const SHORTEST: Duration = Duration::from_millis(65);

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_answered_just_after_the_wait_is_reported() {
    let (service, store) = ScriptedStore::service();
    store.next([Behavior::Late(IN_TIME)]);
    let first = Waiting::on(&service, &Arc::new(claim()), IN_TIME / 2);
    first.granted().await;

    let holder = held(&service).await;
    let waiting = Waiting::queued(&service, &Arc::new(rival(&holder)), WAIT).await;
    sleep(WAIT - IN_TIME / 2).await;
    store.next([Behavior::Late(IN_TIME)]);
    releases(&service, &holder).await;
    waiting.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_may_re_enter_is_waited_for_as_long_as_a_change_takes() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let deep = Arc::new(at_depth(&rival(&holder), 2));
    let waiting = Waiting::queued(&service, &deep, WAIT).await;
    sleep(WAIT - IN_TIME / 2).await;
    store.next([Behavior::Late(CHANGE)]);
    releases(&service, &holder).await;
    waiting.granted().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_wait_whose_last_poll_took_long_says_what_the_store_knows() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let deep = Arc::new(at_depth(&rival(&holder), 2));
    store.next([Behavior::Late(CHANGE)]);
    let not_granted = Waiting::on(&service, &deep, IN_TIME).timed_out().await;
    assert!(not_granted.position.is_some());
    assert_eq!(not_granted.blocked_by.len(), 1);
}

/// A slow store is waited for, for a while.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_wait_says_what_the_store_knows() {
    let late = Behavior::Late(IN_TIME);
    let store = Arc::new(ScriptedStore::default().with(Operation::Suspend, late));
    let service = store.another_service(|_| {});
    let holder = held(&service).await;
    let waiting = Waiting::queued(&service, &Arc::new(rival(&holder)), WAIT).await;
    let not_granted = waiting.timed_out().await;
    assert!(not_granted.position.is_some());
    assert_eq!(not_granted.blocked_by.len(), 1);
}

/// It has less and less time, but is not renewed all the time.
#[tokio::test(start_paused = true)]
async fn a_lease_that_may_not_last_longer_is_renewed_until_shortly_before_its_end() {
    let (service, _) = ScriptedStore::service();
    let most = Duration::from_secs(5);
    let claim = Claim {
        max_hold: Some(most),
        ..Claim::clone(&brief())
    };
    let mut hold = stream_of(&service, Arc::new(claim), None);
    acquired(&mut hold).await;
    let began = Instant::now();
    let (mut renewals, mut last) = (0, Duration::ZERO);
    while let Some(HoldEvent::Renewed(_)) = hold.next().await {
        let (left, at) = (most - last, began.elapsed());
        assert!(at - last <= (left / 2).max(SHORTEST), "{last:?} to {at:?}");
        (renewals, last) = (renewals + 1, at);
    }
    assert!(most - last <= SHORTEST, "{last:?}");
    assert!(renewals < 30, "{renewals} renewals");
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_reads_late_learns_that_the_process_stops() {
    let (service, _) = ScriptedStore::service();
    let hold = stream_of(&service, brief(), Some(LONG_WAIT));
    sleep(Duration::from_millis(10)).await;
    service.drain();
    sleep(Duration::from_secs(1)).await;
    let events: Vec<_> = hold.collect().await;
    assert!(
        matches!(
            events[..],
            [HoldEvent::Acquired { .. }, HoldEvent::Draining]
        ),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_reads_late_gets_the_remaining_time_as_of_then() {
    let (service, _) = ScriptedStore::service();
    let mut hold = stream_of(&service, brief(), None);
    sleep(Duration::from_millis(2_500)).await;
    match hold.next().await {
        Some(HoldEvent::Acquired { lease, .. }) => {
            let left = lease.holder.expires_in;
            assert!(left <= Duration::from_millis(500), "{left:?}");
        }
        other => panic!("{other:?}"),
    }
    let mut hold = stream_of(&service, brief(), None);
    sleep(Duration::from_millis(3_500)).await;
    let events: Vec<_> = hold.by_ref().collect().await;
    assert!(
        matches!(events[..], [HoldEvent::Lost(NotHolder::Expired)]),
        "{events:?}"
    );
}

/// The service does not renew for a client that does not read.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_loses_the_lock_when_its_lease_expires() {
    let (service, _) = ScriptedStore::service();
    let claim = brief();
    let _hold = stream_of(&service, Arc::clone(&claim), None);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(view(&service, &claim).await.state, LockState::Free);
}
