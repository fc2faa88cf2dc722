//! Exit codes, what the command gets, and how many requests that takes.

use std::io::Write as _;
use std::process::Stdio;

use super::{assert_code, output, run, state};
use crate::process::{Serving, leasehold};

#[test]
fn the_exit_code_is_that_of_the_command_and_the_lock_is_free_again() {
    let serving = Serving::start(&[]);
    for code in [0, 1, 75, 255] {
        let script = format!("exit {code}");
        let ended = output(&serving, &["-n", "a", "--", "sh", "-c", &script]);
        assert_code(&ended, code);
        assert!(ended.stderr.is_empty(), "{ended:?}");
    }
}

#[test]
fn a_command_that_a_signal_ended_exits_with_128_and_the_signal() {
    let serving = Serving::start(&[]);
    // The last is a real-time signal.
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139), ("64", 192)] {
        let script = format!("kill -{signal} $$");
        assert_code(&output(&serving, &["a", "--", "sh", "-c", &script]), code);
    }
}

#[test]
fn a_command_that_cannot_be_executed_releases_the_lock_and_exits_like_in_a_shell() {
    let serving = Serving::start(&[]);
    let missing = output(&serving, &["-n", "a", "--", "no-such-command"]);
    assert_code(&missing, 127);
    let text = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(text.contains("cannot execute no-such-command"), "{text}");
    assert_code(&output(&serving, &["-n", "a", "--", "/etc/passwd"]), 126);
    assert_code(&output(&serving, &["-n", "a", "--", "true"]), 0);
}

#[test]
fn misuse_exits_64_before_anything_is_asked() {
    for arguments in [
        &["run", "a"][..],
        &["run", "a b", "--", "true"],
        &["run", "a", "a", "--", "true"],
        &["run", "--ttl", "30", "a", "--", "true"],
        &["run", "--limit", "2", "a", "--", "true"],
        &["run", "--kill-after", "20s", "a", "--", "true"],
        &["run", "--url", "ftp://localhost", "a", "--", "true"],
    ] {
        let misused = leasehold(arguments).output().unwrap();
        assert_eq!(misused.status.code(), Some(64), "{arguments:?} {misused:?}");
    }
}

#[test]
fn a_password_in_the_url_is_refused_and_not_shown() {
    let url = "http://user:secret@127.0.0.1:1";
    let by_flag = leasehold(&["run", "--url", url, "a", "--", "true"]);
    let mut by_variable = leasehold(&["run", "a", "--", "true"]);
    by_variable.env("LEASEHOLD_URL", url);
    for (mut command, code) in [(by_flag, 64), (by_variable, 78)] {
        let refused = command.output().unwrap();
        assert_code(&refused, code);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            text.contains("password") && !text.contains("secret"),
            "{text}"
        );
    }
}

#[test]
fn too_few_open_files_exit_70_with_a_sentence() {
    let serving = Serving::start(&[]);
    for files in 3..24 {
        let mut command = std::process::Command::new("sh");
        let script = format!("ulimit -n {files}; exec \"$@\"");
        let arguments = ["-c", &script, "sh", env!("CARGO_BIN_EXE_leasehold")];
        command.args(arguments).args(["run", "a", "--", "true"]);
        let output = command.env("LEASEHOLD_URL", &serving.url).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!text.contains("panicked"), "{files}: {text}");
        // With few files not even the program can be loaded.
        if files >= 6 && output.status.code() != Some(0) {
            assert_code(&output, 70);
            assert!(text.contains("open files"), "{files}: {text}");
        }
    }
}

#[test]
fn a_value_that_the_service_refuses_exits_64_with_its_reason() {
    let serving = Serving::start(&[]);
    let refused = output(&serving, &["--ttl", "2h", "a", "--", "true"]);
    assert_code(&refused, 64);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("ttl"), "{text}");
}

#[test]
fn a_missing_or_unreadable_key_exits_78() {
    let key = "0123456789abcdef0123456789abcdef";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    std::fs::write(&file, key).unwrap();
    let file = file.to_str().unwrap();
    let serving = Serving::start(&["--api-key-file", file]);
    assert_code(&output(&serving, &["a", "--", "true"]), 78);
    let unreadable = ["--api-key-file", "/nowhere", "a", "--", "true"];
    assert_code(&output(&serving, &unreadable), 78);
    assert_code(
        &output(&serving, &["--api-key-file", file, "a", "--", "true"]),
        0,
    );
    for (variable, value) in [("LEASEHOLD_API_KEY_FILE", file), ("LEASEHOLD_API_KEY", key)] {
        let mut command = run(&serving, &["a", "--", "true"]);
        assert_code(&command.env(variable, value).output().unwrap(), 0);
    }
    let mut command = run(&serving, &["a", "--", "true"]);
    command.env("LEASEHOLD_URL", "ftp://127.0.0.1");
    assert_code(&command.output().unwrap(), 78);
}

