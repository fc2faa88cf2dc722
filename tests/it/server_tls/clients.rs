//! Certificates of clients: whose they are, and which are refused.

mod changes;
mod commands;
mod operators;

use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use hyper::Method;
use leasehold::config::{KeyHash, TlsIdentity};
use rcgen::SanType;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::connect;
use crate::process::Serving;
use crate::support::certificates::{Authority, san};
use crate::support::single_connection::SingleConnection;

const BILLING: &str = "spiffe://example.org/billing";
const WEB: &str = "web.example";

/// The principal `billing` has this name in its certificate.
fn keys_file(billing: &str) -> String {
    let key = KeyHash::of(b"key-of-web-that-is-long");
    format!(
        "[principals.billing]\ncertificates = [\"{billing}\"]\n\
         rules = [{{ prefix = \"billing\", verbs = [\"acquire\"] }}]\n\
         [principals.web]\nkeys = [\"{key}\"]\ncertificates = [\"dns:{WEB}\"]\n\
         rules = [{{ prefix = \"web\", verbs = [\"acquire\"] }}]\n"
    )
}

/// A service with TLS, the authority of its certificate, and the file of the authorities of its clients.
struct Served {
    serving: Serving,
    own: Authority,
    clients: PathBuf,
    keys: PathBuf,
    _directory: TempDir,
}

impl Served {
    fn start(clients: &Authority, further: &[&str]) -> Self {
        Self::start_with(clients, &keys_file(BILLING), further)
    }

    /// With this keys file.
    fn start_with(clients: &Authority, keys_file: &str, further: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let (keys, authorities) = (path("keys.toml"), path("clients.pem"));
        fs::write(&keys, keys_file).unwrap();
        fs::copy(clients.file(), &authorities).unwrap();
        let own = Authority::new();
        let arguments = [
            "--auth-keys-file",
            keys.to_str().unwrap(),
            "--server-tls-client-ca-file",
            authorities.to_str().unwrap(),
        ];
        let serving = super::start(
            &own.files_for("localhost"),
            &[&arguments[..], further].concat(),
        );
        Self {
            serving,
            own,
            clients: authorities,
            keys,
            _directory: directory,
        }
    }

    /// TLS of a client.
    fn config(&self, client: &Client<'_>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.own.trusted().authorities.unwrap());
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match client.certificate {
            Some(own) => config
                .with_client_auth_cert(own.chain.clone(), own.key.clone_key())
                .unwrap(),
            None => config.with_no_client_auth(),
        };
        if client.is_http2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        config
    }

    async fn connect(&self, config: &Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(Arc::clone(config));
        connector.connect(name, connect(&self.serving).await).await
    }

    /// The status of an acquire over a connection of its own; `None` if the connection was refused.
    async fn acquire(&self, client: &Client<'_>, lock: &str) -> Option<u16> {
        let stream = self.connect(&Arc::new(self.config(client))).await;
        let connection = SingleConnection::over(stream.ok()?, client.is_http2).await;
        let mut connection = connection.ok()?;
        let path = format!("/locks/{lock}");
        // The end of TLS 1.3 refuses a certificate after the client has done its part, so the request fails.
        let status = connection.status(Method::POST, &path, client.headers);
        status.await.ok()
    }
}

/// What a client shows and sends.
#[derive(Clone, Default)]
struct Client<'a> {
    certificate: Option<&'a TlsIdentity>,
    is_http2: bool,
    headers: &'a [(&'static str, &'static str)],
}

#[tokio::test]
async fn a_certificate_belongs_to_the_principal_with_one_of_its_names() {
    let authority = Authority::new();
    let served = Served::start(&authority, &[]);
    let [billing, web, nobody, upper] = [BILLING, WEB, "spiffe://example.org/bill", "Web.Example"]
        .map(|name| authority.client(name));
    for is_http2 in [false, true] {
        for (certificate, lock, status) in [
            (&billing, "billing/1", 201),
            (&billing, "web/1", 403),
            (&web, "web/2", 201),
            (&upper, "web/3", 201),
            (&web, "billing/2", 403),
            (&nobody, "billing/3", 401),
        ] {
            let client = Client {
                certificate: Some(certificate),
                is_http2,
                headers: &[],
            };
            let lock = format!("{lock}/{is_http2}");
            assert_eq!(served.acquire(&client, &lock).await, Some(status), "{lock}");
        }
        let client = Client {
            is_http2,
            ..Client::default()
        };
        let anonymous = served.acquire(&client, "billing/4").await;
        assert_eq!(anonymous, Some(401), "without a certificate and a key");
    }
}

/// An authority may let its clients choose any URI, and have only their DNS names under its control.
#[tokio::test]
async fn a_uri_is_never_the_dns_name_that_it_is_written_like() {
    let authority = Authority::new();
    let served = Served::start(&authority, &[]);
    let like_web = format!("dns:{WEB}");
    let uri = SanType::URI(like_web.as_str().try_into().unwrap());
    for (names, status) in [(vec![uri.clone()], 401), (vec![uri, san(WEB)], 201)] {
        let certificate = authority.client_of_names(names);
        let client = Client {
            certificate: Some(&certificate),
            ..Client::default()
        };
        assert_eq!(served.acquire(&client, "web/1").await, Some(status));
    }
}

