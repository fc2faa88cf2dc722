//! TLS of the service itself: both protocols, a certificate that is replaced, and the bounds of handshakes.

mod clients;
mod renewed;
mod resumption;
mod rotation;

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leasehold::server::{Drained, Peer, Server, ServerTls, Workers};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::config::from_environment;
use crate::process::{Serving, leasehold};
use crate::run::assert_code;
use crate::shutdown::patient;
use crate::sockets::local;
use crate::support::certificates::Authority;
use crate::support::eventually;
use crate::support::redis_server::TlsFiles;

fn start(files: &TlsFiles, further: &[&str]) -> Serving {
    let certificate = ["--server-tls-cert-file", &files.certificate];
    let key = ["--server-tls-key-file", &files.key];
    Serving::start(&[&certificate[..], &key, further].concat())
}

fn address(serving: &Serving) -> SocketAddr {
    let address = serving.url.strip_prefix("https://").unwrap();
    address.parse().unwrap()
}

async fn connect(serving: &Serving) -> TcpStream {
    TcpStream::connect(address(serving)).await.unwrap()
}

/// A connection of a client that trusts the authority and names these protocols.
async fn encrypted(
    serving: &Serving,
    authority: &Authority,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    encrypted_by(&connector(authority, protocols), address(serving)).await
}

async fn encrypted_by(
    connector: &TlsConnector,
    address: SocketAddr,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    connector.connect(name, stream).await
}

/// TLS of a client that trusts the authority and names these protocols.
fn connector(authority: &Authority, protocols: &[&str]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let trusted = authority.trusted().authorities.unwrap();
    roots.add_parsable_certificates(trusted);
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    TlsConnector::from(Arc::new(config))
}

#[test]
fn commands_speak_tls_with_the_service() {
    let authority = Authority::new();
    let serving = start(&authority.files_for("localhost"), &[]);
    let port = serving.url.rsplit_once(':').unwrap().1;
    let url = format!("https://localhost:{port}");
    let ask = |arguments: &[&str]| {
        let mut command = leasehold(arguments);
        let command = command.env("LEASEHOLD_URL", &url);
        let command = command.env("LEASEHOLD_CA_FILE", authority.file());
        command.output().unwrap()
    };
    assert_code(&ask(&["acquire", "a", "-n"]), 0);
    let state = ask(&["get", "a", "-q"]);
    assert_code(&state, 0);
    assert_eq!(state.stdout, b"held\n");
}

/// As the `HEALTHCHECK` of the image does, with the settings of its server.
#[test]
fn a_server_with_tls_is_asked_whether_it_is_ready() {
    let authority = Authority::new();
    // Not a name of the address that is asked.
    let files = authority.files_for("locks.example");
    let serving = start(&files, &[]);
    let check = |listen: &str, certificate: &str, further: &[&str]| {
        let listen = listen.rsplit_once("//").unwrap().1;
        let arguments = ["healthcheck", "--listen", listen];
        let tls = ["--server-tls-cert-file", certificate];
        let mut command = leasehold(&[&arguments[..], &tls, further].concat());
        command.output().unwrap()
    };
    assert_code(&check(&serving.url, &files.certificate, &[]), 0);
    // The file has changed to something that the server cannot use, and it goes on with the certificate before.
    for contents in [
        fs::read_to_string(authority.file()).unwrap(),
        "nonsense".to_owned(),
    ] {
        fs::write(&files.certificate, contents).unwrap();
        assert_code(&check(&serving.url, &files.certificate, &[]), 0);
    }
    let files = authority.files_for("locks.example");

    let ca = authority.file();
    let required = [
        "--server-tls-client-ca-file",
        &ca,
        "--server-tls-client-certificate",
        "required",
        "--server-admin-listen",
        "127.0.0.1:0",
    ];
    let required = start(&files, &required);
    assert_code(&check(&required.url, &files.certificate, &[]), 1);
    let admin = required.admin_url.rsplit_once("//").unwrap().1;
    let further = ["--server-admin-listen", admin];
    assert_code(&check(&required.url, &files.certificate, &further), 0);
}

