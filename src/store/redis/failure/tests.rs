//! What the errors of Redis and of its versions mean.

use super::*;

fn failure(answer: &str) -> Failure {
    let answer = redis::parse_redis_value(format!("-{answer}\r\n").as_bytes());
    let error = answer.expect("well formed").extract_error();
    Failure::of(&error.expect_err("an error"))
}

#[test]
fn an_explanation_does_not_quote_redis() {
    let wrong: redis::RedisError = (
        redis::ErrorKind::AuthenticationFailed,
        "Password authentication failed",
    )
        .into();
    let wrong = Failure::of(&wrong);
    assert_eq!(
        (wrong.fault, wrong.explanation().as_str()),
        (Fault::Auth, "it refuses the user or the password")
    );
    for (answer, explained) in [
        (
            "NOPERM User u has no permissions to run the 'config|get' command",
            "the user may not run config|get; ",
        ),
        ("NOPERM No permissions to access a key", "lacks a right; "),
        ("NOAUTH Authentication required.", "asks for a password; "),
        ("CLUSTERDOWN The cluster is down", "the cluster is down: "),
        (
            "CLUSTERDOWN Hash slot not served",
            "no primary of the cluster has the slots of some locks",
        ),
        ("MOVED 7 127.0.0.1:7001", "write redis+cluster://"),
    ] {
        let explanation = failure(answer).explanation();
        assert!(explanation.contains(explained), "{explanation}");
        assert!(!explanation.contains("User u"), "{explanation}");
    }
}

/// The error that ends a request keeps no more than the kind and the text.
#[test]
fn an_error_about_a_slot_without_a_primary_does_not_say_that_the_cluster_is_down() {
    let detail = format!("{NO_PRIMARY} slot 247");
    let failure = Failure::new(Fault::ClusterDown, Execution::NotDone, detail);
    let explained = explained(&failure.into_error(false));
    let expected =
        "no primary of the cluster has the slots of some locks (no primary has slot 247)";
    assert_eq!(explained, expected);
}

#[test]
fn a_redis_without_room_replicas_or_cluster_has_an_outage_and_a_slot_that_has_moved_has_none() {
    for (answer, is_outage) in [
        ("CLUSTERDOWN Hash slot not served", true),
        ("CLUSTERDOWN The cluster is down", true),
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            true,
        ),
        ("NOREPLICAS Not enough good replicas to write.", true),
        (
            "MISCONF Errors writing to the AOF file: No space left on device",
            true,
        ),
        ("MOVED 7 127.0.0.1:7001", false),
        ("ASK 7 127.0.0.1:7001", false),
        (
            "TRYAGAIN Multiple keys request during rehashing of slot",
            false,
        ),
        (
            "READONLY You can't write against a read only replica.",
            false,
        ),
    ] {
        assert_eq!(failure(answer).is_outage(), is_outage, "{answer}");
    }
}

#[test]
fn a_connection_survives_an_answer_that_another_one_would_get_too() {
    for (answer, is_doubted) in [
        (
            "ERR Script attempted to access a non local key in a cluster node script: on @user_script:1.",
            false,
        ),
        (
            "ERR ACL failure in script: User u has no permissions script: on @user_script:1.",
            false,
        ),
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            false,
        ),
        (
            "WRONGTYPE Operation against a key script: on @user_script:1.",
            true,
        ),
        (
            "READONLY You can't write against a read only replica.",
            true,
        ),
    ] {
        let failure = failure(answer);
        assert_eq!(failure.casts_doubt_on_connection(), is_doubted, "{answer}");
    }
}

#[test]
fn a_server_that_is_no_redis_is_recognised() {
    let error = redis::parse_redis_value(b"HTTP/1.1 400 Bad Request\r\n");
    let failure = Failure::of(&error.expect_err("not an answer of Redis"));
    let explanation = failure.explanation();
    assert!(
        explanation.contains("not answer like a Redis server"),
        "{explanation}"
    );
}

/// What an error ends with that a command in the middle of a script caused: up to Valkey 8, and in Valkey 9.1.
const AMID: [&str; 2] = [
    " script: 857d37fb3188c44cc298349349dd303b80cdd270, on @user_script:1.",
    " script: on @user_script:1.",
];

