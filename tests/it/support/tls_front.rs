//! A proxy that speaks TLS in front of a service.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use super::redis_server::TlsFiles;

/// The proxy, on a thread of its own, so that a test may wait for a process meanwhile. It ends when it is dropped.
pub(crate) struct TlsFront {
    pub(crate) port: u16,
    _running: oneshot::Sender<()>,
}

impl TlsFront {
    pub(crate) fn start(service: SocketAddr, files: &TlsFiles) -> Self {
        let certificate = CertificateDer::from_pem_file(&files.certificate).unwrap();
        let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (running, dropped) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = accept(listener, acceptor, service) => {}
                    _ = dropped => {}
                }
            });
        });
        Self {
            port,
            _running: running,
        }
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, service: SocketAddr) {
    while let Ok((stream, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            // A client that does not trust the certificate hangs up.
            let Ok(mut client) = acceptor.accept(stream).await else {
                return;
            };
            let mut service = TcpStream::connect(service).await.unwrap();
            let _ = copy_bidirectional(&mut client, &mut service).await;
        });
    }
}
