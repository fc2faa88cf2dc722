//! What a change of the authorities of clients does, and one of the names in the keys file.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use http_body_util::BodyExt as _;
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::timeout;

use super::{BILLING, Client, Served, keys_file};
use crate::support::certificates::Authority;
use crate::support::{EFFECT_TIMEOUT, eventually};

/// Replaces a file as a whole.
fn install(file: &Path, text: &str) {
    let next = file.with_extension("next");
    fs::write(&next, text).unwrap();
    fs::rename(&next, file).unwrap();
}

#[tokio::test]
async fn the_authority_of_clients_is_changed_under_load() {
    let (before, after) = (Authority::new(), Authority::new());
    let served = Served::start(&before, &["--auth-reread-interval", "50ms"]);
    let [old, new] = [&before, &after].map(|authority| authority.client(BILLING));
    let [of_old, of_new] = [&before, &after].map(|it| fs::read_to_string(it.file()).unwrap());
    let locks = Cell::new(0);
    let acquire = async |certificate| {
        locks.set(locks.get() + 1);
        let client = Client {
            certificate: Some(certificate),
            ..Client::default()
        };
        let lock = format!("billing/{}", locks.get());
        served.acquire(&client, &lock).await
    };
    // Both authorities are trusted while clients change from one to the other, and no request is refused meanwhile.
    let change = async |text: &str, stays, changes, expected| {
        let is_over = Cell::new(false);
        let load = async {
            while !is_over.get() {
                assert_eq!(acquire(stays).await, Some(201));
            }
        };
        let change = async {
            install(&served.clients, text);
            eventually("the new file counts", async || {
                (acquire(changes).await == expected).then_some(())
            })
            .await;
            is_over.set(true);
        };
        tokio::join!(load, change);
    };
    assert_eq!(acquire(&new).await, None);
    change(&(of_old + &of_new), &old, &new, Some(201)).await;
    change(&of_new, &new, &old, None).await;
}

/// The connection stays as it is, and what comes over it is of nobody.
#[tokio::test]
async fn a_name_that_is_taken_out_of_the_keys_file_ends_what_its_certificate_may() {
    let authority = Authority::new();
    let served = Served::start(&authority, &["--auth-reread-interval", "50ms"]);
    let billing = authority.client(BILLING);
    let client = Client {
        certificate: Some(&billing),
        is_http2: true,
        headers: &[],
    };
    let stream = served.connect(&Arc::new(served.config(&client))).await;
    let stream = TokioIo::new(stream.unwrap());
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream);
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = |lock: &str, accept: &str| {
        let request = Request::post(format!("https://localhost/locks/billing/{lock}"));
        request
            .header("accept", accept)
            .body(String::new())
            .unwrap()
    };
    let held = sender.send_request(request("held", "text/event-stream"));
    let held = held.await.unwrap();
    assert_eq!(held.status(), 200);
    let next = sender.send_request(request("before", "*/*")).await;
    assert_eq!(next.unwrap().status(), 201);

    install(&served.keys, &keys_file("spiffe://example.org/other"));
    let whole = timeout(EFFECT_TIMEOUT, held.into_body().collect()).await;
    let whole = whole.expect("the stream ends").unwrap().to_bytes();
    let text = String::from_utf8(whole.to_vec()).unwrap();
    let (_, lost) = text.split_once("event: lost").expect("it tells why");
    assert!(lost.contains("unauthorized"), "{text}");
    let next = sender.send_request(request("after", "*/*")).await;
    assert_eq!(next.unwrap().status(), 401);
}
