//! A request of a claim that holds its lock already, where a node lacks the lease: the node gets it as the others have it, and
//! not as this request asks.

use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, GrantKind, Granted, HoldCount, RenewOptions, Renewal, Renewed,
    Rollback, RollbackRight,
};
use leasehold::store::{LockStore, StoreError};

use super::nodes::{Process, stores};
use crate::support::fixture::{
    LONG, SHORT, at_depth, claim, deadline, in_mode, only, owned_by, permits, rival, ttl,
};
use crate::support::scripted_store::Behavior;

const MOST: Duration = Duration::from_secs(40);

/// A claim with all options.
fn limited(claim: &Claim) -> Claim {
    Claim {
        min_hold: Some(LONG / 4),
        max_hold: Some(MOST),
        lock_delay: Some(SHORT),
        ..owned_by(claim, "the first")
    }
}

/// The same claim, by a request that asks for something else.
fn asks_otherwise(claim: &Claim, hold_count: u64) -> Claim {
    Claim {
        ttl: ttl(LONG / 2),
        min_hold: Some(LONG / 2),
        max_hold: Some(MOST * 10),
        lock_delay: None,
        ..at_depth(&owned_by(claim, "another"), hold_count)
    }
}

fn granted(answer: Result<Acquired, StoreError>) -> Granted {
    match answer.expect("a majority answers") {
        Acquired::Granted(granted) => granted,
        other => panic!("nobody else wants the lock, but: {other:?}"),
    }
}

impl Process {
    /// What a node has of the lease; none if it lacks it.
    async fn has(&self, node: usize, claim: &Claim) -> Option<Renewal> {
        let options = RenewOptions {
            rollback_right: RollbackRight::AsBefore,
            ..RenewOptions::default()
        };
        let store = &self.nodes[node].store;
        let renewed = store.renew(&claim.names, claim.token, options, deadline());
        match renewed.await.expect("the node answers") {
            Renewed::Extended(renewals) => Some(only(renewals)),
            Renewed::NotHolder(_) => None,
            mismatched @ Renewed::Mismatched(_) => panic!("it changes nothing: {mismatched:?}"),
        }
    }

    /// Takes the lease away from a node, which remembers no end.
    async fn forgets(&self, node: usize, claim: &Claim) {
        while let Some(lease) = self.has(node, claim).await {
            let attempt = lease.withdrawable_by.expect("no renewal has made it final");
            let store = &self.nodes[node].store;
            let undone = store.withdraw(claim, attempt, Rollback::Undo, deadline());
            undone.await.expect("the node answers");
        }
    }

    /// Whether each node has the lease as it was granted to the first request, but so deep.
    async fn have_it_as_first_granted(&self, claim: &Claim, hold_count: HoldCount, age: Duration) {
        for node in 0..self.nodes.len() {
            let has = self.has(node, claim).await.expect("it holds the lock");
            let holder = &has.lease.holder;
            assert_eq!(has.lease.ttl, claim.ttl);
            assert_eq!(
                (&holder.owner, holder.hold_count),
                (&claim.owner, hold_count)
            );
            let left = has.options.max_hold_left.expect("it has a limit");
            assert!(left <= MOST - age && left > MOST - age - SHORT, "{left:?}");
            let left = has.options.min_hold_left.expect("it has a limit");
            assert!(left <= LONG / 4 - age, "{left:?}");
            assert_eq!(has.options.lock_delay, claim.lock_delay);
        }
    }
}

fn claims() -> [Claim; 2] {
    [
        limited(&claim()),
        limited(&in_mode(&claim(), permits(2, 3))),
    ]
}

