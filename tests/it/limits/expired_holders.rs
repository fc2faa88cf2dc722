//! A lock whose very many holders have expired together: the claims that meet them remove them in short steps.

use std::time::Duration;

use leasehold::domain::{Claim, Mode, Share, Ttl};
use tokio::time::sleep;

use crate::support::fixture::{Fixture, claim_on, name};

const TTL: Duration = Duration::from_secs(2);
const HOLDERS: usize = 250;
/// What one script may end.
const AT_ONCE: usize = 100;

#[tokio::test]
async fn a_claim_ends_very_many_expired_holders_in_several_steps_and_is_granted() {
    let fixture = Fixture::redis_alone().await;
    let lock = name("crowded");
    for _ in 0..HOLDERS {
        let holder = Claim {
            mode: Mode::Shared(Share::READ),
            ttl: Ttl::from_store(TTL),
            ..claim_on(&lock)
        };
        fixture.granted(&holder).await;
    }
    let redis = fixture.redis_behind();
    // Nobody looks at the lock meanwhile, which would end some.
    sleep(TTL * 2).await;
    redis.server.command(&["CONFIG", "RESETSTAT"]).await;
    fixture.granted(&claim_on(&lock)).await;
    let scripts = redis.server.info("commandstats", "cmdstat_evalsha").await;
    let calls = scripts
        .strip_prefix("calls=")
        .and_then(|it| it.split(',').next());
    let calls: usize = calls.expect("it was called").parse().unwrap();
    assert!(calls >= HOLDERS.div_ceil(AT_ONCE), "{scripts}");
}
