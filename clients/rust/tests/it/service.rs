//! Which service the client asks, with which key, and what it says when that key is refused.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_client::{Client, Error};

use crate::testbed::{Server, eventually};

const SECOND: Duration = Duration::from_secs(1);
const WRONG: &str = "wrong-key-0123456789abcdef";

/// Keeps what is logged.
struct Logged(Mutex<Vec<String>>);

static LOGGED: Logged = Logged(Mutex::new(Vec::new()));

impl log::Log for Logged {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.target().starts_with("leasehold_client") {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

#[tokio::test]
async fn a_key_file_is_read_for_each_request() {
    let server = Server::start().await;
    let file = std::env::temp_dir().join(format!("leasehold-{}", std::process::id()));
    std::fs::write(&file, WRONG).unwrap();
    let client = Client::builder(&server.url).api_key_file(&file);
    let client = client.build().unwrap();
    let error = client.lock("a").await.unwrap_err();
    assert_eq!(error.problem().code, "unauthorized");
    std::fs::write(&file, format!("{}\n", server.api_key)).unwrap();
    let lease = client.lock("a").ttl(2 * SECOND).await.unwrap();
    // Such a file is replaced now and then, and the key of before is good meanwhile.
    std::fs::remove_file(&file).unwrap();
    eventually(async || server.count("PUT").await >= 2).await;
    assert!(lease.is_held());
    let error = Client::builder(&server.url).api_key_file(&file).build();
    let error = error.unwrap_err().to_string();
    assert!(error.contains(file.to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn a_key_that_cannot_be_sent_is_an_error_that_does_not_show_it() {
    let server = Server::start().await;
    for key in [
        format!("{WRONG}\n\n"),
        format!("{WRONG} x"),
        format!("{WRONG}é"),
    ] {
        let error = Client::builder(&server.url).api_key(key).build();
        let error = error.unwrap_err().to_string();
        assert!(error.contains("visible ASCII"), "{error}");
        assert!(!error.contains(WRONG), "{error}");
    }
    let client = Client::builder(&server.url).api_key(format!("{}\r\n", server.api_key));
    client.build().unwrap().lock("a").await.unwrap();
}

#[tokio::test]
async fn a_key_may_come_from_a_function() {
    let server = Server::start().await;
    let key = Arc::new(Mutex::new(Err("the vault is sealed")));
    let source = {
        let key = key.clone();
        move || {
            let key: Result<String, _> = key.lock().unwrap().clone();
            Ok(key?)
        }
    };
    let client = Client::builder(&server.url).api_key_from(source);
    let client = client.build().unwrap();
    let error = client.lock("a").await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    assert!(error.to_string().contains("sealed"), "{error}");
    assert!(server.requests().await.is_empty());
    *key.lock().unwrap() = Ok(server.api_key.clone());
    let lease = client.lock("a").ttl(2 * SECOND).await.unwrap();
    *key.lock().unwrap() = Err("the vault is sealed");
    eventually(async || server.count("PUT").await >= 2).await;
    assert!(lease.is_held());
}

#[tokio::test]
async fn a_refused_renewal_is_logged_once_and_named_by_the_loss() {
    log::set_logger(&LOGGED).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let server = Server::start().await;
    let answer = "status=401&body=%7B%22detail%22:%22the%20key%20is%20unknown%22%7D";
    server.answer("PUT", 100, answer).await;
    let client = server.client();
    let lease = client.lock("refused").ttl(SECOND).await.unwrap();
    let loss = lease.lost().await;
    assert_eq!(loss.problem().code, "lease_expired");
    let text = loss.to_string();
    assert!(text.ends_with("401: the key is unknown"), "{text}");
    let mut logged = LOGGED.0.lock().unwrap().clone();
    logged.retain(|text| text.starts_with("refused "));
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert!(logged[0].ends_with("401: the key is unknown"));
}

#[tokio::test]
async fn a_url_needs_no_scheme() {
    let server = Server::start().await;
    let address = server.url.trim_start_matches("http://");
    let port = &address[address.find(':').unwrap()..];
    for url in [address, port] {
        let client = Client::builder(url).api_key(&server.api_key);
        client.build().unwrap().lock("a").await.unwrap();
    }
    for url in [
        "",
        "ftp://a",
        "localhost",
        "http://",
        "http://a:x",
        "unix:/run/leasehold.sock",
    ] {
        Client::new(url).expect_err(url);
    }
}
