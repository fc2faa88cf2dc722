//! How many new tokens are verified of addresses that have failed too often. The clock is stopped, so that the machine
//! cannot be too slow to use them up.

use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::Algorithm;
use leasehold::config::{JwksSource, JwtConfig, KeysFile, SigningKey};
use leasehold::http::{Access, Failures, KeyRing, Role, TokenVerifier};
use leasehold::store::memory::MemoryStore;

use super::KEYS_FILE;
use super::issuer::{AUDIENCE, ISSUER, Signer, WORKER, claims, key_set};
use crate::api::support::{Answer, Api, post};
use crate::config::file;

const PER_SECOND: u32 = 1_000;
const FAILURES_MAX: u32 = 20;

fn accepting() -> Api {
    let algorithms = vec![Algorithm::RS256];
    let set = key_set(&[Signer::rsa().jwk("1")]);
    let keys = SigningKey::all_in(set.as_bytes(), &algorithms)
        .unwrap()
        .keys;
    let config = JwtConfig {
        issuer: ISSUER.to_owned(),
        audience: AUDIENCE.to_owned(),
        algorithms,
        source: JwksSource::File {
            path: "jwks.json".into(),
            keys: keys.clone(),
        },
        refresh: Duration::from_secs(300),
        refresh_min: Duration::from_secs(10),
        stale_max: Duration::from_secs(3_600),
        leeway: Duration::from_secs(10),
        lifetime_max: Duration::from_secs(86_400),
        token_bytes_max: 4_096,
        tokens_max: 100,
    };
    let principals = KeysFile::read(file(KEYS_FILE).path()).unwrap().principals;
    let ring = KeyRing::new::<&str>([]);
    ring.replace_all([] as [(Role, &str); 0], &principals);
    let ring = ring.with_tokens(Some(TokenVerifier::new(&config, keys)));
    Api::on(Arc::new(MemoryStore::new(1_000)), |settings| {
        settings.access = Access::Keys(ring, Failures::new(FAILURES_MAX));
    })
}

/// A valid token that differs from others by the time for which it is valid.
fn token(seconds: u64) -> String {
    Signer::rsa().token("1", &claims(WORKER, seconds))
}

async fn acquire(api: &Api, name: &str, token: &str) -> Answer {
    let request = post(&format!("/locks/{name}"));
    let request = request.header("authorization", format!("Bearer {token}"));
    api.send(request).await
}

#[tokio::test(start_paused = true)]
async fn new_tokens_of_addresses_that_fail_often_are_verified_at_a_bounded_rate() {
    let api = accepting();
    let [known, new, later] = [600, 700, 800].map(token);
    assert_eq!(acquire(&api, "a/1", &known).await.status, 201);
    // The last of these failures is the first that is too many; from then on each new token takes one verification.
    for number in 0..=FAILURES_MAX {
        let forged = acquire(&api, "a/2", &format!("forged.{number}.x")).await;
        let expected = if number < FAILURES_MAX { 401 } else { 429 };
        assert_eq!(forged.status, expected, "{}", forged.text());
    }
    assert_eq!(acquire(&api, "a/2", &new).await.status, 201);
    for number in 1..PER_SECOND {
        let forged = acquire(&api, "a/3", &format!("another.{number}.x")).await;
        let detail = forged.detail();
        assert!(
            detail.contains("requests with a valid key are not limited"),
            "{detail}"
        );
    }
    let refused = acquire(&api, "a/3", &later).await;
    assert_eq!(refused.refusal(), (429, "rate_limited".to_owned()));
    assert!(
        refused.detail().contains("only some of its new tokens"),
        "{}",
        refused.text()
    );
    assert_eq!(refused.json()["outcome"], "nothing_done");
    assert_eq!(refused.header("retry-after"), "1");
    // What was verified before costs nothing.
    for (name, token) in [("a/4", &known), ("a/5", &new)] {
        assert_eq!(acquire(&api, name, token).await.status, 201);
    }

    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(acquire(&api, "a/6", &later).await.status, 201);
}
