//! A tunnel into a service that speaks TLS, for clients that do not.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::certificates::Authority;

/// The tunnel. It accepts no connections after it is dropped; those that it has live on.
pub(crate) struct TlsTunnel {
    pub(crate) address: SocketAddr,
    _accepting: AbortOnDropHandle<()>,
}

impl TlsTunnel {
    /// A tunnel into a service on this address whose certificate is for `localhost`, signed by this authority.
    pub(crate) fn start(service: SocketAddr, authority: &Authority) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(authority.trusted().authorities.unwrap());
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(accept(listener, connector, service));
        Self {
            address,
            _accepting: AbortOnDropHandle::new(accepting),
        }
    }
}

async fn accept(listener: std::net::TcpListener, connector: TlsConnector, service: SocketAddr) {
    let listener = TcpListener::from_std(listener).unwrap();
    while let Ok((mut client, _)) = listener.accept().await {
        let connector = connector.clone();
        tokio::spawn(async move {
            // A service that has ended, or refuses the connection, hangs up on the client.
            let stream = TcpStream::connect(service).await?;
            stream.set_nodelay(true)?;
            client.set_nodelay(true)?;
            let name = ServerName::try_from("localhost").expect("a name");
            let mut service = connector.connect(name, stream).await?;
            copy_bidirectional(&mut client, &mut service).await
        });
    }
}
