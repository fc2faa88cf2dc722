//! Authentication settings, secrets that must not be printed, and the store's URL, which may contain a secret.

mod in_redis;

use leasehold::config::{Auth, ClientKey, Config, Sources};

use crate::config::{KEY, OTHER_KEY, complaint, environment, file, from_environment};

#[test]
fn an_open_address_needs_a_key_or_an_explicit_none() {
    let error = complaint(from_environment(&[("LEASEHOLD_LISTEN", "0.0.0.0:7625")]));
    assert!(
        error.contains("LEASEHOLD_API_KEY") && error.contains("LEASEHOLD_AUTH=none"),
        "{error}"
    );
    let (config, _) = from_environment(&[
        ("LEASEHOLD_LISTEN", "0.0.0.0:7625"),
        ("LEASEHOLD_API_KEY", KEY),
    ])
    .unwrap();
    assert!(
        matches!(config.auth, Auth::Keys(keys) if keys.api.as_ref().unwrap().secret.expose() == KEY)
    );
    let (config, _) = from_environment(&[
        ("LEASEHOLD_LISTEN", "[::]:7625"),
        ("LEASEHOLD_AUTH", "none"),
    ])
    .unwrap();
    assert_eq!(config.auth, Auth::Open);
    assert!(
        config.warnings()[0].contains("every client that can reach"),
        "{:?}",
        config.warnings()
    );
    complaint(from_environment(&[
        ("LEASEHOLD_AUTH", "none"),
        ("LEASEHOLD_API_KEY", KEY),
    ]));
}

#[test]
fn a_short_key_is_refused_without_being_quoted() {
    let error = complaint(from_environment(&[("LEASEHOLD_API_KEY", "hunter2")]));
    assert!(
        error.contains("shorter than 16") && !error.contains("hunter2"),
        "{error}"
    );
}

#[test]
fn every_key_must_be_valid_and_unique() {
    let with =
        |name: &str, value: &str| from_environment(&[("LEASEHOLD_API_KEY", KEY), (name, value)]);
    for name in [
        "LEASEHOLD_API_KEY_NEXT",
        "LEASEHOLD_ADMIN_KEY",
        "LEASEHOLD_READ_KEY",
    ] {
        let error = complaint(with(name, "hunter2"));
        assert!(error.contains("shorter than 16") && !error.contains("hunter2"));
        let error = complaint(with(name, &"x".repeat(513)));
        assert!(error.contains("longer than 512"), "{error}");
        let error = complaint(with(name, "a key with some spaces"));
        assert!(error.contains("not allowed in a header"), "{error}");
        let error = complaint(from_environment(&[(name, OTHER_KEY)]));
        assert!(error.contains("without an api_key"), "{error}");
        with(name, OTHER_KEY).unwrap();
    }
    for name in ["LEASEHOLD_ADMIN_KEY", "LEASEHOLD_READ_KEY"] {
        let error = complaint(with(name, KEY));
        assert!(error.contains("is the same as api_key") && !error.contains(KEY));
    }
    with("LEASEHOLD_API_KEY_NEXT", KEY).unwrap();
}

#[test]
fn keys_are_reread_from_their_files_if_they_are_valid() {
    let (api, admin) = (file(KEY), file(OTHER_KEY));
    let (config, _) = from_environment(&[
        ("LEASEHOLD_API_KEY_FILE", api.path().to_str().unwrap()),
        ("LEASEHOLD_ADMIN_KEY_FILE", admin.path().to_str().unwrap()),
    ])
    .unwrap();
    let Auth::Keys(keys) = config.auth else {
        panic!("there are keys");
    };
    assert_eq!(keys.reread().unwrap(), *keys);
    std::fs::write(api.path(), "another-key-than-before\n").unwrap();
    let reread = keys.reread().unwrap();
    assert_eq!(
        reread.api.unwrap().secret.expose(),
        "another-key-than-before"
    );
    for (unfit, words) in [
        ("short", "api_key: is shorter"),
        ("", "is empty"),
        (OTHER_KEY, "is the same as api_key"),
    ] {
        std::fs::write(api.path(), unfit).unwrap();
        let problem = keys.reread().unwrap_err();
        assert!(
            problem.contains(words) && !problem.contains(OTHER_KEY),
            "{problem}"
        );
    }
    std::fs::write(api.path(), "k".repeat(5_000)).unwrap();
    let problem = keys.reread().unwrap_err();
    assert!(problem.contains("has more than 4096 bytes"), "{problem}");
    drop(api);
    assert!(keys.reread().unwrap_err().contains("cannot be read"));
}

