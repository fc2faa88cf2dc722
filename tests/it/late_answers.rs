//! Replies of the store that arrive late, or after their request is gone. The clock is stopped: only the store advances
//! it.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{Attempt, Claim, GrantKind, Granted, LockState, RenewOptions};
use leasehold::service::{AcquireOutcome, LockService};
use leasehold::store::{LockStore, StoreError};
use tokio::time::timeout;

use crate::support::fixture::{LONG, claim, deadline, lock_of, only, ttl};
use crate::support::scripted_store::{Behavior, Operation, ScriptedStore};
use crate::support::stores;

const NO_WAIT: Duration = Duration::ZERO;

/// A service on a late store, and the store itself for direct checks.
fn late_by(late: Duration) -> (LockService, Arc<ScriptedStore>) {
    let store = Arc::new(ScriptedStore::always(Behavior::Late(late)));
    (
        stores::service(Arc::clone(&store) as Arc<dyn LockStore>),
        store,
    )
}

fn lasting(lease: Duration) -> Arc<Claim> {
    Arc::new(Claim {
        ttl: ttl(lease),
        ..claim()
    })
}

async fn state(store: &ScriptedStore, claim: &Claim) -> LockState {
    store
        .store
        .inspect(lock_of(claim), deadline())
        .await
        .unwrap()
        .state
}

/// etcd 3.4.3 reported a lock whose lease had ended while it waited (Jepsen, 2020).
#[tokio::test(start_paused = true)]
async fn a_lease_that_ended_on_its_way_back_is_not_reported_as_granted() {
    let (service, _) = late_by(Duration::from_millis(150));
    let answer = service
        .acquire(lasting(Duration::from_millis(100)), NO_WAIT)
        .await;
    assert!(
        matches!(
            answer.as_ref().map_err(|failure| &failure.error),
            Err(StoreError::Unknown { .. })
        ),
        "{answer:?}"
    );
}

/// The remaining time is reported in whole milliseconds, which would be 0.
#[tokio::test(start_paused = true)]
async fn a_lease_with_less_than_a_millisecond_left_is_over() {
    let (service, store) = late_by(Duration::from_millis(100));
    let almost_over = Duration::from_micros(100_999);
    let answer = service.acquire(lasting(almost_over), NO_WAIT).await;
    assert!(
        matches!(
            answer.as_ref().map_err(|failure| &failure.error),
            Err(StoreError::Unknown { .. })
        ),
        "{answer:?}"
    );
    let held = lasting(LONG);
    let granted = store
        .store
        .acquire(&held, Attempt::random(), None, deadline());
    granted.await.unwrap();
    let brief = RenewOptions {
        ttl: Some(ttl(almost_over)),
        ..RenewOptions::default()
    };
    let renewed = service.renew(held.names.clone(), held.token, brief).await;
    assert!(
        matches!(renewed, Err(StoreError::Unknown { .. })),
        "{renewed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_lease_has_left_is_counted_from_before_it_was_asked_for() {
    let (service, _) = late_by(Duration::from_millis(300));
    let answer = service
        .acquire(lasting(Duration::from_secs(1)), NO_WAIT)
        .await
        .unwrap();
    match &answer.outcome {
        AcquireOutcome::Granted(Granted {
            kind: GrantKind::New,
            leases,
            ..
        }) => {
            let expires_in = only(leases.clone()).holder.expires_in;
            assert_eq!(expires_in, Duration::from_millis(700));
        }
        other => panic!("{other:?}"),
    }
    answer.unclaimed.delivered();
}

/// The store executed it at some time since the request, so the lease may be alive: reporting it as expired could be
/// wrong.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_may_have_ended_on_its_way_back_is_unclear() {
    let (service, store) = late_by(Duration::from_millis(150));
    let held = lasting(LONG);
    store
        .store
        .acquire(&held, Attempt::random(), None, deadline())
        .await
        .unwrap();
    let brief = RenewOptions {
        ttl: Some(ttl(Duration::from_millis(100))),
        ..RenewOptions::default()
    };
    let renewed = service.renew(held.names.clone(), held.token, brief).await;
    assert!(
        matches!(renewed, Err(StoreError::Unknown { .. })),
        "{renewed:?}"
    );
}

/// The client disconnects during the store operation: the lock is granted nevertheless, and then rolled back.
#[tokio::test(start_paused = true)]
async fn a_grant_whose_request_is_gone_is_rolled_back() {
    let (service, store) = late_by(Duration::from_millis(100));
    let claim = lasting(LONG);
    let asked = service.acquire(Arc::clone(&claim), NO_WAIT);
    assert!(
        timeout(Duration::from_millis(10), asked).await.is_err(),
        "the store is late"
    );
    assert!(
        matches!(state(&store, &claim).await, LockState::Held(_)),
        "it is granted behind the client's back"
    );
    service.shut_down(Duration::from_secs(10)).await;
    assert_eq!(state(&store, &claim).await, LockState::Free);
}

/// A second request with the same token got the grant, so the first one must not roll it back.
#[tokio::test(start_paused = true)]
async fn a_grant_that_was_replayed_to_a_later_request_stays() {
    let (service, store) = late_by(Duration::from_millis(100));
    let claim = lasting(LONG);
    let first = service.acquire(Arc::clone(&claim), NO_WAIT);
    assert!(
        timeout(Duration::from_millis(10), first).await.is_err(),
        "the store is late"
    );
    let second = service.acquire(Arc::clone(&claim), NO_WAIT).await.unwrap();
    assert_eq!(
        second.outcome.kind(),
        Some(GrantKind::Replayed),
        "{second:?}"
    );
    second.unclaimed.delivered();
    service.shut_down(Duration::from_secs(10)).await;
    assert!(matches!(state(&store, &claim).await, LockState::Held(_)));
}

/// A disk may hang, and a process that does not end is killed by whoever runs it.
#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_close_keeps_no_service_from_ending() {
    let store = ScriptedStore::default().with(Operation::Close, Behavior::Unanswered);
    let service = stores::service(Arc::new(store));
    let ended = timeout(LONG, service.shut_down(Duration::from_secs(10))).await;
    assert!(ended.is_ok());
}

/// An operation that has completed leaves nothing to wait for.
#[tokio::test(start_paused = true)]
async fn a_service_that_has_answered_everything_stops_at_once() {
    let (service, _) = late_by(Duration::from_millis(1));
    let claim = lasting(LONG);
    let answer = service.acquire(Arc::clone(&claim), NO_WAIT).await;
    answer.expect("the store answers").unclaimed.delivered();
    let renewed = service.renew(claim.names.clone(), claim.token, RenewOptions::default());
    renewed.await.expect("the store answers");
    let shut_down = service.shut_down(Duration::from_secs(10));
    let ended = timeout(Duration::from_secs(1), shut_down).await;
    assert!(ended.is_ok(), "it waits for nothing");
}
