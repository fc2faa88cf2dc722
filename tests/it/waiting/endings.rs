//! How waits end: at their time limit, by a disconnect, by draining, in outages; and what they leave behind.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, ConflictKind, GrantKind, LockState, Position, Refused, Ticket,
    Timestamp,
};
use leasehold::service::{AcquireOutcome as Outcome, LockService};
use leasehold::store::{LockStore as _, StoreError};
use tokio::time::{Instant, sleep, timeout};

use super::{
    LONG_WAIT, Waiting, assert_at_once, assert_idle, held, releases, rivals, settle, takes, view,
};
use crate::support::fixture::{SHORT, Waiter, deadline, for_short, rival};
use crate::support::scripted_store::{Behavior, Operation, ScriptedStore};

const WAIT: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_reports_its_position_and_keeps_its_place() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let [first, second] = [rival(&holder), rival(&holder)].map(Arc::new);
    let _first = Waiting::queued(&service, &first, LONG_WAIT).await;
    let began = Instant::now();
    let not_granted = Waiting::queued(&service, &second, WAIT)
        .await
        .timed_out()
        .await;
    assert!(began.elapsed() <= WAIT + Duration::from_millis(250));
    let place = Position {
        position: 2,
        queue_length: 2,
    };
    assert_eq!(not_granted.position, Some(place));
    assert_eq!(not_granted.place_kept, Duration::from_secs(10));
    assert!(matches!(
        not_granted.blocked_by[0].by,
        ConflictKind::Holders(_)
    ));
    let later = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    let again = Waiting::queued(&service, &second, LONG_WAIT).await;
    releases(&service, &holder).await;
    _first.granted().await;
    releases(&service, &first).await;
    again.granted().await;
    assert!(!later.answer.is_finished(), "it came later");
}

