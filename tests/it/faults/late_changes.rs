//! Changes of a lease that arrive late: a renewal, a re-entry or a lower hold count, after the client got its response.

use std::time::Duration;

use leasehold::domain::{
    Claim, GrantKind, Holder, LockState, Mode, Refused, Released, RenewOptions, Renewed,
};
use leasehold::service::AcquireOutcome;
use leasehold::store::StoreError;

use super::late::tried_twice;
use super::network::Network;
use super::{FOR_EVER, Replica, lasting};
use crate::support::eventually;
use crate::support::fixture::{
    READ, at_depth, claim, claim_on_all, fresh_name, hold_count, in_mode, names, only, owned_by,
    permits, rival, ttl,
};
use crate::support::stores::OPERATION_TIMEOUT;

/// Much shorter than a lasting lease, and longer than a request takes.
const BRIEF: Duration = Duration::from_secs(10);

fn lasts_for(duration: Duration) -> RenewOptions {
    RenewOptions {
        ttl: Some(ttl(duration)),
        ..RenewOptions::default()
    }
}

fn steps_down() -> RenewOptions {
    RenewOptions {
        mode: Some(READ),
        ..RenewOptions::default()
    }
}

/// Leases that the scripts store and renew in different ways.
fn of_every_kind() -> Vec<Claim> {
    vec![
        lasting(claim()),
        owned_by(&at_depth(&lasting(claim()), 2), "pod-1"),
        lasting(in_mode(&claim(), READ)),
        lasting(in_mode(&claim(), permits(2, 3))),
        lasting(claim_on_all(names(&[fresh_name(), fresh_name()]))),
    ]
}

async fn connected(network: &Network) {
    eventually("there is a connection", async || {
        network.behind.service.inspect(&fresh_name()).await.ok()
    })
    .await;
}

/// A request that times out while its commands are held back.
async fn unclear<T: std::fmt::Debug>(
    network: &Network,
    request: impl Future<Output = Result<T, StoreError>>,
) {
    connected(network).await;
    network.proxy.hold_back();
    let answer = request.await;
    let is_unclear = matches!(answer, Err(StoreError::Unknown { .. }));
    assert!(is_unclear, "{answer:?}");
}

/// Delivers the held-back commands at once.
async fn arrives(network: &Network) {
    let late = network.proxy.late();
    network.proxy.deliver_late(Duration::ZERO);
    has_arrived(network, late).await;
}

async fn has_arrived(network: &Network, late: usize) {
    eventually("it arrives", async || {
        (network.proxy.late() > late).then_some(())
    })
    .await;
}

impl Replica {
    async fn changes(&self, claim: &Claim, change: RenewOptions) -> Result<Renewed, StoreError> {
        let names = claim.names.clone();
        self.service.renew(names, claim.token, change).await
    }

    async fn steps_back(&self, claim: &Claim, depth: u64) -> Result<Released, StoreError> {
        let (names, depth) = (claim.names.clone(), Some(hold_count(depth)));
        let released = self
            .service
            .release(names, claim.token, depth, |_| {})
            .await?;
        Ok(only(released))
    }

    /// Renews the lease for longer than any test lasts.
    async fn keeps(&self, claim: &Claim) {
        let answer = self.changes(claim, lasts_for(FOR_EVER)).await;
        assert!(matches!(answer, Ok(Renewed::Extended(_))), "{answer:?}");
    }

    /// The only holder of each lock.
    async fn holders(&self, claim: &Claim) -> Vec<Holder> {
        let mut holders = Vec::new();
        for name in claim.names.iter() {
            let view = self.service.inspect(name).await.expect("it is well");
            let LockState::Held(held) = view.state else {
                panic!("{name:?} is held, but: {:?}", view.state);
            };
            holders.push(only(held.listed));
        }
        holders
    }

    async fn depth(&self, claim: &Claim) -> u64 {
        assert_eq!(claim.names.len(), 1);
        only(self.holders(claim).await).hold_count.get().into()
    }

    async fn assert_lasting(&self, claim: &Claim) {
        for holder in self.holders(claim).await {
            let left = holder.expires_in;
            assert!(left > FOR_EVER / 2, "{left:?} left of {:?}", claim.names);
        }
    }
}

