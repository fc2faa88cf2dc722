//! The keys of the issuer change, are away, or are not what they should be.

use std::fs;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use nix::sys::signal::Signal;
use serde_json::json;

use super::issuer::{Published, Signer, WORKER, claims, key_set};
use super::{Accepting, Keys, worker_token};
use crate::support::certificates::Authority;
use crate::support::eventually;
use crate::support::tls_front::TlsFront;

fn both() -> [String; 2] {
    let [one, other] = [Signer::rsa().jwk("1"), Signer::other_rsa().jwk("2")];
    [key_set(&[one]), key_set(&[other])]
}

fn other_token() -> String {
    Signer::other_rsa().token("2", &claims(WORKER, 600))
}

#[tokio::test]
async fn no_request_is_refused_while_the_issuer_changes_its_key() {
    let [one, other] = both();
    let published = Published::new(one).await;
    let further = ["--jwt-jwks-refresh", "1h", "--jwt-jwks-refresh-min", "10ms"];
    let service = Accepting::start(&Keys::Url(&published), &further);
    let send = async |from: usize, to: usize, by_other: bool| {
        for number in from..to {
            // A token of its own for each, so that every signature is verified.
            let token = if by_other {
                other_token()
            } else {
                worker_token()
            };
            let answer = service.acquire(&format!("a/{number}"), &token).await;
            assert_eq!(answer.status, 201, "{number}: {}", answer.body);
        }
    };
    send(0, 10, false).await;
    // The issuer signs with the new key at once. Nobody has told the service.
    published.answer(200, &other);
    futures_util::future::join_all((1..5).map(|at| send(at * 100, at * 100 + 10, true))).await;
    eventually("the old key is gone", async || {
        let gone = service.acquire("a/gone", &worker_token()).await;
        (gone.status == 401).then_some(())
    })
    .await;
}

#[tokio::test]
async fn invented_keys_make_the_service_ask_its_issuer_once_in_a_while() {
    let [one, _] = both();
    let published = Published::new(one).await;
    let further = ["--jwt-jwks-refresh", "1h", "--jwt-jwks-refresh-min", "1h"];
    let service = Accepting::start(&Keys::Url(&published), &further);
    let first = service.acquire("a/1", &other_token()).await;
    assert_eq!(first.status, 401, "{}", first.body);
    // The issuer may have made the key since, so this is not the end for a client.
    for _ in 0..20 {
        let refused = service.acquire("a/1", &other_token()).await;
        assert_eq!(
            (refused.status, refused.body["code"].as_str()),
            (503, Some("issuer_unavailable"))
        );
        assert!(refused.body["retry_after_ms"].as_u64() > Some(60_000));
    }
    let fetches = published.fetches();
    assert!(fetches <= 2, "{fetches}: at the start, and for the first");
}

/// Each request with a new key waits for the issuer, and nobody may keep many of them waiting.
#[tokio::test]
async fn an_address_that_has_failed_too_often_does_not_wait_for_a_silent_issuer() {
    let [first, other] = [Signer::rsa().jwk("1"), Signer::other_rsa().jwk("2")];
    let [one, both] = [
        key_set(std::slice::from_ref(&first)),
        key_set(&[first, other]),
    ];
    let published = Published::new(one).await;
    let often = ["--jwt-jwks-refresh", "1h", "--jwt-jwks-refresh-min", "10ms"];
    let further = [&often[..], &["--auth-failures-max", "2"]].concat();
    let service = Accepting::start(&Keys::Url(&published), &further);
    let known = worker_token();
    assert_eq!(service.acquire("a/1", &known).await.status, 201);
    published.fall_silent();
    let waiting = (0..3).map(async |_| service.acquire("a/2", &other_token()).await.status);
    let mut statuses = futures_util::future::join_all(waiting).await;
    statuses.sort_unstable();
    assert_eq!(statuses, [429, 503, 503]);
    let refused = service.acquire("a/2", &other_token()).await;
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert_eq!(refused.body["code"], "rate_limited");
    for token in [known, worker_token()] {
        let granted = service.acquire("a/3", &token).await;
        assert!(granted.status < 429, "{}", granted.body);
    }
    // Others may share the address, and one of them may have a new key.
    published.answer(200, &both);
    eventually("the new key is read", async || {
        let granted = service.acquire("a/4", &other_token()).await;
        (granted.status == 201).then_some(())
    })
    .await;
}

/// Or has only such as nothing may be signed with. Whoever stole its key must not go on for as long as keys that cannot be
/// read are used.
#[tokio::test]
async fn an_issuer_that_withdraws_its_only_key_is_believed_at_once() {
    let [one, _] = both();
    let published = Published::new(one.clone()).await;
    let further = [
        "--jwt-jwks-refresh",
        "50ms",
        "--jwt-jwks-refresh-min",
        "10ms",
    ];
    let service = Accepting::start(&Keys::Url(&published), &further);
    let for_encryption = one.replace("\"use\":\"sig\"", "\"use\":\"enc\"");
    for none in ["{\"keys\":[]}", &for_encryption] {
        eventually("the key is known", async || {
            let answer = service.acquire("a/1", &worker_token()).await;
            [201, 423].contains(&answer.status).then_some(())
        })
        .await;
        published.answer(200, none);
        eventually("the key is gone", async || {
            let refused = service.acquire("a/2", &worker_token()).await;
            (refused.body["code"] == "issuer_unavailable").then_some(())
        })
        .await;
        published.answer(200, &one);
    }
}

