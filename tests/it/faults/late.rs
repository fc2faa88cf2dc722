//! Commands that arrive late: after a retry on another connection, or after their client got its response.

use std::pin::pin;
use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, GrantKind, Granted, LockState, Mode, Refused, SuspendOptions,
};
use leasehold::service::AcquireOutcome;
use leasehold::store::StoreError;
use tokio::time::timeout;

use super::network::Network;
use super::{FOR_EVER, forgetful_redis, lasting};
use crate::support::fixture::{READ, Waiter, claim, deadline, in_mode, lock_of, rival};
use crate::support::proxy::Proxy;
use crate::support::stores::{redis_config, redis_store};
use crate::support::{EFFECT_TIMEOUT, eventually};

/// A request whose first try is held back, and which is retried after its connection was cut. The first try arrives a
/// second after the answer.
pub(super) async fn tried_twice<T>(network: &Network, request: impl Future<Output = T>) -> T {
    network.proxy.hold_back();
    let cuts = async {
        // Long enough for the command to be sent; the deadline of the request is much later.
        tokio::time::sleep(Duration::from_millis(200)).await;
        network.proxy.deliver_late(Duration::from_secs(1));
    };
    let (answer, ()) = tokio::join!(request, cuts);
    answer
}

#[tokio::test]
async fn a_refused_request_whose_first_try_arrives_late_is_not_granted() {
    let network = Network::start().await;
    for mode in [Mode::Exclusive, READ] {
        let holding = lasting(claim());
        network.beside.granted(&holding).await;
        let refused = in_mode(&lasting(rival(&holding)), mode);
        let late = network.proxy.late();
        let answer = tried_twice(&network, network.behind.acquire(&refused)).await;
        assert!(
            matches!(answer, Ok(AcquireOutcome::Refused(Refused::Blocked(_)))),
            "{answer:?}"
        );
        network.beside.release(&holding).await.expect("it is well");
        eventually("the first try arrives", async || {
            (network.proxy.late() > late).then_some(())
        })
        .await;
        let view = network.beside.service.inspect(lock_of(&holding)).await;
        assert_eq!(view.expect("it is well").state, LockState::Free);
    }
}

#[tokio::test]
async fn a_waiter_whose_first_try_arrives_late_leaves_nothing_behind() {
    let network = Network::start().await;
    let holding = lasting(claim());
    network.beside.granted(&holding).await;
    let waiting = lasting(rival(&holding));
    let wait = Duration::from_millis(700);
    let answer = tried_twice(&network, network.behind.acquire_within(&waiting, wait)).await;
    assert!(
        matches!(answer, Ok(AcquireOutcome::TimedOut(_))),
        "{answer:?}"
    );
    eventually("the first try arrives", async || {
        (network.proxy.late() > 0).then_some(())
    })
    .await;
    network.beside.release(&holding).await.expect("it is well");
    let view = network.beside.service.inspect(lock_of(&holding)).await;
    let view = view.expect("it is well");
    assert_eq!((view.state, view.queue.length), (LockState::Free, 0));
}

/// The client has retried at another process when the first request arrives, which nobody waits for any more.
#[tokio::test]
async fn a_waiter_keeps_its_place_though_an_earlier_request_of_its_client_arrives_late() {
    let network = Network::start().await;
    let holding = lasting(claim());
    network.beside.granted(&holding).await;
    let waiting = lasting(rival(&holding));
    network.proxy.stall(true);
    let hung_up = network.behind.acquire_within(&waiting, FOR_EVER);
    assert!(
        tokio::time::timeout(Duration::from_millis(200), hung_up)
            .await
            .is_err()
    );
    let is_queued = async |length| {
        eventually("the retry waits", async || {
            let view = network.beside.service.inspect(lock_of(&holding)).await;
            (view.expect("it is well").queue.length == length).then_some(())
        })
        .await;
    };
    let next = async {
        is_queued(1).await;
        let next = lasting(rival(&holding));
        network.beside.acquire_within(&next, FOR_EVER).await
    };
    let goes_on = async {
        is_queued(2).await;
        // The late request cannot leave the queue for a second, if it has joined it.
        network.proxy.delay_replies(Duration::from_secs(1));
        network.proxy.stall(false);
        tokio::time::sleep(Duration::from_millis(300)).await;
        network.beside.release(&holding).await.expect("it is well");
        std::future::pending::<()>().await;
    };
    let retry = network.beside.acquire_within(&waiting, FOR_EVER);
    let first = async {
        tokio::select! {
            biased;
            granted = retry => granted,
            granted = next => panic!("overtaken: {granted:?}"),
            () = goes_on => unreachable!("it does not end"),
        }
    };
    let granted = tokio::time::timeout(EFFECT_TIMEOUT, first).await;
    assert!(
        matches!(
            granted,
            Ok(Ok(AcquireOutcome::Granted(Granted {
                kind: GrantKind::New,
                ..
            })))
        ),
        "{granted:?}"
    );
}

