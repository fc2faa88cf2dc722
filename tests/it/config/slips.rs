//! Error messages for common mistakes.

use super::{complaint, from_environment, from_file};

#[test]
fn what_all_variables_begin_with_makes_none_likely() {
    for name in ["LEASEHOLD_SHARDS", "LEASEHOLD_HOME"] {
        let error = complaint(from_environment(&[(name, "1")]));
        assert!(!error.contains("did you mean"), "{error}");
        assert!(error.contains("lists every key"), "{error}");
    }
    for file in ["[waiting]\nwaitable = 1\n", "[server]\nbacklog = 1\n"] {
        let error = complaint(from_file(file));
        assert!(!error.contains("did you mean"), "{error}");
    }
}

#[test]
fn names_from_other_programs_lead_to_the_key() {
    for (name, meant) in [
        ("LEASEHOLD_REDIS_URL", "\"LEASEHOLD_STORE\""),
        ("LEASEHOLD_PORT", "\"LEASEHOLD_LISTEN\""),
        ("LEASEHOLD_LOG", "\"LEASEHOLD_LOG_LEVEL\""),
        ("LEASEHOLD_TTL_DEFAULT", "\"LEASEHOLD_LEASE_TTL_DEFAULT\""),
        ("LEASEHOLD_TTL", "\"LEASEHOLD_LEASE_TTL_DEFAULT\""),
    ] {
        let error = complaint(from_environment(&[(name, "1")]));
        assert!(error.contains(&format!("did you mean {meant}?")), "{error}");
    }
    for (file, meant) in [
        ("[redis]\nurl = \"redis://a\"\n", "\"store\""),
        ("port = 1\n", "\"listen\""),
        ("log = \"info\"\n", "\"log.level\""),
    ] {
        let error = complaint(from_file(file));
        assert!(error.contains(&format!("did you mean {meant}?")), "{error}");
    }
}

#[test]
fn a_character_that_ends_a_url_is_explained_where_a_password_has_it() {
    let store = ("LEASEHOLD_STORE", "redis://user:s3#cret@cache:6379");
    let error = complaint(from_environment(&[store]));
    assert!(
        error.contains("%23") && error.contains("redis.password_file"),
        "{error}"
    );
    assert!(!error.contains("cret"), "{error}");
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
        error.ends_with(":1: not valid TOML: a text needs quotes: listen = \"127.0.0.1:1\""),
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
fn a_rate_of_requests_is_a_whole_number_and_0_means_none() {
    let key = "LEASEHOLD_SERVER_REQUESTS_PER_SECOND";
    for wrong in ["-1", "1.5", "100/s"] {
        let error = complaint(from_environment(&[(key, wrong)]));
        assert!(error.contains("a whole number"), "{error}");
    }
    let rate = |text| {
        let (config, _) = from_environment(&[(key, text)]).expect("it is a number");
        config.server.requests.map(|rate| rate.per_second.get())
    };
    assert_eq!([rate("0"), rate("100")], [None, Some(100)]);
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

#[test]
fn a_directory_with_a_blank_at_its_ends_is_refused() {
    for url in [
        "file: /var/lib/locks",
        "file:/var/lib/locks ",
        "file:locks\n\n",
        "file: ",
    ] {
        let error = complaint(from_environment(&[("LEASEHOLD_STORE", url)]));
        assert!(error.contains("begins or ends with a blank"), "{error}");
    }
    from_environment(&[("LEASEHOLD_STORE", "file:/a b")]).expect("a blank within it is meant");
}

#[test]
fn a_value_with_one_possible_meaning_is_taken() {
    for (value, meant) in [
        ("memory", "memory:"),
        ("localhost:6379", "redis://localhost:6379/0"),
        ("redis:6379", "redis://redis:6379/0"),
        ("[::1]:6379", "redis://[::1]:6379/0"),
        ("valkey://cache/2", "redis://cache:6379/2"),
        ("valkeys://cache", "rediss://cache:6379/0"),
    ] {
        let (config, settings) = from_environment(&[("LEASEHOLD_STORE", value)]).unwrap();
        assert_eq!(config.store.to_string(), meant);
        // It has no password, so it is shown as it was written.
        assert!(
            settings
                .to_string()
                .contains(&format!("store = \"{value}\""))
        );
    }
    for (value, meant) in [
        ("localhost:7625", "127.0.0.1:7625"),
        (":7625", "0.0.0.0:7625"),
    ] {
        let variables = [("LEASEHOLD_LISTEN", value), ("LEASEHOLD_AUTH", "none")];
        let (config, _) = from_environment(&variables).unwrap();
        assert_eq!(config.listen.to_string(), meant);
        let admin = [
            ("LEASEHOLD_SERVER_ADMIN_LISTEN", value),
            ("LEASEHOLD_LISTEN", "127.0.0.1:1"),
        ];
        let (config, _) = from_environment(&admin).unwrap();
        assert_eq!(config.server.admin_listen.unwrap().to_string(), meant);
    }
    for (value, meant) in [("TRUE", true), ("1", true), ("Off", false), ("no", false)] {
        let (config, settings) =
            from_environment(&[("LEASEHOLD_REDIS_GRACE_ON_EMPTY_START", value)]).unwrap();
        assert_eq!(config.redis.grace_on_empty_start, meant);
        assert!(
            settings
                .to_string()
                .contains(&format!("grace_on_empty_start = {meant} "))
        );
    }
    from_environment(&[("LEASEHOLD_AUTH", "None")]).unwrap();
}

#[test]
fn an_address_that_other_machines_reach_needs_a_key_however_it_is_written() {
    let error = complaint(from_environment(&[("LEASEHOLD_LISTEN", ":7625")]));
    assert!(error.contains("there is no key"), "{error}");
}

#[test]
fn a_variable_of_another_program_is_named_unless_its_key_is_set() {
    let url = ("REDIS_URL", "redis://user:s3cret@cache");
    let (config, _) = from_environment(&[url, ("PORT", "80")]).unwrap();
    let warnings = config.warnings().join("\n");
    assert!(
        warnings.contains("REDIS_URL is set and not read"),
        "{warnings}"
    );
    assert!(warnings.contains("set LEASEHOLD_LISTEN"), "{warnings}");
    assert!(!warnings.contains("s3cret"), "{warnings}");
    let (config, _) = from_environment(&[url, ("LEASEHOLD_STORE", "memory:")]).unwrap();
    assert_eq!(config.warnings(), Vec::<String>::new());
}
