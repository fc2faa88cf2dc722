//! What is cleaned up in the background: rollbacks are retried often enough, and for as long as it matters; and nothing
//! else is asked of the store, or told to others.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::domain::{Claim, Fence, Granted, LockState, NotHolder, Refused};
use leasehold::limits::Gate;
use leasehold::service::{AcquireOutcome, HoldEvent, HoldObserver, LockService, UnclaimedLease};
use leasehold::store::StoreError;
use tokio::time::sleep;

use super::holding::{acquired, brief};
use super::{LONG_WAIT, Waiting, assert_idle, held, releases, rivals, settle, takes, view};
use crate::support::fixture::{LONG, SHORT, claim, for_short, rival, ttl};
use crate::support::scripted_store::{Behavior, Operation, ScriptedStore, unavailable};
use crate::support::stores::stream_of;

/// The longest time until a retry, after the store is back.
const SOON: Duration = Duration::from_millis(1_010);
/// How long the store is down: nearly as long as the lease lasts.
const AWAY: Duration = Duration::from_secs(57);

/// The ways to bring the store down: it is unreachable, or requests to it are lost.
const WAYS: [fn(&ScriptedStore, bool); 2] = [ScriptedStore::goes_down, ScriptedStore::goes_silent];

async fn is_held(service: &LockService, claim: &Claim) -> bool {
    matches!(view(service, claim).await.state, LockState::Held(_))
}

/// The store is down when a rollback is due, and back before the lease expires by itself.
async fn is_rolled_back(
    (service, store): (LockService, Arc<ScriptedStore>),
    claim: &Claim,
    goes: fn(&ScriptedStore, bool),
    disconnect: impl FnOnce(),
) {
    goes(&store, true);
    disconnect();
    sleep(AWAY).await;
    goes(&store, false);
    assert!(is_held(&service, claim).await, "it is not over yet");
    sleep(SOON).await;
    assert_idle(&service, claim).await;
}

