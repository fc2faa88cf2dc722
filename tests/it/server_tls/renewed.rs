//! A certificate that is renewed in its files, and files that cannot be used.

use std::fs;

use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{certificate_of, encrypted, start};
use crate::process::Serving;
use crate::support::certificates::Authority;
use crate::support::eventually;

/// Fails unless readiness and the metrics come to say whether the files can be used.
async fn assert_outdated(serving: &Serving, authority: &Authority, is_outdated: bool) {
    let text = async |path: &str| {
        let mut stream = encrypted(serving, authority, &[]).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    eventually("readiness and the metrics say it", async || {
        let check = format!("\"name\":\"tls\",\"ok\":{}", !is_outdated);
        let gauge = format!("\nleasehold_tls_files_outdated {}\n", u8::from(is_outdated));
        let is_told = text("/readyz?verbose").await.contains(&check)
            && text("/metrics").await.contains(&gauge);
        is_told.then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart_and_open_connections_stay() {
    let authority = Authority::new();
    let files = authority.files_for("localhost");
    let mut serving = start(&files, &["--auth-reread-interval", "50ms"]);
    let mut open = encrypted(&serving, &authority, &[]).await.unwrap();
    let before = certificate_of(&open);
    // A broken file changes nothing.
    fs::write(&files.certificate, "nonsense").unwrap();
    serving.wait_for_line("cannot reload the TLS certificate and the authorities of clients; the previous ones stay in use");
    let stream = encrypted(&serving, &authority, &[]).await.unwrap();
    assert_eq!(certificate_of(&stream), before);
    assert_outdated(&serving, &authority, true).await;
    // The same files, with another key.
    authority.files_for("localhost");
    serving.signal(Signal::SIGHUP);
    serving.wait_for_line(
        "TLS files reloaded: the certificate or the authorities of clients have changed",
    );
    let stream = encrypted(&serving, &authority, &[]).await.unwrap();
    assert_ne!(certificate_of(&stream), before);
    assert_outdated(&serving, &authority, false).await;
    let request = "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    open.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    open.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}
