//! Which waiter polls the store, when, and that no reservation is lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::domain::{Claim, LockState, Mode, Refused};
use leasehold::service::AcquireOutcome;
use tokio::time::{Instant, sleep};

use super::{
    LONG_WAIT, Waiting, assert_at_once, assert_idle, held, releases, rivals, settle, takes, view,
};
use crate::support::fixture::{
    claim, claim_on_all, for_short, fresh_name, in_mode, lock_of, names, permits, reader, rival,
    ttl,
};
use crate::support::scripted_store::{Behavior, ScriptedStore};
use crate::support::stores::stream_of;

#[tokio::test(start_paused = true)]
async fn a_released_lock_is_handed_on_at_once_in_the_order_of_arrival() {
    let (service, store) = ScriptedStore::service();
    let mut holder = held(&service).await;
    let mut waiting = Vec::new();
    for claim in rivals(&holder, 5) {
        waiting.push(Waiting::queued(&service, &claim, LONG_WAIT).await);
    }
    for next in waiting {
        let since = Instant::now();
        let polls = store.polls();
        releases(&service, &holder).await;
        holder = Arc::clone(&next.claim);
        next.granted().await;
        assert_at_once(since);
        assert_eq!(store.polls(), polls + 1, "no other waiter polls");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_head_of_a_queue_polls_about_once_a_second() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let mut waiting = Vec::new();
    for claim in rivals(&holder, 20) {
        waiting.push(Waiting::queued(&service, &claim, LONG_WAIT).await);
    }
    let before = store.polls();
    sleep(Duration::from_secs(30)).await;
    let polls = store.polls_of(&waiting[0].claim) - 1;
    assert!((24..=38).contains(&polls), "{polls}");
    assert_eq!(store.polls() - before, polls, "the others do not poll");
}

#[tokio::test(start_paused = true)]
async fn a_lost_reservation_delays_by_one_poll_interval_and_no_more() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let next = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    store.loses_messages();
    let since = Instant::now();
    releases(&service, &holder).await;
    next.granted().await;
    assert!(since.elapsed() <= Duration::from_millis(1_210));
}

#[tokio::test(start_paused = true)]
async fn a_head_waiter_polls_soon_after_messages_were_lost() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let next = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    store.loses_messages();
    releases(&service, &holder).await;
    store.reconnects();
    let since = Instant::now();
    next.granted().await;
    assert!(since.elapsed() <= Duration::from_millis(210));
}

/// A waiting stream refreshes its ticket from time to time. A store that has lost all data must be able to restore the
/// place from such a request.
#[tokio::test(start_paused = true)]
async fn a_wait_that_refreshes_its_ticket_sends_its_place() {
    let (service, store) = ScriptedStore::service();
    let holder = Arc::new(Claim {
        ttl: ttl(LONG_WAIT * 10),
        ..claim()
    });
    takes(&service, &holder).await;
    let claim = Arc::new(rival(&holder));
    let mut events = stream_of(&service, Arc::clone(&claim), None);
    events.next().await.expect("it waits");
    sleep(Duration::from_secs(120)).await;
    let tickets = store.tickets_of(&claim);
    let (first, rest) = tickets.split_first().expect("it has polled");
    assert_eq!(*first, None, "it has no place yet");
    let sequences: Vec<_> = rest
        .iter()
        .map(|ticket| ticket.map(|ticket| ticket.sequence))
        .collect();
    assert!(
        sequences
            .iter()
            .all(|one| one.is_some() && *one == sequences[0])
    );
    let refreshes = rest
        .iter()
        .flatten()
        .filter(|ticket| ticket.until.is_none())
        .count();
    assert!(refreshes >= 2, "{refreshes} of {rest:?}");
}

