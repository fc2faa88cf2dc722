//! The command line: exit codes, help, and output on stdout and stderr.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::Output;

use leasehold::config::keys;

use crate::process::{Serving, leasehold, output};

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Starts a server that responds to one request with a fixed status, and returns its URL.
fn answering(status: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/readyz", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let _head: Vec<_> = lines
            .take_while(|line| !line.as_ref().unwrap().is_empty())
            .collect();
        let body = "{\"status\":\"ok\"}";
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: 15\r\n\r\n{body}"
        )
        .unwrap();
    });
    url
}

#[test]
fn help_begins_with_examples_and_explains_every_key() {
    let help = output(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let text = stdout(&help);
    let examples = text.find("Examples:").unwrap();
    assert!(examples < text.find("Usage:").unwrap());
    for key in keys::all() {
        assert!(
            text.contains(&key.variable()),
            "{} is not explained",
            key.name
        );
    }
}

#[test]
fn secrets_have_no_flag() {
    for flag in [
        "--api-key",
        "--api-key-next",
        "--admin-key",
        "--read-key",
        "--redis-password",
    ] {
        assert_eq!(
            output(&[flag, "0123456789abcdef"]).status.code(),
            Some(64),
            "{flag}"
        );
    }
}

#[test]
fn the_version_is_printed() {
    let version = output(&["--version"]);
    assert_eq!(version.status.code(), Some(0));
    assert_eq!(
        stdout(&version),
        format!("leasehold {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn misuse_exits_64_with_a_suggestion() {
    let misused = output(&["serv"]);
    assert_eq!(misused.status.code(), Some(64));
    assert!(stderr(&misused).contains("'serve'"), "{}", stderr(&misused));
    let misused = output(&["--lisen", "127.0.0.1:0"]);
    assert_eq!(misused.status.code(), Some(64));
    assert!(
        stderr(&misused).contains("'--listen'"),
        "{}",
        stderr(&misused)
    );
}

#[test]
fn misuse_with_a_name_of_another_program_suggests_ours() {
    for (arguments, suggestion) in [
        (&["--redis-url", "redis://a"][..], "'--store'"),
        (&["serve", "--port", "80"], "'--listen'"),
        (&["--verbose"], "'--log-level'"),
        (&["start"], "'serve'"),
        (&["lock", "a"], "'acquire'"),
        (&["list"], "'ls'"),
        (&["version"], "'leasehold --version'"),
        (&["--redis-grace-on-empty-start", "true"], "'--flag=true'"),
    ] {
        let misused = output(arguments);
        assert_eq!(misused.status.code(), Some(64), "{arguments:?}");
        let error = stderr(&misused);
        assert!(error.contains(suggestion), "{arguments:?}: {error}");
    }
}

#[test]
fn the_short_help_names_the_values_of_a_flag() {
    let help = stdout(&output(&["-h"]));
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        "Where locks are kept: memory: (in this process), file:DIR",
        "Who may call: key (clients send api_key) or none (everybody)",
        "How to log: text, json, or auto",
        "log line of their own: failed (or slow), all, or off",
    ] {
        assert!(help.contains(text), "{text} is not in {help}");
    }
}

#[test]
fn the_help_of_the_health_check_has_only_the_settings_that_it_uses() {
    let help = stdout(&output(&["healthcheck", "-h"]));
    assert!(
        help.contains("--listen") && help.contains("--config"),
        "{help}"
    );
    assert!(
        !help.contains("--redis") && !help.contains("--lease"),
        "{help}"
    );
    // The settings of its server are taken nevertheless.
    let unreachable = output(&[
        "healthcheck",
        "--listen",
        "127.0.0.1:1",
        "--log-level",
        "off",
    ]);
    assert_eq!(unreachable.status.code(), Some(1));
}

#[test]
fn misconfiguration_exits_78_with_one_line() {
    for command in [
        &["serve"][..],
        &["config", "check"],
        &["config", "print"],
        &[],
    ] {
        let misconfigured = leasehold(command)
            .env("LEASEHOLD_OPERATION_TIMEOUT", "2")
            .output()
            .unwrap();
        assert_eq!(misconfigured.status.code(), Some(78), "{command:?}");
        assert_eq!(stdout(&misconfigured), "");
        let error = stderr(&misconfigured);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            error.contains("environment LEASEHOLD_OPERATION_TIMEOUT: operation_timeout: "),
            "{error}"
        );
    }
}

#[test]
fn a_valid_configuration_is_called_valid() {
    let checked = output(&[
        "config",
        "check",
        "--auth",
        "none",
        "--listen",
        "0.0.0.0:7625",
    ]);
    assert_eq!(checked.status.code(), Some(0));
    assert!(
        stdout(&checked).contains("warning: auth is none"),
        "{}",
        stdout(&checked)
    );
    assert!(stdout(&checked).ends_with("the configuration is valid\n"));
}

#[test]
fn the_printed_configuration_says_where_each_value_came_from() {
    let printed = leasehold(&[
        "config",
        "print",
        "--redis-connections",
        "9",
        "--redis-grace-on-empty-start",
    ])
    .env("LEASEHOLD_STORE", "redis://bob:s3cret@cache:7000/2")
    .output()
    .unwrap();
    let text = stdout(&printed);
    for line in [
        "connections = 9                                  # flag --redis-connections",
        "grace_on_empty_start = true                      # flag --redis-grace-on-empty-start",
        "store = \"redis://***@cache:7000/2\"               # environment LEASEHOLD_STORE",
        "listen = \"127.0.0.1:7625\"                        # default",
    ] {
        assert!(
            text.lines().any(|printed| printed == line),
            "{line} is not in\n{text}"
        );
    }
    assert!(!text.contains("s3cret"), "{text}");
}

#[test]
fn the_error_for_a_taken_port_has_a_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let failed = output(&["--listen", &taken.local_addr().unwrap().to_string()]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(
        stderr(&failed).contains("choose another port with --listen"),
        "{}",
        stderr(&failed)
    );
}

#[test]
fn an_authority_of_the_collector_that_can_never_be_used_exits_78() {
    let no_certificate =
        crate::config::file("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n");
    let refused = output(&[
        "--listen",
        "127.0.0.1:0",
        "--traces-endpoint",
        "https://127.0.0.1:1",
        "--traces-ca-file",
        no_certificate.path().to_str().unwrap(),
    ]);
    let error = stderr(&refused);
    assert_eq!(refused.status.code(), Some(78), "{error}");
    assert!(error.contains("cannot send traces"), "{error}");
}

#[test]
fn a_store_that_can_never_be_used_exits_78_with_the_reason() {
    let web_server = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("redis://{}", web_server.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in web_server.incoming() {
            write!(stream.unwrap(), "HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        }
    });
    let refused = output(&["--listen", "127.0.0.1:0", "--store", &store]);
    assert_eq!(refused.status.code(), Some(78));
    let error = stderr(&refused);
    assert!(
        error.contains("refusing this store: it does not answer like a Redis server"),
        "{error}"
    );
}

/// The port is taken, so the process ends once it has checked its store.
#[test]
fn the_log_names_the_store_that_cannot_be_used_without_its_password() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let store = "redis://bob:s3cret@127.0.0.1:1/0";
    let log = stdout(&output(&["--listen", &listen, "--store", store]));
    let line = log.lines().find(|line| line.contains("cannot be used"));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    for part in [
        "\"address\":\"redis://bob@127.0.0.1:1/0\"",
        "the connection was refused; the service repeats its checks, and is not ready until one succeeds",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(!log.contains("s3cret"), "{log}");
}

#[test]
fn the_error_for_a_taken_second_port_names_its_own_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let flags = ["--listen", "127.0.0.1:0", "--server-admin-listen", &address];
    let failed = output(&flags);
    assert_eq!(failed.status.code(), Some(1));
    assert!(
        stderr(&failed).contains("choose another port with --server-admin-listen"),
        "{}",
        stderr(&failed)
    );
}

#[test]
fn the_error_for_a_negative_number_names_its_key() {
    let failed = output(&["config", "check", "--auth-failures-max", "-1"]);
    assert_eq!(failed.status.code(), Some(78));
    assert!(
        stderr(&failed).contains("\"-1\" is not a whole number"),
        "{}",
        stderr(&failed)
    );
}

#[test]
fn the_openapi_document_is_json() {
    let printed = output(&["openapi"]);
    assert_eq!(printed.status.code(), Some(0));
    let document: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
}

#[test]
fn a_ready_server_is_healthy() {
    let serving = Serving::start(&[]);
    let listen = serving.url.strip_prefix("http://").unwrap();
    let healthy = output(&["healthcheck", "--listen", listen]);
    assert_eq!(healthy.status.code(), Some(0), "{}", stderr(&healthy));
}

/// The index responds even when the server is not ready.
#[test]
fn a_url_without_a_path_asks_whether_the_server_is_ready() {
    let nowhere = "redis://127.0.0.1:1/0";
    let serving = Serving::start(&["--store", nowhere]);
    for path in ["", "/"] {
        let url = format!("{}{path}", serving.url);
        let unhealthy = output(&["healthcheck", "--url", &url]);
        assert_eq!(unhealthy.status.code(), Some(1));
        let error = stderr(&unhealthy);
        assert!(error.contains("/readyz answered 503"), "{error}");
        let reason = "store: no operation has succeeded yet: the connection was refused";
        assert!(error.contains(reason), "{error}");
    }
}

/// The server listens on the unspecified address, which is not one to connect to. The check needs no key in its own
/// configuration, so it also works in a container whose server gets its settings as flags.
#[test]
fn a_server_on_every_address_is_asked_on_the_loopback_one() {
    let url = answering("200 OK");
    let port = url
        .trim_end_matches("/readyz")
        .rsplit(':')
        .next()
        .unwrap()
        .to_owned();
    let healthy = output(&["healthcheck", "--listen", &format!("0.0.0.0:{port}")]);
    assert_eq!(healthy.status.code(), Some(0), "{}", stderr(&healthy));
}

#[test]
fn a_server_that_is_not_ready_is_not_healthy() {
    let unhealthy = output(&[
        "healthcheck",
        "--url",
        &answering("503 Service Unavailable"),
    ]);
    assert_eq!(unhealthy.status.code(), Some(1));
    assert!(
        stderr(&unhealthy).contains("503 Service Unavailable"),
        "{}",
        stderr(&unhealthy)
    );
}

#[test]
fn a_server_that_is_not_there_is_not_healthy() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let unhealthy = output(&["healthcheck", "--url", &format!("http://{address}/readyz")]);
    assert_eq!(unhealthy.status.code(), Some(1));
    assert!(
        stderr(&unhealthy).contains("cannot be reached"),
        "{}",
        stderr(&unhealthy)
    );
}

/// The system accepts the connection into the listen queue, and no process responds.
#[test]
fn a_server_that_hangs_is_not_healthy() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/readyz", listener.local_addr().unwrap());
    let unhealthy = output(&["healthcheck", "--timeout", "50ms", "--url", &url]);
    assert_eq!(unhealthy.status.code(), Some(1));
    assert!(
        stderr(&unhealthy).contains("within 50ms"),
        "{}",
        stderr(&unhealthy)
    );
}