/// A pipe would keep whoever reads it waiting, and a device can be endless.
#[test]
fn a_secret_is_read_from_a_regular_file_only() {
    for path in ["/dev/zero", "/"] {
        let error = complaint(from_environment(&[("LEASEHOLD_API_KEY_FILE", path)]));
        assert!(error.contains("is not a regular file"), "{error}");
    }
}

#[test]
fn a_secret_file_loses_one_newline_and_no_more() {
    let secret = file(&format!("{KEY}\n"));
    let (config, settings) =
        from_environment(&[("LEASEHOLD_API_KEY_FILE", secret.path().to_str().unwrap())]).unwrap();
    assert!(
        matches!(config.auth, Auth::Keys(keys) if keys.api.as_ref().unwrap().secret.expose() == KEY)
    );
    assert_eq!(
        settings.origin("api_key").to_string(),
        "environment LEASEHOLD_API_KEY_FILE"
    );
    let password = file("  two lines\n\n");
    let path = password.path().to_str().unwrap();
    let (config, _) = from_environment(&[("LEASEHOLD_REDIS_PASSWORD_FILE", path)]).unwrap();
    assert_eq!(config.redis.password.unwrap().expose(), "  two lines\n");
}

#[test]
fn a_secret_given_twice_in_one_layer_is_refused_and_in_two_the_stronger_wins() {
    let secret = file(KEY);
    let path = secret.path().to_str().unwrap();
    let error = complaint(from_environment(&[
        ("LEASEHOLD_API_KEY", KEY),
        ("LEASEHOLD_API_KEY_FILE", path),
    ]));
    assert!(error.contains("api_key is set too"), "{error}");

    let weak = file("api_key = \"weaker-but-long-enough\"\n");
    let sources = Sources {
        file: Some(weak.path().to_owned()),
        environment: environment(&[("LEASEHOLD_API_KEY_FILE", path)]),
        flags: Vec::new(),
    };
    let (config, _) = Config::load(&sources).unwrap();
    assert!(
        matches!(config.auth, Auth::Keys(keys) if keys.api.as_ref().unwrap().secret.expose() == KEY)
    );
}

#[test]
fn the_parts_of_a_redis_url_are_understood() {
    let load = |url: &str| from_environment(&[("LEASEHOLD_STORE", url)]).map(|(config, _)| config);
    assert_eq!(
        load("redis://h").unwrap().store.to_string(),
        "redis://h:6379/0"
    );
    assert_eq!(
        load("redis://[::1]:7000/3").unwrap().store.to_string(),
        "redis://[::1]:7000/3"
    );
    assert_eq!(
        load("rediss://h/2").unwrap().store.to_string(),
        "rediss://h:6379/2"
    );
    let config = load("redis://bob:p%40ss@h/1").unwrap();
    assert_eq!(config.redis.username.as_deref(), Some("bob"));
    assert_eq!(config.redis.password.unwrap().expose(), "p@ss");
    assert_eq!(config.store.to_string(), "redis://h:6379/1");
    for (url, words) in [
        ("redis://", "host is missing"),
        ("redis://h:port", "port is not a number"),
        ("redis://h/x", "database is not a number"),
        ("redis://h?db=1", "takes no parameters"),
        ("quorum:redis://a,redis://b", "3, 5, 7 or 9 nodes"),
        ("etcd://h", "no store of this scheme"),
        ("nonsense", "not a URL"),
    ] {
        let error = complaint(from_environment(&[("LEASEHOLD_STORE", url)]));
        assert!(error.contains(words), "{url}: {error}");
    }
}

#[test]
fn credentials_in_the_url_and_beside_it_are_refused() {
    let error = complaint(from_environment(&[
        ("LEASEHOLD_STORE", "redis://:s3cret@h"),
        ("LEASEHOLD_REDIS_PASSWORD", "other"),
    ]));
    assert!(
        error.contains("redis.password") && !error.contains("s3cret") && !error.contains("other;"),
        "{error}"
    );
}

