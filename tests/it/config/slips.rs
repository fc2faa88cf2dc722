//! Error messages for common mistakes.

use super::{complaint, from_environment, from_file};

#[test]
fn what_all_variables_begin_with_makes_none_likely() {
    for name in ["LEASEHOLD_TTL", "LEASEHOLD_PORT", "LEASEHOLD_HOME"] {
        let error = complaint(from_environment(&[(name, "1")]));
        assert!(!error.contains("did you mean"), "{error}");
        assert!(error.contains("lists every key"), "{error}");
    }
}

#[test]
fn variables_of_clients_are_ignored() {
    from_environment(&[
        ("LEASEHOLD_URL", "http://127.0.0.1:7625"),
        ("LEASEHOLD_LOCK_NAME", "a"),
        ("LEASEHOLD_LOCK_TOKEN", "b"),
        ("LEASEHOLD_FENCING_TOKEN", "1"),
        ("LEASEHOLD_EXPIRES_AT", "2026-01-01T00:00:00.000Z"),
    ])
    .unwrap();
}

#[test]
fn the_errors_for_a_text_without_quotes_and_a_list_show_the_syntax() {
    let error = complaint(from_file(
        "[lease]\nttl_default = \"30s\"\nttl_max = 1h # long\n",
    ));
    assert!(
        error.contains(":3: ") && error.contains("quotes: ttl_max = \"1h\""),
        "{error}"
    );
    let error = complaint(from_file("listen = 127.0.0.1:1\n"));
    assert!(
        error.contains("quotes: listen = \"127.0.0.1:1\""),
        "{error}"
    );
    let error = complaint(from_file("[server]\nhosts = [\"a\", \"b\"]\n"));
    assert!(error.contains("one text with commas"), "{error}");
}

#[test]
fn one_address_cannot_be_both() {
    let address = "127.0.0.1:7625";
    let error = complaint(from_environment(&[
        ("LEASEHOLD_LISTEN", address),
        ("LEASEHOLD_SERVER_ADMIN_LISTEN", address),
    ]));
    assert!(
        error.contains("server.admin_listen: 127.0.0.1:7625 is taken by listen"),
        "{error}"
    );
}

#[test]
fn a_misspelled_level_is_refused_instead_of_silencing_the_log() {
    let error = complaint(from_environment(&[("LEASEHOLD_LOG_LEVEL", "inof")]));
    assert!(error.contains("did you mean info?"), "{error}");
    let error = complaint(from_environment(&[("LEASEHOLD_LOG_LEVEL", "foo")]));
    assert!(
        !error.contains("did you mean") && error.contains("error, warn, info, debug, trace, off"),
        "{error}"
    );
    let slip = ("LEASEHOLD_LOG_LEVEL", "info,leasehold::stroe=debug");
    let error = complaint(from_environment(&[slip]));
    assert!(error.contains("did you mean leasehold::store?"), "{error}");
    for level in [
        "warn,leasehold::store=debug",
        "leasehold=debug",
        "info,leasehold::store::redis[span]=trace,hyper=warn",
    ] {
        from_environment(&[("LEASEHOLD_LOG_LEVEL", level)]).unwrap();
    }
}
