//! Operators at the second address, where clients need TLS: they need it as well, with the certificate that clients need.

use std::sync::Arc;

use hyper::Method;
use reqwest::Client as PlainClient;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Client, Served};
use crate::support::certificates::Authority;
use crate::support::single_connection::SingleConnection;
use leasehold::config::KeyHash;

const OPERATOR: &str = "spiffe://example.org/operator";
const READER: &str = "spiffe://example.org/reader";
const KEY: &str = "Bearer key-of-operator-that-is-long";
const EVICT: &str = "/locks/a?force=true";

fn keys_file() -> String {
    let key = KeyHash::of(KEY.strip_prefix("Bearer ").unwrap().as_bytes());
    format!(
        "[principals.operator]\nkeys = [\"{key}\"]\ncertificates = [\"{OPERATOR}\"]\n\
         rules = [{{ prefix = \"\", verbs = [\"acquire\", \"list\", \"evict\"] }}]\n\
         [principals.reader]\ncertificates = [\"{READER}\"]\n\
         rules = [{{ prefix = \"\", verbs = [\"list\"] }}]\n"
    )
}

fn start(authority: &Authority, certificate: &str) -> Served {
    let further = [
        "--server-tls-client-certificate",
        certificate,
        "--server-admin-listen",
        "127.0.0.1:0",
    ];
    Served::start_with(authority, &keys_file(), &further)
}

/// The status of a request over TLS at the second address; `None` if the connection was refused.
async fn operate(served: &Served, client: &Client<'_>, method: Method, path: &str) -> Option<u16> {
    let address = served.serving.admin_url.rsplit_once("//").unwrap().1;
    let connector = TlsConnector::from(Arc::new(served.config(client)));
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name, stream).await.ok()?;
    let connection = SingleConnection::over(stream, client.is_http2).await;
    let mut connection = connection.ok()?;
    let status = connection.status(method, path, client.headers);
    status.await.ok()
}

#[tokio::test]
async fn without_tls_the_second_address_serves_probes_and_metrics_alone() {
    let authority = Authority::new();
    for certificate in ["optional", "required"] {
        let served = start(&authority, certificate);
        let mut lines = served.serving.lines_so_far.iter();
        let line = "listening for probes and metrics, and over TLS for operators";
        let line = lines.find(|it| it["message"] == line);
        let operators = line.expect("it says so")["operators"].as_str().unwrap();
        assert!(operators.starts_with("https://"), "{operators}");
        for (method, path, expected) in [
            (Method::GET, "/livez", 200),
            (Method::GET, "/readyz", 200),
            (Method::GET, "/metrics", 403),
            (Method::GET, "/locks", 404),
            (Method::GET, "/locks/a", 404),
            (Method::DELETE, EVICT, 404),
            (Method::POST, "/locks/a", 404),
            (Method::GET, "/ui", 404),
            (Method::GET, "/ui/ui.js", 404),
        ] {
            let url = format!("{}{path}", served.serving.admin_url);
            let request = PlainClient::new().request(method, url);
            let answer = request.header("authorization", KEY).send().await;
            assert_eq!(answer.unwrap().status(), expected, "{path} {certificate}");
        }
    }
}

#[tokio::test]
async fn with_tls_operators_need_the_certificate_that_clients_need() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let [operator, reader, nobody] =
        [OPERATOR, READER, "spiffe://a/b"].map(|name| authority.client(name));
    let forged = foreign.client(OPERATOR);
    let with_key: &[(&str, &str)] = &[("authorization", KEY)];
    for (required, without) in [("optional", Some(())), ("required", None)] {
        let served = start(&authority, required);
        for (certificate, headers, listed, evicted) in [
            (None, &[][..], without.map(|()| 401), without.map(|()| 401)),
            (None, with_key, without.map(|()| 200), without.map(|()| 200)),
            (Some(&forged), with_key, None, None),
            (Some(&nobody), &[][..], Some(401), Some(401)),
            (Some(&nobody), with_key, Some(200), Some(200)),
            (Some(&reader), &[][..], Some(200), Some(403)),
            (Some(&operator), &[][..], Some(200), Some(200)),
        ] {
            let client = Client {
                certificate,
                headers,
                ..Client::default()
            };
            let answer = operate(&served, &client, Method::GET, "/locks").await;
            assert_eq!(answer, listed, "{required} {headers:?}");
            let answer = operate(&served, &client, Method::DELETE, EVICT).await;
            assert_eq!(answer, evicted, "{required} {headers:?}");
        }
    }
}

/// A few connections of HTTP/2 would be all that the address has room for, and nobody needs it there.
#[tokio::test]
async fn the_second_address_has_no_http2() {
    let authority = Authority::new();
    let served = start(&authority, "optional");
    let mut config = served.config(&Client::default());
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    for (url, protocol) in [
        (&served.serving.url, "h2"),
        (&served.serving.admin_url, "http/1.1"),
    ] {
        let address = url.rsplit_once("//").unwrap().1;
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = connector.connect(name, stream).await.unwrap();
        let chosen = stream.get_ref().1.alpn_protocol();
        assert_eq!(chosen, Some(protocol.as_bytes()), "{url}");
    }
}

/// A browser adds the certificate of its user to the requests of every page.
#[tokio::test]
async fn a_page_of_another_site_cannot_use_the_certificate_of_an_operator() {
    let authority = Authority::new();
    let served = start(&authority, "required");
    let operator = authority.client(OPERATOR);
    for (site, expected) in [("cross-site", 403), ("same-origin", 200)] {
        let client = Client {
            certificate: Some(&operator),
            headers: &[("sec-fetch-site", site)],
            ..Client::default()
        };
        let answer = operate(&served, &client, Method::DELETE, EVICT).await;
        assert_eq!(answer, Some(expected), "{site}");
    }
}
