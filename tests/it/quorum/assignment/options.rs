//! What else a node gives a lease that it was told to.

use leasehold::domain::{Claim, Lease, Metadata};
use leasehold::store::assignment::{Assigned, FenceChange};

use super::{NodeFixture, raised};
use crate::support::fixture::{LONG, SHORT, claim, in_mode, owned_by, permits, rival};

pub(super) async fn a_lease_gets_what_the_claim_asks_for(node: &NodeFixture) {
    for plain in [claim(), in_mode(&claim(), permits(1, 1))] {
        let limited = Claim {
            min_hold: Some(LONG / 4),
            max_hold: Some(LONG / 2),
            lock_delay: Some(LONG),
            metadata: Some(Metadata::from_json_object("{\"a\":1}").expect("an object")),
            takes_over: true,
            ..owned_by(&plain, "an owner")
        };
        let lease = node.fixture.granted(&plain).await;
        for asks in [&limited, &plain] {
            give_options(node, &lease, asks).await;
            let renewal = node.fixture.renewed(&plain, None).await;
            let holder = &renewal.lease.holder;
            assert_eq!(
                (&holder.owner, &holder.metadata),
                (&asks.owner, &asks.metadata)
            );
            let (fixture, options) = (&node.fixture, renewal.options);
            fixture.assert_left(holder.expires_in, asks.max_hold.unwrap_or(LONG));
            assert_eq!(options.max_hold_left.is_some(), asks.max_hold.is_some());
            let min_hold = options.min_hold_left.unwrap_or_default();
            fixture.assert_left(min_hold, asks.min_hold.unwrap_or_default());
            assert_eq!(options.lock_delay, asks.lock_delay);
            // It has been one.
            assert!(options.is_of_stream);
        }
        // Without a renewal, too, it ends with its `max_hold`.
        let soon_over = Claim {
            max_hold: Some(SHORT),
            ..plain.clone()
        };
        give_options(node, &lease, &soon_over).await;
        node.fixture.outlast(SHORT).await;
        node.fixture.granted(&rival(&plain)).await;
    }
}

async fn give_options(node: &NodeFixture, lease: &Lease, asks: &Claim) {
    let change = FenceChange {
        gives_options: true,
        ..raised(lease, 0)
    };
    let assigned = node.assign(asks, &[change]).await;
    assert!(matches!(assigned, Assigned::Held(_)), "{assigned:?}");
}
