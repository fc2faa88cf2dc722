//! The certificate and its key are replaced again and again, in each way in which people and Kubernetes do it, while clients
//! send without a pause.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tempfile::TempDir;
use tokio_rustls::TlsConnector;

use super::{certificate_of, connector, encrypted_by, start};
use crate::support::certificates::Authority;
use crate::support::load::{Kind, Load, LoadClient};
use crate::support::redis_server::TlsFiles;
use crate::support::single_connection::SingleConnection;

const REPLACED: &str =
    "TLS files reloaded: the certificate or the authorities of clients have changed";
const KEPT: &str = "cannot reload the TLS certificate and the authorities of clients; the previous ones stay in use";

/// A certificate with its key, as files have them.
struct Pair {
    certificate: String,
    key: String,
}

impl Pair {
    fn new(authority: &Authority) -> Self {
        let files = authority.files_for("localhost");
        let [certificate, key] =
            [files.certificate, files.key].map(|file| fs::read_to_string(file).unwrap());
        Self { certificate, key }
    }

    fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()
    }
}

/// A directory as Kubernetes mounts a secret: the names of the files lead through `..data` to one version of both.
struct Secret(TempDir);

impl Secret {
    fn of(pair: &Pair) -> Self {
        let secret = Self(tempfile::tempdir().unwrap());
        secret.swap("..first", &pair.certificate, &pair.key);
        for name in ["tls.crt", "tls.key"] {
            symlink(format!("..data/{name}"), secret.path(name)).unwrap();
        }
        secret
    }

    /// Both files become others in one step.
    fn swap(&self, version: &str, certificate: &str, key: &str) {
        fs::create_dir(self.path(version)).unwrap();
        fs::write(self.path(version).join("tls.crt"), certificate).unwrap();
        fs::write(self.path(version).join("tls.key"), key).unwrap();
        symlink(version, self.path("..new")).unwrap();
        fs::rename(self.path("..new"), self.path("..data")).unwrap();
    }

    fn write_certificate(&self, pair: &Pair) {
        fs::write(self.path("tls.crt"), &pair.certificate).unwrap();
    }

    fn write_key(&self, pair: &Pair) {
        fs::write(self.path("tls.key"), &pair.key).unwrap();
    }

    /// Each of the files becomes another one in one step.
    fn rename(&self, pair: &Pair) {
        for (name, text) in [("tls.crt", &pair.certificate), ("tls.key", &pair.key)] {
            fs::write(self.path("..data/next"), text).unwrap();
            fs::rename(self.path("..data/next"), self.path("..data").join(name)).unwrap();
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn files(&self, authority: &Authority) -> TlsFiles {
        let file = |name| self.path(name).to_str().unwrap().to_owned();
        TlsFiles {
            authority: authority.file(),
            certificate: file("tls.crt"),
            key: file("tls.key"),
            wants_certificate: false,
        }
    }
}

/// The certificates that a client of each kind has seen, each as often as it has changed.
type Seen = Arc<Mutex<HashMap<Kind, Vec<CertificateDer<'static>>>>>;

/// Clients that offer to resume their last session, as libraries do.
#[derive(Clone)]
struct Clients {
    address: SocketAddr,
    http1: TlsConnector,
    http2: TlsConnector,
    seen: Seen,
}

impl LoadClient for Clients {
    async fn open(&self, kind: Kind) -> SingleConnection {
        let connector = match kind.is_http2 {
            true => &self.http2,
            false => &self.http1,
        };
        let stream = encrypted_by(connector, self.address).await;
        let stream = stream.expect("it is not refused");
        let shown = certificate_of(&stream);
        {
            let mut seen = self.seen.lock().unwrap();
            let seen = seen.entry(kind).or_default();
            if seen.last() != Some(&shown) {
                seen.push(shown);
            }
        }
        let connection = SingleConnection::over(stream, kind.is_http2).await;
        connection.expect("it is not cut")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_refused_or_cut_while_certificate_and_key_are_replaced_under_load() {
    let authority = Authority::new();
    let pairs: Vec<_> = (0..6).map(|_| Pair::new(&authority)).collect();
    let secret = Secret::of(&pairs[0]);
    let interval = ["--auth-reread-interval", "20ms"];
    let mut serving = start(&secret.files(&authority), &interval);
    let clients = Clients {
        address: super::address(&serving),
        http1: connector(&authority, &["http/1.1"]),
        http2: connector(&authority, &["h2"]),
        seen: Seen::default(),
    };
    let load = Load::start(&clients);
    load.goes_on().await;

    // One file after the other, in both orders. What does not belong together is told, and changes nothing.
    secret.write_certificate(&pairs[1]);
    serving.wait_for_line(KEPT);
    load.goes_on().await;
    secret.write_key(&pairs[1]);
    serving.wait_for_line(REPLACED);
    load.goes_on().await;
    secret.write_key(&pairs[2]);
    serving.wait_for_line(KEPT);
    load.goes_on().await;
    secret.write_certificate(&pairs[2]);
    serving.wait_for_line(REPLACED);
    load.goes_on().await;

    secret.rename(&pairs[3]);
    serving.wait_for_line(REPLACED);
    load.goes_on().await;
    secret.swap("..second", &pairs[4].certificate, &pairs[4].key);
    serving.signal(Signal::SIGHUP);
    serving.wait_for_line(REPLACED);
    load.goes_on().await;
    secret.swap("..third", &pairs[5].certificate, &pairs[0].key);
    serving.wait_for_line(KEPT);
    load.goes_on().await;
    secret.swap("..fourth", &pairs[5].certificate, &pairs[5].key);
    serving.wait_for_line(REPLACED);
    load.goes_on().await;

    load.end().await;
    let published: Vec<_> = pairs.iter().map(Pair::certificate).collect();
    for (kind, seen) in clients.seen.lock().unwrap().iter() {
        let expected = if kind.is_kept { 1 } else { published.len() };
        assert_eq!(*seen, published[..expected], "{kind:?}");
    }
}
