//! Views of a lock whose nodes have one lease with different tokens: they show its claim once, and not by a token that it
//! does not keep.

use std::time::Duration;

use leasehold::domain::{Acquired, Claim, EventKind, Holder, LockState};
use leasehold::store::{ListQuery, LockStore};
use tokio::time::{Instant, sleep};

use super::nodes::{Process, has_granted, stores};
use super::unclear_changes::repeated;
use crate::support::fixture::{
    Waiter, claim, claim_on, deadline, deadlines, holders_in_the_way, in_mode, lock_of, metadata,
    name, only, owner, permits, reader, rival,
};
use crate::support::scripted_store::Behavior;

const HOUR: Duration = Duration::from_secs(3_600);

/// A process that cannot reach the last node, and the claims that the first two nodes have with tokens of their own.
async fn with_different_tokens(claims: &[Claim]) -> Process {
    let process = Process::on(&stores(&[HOUR, Duration::ZERO, Duration::ZERO]));
    for claim in claims {
        process.leave_at(0, claim).await;
        process.leave_at(1, claim).await;
    }
    process.without(&[2]);
    process
}

/// A node lacks the lease until a repeat of the request reaches it, which describes the holder otherwise.
#[tokio::test(start_paused = true)]
async fn a_holder_is_shown_as_its_grant_described_it_whichever_nodes_answer() {
    for repeated_at in 0..3 {
        for slow in 0..3 {
            let process = Process::alone();
            let claim = Claim {
                owner: owner("the-grant"),
                metadata: metadata(r#"{"a":1}"#),
                ..claim()
            };
            let others: Vec<_> = (0..3).filter(|node| *node != repeated_at).collect();
            for node in others {
                process.leave_at(node, &claim).await;
            }
            sleep(Duration::from_secs(1)).await;
            let repeat = Claim {
                owner: owner("the-repeat"),
                metadata: None,
                ..claim.clone()
            };
            process.leave_at(repeated_at, &repeat).await;
            process.behaves(&[slow], &Behavior::Late(Duration::from_millis(20)));
            let renewed = process.fixture.renewed(&claim, None).await;
            let described = [
                only(process.fixture.holders(lock_of(&claim)).await),
                only(listed(&process, &claim).await),
                repeated(&process, &repeat).await.holder,
                renewed.lease.holder,
            ];
            for holder in described {
                assert_eq!(holder.owner, claim.owner, "{repeated_at} {slow}");
                assert_eq!(holder.metadata, claim.metadata, "{repeated_at} {slow}");
            }
        }
    }
}

/// The holders of the only lock in a listing.
async fn listed(process: &Process, claim: &Claim) -> Vec<Holder> {
    let query = ListQuery {
        prefix: lock_of(claim).as_str().to_owned(),
        within: None,
        after: None,
        snapshot: None,
        page_size: 10,
    };
    match only(process.fixture.listed(&query).await.locks).state {
        LockState::Held(holders) => {
            assert_eq!(holders.total, holders.listed.len() as u64);
            holders.listed
        }
        other => panic!("it is held, but: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_shown_once_although_nodes_have_it_with_different_tokens() {
    for claim in [claim(), reader(&claim()), in_mode(&claim(), permits(1, 1))] {
        let process = with_different_tokens(std::slice::from_ref(&claim)).await;
        let proposed = process.fences_at_nodes(&claim).await;
        let largest = proposed.into_iter().max();
        let contender = claim_on(lock_of(&claim));
        let in_the_way = holders_in_the_way(process.fixture.acquire(&contender).await);
        assert_eq!(in_the_way.total, 1);
        let evict = process.quorum.evict(lock_of(&claim), "test", deadlines());
        let seen = [
            only(process.fixture.holders(lock_of(&claim)).await),
            only(listed(&process, &claim).await),
            only(in_the_way.listed),
            only(evict.await.expect("a majority answers").holders.listed),
        ];
        for holder in seen {
            assert_eq!(Some(holder.fence.get()), largest);
            assert_eq!(holder.claim, claim.token.digest(lock_of(&claim)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn claims_that_share_a_lock_are_shown_once_each() {
    let first = reader(&claim());
    let claims = [
        first.clone(),
        reader(&rival(&first)),
        reader(&rival(&first)),
    ];
    let process = with_different_tokens(&claims).await;
    let mut shown: Vec<_> = process.fixture.holders(lock_of(&first)).await;
    shown.sort_unstable_by_key(|holder| holder.claim);
    let mut expected = claims.map(|claim| claim.token.digest(lock_of(&claim)));
    expected.sort_unstable();
    let shown: Vec<_> = shown.into_iter().map(|holder| holder.claim).collect();
    assert_eq!(shown, expected);
}

/// Contenders that have one node each; the last node does not answer.
#[tokio::test(start_paused = true)]
async fn a_view_shows_no_two_claims_that_exclude_each_other() {
    let first = claim();
    for (one, other) in [
        (first.clone(), rival(&first)),
        (first.clone(), reader(&rival(&first))),
        (
            in_mode(&first, permits(1, 2)),
            in_mode(&rival(&first), permits(1, 3)),
        ),
    ] {
        let process = Process::alone();
        process.leave_at(0, &one).await;
        sleep(Duration::from_millis(5)).await;
        process.leave_at(1, &other).await;
        process.without(&[2]);
        let shown = only(process.fixture.holders(lock_of(&first)).await).claim;
        assert_eq!(
            shown,
            other.token.digest(lock_of(&first)),
            "it lasts longer"
        );
        assert_eq!(only(listed(&process, &first).await).claim, shown);
    }
}

/// A process that ended while it acquired has left its claim at one node; another node of the majority is silent.
#[tokio::test(start_paused = true)]
async fn a_view_shows_the_holder_that_renews_and_an_eviction_whatever_it_ended() {
    let process = Process::alone();
    let rest = claim();
    process.leave_at(1, &rest).await;
    let holder = rival(&rest);
    process.fixture.granted(&holder).await;
    sleep(Duration::from_secs(1)).await;
    process.fixture.renewed(&holder, None).await;
    process.settled().await;
    process.without(&[2]);
    let lock = lock_of(&holder);
    let [of_rest, of_holder] = [&rest, &holder].map(|claim| claim.token.digest(lock));
    assert_eq!(only(process.fixture.holders(lock).await).claim, of_holder);
    let evict = process.quorum.evict(lock, "test", deadlines());
    let evicted = evict.await.expect("a majority answers").holders;
    assert_eq!(evicted.total, 2);
    let mut ended: Vec<_> = evicted.listed.iter().map(|holder| holder.claim).collect();
    ended.sort_unstable();
    let mut expected = [of_rest, of_holder];
    expected.sort_unstable();
    assert_eq!(ended, expected);
}

#[tokio::test(start_paused = true)]
async fn claims_that_are_not_shown_are_not_counted() {
    let process = Process::alone();
    let holder = claim();
    for _ in 0..3 {
        process.leave_at(0, &reader(&holder)).await;
    }
    sleep(Duration::from_millis(5)).await;
    process.leave_at(1, &holder).await;
    process.without(&[2]);
    let shown = only(listed(&process, &holder).await).claim;
    assert_eq!(shown, holder.token.digest(lock_of(&holder)));
}

/// All nodes fail after the first look, which left open which token the lease has.
#[tokio::test(start_paused = true)]
async fn a_view_at_hand_is_shown_although_it_cannot_be_taken_again() {
    let claim = claim();
    let process = with_different_tokens(std::slice::from_ref(&claim)).await;
    let fail = async {
        sleep(Duration::from_millis(1)).await;
        process.without(&[0, 1, 2]);
    };
    let (shown, ()) = tokio::join!(process.fixture.holders(lock_of(&claim)), fail);
    assert_eq!(only(shown).claim, claim.token.digest(lock_of(&claim)));
}

/// A process, each of whose nodes has another claim, so that none has a majority.
async fn with_different_claims() -> (Process, [Claim; 3]) {
    let (process, first) = (Process::alone(), claim());
    let claims = [first.clone(), rival(&first), rival(&first)];
    for (node, claim) in claims.iter().enumerate() {
        process.leave_at(node, claim).await;
        sleep(Duration::from_millis(1)).await;
    }
    (process, claims)
}

/// The lock if this happens after the first look at it.
async fn shown_after(
    process: &Process,
    claim: &Claim,
    change: impl Future<Output = ()>,
) -> LockState {
    let change = async {
        sleep(Duration::from_millis(1)).await;
        change.await;
    };
    let (shown, ()) = tokio::join!(process.fixture.state(lock_of(claim)), change);
    shown
}

fn is_held_by(state: &LockState, claim: &Claim) -> bool {
    let of_claim = claim.token.digest(lock_of(claim));
    matches!(state, LockState::Held(holders) if matches!(&holders.listed[..], [holder] if holder.claim == of_claim))
}

/// Ends what a claim has at a node alone.
async fn end_at(process: &Process, node: usize, claim: &Claim) {
    let store = &process.nodes[node].store;
    let released = store.release(&claim.names, claim.token, None, deadline());
    assert!(released.await.is_ok());
}

/// Of three claims at three nodes none holds, and of two at two of them the later one may.
#[tokio::test(start_paused = true)]
async fn a_view_of_all_nodes_is_not_replaced_by_one_of_fewer_that_leaves_open_who_holds() {
    let (process, [_, later, _]) = with_different_claims().await;
    let shown = shown_after(&process, &later, async { process.without(&[2]) }).await;
    assert!(matches!(shown, LockState::Free), "{shown:?}");
    let shown = process.fixture.state(lock_of(&later)).await;
    assert!(is_held_by(&shown, &later), "{shown:?}");
}

#[tokio::test(start_paused = true)]
async fn a_view_is_replaced_by_one_of_fewer_nodes_that_agree_on_who_holds() {
    let (process, [first, second, _]) = with_different_claims().await;
    let change = async {
        process.without(&[2]);
        end_at(&process, 0, &first).await;
        assert!(has_granted(process.acquire(&second).await));
    };
    let shown = shown_after(&process, &first, change).await;
    assert!(is_held_by(&shown, &second), "{shown:?}");
}

#[tokio::test(start_paused = true)]
async fn a_view_that_leaves_open_who_holds_is_replaced_by_a_later_one_of_as_many_nodes() {
    let (process, [first, ..]) = with_different_claims().await;
    process.without(&[2]);
    let new = rival(&first);
    let change = async {
        end_at(&process, 0, &first).await;
        process.leave_at(0, &new).await;
    };
    let shown = shown_after(&process, &first, change).await;
    assert!(is_held_by(&shown, &new), "it lasts longest, but: {shown:?}");
}

#[tokio::test(start_paused = true)]
async fn a_page_of_unclear_locks_takes_no_longer_than_one() {
    let claims: Vec<_> = (0..100)
        .map(|number| claim_on(&name(&format!("views/unclear/{number:03}"))))
        .collect();
    let process = with_different_tokens(&claims).await;
    process.behaves(&[2], &Behavior::Unanswered);
    let began = Instant::now();
    let query = ListQuery {
        prefix: "views/unclear/".to_owned(),
        within: None,
        after: None,
        snapshot: None,
        page_size: 100,
    };
    let locks = process.fixture.listed(&query).await.locks;
    assert_eq!(locks.len(), claims.len());
    assert!(began.elapsed() < Duration::from_secs(1));
}

/// The first node proposes the larger token, but its answer is late, so the others decide.
#[tokio::test(start_paused = true)]
async fn a_view_shows_the_token_of_the_grant_while_a_node_has_its_own() {
    for is_listed in [false, true] {
        let shared = stores(&[HOUR, Duration::ZERO, Duration::ZERO]);
        let [viewing, granting] = [Process::on(&shared), Process::on(&shared)];
        viewing.quorum.set_event_delivery(true).await;
        viewing.without(&[2]);
        granting.behaves(&[0], &Behavior::Late(Duration::from_millis(40)));
        let claim = claim();
        let decided = granting.fixture.granted(&claim).await.holder.fence;
        let proposed = granting.fences_at_nodes(&claim).await;
        assert!(decided.get() < proposed[0], "{decided}, {proposed:?}");
        let shown = match is_listed {
            false => viewing.fixture.holders(lock_of(&claim)).await,
            true => listed(&viewing, &claim).await,
        };
        assert_eq!(only(shown).fence, decided);
        let events = viewing.fixture.listener().events_of(lock_of(&claim));
        let acquired = events
            .iter()
            .filter(|event| event.kind == EventKind::Acquired);
        let fences: Vec<_> = acquired.map(|event| event.fence).collect();
        assert_eq!(fences, [Some(decided)], "watchers get it once");
    }
}

/// The process that was granted the lock has ended before all nodes had its token.
#[tokio::test(start_paused = true)]
async fn a_view_shows_the_token_that_a_majority_has_whatever_else_is_at_a_node() {
    let process = Process::on(&stores(&[HOUR, Duration::ZERO, Duration::ZERO]));
    let claim = claim();
    process.without(&[0]);
    let decided = process.fixture.granted(&claim).await.holder.fence;
    process.settled().await;
    process.leave_at(0, &claim).await;
    process.without(&[]);
    assert_eq!(
        only(process.fixture.holders(lock_of(&claim)).await).fence,
        decided
    );
    assert_eq!(only(listed(&process, &claim).await).fence, decided);
    let blocked = process.fixture.acquire(&rival(&claim)).await;
    assert_eq!(only(holders_in_the_way(blocked).listed).fence, decided);
}

/// The first waits at one node alone, the second at the others, of which one is slow.
#[tokio::test(start_paused = true)]
async fn a_view_shows_the_head_of_the_queue_of_a_majority() {
    let process = Process::alone();
    let holding = claim();
    process.fixture.granted(&holding).await;
    process.settled().await;
    let waits_at = async |node: usize, waiter: &mut Waiter| {
        let store = &process.nodes[node].store;
        let (attempt, request) = (waiter.attempt, waiter.queue_request);
        let answer = store.acquire(&waiter.claim, attempt, Some(&request), deadline());
        let Ok(Acquired::Waiting(waiting)) = answer.await else {
            panic!("the lock is held");
        };
        waiter.queue_request.ticket = Some(waiting.ticket);
        waiting.ticket.sequence
    };
    let [mut first, mut second] = [rival(&holding), rival(&holding)].map(Waiter::new);
    waits_at(0, &mut first).await;
    sleep(Duration::from_millis(10)).await;
    let place = waits_at(1, &mut second).await;
    assert_eq!(waits_at(2, &mut second).await, place);
    process.behaves(&[2], &Behavior::Late(Duration::from_millis(50)));
    let queue = process.fixture.queue(lock_of(&holding)).await;
    let since = queue.head.expect("one waits").since;
    assert_eq!(since.unix_ms(), place / 1_000);
}
