//! Watching the events of locks.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::domain::{EventKind, LockName};
use leasehold::service::{LockService, Scope, Watch, WatchEvent};
use leasehold::store::LockStore as _;
use tokio::time::{Instant, sleep, timeout};

use super::{held, releases, settle, takes};
use crate::support::fixture::{LONG, claim, claim_on, for_short, fresh_name, lock_of, name};
use crate::support::scripted_store::{Operation, ScriptedStore};
use crate::support::stores::OPERATION_TIMEOUT;

fn everything() -> Scope {
    Scope::Prefix(String::new())
}

async fn watch(service: &LockService, scope: Scope, after: Option<&str>) -> Watch {
    service.watch(scope, after.map(str::to_owned)).await
}

/// The next event, and its id.
async fn next(watch: &mut Watch) -> (EventKind, LockName, String) {
    let next = timeout(LONG * 10, watch.next()).await;
    match next.expect("something happens") {
        Some(WatchEvent::Event(event)) => (event.kind, event.name.clone(), event.id.clone()),
        other => panic!("{other:?}"),
    }
}

/// How often this was asked of the store.
fn count_of(store: &ScriptedStore, operation: Operation) -> usize {
    let operations = store.operations().into_iter();
    operations.filter(|it| *it == operation).count()
}

async fn reset(watch: &mut Watch) {
    assert_eq!(watch.next().await, Some(WatchEvent::Reset));
}

