//! A client of the service, for the commands: one connection that is kept, the key, and answers with their status.
//!
//! Every request of a claim has the token that the client chose, so a request whose answer was lost may be repeated.
//! When to repeat is decided by the commands. Nothing here knows the server's layers above [`crate::domain`].

mod claim;
mod connection;
mod url;

use std::io;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, StatusCode};
use serde_json::Value;

use crate::config::Secret;
use crate::domain::Token;
pub use claim::{ClientClaim, GrantedLease};
pub(crate) use connection::HttpConnection;
pub use url::ServiceUrl;

/// How long to wait for a connection. A request has its own, longer time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends requests to one service.
pub struct Client {
    url: ServiceUrl,
    key: Option<Secret>,
    connection: Option<HttpConnection>,
}

/// A request to the service.
#[derive(Debug, Clone)]
pub struct Call {
    /// The HTTP method.
    pub method: Method,
    /// Path and query, without the path of the service's URL.
    pub path: String,
    /// The token of the claim that the request is about.
    pub token: Option<Token>,
    /// The JSON body; `Null` for none.
    pub fields: Value,
}

/// What the service answered.
#[derive(Debug)]
pub struct ServiceAnswer {
    /// The status, which says what to do.
    pub status: StatusCode,
    /// When to ask again, if the answer says so.
    pub retry_after: Option<Duration>,
    /// The JSON body; `Null` if the body is none.
    pub body: Value,
}

/// Why there is no answer. Whether the service executed the request is unknown.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// No connection.
    #[error("cannot connect to {url}: {error}")]
    Connect {
        /// Where to.
        url: String,
        /// The system's reason.
        error: io::Error,
    },
    /// Not in time.
    #[error("{url} did not answer in time")]
    TimedOut {
        /// Who.
        url: String,
    },
    /// The connection broke.
    #[error("the connection to {url} broke: {error}")]
    Broken {
        /// Who.
        url: String,
        /// The reason.
        error: hyper::Error,
    },
}

impl Client {
    /// A client that connects with its first request.
    #[must_use]
    pub fn new(url: ServiceUrl, key: Option<Secret>) -> Self {
        Self {
            url,
            key,
            connection: None,
        }
    }

    /// Where the requests go.
    #[must_use]
    pub fn url(&self) -> &ServiceUrl {
        &self.url
    }

    /// Sends a request and reads the answer, within `timeout`. A kept connection that turns out to be closed is
    /// replaced once.
    ///
    /// # Errors
    /// There is no answer; the service may have executed the request nevertheless.
    ///
    /// # Cancel safety
    /// A dropped call closes the connection, and the service may have executed the request.
    pub async fn send(
        &mut self,
        call: &Call,
        timeout: Duration,
    ) -> Result<ServiceAnswer, NoAnswer> {
        // Taken out, so that a connection whose answer is still to come is not used again.
        let kept = self.connection.take();
        let exchange = async {
            if let Some(connection) = kept.filter(HttpConnection::is_open)
                && let Ok(answered) = self.exchange(connection, call).await
            {
                return Ok(answered);
            }
            let connecting = HttpConnection::open(&self.url);
            let connection = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(error)) => return Err(self.no_connection(error)),
                Err(_) => return Err(self.no_connection(io::ErrorKind::TimedOut.into())),
            };
            self.exchange(connection, call)
                .await
                .map_err(|error| NoAnswer::Broken {
                    url: self.url.to_string(),
                    error,
                })
        };
        let answered = tokio::time::timeout(timeout, exchange).await;
        let (connection, answer) = answered.map_err(|_| NoAnswer::TimedOut {
            url: self.url.to_string(),
        })??;
        self.connection = Some(connection);
        Ok(answer)
    }

    async fn exchange(
        &self,
        mut connection: HttpConnection,
        call: &Call,
    ) -> hyper::Result<(HttpConnection, ServiceAnswer)> {
        let (status, headers, body) = connection.exchange(self.request(call)).await?;
        let answer = ServiceAnswer {
            status,
            retry_after: retry_after(&headers),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        };
        Ok((connection, answer))
    }

    fn request(&self, call: &Call) -> Request<Full<Bytes>> {
        let body = match call.fields.is_null() {
            true => Bytes::new(),
            false => call.fields.to_string().into(),
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = self.url.target(&call.path);
        let headers = request.headers_mut();
        headers.insert(HOST, self.url.host_header());
        if !call.fields.is_null() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(token) = call.token {
            let token = token.expose().to_string();
            headers.insert("lock-token", sensitive(&token));
        }
        if let Some(key) = &self.key {
            headers.insert(
                AUTHORIZATION,
                sensitive(&format!("Bearer {}", key.expose())),
            );
        }
        request
    }

    fn no_connection(&self, error: io::Error) -> NoAnswer {
        let url = self.url.to_string();
        NoAnswer::Connect { url, error }
    }
}

impl ServiceAnswer {
    /// The code of the problem, or an empty text.
    #[must_use]
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    /// The problem for people: the service's sentence, or the status if the answer is not from the service.
    #[must_use]
    pub fn detail(&self) -> String {
        match (self.body["detail"].as_str(), self.body["title"].as_str()) {
            (Some(detail), _) => detail.to_owned(),
            (None, Some(title)) => title.to_owned(),
            (None, None) => self.status.to_string(),
        }
    }

    /// Whether the same request may succeed later although nothing is wrong with it: the service, its store or a proxy
    /// is overloaded or away.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        self.status.is_server_error()
            || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&self.status)
    }
}

/// A header that is not shown when a request is printed. Keys and tokens are checked to be ASCII when they are read.
fn sensitive(text: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
