//! Laws of events: those who watch are told everything that happens to a lock, once, and others nothing.

use std::collections::HashSet;

use leasehold::domain::{Attempt, EventKind, Fence, LockEvent, LockName};

use crate::support::bench::{
    Bench, LONG, READ, SHORT, assert_held, at_depth, claim, claim_on_all, for_short, fresh_name,
    in_mode, leases_granted, lock_of, names, owned_by, reader, rival,
};
use crate::support::eventually;
use EventKind::{Acquired, Evicted, Expired, Queued, Released, Renewed};

/// Hears of everything from now on.
async fn watch(bench: &Bench) {
    bench.listens().await;
    bench.store().want_events(true).await;
}

async fn kinds(bench: &Bench, name: &LockName) -> Vec<EventKind> {
    bench.heard().await.kinds_of(name)
}

fn fences(events: &[LockEvent]) -> Vec<Option<Fence>> {
    events.iter().map(|event| event.fence).collect()
}

pub(super) async fn the_life_of_a_lease_is_told(bench: &Bench) {
    watch(bench).await;
    let claim = owned_by(&claim(), "pod-7");
    let granted = bench.granted(&claim).await.holder;
    let renewed = bench.renewed(&claim, Some(LONG * 2)).await.lease.holder;
    bench.freed(&claim).await;
    let events = bench.heard().await.events_of(lock_of(&claim));
    let told: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(told, [Acquired, Renewed, Released]);
    assert!(events.iter().all(|event| event.owner == claim.owner));
    assert!(
        events
            .iter()
            .all(|event| event.fence == Some(granted.fence))
    );
    assert!(events.is_sorted_by_key(|event| event.at));
    assert_eq!(events[0].at, granted.acquired_at);
    assert_eq!(events[0].expires_at, Some(granted.expires_at));
    assert_eq!(events[1].expires_at, Some(renewed.expires_at));
}

pub(super) async fn what_changes_nothing_for_others_is_not_told(bench: &Bench) {
    watch(bench).await;
    let claim = claim();
    bench.granted(&claim).await;
    bench.acquire(&claim).await;
    bench.acquire(&at_depth(&claim, 2)).await;
    bench.step_back(&claim, 1).await;
    assert_held(&bench.acquire(&rival(&claim)).await);
    bench.release(&rival(&claim)).await;
    bench.renew(&rival(&claim)).await;
    bench.state(lock_of(&claim)).await;
    assert_eq!(kinds(bench, lock_of(&claim)).await, [Acquired]);
}

pub(super) async fn an_eviction_is_told(bench: &Bench) {
    watch(bench).await;
    let claim = claim();
    bench.granted(&claim).await;
    bench.evict(lock_of(&claim), "stuck").await;
    bench.evict(lock_of(&claim), "stuck").await;
    assert_eq!(kinds(bench, lock_of(&claim)).await, [Acquired, Evicted]);
}

pub(super) async fn an_expiry_is_told_once_by_whoever_finds_out(bench: &Bench) {
    watch(bench).await;
    let [inspected, overtaken] = [claim(), claim()].map(|claim| for_short(&claim));
    bench.granted(&inspected).await;
    let lost = bench.granted(&overtaken).await.holder.fence;
    bench.outlast(SHORT).await;
    for _ in 0..2 {
        bench.state(lock_of(&inspected)).await;
    }
    bench.renew(&inspected).await;
    let successor = bench.granted(&rival(&overtaken)).await.holder.fence;
    bench.state(lock_of(&overtaken)).await;
    let told = kinds(bench, lock_of(&inspected)).await;
    assert_eq!(told, [Acquired, Expired]);
    let events = bench.heard().await.events_of(lock_of(&overtaken));
    let told: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(told, [Acquired, Expired, Acquired]);
    let expected = [lost, lost, successor].map(Some);
    assert_eq!(fences(&events), expected);
}

pub(super) async fn an_expiry_that_was_seen_is_not_told_again_with_the_next_grant(bench: &Bench) {
    watch(bench).await;
    let lapsing = for_short(&claim());
    bench.granted(&lapsing).await;
    bench.outlast(SHORT).await;
    bench.state(lock_of(&lapsing)).await;
    bench.granted(&rival(&lapsing)).await;
    let told = kinds(bench, lock_of(&lapsing)).await;
    assert_eq!(told, [Acquired, Expired, Acquired]);
}