#[tokio::test(start_paused = true)]
async fn an_undelivered_grant_is_rolled_back_after_a_long_outage() {
    for goes in WAYS {
        let (service, store) = ScriptedStore::service();
        let claim = Arc::new(claim());
        let answer = service.acquire(Arc::clone(&claim), Duration::ZERO).await;
        let disconnect = || drop(answer);
        is_rolled_back((service, store), &claim, goes, disconnect).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_revoked_is_rolled_back_unless_it_was_held_before() {
    for held_before in [false, true] {
        let (service, _) = ScriptedStore::service();
        let claim = Arc::new(claim());
        if held_before {
            takes(&service, &claim).await;
        }
        let answer = service.acquire(Arc::clone(&claim), Duration::ZERO).await;
        let is_held_still = answer.expect("the store answers").revoke();
        settle().await;
        assert_eq!(is_held_still, held_before);
        assert_eq!(is_held(&service, &claim).await, held_before);
    }
}

/// A grant that a repeated request has received stays, and nobody may be told otherwise.
#[tokio::test(start_paused = true)]
async fn what_follows_a_rollback_follows_nothing_else() {
    for (is_repeated, is_expected) in [(false, true), (true, false)] {
        let (service, _) = ScriptedStore::service();
        let claim = Arc::new(claim());
        let answer = service.acquire(Arc::clone(&claim), Duration::ZERO).await;
        let is_rolled_back = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&is_rolled_back);
        let unclaimed = answer.expect("the store answers").unclaimed;
        let unclaimed = unclaimed.or_else(move || noted.store(true, Ordering::SeqCst));
        if is_repeated {
            let again = service.acquire(Arc::clone(&claim), Duration::ZERO).await;
            again.expect("the store answers").unclaimed.delivered();
        }
        drop(unclaimed);
        settle().await;
        assert_eq!(is_held(&service, &claim).await, is_repeated);
        assert_eq!(is_rolled_back.load(Ordering::SeqCst), is_expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_answer_was_lost_is_rolled_back_after_a_long_outage() {
    for goes in WAYS {
        let (service, store) = ScriptedStore::service();
        let holder = held(&service).await;
        let claim = Arc::new(rival(&holder));
        store.next([Behavior::Lost]);
        super::releases(&service, &holder).await;
        let answer = service.acquire(Arc::clone(&claim), LONG_WAIT).await;
        assert!(answer.is_err(), "its answer is lost");
        is_rolled_back((service, store), &claim, goes, || {}).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_closed_stream_is_released_after_a_long_outage() {
    for goes in WAYS {
        let (service, store) = ScriptedStore::service();
        let claim = Arc::new(claim());
        let mut hold = stream_of(&service, Arc::clone(&claim), None);
        let event = hold.next().await;
        assert!(
            matches!(event, Some(HoldEvent::Acquired { .. })),
            "{event:?}"
        );
        let disconnect = || drop(hold);
        is_rolled_back((service, store), &claim, goes, disconnect).await;
    }
}

/// Retries last for the TTL of the lease, not for that of the stream's claim, which took it over.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_over_is_rolled_back_after_a_long_outage() {
    for is_delivered in [true, false] {
        let (service, store) = ScriptedStore::service();
        let claim = Arc::new(claim());
        takes(&service, &claim).await;
        let brief = Arc::new(Claim {
            ttl: ttl(Duration::from_secs(3)),
            ..Claim::clone(&claim)
        });
        let mut hold = stream_of(&service, brief, None);
        if is_delivered {
            let event = hold.next().await;
            assert!(
                matches!(event, Some(HoldEvent::Acquired { .. })),
                "{event:?}"
            );
        }
        settle().await;
        let disconnect = || drop(hold);
        is_rolled_back(
            (service, store),
            &claim,
            ScriptedStore::goes_down,
            disconnect,
        )
        .await;
    }
}

/// A renewal without an answer may have kept the lease. Were it released, another request of the claim would be granted it
/// anew, although its client was told that it has ended.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_stream_was_told_that_its_lease_expired_is_not_granted_again() {
    let store = ScriptedStore::default().with(Operation::Renew, Behavior::Lost);
    let store = Arc::new(store);
    let [elsewhere, service] = [(); 2].map(|()| store.another_service(|_| {}));
    let holder = held(&service).await;
    let claim = Arc::new(Claim {
        ttl: brief().ttl,
        ..rival(&holder)
    });
    let earlier = Waiting::queued(&elsewhere, &claim, LONG_WAIT).await;
    let mut hold = stream_of(&service, Arc::clone(&claim), Some(LONG_WAIT));
    let queued = hold.next().await;
    assert!(matches!(queued, Some(HoldEvent::Queued(_))), "{queued:?}");
    releases(&service, &holder).await;
    acquired(&mut hold).await;
    let event = hold.next().await;
    let lost = matches!(event, Some(HoldEvent::Lost(NotHolder::Expired)));
    assert!(lost, "{event:?}");
    let outcome = earlier.outcome().await;
    let ended = matches!(outcome, AcquireOutcome::Refused(Refused::Ended(_)));
    assert!(ended, "{outcome:?}");
}

/// Retries must not overload a store that comes back, and must not last for ever.
#[tokio::test(start_paused = true)]
async fn retries_of_a_rollback_are_spaced_and_end_with_the_lease() {
    for goes in WAYS {
        let (service, store) = ScriptedStore::service();
        let answer = service.acquire(Arc::new(claim()), Duration::ZERO).await;
        goes(&store, true);
        drop(answer);
        settle().await;
        let retries = || store.cleanups().len();
        assert_eq!(retries(), 1);
        sleep(Duration::from_secs(10)).await;
        assert!(
            (10..=20).contains(&retries()),
            "{} retries in 10 s",
            retries()
        );
        sleep(LONG - Duration::from_secs(10)).await;
        let in_all = retries();
        assert!((60..=70).contains(&in_all), "{in_all} retries in a minute");
        sleep(LONG).await;
        assert!(retries() <= in_all + 5, "{} retries", retries());
    }
}

/// The outage is shorter than the liveness timeout, after which the store would pass over all waiters of the process.
#[tokio::test(start_paused = true)]
async fn a_disconnected_claim_leaves_the_queue_when_the_store_is_back() {
    for goes in WAYS {
        let (service, store) = ScriptedStore::service();
        let holder = held(&service).await;
        let [first, second] = &rivals(&holder, 2)[..] else {
            unreachable!("there are two")
        };
        let waiting = Waiting::queued(&service, first, LONG_WAIT).await;
        let behind = Waiting::queued(&service, second, LONG_WAIT).await;
        goes(&store, true);
        waiting.hangs_up().await;
        sleep(Duration::from_secs(2)).await;
        goes(&store, false);
        assert_eq!(view(&service, &holder).await.queue.length, 2);
        sleep(SOON).await;
        assert_eq!(view(&service, &holder).await.queue.length, 1);
        super::releases(&service, &holder).await;
        behind.granted().await;
    }
}

/// Its client knows nothing of the takeover, and may be at work by what an earlier request told it.
#[tokio::test(start_paused = true)]
async fn a_stream_that_closes_before_it_has_received_the_lease_leaves_it_as_it_was() {
    let (service, _) = ScriptedStore::service();
    let claim = brief();
    takes(&service, &claim).await;
    drop(stream_of(&service, Arc::clone(&claim), None));
    settle().await;
    assert!(is_held(&service, &claim).await);

    let mut former = stream_of(&service, Arc::clone(&claim), None);
    acquired(&mut former).await;
    drop(stream_of(&service, Arc::clone(&claim), None));
    settle().await;
    assert!(is_held(&service, &claim).await);
    drop(former);
    settle().await;
    assert_idle(&service, &claim).await;
}

/// The last poll did nothing, but an earlier one may have been granted.
#[tokio::test(start_paused = true)]
async fn a_wait_whose_grant_may_have_been_lost_ends_with_an_unknown_outcome() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    let waiting = Waiting::queued(&service, &claim, LONG_WAIT).await;
    store.next([Behavior::Lost]);
    releases(&service, &holder).await;
    settle().await;
    store.goes_down(true);
    let answer = waiting.answer().await;
    assert!(
        matches!(answer, Err(StoreError::Unknown { .. })),
        "{answer:?}"
    );
}

/// The store may still have the lease for a moment, so it is not true that nothing was done.
#[tokio::test(start_paused = true)]
async fn a_grant_that_came_too_late_and_is_not_rolled_back_yet_has_an_unknown_outcome() {
    let refuses = Behavior::Fails(unavailable());
    let store = Arc::new(ScriptedStore::default().with(Operation::Withdraw, refuses));
    let service = store.another_service(|_| {});
    store.next([Behavior::Late(SHORT * 2)]);
    let claim = Arc::new(for_short(&claim()));
    let answer = Waiting::on(&service, &claim, LONG_WAIT).answer().await;
    assert!(
        matches!(answer, Err(StoreError::Unknown { .. })),
        "{answer:?}"
    );
    settle().await;
    assert_eq!(store.cleanups(), [Operation::Withdraw; 2], "it is retried");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_grant_was_over_when_the_answer_came_waits_on_in_its_place() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(for_short(&rival(&holder)));
    let waiting = Waiting::queued(&service, &claim, LONG_WAIT).await;
    let next = Arc::new(rival(&holder));
    let next = Waiting::queued(&service, &next, LONG_WAIT).await;
    store.next([Behavior::Late(SHORT * 2)]);
    releases(&service, &holder).await;
    waiting.granted().await;
    assert!(!next.answer.is_finished());
}

/// Only principals with a quota of leases pay for what it needs.
#[tokio::test(start_paused = true)]
async fn a_rollback_is_one_request_to_the_store() {
    let (service, store) = ScriptedStore::service();
    let answer = service.acquire(Arc::new(claim()), Duration::ZERO).await;
    drop(answer);
    settle().await;
    assert_eq!(
        store.operations(),
        [Operation::Acquire, Operation::Withdraw]
    );
}

/// Counts the releases that it is told of.
#[derive(Clone, Default)]
struct Releases(Arc<AtomicUsize>);

impl HoldObserver for Releases {
    fn granted(&self, _: &Granted, unclaimed: UnclaimedLease) -> UnclaimedLease {
        unclaimed
    }

    fn released(&self, _: Fence) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_closes_tells_of_a_release_only_if_it_has_released_its_lock() {
    for is_repeated in [false, true] {
        let (service, _) = ScriptedStore::service();
        let (claim, released) = (Arc::new(claim()), Releases::default());
        let (observer, renewals) = (released.clone(), Gate::new(usize::MAX));
        let mut hold = service.hold(Arc::clone(&claim), None, pending(), observer, renewals);
        acquired(&mut hold).await;
        if is_repeated {
            let again = service.acquire(Arc::clone(&claim), Duration::ZERO).await;
            again.expect("the store answers").unclaimed.delivered();
        }
        drop(hold);
        settle().await;
        assert_eq!(is_held(&service, &claim).await, is_repeated);
        let told = released.0.load(Ordering::SeqCst);
        assert_eq!(told, usize::from(!is_repeated));
    }
}

/// Its place is kept as that of a client that has gone, which nobody waits for.
#[tokio::test(start_paused = true)]
async fn a_wait_that_panics_blocks_nobody() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let [panicking, next] = [(); 2].map(|()| Arc::new(rival(&holder)));
    let panicking = Waiting::queued(&service, &panicking, LONG_WAIT).await;
    let next = Waiting::queued(&service, &next, LONG_WAIT).await;
    store.next([Behavior::Panics]);
    assert!(panicking.answer.await.is_err(), "its next poll panics");
    releases(&service, &holder).await;
    next.granted().await;
}