/// A waiter that was granted its lock while all its answers were lost, until the lease expired.
async fn granted_unknown(service: &LockService, store: &ScriptedStore) -> Waiting {
    let holder = held(service).await;
    let claim = Arc::new(for_short(&rival(&holder)));
    let waiting = Waiting::queued(service, &claim, LONG_WAIT).await;
    store.next([Behavior::Lost]);
    releases(service, &holder).await;
    settle().await;
    assert!(matches!(
        view(service, &claim).await.state,
        LockState::Held(_)
    ));
    store.goes_silent(true);
    sleep(SHORT * 2).await;
    waiting
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_lease_expired_before_its_delivery_waits_on() {
    let (service, store) = ScriptedStore::service();
    let waiting = granted_unknown(&service, &store).await;
    store.goes_silent(false);
    waiting.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_undelivered_lease_went_to_another_claim_waits_on() {
    let (service, store) = ScriptedStore::service();
    let waiting = granted_unknown(&service, &store).await;
    let other = rival(&waiting.claim);
    let answer = store
        .store
        .acquire(&other, Attempt::random(), None, deadline());
    assert!(matches!(&answer.await, Ok(granted) if granted.kind() == Some(GrantKind::New)));
    store.goes_silent(false);
    sleep(Duration::from_secs(3)).await;
    assert!(!waiting.answer.is_finished(), "another claim holds");
    releases(&service, &other).await;
    waiting.granted().await;
}

/// The claim ended by the lease of another request, not by one of this request.
#[tokio::test(start_paused = true)]
async fn a_waiter_whose_claim_ended_by_another_request_is_refused() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(for_short(&rival(&holder)));
    let waiting = Waiting::queued(&service, &claim, LONG_WAIT).await;
    store.goes_silent(true);
    sleep(Duration::from_secs(1)).await;
    let released = store
        .store
        .release(&holder.names, holder.token, None, deadline());
    released.await.unwrap();
    // A repeated post through another process. Its client received the lease and let it expire.
    let answer = store
        .store
        .acquire(&claim, Attempt::random(), None, deadline());
    assert!(matches!(&answer.await, Ok(granted) if granted.kind() == Some(GrantKind::New)));
    sleep(SHORT * 2).await;
    store.goes_silent(false);
    let outcome = waiting.outcome().await;
    assert!(
        matches!(outcome, Outcome::Refused(Refused::Ended(_))),
        "{outcome:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_granted_after_the_timeout_was_reported() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    Waiting::queued(&service, &claim, WAIT)
        .await
        .timed_out()
        .await;
    releases(&service, &holder).await;
    let polls = store.polls();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(view(&service, &claim).await.state, LockState::Free);
    assert_eq!(store.polls(), polls);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_is_passed_over_at_once_and_resumes_its_place_when_it_is_back() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let [first, second] = [rival(&holder), rival(&holder)].map(Arc::new);
    let cut = Waiting::queued(&service, &first, LONG_WAIT).await;
    let next = Waiting::queued(&service, &second, LONG_WAIT).await;
    cut.hangs_up().await;
    let since = Instant::now();
    releases(&service, &holder).await;
    next.granted().await;
    assert_at_once(since);
    let third = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    let back = Waiting::queued(&service, &first, LONG_WAIT).await;
    releases(&service, &second).await;
    back.granted().await;
    assert!(!third.answer.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_before_the_first_answer_leaves_nothing_behind() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    store.next([Behavior::Late(Duration::from_millis(100))]);
    let answer = service.acquire(Arc::clone(&claim), LONG_WAIT);
    assert!(timeout(Duration::from_millis(10), answer).await.is_err());
    sleep(Duration::from_millis(200)).await;
    releases(&service, &holder).await;
    assert_idle(&service, &claim).await;
    // The same with a late grant.
    store.next([Behavior::Late(Duration::from_millis(100))]);
    let answer = service.acquire(Arc::clone(&claim), LONG_WAIT);
    assert!(timeout(Duration::from_millis(10), answer).await.is_err());
    service.shut_down(Duration::from_secs(5)).await;
    assert_idle(&service, &claim).await;
}

/// One of two requests with the same token disconnects: the other one still waits, and is granted.
#[tokio::test(start_paused = true)]
async fn a_second_request_with_the_same_token_keeps_the_claim_waiting() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    let cut = Waiting::queued(&service, &claim, LONG_WAIT).await;
    let kept = Waiting::queued(&service, &claim, LONG_WAIT).await;
    let later = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    cut.hangs_up().await;
    settle().await;
    let since = Instant::now();
    releases(&service, &holder).await;
    kept.granted().await;
    assert_at_once(since);
    assert!(!later.answer.is_finished());
}

#[tokio::test(start_paused = true)]
async fn of_two_requests_with_the_same_token_both_get_the_grant() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    let first = Waiting::queued(&service, &claim, LONG_WAIT).await;
    let second = Waiting::queued(&service, &claim, LONG_WAIT).await;
    let since = Instant::now();
    releases(&service, &holder).await;
    first.granted().await;
    let outcome = second.outcome().await;
    assert_eq!(outcome.kind(), Some(GrantKind::Replayed), "{outcome:?}");
    assert_at_once(since);
}

/// The first request is dequeued just when the second one is enqueued.
#[tokio::test(start_paused = true)]
async fn a_place_that_is_left_and_resumed_at_the_same_time_is_resumed() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    let cut = Waiting::queued(&service, &claim, LONG_WAIT).await;
    cut.answer.abort();
    let back = Waiting::on(&service, &claim, LONG_WAIT);
    settle().await;
    let since = Instant::now();
    releases(&service, &holder).await;
    back.granted().await;
    assert_at_once(since);
}

#[tokio::test(start_paused = true)]
async fn a_released_token_ends_the_wait_for_it() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    let _first = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    let waiting = Waiting::queued(&service, &claim, LONG_WAIT).await;
    let since = Instant::now();
    releases(&service, &claim).await;
    let outcome = waiting.outcome().await;
    assert!(
        matches!(outcome, Outcome::Refused(Refused::Ended(_))),
        "{outcome:?}"
    );
    assert_at_once(since);
}

