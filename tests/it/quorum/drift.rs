//! How much longer nodes keep a lease than its holder may count on, and that no limit is exceeded for that.

use std::time::Duration;

use leasehold::domain::Claim;
use leasehold::store::quorum::Drift;
use tokio::time::sleep;

use super::nodes::{Process, plain_stores};
use crate::support::fixture::{LONG, SHORT, assert_held, claim, lock_of, only, rival, ttl};

#[tokio::test(start_paused = true)]
async fn nodes_keep_a_lease_until_its_holder_must_have_noticed_the_end() {
    let process = Process::with_drift(&plain_stores(3), Drift::per_thousand(10));
    let claim = claim();
    let lease = process.fixture.granted(&claim).await;
    assert_eq!((lease.ttl.get(), lease.holder.expires_in), (LONG, LONG));
    // A hundredth of a minute and two milliseconds.
    process
        .fixture
        .advance(LONG + Duration::from_millis(601))
        .await;
    assert_held(&process.fixture.acquire(&rival(&claim)).await);
    process.fixture.advance(Duration::from_millis(1)).await;
    process.fixture.granted(&rival(&claim)).await;
}

/// The drift of an hour is longer than the lease.
#[tokio::test(start_paused = true)]
async fn a_lease_ends_with_its_max_hold_whatever_its_ttl_is_or_was() {
    const MOST: Duration = Duration::from_secs(10);
    const HOUR: Duration = Duration::from_secs(3_600);
    for (at_first, changed) in [
        (HOUR, None),
        (HOUR, Some(LONG)),
        (MOST, Some(HOUR)),
        (MOST * 2, Some(MOST)),
    ] {
        let process = Process::with_drift(&plain_stores(3), Drift::per_thousand(10));
        let claim = Claim {
            ttl: ttl(at_first),
            max_hold: Some(MOST),
            ..claim()
        };
        let lasts = process.fixture.granted(&claim).await.holder.expires_in;
        assert!(lasts <= MOST && lasts > MOST - SHORT, "{lasts:?}");
        process.fixture.advance(MOST / 2).await;
        let renewed = process.fixture.renewed(&claim, changed).await;
        for lasts in [renewed.lease.holder.expires_in, renewed.remaining_before] {
            assert!(lasts <= MOST / 2 && lasts > MOST / 2 - SHORT, "{lasts:?}");
        }
        process.fixture.advance(MOST / 2).await;
        process.fixture.granted(&rival(&claim)).await;
    }
}

/// It grants nothing for a while when the lease is renewed.
#[tokio::test(start_paused = true)]
async fn a_node_that_gets_a_lease_back_late_keeps_it_no_longer_than_its_max_hold() {
    let process = Process::alone();
    process.without(&[2]);
    let claim = Claim {
        max_hold: Some(LONG / 2),
        ..claim()
    };
    process.fixture.granted(&claim).await;
    process.settled().await;
    process.without(&[]);
    process.nodes[2].recovers(true);
    process.fixture.renewed(&claim, None).await;
    sleep(SHORT * 3).await;
    process.nodes[2].recovers(false);
    process.settled().await;
    let lasts = [0, 2].map(|node| process.holders_at(node, lock_of(&claim)));
    let [first, last] = lasts;
    let [first, last] = [only(first.await.listed), only(last.await.listed)];
    assert!(last.expires_in <= first.expires_in, "{:?}", last.expires_in);
}
