//! A client on one connection, with HTTP/1.1 or HTTP/2. It never opens another one, so that a connection that the service
//! closes is an error.

use http_body_util::BodyExt as _;
use hyper::client::conn::{http1, http2};
use hyper::{Error, Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};

/// One connection.
pub(crate) enum SingleConnection {
    Http1(http1::SendRequest<String>),
    Http2(http2::SendRequest<String>),
}

impl SingleConnection {
    /// Speaks HTTP on a stream, which may be TLS.
    pub(crate) async fn over<S>(stream: S, is_http2: bool) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = TokioIo::new(stream);
        if is_http2 {
            let handshake = Box::pin(http2::handshake(TokioExecutor::new(), stream));
            let (sender, connection) = handshake.await?;
            tokio::spawn(connection);
            Ok(Self::Http2(sender))
        } else {
            let (sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(connection);
            Ok(Self::Http1(sender))
        }
    }

    /// Sends a request with these headers and reads the whole answer. Returns its status.
    pub(crate) async fn status(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<u16, Error> {
        let mut request = Request::builder().method(method);
        request = match self {
            Self::Http1(_) => request.uri(path).header("host", "localhost"),
            Self::Http2(_) => request.uri(format!("http://localhost{path}")),
        };
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(String::new()).expect("a valid request");
        let answer = match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Self::Http2(sender) => sender.send_request(request).await?,
        };
        let status = answer.status().as_u16();
        answer.into_body().collect().await?;
        Ok(status)
    }
}