pub(super) async fn a_new_place_in_the_queue_is_told_once(bench: &Bench) {
    watch(bench).await;
    let holding = claim();
    bench.granted(&holding).await;
    let mut waiter = bench.waiting(&owned_by(&rival(&holding), "pod-8")).await;
    bench.waits(&mut waiter).await;
    bench.park(&waiter.claim, LONG).await;
    bench.waits(&mut waiter.again()).await;
    bench.freed(&holding).await;
    bench.served(&mut waiter).await;
    let events = bench.heard().await.events_of(lock_of(&holding));
    let told: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(told, [Acquired, Queued, Released, Acquired, Released]);
    assert_eq!(events[1].owner, waiter.claim.owner);
    assert_eq!((events[1].fence, events[1].expires_at), (None, None));
}

pub(super) async fn each_of_several_holders_is_told_of(bench: &Bench) {
    watch(bench).await;
    let first = in_mode(&claim(), READ);
    let (second, lapsing) = (reader(&first), for_short(&reader(&first)));
    let mut leases = Vec::new();
    for reader in [&first, &second, &lapsing] {
        leases.push(bench.granted(reader).await.holder.fence);
    }
    bench.freed(&first).await;
    bench.outlast(SHORT).await;
    bench.evict(lock_of(&first), "").await;
    let events = bench.heard().await.events_of(lock_of(&first));
    for (fence, end) in leases.iter().zip([Released, Evicted, Expired]) {
        let about = events.iter().filter(|event| event.fence == Some(*fence));
        let told: Vec<_> = about
            .map(|event| (event.kind, event.expires_at.is_some()))
            .collect();
        assert_eq!(told, [(Acquired, true), (end, false)]);
    }
    assert_eq!(events.len(), 6);
}

pub(super) async fn each_of_several_locks_is_told_of(bench: &Bench) {
    watch(bench).await;
    let locks = [fresh_name(), fresh_name()];
    let claim = claim_on_all(names(&locks));
    bench.all_granted(&claim).await;
    bench.renew(&claim).await;
    bench.release_all(&claim).await;
    for lock in &locks {
        assert_eq!(kinds(bench, lock).await, [Acquired, Renewed, Released]);
    }
}

pub(super) async fn a_grant_that_was_withdrawn_is_told_as_released(bench: &Bench) {
    watch(bench).await;
    let (claim, attempt) = (claim(), Attempt::random());
    leases_granted(bench.attempt(&claim, attempt).await.expect("it answers"));
    bench.withdraw(&claim, attempt).await;
    assert_eq!(kinds(bench, lock_of(&claim)).await, [Acquired, Released]);
}

pub(super) async fn no_two_events_have_the_same_id(bench: &Bench) {
    watch(bench).await;
    let locks: Vec<_> = (0..20).map(|_| fresh_name()).collect();
    for _ in 0..5 {
        let claim = claim_on_all(names(&locks));
        bench.all_granted(&claim).await;
        bench.release_all(&claim).await;
    }
    let ear = bench.heard().await;
    let events = locks.iter().flat_map(|lock| ear.events_of(lock));
    let ids: Vec<_> = events.map(|event| event.id).collect();
    assert_eq!(ids.len(), 20 * 5 * 2);
    let different: HashSet<_> = ids.iter().collect();
    assert_eq!(different.len(), ids.len());
}

pub(super) async fn nothing_is_told_to_who_does_not_want_to_hear(bench: &Bench) {
    bench.listens().await;
    let [before, during] = [claim(), claim()];
    bench.granted(&before).await;
    watch(bench).await;
    bench.granted(&during).await;
    assert_eq!(kinds(bench, lock_of(&during)).await, [Acquired]);
    assert_eq!(kinds(bench, lock_of(&before)).await, []);
    bench.store().want_events(false).await;
    // It may take a moment to stop to hear.
    eventually("nothing is told any more", async || {
        let after = claim();
        bench.granted(&after).await;
        let told = kinds(bench, lock_of(&after)).await;
        told.is_empty().then_some(())
    })
    .await;
}
