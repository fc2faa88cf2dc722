//! TLS of the connections of clients: the certificate of this process, which can be replaced while it runs, and the
//! handshake, which is limited in time and in number.

use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::ring;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::user_timeout::{UserTimeout, UserTimeoutStream};
use crate::config::TlsIdentity;
use crate::limits::Budget;

/// What a client may choose, the best first. A client that names neither gets HTTP/1.1.
const PROTOCOLS: [&[u8]; 2] = [HTTP2, b"http/1.1"];
const HTTP2: &[u8] = b"h2";
/// What a connection may hold of an answer that its client does not read: one record.
const UNSENT_BYTES_MAX: usize = 16 * 1024;

/// The certificate that is shown to clients. Clones share it.
#[derive(Clone)]
pub struct ServerTls(Arc<RwLock<Arc<ServerConfig>>>);

/// TLS of one server: its certificate, and how many handshakes may be under way.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub(super) certificate: ServerTls,
    pub(super) handshakes: Budget,
}

/// An encrypted connection, and whether it is HTTP/2.
pub(super) struct Encrypted {
    pub(super) stream: TlsStream<UserTimeoutStream>,
    pub(super) is_http2: bool,
}

impl ServerTls {
    /// Shows this certificate.
    ///
    /// # Errors
    ///
    /// When the certificate and its key cannot be used together.
    pub fn new(identity: &TlsIdentity) -> Result<Self, rustls::Error> {
        let config = config(identity)?;
        Ok(Self(Arc::new(RwLock::new(config))))
    }

    /// Shows another certificate from now on. Open connections stay as they are.
    ///
    /// # Errors
    ///
    /// When the certificate and its key cannot be used together; then the one before stays.
    pub fn replace(&self, identity: &TlsIdentity) -> Result<(), rustls::Error> {
        let config = config(identity)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Waits for the handshake of a client.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        user_timeout: UserTimeout,
        deadline: Instant,
    ) -> io::Result<Encrypted> {
        let config = Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        let stream = UserTimeoutStream::new(stream, user_timeout);
        let handshake = TlsAcceptor::from(config).accept(stream);
        let mut stream = timeout_at(deadline, handshake).await??;
        stream.get_mut().1.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
        Ok(Encrypted { stream, is_http2 })
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls")
    }
}

fn config(identity: &TlsIdentity) -> Result<Arc<ServerConfig>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config = builder
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(identity.chain.clone(), identity.key.clone_key())?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    Ok(Arc::new(config))
}
