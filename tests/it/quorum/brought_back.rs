//! What nodes get back of a claim on several locks.

use std::iter::zip;

use leasehold::store::LockStore;
use tokio::time::sleep;

use super::nodes::{Process, has_granted};
use super::several_locks::claim_on_three;
use crate::support::fixture::{LONG, READ, SHORT, at_depth, deadline, lock_of, only, owned_by};

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
        let both = process.both_have(2, &claim).await;
        for (part, [there, here]) in zip(&parts, both) {
            assert_eq!(here.mode == READ, part.names == downgraded.names);
            assert_eq!((here.mode, here.hold_count), (there.mode, there.hold_count));
            assert!(here.expires_in.abs_diff(there.expires_in) < SHORT);
        }
    }
}

/// A client that acquires one lock after the other may ask for something else each time.
#[tokio::test(start_paused = true)]
async fn a_node_gets_each_lock_back_as_it_was_asked_for() {
    for limited in 0..3 {
        let process = Process::alone();
        let (claim, mut parts) = claim_on_three();
        parts[limited].max_hold = Some(LONG / 2);
        parts[(limited + 1) % 3] = owned_by(&parts[(limited + 1) % 3], "another");
        process.without(&[2]);
        for part in &parts {
            process.fixture.granted(part).await;
        }
        process.settled().await;
        process.without(&[]);
        process.all_renewed(&claim).await;
        process.settled().await;
        for [there, here] in process.both_have(2, &claim).await {
            assert_eq!(here.owner, there.owner);
            assert!(here.expires_in.abs_diff(there.expires_in) < SHORT);
        }
    }
}

/// The others are not left out for that.
#[tokio::test(start_paused = true)]
async fn a_node_that_remembers_the_end_of_one_lock_gets_the_others_back() {
    for ended in 0..3 {
        let process = Process::alone();
        let (claim, parts) = claim_on_three();
        process.without(&[2]);
        process.fixture.all_granted(&claim).await;
        process.settled().await;
        process.without(&[]);
        process.leave_at(2, &parts[ended]).await;
        let store = &process.nodes[2].store;
        let released = store.release(&parts[ended].names, claim.token, None, deadline());
        released.await.expect("the node answers");
        process.all_renewed(&claim).await;
        process.settled().await;
        for (number, part) in parts.iter().enumerate() {
            assert_eq!(process.held_at(part).await.contains(&2), number != ended);
        }
    }
}
