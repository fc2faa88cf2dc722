//! Laws of remembering: an ended claim is known for a minute, so that a late request with its token finds out.

use std::time::Duration;

use leasehold::domain::{Acquired, Claim, NotHolder};
use leasehold::store::REMEMBERED;

use crate::support::bench::{
    Bench, SHORT, claim, claim_on, ended, for_short, lock_of, name, rival,
};

const MOMENT: Duration = Duration::from_millis(1);

/// A claim for every kind of ending, all ended at this very moment, and what each is told.
async fn ended_claims(bench: &Bench) -> Vec<(Claim, NotHolder)> {
    let [released, evicted] = [claim(), claim()];
    let [expired, lost] = [(); 2].map(|()| for_short(&claim()));
    bench.granted(&expired).await;
    bench.granted(&lost).await;
    bench.granted(&released).await;
    bench.granted(&evicted).await;
    bench.advance(SHORT).await;
    bench.granted(&rival(&lost)).await;
    bench.freed(&released).await;
    bench.evict(lock_of(&evicted), "stuck").await;
    let reason = "stuck".to_owned();
    vec![
        (released, NotHolder::Released),
        (evicted, NotHolder::Evicted { reason }),
        (expired, NotHolder::Expired),
        (lost, NotHolder::Lost),
    ]
}

pub(super) async fn a_released_claim_does_not_hide_another_of_the_same_lock(bench: &Bench) {
    let first = claim();
    let claims = [first.clone(), rival(&first), rival(&first)];
    for claim in &claims {
        bench.granted(claim).await;
        bench.freed(claim).await;
    }
    for claim in &claims {
        let answer = bench.acquire(claim).await;
        assert_eq!(answer, ended(claim, NotHolder::Released));
    }
}

pub(super) async fn every_kind_of_ending_is_remembered_for_a_minute_and_no_longer(bench: &Bench) {
    let claims = ended_claims(bench).await;
    bench.advance(REMEMBERED - MOMENT).await;
    for (claim, reason) in &claims {
        let answer = bench.acquire(claim).await;
        assert_eq!(answer, ended(claim, reason.clone()));
    }
    bench.advance(MOMENT).await;
    for (claim, reason) in &claims {
        let answer = bench.acquire(claim).await;
        // The successor of the lost one has run out by now as well.
        assert!(
            matches!(answer, Acquired::Granted(_)),
            "{reason:?} is over, but: {answer:?}"
        );
    }
}

/// Nothing is left of a claim that ended long ago: the next one finds room.
pub(super) async fn a_table_of_forgotten_claims_has_room_again(bench: &Bench) {
    let store = leasehold::store::memory::MemoryStore::new(10);
    let acquire = async |number: u32| {
        use leasehold::store::LockStore;
        let claim = for_short(&claim_on(&name(&format!("room/{number}"))));
        let deadline = crate::support::bench::deadline();
        let attempt = leasehold::domain::Attempt::random();
        store
            .acquire(&claim, attempt, None, deadline)
            .await
            .map(drop)
    };
    for number in 0..10 {
        acquire(number).await.expect("there is room");
    }
    acquire(10).await.expect_err("there is no room");
    bench.advance(SHORT + REMEMBERED).await;
    for number in 10..20 {
        acquire(number).await.expect("there is room again");
    }
}

/// Instead of waiting for a minute, this looks at how much longer Redis keeps the marks.
pub(super) async fn every_kind_of_ending_is_kept_for_a_minute(bench: &Bench) {
    let redis = bench.redis_behind();
    for (claim, reason) in ended_claims(bench).await {
        let mut kept = Vec::new();
        let name = lock_of(&claim);
        let bucket = name.bucket().index();
        for pattern in [
            format!("lh:1:{{{bucket}}}:e:*"),
            format!("lh:1:{{{bucket}}}:l:{name}"),
        ] {
            for key in redis.server.keys(redis.database, &pattern).await {
                kept.push(redis.server.kept_ms(redis.database, &key).await);
            }
        }
        let minute_ms = i64::try_from(REMEMBERED.as_millis()).expect("a minute");
        // Some of it has passed by now, but never half of it.
        assert!(
            kept.iter()
                .any(|left| (minute_ms / 2..=minute_ms).contains(left)),
            "{reason:?}: {kept:?}"
        );
    }
}
