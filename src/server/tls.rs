//! TLS of the connections of clients: the certificate of this process and the authorities of theirs, which can be replaced
//! while it runs, and the handshake, which is limited in number.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::ring;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::client_certificate;
use super::user_timeout::{UserTimeout, UserTimeoutStream};
use super::workers::Workers;
use crate::config::{CertificateName, ClientAuthorities, ServerCertificate};
use crate::limits::Budget;

/// What a client may choose, the best first. A client that names neither gets HTTP/1.1.
const PROTOCOLS: [&[u8]; 2] = [HTTP2, HTTP1];
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
/// What a connection may hold of an answer that its client does not read: one record.
const UNSENT_BYTES_MAX: usize = 16 * 1024;

/// How many bytes the certificates of a client may have together. The connection keeps them as long as it is open.
const CLIENT_CERTIFICATES_BYTES_MAX: usize = 16 * 1024;

/// The certificate that is shown to clients. Clones share it.
#[derive(Clone)]
pub struct ServerTls(Arc<SharedTls>);

struct SharedTls {
    configs: RwLock<Configs>,
    /// Whether the files have changed to something that cannot be used.
    is_outdated: AtomicBool,
}

/// The same certificate for addresses with HTTP/2 and without it.
#[derive(Clone)]
struct Configs {
    with_http2: Arc<ServerConfig>,
    without_http2: Arc<ServerConfig>,
}

/// TLS of one server: its certificate, whether it offers HTTP/2, and how many handshakes may be under way.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub(super) certificate: ServerTls,
    pub(super) has_http2: bool,
    pub(super) handshakes: Budget,
}

/// Which connections over TCP are encrypted.
#[derive(Clone, Debug)]
pub(super) enum TlsMode {
    /// None.
    Never,
    /// All.
    Always(Tls),
    /// Those whose client begins with a handshake. These workers serve them: the thread that accepts connections has no time
    /// for handshakes.
    IfBegun(Tls, Workers),
}

/// An encrypted connection, whether it is HTTP/2, and the names in the certificate of its client, if it has shown one.
pub(super) struct Encrypted {
    pub(super) stream: TlsStream<UserTimeoutStream>,
    pub(super) is_http2: bool,
    pub(super) names: Option<Arc<[CertificateName]>>,
}

impl ServerTls {
    /// Shows this certificate, and asks for those of clients if their authorities are known.
    ///
    /// # Errors
    ///
    /// When the certificate and its key cannot be used together, or an authority cannot be used.
    pub fn new(certificate: &ServerCertificate) -> Result<Self, rustls::Error> {
        let configs = configs(certificate)?;
        Ok(Self(Arc::new(SharedTls {
            configs: RwLock::new(configs),
            is_outdated: AtomicBool::new(false),
        })))
    }

    /// Uses another certificate and other authorities from now on. Open connections stay as they are.
    ///
    /// # Errors
    ///
    /// When they cannot be used; then those before stay.
    pub fn replace(&self, certificate: &ServerCertificate) -> Result<(), rustls::Error> {
        let configs = configs(certificate)?;
        *self
            .0
            .configs
            .write()
            .unwrap_or_else(PoisonError::into_inner) = configs;
        Ok(())
    }

    /// Sets whether the files have changed to something that cannot be used.
    pub fn set_outdated(&self, is_outdated: bool) {
        self.0.is_outdated.store(is_outdated, Ordering::Relaxed);
    }

    /// Whether the files have changed to something that cannot be used.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.0.is_outdated.load(Ordering::Relaxed)
    }

    fn config(&self, has_http2: bool) -> Arc<ServerConfig> {
        let configs = self
            .0
            .configs
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::clone(match has_http2 {
            true => &configs.with_http2,
            false => &configs.without_http2,
        })
    }
}

impl Tls {
    /// Waits for the handshake of a client.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        user_timeout: UserTimeout,
    ) -> io::Result<Encrypted> {
        let config = self.certificate.config(self.has_http2);
        let stream = UserTimeoutStream::new(stream, user_timeout);
        let mut stream = TlsAcceptor::from(config).accept(stream).await?;
        stream.get_mut().1.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        if shown.iter().map(|it| it.len()).sum::<usize>() > CLIENT_CERTIFICATES_BYTES_MAX {
            return Err(io::Error::other(
                "the certificates of the client have more than 16 KiB",
            ));
        }
        let names = shown.first().map(client_certificate::names);
        Ok(Encrypted {
            stream,
            is_http2,
            names,
        })
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls")
    }
}

fn configs(certificate: &ServerCertificate) -> Result<Configs, rustls::Error> {
    let identity = &certificate.identity;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?;
    let builder = match &certificate.clients {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(verifier(clients)?),
    };
    let mut config = builder.with_single_cert(identity.chain.clone(), identity.key.clone_key())?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    if certificate.clients.is_some() {
        // A session that is resumed is not verified again: a certificate could be used after its end.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    } else {
        // Clients keep their sessions themselves, so there may be any number of them. This key of the tickets is replaced
        // together with the certificate.
        config.ticketer = ring::Ticketer::new()?;
    }
    let mut without_http2 = config.clone();
    without_http2.alpn_protocols = vec![HTTP1.to_vec()];
    Ok(Configs {
        with_http2: Arc::new(config),
        without_http2: Arc::new(without_http2),
    })
}

/// Verifies what clients show: the signatures, the time, and that the certificate is one for clients.
fn verifier(clients: &ClientAuthorities) -> Result<Arc<dyn ClientCertVerifier>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for authority in &clients.certificates {
        roots.add(authority.clone())?;
    }
    let provider = Arc::new(ring::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = match clients.are_required {
        true => builder,
        false => builder.allow_unauthenticated(),
    };
    builder
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))
}
