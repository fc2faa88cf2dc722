//! `acquire`, `renew` and `release`.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{acquired, failed, output, printed, table};
use crate::process::{Serving, leasehold};
use crate::run::loss::Replacement;
use crate::run::{assert_code, client, evict, state, until_held, until_queued};

#[tokio::test]
async fn a_script_holds_a_lock_by_its_token_from_one_command_to_another() {
    let serving = Serving::start(&[]);
    let token = acquired(&serving, "a");
    assert!(uuid::Uuid::parse_str(&token).is_ok(), "{token}");
    assert_eq!(state(&serving, "a").await["holders"][0]["owner"], "alice");
    let renewed = printed(
        &serving,
        &["renew", "a", "--token", &token, "--ttl", "1h", "--json"],
    );
    let renewed: Value = serde_json::from_str(&renewed).unwrap();
    assert_eq!(renewed["ttl_ms"], 3_600_000);
    let mut release = client(&serving, &["release", "a"]);
    let released = release
        .env("LEASEHOLD_LOCK_TOKEN", &token)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(released.stdout).unwrap(), "released a\n");
    assert_eq!(state(&serving, "a").await["state"], "free");
}

#[test]
fn the_shell_line_of_the_help_works() {
    let serving = Serving::start(&[]);
    let program = env!("CARGO_BIN_EXE_leasehold");
    let script = format!(
        "set -eu; TOKEN=$({program} acquire backup --quiet) || exit
        {program} renew backup --token \"$TOKEN\" > /dev/null
        {program} get backup | tail -n 1
        {program} release backup --token \"$TOKEN\"; echo $$"
    );
    let mut shell = std::process::Command::new("bash");
    shell
        .args(["-c", &script])
        .env("LEASEHOLD_URL", &serving.url);
    let ran = shell.output().unwrap();
    assert_code(&ran, 0);
    let text = String::from_utf8(ran.stdout).unwrap();
    let lines = table(&text);
    // The default owner names the script, not the command that is long gone.
    let pid = lines[2][0];
    assert!(lines[0][2].ends_with(&format!(":{pid}")), "{text}");
    assert_eq!(lines[1], ["released", "backup"]);
}

#[test]
fn a_grant_is_a_table_for_people_and_the_document_of_the_service_for_programs() {
    let serving = Serving::start(&[]);
    let text = printed(&serving, &["acquire", "a", "b", "-t", "1m"]);
    let lines = table(&text);
    assert_eq!(
        lines[0],
        ["NAME", "TOKEN", "FENCING", "TOKEN", "EXPIRES", "IN"]
    );
    assert_eq!((lines[1][0], lines[2][0]), ("a", "b"));
    assert_eq!((lines[1][1], lines[1][3]), (lines[2][1], "1m"));
    let token = lines[1][1];
    let text = printed(&serving, &["renew", "b", "a", "--token", token]);
    assert_eq!(table(&text)[2][0], "b");
    assert_eq!(
        printed(&serving, &["release", "a", "b", "--token", token, "-q"]),
        ""
    );
    let text = printed(&serving, &["acquire", "c", "--json"]);
    assert!(text.starts_with("{\"name\":\"c\",\"token\":\""), "{text}");
    assert!(text.ends_with("}\n"), "{text}");
    assert_eq!(text.lines().count(), 1);
}

#[tokio::test]
async fn a_busy_lock_exits_75_and_leaves_nobody_in_the_queue() {
    let serving = Serving::start(&[]);
    let token = acquired(&serving, "a");
    let (code, text) = failed(&serving, &["acquire", "a", "-n"]);
    assert_eq!(code, Some(75));
    let words = "leasehold: a is taken, held by alice, for another ";
    assert!(text.starts_with(words), "{text}");
    assert_eq!(
        failed(&serving, &["acquire", "a", "-w", "10ms"]).0,
        Some(75)
    );
    assert_eq!(state(&serving, "a").await["queue_length"], 0);
    let waiting = client(&serving, &["acquire", "a", "-q"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until_queued(&serving, "a").await;
    printed(&serving, &["release", "a", "--token", &token]);
    let granted = waiting.wait_with_output().unwrap();
    let granted = String::from_utf8(granted.stdout).unwrap();
    printed(&serving, &["release", "a", "--token", granted.trim_end()]);
}

#[tokio::test]
async fn a_signal_while_it_waits_leaves_the_queue() {
    let serving = Serving::start(&[]);
    acquired(&serving, "a");
    let mut waiting = client(&serving, &["acquire", "a"]).spawn().unwrap();
    until_queued(&serving, "a").await;
    let pid = Pid::from_raw(waiting.id().try_into().unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(130));
    assert_eq!(state(&serving, "a").await["queue_length"], 0);
}

#[tokio::test]
async fn a_token_that_cannot_be_written_releases_its_lock() {
    let serving = Serving::start(&[]);
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut acquire = client(&serving, &["acquire", "a", "-q"]);
    let unwritable = acquire.stdout(full).output().unwrap();
    assert_code(&unwritable, 70);
    assert_eq!(state(&serving, "a").await["state"], "free");
}

#[tokio::test]
async fn a_lost_lease_exits_76_with_the_reason() {
    let serving = Serving::start(&[]);
    let token = acquired(&serving, "a");
    until_held(&serving, "a").await;
    evict(&serving, "a").await;
    for command in ["renew", "release"] {
        let (code, text) = failed(&serving, &[command, "a", "--token", &token]);
        assert_eq!(code, Some(76), "{command}");
        assert!(text.contains("; reason: test\n"), "{text}");
    }
    // A release that is repeated has succeeded.
    let token = acquired(&serving, "a");
    printed(&serving, &["release", "a", "--token", &token]);
    printed(&serving, &["release", "a", "--token", &token]);
    assert_eq!(
        failed(&serving, &["renew", "a", "--token", &token]).0,
        Some(76)
    );
}

#[test]
fn a_token_that_is_missing_or_invalid_is_refused_before_anything_is_asked() {
    let missing = leasehold(&["release", "a"]).output().unwrap();
    assert_code(&missing, 64);
    let text = String::from_utf8(missing.stderr).unwrap();
    assert!(text.contains("LEASEHOLD_LOCK_TOKEN or --token"), "{text}");
    assert_code(
        &leasehold(&["release", "a", "--token", "x"])
            .output()
            .unwrap(),
        64,
    );
    let mut release = leasehold(&["release", "a"]);
    assert_code(
        &release.env("LEASEHOLD_LOCK_TOKEN", "x").output().unwrap(),
        78,
    );
}

#[test]
fn shared_claims_hold_together_up_to_the_limit() {
    let serving = Serving::start(&[]);
    let two = [
        "acquire",
        "gpu",
        "-n",
        "--shared",
        "--limit",
        "4",
        "--permits",
        "2",
    ];
    printed(&serving, &two);
    printed(&serving, &two);
    assert_code(&output(&serving, &two), 75);
    let text = printed(&serving, &["get", "gpu"]);
    assert_eq!(text.matches("shared 2/4").count(), 2, "{text}");
}

/// The command repeats its request until the service is there.
#[test]
fn a_service_that_is_restarted_is_asked_again() {
    let serving = Serving::start(&[]);
    let address = serving.address().to_string();
    drop(serving);
    let mut get = leasehold(&["get", "a", "-q", "--url", &format!("http://{address}")]);
    let asking = get.stdout(Stdio::piped()).spawn().unwrap();
    let _replacement = Replacement::start(&address, &[]);
    let asked = asking.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(asked.stdout).unwrap(), "free\n");
}
