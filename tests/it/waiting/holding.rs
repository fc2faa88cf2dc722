//! Streams that hold a lock for as long as their listener stays.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use leasehold::domain::{Claim, GrantKind, LockState, NotHolder, Position, Refused};
use leasehold::service::{AcquireOutcome, Hold, HoldEvent};
use tokio::time::{Instant, sleep};

use super::{LONG_WAIT, Waiting, assert_at_once, assert_idle, held, releases, settle, takes, view};
use crate::support::fixture::{
    READ, claim, claim_on, claim_on_all, fresh_name, in_mode, lock_of, names, reader, rival, ttl,
};
use crate::support::scripted_store::ScriptedStore;
use crate::support::stores::stream_of;

/// A claim with a lease of three seconds.
pub(super) fn brief() -> Arc<Claim> {
    Arc::new(Claim {
        ttl: ttl(Duration::from_secs(3)),
        ..claim()
    })
}

pub(super) async fn acquired(hold: &mut Hold) {
    let event = hold.next().await;
    assert!(
        matches!(event, Some(HoldEvent::Acquired { .. })),
        "{event:?}"
    );
}

pub(super) async fn queued(hold: &mut Hold) -> Position {
    match hold.next().await {
        Some(HoldEvent::Queued(position)) => position,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_its_stream_is_open_and_then_released() {
    let (service, _) = ScriptedStore::service();
    let claim = brief();
    let mut hold = stream_of(&service, Arc::clone(&claim), None);
    acquired(&mut hold).await;
    for _ in 0..10 {
        let since = Instant::now();
        let event = hold.next().await;
        assert!(matches!(event, Some(HoldEvent::Renewed(_))), "{event:?}");
        assert!(since.elapsed() <= Duration::from_millis(1_010));
    }
    drop(hold);
    settle().await;
    assert_idle(&service, &claim).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_stream_reports_its_position() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let first = Waiting::queued(&service, &Arc::new(rival(&holder)), LONG_WAIT).await;
    let mut hold = stream_of(&service, Arc::new(rival(&holder)), None);
    let at = |position| Position {
        position,
        queue_length: position,
    };
    assert_eq!(queued(&mut hold).await, at(2));
    releases(&service, &holder).await;
    let claim = Arc::clone(&first.claim);
    first.granted().await;
    assert_eq!(queued(&mut hold).await, at(1));
    let since = Instant::now();
    releases(&service, &claim).await;
    acquired(&mut hold).await;
    assert_at_once(since);
}

/// Longer than the lifetime of a ticket, so the wait must refresh its ticket.
#[tokio::test(start_paused = true)]
async fn a_stream_waits_for_as_long_as_it_lives() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let mut hold = stream_of(&service, Arc::new(rival(&holder)), None);
    queued(&mut hold).await;
    let keeps = async {
        for _ in 0..20 {
            sleep(Duration::from_secs(30)).await;
            let names = holder.names.clone();
            let renewed = service.renew(names, holder.token, Default::default());
            renewed.await.unwrap();
        }
    };
    keeps.await;
    releases(&service, &holder).await;
    acquired(&mut hold).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_closed_leaves_the_queue_and_keeps_its_place() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let claim = Arc::new(rival(&holder));
    let mut hold = stream_of(&service, Arc::clone(&claim), None);
    queued(&mut hold).await;
    drop(hold);
    settle().await;
    assert_eq!(view(&service, &holder).await.queue.length, 0);
    let mut later = stream_of(&service, Arc::new(rival(&holder)), None);
    queued(&mut later).await;
    let mut again = stream_of(&service, claim, None);
    queued(&mut again).await;
    releases(&service, &holder).await;
    acquired(&mut again).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_reports_the_eviction_of_its_lock() {
    let (service, _) = ScriptedStore::service();
    let claim = brief();
    let mut hold = stream_of(&service, Arc::clone(&claim), None);
    acquired(&mut hold).await;
    let evicted = service.evict(lock_of(&claim).clone(), "repair".to_owned(), |_| {});
    evicted.await.unwrap();
    let since = Instant::now();
    match hold.next().await {
        Some(HoldEvent::Lost(NotHolder::Evicted { reason })) => assert_eq!(reason, "repair"),
        other => panic!("{other:?}"),
    }
    assert_at_once(since);
    assert!(hold.next().await.is_none());
}

/// Shared holders, and a holder of several locks of which one is evicted.
#[tokio::test(start_paused = true)]
async fn every_stream_reports_the_eviction_of_one_of_its_locks_at_once() {
    let (service, _) = ScriptedStore::service();
    let [first, second] = [fresh_name(), fresh_name()];
    let reading = in_mode(&claim_on_all(names(&[first, second.clone()])), READ);
    let reading_one = in_mode(&claim_on(&second), READ);
    let mut holds = Vec::new();
    for claim in [&reading, &reader(&reading), &reading_one] {
        let mut hold = stream_of(&service, Arc::new(claim.clone()), None);
        acquired(&mut hold).await;
        holds.push(hold);
    }
    let other = claim();
    let mut unconcerned = stream_of(&service, Arc::new(other.clone()), None);
    acquired(&mut unconcerned).await;
    let since = Instant::now();
    service.evict(second, String::new(), |_| {}).await.unwrap();
    for mut hold in holds {
        let event = hold.next().await;
        let lost = matches!(event, Some(HoldEvent::Lost(NotHolder::Evicted { .. })));
        assert!(lost, "{event:?}");
    }
    assert_at_once(since);
    assert!(unconcerned.next().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stream_reports_the_release_of_its_claim_at_once_and_others_do_not() {
    let (service, _) = ScriptedStore::service();
    let reading = in_mode(&brief(), READ);
    let mut hold = stream_of(&service, Arc::new(reading.clone()), None);
    acquired(&mut hold).await;
    let mut unconcerned = stream_of(&service, Arc::new(reader(&reading)), None);
    acquired(&mut unconcerned).await;
    let since = Instant::now();
    releases(&service, &reading).await;
    let event = hold.next().await;
    let lost = matches!(event, Some(HoldEvent::Lost(NotHolder::Released)));
    assert!(lost, "{event:?}");
    assert!(hold.next().await.is_none());
    settle().await;
    assert_at_once(since);
    assert!(unconcerned.next().now_or_never().is_none());
}

/// The message was lost; the next renewal finds out.
#[tokio::test(start_paused = true)]
async fn a_stream_reports_its_eviction_although_the_message_was_lost() {
    let (service, store) = ScriptedStore::service();
    let claim = brief();
    let mut hold = stream_of(&service, Arc::clone(&claim), None);
    acquired(&mut hold).await;
    store.loses_messages();
    let evicted = service.evict(lock_of(&claim).clone(), String::new(), |_| {});
    evicted.await.unwrap();
    let event = hold.next().await;
    let lost = matches!(event, Some(HoldEvent::Lost(NotHolder::Evicted { .. })));
    assert!(lost, "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_when_it_expires_and_not_when_the_store_is_down() {
    let (service, store) = ScriptedStore::service();
    let mut hold = stream_of(&service, brief(), None);
    acquired(&mut hold).await;
    store.goes_down(true);
    sleep(Duration::from_millis(2_500)).await;
    store.goes_down(false);
    let event = hold.next().await;
    assert!(matches!(event, Some(HoldEvent::Renewed(_))), "{event:?}");
    store.goes_down(true);
    let since = Instant::now();
    let event = hold.next().await;
    assert!(
        matches!(event, Some(HoldEvent::Lost(NotHolder::Expired))),
        "{event:?}"
    );
    assert!(since.elapsed() <= Duration::from_millis(3_010));
}

#[tokio::test(start_paused = true)]
async fn a_draining_process_keeps_the_lease_for_its_client() {
    let (service, store) = ScriptedStore::service();
    let claim = brief();
    let mut hold = stream_of(&service, Arc::clone(&claim), None);
    acquired(&mut hold).await;
    let waiting = Arc::new(rival(&claim));
    let mut behind = stream_of(&service, Arc::clone(&waiting), None);
    queued(&mut behind).await;
    service.drain();
    for stream in [hold, behind] {
        let events: Vec<_> = stream.collect().await;
        assert!(matches!(events[..], [HoldEvent::Draining]), "{events:?}");
    }
    settle().await;
    assert!(matches!(
        view(&service, &claim).await.state,
        LockState::Held(_)
    ));
    let service = store.another_service(|_| {});
    let mut hold = stream_of(&service, Arc::clone(&claim), None);
    match hold.next().await {
        Some(HoldEvent::Acquired { replayed, .. }) => assert!(replayed),
        other => panic!("{other:?}"),
    }
    let later = Waiting::queued(&service, &Arc::new(rival(&claim)), LONG_WAIT).await;
    let mut behind = stream_of(&service, waiting, None);
    queued(&mut behind).await;
    drop(hold);
    acquired(&mut behind).await;
    assert!(!later.answer.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_does_not_ask_to_wait_is_refused() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let unwilling = stream_of(&service, Arc::new(rival(&holder)), Some(Duration::ZERO));
    let refused: Vec<_> = unwilling.collect().await;
    assert!(
        matches!(
            refused[..],
            [HoldEvent::Refused(Ok(AcquireOutcome::Refused(
                Refused::Blocked(_)
            )))]
        ),
        "{refused:?}"
    );
    let hold = stream_of(
        &service,
        Arc::new(rival(&holder)),
        Some(Duration::from_secs(2)),
    );
    let events: Vec<_> = hold.collect().await;
    assert!(
        matches!(
            events[..],
            [
                HoldEvent::Queued(_),
                HoldEvent::Refused(Ok(AcquireOutcome::TimedOut(_)))
            ]
        ),
        "{events:?}"
    );
}

/// The client reconnected before the service noticed that its former connection was closed.
#[tokio::test(start_paused = true)]
async fn a_former_stream_does_not_release_what_the_new_one_holds() {
    for min_hold in [None, Some(Duration::from_millis(1))] {
        let (service, _) = ScriptedStore::service();
        let claim = Arc::new(Claim {
            min_hold,
            ..Claim::clone(&brief())
        });
        let mut former = stream_of(&service, Arc::clone(&claim), None);
        acquired(&mut former).await;
        let mut new = stream_of(&service, Arc::clone(&claim), None);
        acquired(&mut new).await;
        drop(former);
        settle().await;
        assert!(matches!(
            view(&service, &claim).await.state,
            LockState::Held(_)
        ));
        drop(new);
        settle().await;
        takes(&service, &Arc::new(rival(&claim))).await;
    }
}

/// Before it has renewed.
#[tokio::test(start_paused = true)]
async fn a_stream_that_takes_over_and_closes_at_once_releases_the_lock() {
    let (service, _) = ScriptedStore::service();
    let claim = brief();
    takes(&service, &claim).await;
    let mut hold = stream_of(&service, Arc::clone(&claim), None);
    acquired(&mut hold).await;
    drop(hold);
    settle().await;
    assert_idle(&service, &claim).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_of_another_kind_takes_the_lease_from_its_stream() {
    for min_hold in [None, Some(Duration::from_millis(1))] {
        let (service, _) = ScriptedStore::service();
        let claim = Arc::new(Claim {
            min_hold,
            ..Claim::clone(&brief())
        });
        let mut hold = stream_of(&service, Arc::clone(&claim), None);
        acquired(&mut hold).await;
        let answer = service.acquire(Arc::clone(&claim), Duration::ZERO).await;
        let answer = answer.unwrap();
        assert_eq!(
            answer.outcome.kind(),
            Some(GrantKind::Replayed),
            "{answer:?}"
        );
        drop(hold);
        settle().await;
        assert!(matches!(
            view(&service, &claim).await.state,
            LockState::Held(_)
        ));
    }
}

/// It may be shorter than the claim's TTL.
#[tokio::test(start_paused = true)]
async fn a_stream_renews_with_the_ttl_of_the_lease_that_it_took_over() {
    let (service, _) = ScriptedStore::service();
    let held = Arc::new(Claim {
        ttl: ttl(Duration::from_millis(600)),
        ..claim()
    });
    takes(&service, &held).await;
    let lasting = Arc::new(Claim {
        ttl: ttl(Duration::from_secs(60)),
        ..Claim::clone(&held)
    });
    let mut hold = stream_of(&service, lasting, None);
    acquired(&mut hold).await;
    for _ in 0..10 {
        let event = hold.next().await;
        assert!(matches!(event, Some(HoldEvent::Renewed(_))), "{event:?}");
    }
}