/// The client retried on another replica and got a lease that the late request must not shorten.
#[tokio::test]
async fn a_renewal_that_arrives_after_its_deadline_changes_nothing() {
    let network = Network::start().await;
    network.behind.checks.abort();
    for held in of_every_kind() {
        network.beside.acquire(&held).await.expect("it is well");
        unclear(&network, network.behind.changes(&held, lasts_for(BRIEF))).await;
        network.beside.keeps(&held).await;
        arrives(&network).await;
        network.beside.assert_lasting(&held).await;
    }
}

#[tokio::test]
async fn a_renewal_that_arrives_before_its_deadline_is_carried_out() {
    let network = Network::start().await;
    network.behind.checks.abort();
    for held in of_every_kind() {
        network.beside.acquire(&held).await.expect("it is well");
        connected(&network).await;
        network.proxy.stall(true);
        let goes_on = async {
            tokio::time::sleep(OPERATION_TIMEOUT / 2).await;
            network.proxy.stall(false);
        };
        let renewal = network.behind.changes(&held, lasts_for(FOR_EVER));
        let (renewed, ()) = tokio::join!(renewal, goes_on);
        assert!(matches!(renewed, Ok(Renewed::Extended(_))), "{renewed:?}");
    }
}

#[tokio::test]
async fn a_step_down_that_arrives_after_its_deadline_changes_nothing() {
    let network = Network::start().await;
    network.behind.checks.abort();
    let held = lasting(claim());
    network.beside.granted(&held).await;
    unclear(&network, network.behind.changes(&held, steps_down())).await;
    network.beside.keeps(&held).await;
    arrives(&network).await;
    let holder = only(network.beside.holders(&held).await);
    assert_eq!(holder.mode, Mode::Exclusive);
    let reading = in_mode(&rival(&held), READ);
    let refused = network.beside.acquire(&reading).await;
    assert!(
        matches!(refused, Ok(AcquireOutcome::Refused(Refused::Blocked(_)))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_change_of_the_hold_count_that_arrives_after_its_deadline_changes_nothing() {
    let network = Network::start().await;
    network.behind.checks.abort();
    let held = at_depth(&lasting(claim()), 3);
    network.beside.granted(&held).await;
    let deeper = at_depth(&held, 5);
    unclear(&network, network.behind.acquire(&deeper)).await;
    network.beside.keeps(&held).await;
    arrives(&network).await;
    assert_eq!(network.beside.depth(&held).await, 3);
    unclear(&network, network.behind.steps_back(&held, 1)).await;
    network.beside.keeps(&held).await;
    arrives(&network).await;
    assert_eq!(network.beside.depth(&held).await, 3);
}

/// A re-entry that waits for so long is answered while its command is held back, and changes nothing afterwards.
async fn assert_nothing_re_entered(
    network: &Network,
    wait: Duration,
    meanwhile: impl Future<Output = ()>,
) {
    network.behind.checks.abort();
    let held = lasting(claim());
    network.beside.granted(&held).await;
    let twice = at_depth(&held, 2);
    let request = unclear(network, network.behind.acquire_within(&twice, wait));
    tokio::join!(request, meanwhile);
    network.beside.keeps(&held).await;
    arrives(network).await;
    assert_eq!(network.beside.depth(&held).await, 1);
}

/// Its answer comes when the wait is over, which is long before the deadline of the store.
#[tokio::test]
async fn a_re_entry_that_arrives_after_the_end_of_its_wait_changes_nothing() {
    let network = Network::start().await;
    assert_nothing_re_entered(&network, OPERATION_TIMEOUT / 10, async {}).await;
}

#[tokio::test]
async fn a_re_entry_that_arrives_after_the_answer_of_a_process_that_stops_changes_nothing() {
    let network = Network::start().await;
    let stops = async {
        tokio::time::sleep(OPERATION_TIMEOUT / 10).await;
        network.behind.service.drain();
    };
    assert_nothing_re_entered(&network, FOR_EVER, stops).await;
}

/// The connection broke and there was no other one, so the request could only wait for its deadline.
#[tokio::test]
async fn a_change_that_is_under_way_on_a_broken_connection_is_answered_once_it_is_too_late() {
    let network = Network::start().await;
    network.behind.checks.abort();
    let held = at_depth(&lasting(claim()), 3);
    network.beside.granted(&held).await;
    for is_renewal in [true, false] {
        network.proxy.hold_back();
        let late = network.proxy.late();
        let breaks = async {
            // Long enough for the command to be sent; the deadline of the request is much later.
            tokio::time::sleep(Duration::from_millis(200)).await;
            network.proxy.refuse(true);
            network.proxy.deliver_late(Duration::from_secs(1));
        };
        let request = async {
            if is_renewal {
                let renewed = network.behind.changes(&held, lasts_for(BRIEF)).await;
                assert!(matches!(renewed, Err(StoreError::Unknown { .. })));
            } else {
                let deeper = network.behind.acquire(&at_depth(&held, 5)).await;
                assert!(matches!(deeper, Err(StoreError::Unknown { .. })));
            }
            network.beside.keeps(&held).await;
            network.beside.steps_back(&held, 3).await
        };
        let (stepped_back, ()) = tokio::join!(request, breaks);
        assert!(matches!(stepped_back, Ok(Released::SteppedBack(_))));
        has_arrived(&network, late).await;
        network.beside.assert_lasting(&held).await;
        assert_eq!(network.beside.depth(&held).await, 3);
        network.proxy.refuse(false);
        eventually("the network is well", async || {
            network
                .behind
                .changes(&held, RenewOptions::default())
                .await
                .ok()
        })
        .await;
    }
}

#[tokio::test]
async fn a_renewal_whose_first_try_arrives_late_is_carried_out_once() {
    let network = Network::start().await;
    network.behind.checks.abort();
    for held in of_every_kind() {
        network.beside.acquire(&held).await.expect("it is well");
        let late = network.proxy.late();
        let answer = tried_twice(&network, network.behind.changes(&held, lasts_for(BRIEF))).await;
        assert!(matches!(answer, Ok(Renewed::Extended(_))), "{answer:?}");
        network.beside.keeps(&held).await;
        has_arrived(&network, late).await;
        network.beside.assert_lasting(&held).await;
    }
}

#[tokio::test]
async fn a_change_of_the_hold_count_whose_first_try_arrives_late_is_carried_out_once() {
    let network = Network::start().await;
    network.behind.checks.abort();
    let held = lasting(claim());
    let (twice, thrice) = (at_depth(&held, 2), at_depth(&held, 3));

    let late = network.proxy.late();
    let answer = tried_twice(&network, network.behind.acquire(&twice)).await;
    assert!(
        matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::New)),
        "{answer:?}"
    );
    let answer = network.beside.steps_back(&held, 1).await;
    assert!(matches!(answer, Ok(Released::SteppedBack(_))), "{answer:?}");
    has_arrived(&network, late).await;
    assert_eq!(network.beside.depth(&held).await, 1, "granted at first");

    let late = network.proxy.late();
    let answer = tried_twice(&network, network.behind.acquire(&thrice)).await;
    assert!(
        matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::Reentered)),
        "{answer:?}"
    );
    let answer = network.beside.steps_back(&held, 1).await;
    assert!(matches!(answer, Ok(Released::SteppedBack(_))), "{answer:?}");
    has_arrived(&network, late).await;
    assert_eq!(network.beside.depth(&held).await, 1, "entered again");

    network.beside.acquire(&thrice).await.expect("it is well");
    let late = network.proxy.late();
    let answer = tried_twice(&network, network.behind.steps_back(&held, 1)).await;
    assert!(matches!(answer, Ok(Released::SteppedBack(_))), "{answer:?}");
    network.beside.acquire(&thrice).await.expect("it is well");
    has_arrived(&network, late).await;
    assert_eq!(network.beside.depth(&held).await, 3, "stepped back");
    let freed = network.beside.release(&held).await;
    assert!(matches!(freed, Ok(Released::Freed { .. })), "{freed:?}");
}
