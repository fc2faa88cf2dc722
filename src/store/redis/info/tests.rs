//! What is read from the answers of Redis, and what follows from it.

use super::*;

const INFO: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n# Replication\r\nrole:master\r\n\
    master_replid:def\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\n";

fn config(appendfsync: &str, on_rewrite: &str) -> HashMap<String, String> {
    let pairs = [
        ("appendfsync", appendfsync),
        ("no-appendfsync-on-rewrite", on_rewrite),
    ];
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn forbidden() -> HashMap<String, String> {
    HashMap::new()
}

#[test]
fn a_well_configured_redis_is_accepted() {
    let server = ServerInfo::parse(INFO, &config("always", "no"));
    assert_eq!(server.refusal(None), None);
    assert!(server.is_durable());
    assert!(
        server
            .findings(None, 3)
            .iter()
            .all(|finding| finding.is_fine)
    );
}

#[test]
fn an_evicting_policy_is_refused_unless_it_is_accepted_by_name() {
    let server = ServerInfo::parse(&INFO.replace("noeviction", "allkeys-lru"), &forbidden());
    assert!(
        server
            .refusal(None)
            .expect("refused")
            .1
            .contains("allkeys-lru")
    );
    assert!(server.refusal(Some("volatile-ttl")).is_some());
    assert_eq!(server.refusal(Some("allkeys-lru")), None);
}

#[test]
fn replicas_and_old_versions_are_refused() {
    assert!(
        ServerInfo::parse(&INFO.replace("role:master", "role:slave"), &forbidden())
            .refusal(None)
            .is_some()
    );
    assert!(
        ServerInfo::parse(&INFO.replace("7.0.15", "6.0.16"), &forbidden())
            .refusal(None)
            .is_some()
    );
    assert_eq!(
        ServerInfo::parse(&INFO.replace("7.0.15", "6.2.0"), &forbidden()).refusal(None),
        None
    );
}

#[test]
fn a_valkey_is_shown_with_its_own_version() {
    let valkey = INFO.replace(
        "redis_version:7.0.15\r\n",
        "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.0.1\r\n",
    );
    for (info, shown) in [(INFO, "redis 7.0.15"), (&valkey, "valkey 9.0.1")] {
        let finding = ServerInfo::parse(info, &forbidden()).version_finding();
        assert!(finding.is_fine);
        assert_eq!(finding.detail, shown);
    }
}

#[test]
fn a_sentinel_is_not_taken_for_a_redis() {
    let info = "redis_version:7.0.15\r\nredis_mode:sentinel\r\nmaxmemory_policy:noeviction\r\n";
    let (_, why) = ServerInfo::parse(info, &forbidden())
        .refusal(None)
        .expect("refused");
    assert!(why.contains("redis+sentinel://"), "{why}");
}

#[test]
fn only_an_append_only_file_that_is_always_synced_is_durable() {
    assert!(!ServerInfo::parse(INFO, &config("everysec", "no")).is_durable());
    assert!(!ServerInfo::parse(INFO, &forbidden()).is_durable());
    let without_file = INFO.replace("aof_enabled:1", "aof_enabled:0");
    assert!(!ServerInfo::parse(&without_file, &config("always", "no")).is_durable());
}

#[test]
fn what_makes_new_grants_wait_after_a_restart_is_said_with_what_to_set() {
    let without_file = INFO.replace("aof_enabled:1", "aof_enabled:0");
    for (info, config, advice) in [
        (INFO, config("everysec", "no"), "with always they need not"),
        (INFO, forbidden(), "the right to CONFIG GET"),
        (
            without_file.as_str(),
            config("always", "no"),
            "with appendonly yes",
        ),
    ] {
        let finding = ServerInfo::parse(info, &config).persistence_finding();
        let is_advised = finding.is_fine && finding.detail.contains(advice);
        assert!(is_advised, "{}", finding.detail);
    }
}

#[test]
fn a_file_that_is_not_synced_while_it_is_rewritten_is_not_durable() {
    let server = ServerInfo::parse(INFO, &config("always", "yes"));
    assert!(!server.is_durable());
    let finding = server.persistence_finding();
    assert!(
        finding.detail.contains("no-appendfsync-on-rewrite"),
        "{}",
        finding.detail
    );
}

#[test]
fn a_primary_is_not_durable_while_a_replica_could_take_its_place() {
    let info = format!("{INFO}connected_slaves:1\r\n");
    let server = ServerInfo::parse(&info, &config("always", "no"));
    assert!(!server.is_durable());
    let finding = server.persistence_finding();
    assert!(finding.is_fine && finding.detail.contains("replicas: 1"));
}

#[test]
fn a_promoted_replica_reports_its_former_primary() {
    let parse = |replid: &str| {
        let info = format!("{INFO}master_replid2:{replid}\r\n");
        ServerInfo::parse(&info, &forbidden()).promoted_from
    };
    assert_eq!(parse(&"0".repeat(40)), "");
    assert_ne!(parse("70e7"), "");
}
