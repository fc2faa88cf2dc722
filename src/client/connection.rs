//! One HTTP/1.1 connection of a client, with TLS or without.

use std::io;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::ServiceUrl;

/// More than the largest answer: a page of a listing with its metadata.
pub(super) const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// An open connection. Dropping it closes it, also while an answer is to come.
pub(crate) struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    _io: AbortOnDropHandle<()>,
}

impl HttpConnection {
    /// Connects; with TLS if there is a connector.
    pub(crate) async fn open(url: &ServiceUrl, tls: Option<&TlsConnector>) -> io::Result<Self> {
        if let Some(path) = url.socket() {
            return Self::over(UnixStream::connect(path).await?).await;
        }
        let (host, port) = url.address();
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = tls else {
            return Self::over(stream).await;
        };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Self::over(tls.connect(name, stream).await?).await
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> io::Result<Self> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        // Its error is also that of the request.
        let io = tokio::spawn(async { connection.await.unwrap_or_default() });
        Ok(Self {
            sender,
            _io: AbortOnDropHandle::new(io),
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends a request and reads the answer. A body that breaks off is an empty one: the status says enough.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<(StatusCode, HeaderMap, Bytes)> {
        let (head, body) = self.begin(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes);
        Ok((head.status, head.headers, body.unwrap_or_default()))
    }

    /// Sends a request and returns the head of the answer, whose body is still to come.
    pub(crate) async fn begin(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}
