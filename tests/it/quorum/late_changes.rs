//! Changes of a lease that reach a node late, after a later change by another process was answered: they undo nothing.

use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, GrantKind, Mode, NotHolder, Refused, Released, RenewOptions, Renewed,
};
use leasehold::store::{Deadlines, LockStore};
use tokio::time::{Instant, sleep};

use super::nodes::{Process, has_granted, plain_stores, stores};
use crate::support::eventually;
use crate::support::fixture::{
    LONG, READ, Waiter, assert_held, at_depth, claim, deadline, deadlines, hold_count, in_mode,
    lock_of, only, permits, reader, rival,
};
use crate::support::scripted_store::Behavior;

const STEP: Duration = Duration::from_millis(10);
const HOUR: Duration = Duration::from_secs(3600);

/// Three processes on the same nodes.
fn processes() -> [Process; 3] {
    let shared = plain_stores(3);
    [(); 3].map(|()| Process::on(&shared))
}

/// The first change reaches the third node late, and the second one misses the second node, where the lease ends.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_lengthened_lasts_although_a_renewal_before_is_late() {
    let short = STEP * 10;
    for (first_ttl, ttl) in [(LONG, Some(short)), (short, None)] {
        let [first, second, other] = processes();
        let claim = Claim {
            ttl: leasehold::domain::Ttl::from_store(first_ttl),
            ..claim()
        };
        first.fixture.granted(&claim).await;
        first.settled().await;
        first.behaves(&[2], &Behavior::Delayed(STEP * 4));
        second.behaves(&[1], &Behavior::Delayed(STEP * 15));
        first.fixture.renewed(&claim, ttl).await;
        let lease = second.fixture.renewed(&claim, Some(LONG)).await.lease;
        assert!(lease.holder.expires_in > LONG / 2);
        sleep(short * 10).await;
        assert_held(&other.fixture.acquire(&rival(&claim)).await);
        second.behaves(&[1], &Behavior::Answered);
        second.fixture.renewed(&claim, None).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_is_late_at_a_node_ends_no_claim_that_was_granted_after_it() {
    let [first, second, other] = processes();
    let old = reader(&claim());
    first.fixture.granted(&old).await;
    first.settled().await;
    first.behaves(&[2], &Behavior::Delayed(STEP * 15));
    second.behaves(&[1], &Behavior::Delayed(STEP * 80));
    let deadlines = Deadlines {
        step: STEP * 200,
        end: Instant::now() + STEP * 200,
    };
    let evicted = first.quorum.evict(lock_of(&old), "a test", deadlines).await;
    assert_eq!(evicted.expect("the nodes answer").holders.total, 1);
    let new = reader(&rival(&old));
    assert!(has_granted(second.acquire(&new).await));
    sleep(STEP * 20).await;
    let exclusive = in_mode(&rival(&old), Mode::Exclusive);
    assert_held(&other.fixture.acquire(&exclusive).await);
}

/// Otherwise the next holder would depend on the other nodes, for as long as the lease that was evicted would have lasted.
#[tokio::test(start_paused = true)]
async fn an_eviction_reaches_a_node_that_was_away_and_ends_no_claim_that_was_granted_after_it() {
    for mode in [Mode::Exclusive, READ, permits(1, 1)] {
        let [first, second, _] = processes();
        let old = in_mode(&claim(), mode);
        first.fixture.granted(&old).await;
        first.settled().await;
        first.without(&[2]);
        let evicted = first.fixture.evict(lock_of(&old), "stuck").await;
        assert_eq!(evicted.len(), 1);
        let new = rival(&old);
        assert!(has_granted(second.acquire(&new).await));
        first.without(&[]);
        let ends = async || {
            let at_node = &first.nodes[2].store;
            let renewed = at_node.renew(&old.names, old.token, RenewOptions::default(), deadline());
            matches!(renewed.await, Ok(Renewed::NotHolder(_))).then_some(())
        };
        eventually("the node has evicted it", ends).await;
        second.fixture.renewed(&new, None).await;
        second.settled().await;
        second.without(&[0]);
        second.fixture.renewed(&new, None).await;
    }
}

/// The node answers the eviction, and gets the lease only then: by what goes on of the grant, or of a renewal.
#[tokio::test(start_paused = true)]
async fn an_eviction_ends_a_lease_that_a_node_gets_after_it() {
    for evicts in 0..2 {
        for mode in [Mode::Exclusive, READ, permits(1, 1)] {
            let processes = processes();
            let [first, second, _] = &processes;
            let old = in_mode(&claim(), mode);
            first.without(&[2]);
            first.fixture.granted(&old).await;
            first.without(&[]);
            let evicted = processes[evicts].fixture.evict(lock_of(&old), "stuck");
            assert_eq!(evicted.await.len(), 1);
            first.settled().await;
            let new = rival(&old);
            assert!(has_granted(second.acquire(&new).await));
            sleep(LONG / 2).await;
            second.fixture.renewed(&new, None).await;
            second.settled().await;
            assert_eq!(second.held_at(&new).await, [0, 1, 2]);
            let at_node = &first.nodes[2].store;
            let renewed = at_node.renew(&old.names, old.token, RenewOptions::default(), deadline());
            assert!(matches!(renewed.await, Ok(Renewed::NotHolder(_))));
        }
    }
}

/// A node gives a late grant a token of its own, which may be larger than that of the next holder.
#[tokio::test(start_paused = true)]
async fn an_eviction_ends_a_lease_to_which_a_node_has_given_a_larger_token() {
    let shared = stores(&[Duration::ZERO, Duration::ZERO, HOUR]);
    for mode in [Mode::Exclusive, READ, permits(1, 1)] {
        for is_before in [true, false] {
            let [first, second] = [(); 2].map(|()| Process::on(&shared));
            let old = in_mode(&claim(), mode);
            first.without(&[2]);
            first.fixture.granted(&old).await;
            if is_before {
                first.leave_at(2, &old).await;
            }
            let evicted = first.fixture.evict(lock_of(&old), "stuck").await;
            assert_eq!(evicted.len(), 1);
            first.without(&[]);
            first.settled().await;
            if !is_before {
                let at_node = &first.nodes[2].store;
                let late = at_node.acquire(&old, Attempt::random(), None, deadline());
                assert!(matches!(
                    late.await,
                    Ok(Acquired::Refused(Refused::Ended(_)))
                ));
            }
            assert!(first.held_at(&old).await.is_empty());
            second.without(&[0]);
            assert!(has_granted(second.acquire(&rival(&old)).await));
        }
    }
}

/// A contender has left its lease at one node, with a larger token than that of the next holder.
#[tokio::test(start_paused = true)]
async fn an_eviction_of_a_rest_ends_no_claim_at_a_node_that_was_away() {
    let shared = stores(&[HOUR, Duration::ZERO, Duration::ZERO]);
    let [first, second] = [(); 2].map(|()| Process::on(&shared));
    let rest = claim();
    first.leave_at(0, &rest).await;
    first.without(&[2]);
    let evicted = first.quorum.evict(lock_of(&rest), "stuck", deadlines());
    let evicted = evicted.await.expect("a majority answers");
    assert_eq!(evicted.holders.total, 1);
    second.without(&[0]);
    let new = rival(&rest);
    assert!(has_granted(second.acquire(&new).await));
    second.settled().await;
    first.without(&[]);
    sleep(LONG / 2).await;
    assert_eq!(second.held_at(&new).await, [1, 2]);
}

/// Has a claim granted, and its lease ended at the second node, which does not take it back.
async fn granted_and_gone_from_a_node(process: &Process, claim: &Claim) {
    process.fixture.granted(claim).await;
    process.settled().await;
    let at_node = &process.nodes[1].store;
    let released = at_node.release(&claim.names, claim.token, None, deadline());
    released.await.expect("the node answers");
}

/// A node lacks the lease, and another one that has it is silent: the eviction is left unfinished, and goes on.
#[tokio::test(start_paused = true)]
async fn an_eviction_that_was_left_unfinished_ends_what_a_silent_node_has() {
    for lock_delay in [None, Some(LONG)] {
        let [first, second, _] = processes();
        let old = Claim {
            lock_delay,
            ..claim()
        };
        granted_and_gone_from_a_node(&first, &old).await;
        first.without(&[2]);
        let evict = || first.quorum.evict(lock_of(&old), "stuck", deadlines());
        let unfinished = evict().await.expect("a majority answers");
        assert!(!unfinished.is_complete);
        let repeated = evict().await.expect("a majority answers");
        assert!(repeated.is_complete);
        first.without(&[]);
        // The holder itself may be the first to reach the node.
        let released = second.fixture.release(&old).await;
        assert!(matches!(
            released,
            Released::NotHolder(NotHolder::Evicted { .. })
        ));
        let again = second.fixture.acquire(&old).await;
        assert!(
            matches!(again, Acquired::Refused(Refused::Ended(_))),
            "{again:?}"
        );
        first.settled().await;
        let new = rival(&old);
        if lock_delay.is_some() {
            assert!(!has_granted(second.acquire(&new).await));
            sleep(LONG).await;
        }
        assert!(has_granted(second.acquire(&new).await));
        second.settled().await;
        second.without(&[0]);
        second.fixture.renewed(&new, None).await;
    }
}

/// What those have kept closed who shared the lock stays so at the node that follows.
#[tokio::test(start_paused = true)]
async fn an_eviction_that_was_left_unfinished_keeps_closed_what_was_shared() {
    let [first, second, _] = processes();
    let old = Claim {
        lock_delay: Some(LONG),
        ..in_mode(&claim(), permits(1, 1))
    };
    granted_and_gone_from_a_node(&first, &old).await;
    first.without(&[2]);
    let unfinished = first.quorum.evict(lock_of(&old), "stuck", deadlines());
    assert!(!unfinished.await.expect("a majority answers").is_complete);
    first.without(&[]);
    eventually("the node has evicted it", async || {
        first.held_at(&old).await.is_empty().then_some(())
    })
    .await;
    let new = in_mode(&rival(&old), permits(1, 1));
    assert!(!has_granted(second.acquire(&new).await));
    sleep(LONG).await;
    assert!(has_granted(second.acquire(&new).await));
}

/// All nodes answer: nobody has held the lock.
#[tokio::test(start_paused = true)]
async fn an_eviction_of_what_one_node_alone_has_is_complete_and_closes_no_other_node() {
    let [first, second, _] = processes();
    let rest = Claim {
        lock_delay: Some(LONG),
        ..claim()
    };
    first.leave_at(0, &rest).await;
    let evicting = first.quorum.evict(lock_of(&rest), "stuck", deadlines());
    let evicted = evicting.await.expect("the nodes answer");
    assert!(evicted.is_complete);
    assert!(has_granted(second.acquire(&rival(&rest)).await));
}

#[tokio::test(start_paused = true)]
async fn an_eviction_of_more_holders_than_it_lists_reaches_a_node_that_was_away() {
    let [first, second, _] = processes();
    let old: Vec<_> = {
        let one = reader(&claim());
        (0..300).map(|_| reader(&one)).collect()
    };
    for claim in &old {
        first.fixture.granted(claim).await;
    }
    first.settled().await;
    first.without(&[2]);
    let evicted = first.quorum.evict(lock_of(&old[0]), "stuck", deadlines());
    let evicted = evicted.await.expect("a majority answers");
    assert!(evicted.is_complete);
    assert_eq!(evicted.holders.total, 300);
    first.without(&[]);
    eventually("the node has evicted all", async || {
        first.held_at(&old[0]).await.is_empty().then_some(())
    })
    .await;
    second.without(&[0]);
    let new = in_mode(&rival(&old[0]), Mode::Exclusive);
    assert!(has_granted(second.acquire(&new).await));
}

/// The time in which a change may reach a node is over when the fencing tokens are recorded.
#[tokio::test(start_paused = true)]
async fn a_claim_that_holds_several_times_is_granted_while_a_node_is_silent() {
    for silent in 0..3 {
        let process = Process::alone();
        process.behaves(&[silent], &Behavior::Unanswered);
        for mode in [Mode::Exclusive, READ, permits(2, 3)] {
            let claim = at_depth(&in_mode(&claim(), mode), 2);
            process.fixture.granted(&claim).await;
            let deeper = process.acquire(&at_depth(&claim, 3)).await;
            let kind = deeper.expect("a majority answers").kind();
            assert_eq!(kind, Some(GrantKind::Reentered), "{mode:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_to_hold_several_times_is_not_overtaken_while_a_node_is_silent() {
    let process = Process::alone();
    let held = claim();
    process.fixture.granted(&held).await;
    let mut waiters = [2, 1].map(|depth| Waiter::new(at_depth(&rival(&held), depth)));
    for waiter in &mut waiters {
        process.fixture.still_waits(waiter).await;
    }
    process.settled().await;
    process.behaves(&[2], &Behavior::Unanswered);
    process.fixture.freed(&held).await;
    process.fixture.still_waits(&mut waiters[1]).await;
    process.fixture.granted_after_wait(&mut waiters[0]).await;
}

#[tokio::test(start_paused = true)]
async fn a_step_back_and_a_re_entry_last_although_the_change_before_is_late() {
    for enters_last in [false, true] {
        let [first, second, _] = processes();
        let claim = claim();
        let deep = at_depth(&claim, 3);
        let enter = async |process: &Process| {
            assert!(has_granted(process.acquire(&deep).await));
        };
        let step_back = async |process: &Process| {
            let stepped_back = process.fixture.step_back(&claim, 1).await;
            assert!(matches!(stepped_back, Released::SteppedBack(_)));
        };
        let begun = if enters_last { &deep } else { &claim };
        first.fixture.granted(begun).await;
        first.settled().await;
        first.behaves(&[2], &Behavior::Delayed(STEP * 4));
        second.without(&[1]);
        match enters_last {
            false => {
                enter(&first).await;
                step_back(&second).await;
            }
            true => {
                step_back(&first).await;
                enter(&second).await;
            }
        }
        sleep(STEP * 20).await;
        second.without(&[]);
        let expected = hold_count(if enters_last { 3 } else { 1 });
        let renewal = second.fixture.renewed(&claim, None).await;
        assert_eq!(renewal.lease.holder.hold_count, expected);
        second.settled().await;
        let shown = only(second.fixture.holders(lock_of(&claim)).await);
        assert_eq!(shown.hold_count, expected);
    }
}

/// Each process is slow to reach one node: its re-entry was answered without it, and so was the step back.
#[tokio::test(start_paused = true)]
async fn a_step_back_lasts_although_nodes_have_missed_re_entries_before_it() {
    let [first, second, third] = processes();
    let claim = claim();
    first.fixture.granted(&at_depth(&claim, 3)).await;
    first.settled().await;
    let slow = Behavior::Delayed(STEP * 60);
    first.behaves(&[2], &slow);
    second.behaves(&[0], &slow);
    for (process, depth) in [(&first, 6), (&second, 7)] {
        assert!(has_granted(process.acquire(&at_depth(&claim, depth)).await));
    }
    let stepped_back = first.fixture.step_back(&claim, 1).await;
    assert!(matches!(stepped_back, Released::SteppedBack(_)));
    sleep(STEP * 200).await;
    let shown = only(third.fixture.holders(lock_of(&claim)).await);
    assert_eq!(shown.hold_count, hold_count(1));
    let renewal = third.fixture.renewed(&claim, None).await;
    assert_eq!(renewal.lease.holder.hold_count, hold_count(1));
}
