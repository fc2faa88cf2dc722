//! A client of the service, for the commands: one connection that is kept, the key, and answers with their status.
//!
//! Every request of a claim has the token that the client chose, so a request whose answer was lost may be repeated.
//! Requests are repeated here, except those that wait and those that keep a lease. Of the layers of the server, only
//! [`crate::domain`] is used here.

mod answer;
mod claim;
mod connection;
mod encryption;
mod events;
mod retry;
mod url;

use std::error::Error;
use std::io;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request};
use rustls::pki_types::CertificateDer;
use serde_json::Value;

use crate::config::ClientKey;
use crate::domain::{LockName, Token};
pub use answer::ServiceAnswer;
pub use claim::{ClientClaim, GrantedLease};
pub(crate) use connection::{HttpConnection, expects_tls, root_cause};
pub use encryption::CertificateFiles;
use encryption::Encryption;
pub(crate) use encryption::problem_without_certificate;
pub use events::{EventStream, StreamAnswer, StreamedEvent};
pub(crate) use retry::RetryPauses;
pub use retry::RetryPolicy;
pub use url::ServiceUrl;
pub(crate) use url::completed;

/// How long to wait for a connection. A request has its own, longer time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends requests to one service.
pub struct Client {
    url: ServiceUrl,
    key: Option<ClientKey>,
    encryption: Option<Encryption>,
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
    /// Its certificate is from an authority that this client does not trust.
    #[error("{url} cannot be trusted: its certificate is not from an authority that is trusted")]
    UnknownAuthority {
        /// Whose.
        url: String,
    },
    /// It does not speak TLS, or its certificate cannot be trusted for another reason.
    #[error("{url} cannot be trusted: {problem}")]
    Untrusted {
        /// Whose.
        url: String,
        /// Why, and what to do.
        problem: &'static str,
    },
    /// It speaks TLS, and the URL is one without.
    #[error("{url} refuses plain HTTP: it speaks TLS; write https:// instead of http://")]
    ExpectsTls {
        /// Who.
        url: String,
    },
    /// This client has no certificate.
    #[error("{url} refuses the connection: it wants a certificate")]
    CertificateMissing {
        /// Who wants one.
        url: String,
    },
    /// It does not accept the certificate of this client.
    #[error("{url} refuses the connection: {problem}")]
    CertificateRefused {
        /// Who.
        url: String,
        /// Why, and why a newer certificate was not shown if there was one to read.
        problem: String,
    },
    /// Not in time.
    #[error("{url} did not answer in time")]
    TimedOut {
        /// Who.
        url: String,
    },
    /// The connection broke.
    #[error("the connection to {url} broke: {}", root_cause(error))]
    Broken {
        /// Who.
        url: String,
        /// The reason.
        error: hyper::Error,
    },
}

impl NoAnswer {
    /// Whether the next attempt would end in the same way, because one side does not accept the certificate of the other,
    /// or only one of them speaks TLS.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::UnknownAuthority { .. }
                | Self::Untrusted { .. }
                | Self::ExpectsTls { .. }
                | Self::CertificateMissing { .. }
                | Self::CertificateRefused { .. }
        )
    }

    /// Whether the service certainly has not received the request.
    pub(crate) fn was_not_sent(&self) -> bool {
        matches!(self, Self::Connect { .. })
    }

    /// The reason, with the setting that names the authorities to trust if another one is missing there.
    pub(crate) fn explain(&self, ca_setting: &str) -> String {
        match self {
            Self::UnknownAuthority { .. } => {
                format!("{self}; name that authority with {ca_setting}")
            }
            Self::Connect { .. }
            | Self::Untrusted { .. }
            | Self::ExpectsTls { .. }
            | Self::CertificateMissing { .. }
            | Self::CertificateRefused { .. }
            | Self::TimedOut { .. }
            | Self::Broken { .. } => self.to_string(),
        }
    }
}

impl Call {
    /// A request without fields, about no claim.
    #[must_use]
    pub fn get(path: String) -> Self {
        Self {
            method: Method::GET,
            path,
            token: None,
            fields: Value::Null,
        }
    }

    /// The same about one lock. A name has no character that a path would need to escape.
    #[must_use]
    pub fn of_lock(method: Method, name: &LockName) -> Self {
        let path = format!("/locks/{}", name.as_str());
        Self {
            method,
            ..Self::get(path)
        }
    }
}

impl Client {
    /// A client that connects with its first request. For a URL with TLS it trusts these authorities, or those of the
    /// system, and shows the certificate in these files.
    ///
    /// # Errors
    /// The authorities or the certificate cannot be used.
    pub fn new(
        url: ServiceUrl,
        key: Option<ClientKey>,
        authorities: Option<&[CertificateDer<'static>]>,
        certificate: Option<CertificateFiles>,
    ) -> Result<Self, String> {
        let encryption = match url.is_encrypted() {
            true => Some(Encryption::new(authorities, certificate)?),
            false => None,
        };
        Ok(Self {
            url,
            key,
            encryption,
            connection: None,
        })
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
            let connection = self.connect().await?;
            let exchanged = self.exchange(connection, call).await;
            exchanged.map_err(|error| self.broken(error))
        };
        let answered = tokio::time::timeout(timeout, exchange).await;
        let (connection, answer) = answered.map_err(|_| self.timed_out())??;
        self.connection = Some(connection);
        Ok(answer)
    }

    async fn exchange(
        &self,
        mut connection: HttpConnection,
        call: &Call,
    ) -> hyper::Result<(HttpConnection, ServiceAnswer)> {
        let (status, headers, body) = connection.exchange(self.request(call)).await?;
        let answer = ServiceAnswer::new(status, &headers, body);
        Ok((connection, answer))
    }

    /// Opens a connection, for a request that is none to a service of this kind.
    pub(crate) async fn connect(&self) -> Result<HttpConnection, NoAnswer> {
        let tls = self.encryption.as_ref().map(Encryption::connector);
        let connecting = HttpConnection::open(&self.url, tls.as_ref());
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(self.no_connection(error)),
            Err(_) => Err(self.no_connection(io::ErrorKind::TimedOut.into())),
        }
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
                sensitive(&format!("Bearer {}", key.current().expose())),
            );
        }
        request
    }

    fn no_connection(&self, error: io::Error) -> NoAnswer {
        let url = self.url.to_string();
        self.problem_of_tls(&error)
            .unwrap_or(NoAnswer::Connect { url, error })
    }

    fn timed_out(&self) -> NoAnswer {
        let url = self.url.to_string();
        NoAnswer::TimedOut { url }
    }

    /// Why a request over a connection of this client has no answer.
    pub(crate) fn broken(&self, error: hyper::Error) -> NoAnswer {
        let url = self.url.to_string();
        if expects_tls(&error) {
            return NoAnswer::ExpectsTls { url };
        }
        self.problem_of_tls(&error)
            .unwrap_or(NoAnswer::Broken { url, error })
    }

    fn problem_of_tls(&self, error: &(dyn Error + 'static)) -> Option<NoAnswer> {
        self.encryption.as_ref()?.problem_in(error, &self.url)
    }
}

/// A header that is not shown when a request is printed. Keys and tokens are checked to be ASCII when they are read.
fn sensitive(text: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}
