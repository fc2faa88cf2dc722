//! Contract tests of events: watching processes get every event of a lock, once, and other processes get none.

use std::collections::HashSet;

use leasehold::domain::{Attempt, EventKind, Fence, LockEvent, LockName};

use crate::support::eventually;
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, assert_held, at_depth, claim, claim_on_all, for_short, fresh_name,
    in_mode, leases_granted, lock_of, names, owned_by, reader, rival,
};
use EventKind::{Acquired, Evicted, Expired, Queued, Released, Renewed};

/// Receives all events from now on.
async fn watch(fixture: &Fixture) {
    fixture.listens().await;
    fixture.store().set_event_delivery(true).await;
}

async fn kinds(fixture: &Fixture, name: &LockName) -> Vec<EventKind> {
    fixture.received().await.kinds_of(name)
}

fn fences(events: &[LockEvent]) -> Vec<Option<Fence>> {
    events.iter().map(|event| event.fence).collect()
}

pub(super) async fn every_change_of_a_lease_is_an_event(fixture: &Fixture) {
    watch(fixture).await;
    let claim = owned_by(&claim(), "pod-7");
    let granted = fixture.granted(&claim).await.holder;
    let renewed = fixture.renewed(&claim, Some(LONG * 2)).await.lease.holder;
    fixture.freed(&claim).await;
    let events = fixture.received().await.events_of(lock_of(&claim));
    let actual: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(actual, [Acquired, Renewed, Released]);
    assert!(events.iter().all(|event| event.owner == claim.owner));
    assert!(
        events
            .iter()
            .all(|event| event.fence == Some(granted.fence))
    );
    assert!(events.is_sorted_by_key(|event| event.at));
    fixture.assert_same_time(events[0].at, granted.acquired_at);
    for (event, lease) in events.iter().zip([&granted, &renewed]) {
        let expires_at = event.expires_at.expect("the lease has an end");
        fixture.assert_same_time(expires_at, lease.expires_at);
    }
}

pub(super) async fn what_changes_nothing_for_others_is_no_event(fixture: &Fixture) {
    watch(fixture).await;
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.acquire(&claim).await;
    fixture.acquire(&at_depth(&claim, 2)).await;
    fixture.step_back(&claim, 1).await;
    assert_held(&fixture.acquire(&rival(&claim)).await);
    fixture.release(&rival(&claim)).await;
    fixture.renew(&rival(&claim)).await;
    fixture.state(lock_of(&claim)).await;
    assert_eq!(kinds(fixture, lock_of(&claim)).await, [Acquired]);
}

pub(super) async fn an_eviction_is_an_event(fixture: &Fixture) {
    watch(fixture).await;
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.evict(lock_of(&claim), "stuck").await;
    fixture.evict(lock_of(&claim), "stuck").await;
    assert_eq!(kinds(fixture, lock_of(&claim)).await, [Acquired, Evicted]);
}

pub(super) async fn an_expiry_is_published_once_by_the_request_that_finds_it(fixture: &Fixture) {
    watch(fixture).await;
    let [inspected, overtaken] = [claim(), claim()].map(|claim| for_short(&claim));
    fixture.granted(&inspected).await;
    let lost = fixture.granted(&overtaken).await.holder.fence;
    fixture.outlast(SHORT).await;
    for _ in 0..2 {
        fixture.state(lock_of(&inspected)).await;
    }
    fixture.renew(&inspected).await;
    let successor = fixture.granted(&rival(&overtaken)).await.holder.fence;
    fixture.state(lock_of(&overtaken)).await;
    let actual = kinds(fixture, lock_of(&inspected)).await;
    assert_eq!(actual, [Acquired, Expired]);
    let events = fixture.received().await.events_of(lock_of(&overtaken));
    let actual: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(actual, [Acquired, Expired, Acquired]);
    let expected = [lost, lost, successor].map(Some);
    assert_eq!(fences(&events), expected);
}

pub(super) async fn an_expiry_that_was_published_is_not_repeated_by_the_next_grant(
    fixture: &Fixture,
) {
    watch(fixture).await;
    let lapsing = for_short(&claim());
    fixture.granted(&lapsing).await;
    fixture.outlast(SHORT).await;
    fixture.state(lock_of(&lapsing)).await;
    fixture.granted(&rival(&lapsing)).await;
    let actual = kinds(fixture, lock_of(&lapsing)).await;
    assert_eq!(actual, [Acquired, Expired, Acquired]);
}

