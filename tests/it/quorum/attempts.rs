//! The attempts by which nodes know a request: after a round in which too few of them granted the locks, another one than
//! before. What was granted by any of them can be taken back.

use leasehold::domain::{Attempt, Claim, RenewOptions, Renewed};
use leasehold::store::LockStore;

use super::nodes::{Process, has_granted};
use crate::support::fixture::{LONG, assert_held, claim, deadline, rival, ttl};

async fn renew(process: &Process, claim: &Claim) -> Renewed {
    let change = RenewOptions::AS_BEFORE;
    let renewing = process
        .quorum
        .renew(&claim.names, claim.token, change, deadline());
    renewing.await.expect("a majority answers")
}

/// The times are longer than nodes refuse an attempt that they have rolled back.
#[tokio::test(start_paused = true)]
async fn a_stream_that_was_granted_its_lease_in_a_later_round_releases_it_whenever_it_closes() {
    let process = Process::alone();
    let (stream, holding) = (Attempt::random(), claim());
    let claim = Claim {
        takes_over: true,
        ttl: ttl(LONG * 3),
        ..rival(&holding)
    };
    for node in [0, 1] {
        process.leave_at(node, &holding).await;
    }
    let refused = process.fixture.attempt(&claim, stream).await;
    assert_held(&refused.expect("the nodes answer"));
    process.fixture.freed(&holding).await;
    assert!(has_granted(process.fixture.attempt(&claim, stream).await));
    process.settled().await;
    for _ in 0..2 {
        process.fixture.advance(LONG * 2).await;
        process.quorum.refresh_health().await;
        let renewed = renew(&process, &claim).await;
        assert!(matches!(renewed, Renewed::Extended(_)), "{renewed:?}");
        process.settled().await;
    }
    process.fixture.close(&claim, stream).await;
    process.settled().await;
    assert!(process.held_at(&claim).await.is_empty());
}
