//! Claims on several locks, of which nodes have different ones: what a majority has of each lock decides.

use std::iter::zip;
use std::time::Duration;

use leasehold::domain::{
    Acquired, Claim, GrantKind, Holder, LockName, NotHeld, NotHolder, Refused, RenewOptions,
    Renewed,
};
use leasehold::store::{LockStore, StoreError};
use tokio::join;
use tokio::time::{sleep, timeout};

use super::nodes::{Process, has_granted, plain_stores};
use crate::support::fixture::{
    LONG, READ, SHORT, at_depth, claim_on_all, deadline, fresh_name, in_mode, lock_of, lost, names,
    only, ttl,
};
use crate::support::scripted_store::Behavior;

/// How late a node answers that is waited for.
const SLOW: Duration = Duration::from_millis(50);

/// A claim on three locks, and its part for each.
pub(super) fn claim_on_three() -> (Claim, [Claim; 3]) {
    claim_in_three_parts(1)
}

/// A claim, and its three parts, each on so many locks.
fn claim_in_three_parts(locks: usize) -> (Claim, [Claim; 3]) {
    let locks = [(); 3].map(|()| names(&fresh_names(locks)));
    let claim = claim_on_all(names(locks.iter().flat_map(|it| it.iter())));
    let parts = locks.map(|locks| Claim {
        token: claim.token,
        ..claim_on_all(locks)
    });
    (claim, parts)
}

fn fresh_names(count: usize) -> Vec<LockName> {
    (0..count).map(|_| fresh_name()).collect()
}