#[test]
fn a_command_refused_before_it_began_was_not_executed() {
    for (answer, fault) in [
        (
            "NOPERM User u has no permissions to run the 'evalsha' command",
            Fault::Permission,
        ),
        (
            "LOADING Redis is loading the dataset in memory",
            Fault::Busy,
        ),
        (
            "READONLY You can't write against a read only replica.",
            Fault::Replica,
        ),
    ] {
        let failure = failure(answer);
        assert_eq!(
            (failure.fault, failure.may_be_done),
            (fault, false),
            "{answer}"
        );
    }
}

/// Redis checks a script's first write before executing it, and refuses none of the later writes.
#[test]
fn an_error_at_the_first_write_of_a_script_means_that_nothing_was_done() {
    for (answer, fault) in [
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            Fault::Full,
        ),
        (
            "READONLY You can't write against a read only replica.",
            Fault::Replica,
        ),
    ] {
        for amid in AMID {
            let failure = failure(&format!("{answer}{amid}"));
            let found = (failure.fault, failure.may_be_done);
            assert_eq!(found, (fault, false), "{answer}{amid}");
        }
    }
}

/// Scripts say so by the code, see `read_string` in `lua/lease.lua`. Were the next try one that may repeat something, it
/// would read more keys, and be refused until the slot has moved.
#[test]
fn a_script_that_finds_its_first_lock_on_its_way_has_done_nothing() {
    for answer in [
        "ERR Script attempted to access a non local key in a cluster node",
        "ERR Unable to execute command 'mget' in script because undeclared keys were accessed during \
         rehashing of the slot",
    ] {
        for amid in AMID {
            let failure = failure(&format!("TRYAGAIN {answer}{amid}"));
            let found = (failure.fault, failure.may_be_done);
            assert_eq!(found, (Fault::Moving, false), "{answer}{amid}");
            assert!(failure.is_worth_retrying, "{answer}{amid}");
        }
    }
}

/// Redis 6.2 puts the error of a command in a script behind its own.
#[test]
fn an_error_in_a_script_of_redis_6_is_that_of_the_command() {
    for (error, found) in [
        (
            "@user_script: 43: -OOM command not allowed when used memory > 'maxmemory'.",
            (Fault::Full, false),
        ),
        (
            "@user_script: 43: -READONLY You can't write against a read only replica.",
            (Fault::Replica, false),
        ),
        (
            "@user_script: 43: -NOREPLICAS Not enough good replicas to write.",
            (Fault::ReadOnly, false),
        ),
        (
            "@user_script: 43: The user executing the script can't run this command or subcommand",
            (Fault::Permission, true),
        ),
        (
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            (Fault::Corrupt, true),
        ),
    ] {
        let hash = "857d37fb3188c44cc298349349dd303b80cdd270";
        let failure = failure(&format!(
            "ERR Error running script (call to f_{hash}): @user_script:43: {error}"
        ));
        assert_eq!((failure.fault, failure.may_be_done), found, "{error}");
    }
}

#[test]
fn a_script_that_failed_in_the_middle_may_be_done() {
    for (answer, fault) in [
        (
            "NOPERM User u has no permissions to run the 'set' command",
            Fault::Permission,
        ),
        (
            "ERR The user executing the script can't run this command or subcommand",
            Fault::Permission,
        ),
        (
            "ERR ACL failure in script: User u has no permissions to run the 'set' command",
            Fault::Permission,
        ),
        (
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            Fault::Corrupt,
        ),
        (
            "TRYAGAIN Multiple keys request during rehashing of slot",
            Fault::Corrupt,
        ),
        (
            "ERR Script attempted to access a non local key in a cluster node",
            Fault::Moving,
        ),
        (
            "ERR Attempted to access a non local key in a cluster node",
            Fault::Moving,
        ),
        (
            "ERR Unable to execute command 'mget' in script because undeclared keys were accessed during \
             rehashing of the slot",
            Fault::Moving,
        ),
    ] {
        for amid in AMID {
            let failure = failure(&format!("{answer}{amid}"));
            let found = (failure.fault, failure.may_be_done);
            assert_eq!(found, (fault, true), "{answer}{amid}");
        }
    }
}
