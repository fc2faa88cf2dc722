//! `leasehold keys`: what it prints, and that a key is nowhere but where it belongs.

use std::io::Write as _;
use std::process::{Output, Stdio};

use leasehold::config::KeyHash;

use crate::process::{leasehold, output};
use crate::run::assert_code;

const FILE: &str = r#"
[principals.billing]
keys = ["HASH"]
rules = [
  { prefix = "orders", verbs = ["acquire", "read"] },
  { verbs = ["metrics"] },
]
"#;

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

fn of_stdin(arguments: &[&str], input: &str) -> Output {
    let mut command = leasehold(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn a_new_key_is_random_and_its_hash_is_the_one_for_the_file() {
    let made = output(&["keys", "new"]);
    assert_code(&made, 0);
    let key = text(&made.stdout);
    let key = key.strip_suffix('\n').unwrap();
    assert!(key.starts_with("lk_") && key.len() == 3 + 43, "{key}");
    let hash = KeyHash::of(key.as_bytes()).to_string();
    let note = text(&made.stderr);
    assert!(note.contains(&hash) && !note.contains(key), "{note}");
    assert_ne!(text(&output(&["keys", "new"]).stdout), format!("{key}\n"));

    // One newline at its end is not part of a key, as in every file of a key.
    for input in [key.to_owned(), format!("{key}\n"), format!("{key}\r\n")] {
        let hashed = of_stdin(&["keys", "hash"], &input);
        assert_code(&hashed, 0);
        assert_eq!(text(&hashed.stdout), format!("{hash}\n"));
        let file = crate::config::file(&input);
        let hashed = output(&["keys", "hash", file.path().to_str().unwrap()]);
        assert_eq!(text(&hashed.stdout), format!("{hash}\n"));
    }
    assert_code(&of_stdin(&["keys", "hash"], "\n"), 78);
    assert_code(&output(&["keys", "hash", "/nowhere/key"]), 78);
}

/// The service accepts no other key.
#[test]
fn a_key_that_cannot_be_one_has_no_hash() {
    for (key, words) in [
        ("tiny", "is shorter than 16 characters"),
        (
            "sixteen letters and a blank",
            "visible ASCII without spaces",
        ),
        (&*"k".repeat(513), "is longer than 512 characters"),
    ] {
        let refused = of_stdin(&["keys", "hash"], key);
        assert_code(&refused, 78);
        let said = text(&refused.stderr);
        assert!(said.contains(words) && !said.contains(key), "{said}");
        assert_eq!(text(&refused.stdout), "");
    }
}

#[test]
fn a_key_that_cannot_be_printed_is_not_made() {
    let readable = std::fs::File::open("/dev/null").unwrap();
    let mut command = leasehold(&["keys", "new"]);
    let made = command.stdout(readable).output().unwrap();
    assert_code(&made, 70);
    let said = text(&made.stderr);
    assert!(
        said.contains("not open for writing") && !said.contains("sha256"),
        "{said}"
    );
}

#[test]
fn a_keys_file_is_shown_and_checked_without_a_service() {
    let hash = KeyHash::of(b"k").to_string();
    let file = crate::config::file(&FILE.replace("HASH", &hash));
    let path = file.path().to_str().unwrap();
    let listed = output(&["keys", "list", path]);
    assert_code(&listed, 0);
    let listed = text(&listed.stdout);
    for words in ["billing", &hash[7..15], "acquire,read", "(every lock)"] {
        assert!(listed.contains(words), "{words} in {listed}");
    }
    assert!(!listed.contains(&hash), "{listed}");
    let checked = output(&["keys", "check", path]);
    assert_code(&checked, 0);
    assert!(text(&checked.stdout).ends_with("is valid; principals: 1\n"));
    // The file of the configuration is the default.
    let mut by_variable = leasehold(&["keys", "check"]);
    let by_variable = by_variable.env("LEASEHOLD_AUTH_KEYS_FILE", path).output();
    assert_code(&by_variable.unwrap(), 0);
    assert_code(&output(&["keys", "check"]), 64);
}

/// The service refuses it, so the check does.
#[test]
fn a_quota_that_the_bounds_of_the_service_exclude_is_refused() {
    let hash = KeyHash::of(b"k").to_string();
    let with_quota = FILE.replace("HASH", &hash) + "\n[quota]\nttl_max = \"1s\"\n";
    let file = crate::config::file(&with_quota);
    let check = |ttl_min: &str| {
        let mut command = leasehold(&["keys", "check", file.path().to_str().unwrap()]);
        command.env("LEASEHOLD_LEASE_TTL_MIN", ttl_min).output()
    };
    assert_code(&check("1s").unwrap(), 0);
    let refused = check("2s").unwrap();
    assert_code(&refused, 78);
    let words = "the quota of billing: ttl_max is 1s, shorter than lease.ttl_min, 2s";
    assert!(text(&refused.stderr).contains(words), "{refused:?}");
}

#[test]
fn a_question_about_the_rules_is_answered_by_the_exit_code_too() {
    let hash = KeyHash::of(b"k").to_string();
    let file = crate::config::file(&FILE.replace("HASH", &hash));
    let path = file.path().to_str().unwrap();
    let ask = |principal: &str, verb: &str, name: &[&str]| {
        let question = [
            "keys",
            "check",
            path,
            "--principal",
            principal,
            "--verb",
            verb,
        ];
        output(&[&question[..], name].concat())
    };
    for (verb, name, code, answer) in [
        (
            "acquire",
            &["--name", "orders/42"][..],
            0,
            "billing may acquire on orders/42\n",
        ),
        (
            "acquire",
            &["--name", "ordersx"],
            78,
            "billing may not acquire on ordersx\n",
        ),
        ("acquire", &[], 0, "billing may acquire on some locks\n"),
        (
            "admin",
            &["--name", "a"],
            78,
            "billing may not admin on a\n",
        ),
        ("list", &[], 78, "billing may not list\n"),
        ("metrics", &[], 0, "billing may metrics\n"),
    ] {
        let answered = ask("billing", verb, name);
        assert_code(&answered, code);
        assert_eq!(text(&answered.stdout), answer);
    }
    let unknown = ask("biling", "read", &[]);
    assert_code(&unknown, 78);
    assert!(text(&unknown.stderr).contains("has no principal biling"));
    assert_code(&ask("billing", "write", &[]), 64);
}

#[test]
fn a_broken_keys_file_is_reported_with_its_line() {
    let file = crate::config::file("[principals.a]\nkeys = 1\n");
    let path = file.path().to_str().unwrap();
    for command in ["list", "check"] {
        let refused = output(&["keys", command, path]);
        assert_code(&refused, 78);
        let said = text(&refused.stderr);
        assert!(
            said.contains(&format!("{path}:2: principals.a.keys:")),
            "{said}"
        );
    }
}
