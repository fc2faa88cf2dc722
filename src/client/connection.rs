//! One HTTP/1.1 connection of a client, with TLS or without.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::ServiceUrl;

/// More than the largest answer: a page of a listing with its metadata.
pub(super) const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How much is read until there is the head of an answer: more than any head, with the largest body, which may be read along
/// with it. Without a limit, a server that sends interim answers (1xx) for ever would keep the thread busy for ever, because
/// the connection skips them.
const READ_FOR_HEAD_MAX: usize = ANSWER_BYTES_MAX + 256 * 1024;

/// An open connection. Dropping it closes it, also while an answer is to come.
pub(crate) struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    readable: Arc<AtomicUsize>,
    /// Reads and writes, until the connection ends. Nothing once its error was told.
    io: Option<AbortOnDropHandle<hyper::Result<()>>>,
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
        let readable = Arc::new(AtomicUsize::new(READ_FOR_HEAD_MAX));
        let stream = BoundedStream {
            stream,
            readable: Arc::clone(&readable),
            has_read: false,
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        Ok(Self {
            sender,
            readable,
            io: Some(AbortOnDropHandle::new(tokio::spawn(connection))),
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends a request and reads the answer. A body that is too long is an empty one, because none of the service is.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<(StatusCode, HeaderMap, Bytes)> {
        let (head, body) = self.begin(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = match body.map_err(|error| error.downcast::<hyper::Error>()) {
            Ok(body) => body.to_bytes(),
            Err(Ok(broken)) => return Err(*broken),
            Err(Err(_)) => Bytes::new(),
        };
        Ok((head.status, head.headers, body))
    }

    /// Sends a request and returns the head of the answer, whose body is still to come.
    pub(crate) async fn begin(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        self.readable.store(READ_FOR_HEAD_MAX, Ordering::Relaxed);
        let answer = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        match answer.await {
            Ok(answer) => {
                // Whoever reads the body bounds it.
                self.readable.store(usize::MAX, Ordering::Relaxed);
                Ok(answer)
            }
            Err(error) => Err(self.reason(error).await),
        }
    }

    /// Why a request failed: if the connection had ended before it was sent, why that was.
    async fn reason(&mut self, error: hyper::Error) -> hyper::Error {
        let had_ended = error.is_canceled() || error.is_closed();
        match self.io.take_if(|_| had_ended) {
            Some(io) => match io.await {
                Ok(Err(reason)) => reason,
                Ok(Ok(())) | Err(_) => error,
            },
            None => error,
        }
    }
}

/// The other side expects TLS, and has answered plain HTTP with an alert.
#[derive(Debug, thiserror::Error)]
#[error("it speaks TLS")]
struct SpeaksTls;

/// Whether a request failed because the other side expects TLS.
pub(crate) fn expects_tls(error: &hyper::Error) -> bool {
    cause_in::<SpeaksTls>(error).is_some()
}

/// What an error of a connection or of a request comes from, if that is of this type. How deep it is in the error depends on
/// whether the connection ended before the request, while the request was queued, or later.
pub(super) fn cause_in<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    causes(error).find_map(|cause| cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref())
}

/// The text of the innermost error, because those around it say only that a request was cancelled or a connection failed.
pub(crate) fn root_cause(error: &hyper::Error) -> String {
    // Its text is about a channel within this process.
    if error.is_closed() {
        return "connection closed".to_owned();
    }
    let root = causes(error).last();
    root.map_or_else(|| error.to_string(), ToString::to_string)
}

/// An error and what it comes from, one after the other.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// How an alert of TLS begins: its type and the larger part of the version, which all versions share.
const TLS_ALERT: [u8; 2] = [21, 3];

/// A stream of which only so many bytes can be read, and an error afterwards.
struct BoundedStream<S> {
    stream: S,
    readable: Arc<AtomicUsize>,
    has_read: bool,
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.readable.load(Ordering::Relaxed) == 0 {
            return Poll::Ready(Err(io::Error::other("the head of the answer is too long")));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = buffer.filled().len() - before;
        let is_first = !std::mem::replace(&mut self.has_read, true);
        if is_first && buffer.filled()[before..].starts_with(&TLS_ALERT) {
            return Poll::Ready(Err(io::Error::other(SpeaksTls)));
        }
        let readable = self.readable.load(Ordering::Relaxed);
        self.readable
            .store(readable.saturating_sub(read), Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> BoundedStream<S> {
    /// Why nothing can be written: what the other side said before it closed the connection explains more than that it did.
    /// With TLS 1.3 it refuses a certificate only after the client may write.
    fn reason(&mut self, context: &mut Context<'_>, written: io::Error) -> io::Error {
        let mut said = [0; 256];
        match Pin::new(&mut self.stream).poll_read(context, &mut ReadBuf::new(&mut said)) {
            Poll::Ready(Err(refusal)) => refusal,
            Poll::Ready(Ok(())) | Poll::Pending => written,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        Poll::Ready(written.map_err(|error| self.reason(context, error)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        Poll::Ready(flushed.map_err(|error| self.reason(context, error)))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, bytes));
        Poll::Ready(written.map_err(|error| self.reason(context, error)))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// The socket of a server that has read a request.
    async fn asked(listener: TcpListener) -> TcpStream {
        let (mut socket, _) = listener.accept().await.unwrap();
        let read = socket.read(&mut [0; 1024]).await.unwrap();
        assert_ne!(read, 0);
        socket
    }

    /// Far longer than it takes, and shorter than the test may.
    const SOON: Duration = Duration::from_secs(20);

    fn get() -> Request<Full<Bytes>> {
        Request::new(Full::default())
    }

    /// The other side has said something and has closed. That is read at once, or only after a request was sent.
    struct ClosedAfterRefusal {
        is_read: bool,
    }

    impl AsyncRead for ClosedAfterRefusal {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.is_read {
                true => Poll::Ready(Err(io::Error::other("refused"))),
                false => Poll::Pending,
            }
        }
    }

    impl AsyncWrite for ClosedAfterRefusal {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.is_read = true;
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_was_said_before_the_connection_closed_is_the_reason() {
        // The connection may end before there is a request, or while that is queued.
        for (is_read, has_run) in [(false, true), (true, true), (true, false)] {
            let connection = HttpConnection::over(ClosedAfterRefusal { is_read }).await;
            if has_run {
                tokio::task::yield_now().await;
            }
            let exchanged = connection.unwrap().exchange(get()).await;
            let error = exchanged.expect_err("nothing can be written");
            assert_eq!(root_cause(&error), "refused", "{error:?}");
        }
    }

    #[tokio::test]
    async fn interim_answers_without_end_are_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let mut socket = asked(listener).await;
            while (socket.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n").await).is_ok() {}
        });
        let url = ServiceUrl::parse(&format!("http://{address}")).unwrap();
        let mut connection = HttpConnection::open(&url, None).await.unwrap();
        let answer = timeout(SOON, connection.exchange(get())).await;
        answer.expect("it ends").expect_err("there is no answer");
        timeout(SOON, server).await.expect("it is closed").unwrap();
    }

    #[tokio::test]
    async fn a_long_body_is_read_after_a_few_of_them() {
        const BODY: usize = ANSWER_BYTES_MAX;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut socket = asked(listener).await;
            let interim = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(3);
            let head = format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n");
            socket.write_all(head.as_bytes()).await.unwrap();
            socket.write_all(&vec![b'a'; BODY]).await.unwrap();
        });
        let url = ServiceUrl::parse(&format!("http://{address}")).unwrap();
        let mut connection = HttpConnection::open(&url, None).await.unwrap();
        let (status, _, body) = connection.exchange(get()).await.unwrap();
        assert_eq!((status, body.len()), (StatusCode::OK, BODY));
    }
}
