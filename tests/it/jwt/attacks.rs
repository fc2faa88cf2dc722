//! Tokens that must not be accepted, and what nobody may learn from them.

use std::fs;
use std::time::Duration;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD as BASE64, Engine as _};
use nix::sys::signal::Signal;
use reqwest::Method;
use ring::hmac;
use serde_json::{Value, json};

use super::issuer::{Signer, WORKER, claims, key_set, now};
use super::{Accepting, Keys, worker_token};

/// A token whose claims are those of the worker but for these.
fn with(changes: Value) -> String {
    let mut claims = claims(WORKER, 600);
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => claims.as_object_mut().unwrap().remove(name),
            value => claims
                .as_object_mut()
                .unwrap()
                .insert(name.clone(), value.clone()),
        };
    }
    Signer::rsa().token("1", &claims)
}

/// A token with this header, signed by the key of the issuer.
fn with_header(header: Value) -> String {
    let claims = claims(WORKER, 600).to_string();
    Signer::rsa().token_of(&header.to_string(), &claims)
}

/// A token that is signed with a text that everybody knows, as if it were a secret.
fn by_hmac(secret: &[u8]) -> String {
    let header = json!({"alg": "HS256", "kid": "1"}).to_string();
    let claims = claims(WORKER, 600).to_string();
    let message = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let signature = hmac::sign(&key, message.as_bytes());
    format!("{message}.{}", BASE64.encode(signature))
}

/// The signature is that of another token of the same issuer.
fn with_claims_exchanged() -> String {
    let (own, other) = (worker_token(), with(json!({"sub": "other"})));
    let signature = other.rsplit('.').next().unwrap();
    let (message, _) = own.rsplit_once('.').unwrap();
    format!("{message}.{signature}")
}

fn forged() -> Vec<(&'static str, String, &'static str)> {
    let (public, claims) = (Signer::rsa().jwk("1"), claims(WORKER, 600).to_string());
    let modulus = public["n"].as_str().unwrap();
    let unsigned = |header: &Value| {
        let header = BASE64.encode(header.to_string());
        format!("{header}.{}.", BASE64.encode(&claims))
    };
    let none = "neither a key";
    vec![
        ("none", unsigned(&json!({"alg": "none"})), none),
        ("None", unsigned(&json!({"alg": "None", "kid": "1"})), none),
        (
            "no signature",
            unsigned(&json!({"alg": "RS256", "kid": "1"})),
            "signature",
        ),
        (
            "the public key as a secret",
            by_hmac(modulus.as_bytes()),
            "algorithm",
        ),
        (
            "the key set as a secret",
            by_hmac(key_set(std::slice::from_ref(&public)).as_bytes()),
            "algorithm",
        ),
        ("an empty secret", by_hmac(b""), "algorithm"),
        (
            "another key",
            Signer::other_rsa().token("1", &super::claims(WORKER, 600)),
            "signature",
        ),
        (
            "claims of another token",
            with_claims_exchanged(),
            "signature",
        ),
        (
            "another algorithm of the key",
            with_header(json!({"alg": "PS256", "kid": "1"})),
            "algorithm",
        ),
        (
            "an elliptic curve",
            with_header(json!({"alg": "ES256", "kid": "1"})),
            "algorithm",
        ),
    ]
}