/// Else a majority would have it beyond its `max_hold`.
#[tokio::test(start_paused = true)]
async fn nodes_that_lose_a_lease_one_after_the_other_get_it_back_as_it_was() {
    for (claim, deepens) in claims()
        .into_iter()
        .flat_map(|it| [(it.clone(), 0), (it, 1)])
    {
        let process = Process::alone();
        let first = process.fixture.granted(&claim).await;
        for node in 0..3 {
            process.fixture.advance(SHORT).await;
            process.forgets(node, &claim).await;
            let asks = asks_otherwise(&claim, 1 + deepens * (node as u64 + 1));
            let again = granted(process.acquire(&asks).await);
            assert_ne!(again.kind, GrantKind::New);
            assert_eq!(only(again.leases).holder.fence, first.holder.fence);
            process.settled().await;
        }
        let hold_count = HoldCount::new(1 + deepens * 3).expect("it is small");
        process
            .have_it_as_first_granted(&claim, hold_count, SHORT * 3)
            .await;
        process.fixture.advance(MOST).await;
        process.fixture.granted(&rival(&claim)).await;
    }
}

/// It answers after the others have decided, or not at all.
#[tokio::test(start_paused = true)]
async fn a_node_whose_answer_is_late_or_lost_gets_the_lease_back_as_it_was() {
    for behavior in [
        Behavior::Late(SHORT / 2),
        Behavior::Delayed(SHORT / 2),
        Behavior::Lost,
    ] {
        for claim in claims() {
            let process = Process::alone();
            process.fixture.granted(&claim).await;
            process.fixture.advance(SHORT).await;
            process.forgets(2, &claim).await;
            process.behaves(&[2], &behavior);
            granted(process.acquire(&asks_otherwise(&claim, 1)).await);
            process.behaves(&[2], &Behavior::Answered);
            process.settled().await;
            process
                .have_it_as_first_granted(&claim, HoldCount::ONE, SHORT)
                .await;
        }
    }
}

/// Its proposal is larger than the token of the lease.
#[tokio::test(start_paused = true)]
async fn a_node_that_lacks_a_lease_does_not_change_its_token() {
    let process = Process::on(&stores(&[Duration::ZERO, SHORT, LONG * 10]));
    let claim = claim();
    process.without(&[2]);
    let first = process.fixture.granted(&claim).await;
    process.settled().await;
    process.without(&[]);
    let again = granted(process.acquire(&claim).await);
    assert_eq!(only(again.leases).holder.fence, first.holder.fence);
    process.settled().await;
    assert_eq!(
        process.fences_at_nodes(&claim).await,
        [first.holder.fence.get(); 3]
    );
}

/// Its process has taken it over where the others had it, and got it there under another name.
#[tokio::test(start_paused = true)]
async fn a_stream_that_closes_releases_the_lease_also_where_it_was_lacking() {
    let process = Process::alone();
    let claim = Claim {
        takes_over: true,
        ..claim()
    };
    let streams = [(); 2].map(|()| Attempt::random());
    for (stream, lacks) in streams.into_iter().zip([None, Some(1)]) {
        if let Some(node) = lacks {
            process.forgets(node, &claim).await;
        }
        granted(process.fixture.attempt(&claim, stream).await);
        process.settled().await;
    }
    assert_eq!(process.held_at(&claim).await, [0, 1, 2]);
    process.fixture.close(&claim, streams[0]).await;
    process.settled().await;
    assert_eq!(process.held_at(&claim).await, [0, 1, 2]);
    process.fixture.close(&claim, streams[1]).await;
    process.settled().await;
    assert!(process.held_at(&claim).await.is_empty());
}

/// It refuses the attempt that may roll the lease back at the others, because it has rolled it back.
#[tokio::test(start_paused = true)]
async fn a_node_that_loses_a_lease_twice_gets_it_back_with_the_next_renewal() {
    let process = Process::alone();
    let (claim, stream) = (claim(), Attempt::random());
    granted(process.acquire(&claim).await);
    process.forgets(1, &claim).await;
    granted(process.fixture.attempt(&claim, stream).await);
    process.settled().await;
    process.forgets(1, &claim).await;
    process.renew_as_before(&claim).await;
    process.settled().await;
    assert_eq!(process.held_at(&claim).await, [0, 1, 2]);
    process.fixture.close(&claim, stream).await;
    process.settled().await;
    assert!(process.held_at(&claim).await.is_empty());
}
