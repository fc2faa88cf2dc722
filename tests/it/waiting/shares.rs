//! What waiting claims and streams do in the store is within the limits of their peers.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use leasehold::domain::{Mode, NotHolder, Refused, Share};
use leasehold::limits::{Budget, Gate, GatePermit, Limit, PeerLimits, RequestPermit, Slot};
use leasehold::service::{AcquireOutcome, HoldEvent, QueueFull};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::holding::{acquired, brief};
use super::{LONG_WAIT, Waiting, assert_at_once, held, releases, rivals, settle, takes, view};
use crate::support::fixture::{claim, claim_on_all, fresh_name, lock_of, names, rival};
use crate::support::scripted_store::{Operation, ScriptedStore};
use crate::support::stores::{OPERATION_TIMEOUT, stream_of};

/// A slot for one operation of one peer.
async fn slot_of(peer: &Arc<PeerLimits>) -> Slot {
    slot_within(&Gate::new(100), peer, None).await
}

async fn slot_within(all: &Gate, peer: &Arc<PeerLimits>, request: Option<RequestPermit>) -> Slot {
    let of_peer = Some((peer, &peer.operations, Limit::OperationsPerPeer));
    let slot = Slot::take(
        (all, Limit::Operations),
        of_peer,
        request,
        || 1,
        Instant::now(),
    );
    slot.await.expect("there is room")
}

/// Occupies the gate with another operation.
async fn occupied(gate: &Gate) -> GatePermit {
    let passed = gate.pass(1, Instant::now()).await;
    passed.expect("nothing else is in flight")
}

/// Waiters of other peers and other processes wait for it.
#[tokio::test(start_paused = true)]
async fn a_waiting_claim_polls_whatever_else_its_peer_does() {
    let (service, _) = ScriptedStore::service();
    let peer = Arc::new(with_one_of_each());
    let holder = held(&service).await;
    let within = service.within(slot_of(&peer).await);
    let waiting = Waiting::queued(&within, &Arc::new(rival(&holder)), LONG_WAIT).await;
    let _another = occupied(&peer.operations).await;
    let released = Instant::now();
    releases(&service, &holder).await;
    waiting.granted().await;
    assert_at_once(released);
}

