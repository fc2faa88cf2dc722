//! The configuration: layers, names, values and error messages. Nothing here reads the environment of the test process.

mod bounds;
mod cluster;
mod jwt;
mod keys_file;
mod name_groups;
mod operators;
mod proxies;
mod quorum;
mod quotas;
mod replicas;
mod sentinel;
mod slips;
mod tls;
mod traces;
mod unix_socket;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use leasehold::config::{Auth, Config, ConfigError, Settings, Sources, StoreUrl, keys};
use tempfile::{NamedTempFile, TempDir};

pub(crate) const KEY: &str = "0123456789abcdef";
pub(crate) const OTHER_KEY: &str = "fedcba9876543210";

pub(crate) fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

pub(crate) fn environment(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    variables
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

pub(crate) fn from_environment(
    variables: &[(&str, &str)],
) -> Result<(Config, Settings), ConfigError> {
    Config::load(&Sources {
        environment: environment(variables),
        ..Sources::default()
    })
}

fn from_file(text: &str) -> Result<(Config, Settings), ConfigError> {
    let file = file(text);
    Config::load(&Sources {
        file: Some(file.path().to_owned()),
        ..Sources::default()
    })
}

pub(crate) fn complaint(loaded: Result<(Config, Settings), ConfigError>) -> String {
    let error = loaded
        .err()
        .expect("the configuration must be refused")
        .to_string();
    assert_eq!(error.lines().count(), 1, "one line is promised: {error}");
    error
}

#[test]
fn nothing_needs_to_be_configured() {
    let (config, _) = from_environment(&[]).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:7625");
    assert_eq!(config.store, StoreUrl::Memory);
    assert_eq!(config.auth, Auth::Open);
    assert_eq!(config.lease.max_hold_max, Duration::from_secs(30 * 86_400));
    assert_eq!(config.warnings(), Vec::<String>::new());
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let file =
        file("[redis]\nconnections = 5\nconnect_timeout = \"5s\"\ncheck_interval = \"5s\"\n");
    let sources = Sources {
        file: Some(file.path().to_owned()),
        environment: environment(&[
            ("LEASEHOLD_REDIS_CONNECTIONS", "6"),
            ("LEASEHOLD_REDIS_CONNECT_TIMEOUT", "6s"),
        ]),
        flags: vec![("redis.connections".to_owned(), "7".to_owned())],
    };
    let (config, settings) = Config::load(&sources).unwrap();
    assert_eq!(config.redis.connections, 7);
    assert_eq!(config.redis.connect_timeout, Duration::from_secs(6));
    assert_eq!(config.redis.check_interval, Duration::from_secs(5));
    assert_eq!(config.operation_timeout, Duration::from_secs(2));
    assert_eq!(
        settings.origin("redis.connections").to_string(),
        "flag --redis-connections"
    );
    assert_eq!(
        settings.origin("redis.connect_timeout").to_string(),
        "environment LEASEHOLD_REDIS_CONNECT_TIMEOUT"
    );
    assert_eq!(
        settings.origin("redis.check_interval").to_string(),
        format!("{}:4", file.path().display())
    );
    assert_eq!(settings.origin("operation_timeout").to_string(), "default");
}

#[test]
fn the_file_can_be_named_in_the_environment() {
    let file = file("operation_timeout = \"9s\"");
    let (config, _) =
        from_environment(&[("LEASEHOLD_CONFIG", file.path().to_str().unwrap())]).unwrap();
    assert_eq!(config.operation_timeout, Duration::from_secs(9));
}

#[test]
fn the_file_of_defaults_is_itself_a_configuration_and_changes_nothing() {
    let (config, _) = from_file(keys::DEFAULTS).unwrap();
    let (default, _) = from_environment(&[]).unwrap();
    assert_eq!(format!("{config:?}"), format!("{default:?}"));
}

#[test]
fn every_key_is_documented_by_a_sentence() {
    assert!(keys::all().len() > 30, "the scan of the defaults lost keys");
    for key in keys::all() {
        assert!(
            key.documentation.ends_with('.'),
            "line {}: {} needs a sentence",
            key.line,
            key.name
        );
        assert!(
            key.documentation.len() > 20,
            "line {}: {} needs a real sentence",
            key.line,
            key.name
        );
    }
}

/// Changing a key must change the parsed configuration.
#[test]
fn every_key_is_read() {
    let secret = file(&format!("{KEY}\n"));
    let other_secret = file(OTHER_KEY);
    let url = file("redis://elsewhere");
    let hash = leasehold::config::KeyHash::of(b"a-key-of-a-principal");
    let principals = file(&format!("[principals.a]\nkeys = [\"{hash}\"]\n"));
    let path = |file: &NamedTempFile| file.path().to_str().unwrap().to_owned();
    let (default, _) = from_environment(&[]).unwrap();
    // The further keys are valid only together with an api_key.
    let (with_key, _) = from_environment(&[("LEASEHOLD_API_KEY", KEY)]).unwrap();
    for key in keys::all() {
        let value = match (key.name.as_str(), key.kind) {
            ("listen", _) => "127.0.0.1:1".to_owned(),
            ("store", _) => "redis://elsewhere:1".to_owned(),
            ("store_file", _) => path(&url),
            ("api_key", _) => KEY.to_owned(),
            ("api_key_file" | "redis.password_file" | "redis.sentinel_password_file", _) => {
                path(&secret)
            }
            ("api_key_next" | "admin_key" | "read_key", _) => OTHER_KEY.to_owned(),
            ("api_key_next_file" | "admin_key_file" | "read_key_file", _) => path(&other_secret),
            ("auth_metrics", _) => "none".to_owned(),
            ("auth_keys_file", _) => path(&principals),
            ("redis.accept_eviction_policy", _) => "volatile-lru".to_owned(),
            ("lease.ttl_min", _) => "1s".to_owned(),
            ("metrics.name_groups", _) => "jobs/*".to_owned(),
            ("log.level", _) => "debug".to_owned(),
            ("log.format", _) => "json".to_owned(),
            ("log.requests", _) => "all".to_owned(),
            ("server.trusted_proxies", _) => "192.0.2.0/24".to_owned(),
            ("server.admin_listen", _) => "127.0.0.1:2".to_owned(),
            ("server.socket_mode", _) => "0600".to_owned(),
            ("server.answer_bytes_max" | "server.body_bytes_total_max", _) => "2097152".to_owned(),
            // On a loopback address it changes nothing by itself, so the test sets a value that is refused.
            ("auth", _) => {
                assert!(
                    complaint(from_environment(&[("LEASEHOLD_AUTH", "basic")])).contains("auth")
                );
                continue;
            }
            // They are read only together, or only with Redis, an issuer, a collector or a proxy, and have tests of their own.
            ("server.forwarded_for", _) => continue,
            (name, _) if name.starts_with("redis.tls_") => continue,
            (name, _) if name.starts_with("server.tls_") && name != "server.tls_handshakes_max" => {
                continue;
            }
            (name, _) if name.starts_with("jwt.") || name.starts_with("traces.") => continue,
            ("redis.wait_replicas" | "redis.username" | "redis.sentinel_username", _) => continue,
            (_, keys::Kind::Text) => "other".to_owned(),
            (_, keys::Kind::Duration) => "31s".to_owned(),
            (_, keys::Kind::Integer) => "77".to_owned(),
            (_, keys::Kind::Boolean) => "true".to_owned(),
        };
        let is_further_key = value == OTHER_KEY || value == path(&other_secret);
        let (default, given) = match is_further_key {
            true => (&with_key, Some(("LEASEHOLD_API_KEY", KEY))),
            false => (&default, None),
        };
        let variable = key.variable();
        let given = given.into_iter().chain([(&*variable, &*value)]);
        let (changed, _) = from_environment(&given.collect::<Vec<_>>()).unwrap();
        assert_ne!(
            format!("{changed:?}"),
            format!("{default:?}"),
            "{} is not read",
            key.name
        );
    }
}

#[test]
fn the_error_for_an_unknown_key_has_its_line_and_a_suggestion() {
    let error = complaint(from_file(
        "listen = \"127.0.0.1:0\"\n\n[lease]\nttl_defualt = \"30s\"\n",
    ));
    assert!(
        error
            .contains(":4: unknown key \"lease.ttl_defualt\"; did you mean \"lease.ttl_default\"?"),
        "{error}"
    );
}

#[test]
fn a_key_under_the_wrong_section_is_recognised() {
    let error = complaint(from_file("connect_timeout = \"1s\"\n"));
    assert!(
        error.contains("did you mean \"redis.connect_timeout\"?"),
        "{error}"
    );
    let error = complaint(from_file("[reddis]\nconnect_timeout = \"1s\"\n"));
    assert!(
        error.contains(":1: unknown section \"reddis\"; did you mean \"redis\"?"),
        "{error}"
    );
}

#[test]
fn the_error_for_an_unknown_variable_has_a_suggestion() {
    let error = complaint(from_environment(&[("LEASEHOLD_LISTN", "127.0.0.1:0")]));
    assert!(
        error.contains("unknown variable \"LEASEHOLD_LISTN\"; did you mean \"LEASEHOLD_LISTEN\"?"),
        "{error}"
    );
}

#[test]
fn variables_that_kubernetes_makes_for_a_service_are_ignored() {
    from_environment(&[
        ("LEASEHOLD_SERVICE_HOST", "10.0.0.1"),
        ("LEASEHOLD_SERVICE_PORT", "7625"),
        ("LEASEHOLD_SERVICE_PORT_HTTP", "7625"),
        ("LEASEHOLD_PORT", "tcp://10.0.0.1:7625"),
        ("LEASEHOLD_PORT_7625_TCP", "tcp://10.0.0.1:7625"),
        ("LEASEHOLD_PORT_7625_TCP_ADDR", "10.0.0.1"),
        ("LEASEHOLD_REDIS_SERVICE_HOST", "10.0.0.2"),
        ("LEASEHOLD_REDIS_PORT", "tcp://10.0.0.2:6379"),
        ("LEASEHOLD_REDIS_PORT_6379_TCP_PROTO", "tcp"),
    ])
    .unwrap();
    // A user who wants to set the port gets an error.
    complaint(from_environment(&[("LEASEHOLD_PORT", "8080")]));
}

#[test]
fn a_bare_number_is_no_duration_and_the_message_shows_how_to_write_one() {
    let error = complaint(from_file("[lease]\nttl_default = 30\n"));
    assert!(
        error.contains(":2: lease.ttl_default: ") && error.contains("30s"),
        "{error}"
    );
    let error = complaint(from_environment(&[("LEASEHOLD_LEASE_TTL_DEFAULT", "30")]));
    assert!(
        error.contains("LEASEHOLD_LEASE_TTL_DEFAULT: lease.ttl_default: ") && error.contains("30s"),
        "{error}"
    );
}

#[test]
fn the_error_for_a_value_of_the_wrong_type_has_an_example() {
    let error = complaint(from_file("[redis]\nconnections = \"4\"\n"));
    assert!(
        error.contains(":2: redis.connections: this is a string; write a whole number, like 4"),
        "{error}"
    );
    let error = complaint(from_file("listen = true\n"));
    assert!(
        error.contains("write a text in quotes, like \"127.0.0.1:7625\""),
        "{error}"
    );
    let error = complaint(from_environment(&[("LEASEHOLD_REDIS_CONNECTIONS", "0")]));
    assert!(
        error.contains("\"0\" is not a whole number from 1"),
        "{error}"
    );
}

#[test]
fn the_error_for_broken_toml_has_its_line() {
    let error = complaint(from_file("listen = \"127.0.0.1:0\"\nauth =\n"));
    assert!(error.contains(":2: not valid TOML"), "{error}");
}

#[test]
fn ttl_bounds_must_be_in_order() {
    let error = complaint(from_environment(&[("LEASEHOLD_LEASE_TTL_MIN", "1m")]));
    assert!(
        error
            .contains("lease.ttl_min: 1m is longer than lease.ttl_default, which is 30s (default)"),
        "{error}"
    );
    let error = complaint(from_environment(&[("LEASEHOLD_LEASE_TTL_MAX", "10s")]));
    assert!(
        error.contains("lease.ttl_max: 10s is shorter than lease.ttl_default"),
        "{error}"
    );
}

/// A tombstone is kept for a minute, and with it what keeps the lock closed.
#[test]
fn a_lock_delay_that_would_be_forgotten_before_its_end_is_refused() {
    let (config, _) = from_file("[lease]\nlock_delay_max = \"60s\"\n").unwrap();
    assert_eq!(config.lease.lock_delay_max, Duration::from_secs(60));
    let error = complaint(from_file("[lease]\nlock_delay_max = \"60001ms\"\n"));
    assert!(
        error.contains(":2: lease.lock_delay_max: ") && error.contains("0s to 1m"),
        "{error}"
    );
}

#[test]
fn a_missing_file_is_reported_by_its_name() {
    let directory = TempDir::new().unwrap();
    let missing: PathBuf = directory.path().join("missing");
    let error = complaint(from_environment(&[(
        "LEASEHOLD_STORE_FILE",
        missing.to_str().unwrap(),
    )]));
    assert!(
        error.contains("LEASEHOLD_STORE_FILE: store_file: ") && error.contains("missing"),
        "{error}"
    );
    let error = complaint(Config::load(&Sources {
        file: Some(missing),
        ..Sources::default()
    }));
    assert!(error.contains("missing: cannot be read"), "{error}");
}

/// The printed configuration is valid input, except for secrets.
#[test]
fn the_printed_configuration_can_be_read_back() {
    let (config, settings) = from_environment(&[("LEASEHOLD_LOG_LEVEL", "debug")]).unwrap();
    let (again, _) = from_file(&settings.to_string()).unwrap();
    assert_eq!(format!("{again:?}"), format!("{config:?}"));
}

#[test]
fn how_long_and_how_many_may_wait_has_bounds() {
    let (config, _) = from_environment(&[("LEASEHOLD_WAITING_WAIT_MAX", "5m")]).unwrap();
    assert_eq!(config.waiting.wait_max, Duration::from_secs(300));
    assert_eq!(config.waiting.events_kept, 10_000);
    for (name, value) in [
        ("LEASEHOLD_WAITING_WAIT_MAX", "2h"),
        ("LEASEHOLD_WAITING_PLACE_KEPT", "2h"),
        ("LEASEHOLD_WAITING_POLL_INTERVAL", "50ms"),
        ("LEASEHOLD_WAITING_POLL_INTERVAL", "2m"),
    ] {
        let error = complaint(from_environment(&[(name, value)]));
        assert!(error.contains("out of range"), "{error}");
    }
    for name in [
        "LEASEHOLD_WAITING_WAITERS_MAX",
        "LEASEHOLD_WAITING_WAITERS_PER_LOCK_MAX",
        "LEASEHOLD_EVENTS_KEPT",
    ] {
        complaint(from_environment(&[(name, "0")]));
    }
    complaint(from_environment(&[(
        "LEASEHOLD_WAITING_WAITERS_PER_LOCK_MAX",
        "5000000000",
    )]));
}

#[test]
fn host_names_are_a_list_without_ports() {
    let (config, _) =
        from_environment(&[("LEASEHOLD_SERVER_HOSTS", "locks.example, ci-7,")]).unwrap();
    assert_eq!(config.server.hosts, ["locks.example", "ci-7"]);
    for wrong in ["locks:7625", "http://locks", "a b", "*"] {
        let error = complaint(from_environment(&[("LEASEHOLD_SERVER_HOSTS", wrong)]));
        assert!(error.contains("is not a host name"), "{error}");
    }
}
