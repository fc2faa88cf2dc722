//! Runs every shell block of the README, in order, as if somebody had pasted them into one shell, against the service that
//! its first command starts.

use std::path::Path;

use crate::docs::shell::{SHELLS, blocks};
use crate::process::Serving;
use crate::support::redis_server::{RedisOptions, RedisServer};

const README: &str = include_str!("../../README.md");

/// The blocks that start a service, and all others.
fn starts_and_tours() -> (Vec<String>, Vec<String>) {
    let blocks = blocks(README).into_iter();
    blocks.partition(|block| block.contains("cargo run"))
}

/// The tests start the service on a port of its own; everything else runs unchanged.
#[test]
fn the_first_command_starts_the_service_without_arguments() {
    let (starts, tours) = starts_and_tours();
    assert_eq!(starts[0], "cargo run --release\n");
    assert!(starts[1].starts_with("LEASEHOLD_STORE=redis://localhost:6379/0 cargo run"));
    assert!(tours.len() >= 4, "{tours:?}");
}

#[test]
fn every_shell_block_can_be_pasted_into_bash_and_zsh() {
    let (_, tours) = starts_and_tours();
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let path = format!(
        "{}:/usr/local/bin:/usr/bin:/bin",
        program.parent().unwrap().display()
    );
    std::thread::scope(|scope| {
        for shell in SHELLS {
            let (text, path) = (tours.concat(), path.as_str());
            scope.spawn(move || {
                let serving = Serving::start(&[]);
                let address = serving.url.trim_start_matches("http://");
                let text = text.replace("localhost:7625", address);
                let directory = tempfile::tempdir().unwrap();
                let variables = [("PATH", path), ("LEASEHOLD_URL", &serving.url)];
                let output = shell.paste(&text, directory.path(), &variables);
                let [stdout, stderr] =
                    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
                for expected in [
                    "\"owner\":\"tour\"",
                    "held by \\\"tour\\\" for 5 min more; nobody waits",
                    "\"evicted\":[",
                    "\"name\":\"report\"",
                    "\"limit\":4",
                    "\"name\":\"acct/2\"",
                    "event: acquired\ndata: {\"name\":\"leader\"",
                    "event: acquired\ndata: {\"name\":\"acct/3\"",
                    "making the report",
                ] {
                    assert!(
                        stdout.contains(expected),
                        "{shell:?}: no {expected} in:\n{stdout}\n{stderr}"
                    );
                }
                for wrong in ["curl: (", "not found", "no matches", "error"] {
                    assert!(!stderr.contains(wrong), "{shell:?}: {wrong} in:\n{stderr}");
                }
                // Each answer is on lines of its own, and all but the first refusal and the eviction are successes.
                assert!(
                    stdout
                        .lines()
                        .all(|line| line.matches("{\"type\":").count() <= 1),
                    "{stdout}"
                );
                assert_eq!(
                    stdout.matches("{\"type\":").count(),
                    1,
                    "{shell:?}:\n{stdout}"
                );
            });
        }
    });
}

/// What people type by hand takes seconds for each line, in a shell and with a curl that may be years old.
#[test]
fn the_tour_has_time_and_needs_no_new_curl() {
    let text = starts_and_tours().1.concat();
    assert!(!text.contains('#') && !text.contains("--json"), "{text}");
    for ttl in text.split("ttl=").skip(1) {
        let digits = ttl.chars().take_while(char::is_ascii_digit).count();
        let (number, unit) = ttl.split_at(digits);
        let is_long = unit.starts_with('m') || number.parse::<u32>().unwrap() >= 5;
        assert!(is_long && !unit.starts_with("ms"), "ttl={ttl}");
    }
    for line in text.lines().filter(|line| line.starts_with("curl")) {
        assert!(
            !line.contains(" -f"),
            "it hides what the service says: {line}"
        );
    }
}

/// The second start of the README, with the port of a Redis that the test owns.
#[tokio::test]
async fn with_a_redis_everything_stays_the_same() {
    let redis = RedisServer::start(RedisOptions::default()).await;
    let serving = Serving::start(&["--store", &format!("redis://{}", redis.address())]);
    let grant = reqwest::Client::new()
        .post(format!("{}/locks/backup", serving.url))
        .send()
        .await
        .unwrap();
    assert_eq!(grant.status(), 201);
}