#[tokio::test]
async fn keys_that_cannot_be_read_are_used_for_a_while_and_no_longer() {
    let [one, other] = both();
    let published = Published::new(one.clone()).await;
    let further = ["--jwt-jwks-refresh", "50ms", "--jwt-jwks-stale-max", "8s"];
    let service = Accepting::start(&Keys::Url(&published), &further);
    let token = worker_token();
    assert_eq!(service.acquire("a/0", &token).await.status, 201);
    for garbage in [(200, "<html>"), (503, &*one), (302, &*other)] {
        published.answer(garbage.0, garbage.1);
        // A fetch that begins after this has been tried to the end when the next one begins.
        let before = published.fetches();
        eventually("the answer is fetched", async || {
            (published.fetches() >= before + 3).then_some(())
        })
        .await;
        if garbage.0 == 200 && garbage.1 == "<html>" {
            assert_eq!(service.acquire("a/1", &token).await.status, 201);
        }
    }
    eventually("the keys are too old", async || {
        (service.acquire("a/1", &token).await.status == 503).then_some(())
    })
    .await;
    // The token that was verified before, and a new one.
    for token in [&token, &worker_token()] {
        let refused = service.acquire("a/1", token).await;
        assert_eq!(
            (refused.status, refused.body["code"].as_str()),
            (503, Some("issuer_unavailable"))
        );
    }
    let health = service.text("/readyz?verbose", "").await;
    assert!(
        health.contains("\"name\":\"jwks\",\"ok\":false"),
        "{health}"
    );
    assert!(health.contains("\"status\":\"ok\""), "{health}");
    published.answer(200, &one);
    eventually("tokens are accepted again", async || {
        (service.acquire("a/2", &token).await.status == 201).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_service_starts_without_its_issuer() {
    let [one, _] = both();
    let published = Published::new(one.clone()).await;
    published.answer(500, "");
    let further = ["--jwt-jwks-refresh-min", "10ms"];
    let service = Accepting::start(&Keys::Url(&published), &further);
    let refused = service.acquire("a/1", &worker_token()).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    published.answer(200, &one);
    eventually(
        "the keys are read, because a token needs them",
        async || (service.acquire("a/1", &worker_token()).await.status == 201).then_some(()),
    )
    .await;
}

/// Anybody can send what looks like a token, and nobody can know what it is worth.
#[tokio::test]
async fn requests_that_cannot_be_judged_are_counted_and_do_not_fill_the_log() {
    let [one, _] = both();
    let published = Published::new(one.clone()).await;
    published.answer(500, "");
    let further = ["--jwt-jwks-refresh-min", "10ms", "--auth-failures-max", "2"];
    let further = [&further[..], &["--auth-metrics", "none"]].concat();
    let mut service = Accepting::start(&Keys::Url(&published), &further);
    for _ in 0..20 {
        let refused = service.acquire("a/1", &worker_token()).await;
        assert_eq!(refused.status, 503, "{}", refused.body);
        assert_eq!(refused.body["code"], "issuer_unavailable");
        assert_eq!(refused.body["outcome"], "nothing_done");
    }
    let page = service.text("/metrics", "").await;
    for line in [
        "leasehold_access_refusals_total{reason=\"issuer_unavailable\"} 20",
        "leasehold_jwks_outdated 1",
        "leasehold_jwks_keys 0",
    ] {
        assert!(page.lines().any(|of_page| of_page == line), "{line}");
    }
    published.answer(200, &one);
    eventually("tokens are verified", async || {
        (service.acquire("a/1", &worker_token()).await.status == 201).then_some(())
    })
    .await;
    let page = service.text("/metrics", "").await;
    assert!(page.contains("leasehold_jwks_outdated 0"), "{page}");
    service.serving.signal(Signal::SIGTERM);
    let log = service.serving.rest_of_log();
    assert!(
        log.contains("and none are known; all tokens are refused"),
        "{log}"
    );
    let lines = log.matches("\"outcome\":\"issuer_unavailable\"").count();
    assert!((5..20).contains(&lines), "{lines} lines: {log}");
}

/// As in Kubernetes, whose API server has an authority of its own and asks for a token.
#[tokio::test]
async fn the_keys_come_from_an_issuer_with_an_authority_of_its_own() {
    let [one, _] = both();
    let mut published = Published::new(one).await;
    let [authority, other] = [(); 2].map(|()| Authority::new());
    let front = TlsFront::start(published.address, &authority.files_for("localhost"));
    published.url = format!("https://localhost:{}/jwks", front.port);
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "token-of-this-service\n").unwrap();
    let token = ["--jwt-jwks-token-file", token.to_str().unwrap()];
    let of_own = ["--jwt-jwks-ca-file", &authority.file()];
    let service = Accepting::start(&Keys::Url(&published), &[token, of_own].concat());
    let granted = service.acquire("a/1", &worker_token()).await;
    assert_eq!(granted.status, 201, "{}", granted.body);
    let head = published.last_head().to_ascii_lowercase();
    assert!(
        head.contains("\r\nauthorization: bearer token-of-this-service\r\n"),
        "{head}"
    );
    // Another authority has signed nothing here, so the token is not sent either.
    let fetches = published.fetches();
    let of_other = ["--jwt-jwks-ca-file", &other.file()];
    let mut service = Accepting::start(&Keys::Url(&published), &[token, of_other].concat());
    let refused = service.acquire("a/2", &worker_token()).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(published.fetches(), fetches);
    service.serving.signal(Signal::SIGTERM);
    let log = service.serving.rest_of_log();
    assert!(
        log.contains("an authority that is trusted; name that authority with jwt.jwks_ca_file\""),
        "{log}"
    );
}

/// A key set may have keys for other purposes, and operators must see why a token of such a key is refused.
#[tokio::test]
async fn a_key_that_is_left_out_is_named_in_the_log_when_that_is_new() {
    let weak = BASE64_URL_SAFE_NO_PAD.encode([0xff; 128]);
    let [mut short, mut for_signing] = [Signer::other_rsa().jwk("short"), Signer::ecdsa().jwk("s")];
    short["n"] = weak.into();
    for_signing["key_ops"] = json!(["sign"]);
    let first = [Signer::rsa().jwk("1"), short.clone()];
    let published = Published::new(key_set(&first)).await;
    let further = ["--jwt-jwks-refresh", "50ms"];
    let mut service = Accepting::start(&Keys::Url(&published), &further);
    assert_eq!(service.acquire("a/1", &worker_token()).await.status, 201);
    let is_read_again = async || {
        let before = published.fetches();
        eventually("the keys are read again", async || {
            (published.fetches() >= before + 3).then_some(())
        })
        .await;
    };
    is_read_again().await;
    published.answer(200, &key_set(&[Signer::rsa().jwk("1"), short, for_signing]));
    is_read_again().await;
    service.serving.signal(Signal::SIGTERM);
    let log = service.serving.rest_of_log();
    let lines = log.lines().filter(|line| line.contains("are left out"));
    let lines: Vec<_> = lines.collect();
    let of_short = r#"key \"short\" has 1024 bits; RSA keys need 2048 to 8192"#;
    let of_signing = r#"key \"s\" is not for verification (key_ops)"#;
    let [first, second] = lines[..] else {
        panic!("one line for each set, but: {lines:#?}");
    };
    for line in [first, second] {
        assert!(line.contains(of_short) && line.contains("WARN"), "{line}");
    }
    assert!(
        !first.contains(of_signing) && second.contains(of_signing),
        "{second}"
    );
}

#[tokio::test]
async fn the_file_is_read_again() {
    let [one, other] = both();
    let service = Accepting::start(&Keys::File(&one), &["--auth-reread-interval", "50ms"]);
    let old = worker_token();
    assert_eq!(service.acquire("a/1", &old).await.status, 201);
    fs::write(service.path("next"), &other).unwrap();
    fs::rename(service.path("next"), service.path("jwks.json")).unwrap();
    eventually("the new key is known", async || {
        (service.acquire("a/2", &other_token()).await.status == 201).then_some(())
    })
    .await;
    // The token was verified before. 503 if a request caused a reading shortly before: the key may be back since.
    let gone = service.acquire("a/3", &old).await;
    assert!([401, 503].contains(&gone.status), "{}", gone.body);
}

/// Which key it is for could only be tried out, and the issuer need not be asked for that.
#[tokio::test]
async fn a_token_that_does_not_name_its_key_is_of_the_only_key_for_its_algorithm() {
    let [one, other] = [Signer::rsa(), Signer::other_rsa()];
    let ecdsa = Signer::ecdsa();
    let unnamed = |signer: &Signer| {
        let header = format!(r#"{{"alg":"{}"}}"#, signer.algorithm());
        signer.token_of(&header, &claims(WORKER, 600).to_string())
    };
    let several = key_set(&[one.jwk("1"), other.jwk("2"), ecdsa.jwk("3")]);
    let published = Published::new(several).await;
    let service = Accepting::start(&Keys::Url(&published), &["--jwt-jwks-refresh", "1h"]);
    let granted = service.acquire("a/1", &unnamed(&ecdsa)).await;
    assert_eq!(granted.status, 201, "{}", granted.body);
    let fetches = published.fetches();
    for _ in 0..2 {
        let refused = service.acquire("a/2", &unnamed(&one)).await;
        assert_eq!(refused.status, 401, "{}", refused.body);
        let detail = refused.detail();
        assert!(detail.contains("does not name its key (kid)"), "{detail}");
    }
    assert_eq!(published.fetches(), fetches);
}
