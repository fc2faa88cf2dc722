//! Which service a command asks, and what it does with a result that nobody can take.

use std::fs::OpenOptions;

use super::failed;
use crate::process::{Serving, leasehold};
use crate::run::{assert_code, client};

#[test]
fn the_url_of_the_locks_is_not_taken_for_that_of_the_service() {
    let serving = Serving::start(&[]);
    let url = format!("{}/locks", serving.url);
    for arguments in [
        &["run", "a", "--url", &url, "--", "true"][..],
        &["acquire", "a", "-n", "--url", &url],
    ] {
        let (code, text) = failed(&serving, arguments);
        assert_eq!(code, Some(64), "{text}");
        assert!(text.contains(&format!("write {}\n", serving.url)), "{text}");
    }
    let asked = leasehold(&["get", "a"]).env("LEASEHOLD_URL", url).output();
    let asked = asked.unwrap();
    assert_code(&asked, 78);
    let text = String::from_utf8(asked.stderr).unwrap();
    assert!(text.contains(&format!("write {}\n", serving.url)), "{text}");
}

#[test]
fn a_variable_that_no_command_reads_is_refused_with_the_one_that_was_meant() {
    for (name, meant) in [
        ("LEASEHOLD_ULR", "\"LEASEHOLD_URL\""),
        ("LEASEHOLD_CA_FIEL", "\"LEASEHOLD_CA_FILE\""),
        ("LEASEHOLD_API_KEY_FIEL", "\"LEASEHOLD_API_KEY_FILE\""),
    ] {
        for command in [
            &["ls"][..],
            &["acquire", "a"],
            &["run", "a", "--", "true"],
            &["serve"],
        ] {
            let refused = leasehold(command).env(name, "http://a").output().unwrap();
            assert_code(&refused, 78);
            let text = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(text.contains(&format!("did you mean {meant}?")), "{text}");
        }
    }
}

#[test]
fn an_empty_url_is_refused_because_the_default_would_be_another_service() {
    let refused = leasehold(&["ls"])
        .env("LEASEHOLD_URL", "")
        .output()
        .unwrap();
    assert_code(&refused, 78);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("LEASEHOLD_URL: it is empty"), "{text}");
}

#[test]
fn a_result_that_cannot_be_written_exits_70() {
    let serving = Serving::start(&[]);
    for arguments in [
        &["get", "a"][..],
        &["get", "a", "-q"],
        &["ls"],
        &["evict", "a"],
        &["--help"],
        &["--version"],
        &["help", "run"],
        &["run", "-h"],
        &["config", "print"],
        &["config", "check"],
        &["doctor"],
        &["ls", "--json"],
        &["openapi"],
        &["completions", "bash"],
        &["watch", "a"],
        &["acquire", "a", "-n"],
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = client(&serving, arguments);
        let ended = command.stdout(full).output().unwrap();
        assert_code(&ended, 70);
        let text = String::from_utf8(ended.stderr).unwrap();
        assert!(text.contains("cannot write"), "{arguments:?}: {text}");
    }
}

#[test]
fn common_mistakes_of_the_command_line_are_answered_with_the_right_words() {
    for (arguments, code, part) in [
        (
            &["run", "a", "echo", "hi"][..],
            64,
            "'--' goes before the command",
        ),
        (&["ls", "--prefix", "jobs/"], 64, "leasehold ls PREFIX"),
        (&["get", ""], 64, "write a name like orders/42"),
        (
            &["--store", "/var/lib/leasehold"],
            78,
            "write file:/var/lib/leasehold",
        ),
    ] {
        let refused = leasehold(arguments).output().unwrap();
        assert_code(&refused, code);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
}

#[test]
fn a_server_that_forgets_its_leases_says_so() {
    let mut serving = Serving::start(&[]);
    let line = serving.next_line();
    assert_eq!(line["level"], "WARN", "{line}");
    let text = line["message"].as_str().unwrap();
    assert!(text.contains("leases are lost"), "{line}");
}

#[test]
fn a_path_in_the_url_that_leads_nowhere_is_mentioned() {
    let serving = Serving::start(&[]);
    let url = format!("{}/team", serving.url);
    let refused = client(&serving, &["get", "a", "--url", &url]).output();
    let text = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(text.contains("the path /team"), "{text}");
}

#[test]
fn a_prefix_beside_the_lock_of_a_watch_is_refused_with_what_to_write() {
    let refused = leasehold(&["watch", "a", "--prefix", "b"])
        .output()
        .unwrap();
    assert_code(&refused, 64);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("leasehold watch --prefix"), "{text}");
}
