//! Sessions that clients resume: how many there may be, and when they end. Where clients show certificates there are none,
//! which `clients` tests.

use nix::sys::signal::Signal;
use rustls::HandshakeKind::{Full, Resumed};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::{address, connector, encrypted_by, start};
use crate::process::Serving;
use crate::support::certificates::Authority;

/// Each gets two tickets, so these get more of them than rustls remembers by itself.
const OTHERS: usize = 130;

/// The handshake of a connection for one request.
async fn handshake(client: &TlsConnector, serving: &Serving) -> rustls::HandshakeKind {
    let mut stream = encrypted_by(client, address(serving)).await.unwrap();
    let request = "GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // What the client needs to resume comes before the answer.
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    stream.get_ref().1.handshake_kind().unwrap()
}

#[tokio::test]
async fn a_client_resumes_its_session_after_very_many_others_until_the_certificate_changes() {
    let authority = Authority::new();
    let mut serving = start(&authority.files_for("localhost"), &[]);
    let client = connector(&authority, &[]);
    assert_eq!(handshake(&client, &serving).await, Full);
    for _ in 0..OTHERS {
        let other = connector(&authority, &[]);
        assert_eq!(handshake(&other, &serving).await, Full);
    }
    assert_eq!(handshake(&client, &serving).await, Resumed);
    // The same files, with another key.
    authority.files_for("localhost");
    serving.signal(Signal::SIGHUP);
    serving.wait_for_line(
        "TLS files reloaded: the certificate or the authorities of clients have changed",
    );
    assert_eq!(handshake(&client, &serving).await, Full);
    assert_eq!(handshake(&client, &serving).await, Resumed);
}