pub(super) async fn a_new_place_in_the_queue_is_one_event(fixture: &Fixture) {
    watch(fixture).await;
    let holding = claim();
    fixture.granted(&holding).await;
    let mut waiter = fixture.waiting(&owned_by(&rival(&holding), "pod-8")).await;
    fixture.still_waits(&mut waiter).await;
    fixture.suspend(&waiter.claim, LONG).await;
    fixture.still_waits(&mut waiter.again()).await;
    fixture.freed(&holding).await;
    fixture.granted_after_wait(&mut waiter).await;
    let events = fixture.received().await.events_of(lock_of(&holding));
    let actual: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(actual, [Acquired, Queued, Released, Acquired, Released]);
    assert_eq!(events[1].owner, waiter.claim.owner);
    assert_eq!((events[1].fence, events[1].expires_at), (None, None));
}

pub(super) async fn a_new_place_in_several_queues_is_an_event_of_each(fixture: &Fixture) {
    watch(fixture).await;
    let locks = [fresh_name(), fresh_name(), fresh_name()];
    let holding = claim_on_all(names(&locks));
    fixture.all_granted(&holding).await;
    let mut waiter = fixture.waiting(&rival(&holding)).await;
    fixture.still_waits(&mut waiter).await;
    fixture.still_waits(&mut waiter.again()).await;
    for lock in &locks {
        assert_eq!(kinds(fixture, lock).await, [Acquired, Queued]);
    }
}

pub(super) async fn each_of_several_holders_has_its_events(fixture: &Fixture) {
    watch(fixture).await;
    let first = in_mode(&claim(), READ);
    let (second, lapsing) = (reader(&first), for_short(&reader(&first)));
    let mut leases = Vec::new();
    for reader in [&first, &second, &lapsing] {
        leases.push(fixture.granted(reader).await.holder.fence);
    }
    fixture.freed(&first).await;
    fixture.outlast(SHORT).await;
    fixture.evict(lock_of(&first), "").await;
    let events = fixture.received().await.events_of(lock_of(&first));
    for (fence, end) in leases.iter().zip([Released, Evicted, Expired]) {
        let about = events.iter().filter(|event| event.fence == Some(*fence));
        let actual: Vec<_> = about
            .map(|event| (event.kind, event.expires_at.is_some()))
            .collect();
        assert_eq!(actual, [(Acquired, true), (end, false)]);
    }
    assert_eq!(events.len(), 6);
}

pub(super) async fn each_of_several_locks_has_its_events(fixture: &Fixture) {
    watch(fixture).await;
    let locks = [fresh_name(), fresh_name()];
    let claim = claim_on_all(names(&locks));
    fixture.all_granted(&claim).await;
    fixture.renew(&claim).await;
    fixture.release_all(&claim).await;
    for lock in &locks {
        assert_eq!(kinds(fixture, lock).await, [Acquired, Renewed, Released]);
    }
}

pub(super) async fn a_withdrawn_grant_is_published_as_released(fixture: &Fixture) {
    watch(fixture).await;
    let (claim, attempt) = (claim(), Attempt::random());
    leases_granted(fixture.attempt(&claim, attempt).await.expect("it answers"));
    fixture.withdraw(&claim, attempt).await;
    assert_eq!(kinds(fixture, lock_of(&claim)).await, [Acquired, Released]);
}

pub(super) async fn no_two_events_have_the_same_id(fixture: &Fixture) {
    watch(fixture).await;
    let locks: Vec<_> = (0..20).map(|_| fresh_name()).collect();
    for _ in 0..5 {
        let claim = claim_on_all(names(&locks));
        fixture.all_granted(&claim).await;
        fixture.release_all(&claim).await;
    }
    let listener = fixture.received().await;
    let events = locks.iter().flat_map(|lock| listener.events_of(lock));
    let ids: Vec<_> = events.map(|event| event.id).collect();
    assert_eq!(ids.len(), 20 * 5 * 2);
    let different: HashSet<_> = ids.iter().collect();
    assert_eq!(different.len(), ids.len());
}

pub(super) async fn a_process_without_watchers_receives_no_events(fixture: &Fixture) {
    fixture.listens().await;
    let [before, during] = [claim(), claim()];
    fixture.granted(&before).await;
    watch(fixture).await;
    fixture.granted(&during).await;
    assert_eq!(kinds(fixture, lock_of(&during)).await, [Acquired]);
    assert_eq!(kinds(fixture, lock_of(&before)).await, []);
    fixture.store().set_event_delivery(false).await;
    // The end of the delivery may take a moment.
    eventually("no event arrives any more", async || {
        let after = claim();
        fixture.granted(&after).await;
        let actual = kinds(fixture, lock_of(&after)).await;
        actual.is_empty().then_some(())
    })
    .await;
}
