//! A request of a claim that holds its lock already, where a node lacks the lease: the node gets it as the others have it, and
//! not as this request asks.

use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, GrantKind, Granted, HoldCount, RenewOptions, Renewal, Renewed,
    Rollback, RollbackRight,
};
use leasehold::store::assignment::{AssignFences, Assigned, FenceChange};
use leasehold::store::{LockStore, StoreError};
use tokio::time::{Instant, sleep};

use super::nodes::{Process, plain_stores, stores, unreachable};
use crate::support::fixture::{
    LONG, SHORT, at_depth, claim, deadline, in_mode, only, owned_by, permits, rival, ttl,
};
use crate::support::scripted_store::Behavior;

pub(super) const MOST: Duration = Duration::from_secs(40);

/// A claim with all options.
pub(super) fn limited(claim: &Claim) -> Claim {
    Claim {
        min_hold: Some(LONG / 4),
        max_hold: Some(MOST),
        lock_delay: Some(SHORT),
        ..owned_by(claim, "the first")
    }
}

/// The same claim, by a request that asks for something else.
pub(super) fn asks_otherwise(claim: &Claim, hold_count: u64) -> Claim {
    Claim {
        ttl: ttl(LONG / 2),
        min_hold: Some(LONG / 2),
        max_hold: Some(MOST * 10),
        lock_delay: None,
        ..at_depth(&owned_by(claim, "another"), hold_count)
    }
}

pub(super) fn granted(answer: Result<Acquired, StoreError>) -> Granted {
    match answer.expect("a majority answers") {
        Acquired::Granted(granted) => granted,
        other => panic!("nobody else wants the lock, but: {other:?}"),
    }
}

impl Process {
    /// What a node has of the lease; none if it lacks it.
    pub(super) async fn has(&self, node: usize, claim: &Claim) -> Option<Renewal> {
        let options = RenewOptions::AS_BEFORE;
        let store = &self.nodes[node].store;
        let renewed = store.renew(&claim.names, claim.token, options, deadline());
        match renewed.await.expect("the node answers") {
            Renewed::Extended(renewals) => Some(only(renewals)),
            Renewed::NotHolder(_) => None,
            mismatched @ Renewed::Mismatched(_) => panic!("it changes nothing: {mismatched:?}"),
        }
    }

    /// Takes the lease away from a node, which remembers no end.
    pub(super) async fn forgets(&self, node: usize, claim: &Claim) {
        while let Some(lease) = self.has(node, claim).await {
            let attempt = lease.withdrawable_by.expect("no renewal has made it final");
            let store = &self.nodes[node].store;
            let undone = store.withdraw(claim, attempt, Rollback::Undo, deadline());
            undone.await.expect("the node answers");
        }
    }

    /// Whether each node has the lease as it was granted to the first request, but so deep.
    pub(super) async fn have_it_as_first_granted(
        &self,
        claim: &Claim,
        hold_count: HoldCount,
        granted_at: Instant,
    ) {
        for node in 0..self.nodes.len() {
            let has = self.has(node, claim).await.expect("it holds the lock");
            let holder = &has.lease.holder;
            assert_eq!(has.lease.ttl, claim.ttl);
            assert_eq!(
                (&holder.owner, holder.hold_count),
                (&claim.owner, hold_count)
            );
            // It takes as long for a message to arrive.
            let is_left = |left: Option<Duration>, of: Duration| {
                let rest = of.saturating_sub(granted_at.elapsed());
                left.expect("it has a limit").abs_diff(rest) <= SHORT
            };
            let options = has.options;
            assert!(is_left(options.max_hold_left, MOST), "{options:?}");
            assert!(is_left(options.min_hold_left, LONG / 4), "{options:?}");
            assert_eq!(has.options.lock_delay, claim.lock_delay);
        }
    }
}

pub(super) fn claims() -> [Claim; 2] {
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
        let granted_at = Instant::now();
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
            .have_it_as_first_granted(&claim, hold_count, granted_at)
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
            let granted_at = Instant::now();
            process.fixture.granted(&claim).await;
            process.fixture.advance(SHORT).await;
            process.forgets(2, &claim).await;
            process.behaves(&[2], &behavior);
            granted(process.acquire(&asks_otherwise(&claim, 1)).await);
            process.behaves(&[2], &Behavior::Answered);
            process.settled().await;
            process
                .have_it_as_first_granted(&claim, HoldCount::ONE, granted_at)
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

/// Its process has taken it over where the others had it, and was granted it there.
#[tokio::test(start_paused = true)]
async fn a_stream_that_closes_releases_the_lease_also_where_it_was_lacking() {
    for closes_at_once in [false, true] {
        let process = Process::alone();
        let claim = Claim {
            takes_over: true,
            ..claim()
        };
        let [first, second] = [(); 2].map(|()| Attempt::random());
        granted(process.fixture.attempt(&claim, first).await);
        process.settled().await;
        process.forgets(1, &claim).await;
        granted(process.fixture.attempt(&claim, second).await);
        if !closes_at_once {
            process.fixture.close(&claim, first).await;
            process.settled().await;
            assert_eq!(process.held_at(&claim).await, [0, 1, 2]);
        }
        process.fixture.close(&claim, second).await;
        process.settled().await;
        assert!(process.held_at(&claim).await.is_empty());
    }
}

/// The others have had the lease for so long when it has answered.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_slow_gets_the_lease_as_it_is_by_then() {
    const SLOW: Duration = Duration::from_millis(1_500);
    let process = Process::alone();
    let claim = limited(&claim());
    let granted_at = Instant::now();
    process.fixture.granted(&claim).await;
    process.forgets(2, &claim).await;
    process.behaves(&[2], &Behavior::Delayed(SLOW));
    granted(process.acquire(&asks_otherwise(&claim, 1)).await);
    sleep(SLOW + SHORT).await;
    process.behaves(&[2], &Behavior::Answered);
    process.settled().await;
    process
        .have_it_as_first_granted(&claim, HoldCount::ONE, granted_at)
        .await;
}