#[tokio::test(start_paused = true)]
async fn a_draining_process_answers_all_at_once_and_the_order_is_kept() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let mut waiting = Vec::new();
    let claims = rivals(&holder, 3);
    for claim in &claims {
        waiting.push(Waiting::queued(&service, claim, LONG_WAIT).await);
    }
    let since = Instant::now();
    service.drain();
    for waiting in waiting {
        match waiting.outcome().await {
            Outcome::Draining(not_granted) => {
                assert!(not_granted.position.is_some());
                assert_eq!(not_granted.place_kept, Duration::from_secs(10));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_at_once(since);
    let late = Waiting::on(&service, &Arc::new(rival(&holder)), LONG_WAIT);
    let outcome = late.outcome().await;
    assert!(matches!(outcome, Outcome::Draining(_)), "{outcome:?}");
    // The clients come back elsewhere, in another order.
    let service = store.another_service(|_| {});
    let last = Waiting::queued(&service, &claims[2], LONG_WAIT).await;
    let first = Waiting::queued(&service, &claims[0], LONG_WAIT).await;
    let second = Waiting::queued(&service, &claims[1], LONG_WAIT).await;
    releases(&service, &holder).await;
    first.granted().await;
    releases(&service, &claims[0]).await;
    second.granted().await;
    assert!(!last.answer.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_wait_outlasts_an_outage_of_the_store() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let next = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    releases(&service, &holder).await;
    store.goes_down(true);
    sleep(Duration::from_secs(8)).await;
    assert!(!next.answer.is_finished());
    store.goes_down(false);
    let since = Instant::now();
    next.granted().await;
    assert!(since.elapsed() <= Duration::from_millis(1_210));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_in_an_outage_fails_in_time_and_is_granted_nothing_afterwards() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    let began = Instant::now();
    let waiting = Waiting::queued(&service, &claim, WAIT).await;
    store.goes_down(true);
    let answer = waiting.answer().await;
    assert!(began.elapsed() <= WAIT + Duration::from_millis(250));
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })));
    store.goes_down(false);
    releases(&service, &holder).await;
    sleep(Duration::from_secs(2)).await;
    assert_idle(&service, &claim).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_makes_no_answer_late() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    store.next([
        Behavior::Late(Duration::ZERO),
        Behavior::Late(Duration::from_secs(20)),
    ]);
    let began = Instant::now();
    let answer = Waiting::queued(&service, &claim, WAIT).await.answer().await;
    assert!(began.elapsed() <= WAIT + Duration::from_millis(250));
    assert!(
        matches!(answer, Err(StoreError::Unknown { .. })),
        "{answer:?}"
    );
    releases(&service, &holder).await;
    sleep(Duration::from_secs(20)).await;
    assert_idle(&service, &claim).await;
}

/// The answer with the grant was lost. The next poll finds the grant, and this request must deliver it.
#[tokio::test(start_paused = true)]
async fn a_grant_whose_answer_was_lost_is_found_and_is_rolled_back_if_undelivered() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    let waiting = Waiting::queued(&service, &claim, LONG_WAIT).await;
    store.next([Behavior::Lost]);
    releases(&service, &holder).await;
    let answer = waiting.answer().await.unwrap();
    assert_eq!(answer.outcome.kind(), Some(GrantKind::New), "{answer:?}");
    drop(answer);
    service.shut_down(Duration::from_secs(5)).await;
    assert_idle(&service, &claim).await;
}

/// After leaving the queue first, a late poll could enqueue the claim again, and no request would dequeue it.
#[tokio::test(start_paused = true)]
async fn a_wait_with_an_unknown_outcome_is_rolled_back_before_it_leaves_the_queue() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    let waiting = Waiting::queued(&service, &claim, WAIT).await;
    store.next([Behavior::Lost]);
    let outcome = waiting.outcome().await;
    assert!(matches!(outcome, Outcome::TimedOut(_)), "{outcome:?}");
    settle().await;
    assert_eq!(store.cleanups(), [Operation::Withdraw, Operation::Suspend]);
}

#[tokio::test(start_paused = true)]
async fn a_first_poll_without_an_answer_fails_and_leaves_no_ticket() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    store.next([Behavior::Lost]);
    let answer = Waiting::on(&service, &claim, LONG_WAIT).answer().await;
    assert!(
        matches!(answer, Err(StoreError::Unknown { .. })),
        "{answer:?}"
    );
    settle().await;
    releases(&service, &holder).await;
    takes(&service, &Arc::new(rival(&holder))).await;
}

/// The store's clock was changed, so the store considers the wait over before the service does.
#[tokio::test(start_paused = true)]
async fn a_wait_continues_although_the_store_considers_it_over() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    let waiting = Waiting::queued(&service, &claim, LONG_WAIT).await;
    let stale = Waiter::new(Claim::clone(&claim)).with(|request| {
        let until = Some(Timestamp::from_unix_ms(0));
        request.ticket = Some(Ticket { sequence: 1, until });
    });
    let request = Some(&stale.queue_request);
    let answer = store
        .store
        .acquire(&claim, stale.attempt, request, deadline());
    assert_eq!(answer.await.unwrap(), Acquired::WaitExpired);
    sleep(Duration::from_secs(2)).await;
    releases(&service, &holder).await;
    waiting.granted().await;
}
