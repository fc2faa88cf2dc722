//! `acquire` with a standard output that cannot take the token, and with a token of the script's own.

use std::fs::File;

use super::{acquired, failed, printed};
use crate::process::{Serving, leasehold};
use crate::run::{assert_code, client, state};

#[tokio::test]
async fn no_lock_is_taken_if_standard_output_is_not_open_for_writing() {
    let serving = Serving::start(&[]);
    for form in [&[][..], &["-q"], &["--json"]] {
        let mut acquire = client(&serving, &[&["acquire", "a", "-n"], form].concat());
        let readable = File::open("/dev/null").unwrap();
        let refused = acquire.stdout(readable).output().unwrap();
        assert_code(&refused, 70);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(
            text.contains("standard output is not open for writing"),
            "{text}"
        );
        assert_eq!(state(&serving, "a").await["state"], "free");
    }
}

/// To the runtime of a program, an output that was closed is `/dev/null`, open for both. Other programs open it so if its
/// output is to be ignored, and a lock may be taken for its TTL without a token.
#[test]
fn a_token_that_goes_to_the_null_device_is_mentioned() {
    let serving = Serving::start(&[]);
    let mut options = File::options();
    let mut acquire = |name: &str, further: &[&str]| {
        let null = options.read(true).write(true).open("/dev/null").unwrap();
        let mut acquire = client(&serving, &[&["acquire", name, "-q"], further].concat());
        let granted = acquire.stdout(null).output().unwrap();
        assert_code(&granted, 0);
        String::from_utf8(granted.stderr).unwrap()
    };
    let said = acquire("a", &[]);
    assert!(said.contains("the token is lost"), "{said}");
    let token = uuid::Uuid::new_v4().to_string();
    assert_eq!(acquire("b", &["--token", &token]), "");
}

#[tokio::test]
async fn an_acquisition_with_a_token_of_its_own_can_be_repeated_and_released() {
    let serving = Serving::start(&[]);
    let token = uuid::Uuid::new_v4().to_string();
    for _ in 0..2 {
        let taken = printed(&serving, &["acquire", "a", "-q", "-n", "--token", &token]);
        assert_eq!(taken, format!("{token}\n"));
    }
    // The claim is not another one, so it is refused, and goes on.
    let (code, text) = failed(&serving, &["acquire", "a", "--shared", "--token", &token]);
    assert_eq!(code, Some(64), "{text}");
    assert_eq!(state(&serving, "a").await["state"], "held");
    printed(&serving, &["release", "a", "--token", &token]);
    let (code, text) = failed(&serving, &["acquire", "a", "--token", &token]);
    assert_eq!(code, Some(76), "{text}");
    assert_eq!(state(&serving, "a").await["state"], "free");
}

/// A script may hold the lock by this token, and repeat the command.
#[tokio::test]
async fn a_repeated_acquisition_that_cannot_be_written_releases_nothing() {
    let serving = Serving::start(&[]);
    let token = uuid::Uuid::new_v4().to_string();
    let arguments = ["acquire", "a", "-q", "-n", "--token", &token];
    printed(&serving, &arguments);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let repeated = client(&serving, &arguments).stdout(full).output().unwrap();
    assert_code(&repeated, 70);
    let said = String::from_utf8(repeated.stderr).unwrap();
    assert!(said.contains("the lock is held"), "{said}");
    assert_eq!(state(&serving, "a").await["state"], "held");
}

#[tokio::test]
async fn a_claim_has_the_fields_that_the_flags_name() {
    let serving = Serving::start(&[]);
    let flags = ["--max-hold", "1h", "--lock-delay", "60s", "--no-fair"];
    let metadata = ["--metadata", "{\"job\": 7}"];
    let arguments = [&["acquire", "a", "--json"], &flags[..], &metadata].concat();
    printed(&serving, &arguments);
    let holder = &state(&serving, "a").await["holders"][0];
    assert_eq!(holder["metadata"]["job"], 7, "{holder}");
    printed(&serving, &["evict", "a"]);
    assert_eq!(state(&serving, "a").await["state"], "cooling");
    for refused in [["--metadata", "7"], ["--max-hold", "1000d"]] {
        let (code, text) = failed(&serving, &[&["acquire", "b"][..], &refused].concat());
        assert_eq!(code, Some(64), "{text}");
    }
}

#[test]
fn a_refusal_says_for_how_long_the_lock_is_held() {
    let serving = Serving::start(&[]);
    acquired(&serving, "a");
    let (code, text) = failed(&serving, &["acquire", "a", "-n"]);
    assert_eq!(code, Some(75));
    assert!(
        text.starts_with("leasehold: a is taken, held by alice, for another "),
        "{text}"
    );
}

#[test]
fn a_token_of_another_lock_is_refused_with_that_cause() {
    let serving = Serving::start(&[]);
    let token = acquired(&serving, "a");
    let (code, text) = failed(&serving, &["release", "b", "--token", &token]);
    assert_eq!(code, Some(76));
    assert!(text.contains("belong to different locks"), "{text}");
}

/// The hash of a key that nobody has would be put into the keys file.
#[test]
fn a_key_that_would_be_lost_is_not_made() {
    let mut options = File::options();
    let null = options.read(true).write(true).open("/dev/null").unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    for (stdout, says) in [(null, "the key would be lost"), (full, "No space left")] {
        let made = leasehold(&["keys", "new"]).stdout(stdout).output().unwrap();
        assert_code(&made, 70);
        let said = String::from_utf8(made.stderr).unwrap();
        assert!(said.contains(says) && !said.contains("keys file"), "{said}");
    }
}
