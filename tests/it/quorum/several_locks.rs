//! Claims on several locks, of which nodes have different ones: what a majority has of each lock decides.

use std::iter::zip;
use std::time::Duration;

use leasehold::domain::{Claim, NotHeld, NotHolder, RenewOptions, Renewed};
use leasehold::store::{LockStore, StoreError};
use tokio::time::sleep;

use super::nodes::{Process, has_granted};
use crate::support::fixture::{
    LONG, READ, SHORT, at_depth, claim_on, claim_on_all, deadline, fresh_name, lock_of, lost,
    names, only,
};
use crate::support::scripted_store::Behavior;

/// How late a node answers that is waited for.
const SLOW: Duration = Duration::from_millis(50);

/// A claim on three locks, and its part for each.
fn claim_on_three() -> (Claim, [Claim; 3]) {
    let locks = [(); 3].map(|()| fresh_name());
    let claim = claim_on_all(names(&locks));
    let parts = locks.map(|lock| Claim {
        token: claim.token,
        ..claim_on(&lock)
    });
    (claim, parts)
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

    async fn all_renewed(&self, claim: &Claim) {
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

/// As after a re-entry that has reached a node before the grant.
#[tokio::test(start_paused = true)]
async fn a_node_that_has_a_part_of_the_locks_gets_the_others_with_a_renewal() {
    for has in 0..3 {
        let process = Process::alone();
        let (claim, parts) = claim_on_three();
        process.without(&[2]);
        process.fixture.all_granted(&claim).await;
        process.settled().await;
        process.without(&[]);
        process.leave_at(2, &parts[has]).await;
        sleep(SHORT).await;
        process.all_renewed(&claim).await;
        process.settled().await;
        for part in &parts {
            let holder = only(process.holders_at(2, lock_of(part)).await.listed);
            assert!(holder.expires_in > LONG - SHORT, "{:?}", holder.expires_in);
        }
        process.without(&[1]);
        process.all_renewed(&claim).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_gets_each_lock_back_as_it_is() {
    for shared in 0..3 {
        let process = Process::alone();
        let (claim, parts) = claim_on_three();
        process.without(&[2]);
        process.fixture.all_granted(&claim).await;
        let [downgraded, entered] = [&parts[shared], &parts[(shared + 1) % 3]];
        process.fixture.renew_in_mode(downgraded, READ).await;
        process.fixture.renewed(downgraded, Some(LONG / 2)).await;
        assert!(has_granted(process.acquire(&at_depth(entered, 3)).await));
        process.settled().await;
        process.without(&[]);
        process.all_renewed(&claim).await;
        process.settled().await;
        for (number, part) in parts.iter().enumerate() {
            let [there, here] = [0, 2].map(|node| process.holders_at(node, lock_of(part)));
            let [there, here] = [only(there.await.listed), only(here.await.listed)];
            assert_eq!(here.mode == READ, number == shared);
            assert_eq!((here.mode, here.hold_count), (there.mode, there.hold_count));
            assert!(here.expires_in.abs_diff(there.expires_in) < SHORT);
        }
    }
}