/// A store passes over the waiters of a process that it considers dead, or loses them. Polling for the head waiter
/// alone would leave out the others.
#[tokio::test(start_paused = true)]
async fn a_process_that_was_silent_for_long_polls_for_all_of_its_waiters() {
    let (service, store) = ScriptedStore::service();
    let mut holder = held(&service).await;
    let mut waiting = Vec::new();
    for claim in rivals(&holder, 4) {
        waiting.push(Waiting::queued(&service, &claim, LONG_WAIT).await);
    }
    store.goes_down(true);
    sleep(Duration::from_secs(5)).await;
    let before: Vec<_> = waiting
        .iter()
        .map(|one| store.polls_of(&one.claim))
        .collect();
    store.goes_down(false);
    sleep(Duration::from_secs(2)).await;
    for (waiting, before) in waiting.iter().zip(before) {
        assert!(store.polls_of(&waiting.claim) > before);
    }
    for next in waiting {
        let since = Instant::now();
        releases(&service, &holder).await;
        holder = Arc::clone(&next.claim);
        next.granted().await;
        assert_at_once(since);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_polls_just_after_the_blocking_lease_expires() {
    let (service, store) = ScriptedStore::service_with(|config| {
        config.poll_interval = Duration::from_secs(20);
    });
    store.loses_messages();
    let holder = held(&service).await;
    let brief = Arc::new(for_short(&rival(&holder)));
    let next = Waiting::queued(&service, &brief, LONG_WAIT).await;
    let last = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    store.reconnects();
    releases(&service, &holder).await;
    next.granted().await;
    // The lease of the first expires, and its process knows when without polling.
    store.loses_messages();
    let since = Instant::now();
    last.granted().await;
    let waited = since.elapsed();
    let bounds = Duration::from_millis(490)..=Duration::from_millis(530);
    assert!(bounds.contains(&waited), "{waited:?}");
}

/// The answer that queues the claim arrives later than the reservation that follows it.
#[tokio::test(start_paused = true)]
async fn a_reservation_that_overtakes_the_answer_is_not_lost() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    store.next([Behavior::Late(Duration::from_millis(50))]);
    let next = Waiting::on(&service, &Arc::new(rival(&holder)), LONG_WAIT);
    settle().await;
    let since = Instant::now();
    releases(&service, &holder).await;
    next.granted().await;
    assert!(since.elapsed() <= Duration::from_millis(80));
}

#[tokio::test(start_paused = true)]
async fn a_reservation_during_a_poll_leads_to_another_poll() {
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    store.next([
        Behavior::Late(Duration::ZERO),
        Behavior::Late(Duration::from_millis(100)),
    ]);
    let claim = Arc::new(rival(&holder));
    let next = Waiting::queued(&service, &claim, LONG_WAIT).await;
    while store.polls_of(&claim) < 2 {
        settle().await;
    }
    let since = Instant::now();
    releases(&service, &holder).await;
    next.granted().await;
    assert!(since.elapsed() <= Duration::from_millis(120));
}

/// The head waiter's client disconnects just when the lock is reserved for it.
#[tokio::test(start_paused = true)]
async fn the_reservation_of_a_waiter_that_leaves_goes_to_the_next() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let first = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    let second = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    let since = Instant::now();
    releases(&service, &holder).await;
    first.answer.abort();
    second.granted().await;
    assert_at_once(since);
}

#[tokio::test(start_paused = true)]
async fn when_the_head_of_the_queue_is_released_the_next_waiter_gets_its_turn() {
    let (service, _) = ScriptedStore::service();
    let holder = Arc::new(reader(&claim()));
    takes(&service, &holder).await;
    let writer = Arc::new(in_mode(&rival(&holder), Mode::Exclusive));
    let head = Waiting::queued(&service, &writer, LONG_WAIT).await;
    let next = Arc::new(reader(&holder));
    let next = Waiting::queued(&service, &next, LONG_WAIT).await;
    let since = Instant::now();
    releases(&service, &writer).await;
    next.granted().await;
    assert_at_once(since);
    let ended = head.outcome().await;
    assert!(
        matches!(ended, AcquireOutcome::Refused(Refused::Ended(_))),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn as_many_shared_claims_are_granted_at_once_as_fit() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let mut waiting = Vec::new();
    for claim in rivals(&holder, 5) {
        let claim = Arc::new(in_mode(&claim, permits(1, 3)));
        waiting.push(Waiting::queued(&service, &claim, LONG_WAIT).await);
    }
    let since = Instant::now();
    releases(&service, &holder).await;
    let rest = waiting.split_off(3);
    for next in waiting {
        next.granted().await;
    }
    assert_at_once(since);
    settle().await;
    assert!(rest.iter().all(|waiting| !waiting.answer.is_finished()));
}

#[tokio::test(start_paused = true)]
async fn readers_behind_a_writer_come_after_it() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let writer = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    let readers = [
        Waiting::queued(&service, &Arc::new(reader(&holder)), LONG_WAIT).await,
        Waiting::queued(&service, &Arc::new(reader(&holder)), LONG_WAIT).await,
    ];
    releases(&service, &holder).await;
    let written = Arc::clone(&writer.claim);
    writer.granted().await;
    settle().await;
    assert!(readers.iter().all(|reader| !reader.answer.is_finished()));
    releases(&service, &written).await;
    for reader in readers {
        reader.granted().await;
    }
}