#[tokio::test]
async fn an_eviction_whose_first_try_arrives_late_leaves_the_next_holder_alone() {
    let network = Network::start().await;
    for mode in [Mode::Exclusive, READ] {
        let evicted = in_mode(&lasting(claim()), mode);
        network.beside.granted(&evicted).await;
        let late = network.proxy.late();
        let holders = tried_twice(&network, network.behind.evict(&evicted)).await;
        assert_eq!(holders.expect("the second try is answered").len(), 1);
        let next = in_mode(&lasting(rival(&evicted)), mode);
        network.beside.granted(&next).await;
        eventually("the first try arrives", async || {
            (network.proxy.late() > late).then_some(())
        })
        .await;
        network.beside.assert_holds(&next).await;
    }
}

/// Its client got the response "outcome unknown" long ago.
#[tokio::test]
async fn an_eviction_that_arrives_after_its_deadline_evicts_nobody() {
    let network = Network::start().await;
    let holding = lasting(claim());
    network.beside.granted(&holding).await;
    network.proxy.hold_back();
    let unclear = network.behind.evict(&holding).await;
    assert!(
        matches!(unclear, Err(StoreError::Unknown { .. })),
        "{unclear:?}"
    );
    let late = network.proxy.late();
    network.proxy.deliver_late(Duration::from_secs(1));
    eventually("it arrives", async || {
        (network.proxy.late() > late).then_some(())
    })
    .await;
    network.beside.assert_holds(&holding).await;
}

/// The reply to the first try is lost. The second must not evict a holder that was granted meanwhile, and returns the
/// holders that the first one evicted.
#[tokio::test]
async fn a_repeated_eviction_evicts_no_others_and_repeats_its_answer() {
    let network = Network::start().await;
    // Loads the script into Redis.
    let nobody = network.beside.evict(&claim()).await;
    nobody.expect("the network is well");
    let evicted = lasting(claim());
    let fence = network.beside.granted(&evicted).await;
    let next = lasting(rival(&evicted));
    network.proxy.swallow_replies();
    let request = network.behind.evict(&evicted);
    let others = async {
        eventually("the eviction arrives", async || {
            let answer = network.beside.acquire(&next).await;
            matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::New)).then_some(())
        })
        .await;
        network.proxy.pass_replies();
    };
    let (holders, ()) = tokio::join!(request, others);
    let holders = holders.expect("the second try is answered");
    let fences: Vec<_> = holders.iter().map(|holder| holder.fence.get()).collect();
    assert_eq!(fences, [fence]);
    network.beside.assert_holds(&next).await;
}

/// It had to wait for a connection. Meanwhile, another waiter of its process has come back to its place.
#[tokio::test]
async fn a_poll_that_is_sent_late_removes_no_waiter_before_it() {
    let server = forgetful_redis().await;
    let proxy = Proxy::start(server.address()).await;
    let store = redis_store(&proxy.database(0), &redis_config()).await;
    let store = store.expect("it is well");
    let poll = async |waiter: &Waiter| {
        let Waiter { claim, attempt, .. } = waiter;
        let request = Some(&waiter.queue_request);
        store.acquire(claim, *attempt, request, deadline()).await
    };
    let queued = async |claim: Claim| {
        let mut waiter = Waiter::new(claim);
        match poll(&waiter).await {
            Ok(Acquired::Waiting(waiting)) => waiter.queue_request.ticket = Some(waiting.ticket),
            other => panic!("{other:?}"),
        }
        waiter
    };
    let holding = lasting(claim());
    let held = store.acquire(&holding, Attempt::random(), None, deadline());
    held.await.expect("it is well");
    let first = queued(rival(&holding)).await;
    let mut head = queued(rival(&holding)).await;
    head.queue_request.is_head = true;
    let options = SuspendOptions {
        keep: FOR_EVER,
        lists_conflicts: false,
    };
    let left = store.suspend(&first.claim, options, deadline());
    left.await.expect("it is well");
    proxy.refuse(true);
    proxy.cut();
    let mut late = pin!(poll(&head));
    let sent = timeout(Duration::from_millis(300), &mut late).await;
    assert!(sent.is_err(), "it has no connection");
    proxy.refuse(false);
    let first = first.again();
    eventually("it is back", async || poll(&first).await.ok()).await;
    let late = late.await;
    assert!(matches!(late, Ok(Acquired::Waiting(_))), "{late:?}");
    let view = store.inspect(lock_of(&holding), deadline()).await;
    assert_eq!(view.expect("it is well").queue.length, 2);
}
