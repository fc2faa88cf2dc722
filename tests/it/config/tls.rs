//! TLS to Redis: which settings belong together, and what their files must have in them.

use leasehold::config::StoreUrl;

use super::{complaint, file, from_environment};
use crate::support::certificates::Authority;

const STORE: (&str, &str) = ("LEASEHOLD_STORE", "rediss://redis.example/3");
const CA: &str = "LEASEHOLD_REDIS_TLS_CA_FILE";
const CERT: &str = "LEASEHOLD_REDIS_TLS_CERT_FILE";
const KEY: &str = "LEASEHOLD_REDIS_TLS_KEY_FILE";
const NAME: &str = "LEASEHOLD_REDIS_TLS_SERVER_NAME";

#[test]
fn an_encrypted_store_has_its_certificates_from_files() {
    let (plain, _) = from_environment(&[STORE]).unwrap();
    assert!(matches!(&plain.store, StoreUrl::Redis(address) if address.is_encrypted));
    assert_eq!(plain.store.to_string(), "rediss://redis.example:6379/3");
    assert!(plain.redis.tls.authorities.is_none() && plain.redis.tls.identity.is_none());

    let authority = Authority::new();
    let (ca, own) = (authority.file(), authority.files_for("leasehold"));
    let given = [
        STORE,
        (CA, &ca),
        (CERT, &own.certificate),
        (KEY, &own.key),
        (NAME, "other.example"),
    ];
    let (config, _) = from_environment(&given).unwrap();
    let tls = &config.redis.tls;
    assert_eq!(tls.authorities.as_ref().map(Vec::len), Some(1));
    assert!(tls.identity.is_some() && tls.server_name.is_some());
    let printed = format!("{config:?}");
    assert!(!printed.contains("PRIVATE KEY"), "{printed}");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let authority = Authority::new();
    let (ca, own) = (authority.file(), authority.files_for("leasehold"));
    let plain = ("LEASEHOLD_STORE", "redis://redis.example");
    let error = complaint(from_environment(&[plain, (CA, &ca)]));
    assert!(error.contains("write rediss://"), "{error}");
    let error = complaint(from_environment(&[STORE, (CERT, &own.certificate)]));
    assert!(error.contains("set redis.tls_key_file too"), "{error}");
    let error = complaint(from_environment(&[STORE, (KEY, &own.key)]));
    assert!(error.contains("set redis.tls_cert_file too"), "{error}");
    let error = complaint(from_environment(&[STORE, (NAME, "a b")]));
    assert!(error.contains("is not a host name"), "{error}");
}

#[test]
fn a_file_without_what_it_should_have_is_refused_and_not_quoted() {
    let authority = Authority::new();
    let own = authority.files_for("leasehold");
    let error = complaint(from_environment(&[STORE, (CA, &own.key)]));
    assert!(error.contains("has no certificate in PEM form"), "{error}");
    let broken = file("-----BEGIN CERTIFICATE-----\n!secret!\n-----END CERTIFICATE-----\n");
    let error = complaint(from_environment(&[
        STORE,
        (CA, broken.path().to_str().unwrap()),
    ]));
    assert!(error.contains("well-formed PEM"), "{error}");
    assert!(!error.contains("secret"), "{error}");
    let swapped = [STORE, (CERT, &own.certificate), (KEY, &own.certificate)];
    let error = complaint(from_environment(&swapped));
    assert!(error.contains("has no private key in PEM form"), "{error}");
    let error = complaint(from_environment(&[STORE, (CA, "/nowhere/ca.pem")]));
    assert!(error.contains("/nowhere/ca.pem: cannot be read"), "{error}");
}

const SERVER_CERT: &str = "LEASEHOLD_SERVER_TLS_CERT_FILE";
const SERVER_KEY: &str = "LEASEHOLD_SERVER_TLS_KEY_FILE";
const CLIENT_CA: &str = "LEASEHOLD_SERVER_TLS_CLIENT_CA_FILE";
const CLIENT_CERTIFICATE: &str = "LEASEHOLD_SERVER_TLS_CLIENT_CERTIFICATE";

#[test]
fn clients_may_or_must_show_a_certificate_of_an_authority() {
    let authority = Authority::new();
    let (ca, own) = (authority.file(), authority.files_for("leasehold"));
    let tls = [(SERVER_CERT, &*own.certificate), (SERVER_KEY, &*own.key)];
    let clients = |further: &[(&'static str, &str)]| {
        let (config, _) = from_environment(&[&tls[..], further].concat()).unwrap();
        let clients = config.certificate.unwrap().clients;
        clients.map(|clients| (clients.certificates.len(), clients.are_required))
    };
    assert_eq!(clients(&[]), None);
    assert_eq!(clients(&[(CLIENT_CA, &ca)]), Some((1, false)));
    let required = (CLIENT_CERTIFICATE, "required");
    assert_eq!(clients(&[(CLIENT_CA, &ca), required]), Some((1, true)));

    let warnings = |further: &[(&'static str, &str)]| {
        let all = [&tls[..], &[(CLIENT_CA, &*ca)], further].concat();
        let (config, _) = from_environment(&all).unwrap();
        config.warnings().join("\n")
    };
    assert_eq!(warnings(&[]), "");
    let warning = warnings(&[required]);
    assert!(warning.contains("set server.admin_listen"), "{warning}");
    let admin = ("LEASEHOLD_SERVER_ADMIN_LISTEN", "127.0.0.1:7626");
    assert_eq!(warnings(&[required, admin]), "");

    let error = complaint(from_environment(&[(CLIENT_CA, &ca)]));
    assert!(
        error.contains("only over TLS; set server.tls_cert_file"),
        "{error}"
    );
    let error = complaint(from_environment(&[&tls[..], &[required]].concat()));
    assert!(error.contains("set server.tls_client_ca_file"), "{error}");
    let without = (CLIENT_CA, &*own.key);
    let error = complaint(from_environment(&[&tls[..], &[without]].concat()));
    assert!(error.contains("has no certificate in PEM form"), "{error}");
}

#[test]
fn a_certificate_with_the_key_of_another_one_is_refused() {
    let authority = Authority::new();
    let (own, other) = (
        authority.files_for("leasehold"),
        authority.files_for("other"),
    );
    let file = file(&format!(
        "[server]\ntls_cert_file = \"{}\"\ntls_key_file = \"{}\"\n",
        own.certificate, other.key
    ));
    let path = file.path().to_str().unwrap();
    let error = complaint(from_environment(&[("LEASEHOLD_CONFIG", path)]));
    let words = format!(
        "{path}:3: server.tls_key_file: {} is not the key of the certificate in {}",
        other.key, own.certificate
    );
    assert!(error.starts_with(&words), "{error}");
    let swapped = [STORE, (CERT, &*own.certificate), (KEY, &*other.key)];
    let error = complaint(from_environment(&swapped));
    assert!(error.contains("redis.tls_key_file: "), "{error}");
}

#[test]
fn a_certificate_that_is_no_authority_is_refused_with_its_setting() {
    let authority = Authority::new();
    let own = authority.files_for("leasehold");
    let nonsense = file("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let path = nonsense.path().to_str().unwrap();
    let tls = [(SERVER_CERT, &*own.certificate), (SERVER_KEY, &*own.key)];
    let error = complaint(from_environment(&[&tls[..], &[(CLIENT_CA, path)]].concat()));
    let words = format!("server.tls_client_ca_file: {path}: ");
    assert!(error.contains(&words), "{error}");
}