/// A claim on two locks is in two queues. It may become the head of one while it is still behind another in the other.
#[tokio::test(start_paused = true)]
async fn a_claim_on_several_locks_is_granted_when_the_last_of_them_is_free() {
    let (service, _) = ScriptedStore::service();
    let (a, b) = (held(&service).await, held(&service).await);
    let before = Waiting::queued(&service, &Arc::new(rival(&a)), LONG_WAIT).await;
    let both = Arc::new(claim_on_all(names([lock_of(&a), lock_of(&b)])));
    let both = Waiting::queued(&service, &both, LONG_WAIT).await;
    releases(&service, &b).await;
    releases(&service, &a).await;
    let first = Arc::clone(&before.claim);
    before.granted().await;
    settle().await;
    let since = Instant::now();
    releases(&service, &first).await;
    both.granted().await;
    assert_at_once(since);
}

#[tokio::test(start_paused = true)]
async fn with_very_many_queues_each_is_polled_less_often() {
    let (service, store) = ScriptedStore::service();
    let mut waiting = Vec::new();
    for _ in 0..4_000 {
        let holder = held(&service).await;
        waiting.push(Waiting::on(&service, &Arc::new(rival(&holder)), LONG_WAIT));
    }
    sleep(Duration::from_secs(5)).await;
    let before = store.polls();
    sleep(Duration::from_secs(10)).await;
    let a_second = (store.polls() - before) / 10;
    assert!((500..=1_250).contains(&a_second), "{a_second}");
}

#[tokio::test(start_paused = true)]
async fn beyond_the_maximum_of_waiters_a_process_grants_free_locks_only() {
    use leasehold::service::{AcquireOutcome, QueueFull};
    let (service, _) = ScriptedStore::service_with(|config| config.waiters_max = 2);
    let holder = held(&service).await;
    let mut waiting = Vec::new();
    for claim in rivals(&holder, 2) {
        waiting.push(Waiting::queued(&service, &claim, LONG_WAIT).await);
    }
    let third = Waiting::on(&service, &Arc::new(rival(&holder)), LONG_WAIT);
    assert_eq!(
        third.outcome().await,
        AcquireOutcome::TooManyWaiters(QueueFull::Process { waiters: 2 })
    );
    let elsewhere = Arc::new(claim_on_all(fresh_name().into()));
    Waiting::on(&service, &elsewhere, LONG_WAIT).granted().await;
    for waiting in waiting {
        waiting.hangs_up().await;
    }
    settle().await;
    let fourth = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    releases(&service, &holder).await;
    fourth.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_queue_has_at_most_its_maximum_of_waiters() {
    let (service, _) = ScriptedStore::service_with(|config| config.waiters_per_lock_max = 1);
    let holder = held(&service).await;
    let _first = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    let second = Waiting::on(&service, &Arc::new(rival(&holder)), LONG_WAIT);
    let name = lock_of(&holder).clone();
    assert_eq!(
        second.outcome().await,
        AcquireOutcome::Refused(Refused::TooManyWaiters {
            name,
            queue_length: 1
        })
    );
}

/// Each of them has lost an answer, so it polls until its wait ends, whatever its place.
#[tokio::test(start_paused = true)]
async fn thousands_of_waiters_whose_grants_may_have_been_lost_poll_at_the_pace_of_all() {
    const WAITERS: usize = 3_000;
    const SECONDS: usize = 5;
    let (service, store) = ScriptedStore::service();
    let holder = held(&service).await;
    let wait = |claim| Waiting::on(&service, claim, LONG_WAIT);
    let _waiting: Vec<_> = rivals(&holder, WAITERS).iter().map(wait).collect();
    settle().await;
    // After so long, each of them polls once when the store is back.
    store.goes_down(true);
    sleep(Duration::from_secs(4)).await;
    store.goes_down(false);
    store.next([Behavior::Answered]);
    store.next(std::iter::repeat_n(Behavior::Lost, WAITERS));
    sleep(Duration::from_secs(15)).await;
    let before = store.polls();
    sleep(Duration::from_secs(SECONDS as u64)).await;
    let polls = (store.polls() - before) / SECONDS;
    assert!((500..=1_350).contains(&polls), "{polls} a second");
}

#[tokio::test(start_paused = true)]
async fn waiters_leave_nothing_behind() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let next = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    let claim = Arc::clone(&next.claim);
    releases(&service, &holder).await;
    next.granted().await;
    assert!(matches!(
        view(&service, &claim).await.state,
        LockState::Held(_)
    ));
    releases(&service, &claim).await;
    assert_idle(&service, &claim).await;
    takes(&service, &Arc::new(rival(&claim))).await;
}