#[test]
fn secrets_are_never_printed() {
    let (config, settings) = from_environment(&[
        (
            "LEASEHOLD_STORE",
            "redis://bob:p@s3cret@redis.internal:7000/2",
        ),
        ("LEASEHOLD_API_KEY", "s3cret-s3cret-s3cret"),
    ])
    .unwrap();
    let (other, other_settings) =
        from_environment(&[("LEASEHOLD_REDIS_PASSWORD", "s3cret")]).unwrap();
    for text in [
        format!("{config:?}"),
        settings.to_string(),
        format!("{other:?}"),
        other_settings.to_string(),
    ] {
        assert!(!text.contains("s3cret"), "{text}");
    }
    assert!(
        settings
            .to_string()
            .contains("\"redis://***@redis.internal:7000/2\""),
        "{settings}"
    );
    assert!(
        settings.to_string().contains("api_key = \"***\""),
        "{settings}"
    );
}

/// Tokens that are mounted into a pod are replaced there, so a command that runs for long must not keep the first one.
#[test]
fn the_key_of_a_command_is_that_of_its_file_at_each_request() {
    let file = file("first\n");
    let key = ClientKey::from_file(file.path().to_owned()).unwrap();
    assert_eq!(key.current().expose(), "first");
    std::fs::write(file.path(), "second\n").unwrap();
    assert_eq!(key.current().expose(), "second");
    for unfit in ["", "with a space", &"x".repeat(33 * 1024)] {
        std::fs::write(file.path(), unfit).unwrap();
        assert_eq!(key.current().expose(), "second", "{} bytes", unfit.len());
    }
    let longest = "x".repeat(32 * 1024);
    std::fs::write(file.path(), &longest).unwrap();
    assert!(key.current().expose() == longest, "a service can accept it");
    std::fs::write(file.path(), "third").unwrap();
    assert_eq!(key.current().expose(), "third");
}

/// Redis would be used as the user `default`, which may have more rights.
#[test]
fn a_user_without_a_password_is_refused() {
    let load = |variables: &[(&str, &str)]| from_environment(variables);
    for url in [
        "redis://bob@h/0",
        "rediss+sentinel://bob@h/primary",
        "redis+cluster://bob@h",
        "quorum:redis://bob@a,redis://bob@b,redis://bob@c",
    ] {
        let error = complaint(load(&[("LEASEHOLD_STORE", url)]));
        let words = "environment LEASEHOLD_STORE: store: a user without a password; set redis.password_file";
        assert!(error.contains(words) && !error.contains("bob@"), "{error}");
        let password = ("LEASEHOLD_REDIS_PASSWORD", "p");
        let (config, _) = load(&[("LEASEHOLD_STORE", url), password]).unwrap();
        assert_eq!(config.redis.username.as_deref(), Some("bob"));
    }
    let store = ("LEASEHOLD_STORE", "redis+sentinel://h/primary");
    let error = complaint(load(&[store, ("LEASEHOLD_REDIS_USERNAME", "bob")]));
    assert!(
        error.contains("redis.username: a user without a password"),
        "{error}"
    );
    let error = complaint(load(&[store, ("LEASEHOLD_REDIS_SENTINEL_USERNAME", "bob")]));
    let words =
        "redis.sentinel_username: a user without a password; set redis.sentinel_password_file";
    assert!(error.contains(words), "{error}");

    // A user that needs none is authenticated with an empty one.
    let (config, _) = load(&[("LEASEHOLD_STORE", "redis://bob:@h/0")]).unwrap();
    assert_eq!(config.redis.password.unwrap().expose(), "");
    let (config, _) = load(&[("LEASEHOLD_STORE", "redis://:@h/0")]).unwrap();
    assert!(config.redis.username.is_none() && config.redis.password.is_none());
}

/// As a file of a secret has one, a variable that is filled from a file may have one.
#[test]
fn a_newline_at_the_end_of_a_variable_is_not_part_of_the_secret() {
    let (config, _) = from_environment(&[
        ("LEASEHOLD_STORE", "redis://h/0\n"),
        ("LEASEHOLD_REDIS_PASSWORD", " p\n\r\n"),
        ("LEASEHOLD_API_KEY", &format!("{KEY}\n")),
    ])
    .unwrap();
    assert_eq!(config.store.to_string(), "redis://h:6379/0");
    assert_eq!(config.redis.password.unwrap().expose(), " p\n");
    assert!(
        matches!(config.auth, Auth::Keys(keys) if keys.api.as_ref().unwrap().secret.expose() == KEY)
    );
}