/// It could be used as either of them.
#[tokio::test]
async fn a_certificate_with_names_of_two_principals_is_of_nobody() {
    let authority = Authority::new();
    let served = Served::start(&authority, &[]);
    for names in [[BILLING, WEB], [WEB, BILLING]] {
        let certificate = authority.client_of_names(names.map(san).to_vec());
        for lock in ["billing/1", "web/1"] {
            let client = Client {
                certificate: Some(&certificate),
                ..Client::default()
            };
            assert_eq!(served.acquire(&client, lock).await, Some(401), "{lock}");
        }
    }
}

#[tokio::test]
async fn a_certificate_with_too_many_names_has_none() {
    let authority = Authority::new();
    let served = Served::start(&authority, &[]);
    for (further, status) in [(63, 201), (64, 401)] {
        let others = (0..further).map(|number| san(&format!("other-{number}.example")));
        let certificate =
            authority.client_of_names([san(BILLING)].into_iter().chain(others).collect());
        let client = Client {
            certificate: Some(&certificate),
            ..Client::default()
        };
        assert_eq!(served.acquire(&client, "billing/1").await, Some(status));
    }
}

/// Each connection keeps the certificates of its client. With 50 KB of them, connections once took twice the memory that
/// their limits permit.
#[tokio::test]
async fn a_client_with_long_certificates_is_refused() {
    let authority = Authority::new();
    let served = Served::start(&authority, &[]);
    for (further, status) in [(600, Some(201)), (1_100, None)] {
        let others = (0..further).map(|number| san(&format!("other-{number:04}.example")));
        let client = Client {
            certificate: Some(&authority.client_of_names(others.collect())),
            headers: &[("authorization", "Bearer key-of-web-that-is-long")],
            ..Client::default()
        };
        assert_eq!(served.acquire(&client, "web/1").await, status, "{further}");
    }
}

#[tokio::test]
async fn a_key_decides_if_a_client_presents_both() {
    let authority = Authority::new();
    let served = Served::start(&authority, &[]);
    let billing = authority.client(BILLING);
    for (key, lock, status) in [
        ("Bearer key-of-web-that-is-long", "web/1", 201),
        ("Bearer key-of-web-that-is-long", "billing/1", 403),
        ("Bearer another-key", "billing/1", 401),
        ("nonsense", "billing/1", 401),
    ] {
        let client = Client {
            certificate: Some(&billing),
            headers: &[("authorization", key)],
            ..Client::default()
        };
        assert_eq!(served.acquire(&client, lock).await, Some(status), "{key}");
    }
}

/// A browser adds the certificate of its user to the requests of every page.
#[tokio::test]
async fn a_page_of_another_site_cannot_use_the_certificate_of_a_browser() {
    let authority = Authority::new();
    let served = Served::start(&authority, &[]);
    let billing = authority.client(BILLING);
    for (header, status) in [
        (("sec-fetch-site", "cross-site"), 403),
        (("origin", "https://evil.example"), 403),
        (("sec-fetch-site", "same-origin"), 201),
    ] {
        let client = Client {
            certificate: Some(&billing),
            headers: &[header],
            ..Client::default()
        };
        let answer = served.acquire(&client, "billing/1").await;
        assert_eq!(answer, Some(status), "{header:?}");
    }
}

#[tokio::test]
async fn a_certificate_that_is_not_valid_ends_the_handshake() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let served = Served::start(&authority, &[]);
    let [forged, expired] = [foreign.client(BILLING), authority.expired_client(BILLING)];
    for certificate in [&forged, &expired] {
        for is_http2 in [false, true] {
            let client = Client {
                certificate: Some(certificate),
                is_http2,
                headers: &[("authorization", "Bearer key-of-web-that-is-long")],
            };
            assert_eq!(served.acquire(&client, "web/1").await, None);
        }
    }
}

#[tokio::test]
async fn a_certificate_can_be_required() {
    let authority = Authority::new();
    let served = Served::start(&authority, &["--server-tls-client-certificate", "required"]);
    let (billing, nobody) = (authority.client(BILLING), authority.client("spiffe://a/b"));
    let with_key = |certificate| Client {
        certificate,
        headers: &[("authorization", "Bearer key-of-web-that-is-long")],
        ..Client::default()
    };
    assert_eq!(served.acquire(&with_key(None), "web/1").await, None);
    let answer = served.acquire(&with_key(Some(&nobody)), "web/1").await;
    assert_eq!(answer, Some(201), "the key says whose the request is");
    let by_certificate = Client {
        certificate: Some(&billing),
        ..Client::default()
    };
    assert_eq!(
        served.acquire(&by_certificate, "billing/1").await,
        Some(201)
    );
}

/// The certificate is verified by every handshake: a session that is resumed would outlive it.
#[tokio::test]
async fn no_session_is_resumed_where_clients_show_certificates() {
    let authority = Authority::new();
    let served = Served::start(&authority, &[]);
    let billing = authority.client(BILLING);
    let client = Client {
        certificate: Some(&billing),
        ..Client::default()
    };
    let config = Arc::new(served.config(&client));
    for _ in 0..2 {
        let mut stream = served.connect(&config).await.unwrap();
        let request = "GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // What the client needs to resume comes before the answer.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
        let kind = stream.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Full));
    }
}