#[tokio::test]
async fn a_client_gets_the_protocol_that_it_names() {
    let authority = Authority::new();
    let serving = start(&authority.files_for("localhost"), &[]);
    for protocols in [&["http/1.1"][..], &[]] {
        let mut stream = encrypted(&serving, &authority, protocols).await.unwrap();
        let request = "POST /locks/a HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The end of the connection is an answer, too.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.starts_with(b"HTTP/1.1 "), "{answer:?}");
    }
    let stream = encrypted(&serving, &authority, &["h2", "http/1.1"])
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::post("https://localhost/locks/b").body(String::new());
    let answer = sender.send_request(request.unwrap()).await.unwrap();
    assert_eq!(answer.status().as_u16(), 201);
}

fn certificate_of(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    let shown = stream.get_ref().1.peer_certificates().unwrap();
    shown[0].clone().into_owned()
}

#[tokio::test]
async fn handshakes_are_bounded_in_time_and_in_number() {
    let authority = Authority::new();
    let serving = start(
        &authority.files_for("localhost"),
        &[
            "--server-tls-handshakes-max",
            "2",
            "--server-header-read-timeout",
            "20s",
            "--server-admin-listen",
            "127.0.0.1:0",
        ],
    );
    // Half of two are for one peer. The first byte begins a record of TLS that does not end. A connection that comes second
    // to the share is closed, so each try opens one.
    let mut slow = Vec::new();
    eventually("the share of the peer is in use", async || {
        let mut stream = connect(&serving).await;
        let _ = stream.write_all(&[22]).await;
        slow.push(stream);
        encrypted(&serving, &authority, &[])
            .await
            .is_err()
            .then_some(())
    })
    .await;
    let metrics = async || {
        let url = format!("{}/metrics", serving.admin_url);
        reqwest::get(url).await.unwrap().text().await.unwrap()
    };
    let text = metrics().await;
    let refused = text.lines().find(|line| {
        line.starts_with("leasehold_refused_total{limit=\"tls_handshakes_per_peer\"}")
    });
    assert!(!refused.unwrap().ends_with(" 0"), "{refused:?}");
    // It is given up in time, and then others are served again.
    drop(slow);
    eventually("the share is free again", async || {
        encrypted(&serving, &authority, &[]).await.ok().map(drop)
    })
    .await;
}

#[tokio::test]
async fn a_handshake_that_does_not_end_is_given_up() {
    let authority = Authority::new();
    let serving = start(
        &authority.files_for("localhost"),
        &["--server-header-read-timeout", "300ms"],
    );
    let mut slow = connect(&serving).await;
    slow.write_all(&[22]).await.unwrap();
    let mut answer = Vec::new();
    // It would not end without the deadline, and the test would hang.
    let _ = slow.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

/// The thread that accepts connections has to answer probes, and handshakes take time.
#[tokio::test]
async fn the_second_address_of_a_process_has_tls_for_those_who_begin_it_and_workers_serve_them() {
    let authority = Authority::new();
    let files = authority.files_for("localhost");
    let (config, _) = from_environment(&[
        ("LEASEHOLD_SERVER_TLS_CERT_FILE", &files.certificate),
        ("LEASEHOLD_SERVER_TLS_KEY_FILE", &files.key),
    ])
    .unwrap();
    let tls = ServerTls::new(config.certificate.as_ref().unwrap()).unwrap();
    let workers = Workers::start(2).unwrap();
    let server = Server::bind(&config.server, local()).unwrap();
    let server = server.with_tls(tls, 4);
    let another = server.bind_another(&config.server, local(), &workers);
    let another = another.unwrap();
    let address = another.local_addr();
    let app = Router::new().fallback(async |request: axum::extract::Request| {
        let peer: &Peer = request.extensions().get().expect("the peer is there");
        let thread = std::thread::current();
        format!("{} {:?}", peer.is_encrypted(), thread.name())
    });
    let never = std::future::pending();
    tokio::spawn(server.run_with(app.clone(), workers, (another, app), never));
    let plain = reqwest::get(format!("http://{address}/")).await.unwrap();
    let plain = plain.text().await.unwrap();
    assert!(plain.starts_with("false "), "{plain}");
    assert!(!plain.contains("worker-"), "{plain}");
    let connector = connector(&authority, &[]);
    let mut stream = encrypted_by(&connector, address).await.unwrap();
    let request = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The end of the connection is an answer, too.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.contains("true Some(\"worker-"), "{answer}");
}

