//! `server.admin_listen` of the binary: whom it serves what, with each way of authentication, beside the first address, and
//! at the end of the process. Client certificates are in `server_tls`.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use leasehold::config::KeyHash;
use nix::sys::signal::Signal;
use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::config::{KEY, OTHER_KEY, file};
use crate::process::{Serving, leasehold};
use crate::support::certificates::Authority;
use crate::support::eventually;

const ADMIN_LISTEN: [&str; 2] = ["--server-admin-listen", "127.0.0.1:0"];

fn start(further: &[&str]) -> Serving {
    Serving::start(&[&ADMIN_LISTEN[..], further].concat())
}

/// The status of a request, without a key if that is empty.
async fn status(url: &str, method: Method, path: &str, key: &str) -> u16 {
    let request = reqwest::Client::new().request(method, format!("{url}{path}"));
    let request = match key {
        "" => request,
        _ => request.bearer_auth(key),
    };
    request.send().await.unwrap().status().as_u16()
}

/// A key that is as long as keys are.
fn key_of(name: &str) -> String {
    format!("key-of-{name:->16}")
}

fn line_about(serving: &Serving) -> String {
    let lines = serving.lines_so_far.iter();
    let mut messages = lines.filter_map(|line| line["message"].as_str());
    let line = messages.find(|line| line.starts_with("listening for probes"));
    line.unwrap().to_owned()
}

#[tokio::test]
async fn without_keys_operators_of_this_machine_are_served() {
    let serving = start(&[]);
    let (clients, admin) = (&serving.url, &serving.admin_url);
    let line = "listening for probes, metrics and operators";
    assert_eq!(line_about(&serving), line);
    assert_eq!(status(clients, Method::POST, "/locks/a", "").await, 201);
    for path in ["/locks", "/locks/a", "/ui", "/ui/ui.js", "/readyz"] {
        assert_eq!(status(admin, Method::GET, path, "").await, 200, "{path}");
    }
    let evicted = status(admin, Method::DELETE, "/locks/a?force=true", "").await;
    assert_eq!(evicted, 200);
    assert_eq!(status(admin, Method::POST, "/locks/a", "").await, 405);
}

/// Nobody needs it there, and each such connection can be made to take megabytes.
#[tokio::test]
async fn the_second_address_does_not_speak_http2() {
    let serving = start(&[]);
    for (url, speaks) in [(&serving.url, true), (&serving.admin_url, false)] {
        let address = url.strip_prefix("http://").unwrap();
        let mut socket = TcpStream::connect(address).await.unwrap();
        // The preface, and SETTINGS without any.
        let begins = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        socket.write_all(begins).await.unwrap();
        let answered = socket.read(&mut [0; 9]).await.unwrap_or(0);
        assert_eq!(answered > 0, speaks, "{url}");
    }
}

#[tokio::test]
async fn nobody_is_an_operator_who_cannot_reach_the_first_address() {
    let directory = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", directory.path().join("a.sock").display());
    let serving = Serving::start_on(&socket, leasehold(&[]), &ADMIN_LISTEN);
    assert_eq!(line_about(&serving), "listening for probes and metrics");
    for path in ["/locks", "/ui"] {
        let answer = status(&serving.admin_url, Method::GET, path, "").await;
        assert_eq!(answer, 404, "{path}");
    }
    let probed = status(&serving.admin_url, Method::GET, "/livez", "").await;
    assert_eq!(probed, 200);
}

#[tokio::test]
async fn with_one_key_operators_need_the_key_that_may_evict() {
    let (client, admin) = (file(KEY), file(OTHER_KEY));
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().unwrap().to_owned();
    let serving = start(&[
        "--api-key-file",
        &path(&client),
        "--admin-key-file",
        &path(&admin),
    ]);
    let (clients, admin) = (&serving.url, &serving.admin_url);
    assert_eq!(status(clients, Method::POST, "/locks/a", KEY).await, 201);
    for (key, listed, evicted) in [
        ("", 401, 401),
        ("wrong", 401, 401),
        (KEY, 200, 403),
        (OTHER_KEY, 200, 200),
    ] {
        for url in [admin, clients] {
            assert_eq!(status(url, Method::GET, "/locks", key).await, listed);
            let answer = status(url, Method::DELETE, "/locks/a?force=true", key).await;
            assert_eq!(answer, evicted, "{key}");
        }
    }
}

#[tokio::test]
async fn with_a_keys_file_operators_see_and_evict_what_their_rules_say() {
    let keys = file("");
    let rules = |name: &str, verbs: &str| {
        let hash = KeyHash::of(key_of(name).as_bytes());
        format!(
            "[principals.{name}]\nkeys = [\"{hash}\"]\nrules = [{{ prefix = \"web\", verbs = [{verbs}] }}]\n"
        )
    };
    let text = rules("operator", "\"list\", \"evict\"") + &rules("client", "\"acquire\"");
    fs::write(keys.path(), text).unwrap();
    let serving = start(&["--auth-keys-file", keys.path().to_str().unwrap()]);
    let admin = &serving.admin_url;
    let (operator, client) = (key_of("operator"), key_of("client"));
    let acquired = status(&serving.url, Method::POST, "/locks/web/1", &client).await;
    assert_eq!(acquired, 201);
    for (method, path, key, expected) in [
        (Method::GET, "/locks", &operator, 200),
        (Method::GET, "/locks?prefix=db", &operator, 403),
        (Method::GET, "/locks", &client, 403),
        (Method::DELETE, "/locks/db/1?force=true", &operator, 403),
        (Method::DELETE, "/locks/web/1?force=true", &client, 403),
        (Method::DELETE, "/locks/web/1?force=true", &operator, 200),
    ] {
        let answer = status(admin, method.clone(), path, key).await;
        assert_eq!(answer, expected, "{method} {path}");
    }
}