/// Else its holder would count on what a node has granted that did not have it.
#[tokio::test(start_paused = true)]
async fn a_lease_lasts_no_longer_than_at_the_nodes_that_had_it() {
    let process = Process::alone();
    let claim = claim();
    process.fixture.granted(&claim).await;
    let shorter = RenewOptions {
        ttl: Some(ttl(LONG / 4)),
        rollback_right: RollbackRight::AsBefore,
        ..RenewOptions::default()
    };
    let store = &process.nodes[1].store;
    let renewed = store.renew(&claim.names, claim.token, shorter, deadline());
    assert!(matches!(renewed.await, Ok(Renewed::Extended(_))));
    process.forgets(2, &claim).await;
    let again = granted(process.acquire(&claim).await);
    assert_eq!(only(again.leases).holder.expires_in, LONG / 4);
}

/// Two nodes have missed the change of its TTL, and record the token of a permit as the others do.
#[tokio::test(start_paused = true)]
async fn a_re_entry_tells_of_a_lease_what_a_majority_has_of_it() {
    for claim in [claim(), in_mode(&claim(), permits(1, 3))] {
        let process = Process::on(&plain_stores(5));
        process.fixture.granted(&claim).await;
        process.settled().await;
        process.without(&[0, 1]);
        let longer = ttl(LONG * 2);
        process.fixture.renewed(&claim, Some(longer.get())).await;
        process.without(&[]);
        let entered = granted(process.acquire(&at_depth(&claim, 2)).await);
        let lease = only(entered.leases);
        assert_eq!((lease.ttl, lease.holder.expires_in), (longer, LONG * 2));
    }
}

/// As if an earlier request had not come to an end: its token has to be recorded by a majority that stays.
#[tokio::test(start_paused = true)]
async fn a_node_that_lacked_a_lease_records_no_token_of_it() {
    let process = Process::alone();
    let claim = claim();
    for node in [0, 1] {
        process.leave_at(node, &claim).await;
    }
    process.nodes[0].next_assignments([(); 64].map(|()| unreachable()));
    match process.acquire(&claim).await {
        Err(StoreError::Unknown { .. }) => {}
        other => panic!("one node alone has recorded it, but: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_loses_a_lease_before_it_has_its_token_is_not_granted_it_anew() {
    let process = Process::alone();
    let claim = claim();
    process.without(&[2]);
    process.fixture.granted(&claim).await;
    process.settled().await;
    process.without(&[]);
    process.leave_at(2, &claim).await;
    process.nodes[2].next_assignments([Behavior::Delayed(SHORT)]);
    granted(process.acquire(&claim).await);
    sleep(SHORT / 2).await;
    process.forgets(2, &claim).await;
    process.settled().await;
    assert_eq!(process.held_at(&claim).await, [0, 1]);
}

/// Two nodes answer alike, but for a limit: the third tells which of them is right.
#[tokio::test(start_paused = true)]
async fn a_renewal_waits_for_a_node_that_tells_which_options_a_majority_has() {
    let process = Process::alone();
    let claim = limited(&claim());
    let granted_at = Instant::now();
    let fence = process.fixture.granted(&claim).await.holder.fence;
    process.settled().await;
    let change = FenceChange {
        proposed: fence,
        decided: fence,
        is_recorded: true,
        attempt: None,
        gives_options: true,
    };
    let asks = Claim {
        max_hold: Some(MOST / 2),
        ..claim.clone()
    };
    let store = &process.nodes[1].store;
    let changed = store.assign_fences(&asks, &[change], deadline()).await;
    assert!(matches!(changed, Ok(Assigned::Held(_))), "{changed:?}");
    process.behaves(&[2], &Behavior::Late(SHORT / 10));
    process.fixture.renewed(&claim, None).await;
    process.settled().await;
    process
        .have_it_as_first_granted(&claim, HoldCount::ONE, granted_at)
        .await;
}

/// They are slow, and a new grant would have another token.
#[tokio::test(start_paused = true)]
async fn a_lease_is_not_granted_anew_while_nodes_may_have_it_that_are_slow() {
    let process = Process::on(&plain_stores(5));
    let claim = claim();
    let first = process.fixture.granted(&claim).await;
    process.settled().await;
    for node in [0, 1] {
        process.forgets(node, &claim).await;
    }
    process.behaves(&[3, 4], &Behavior::Late(Duration::from_millis(300)));
    let again = granted(process.acquire(&claim).await);
    assert_eq!(again.kind, GrantKind::Replayed);
    assert_eq!(only(again.leases).holder.fence, first.holder.fence);
}
