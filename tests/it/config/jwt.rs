//! Tokens of an issuer: what has to be configured together, and what can never be.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use jsonwebtoken::Algorithm;
use leasehold::config::{SigningKey, SigningKeys};

use super::{complaint, file, from_environment};

const SET: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"1","x":"AA","y":"AA"}]}"#;
const KEYS_FILE: &str = "[principals.a]\nsubjects = [\"system:serviceaccount:a:b\"]\n";

/// What is wrong with this configuration; the first variables make a valid one, and those given replace or extend them.
fn problem_with(changes: &[(&str, &str)]) -> String {
    complaint(configured(changes))
}

fn configured(
    changes: &[(&str, &str)],
) -> Result<(leasehold::config::Config, leasehold::config::Settings), leasehold::config::ConfigError>
{
    let (keys_file, set) = (file(KEYS_FILE), file(SET));
    let mut variables = vec![
        (
            "LEASEHOLD_AUTH_KEYS_FILE",
            keys_file.path().to_str().unwrap(),
        ),
        ("LEASEHOLD_JWT_ISSUER", "https://issuer.example"),
        ("LEASEHOLD_JWT_AUDIENCE", "leasehold"),
        ("LEASEHOLD_JWT_JWKS_FILE", set.path().to_str().unwrap()),
    ];
    for change in changes {
        variables.retain(|(name, _)| *name != change.0);
        variables.push(*change);
    }
    from_environment(&variables)
}

#[test]
fn tokens_need_an_issuer_an_audience_and_keys() {
    configured(&[]).unwrap();
    for (name, value, words) in [
        ("AUDIENCE", "", "jwt.audience: is missing"),
        (
            "ISSUER",
            "",
            "a has subjects, and no tokens are accepted; set jwt.issuer",
        ),
        ("JWKS_FILE", "", "set jwt.jwks_file or jwt.jwks_url"),
        ("JWKS_URL", "https://a", "jwt.jwks_file is set too"),
        ("JWKS_FILE", "/nowhere", "cannot be read"),
        ("ALGORITHMS", "RS256,none", "\"none\" is not an algorithm"),
        ("ALGORITHMS", "HS256", "\"HS256\" is not an algorithm"),
        ("ALGORITHMS", "", "\"\" is not an algorithm"),
        ("ALGORITHMS", "RS512", "has no key for the algorithms"),
        ("LEEWAY", "10m", "is out of range"),
        ("TOKEN_BYTES_MAX", "0", "is not a whole number from 1"),
    ] {
        let problem = problem_with(&[(&format!("LEASEHOLD_JWT_{name}"), value)]);
        assert!(problem.contains(words), "{name}={value}: {problem}");
    }
    let problem = problem_with(&[("LEASEHOLD_AUTH_KEYS_FILE", "")]);
    assert!(
        problem.contains("jwt.issuer: has no effect without principals"),
        "{problem}"
    );
}

#[test]
fn every_key_about_tokens_is_read() {
    let default = format!("{:?}", configured(&[]).unwrap().0.jwt);
    for (name, value) in [
        ("ISSUER", "other"),
        ("AUDIENCE", "other"),
        ("ALGORITHMS", "ES256"),
        ("JWKS_REFRESH", "31s"),
        ("JWKS_REFRESH_MIN", "31s"),
        ("JWKS_STALE_MAX", "31s"),
        ("LEEWAY", "31s"),
        ("LIFETIME_MAX", "31s"),
        ("TOKEN_BYTES_MAX", "77"),
        ("TOKENS_MAX", "77"),
    ] {
        // The path of the file of keys is another one each time.
        let without_path = |jwt: &str| {
            jwt.split("source:").next().unwrap().to_owned() + jwt.split("refresh:").nth(1).unwrap()
        };
        let changed = configured(&[(&format!("LEASEHOLD_JWT_{name}"), value)]);
        let changed = format!("{:?}", changed.unwrap().0.jwt);
        assert_ne!(without_path(&changed), without_path(&default), "{name}");
    }
}

#[test]
fn an_audience_needs_an_issuer() {
    let loaded = from_environment(&[("LEASEHOLD_JWT_AUDIENCE", "leasehold")]);
    let problem = complaint(loaded);
    assert!(
        problem.contains("has no effect without jwt.issuer"),
        "{problem}"
    );
}

#[test]
fn keys_come_over_tls_or_from_this_machine() {
    let problem = |url: &str| {
        let loaded = configured(&[
            ("LEASEHOLD_JWT_JWKS_FILE", ""),
            ("LEASEHOLD_JWT_JWKS_URL", url),
        ]);
        loaded.err().map(|error| error.to_string())
    };
    for url in [
        "https://issuer.example/jwks",
        "http://127.0.0.1:1/a",
        "http://[::1]/a",
        "http://localhost/a",
    ] {
        assert_eq!(problem(url), None, "{url}");
    }
    for (url, words) in [
        ("http://issuer.example/jwks", "is not encrypted"),
        ("http://localhost.evil.example/jwks", "is not encrypted"),
        ("http://127.0.0.1@evil.example/jwks", "has a user"),
        (
            "https://a/jwks?x=1",
            "has a user, a query or a fragment; write",
        ),
        ("ftp://a/jwks", "neither https nor http"),
        ("https:///jwks", "is not a URL"),
        ("https://a:port/jwks", "is not a URL"),
        ("https://a/j wks", "is not a URL"),
    ] {
        let problem = problem(url).expect(url);
        assert!(problem.contains(words), "{url}: {problem}");
    }
}