/// Neither before the handshake, nor before it is known whether there is one.
#[tokio::test]
async fn connections_without_a_handshake_do_not_hold_up_the_end_and_are_not_cut() {
    let authority = Authority::new();
    let files = authority.files_for("localhost");
    let (config, _) = from_environment(&[
        ("LEASEHOLD_SERVER_TLS_CERT_FILE", &files.certificate),
        ("LEASEHOLD_SERVER_TLS_KEY_FILE", &files.key),
    ])
    .unwrap();
    let tls = ServerTls::new(config.certificate.as_ref().unwrap()).unwrap();
    let server = Server::bind(&patient(), local()).unwrap();
    let server = server.with_tls(tls, 4);
    let another = server.bind_another(&patient(), local(), &Workers::here());
    let another = another.unwrap();
    let mut silent = Vec::new();
    let mut open = Vec::new();
    for server in [&server, &another] {
        silent.push(TcpStream::connect(server.local_addr()).await.unwrap());
        open.push(server.open_connections());
    }
    let stop = CancellationToken::new();
    let (app, stopped) = (Router::new(), stop.clone().cancelled_owned());
    let running = server.run_with(app.clone(), Workers::here(), (another, app), stopped);
    let running = tokio::spawn(running);
    eventually("they are accepted", async || {
        open.iter().all(|open| open.count() == 1).then_some(())
    })
    .await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), Drained::Finished);
}

#[tokio::test]
async fn a_client_without_tls_is_not_served() {
    let authority = Authority::new();
    let serving = start(&authority.files_for("localhost"), &[]);
    let mut plain = connect(&serving).await;
    let request = "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    plain.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[test]
fn a_health_check_takes_the_urls_of_the_other_commands() {
    let authority = Authority::new();
    let serving = start(&authority.files_for("localhost"), &[]);
    let (_, port) = serving.url.rsplit_once(':').unwrap();
    let (ca, url) = (authority.file(), format!("https://localhost:{port}"));
    let check = |arguments: &[&str]| {
        let mut command = leasehold(&[&["healthcheck"], arguments].concat());
        command.output().unwrap()
    };
    assert_code(&check(&["--url", &url, "--ca-file", &ca]), 0);
    let path = format!("{url}/readyz?verbose");
    assert_code(&check(&["--url", &path, "--ca-file", &ca]), 0);
    let other = Authority::new();
    let refused = check(&["--url", &url, "--ca-file", &other.file()]);
    assert_code(&refused, 1);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("--ca-file"), "{text}");

    let plain = Serving::start(&[]);
    let (_, plain_port) = plain.url.rsplit_once(':').unwrap();
    for url in [
        format!("localhost:{plain_port}"),
        format!(":{plain_port}/readyz"),
    ] {
        assert_code(&check(&["--url", &url]), 0);
    }
    for (url, hint) in [
        (
            format!("http://localhost:{port}"),
            "write https:// instead of http://",
        ),
        (
            format!("https://localhost:{plain_port}"),
            "write http:// instead of https://",
        ),
    ] {
        let refused = check(&["--url", &url, "--ca-file", &ca]);
        assert_code(&refused, 1);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(text.contains(hint), "{text}");
    }
}