#[test]
fn a_service_that_is_not_there_exits_69_and_names_its_url() {
    let arguments = [
        "run",
        "--url",
        "http://127.0.0.1:1",
        "-n",
        "a",
        "--",
        "true",
    ];
    let unreachable = leasehold(&arguments).output().unwrap();
    assert_code(&unreachable, 69);
    let text = String::from_utf8_lossy(&unreachable.stderr).into_owned();
    assert!(text.contains("http://127.0.0.1:1"), "{text}");
}

#[test]
fn the_command_learns_its_lock_token_and_fence() {
    let serving = Serving::start(&[]);
    let script = "echo $LEASEHOLD_LOCK_NAME $LEASEHOLD_LOCK_TOKEN $LEASEHOLD_FENCING_TOKEN $LEASEHOLD_EXPIRES_AT $LEASEHOLD_URL";
    let printed = output(&serving, &["a", "--", "sh", "-c", script]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    let words: Vec<_> = printed.split_whitespace().collect();
    assert_eq!((words[0], words[4]), ("a", serving.url.as_str()));
    assert!(uuid::Uuid::parse_str(words[1]).is_ok(), "{printed}");
    assert!(words[2].parse::<u64>().is_ok(), "{printed}");
    assert!(words[3].ends_with('Z'), "{printed}");
}

#[test]
fn several_locks_are_taken_together() {
    let serving = Serving::start(&[]);
    let script = "echo $LEASEHOLD_LOCK_NAME; echo $LEASEHOLD_FENCING_TOKEN | wc -w";
    let printed = output(&serving, &["b", "a", "--", "sh", "-c", script]);
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), "a b\n2\n");
    assert_code(&output(&serving, &["-n", "a", "--", "true"]), 0);
}

#[tokio::test]
async fn what_a_run_asks_for_reaches_the_service() {
    let serving = Serving::start(&[]);
    let script = "curl -s $LEASEHOLD_URL/locks/a";
    let lock = |flags: &[&str]| {
        let arguments = [flags, &["a", "--", "sh", "-c", script]].concat();
        let text = String::from_utf8(output(&serving, &arguments).stdout).unwrap();
        let lock = text.lines().next().unwrap();
        serde_json::from_str::<serde_json::Value>(lock).unwrap()["holders"][0].clone()
    };
    let plain = lock(&[]);
    let owner = plain["owner"].as_str().unwrap();
    let (user, rest) = owner.split_once('@').unwrap();
    let (host, process) = rest.rsplit_once(':').unwrap();
    assert!(!user.is_empty() && !host.is_empty(), "{owner}");
    assert!(process.parse::<u32>().is_ok(), "{owner}");
    assert_eq!(plain["mode"], "exclusive");
    let shared = lock(&["--shared", "--limit", "4", "--permits", "3"]);
    assert_eq!(
        (&shared["limit"], &shared["permits"]),
        (&4.into(), &3.into())
    );
    let named = lock(&["--owner", "bob", "--ttl", "1h", "--min-hold", "1m"]);
    assert_eq!(named["owner"], "bob");
    assert!(
        named["expires_in_ms"].as_u64().unwrap() > 3_500_000,
        "{named}"
    );
    assert_eq!(state(&serving, "a").await["state"], "cooling");
    assert_code(&output(&serving, &["-n", "a", "--", "true"]), 75);
}

#[test]
fn standard_input_and_output_are_those_of_the_command() {
    let serving = Serving::start(&[]);
    let mut command = run(&serving, &["a", "--", "tr", "a-z", "A-Z"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"HELLO");
}

#[test]
fn the_server_ignores_what_a_run_sets_for_its_command() {
    let serving = Serving::start(&[]);
    let program = env!("CARGO_BIN_EXE_leasehold");
    let checked = output(&serving, &["a", "--", program, "config", "check"]);
    assert_code(&checked, 0);
}

#[tokio::test]
async fn a_short_run_without_competition_takes_two_requests() {
    let serving = Serving::start(&[]);
    assert_code(&output(&serving, &["a", "--", "true"]), 0);
    let metrics = reqwest::get(format!("{}/metrics", serving.url)).await;
    let metrics = metrics.unwrap().text().await.unwrap();
    let counts = metrics.lines().filter(|line| {
        line.starts_with("http_server_request_duration_seconds_count{")
            && line.contains("\"/locks/{name}\"")
    });
    let counts = counts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    assert_eq!(counts.sum::<u64>(), 2, "{metrics}");
}
