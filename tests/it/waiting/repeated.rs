//! Claims that are posted again while an earlier request of them waits.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{Claim, LockState, Mode, Refused, Share};
use leasehold::service::AcquireOutcome;
use tokio::time::{Instant, sleep};

use super::holding::{acquired, brief, queued};
use super::{LONG_WAIT, Waiting, assert_idle, held, releases, rivals, settle, view};
use crate::support::fixture::{lock_of, rival};
use crate::support::scripted_store::ScriptedStore;
use crate::support::stores::stream_of;

/// Otherwise it would learn only at its turn that the claim waits, holds or has ended elsewhere.
#[tokio::test(start_paused = true)]
async fn a_waiter_polls_when_its_claim_left_the_queue_by_a_request_elsewhere() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let mut waiting = Vec::new();
    for claim in rivals(&holder, 3) {
        waiting.push(Waiting::queued(&service, &claim, LONG_WAIT).await);
    }
    let (name, middle) = (lock_of(&holder), &waiting[1].claim);
    let polls = |waiting: &[Waiting]| -> Vec<_> {
        let claims = waiting.iter().map(|waiting| &waiting.claim);
        claims.map(|claim| store.polls_of(claim)).collect()
    };
    assert_eq!(polls(&waiting), [1, 1, 1]);
    store.listener().dequeued(name, middle.token.digest(name));
    settle().await;
    assert_eq!(polls(&waiting), [1, 2, 1]);
}

/// The ticket of the claim has the time limit of its latest request.
#[tokio::test(start_paused = true)]
async fn an_earlier_request_keeps_its_place_when_a_later_one_has_timed_out() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let [first, second, third] = &rivals(&holder, 3)[..] else {
        unreachable!("three rivals");
    };
    let first = Waiting::queued(&service, first, LONG_WAIT).await;
    let earlier = Waiting::queued(&service, second, LONG_WAIT).await;
    let third = Waiting::queued(&service, third, LONG_WAIT).await;
    let later = Waiting::queued(&service, second, Duration::from_millis(100)).await;
    later.timed_out().await;
    // Longer than the place of a claim without a request is kept.
    sleep(Duration::from_secs(15)).await;
    assert_eq!(view(&service, &holder).await.queue.length, 3);
    releases(&service, &holder).await;
    for next in [first, earlier, third] {
        let claim = Arc::clone(&next.claim);
        next.granted().await;
        releases(&service, &claim).await;
    }
}

/// A request that finds its claim granted may have followed the reservation of the next waiter.
#[tokio::test(start_paused = true)]
async fn requests_whose_claim_was_granted_to_another_one_delay_nobody() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let mut waiting = Vec::new();
    for claim in rivals(&holder, 4) {
        let claim = Arc::new(Claim {
            mode: Mode::Shared(Share::READ),
            ..(*claim).clone()
        });
        for _ in 0..2 {
            waiting.push(Waiting::queued(&service, &claim, LONG_WAIT).await);
        }
    }
    let released = Instant::now();
    releases(&service, &holder).await;
    for request in waiting {
        let outcome = request.outcome().await;
        assert!(outcome.kind().is_some(), "{outcome:?}");
    }
    // A reservation that nobody follows takes much longer, once for each claim.
    assert!(released.elapsed() < Duration::from_millis(200));
}

/// The claim would be out of the queue until its request asks again, and others could be granted the lock.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_client_is_back_stays_in_the_queue() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    let cut = Waiting::queued(&service, &claim, LONG_WAIT).await;
    store.goes_down(true);
    cut.hangs_up().await;
    sleep(Duration::from_millis(1_500)).await;
    store.goes_down(false);
    let tried = store.cleanups().len();
    assert!(tried > 1, "it is tried again and again");
    let back = Waiting::queued(&service, &claim, LONG_WAIT).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(store.cleanups().len(), tried);
    releases(&service, &holder).await;
    back.granted().await;
}

/// Its places, and all that it was granted, are gone with the claim.
#[tokio::test(start_paused = true)]
async fn a_waiter_whose_claim_has_ended_leaves_nothing_to_clean_up() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let waiting = Waiting::queued(&service, &rivals(&holder, 1)[0], LONG_WAIT).await;
    releases(&service, &waiting.claim).await;
    let outcome = waiting.outcome().await;
    let ended = matches!(outcome, AcquireOutcome::Refused(Refused::Ended(_)));
    assert!(ended, "{outcome:?}");
    settle().await;
    assert_eq!(store.cleanups(), []);
}

/// So the earlier one releases nothing when it closes.
#[tokio::test(start_paused = true)]
async fn of_two_streams_that_wait_for_one_claim_the_later_takes_the_lease_over() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(Claim {
        ttl: brief().ttl,
        ..rival(&holder)
    });
    let mut earlier = stream_of(&service, Arc::clone(&claim), Some(LONG_WAIT));
    queued(&mut earlier).await;
    let mut later = stream_of(&service, Arc::clone(&claim), Some(LONG_WAIT));
    queued(&mut later).await;
    releases(&service, &holder).await;
    acquired(&mut earlier).await;
    acquired(&mut later).await;
    drop(earlier);
    settle().await;
    let state = view(&service, &claim).await.state;
    assert!(matches!(state, LockState::Held(_)), "{state:?}");
    drop(later);
    settle().await;
    assert_idle(&service, &claim).await;
}