/// Half of two requests are for one peer, and one is under way at the first address.
#[tokio::test]
async fn a_peer_has_one_share_of_the_requests_at_both_addresses() {
    let limits = ["--server-requests-max", "2"];
    let serving = start(&[&PATIENT[..], &limits].concat());
    let acquire = begun(&serving.url, "POST /locks/a").await;
    let admin = &serving.admin_url;
    for (method, path, expected) in [
        (Method::GET, "/locks", 429),
        (Method::GET, "/locks/a", 429),
        (Method::DELETE, "/locks/a?force=true", 429),
        // Probes count apart.
        (Method::GET, "/livez", 200),
        (Method::GET, "/metrics", 200),
    ] {
        assert_eq!(status(admin, method, path, "").await, expected, "{path}");
    }
    drop(acquire);
    eventually("the share is free", async || {
        let listed = status(admin, Method::GET, "/locks", "").await;
        (listed == 200).then_some(())
    })
    .await;
}

/// A request whose body has not arrived, and which the service has begun to read.
async fn begun(url: &str, head: &str) -> TcpStream {
    let address: SocketAddr = url.strip_prefix("http://").unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "{head} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nExpect: 100-continue\r\nContent-Type: \
         application/x-www-form-urlencoded\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 25];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream
}

/// Sends the body and returns the answer.
async fn finished(mut stream: TcpStream, body: &str) -> String {
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn is_closed(url: &str) {
    let address = url.strip_prefix("http://").unwrap().to_owned();
    eventually("the address is closed", async || {
        TcpStream::connect(&address).await.err().map(drop)
    })
    .await;
}

const PATIENT: [&str; 6] = [
    "--server-drain-delay",
    "0s",
    "--server-drain-timeout",
    "10m",
    "--server-body-timeout",
    "10m",
];

#[tokio::test]
async fn an_eviction_that_has_begun_is_answered_before_the_process_ends() {
    let mut serving = start(&PATIENT);
    let acquired = status(&serving.url, Method::POST, "/locks/a", "").await;
    assert_eq!(acquired, 201);
    let eviction = begun(&serving.admin_url, "DELETE /locks/a").await;
    serving.signal(Signal::SIGTERM);
    is_closed(&serving.url).await;
    is_closed(&serving.admin_url).await;
    let answer = finished(eviction, "force=true").await;
    assert!(answer.contains("200 OK"), "{answer}");
    assert!(answer.contains("\"evicted_total\":1"), "{answer}");
    serving.wait_for_line("stopped");
    assert_eq!(serving.wait().code(), Some(0));
}

#[tokio::test]
async fn probes_are_answered_while_the_first_address_finishes_and_no_operator_is() {
    let mut serving = start(&PATIENT);
    let acquire = begun(&serving.url, "POST /locks/a").await;
    serving.signal(Signal::SIGTERM);
    is_closed(&serving.url).await;
    let admin = &serving.admin_url;
    for (method, path, expected) in [
        (Method::GET, "/livez", 200),
        (Method::GET, "/readyz", 503),
        (Method::GET, "/locks", 503),
        (Method::DELETE, "/locks/a?force=true", 503),
    ] {
        let answer = status(admin, method, path, "").await;
        assert_eq!(answer, expected, "{path}");
    }
    let answer = finished(acquire, "owner=test").await;
    assert!(answer.contains("HTTP/1.1 "), "{answer}");
    serving.wait_for_line("stopped");
    assert_eq!(serving.wait().code(), Some(0));
}

/// Whoever connects can do that, and some checks of load balancers do: a warning for each would fill the log.
#[tokio::test]
async fn a_connection_that_is_reset_before_its_first_byte_is_no_warning() {
    let authority = Authority::new();
    let files = authority.files_for("localhost");
    let mut serving = start(&[
        "--server-tls-cert-file",
        &files.certificate,
        "--server-tls-key-file",
        &files.key,
    ]);
    let address = serving.admin_url.rsplit('/').next().unwrap().to_owned();
    for _ in 0..20 {
        let stream = TcpStream::connect(&address).await.unwrap();
        // By then the server waits for the first byte.
        sleep(Duration::from_millis(20)).await;
        stream.set_zero_linger().unwrap();
    }
    let probe = status(&format!("http://{address}"), Method::GET, "/livez", "").await;
    assert_eq!(probe, 200);
    serving.signal(Signal::SIGTERM);
    let log = serving.rest_of_log();
    assert!(!log.contains("connection"), "{log}");
}