/// Their header asks for something else than it should.
fn with_other_headers() -> Vec<(&'static str, String, &'static str)> {
    let (claims, none) = (claims(WORKER, 600).to_string(), "neither a key");
    vec![
        (
            "two algorithms",
            Signer::rsa().token_of(r#"{"alg":"RS256","alg":"none","kid":"1"}"#, &claims),
            none,
        ),
        (
            "a key of its own",
            Signer::other_rsa().token_of(
                &json!({"alg": "RS256", "jwk": Signer::other_rsa().jwk("2"), "kid": "1"})
                    .to_string(),
                &claims,
            ),
            "signature",
        ),
        (
            "an unknown key",
            with_header(json!({"alg": "RS256", "kid": "2"})),
            "refers to a key",
        ),
        (
            "a path as the key",
            with_header(json!({"alg": "RS256", "kid": "../../../../dev/null"})),
            "refers to a key",
        ),
        (
            "a query as the key",
            with_header(json!({"alg": "RS256", "kid": "1' OR '1'='1"})),
            "refers to a key",
        ),
        (
            "another type",
            with_header(json!({"alg": "RS256", "kid": "1", "typ": "logout+jwt"})),
            "typ",
        ),
        (
            "a critical header",
            with_header(json!({"alg": "RS256", "kid": "1", "crit": ["b64"], "b64": false})),
            none,
        ),
        (
            "an empty list of critical headers",
            with_header(json!({"alg": "RS256", "kid": "1", "crit": []})),
            none,
        ),
        (
            "no list of critical headers",
            with_header(json!({"alg": "RS256", "kid": "1", "crit": null})),
            none,
        ),
        (
            "no JSON",
            format!("{}.{}.{}", BASE64.encode("{"), "e30", "e30"),
            none,
        ),
        ("dots", "..".to_owned(), none),
    ]
}

fn unfit() -> Vec<(&'static str, String, &'static str)> {
    let now = now();
    vec![
        (
            "expired",
            with(json!({"exp": now - 60, "iat": now - 600})),
            "has expired",
        ),
        ("without an end", with(json!({"exp": null})), "a claim"),
        (
            "with a text as its end",
            with(json!({"exp": "never"})),
            "a claim",
        ),
        (
            "with an end below zero",
            with(json!({"exp": -1})),
            "a value that it cannot have",
        ),
        (
            "issued before there was time",
            with(json!({"iat": i64::MIN})),
            "a value that it cannot have",
        ),
        (
            "with an end of no time",
            with(json!({"exp": 1e300})),
            "a claim",
        ),
        (
            "not yet valid",
            with(json!({"nbf": now + 60})),
            "not valid yet",
        ),
        (
            "valid from a text on",
            with(json!({"nbf": "now"})),
            "a claim",
        ),
        (
            "issued later",
            with(json!({"iat": now + 60})),
            "not valid yet",
        ),
        (
            "too long",
            with(json!({"exp": now + 2 * 86_400})),
            "for longer",
        ),
        (
            "too long, and of no time",
            with(json!({"exp": now + 2 * 86_400, "iat": null})),
            "for longer",
        ),
    ]
}

fn of_others() -> Vec<(&'static str, String, &'static str)> {
    let duplicate = claims(WORKER, 600).to_string();
    let duplicate = duplicate.replacen('{', r#"{"sub":"system:serviceaccount:team-b:worker","#, 1);
    vec![
        (
            "another audience",
            with(json!({"aud": ["vault"]})),
            "another audience",
        ),
        (
            "a part of the audience",
            with(json!({"aud": "lease"})),
            "another audience",
        ),
        ("no audience", with(json!({"aud": null})), "a claim"),
        (
            "another issuer",
            with(json!({"iss": "https://evil.example"})),
            "another issuer",
        ),
        (
            "several issuers",
            with(json!({"iss": [super::ISSUER, "https://evil.example"]})),
            "a claim",
        ),
        ("no issuer", with(json!({"iss": null})), "a claim"),
        ("no subject", with(json!({"sub": null})), "a claim"),
        ("an empty subject", with(json!({"sub": ""})), "no principal"),
        (
            "the beginning of a subject",
            with(json!({"sub": "system:serviceaccount:team-a"})),
            "no principal",
        ),
        (
            "two subjects",
            Signer::rsa().token_of(r#"{"alg":"RS256","kid":"1"}"#, &duplicate),
            "a claim",
        ),
        (
            "a huge one",
            with(json!({"groups": "x".repeat(8_000)})),
            "is longer",
        ),
    ]
}

#[tokio::test]
async fn no_other_token_is_accepted_and_the_answer_says_why() {
    let set = key_set(&[Signer::rsa().jwk("1")]);
    let many = [
        "--auth-failures-max",
        "1000",
        "--jwt-jwks-refresh-min",
        "1ms",
    ];
    let mut service = Accepting::start(&Keys::File(&set), &many);
    let accepted = worker_token();
    assert_eq!(service.acquire("a/1", &accepted).await.status, 201);
    let mut sent = vec![accepted];
    for (what, token, words) in [forged(), with_other_headers(), unfit(), of_others()].concat() {
        // Then an unknown key makes the service read the keys once more, and it knows that there is no such key.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let answer = service.acquire("a/2", &token).await;
        assert_eq!(answer.status, 401, "{what}: {}", answer.body);
        assert_eq!(answer.challenge, "Bearer error=\"invalid_token\"", "{what}");
        assert!(answer.detail().contains(words), "{what}: {}", answer.body);
        sent.push(token);
    }
    let team_b = claims("system:serviceaccount:team-b:worker", 600);
    let metrics = service
        .text("/metrics", &Signer::rsa().token("1", &team_b))
        .await;
    let refused = format!(
        "leasehold_access_refusals_total{{reason=\"invalid_token\"}} {}",
        sent.len() - 1
    );
    assert!(metrics.contains(&refused), "{refused}");
    assert!(metrics.contains("leasehold_refused_total{limit=\"token_size\"} 1"));
    let free = service.send(Method::GET, "/locks/a/2", &sent[0]).await;
    assert_eq!(free.body["state"], "free");

    service.serving.signal(Signal::SIGTERM);
    assert!(service.serving.wait().success());
    let log = service.serving.rest_of_log();
    let audit = fs::read_to_string(service.path("audit")).unwrap();
    assert!(audit.contains("\"principal\":\"team-a\""), "{audit}");
    for token in sent {
        // Its claims and its signature, which are of this token alone.
        for part in token.split('.').skip(1).filter(|part| part.len() > 20) {
            for text in [&log, &audit, &metrics] {
                assert!(!text.contains(part), "{part}");
            }
        }
    }
}

/// Others may share the address of who sends forged tokens, and their leases need renewals with new tokens.
#[tokio::test]
async fn valid_tokens_are_accepted_from_an_address_that_fails_often() {
    let set = key_set(&[Signer::rsa().jwk("1")]);
    let service = Accepting::start(&Keys::File(&set), &["--auth-failures-max", "3"]);
    let (known, new) = (worker_token(), worker_token());
    assert_eq!(service.acquire("a/1", &known).await.status, 201);
    let statuses = async || {
        let forged = with_claims_exchanged();
        service.acquire("a/2", &forged).await.status
    };
    for expected in [401, 401, 401, 429, 429] {
        assert_eq!(statuses().await, expected);
    }
    assert_eq!(service.acquire("a/3", &new).await.status, 201);
    assert_eq!(service.acquire("a/4", &known).await.status, 201);
}