impl Process {
    /// Has each of these claims granted while another one of the nodes is down.
    async fn granted_at_all_but_one(&self, claims: &[Claim; 3]) {
        for (down, claim) in claims.iter().enumerate() {
            self.without(&[down]);
            assert!(has_granted(self.acquire(claim).await));
            self.settled().await;
        }
        self.without(&[]);
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewed, StoreError> {
        let options = RenewOptions::default();
        let renewed = self
            .quorum
            .renew(&claim.names, claim.token, options, deadline());
        renewed.await
    }

    /// What this node and the first have of each lock.
    pub(super) async fn both_have(&self, node: usize, claim: &Claim) -> Vec<[Holder; 2]> {
        let mut both = Vec::new();
        for name in claim.names.iter() {
            let [there, here] = [0, node].map(|node| self.holders_at(node, name));
            both.push([only(there.await.listed), only(here.await.listed)]);
        }
        both
    }

    pub(super) async fn all_renewed(&self, claim: &Claim) {
        let renewed = self.renew(claim).await;
        assert!(matches!(renewed, Ok(Renewed::Extended(_))), "{renewed:?}");
    }
}

fn lost_of(renewed: Renewed) -> Vec<NotHeld> {
    match renewed {
        Renewed::NotHolder(lost) => lost,
        other => panic!("a lease is lost, but: {other:?}"),
    }
}

/// Else the holder would stop work that it may go on with.
#[tokio::test(start_paused = true)]
async fn a_lock_that_one_node_alone_lacks_is_not_among_those_that_are_lost() {
    for lacking in 0..3 {
        let process = Process::alone();
        let (claim, [ended, held, _]) = claim_on_three();
        process.without(&[lacking]);
        process.fixture.all_granted(&claim).await;
        process.fixture.renewed(&ended, Some(SHORT)).await;
        process.fixture.outlast(SHORT).await;
        process.settled().await;
        process.without(&[]);
        let lost_leases = lost_of(process.fixture.renew(&claim).await);
        assert_eq!(lost_leases, [lost(lock_of(&ended), NotHolder::Expired)]);
        process.fixture.renewed(&held, None).await;
    }
}

/// As with a client that acquires one lock after the other, and renews all with one request.
#[tokio::test(start_paused = true)]
async fn locks_of_which_each_node_lacks_another_one_are_renewed_together() {
    let process = Process::alone();
    let (claim, parts) = claim_on_three();
    process.granted_at_all_but_one(&parts).await;
    process.all_renewed(&claim).await;
    process.settled().await;
    for part in &parts {
        assert_eq!(process.held_at(part).await, [0, 1, 2]);
    }
}

/// The node that does not answer may have all of them.
#[tokio::test(start_paused = true)]
async fn locks_that_a_silent_node_may_have_are_not_lost() {
    let process = Process::alone();
    let (claim, parts) = claim_on_three();
    process.granted_at_all_but_one(&parts).await;
    process.behaves(&[2], &Behavior::Unanswered);
    match process.renew(&claim).await {
        Err(StoreError::Unknown { .. }) => {}
        other => panic!("it is not known, but: {other:?}"),
    }
    process.behaves(&[2], &Behavior::Answered);
    process.settled().await;
    process.all_renewed(&claim).await;
}

/// The third would be enough for a majority that has all, but the nodes that answer are enough for each.
#[tokio::test(start_paused = true)]
async fn locks_of_which_a_majority_that_answers_has_each_do_not_wait_for_a_silent_node() {
    let process = Process::on(&plain_stores(5));
    let (claim, parts) = claim_on_three();
    for (down, part) in [(&[1][..], &parts[0]), (&[2], &parts[1]), (&[], &parts[2])] {
        process.without(down);
        assert!(has_granted(process.acquire(part).await));
        process.settled().await;
    }
    process.without(&[]);
    process.behaves(&[0], &Behavior::Unanswered);
    let renewed = timeout(SHORT, process.renew(&claim)).await;
    assert!(
        matches!(renewed, Ok(Ok(Renewed::Extended(_)))),
        "{renewed:?}"
    );
}

/// As with a client that has not got the answer. Of five nodes, two have all.
#[tokio::test(start_paused = true)]
async fn a_repeated_request_for_locks_of_which_nodes_lack_different_ones_finds_all_held() {
    for nodes in [3, 5] {
        for waits in [Duration::ZERO, SHORT * 8] {
            let process = Process::on(&plain_stores(nodes));
            let (claim, parts) = claim_on_three();
            process.granted_at_all_but_one(&parts).await;
            sleep(waits).await;
            let repeated = process.acquire(&claim).await.expect("the nodes answer");
            assert_eq!(repeated.kind(), Some(GrantKind::Replayed));
            process.settled().await;
            for part in &parts {
                assert_eq!(process.held_at(part).await.len() as u64, nodes);
            }
        }
    }
}

/// The nodes that lack a lock do not compare the mode.
#[tokio::test(start_paused = true)]
async fn a_request_that_contradicts_a_claim_changes_nothing_also_if_nodes_lack_different_locks() {
    let process = Process::alone();
    let (claim, parts) = claim_on_three();
    process.granted_at_all_but_one(&parts).await;
    sleep(LONG / 2).await;
    let answer = process.acquire(&in_mode(&claim, READ)).await;
    let refused = matches!(answer, Ok(Acquired::Refused(Refused::Mismatched(_))));
    assert!(refused, "{answer:?}");
    process.settled().await;
    for (lacking, part) in parts.iter().enumerate() {
        let held_at = process.held_at(part).await;
        assert!(!held_at.contains(&lacking));
        for node in held_at {
            let holder = only(process.holders_at(node, lock_of(part)).await.listed);
            assert!(holder.expires_in <= LONG / 2, "{:?}", holder.expires_in);
        }
    }
}

/// It is later than others may be.
#[tokio::test(start_paused = true)]
async fn a_lock_that_only_a_late_node_shows_to_be_held_is_not_lost() {
    let process = Process::alone();
    let (claim, [released, held, also_held]) = claim_on_three();
    process.fixture.all_granted(&claim).await;
    process.fixture.freed(&released).await;
    process.settled().await;
    for part in [&held, &also_held] {
        let store = &process.nodes[1].store;
        let lost = store.release(&part.names, part.token, None, deadline());
        lost.await.expect("the node answers");
    }
    process.behaves(&[0], &Behavior::Delayed(SLOW * 4));
    let lost_leases = lost_of(process.fixture.renew(&claim).await);
    assert_eq!(lost_leases, [lost(lock_of(&released), NotHolder::Released)]);
}

/// The first two nodes lack different ones.
#[tokio::test(start_paused = true)]
async fn which_locks_are_lost_may_depend_on_a_slow_node() {
    for (lacks_first, lacks_second, expected) in [
        ([0, 2], [1, 2], 0..2),
        ([0, 1], [1, 2], 0..2),
        ([0, 9], [1, 2], 1..2),
    ] {
        let process = Process::alone();
        let (claim, parts) = claim_on_three();
        process.fixture.all_granted(&claim).await;
        process.settled().await;
        for (part, lacking) in zip(&parts, [lacks_first, lacks_second]) {
            for node in lacking.into_iter().filter(|node| *node < 3) {
                let store = &process.nodes[node].store;
                let released = store.release(&part.names, part.token, None, deadline());
                released.await.expect("the node answers");
            }
        }
        process.behaves(&[2], &Behavior::Delayed(SLOW));
        let lost_leases = lost_of(process.fixture.renew(&claim).await);
        let released = parts[expected].iter().map(lock_of);
        let expected: Vec<_> = released.map(|it| lost(it, NotHolder::Released)).collect();
        assert_eq!(lost_leases, expected);
    }
}

/// Another claim may have it already.
#[tokio::test(start_paused = true)]
async fn a_lock_that_may_be_lost_is_named_beside_one_that_is() {
    let process = Process::alone();
    let (claim, [lost_one, may_be_lost, held]) = claim_on_three();
    process.fixture.all_granted(&claim).await;
    process.settled().await;
    for (part, nodes) in [(&lost_one, 0..2), (&may_be_lost, 1..2)] {
        for node in &process.nodes[nodes] {
            let released = node
                .store
                .release(&part.names, part.token, None, deadline());
            released.await.expect("the node answers");
        }
    }
    process.behaves(&[2], &Behavior::Unanswered);
    let lost_leases = lost_of(process.fixture.renew(&claim).await);
    let expected = [&lost_one, &may_be_lost].map(|it| lost(lock_of(it), NotHolder::Released));
    assert_eq!(lost_leases, expected);
    process.behaves(&[2], &Behavior::Answered);
    process.settled().await;
    process.fixture.renewed(&held, None).await;
}

/// One after the other they would take longer than the renewal may.
#[tokio::test(start_paused = true)]
async fn many_locks_of_which_nodes_lack_different_ones_are_renewed_beside_a_slow_node() {
    let process = Process::alone();
    let (claim, parts) = claim_in_three_parts(20);
    process.granted_at_all_but_one(&parts).await;
    process.behaves(&[0, 1], &Behavior::Delayed(SLOW));
    process.behaves(&[2], &Behavior::Delayed(SLOW * 3));
    sleep(LONG / 2).await;
    process.all_renewed(&claim).await;
    process.settled().await;
    for node in [1, 2] {
        for [there, here] in process.both_have(node, &claim).await {
            assert!(there.expires_in > LONG - SLOW * 40);
            assert!(here.expires_in > LONG - SLOW * 40);
        }
    }
}

/// The nodes fail after they have refused to renew all together.
#[tokio::test(start_paused = true)]
async fn locks_of_which_nodes_lack_different_ones_are_not_renewed_without_a_majority() {
    for failing in [&[0, 1][..], &[0, 1, 2]] {
        let process = Process::alone();
        let (claim, parts) = claim_on_three();
        process.granted_at_all_but_one(&parts).await;
        process.behaves(&[0, 1, 2], &Behavior::Delayed(SLOW));
        let fail = async {
            sleep(SLOW / 2).await;
            process.without(failing);
        };
        let (renewed, ()) = join!(process.renew(&claim), fail);
        match renewed {
            Err(StoreError::Unknown { .. } | StoreError::Unavailable { .. }) => {}
            Ok(renewed) => panic!("no majority has renewed, but: {renewed:?}"),
        }
    }
}

/// The nodes have refused to renew all together by then.
#[tokio::test(start_paused = true)]
async fn a_lock_is_lost_that_ends_while_each_is_renewed_on_its_own() {
    let process = Process::alone();
    let (claim, parts) = claim_on_three();
    process.granted_at_all_but_one(&parts).await;
    process.behaves(&[0, 1, 2], &Behavior::Delayed(SLOW));
    let end = async {
        sleep(SLOW + SLOW / 2).await;
        for node in &process.nodes[1..] {
            let names = &parts[0].names;
            let released = node.store.release(names, claim.token, None, deadline());
            released.await.expect("the node answers");
        }
    };
    let (renewed, ()) = join!(process.fixture.renew(&claim), end);
    assert_eq!(
        lost_of(renewed),
        [lost(lock_of(&parts[0]), NotHolder::Released)]
    );
}

#[tokio::test(start_paused = true)]
async fn locks_of_which_nodes_lack_different_ones_are_changed_together() {
    let process = Process::alone();
    let (claim, parts) = claim_on_three();
    process.granted_at_all_but_one(&parts).await;
    let options = RenewOptions {
        ttl: Some(ttl(LONG / 2)),
        ..RenewOptions::default()
    };
    let changed = process
        .quorum
        .renew(&claim.names, claim.token, options, deadline());
    let Ok(Renewed::Extended(renewals)) = changed.await else {
        panic!("all are changed");
    };
    assert!(renewals.iter().all(|it| it.lease.ttl == ttl(LONG / 2)));
    process.settled().await;
    for node in [1, 2] {
        for [there, here] in process.both_have(node, &claim).await {
            assert!(there.expires_in.max(here.expires_in) <= LONG / 2);
        }
    }
}

/// Two nodes have all, one has none and would grant them anew, and two have one of two.
#[tokio::test(start_paused = true)]
async fn locks_of_which_a_majority_has_each_are_not_granted_anew() {
    for depth in [1, 2] {
        let process = Process::on(&plain_stores(5));
        let (claim, parts) = claim_on_three();
        let mut fences = Vec::new();
        for (down, part) in [[0, 1], [0, 2], [0, 1]].iter().zip(&parts) {
            process.without(down);
            fences.push(process.fixture.granted(part).await.holder.fence);
            process.settled().await;
        }
        process.without(&[]);
        let again = process.acquire(&at_depth(&claim, depth)).await;
        match again.expect("all nodes answer") {
            Acquired::Granted(granted) => {
                assert_ne!(granted.kind, GrantKind::New);
                let mut told: Vec<_> = granted.leases.iter().map(|it| it.holder.fence).collect();
                for list in [&mut told, &mut fences] {
                    list.sort_unstable();
                }
                assert_eq!(told, fences);
            }
            other => panic!("it holds the locks, but: {other:?}"),
        }
        process.settled().await;
        for part in &parts {
            assert_eq!(process.held_at(part).await, [0, 1, 2, 3, 4]);
        }
    }
}