async fn assert_quiet(watch: &mut Watch) {
    let event = timeout(Duration::from_secs(1), watch.next()).await;
    assert!(event.is_err(), "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watcher_gets_the_events_within_its_scope() {
    let (service, _) = ScriptedStore::service();
    let (a, b) = (
        Arc::new(claim_on(&name("orders/1"))),
        Arc::new(claim_on(&name("other"))),
    );
    let mut all = watch(&service, everything(), None).await;
    let mut orders = watch(&service, Scope::Prefix("orders/".to_owned()), None).await;
    let mut one = watch(&service, Scope::Lock(lock_of(&b).clone()), None).await;
    takes(&service, &a).await;
    takes(&service, &b).await;
    releases(&service, &a).await;
    for kind in [EventKind::Acquired, EventKind::Released] {
        let (actual, name, _) = next(&mut orders).await;
        assert_eq!((actual, &name), (kind, lock_of(&a)));
    }
    let (kind, name, _) = next(&mut one).await;
    assert_eq!((kind, &name), (EventKind::Acquired, lock_of(&b)));
    for _ in 0..3 {
        next(&mut all).await;
    }
    for watch in [&mut all, &mut orders, &mut one] {
        assert_quiet(watch).await;
    }
}

/// There may be 200 watchers. Earlier versions encoded each event once per watcher.
#[tokio::test(start_paused = true)]
async fn all_watchers_share_the_text_of_an_event() {
    let (service, _) = ScriptedStore::service();
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(watch(&service, everything(), None).await);
    }
    held(&service).await;
    let (mut texts, mut written) = (Vec::new(), 0);
    for watch in &mut watches {
        let Some(WatchEvent::Event(event)) = watch.next().await else {
            panic!("nothing happened");
        };
        texts.push(event.text(|event| {
            written += 1;
            event.id.clone()
        }));
    }
    assert_eq!(written, 1);
    assert!(texts.iter().all(|text| Arc::ptr_eq(text, &texts[0])));
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_reconnects_continues_after_the_event_it_names() {
    let (service, _) = ScriptedStore::service();
    let mut first = watch(&service, everything(), None).await;
    let mut id = String::new();
    for _ in 0..3 {
        held(&service).await;
        (_, _, id) = next(&mut first).await;
    }
    drop(first);
    let missed = held(&service).await;
    sleep(Duration::from_secs(30)).await;
    let mut back = watch(&service, everything(), Some(&id)).await;
    assert_eq!(&next(&mut back).await.1, lock_of(&missed));
    let mut strange = watch(&service, everything(), Some("no such event")).await;
    reset(&mut strange).await;
    assert_quiet(&mut strange).await;
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_falls_behind_or_may_have_missed_events_is_reset() {
    let (service, store) = ScriptedStore::service();
    let mut slow = watch(&service, everything(), None).await;
    for _ in 0..10 {
        held(&service).await;
    }
    for _ in 0..10 {
        next(&mut slow).await;
    }
    for _ in 0..11 {
        held(&service).await;
    }
    reset(&mut slow).await;
    assert_quiet(&mut slow).await;
    let before = held(&service).await;
    store.listener().events_lost();
    let after = held(&service).await;
    assert_eq!(&next(&mut slow).await.1, lock_of(&before));
    reset(&mut slow).await;
    assert_eq!(&next(&mut slow).await.1, lock_of(&after));
}

#[tokio::test(start_paused = true)]
async fn events_are_delivered_only_while_there_are_watchers_and_for_a_minute_after() {
    let (service, store) = ScriptedStore::service();
    let deliveries = || store.event_deliveries.lock().unwrap().clone();
    let first = watch(&service, everything(), None).await;
    let second = watch(&service, everything(), None).await;
    held(&service).await;
    drop(first);
    sleep(Duration::from_secs(70)).await;
    assert_eq!(deliveries(), [true], "one watcher is left");
    drop(second);
    sleep(Duration::from_secs(50)).await;
    let third = watch(&service, everything(), None).await;
    sleep(Duration::from_secs(70)).await;
    assert_eq!(deliveries(), [true], "another watcher came in time");
    drop(third);
    sleep(Duration::from_secs(61)).await;
    assert_eq!(deliveries(), [true, false]);
    let _fourth = watch(&service, everything(), None).await;
    assert_eq!(deliveries(), [true, false, true]);
}

/// Stores emit nothing on expiry, so the service must inspect the lock.
#[tokio::test(start_paused = true)]
async fn an_expiry_is_reported_at_once() {
    let (service, _) = ScriptedStore::service();
    let before = Arc::new(for_short(&claim()));
    takes(&service, &before).await;
    let mut watch = watch(&service, everything(), None).await;
    settle().await;
    let during = Arc::new(for_short(&claim()));
    takes(&service, &during).await;
    let since = Instant::now();
    assert_eq!(next(&mut watch).await.0, EventKind::Acquired);
    for lost in [&before, &during] {
        let (kind, name, _) = next(&mut watch).await;
        assert_eq!((kind, &name), (EventKind::Expired, lock_of(lost)));
    }
    assert!(since.elapsed() <= Duration::from_millis(540));
}

/// The listing has several pages.
#[tokio::test(start_paused = true)]
async fn the_expiry_of_very_many_earlier_leases_is_reported() {
    const MANY: usize = 2_100;
    let (service, _) = ScriptedStore::service_with(|config| config.events_kept = 10_000);
    for number in 0..MANY {
        let lapsing = for_short(&claim_on(&name(&format!("many/{number}"))));
        takes(&service, &Arc::new(lapsing)).await;
    }
    let mut watch = watch(&service, everything(), None).await;
    for _ in 0..MANY {
        assert_eq!(next(&mut watch).await.0, EventKind::Expired);
    }
}

#[tokio::test(start_paused = true)]
async fn the_expiry_of_a_lease_that_began_in_a_gap_is_reported() {
    let (service, store) = ScriptedStore::service();
    let mut watch = watch(&service, everything(), None).await;
    settle().await;
    // Until the next listing is allowed.
    sleep(Duration::from_secs(10)).await;
    store.store.set_event_delivery(false).await;
    let unseen = Arc::new(claim());
    takes(&service, &unseen).await;
    store.store.set_event_delivery(true).await;
    store.listener().events_lost();
    reset(&mut watch).await;
    let since = Instant::now();
    let (kind, name, _) = next(&mut watch).await;
    assert_eq!((kind, &name), (EventKind::Expired, lock_of(&unseen)));
    assert!(since.elapsed() <= LONG + Duration::from_millis(40));
}

#[tokio::test(start_paused = true)]
async fn an_expiry_while_the_store_was_down_is_reported_soon_after() {
    let (service, store) = ScriptedStore::service();
    let mut watch = watch(&service, everything(), None).await;
    let lapsing = Arc::new(for_short(&claim()));
    takes(&service, &lapsing).await;
    assert_eq!(next(&mut watch).await.0, EventKind::Acquired);
    store.goes_down(true);
    sleep(Duration::from_secs(5)).await;
    store.goes_down(false);
    let since = Instant::now();
    assert_eq!(next(&mut watch).await.0, EventKind::Expired);
    assert!(since.elapsed() <= Duration::from_millis(1_100));
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_is_not_reported_as_expired_before_its_new_end() {
    let (service, store) = ScriptedStore::service();
    let claim = Arc::new(for_short(&claim()));
    let mut watch = watch(&service, everything(), None).await;
    takes(&service, &claim).await;
    let change = leasehold::domain::RenewOptions {
        ttl: Some(crate::support::fixture::ttl(LONG)),
        ..leasehold::domain::RenewOptions::default()
    };
    let renewed = service.renew(claim.names.clone(), claim.token, change);
    renewed.await.unwrap();
    assert_eq!(next(&mut watch).await.0, EventKind::Acquired);
    assert_eq!(next(&mut watch).await.0, EventKind::Renewed);
    let since = Instant::now();
    assert_eq!(next(&mut watch).await.0, EventKind::Expired);
    assert!(since.elapsed() >= LONG);
    assert_eq!(count_of(&store, Operation::Inspect), 1, "at its new end");
}

/// Each lease costs the store an inspection at its end.
#[tokio::test(start_paused = true)]
async fn an_expiry_is_reported_although_an_earlier_lease_lasts_longer_and_while_somebody_watches() {
    let (service, store) = ScriptedStore::service();
    let mut watch = watch(&service, everything(), None).await;
    settle().await;
    held(&service).await;
    let lapsing = Arc::new(for_short(&claim()));
    takes(&service, &lapsing).await;
    let since = Instant::now();
    for kind in [EventKind::Acquired, EventKind::Acquired, EventKind::Expired] {
        assert_eq!(next(&mut watch).await.0, kind);
    }
    assert!(since.elapsed() <= Duration::from_millis(540));
    assert_eq!(count_of(&store, Operation::Inspect), 1);
    drop(watch);
    sleep(LONG * 2).await;
    assert_eq!(count_of(&store, Operation::Inspect), 1, "nobody watches");
}

/// For a listing, the store reads every lock.
#[tokio::test(start_paused = true)]
async fn locks_are_listed_for_the_first_of_their_watchers_and_not_often() {
    let (service, store) = ScriptedStore::service();
    let listings = || count_of(&store, Operation::List);
    let mut watching = Vec::new();
    let mut watches = async |prefix: &str| {
        let scope = Scope::Prefix(prefix.to_owned());
        watching.push(watch(&service, scope, None).await);
    };
    for prefix in ["orders/", "orders/", "orders/1", "other/"] {
        watches(prefix).await;
    }
    sleep(Duration::from_secs(9)).await;
    assert_eq!(listings(), 1);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(listings(), 2);
    for prefix in ["orders/", "other/2", "others"] {
        watches(prefix).await;
    }
    sleep(Duration::from_secs(60)).await;
    assert_eq!(listings(), 3, "one of them has not been watched");
}

/// Those who wait for the end of a request wait for no longer.
#[tokio::test(start_paused = true)]
async fn a_listing_and_an_eviction_have_the_time_of_the_longest_operation() {
    let (service, store) = ScriptedStore::service();
    let longest = Some(service.longest_operation());
    assert!(longest > Some(OPERATION_TIMEOUT));
    let _watch = watch(&service, everything(), None).await;
    settle().await;
    assert_eq!(store.longest(), longest);
    sleep(Duration::from_secs(1)).await;
    let evicting = service.evict(fresh_name(), String::new(), |_| {});
    evicting.await.unwrap();
    assert_eq!(store.longest(), longest);
}

#[tokio::test(start_paused = true)]
async fn a_draining_process_ends_the_streams_of_events() {
    let (service, _) = ScriptedStore::service();
    let mut watch = watch(&service, everything(), None).await;
    service.drain();
    assert_eq!(watch.next().await, None);
}

/// Each read wakes a task and writes to a socket. A hundred watchers once did so for each event.
#[tokio::test(start_paused = true)]
async fn watchers_read_together_what_happens_in_quick_succession() {
    const WATCHERS: usize = 100;
    const EVENTS: usize = 200;
    let (service, _) = ScriptedStore::service();
    let mut watching = Vec::new();
    for _ in 0..WATCHERS {
        let watch = watch(&service, everything(), None).await;
        watching.push(tokio::spawn(async move {
            let mut reads = watch.ready_chunks(EVENTS);
            let (mut read, mut events) = (0, 0);
            while events < EVENTS {
                events += reads.next().await.expect("more happens").len();
                read += 1;
            }
            read
        }));
    }
    for _ in 0..EVENTS {
        held(&service).await;
        sleep(Duration::from_millis(10)).await;
    }
    let mut reads = 0;
    for watcher in watching {
        reads += watcher.await.expect("no watcher panics");
    }
    assert!(reads < WATCHERS * EVENTS / 2, "{reads} reads");
}