/// A client may leave the answer unread for as long as the server lets it.
#[tokio::test(start_paused = true)]
async fn a_grant_that_is_not_delivered_is_no_operation_in_flight_until_it_is_rolled_back() {
    let (service, store) = ScriptedStore::service();
    let (all, peer) = (Gate::new(1), Arc::new(with_one_of_each()));
    let within = service.within(slot_within(&all, &peer, None).await);
    let answer = within.acquire(Arc::new(claim()), Duration::ZERO).await;
    let (another, of_peer) = (occupied(&all).await, occupied(&peer.operations).await);
    drop(answer);
    settle().await;
    assert_eq!(store.cleanups(), [], "it takes its turn");
    drop((another, of_peer));
    settle().await;
    assert_eq!(store.cleanups(), [Operation::Withdraw]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_answer_is_not_read_is_no_operation_in_flight() {
    let (service, _) = ScriptedStore::service();
    let holder = held(&service).await;
    let (all, peer) = (Gate::new(1), Arc::new(with_one_of_each()));
    for claim in [claim(), rival(&holder)] {
        let within = service.within(slot_within(&all, &peer, None).await);
        let _unread = stream_of(&within, Arc::new(claim), Some(Duration::ZERO));
        settle().await;
        let _both = (occupied(&all).await, occupied(&peer.operations).await);
    }
}

/// Such a poll keeps the store busy for long, so the peer does not matter, but all that is in flight does.
#[tokio::test(start_paused = true)]
async fn a_waiting_claim_on_several_locks_takes_its_turn_to_poll() {
    let (service, store) = ScriptedStore::service();
    let (all, peer) = (Gate::new(1), Arc::new(with_one_of_each()));
    let locks = names(&[fresh_name(), fresh_name()]);
    let holder = Arc::new(claim_on_all(locks));
    takes(&service, &holder).await;
    let within = service.within(slot_within(&all, &peer, None).await);
    let waiting = Waiting::queued(&within, &Arc::new(rival(&holder)), LONG_WAIT).await;
    let _another_of_peer = occupied(&peer.operations).await;
    let another = occupied(&all).await;
    let polls = store.polls();
    releases(&service, &holder).await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(store.polls(), polls, "another operation is in flight");
    drop(another);
    waiting.granted().await;
}

#[tokio::test(start_paused = true)]
async fn the_time_until_there_is_a_slot_counts_as_waiting() {
    let (service, _) = ScriptedStore::service();
    let gate = Gate::new(1);
    let holder = held(&service).await;
    let another = occupied(&gate).await;
    let deadline = Instant::now() + LONG_WAIT;
    let slot = Slot::take((&gate, Limit::Operations), None, None, || 1, deadline);
    let (slot, ()) = tokio::join!(slot, async {
        sleep(Duration::from_millis(1_500)).await;
        drop(another);
    });
    let admitted = Instant::now();
    let within = service.within(slot.expect("in time"));
    let waiting = Waiting::on(&within, &Arc::new(rival(&holder)), Duration::from_secs(1));
    waiting.timed_out().await;
    assert_at_once(admitted);
}

/// What it still has to do does not pile up behind claims that come and go.
#[tokio::test(start_paused = true)]
async fn a_claim_keeps_its_places_until_it_has_left_the_queue() {
    let (service, store) = ScriptedStore::service_with(|config| config.waiters_max = 1);
    let peer = Arc::new(with_one_of_each());
    let holder = held(&service).await;
    let [first, second] = &rivals(&holder, 2)[..] else {
        unreachable!("two rivals");
    };
    let within = service.within(slot_of(&peer).await);
    let waiting = Waiting::queued(&within, first, Duration::from_secs(1)).await;
    let another = occupied(&peer.operations).await;
    let not_granted = waiting.timed_out().await;
    assert_eq!(not_granted.position, None, "the store was not asked");
    assert_eq!(store.cleanups().len(), 0);
    let refused = Waiting::on(&service, second, LONG_WAIT).outcome().await;
    let full = AcquireOutcome::TooManyWaiters(QueueFull::Process { waiters: 1 });
    assert_eq!(refused, full);
    drop(another);
    settle().await;
    assert_eq!(view(&service, &holder).await.queue.length, 0);
    let _second = Waiting::queued(&service, second, LONG_WAIT).await;
}

/// It may do so for long, and they may need another part of the store, such as another primary of a cluster.
#[tokio::test(start_paused = true)]
async fn claims_that_cannot_leave_the_queue_yet_keep_no_other_operation_waiting() {
    for goes in [ScriptedStore::goes_down, ScriptedStore::goes_silent] {
        let (service, store) = ScriptedStore::service();
        let (all, peer) = (Gate::new(1), Arc::new(with_one_of_each()));
        let holder = held(&service).await;
        let within = service.within(slot_within(&all, &peer, None).await);
        let claim = Arc::new(rival(&holder));
        let waiting = Waiting::queued(&within, &claim, Duration::from_secs(1)).await;
        goes(&store, true);
        // It has no position to report, or has found the store away.
        drop((waiting.answer().await, within));
        settle().await;
        assert!(!store.cleanups().is_empty());
        for gate in [&peer.operations, &all] {
            let soon = Instant::now() + OPERATION_TIMEOUT;
            assert!(gate.pass(1, soon).await.is_some(), "it has the slot");
        }
        goes(&store, false);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(view(&service, &holder).await.queue.length, 0);
    }
}

/// Until then its request counts, so that streams that come and go do not pile up.
#[tokio::test(start_paused = true)]
async fn a_stream_that_closes_releases_within_the_limit_of_its_peer() {
    let (service, store) = ScriptedStore::service();
    let peer = Arc::new(with_one_of_each());
    let claim = brief();
    let requests = Budget::new(10);
    let [of_peer, of_all] = [(); 2].map(|()| requests.take(1).expect("there is room"));
    let permit = RequestPermit::new(of_peer, of_all, Arc::clone(&peer));
    let slot = slot_within(&Gate::new(1), &peer, Some(permit)).await;
    let within = service.within(slot);
    let mut hold = stream_of(&within, Arc::clone(&claim), None);
    acquired(&mut hold).await;
    let another = occupied(&peer.closings).await;
    drop((hold, within));
    sleep(Duration::from_millis(500)).await;
    assert_eq!(store.cleanups().len(), 0);
    assert_eq!(requests.used(), 2);
    drop(another);
    settle().await;
    assert_eq!(store.cleanups(), [Operation::Withdraw]);
    assert_eq!(requests.used(), 0);
    takes(&service, &Arc::new(rival(&claim))).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_holds_occupies_no_slot() {
    let (service, _) = ScriptedStore::service();
    let peer = Arc::new(with_one_of_each());
    let within = service.within(slot_of(&peer).await);
    let mut hold = stream_of(&within, brief(), None);
    acquired(&mut hold).await;
    settle().await;
    occupied(&peer.operations).await;
}

/// The store is busy with a long answer for as long as with many short ones.
#[tokio::test(start_paused = true)]
async fn the_next_answer_is_expected_to_list_as_many_holders() {
    let (service, _) = ScriptedStore::service();
    let claim = claim();
    for holder in rivals(&claim, 8) {
        let mut holder = Arc::unwrap_or_clone(holder);
        holder.mode = Mode::Shared(Share::READ);
        takes(&service, &Arc::new(holder)).await;
    }
    let lock = lock_of(&claim).clone();
    let names = std::slice::from_ref(&lock);
    assert_eq!(service.expected_holders(names), 0);
    let refused = service.acquire(Arc::new(claim), Duration::ZERO).await;
    assert!(matches!(
        refused.unwrap().outcome,
        AcquireOutcome::Refused(Refused::Blocked(_))
    ));
    assert_eq!(service.expected_holders(names), 8);
    service
        .evict(lock.clone(), String::new(), |_| {})
        .await
        .unwrap();
    for expected in [4, 2, 1, 0] {
        service.inspect(&lock).await.unwrap();
        assert_eq!(service.expected_holders(names), expected);
    }
}

/// The streams of one peer share its limit of renewals in flight, even if it has thousands.
#[tokio::test(start_paused = true)]
async fn a_stream_renews_within_the_limit_of_its_peer() {
    let (service, _) = ScriptedStore::service();
    let peer = Arc::new(with_one_of_each());
    let within = service.within(slot_of(&peer).await);
    let mut hold = stream_of(&within, brief(), None);
    acquired(&mut hold).await;
    let another = occupied(&peer.renewals).await;
    sleep(Duration::from_millis(1_500)).await;
    assert!(hold.next().now_or_never().is_none(), "it has no permit");
    drop(another);
    let event = hold.next().await;
    assert!(matches!(event, Some(HoldEvent::Renewed(_))), "{event:?}");
    // It holds no permit between renewals.
    let another = peer.renewals.pass(1, Instant::now() + LONG_WAIT);
    let _another = another.await.unwrap();
    let event = hold.next().await;
    assert!(
        matches!(event, Some(HoldEvent::Lost(NotHolder::Expired))),
        "{event:?}"
    );
}

/// Those of all peers together, and those of the clients of a proxy, which have no shares.
#[tokio::test(start_paused = true)]
async fn a_stream_renews_within_the_limit_of_all() {
    let (service, _) = ScriptedStore::service();
    let all = Gate::new(1);
    let mut hold = service.hold(brief(), None, pending(), (), all.clone());
    acquired(&mut hold).await;
    let another = occupied(&all).await;
    sleep(Duration::from_millis(1_500)).await;
    assert!(hold.next().now_or_never().is_none(), "it has no permit");
    drop(another);
    let event = hold.next().await;
    assert!(matches!(event, Some(HoldEvent::Renewed(_))), "{event:?}");
    let _another = occupied(&all).await;
}

fn with_one_of_each() -> PeerLimits {
    PeerLimits {
        connections: Budget::new(1),
        http2_connections: Budget::new(1),
        handshakes: Budget::new(1),
        requests: Budget::new(1),
        answer_bytes: Budget::new(1),
        body_bytes: Budget::new(1),
        operations: Gate::new(1),
        listings: Gate::new(1),
        event_streams: Gate::new(1),
        places: Budget::new(1),
        renewals: Gate::new(1),
        closings: Gate::new(1),
        pipelined: Arc::new(Semaphore::new(1)),
    }
}
