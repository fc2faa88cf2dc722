//! A node that lacks a lease is granted it by a request of its claim, while another process changes the lease, or later: all
//! nodes have what a majority had before.

use leasehold::domain::{Claim, HoldCount};
use tokio::time::{Instant, sleep};

use super::held_before::{MOST, asks_otherwise, claims, granted, limited};
use super::nodes::{Process, plain_stores};
use crate::support::fixture::{SHORT, at_depth, claim, in_mode, only, permits};
use crate::support::scripted_store::Behavior;

/// A process with a claim that a node has lost and been granted by this request at another process, which cannot put that right;
/// and when the claim was granted first.
async fn asked_meanwhile(claim: &Claim, asks: &Claim) -> (Process, Instant) {
    let shared = plain_stores(3);
    let [first, second] = [Process::on(&shared), Process::on(&shared)];
    let granted_at = Instant::now();
    first.fixture.granted(claim).await;
    first.forgets(2, claim).await;
    second.behaves(&[2], &Behavior::Late(SHORT / 2));
    granted(second.acquire(asks).await);
    second.without(&[2]);
    (first, granted_at)
}

/// Another process renews meanwhile: before the node has granted what the request asks for, or after that. The process of the
/// request does not come to put it right.
#[tokio::test(start_paused = true)]
async fn a_renewal_meanwhile_brings_the_node_what_the_others_have() {
    for claim in claims() {
        for is_granted_first in [false, true] {
            let shared = plain_stores(3);
            let [first, second] = [Process::on(&shared), Process::on(&shared)];
            let granted_at = Instant::now();
            first.fixture.granted(&claim).await;
            first.forgets(2, &claim).await;
            first.behaves(&[2], &Behavior::Late(SHORT / 2));
            second.behaves(&[2], &Behavior::Late(SHORT / 2));
            let asks = asks_otherwise(&claim, 1);
            let (asking, renewing) = (second.acquire(&asks), first.fixture.renewed(&claim, None));
            match is_granted_first {
                true => {
                    granted(asking.await);
                    second.without(&[2]);
                    renewing.await;
                }
                false => {
                    renewing.await;
                    granted(asking.await);
                    second.without(&[2]);
                }
            }
            first.settled().await;
            let has = first.has(2, &claim).await.expect("it holds the lock");
            assert!(has.options.max_hold_left <= Some(MOST), "{has:?}");
            // It brings the TTL, too, in the case that the node had nothing when it was renewed.
            first.fixture.renewed(&claim, None).await;
            first.settled().await;
            first
                .have_it_as_first_granted(&claim, HoldCount::ONE, granted_at)
                .await;
        }
    }
}

/// The node has lost it again before the process of the request comes to bring it what the others have.
#[tokio::test(start_paused = true)]
async fn a_node_does_not_get_a_lease_back_from_before_a_step_back() {
    let shared = plain_stores(3);
    let [first, second] = [Process::on(&shared), Process::on(&shared)];
    let claim = claim();
    first.fixture.granted(&at_depth(&claim, 3)).await;
    first.forgets(2, &claim).await;
    second.behaves(&[2], &Behavior::Delayed(SHORT / 2));
    granted(second.acquire(&claim).await);
    sleep(SHORT * 3 / 4).await;
    first.forgets(2, &claim).await;
    first.fixture.step_back(&claim, 1).await;
    second.settled().await;
    assert_eq!(first.held_at(&claim).await, [0, 1]);
}

/// The process of the request has ended before it could put it right.
#[tokio::test(start_paused = true)]
async fn a_later_renewal_brings_a_node_what_the_others_have() {
    for claim in claims() {
        let (first, granted_at) = asked_meanwhile(&claim, &asks_otherwise(&claim, 1)).await;
        first.fixture.advance(SHORT).await;
        let lasts = first
            .fixture
            .renewed(&claim, None)
            .await
            .lease
            .holder
            .expires_in;
        assert!(lasts <= MOST - SHORT, "{lasts:?}");
        first.settled().await;
        first
            .have_it_as_first_granted(&claim, HoldCount::ONE, granted_at)
            .await;
    }
}

/// Of two requests at the same time, one is granted the lease where it is lacking, and the other one changes it.
#[tokio::test(start_paused = true)]
async fn a_node_that_another_request_was_granted_the_lease_at_gets_it_as_it_was() {
    let claim = limited(&claim());
    let (first, granted_at) = asked_meanwhile(&claim, &asks_otherwise(&claim, 1)).await;
    let deeper = granted(first.acquire(&asks_otherwise(&claim, 2)).await);
    assert_eq!(only(deeper.leases).ttl, claim.ttl);
    first.settled().await;
    let hold_count = HoldCount::new(2).expect("it is small");
    first
        .have_it_as_first_granted(&claim, hold_count, granted_at)
        .await;
}

/// Its tokens are recorded by two nodes, one of which was granted the lease by the other request.
#[tokio::test(start_paused = true)]
async fn a_node_that_another_request_was_granted_a_permit_at_gives_its_limits_to_no_other_node() {
    let claim = limited(&in_mode(&claim(), permits(1, 3)));
    let asks = Claim {
        max_hold: Some(SHORT * 6),
        ..asks_otherwise(&claim, 1)
    };
    let (first, granted_at) = asked_meanwhile(&claim, &asks).await;
    first.nodes[1].next_assignments([Behavior::Delayed(SHORT / 4)]);
    granted(first.acquire(&asks).await);
    first.settled().await;
    first
        .have_it_as_first_granted(&claim, HoldCount::ONE, granted_at)
        .await;
}
