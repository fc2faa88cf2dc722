//! Places in the queues: a claim that waits has one at all nodes, whatever one of them has forgotten.

use std::time::Duration;

use leasehold::domain::{Acquired, Claim};
use leasehold::store::LockStore;

use super::nodes::{Process, plain_stores, stores, unreachable};
use crate::support::fixture::{SHORT, Waiter, claim, deadline, lock_of, rival};
use crate::support::scripted_store::Behavior;

/// A client repeats its request, which does not say where the claim was, and one node does not know it.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_requested_again_keeps_its_place_although_a_node_has_forgotten_it() {
    for forgetful in 0..3 {
        for slow in (0..3).filter(|slow| *slow != forgetful) {
            let process = Process::alone();
            let holding = claim();
            process.fixture.granted(&holding).await;
            let [mut first, mut second] = [rival(&holding), rival(&holding)].map(Waiter::new);
            process.without(&[forgetful]);
            let waiting = process.fixture.still_waits(&mut first).await;
            process.without(&[]);
            process.fixture.still_waits(&mut second).await;
            process.behaves(&[slow], &Behavior::Late(Duration::from_millis(10)));
            let mut again = first.again();
            let still = process.fixture.still_waits(&mut again).await;
            assert_eq!(still.ticket.sequence, waiting.ticket.sequence);
            process.without(&[]);
            process.settled().await;
            process.fixture.freed(&holding).await;
            process.fixture.still_waits(&mut second).await;
            process.fixture.granted_after_wait(&mut again).await;
        }
    }
}

/// The claim moves to another process, which does not know its place, while the lock is free at one node, held at another
/// one, and the third is away. The first node grants the lock, takes that back, and does not know the place any more.
#[tokio::test(start_paused = true)]
async fn a_claim_that_moves_keeps_its_place_although_a_node_has_granted_it_the_lock_for_a_moment() {
    for free in 0..3 {
        let stores = plain_stores(3);
        let (process, another) = (Process::on(&stores), Process::on(&stores));
        let holding = claim();
        process.fixture.granted(&holding).await;
        process.settled().await;
        let [mut first, mut second] = [rival(&holding), rival(&holding)].map(Waiter::new);
        let waiting = process.fixture.still_waits(&mut first).await;
        process.fixture.still_waits(&mut second).await;
        released_at(&process, free, &holding).await;
        another.without(&[(free + 1) % 3]);
        let mut again = first.again();
        let still = another.fixture.still_waits(&mut again).await;
        assert_eq!(still.ticket.sequence, waiting.ticket.sequence);
        another.settled().await;
        process.fixture.freed(&holding).await;
        process.settled().await;
        another.fixture.granted_after_wait(&mut again).await;
        process.fixture.granted_after_wait(&mut second).await;
    }
}

/// One node is slow, silent or down while claims begin to wait and when the lock becomes free, or between the two.
#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_is_not_overtaken_whatever_one_node_does() {
    let late = Duration::from_millis(150);
    let behaviors = [
        Behavior::Late(late),
        Behavior::Delayed(late),
        Behavior::Delayed(SHORT),
        Behavior::Unanswered,
        Behavior::Lost,
        unreachable(),
    ];
    for (node, behavior) in
        (0..3).flat_map(|node| behaviors.iter().map(move |behavior| (node, behavior)))
    {
        for [before, after] in [[true, true], [true, false], [false, true]] {
            let process = Process::alone();
            let fails = |is_failing| match is_failing {
                true => process.behaves(&[node], behavior),
                false => process.without(&[]),
            };
            let holding = claim();
            process.fixture.granted(&holding).await;
            fails(before);
            let [mut first, mut second] = [rival(&holding), rival(&holding)].map(Waiter::new);
            process.fixture.still_waits(&mut first).await;
            process.fixture.still_waits(&mut second).await;
            fails(after);
            process.fixture.freed(&holding).await;
            process.fixture.still_waits(&mut second).await;
            process.fixture.granted_after_wait(&mut first).await;
            process.fixture.granted_after_wait(&mut second).await;
        }
    }
}

/// Each node gives the claim another place, so it is asked for a second time, at one place for all. A node that comes back
/// in between does not have the claim there.
#[tokio::test(start_paused = true)]
async fn a_first_request_has_lost_no_place_at_a_node_that_was_away() {
    let late = Duration::from_millis(10);
    for away in 0..3 {
        let process = Process::alone();
        let holding = claim();
        process.fixture.granted(&holding).await;
        process.settled().await;
        process.nodes[away].goes_down(true);
        process.behaves(&[(away + 1) % 3], &Behavior::Late(late));
        let comes_back = async {
            tokio::time::sleep(late / 2).await;
            process.nodes[away].goes_down(false);
        };
        let mut waiter = Waiter::new(rival(&holding));
        let waiting = process.fixture.still_waits(&mut waiter);
        let (waiting, ()) = tokio::join!(waiting, comes_back);
        assert!(!waiting.restored);
    }
}

/// It would give the claim another one, which nobody waits for.
#[tokio::test(start_paused = true)]
async fn a_node_that_answers_late_has_the_claim_at_the_place_of_the_others() {
    let process = Process::on(&stores(&[0, 0, 1].map(Duration::from_secs)));
    let holding = claim();
    process.fixture.granted(&holding).await;
    process.settled().await;
    process.behaves(&[2], &Behavior::Delayed(Duration::from_millis(400)));
    let mut waiter = Waiter::new(rival(&holding));
    process.fixture.still_waits(&mut waiter).await;
    process.settled().await;
    let mut places = Vec::new();
    for node in &process.nodes {
        let view = node.store.inspect(lock_of(&holding), deadline()).await;
        places.push(view.expect("the node answers").queue.head);
    }
    assert!(places[0].is_some());
    assert_eq!(places[2], places[0]);
}

async fn released_at(process: &Process, node: usize, claim: &Claim) {
    let store = &process.nodes[node].store;
    let released = store.release(&claim.names, claim.token, None, deadline());
    released.await.expect("the node answers");
}

/// The lock is free at one node alone, whose answer comes after the others have decided that the claim waits. It is among
/// the nodes that grant the lock later.
#[tokio::test(start_paused = true)]
async fn a_node_whose_late_grant_was_taken_back_grants_the_lock_later() {
    for late in 0..3 {
        let process = Process::alone();
        let holding = claim();
        process.fixture.granted(&holding).await;
        process.settled().await;
        released_at(&process, late, &holding).await;
        process.behaves(&[late], &Behavior::Late(Duration::from_millis(150)));
        let mut waiter = Waiter::new(rival(&holding));
        process.fixture.still_waits(&mut waiter).await;
        process.without(&[]);
        process.settled().await;
        for node in (0..3).filter(|node| *node != late) {
            released_at(&process, node, &holding).await;
        }
        process.without(&[(late + 1) % 3]);
        let mut is_granted = false;
        for _ in 0..3 {
            is_granted |= matches!(
                process.fixture.poll(&mut waiter).await,
                Acquired::Granted(_)
            );
        }
        assert!(is_granted, "node {late} was late");
    }
}
