//! The service: where it is, and how requests get there.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use serde_json::{Value, json};

use crate::acquire::Acquire;
use crate::claim::{Answer, Call, Claim};
use crate::error::{Error, Problem};
use crate::key::Key;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_FOR: Duration = Duration::from_secs(30);

/// A service and one pool of connections to it. Clones share the pool.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Service>);

/// Settings of a [`Client`].
#[must_use = "it does nothing until it is built"]
pub struct ClientBuilder {
    url: String,
    key: Option<Result<Key, String>>,
    retry_for: Duration,
    http: Option<reqwest::Client>,
}

pub(crate) struct Service {
    http: reqwest::Client,
    /// Without a slash at its end.
    url: String,
    key: Option<Key>,
    pub(crate) retry_for: Duration,
}

impl Client {
    /// A client of the service at this URL. The key is that in the file `LEASEHOLD_API_KEY_FILE`, which is read for each
    /// request, or else that of `LEASEHOLD_API_KEY`, if one is set.
    ///
    /// # Errors
    /// The URL is none, the key cannot be read, or TLS cannot be set up.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::builder(url).build()
    }

    /// A client of the service at `LEASEHOLD_URL`, by default `http://127.0.0.1:7625`.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn from_env() -> Result<Self, Error> {
        Self::new(&environment("LEASEHOLD_URL").unwrap_or("http://127.0.0.1:7625".to_owned()))
    }

    /// A client with other settings.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            url: url.to_owned(),
            key: None,
            retry_for: RETRY_FOR,
            http: None,
        }
    }

    /// A claim on a lock. Awaiting it acquires; by default it waits for as long as it takes.
    pub fn lock(&self, name: impl Into<String>) -> Acquire {
        Acquire::new(self.0.clone(), vec![name.into()])
    }

    /// A claim on several locks, all or none under one token.
    pub fn locks<N: Into<String>>(&self, names: impl IntoIterator<Item = N>) -> Acquire {
        Acquire::new(self.0.clone(), names.into_iter().map(Into::into).collect())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut client = formatter.debug_struct("Client");
        client.field("url", &self.0.url).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// The key of the service.
    pub fn api_key(mut self, key: impl AsRef<str>) -> Self {
        self.key = Some(Key::constant(key.as_ref()));
        self
    }

    /// The file with the key of the service, which is read for each request.
    pub fn api_key_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.key = Some(Key::from_file(path.into()));
        self
    }

    /// A function that returns the key of the service. It is called for each request, and must not block. Its error ends
    /// an acquire; while a lease is held, the key of before is used.
    pub fn api_key_from<F>(mut self, source: F) -> Self
    where
        F: Fn() -> Result<String, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
    {
        self.key = Some(Ok(Key::from_source(Box::new(source))));
        self
    }

    /// How long an acquire repeats requests that get no useful answer, 30 s by default.
    pub fn retry_for(mut self, duration: Duration) -> Self {
        self.retry_for = duration;
        self
    }

    /// Another client of reqwest, for example with certificates. It should have no bound on idle connections.
    pub fn http(mut self, client: reqwest::Client) -> Self {
        self.http = Some(client);
        self
    }

    /// The client.
    ///
    /// # Errors
    /// The URL is none, the key cannot be read or has characters that no header can have, or TLS cannot be set up.
    pub fn build(self) -> Result<Client, Error> {
        let refused = |text: String| Error::Refused(Problem::local("", text));
        let url = service_url(&self.url).map_err(refused)?;
        let key = self.key.or_else(key_in_environment).transpose();
        let key = key.map_err(refused)?;
        let http = match self.http {
            Some(http) => http,
            None => reqwest::Client::builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .redirect(Policy::none())
                .build()
                .map_err(|error| refused(error.to_string()))?,
        };
        Ok(Client(Arc::new(Service {
            http,
            url,
            key,
            retry_for: self.retry_for,
        })))
    }
}

impl Service {
    /// Sends a request of the claim and reads the answer, both within the time-out of the call.
    ///
    /// # Cancel safety
    /// The service may have executed the request of a dropped call.
    pub(crate) async fn send(&self, claim: &Claim, call: Call) -> Answer {
        match self.exchange(claim, call).await {
            Ok(answer) => answer,
            Err(error) => Answer {
                status: 0,
                retry_after: Duration::ZERO,
                body: json!({"detail": format!("no answer: {}", chain(&error))}),
            },
        }
    }

    /// Fails if there never was a key.
    pub(crate) fn check_key(&self) -> Result<(), Error> {
        let key = self.key.as_ref().map(Key::current).transpose();
        key.map(|_| ())
            .map_err(|problem| Error::Refused(Problem::local("", problem)))
    }

    async fn exchange(&self, claim: &Claim, call: Call) -> reqwest::Result<Answer> {
        let url = format!("{}{}", self.url, call.path);
        let mut request = self.http.request(call.method, url).timeout(call.timeout);
        request = request.header("lock-token", &claim.token);
        if let Some(Ok(authorization)) = self.key.as_ref().map(Key::current) {
            request = request.header(AUTHORIZATION, authorization);
        }
        if !call.fields.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
            request = request.body(Value::Object(call.fields).to_string());
        }
        let response = request.send().await?;
        Ok(Answer {
            status: response.status().as_u16(),
            retry_after: retry_after(response.headers()),
            // What is not JSON comes from a proxy.
            body: serde_json::from_slice(&response.bytes().await?).unwrap_or_default(),
        })
    }
}

/// A URL as the commands read it: without a scheme it is `http`, and without a host this machine.
fn service_url(text: &str) -> Result<String, String> {
    if text.starts_with("unix:") {
        return Err(format!(
            "{text:?} is a Unix socket; give http://localhost and a client of reqwest with `unix_socket`"
        ));
    }
    let complete = match text.split_once(':') {
        Some(("", port)) => format!("http://127.0.0.1:{port}"),
        Some((_, port)) if port.starts_with(|first: char| first.is_ascii_digit()) => {
            format!("http://{text}")
        }
        _ => text.to_owned(),
    };
    let url = reqwest::Url::parse(&complete).ok();
    match url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
        Some(_) => Ok(complete.trim_end_matches('/').to_owned()),
        None => Err(format!(
            "{text:?} is no URL of a service; write one like http://127.0.0.1:7625"
        )),
    }
}

fn key_in_environment() -> Option<Result<Key, String>> {
    let file = environment("LEASEHOLD_API_KEY_FILE");
    file.map(|file| Key::from_file(file.into()))
        .or_else(|| environment("LEASEHOLD_API_KEY").map(|key| Key::constant(&key)))
}

fn retry_after(headers: &HeaderMap) -> Duration {
    let text = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    // With a bound, because calculations with durations overflow.
    let seconds = text.and_then(|text| text.parse::<u32>().ok());
    Duration::from_secs(seconds.unwrap_or(0).into())
}

/// The error and its causes; reqwest's own text does not say why.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