fn key_set(keys: &[&str]) -> String {
    format!("{{\"keys\":[{}]}}", keys.join(","))
}

fn keys_in(text: &str) -> Result<SigningKeys, String> {
    SigningKey::all_in(text.as_bytes(), &[Algorithm::RS256, Algorithm::ES256])
}

/// An RSA key with a zero in front, which does not make it longer, and with these further members.
fn rsa_of(bits: usize, members: &str) -> String {
    let mut number = vec![0xff_u8; bits.div_ceil(8)];
    number[0] >>= bits.next_multiple_of(8) - bits;
    number.insert(0, 0);
    let number = BASE64_URL_SAFE_NO_PAD.encode(number);
    format!(r#"{{"kty":"RSA","n":"{number}","e":"AQAB"{members}}}"#)
}

fn rsa(members: &str) -> String {
    rsa_of(2_048, members)
}

#[test]
fn a_key_that_cannot_verify_tokens_is_left_out_with_the_reason() {
    let unknown = "key number 1 is of no known kind, or a part of it is missing";
    for (key, reason) in [
        (
            r#"{"kty":"oct","k":"AAAA","kid":"secret"}"#,
            "key \"secret\" is for no algorithm in jwt.algorithms",
        ),
        (
            &rsa(r#","kid":"1","use":"enc""#),
            "key \"1\" is not for signatures (use)",
        ),
        (
            &rsa(r#","kid":"2","alg":"PS256""#),
            "key \"2\" is for no algorithm in jwt.algorithms",
        ),
        (
            &rsa(r#","kid":"3","alg":"RSA-OAEP""#),
            "key \"3\" is for another algorithm than those of signatures (alg)",
        ),
        (
            &rsa(r#","kid":"4","use":"sig","key_ops":["sign"]"#),
            "key \"4\" is not for verification (key_ops)",
        ),
        (
            &rsa_of(1_024, r#","kid":"5\n""#),
            "key \"5\u{fffd}\" has 1024 bits; RSA keys need 2048 to 8192",
        ),
        (
            &rsa_of(2_047, r#","kid":"6""#),
            "key \"6\" has 2047 bits; RSA keys need 2048 to 8192",
        ),
        (
            &rsa_of(8_193, r#","kid":"7""#),
            "key \"7\" has 8193 bits; RSA keys need 2048 to 8192",
        ),
        (
            r#"{"kty":"EC","crv":"P-256","x":"!","y":"AA"}"#,
            "key number 1 has numbers that cannot be read",
        ),
        (r#"{"kty":"new"}"#, unknown),
        ("7", unknown),
    ] {
        let found = keys_in(&key_set(&[key])).unwrap();
        assert!(found.keys.is_empty(), "{key}");
        assert_eq!(found.reasons().as_deref(), Some(reason), "{key}");
    }
}

/// An issuer can name its keys in any way, and have many.
#[test]
fn the_other_keys_of_a_set_are_used_and_the_reasons_fit_a_line() {
    let long = rsa(&format!(r#","use":"enc","kid":"{}""#, "k".repeat(100)));
    let mut keys = vec![&*long; 12];
    let (plain, marked) = (
        rsa(r#","kid":"r""#),
        rsa(r#","kid":"s","use":"sig","key_ops":["verify"]"#),
    );
    keys.extend([&*plain, &marked]);
    let found = keys_in(&key_set(&keys)).unwrap();
    let ids: Vec<_> = found.keys.iter().map(|key| key.id.as_deref()).collect();
    assert_eq!(ids, [Some("r"), Some("s")]);
    assert_eq!(found.keys[0].algorithms, [Algorithm::RS256]);
    let reasons = found.reasons().unwrap();
    let one = format!("key \"{}\" is not for signatures (use); ", "k".repeat(64));
    assert_eq!(reasons, one.repeat(10) + "and 2 more");
}

#[test]
fn what_is_no_key_set_is_refused() {
    for (text, words) in [
        ("{}".to_owned(), "is not a JSON Web Key Set"),
        (key_set(&["7"; 101]), "more than 100 keys"),
        (
            format!("{}{}", key_set(&[&rsa("")]), " ".repeat(300_000)),
            "has more than 262144 bytes",
        ),
    ] {
        let problem = keys_in(&text).unwrap_err();
        assert!(problem.contains(words), "{problem}");
    }
}
