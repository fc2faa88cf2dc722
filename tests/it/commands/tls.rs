//! Client commands over TLS.

use std::process::Output;

use super::acquired;
use super::watch::Watching;
use crate::process::{Serving, leasehold};
use crate::run::assert_code;
use crate::support::certificates::Authority;
use crate::support::tls_front::TlsFront;

fn output(url: &str, arguments: &[&str]) -> Output {
    let mut command = leasehold(arguments);
    command
        .env("LEASEHOLD_URL", url)
        .env("PATH", "/usr/bin:/bin");
    command.output().unwrap()
}

#[test]
fn a_service_with_tls_is_used_by_every_command() {
    let serving = Serving::start(&[]);
    let authority = Authority::new();
    let front = TlsFront::start(serving.address(), &authority.files_for("localhost"));
    let url = format!("https://localhost:{}", front.port);
    let file = authority.file();
    let program = env!("CARGO_BIN_EXE_leasehold");
    // The command of `run` finds the service by the same authority.
    let run = [
        "run",
        "--ca-file",
        &file,
        "a",
        "--",
        program,
        "get",
        "a",
        "-q",
    ];
    let ran = output(&url, &run);
    assert_code(&ran, 0);
    assert_eq!(ran.stdout, b"held\n");
    let mut by_variable = leasehold(&["ls"]);
    by_variable
        .env("LEASEHOLD_URL", &url)
        .env("LEASEHOLD_CA_FILE", &file);
    assert_code(&by_variable.output().unwrap(), 0);
    let mut watching = Watching::start(
        &serving,
        &["a", "--json", "--url", &url, "--ca-file", &file],
    );
    assert_eq!(watching.event()["event"], "state");
    acquired(&serving, "a");
    assert_eq!(watching.event()["event"], "acquired");
}

#[test]
fn a_certificate_that_is_not_trusted_is_explained_and_not_tried_again() {
    let serving = Serving::start(&[]);
    let authority = Authority::new();
    let trusted = authority.file();
    let refused = |front: &TlsFront, host: &str, arguments: &[&str], reason: &str| {
        let url = format!("https://{host}:{}", front.port);
        for command in [&["get", "a"][..], &["acquire", "a"], &["watch", "a"]] {
            let refused = output(&url, &[command, arguments].concat());
            assert_code(&refused, 78);
            let text = String::from_utf8(refused.stderr).unwrap();
            assert!(text.contains(reason), "{text}");
        }
    };
    let front = TlsFront::start(serving.address(), &authority.files_for("localhost"));
    let other_authority = Authority::new();
    let other = other_authority.file();
    refused(
        &front,
        "localhost",
        &["--ca-file", &other],
        "--ca-file or LEASEHOLD_CA_FILE",
    );
    refused(
        &front,
        "127.0.0.1",
        &["--ca-file", &trusted],
        "its certificate is for another name",
    );
    refused(
        &front,
        "localhost",
        &["--ca-file", "/nowhere"],
        "cannot be read",
    );
    let expired = TlsFront::start(serving.address(), &authority.expired_files_for("localhost"));
    refused(
        &expired,
        "localhost",
        &["--ca-file", &trusted],
        "its certificate has expired",
    );
}
