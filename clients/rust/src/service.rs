//! The service: where it is, and how requests get there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use serde_json::{Value, json};

use crate::acquire::Acquire;
use crate::claim::{Answer, Call, Claim};
use crate::error::{Error, Problem};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_FOR: Duration = Duration::from_secs(30);

/// A service and one pool of connections to it. Clones share the pool.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Service>);

/// Settings of a [`Client`].
#[must_use = "it does nothing until it is built"]
pub struct ClientBuilder {
    url: String,
    api_key: Option<String>,
    retry_for: Duration,
    http: Option<reqwest::Client>,
}

pub(crate) struct Service {
    http: reqwest::Client,
    /// Without a slash at its end.
    url: String,
    authorization: Option<HeaderValue>,
    pub(crate) retry_for: Duration,
}

impl Client {
    /// A client of the service at this URL. The key is that of `LEASEHOLD_API_KEY`, if that is set.
    ///
    /// # Errors
    /// The URL is none, or TLS cannot be set up.
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
            url: url.trim_end_matches('/').to_owned(),
            api_key: environment("LEASEHOLD_API_KEY"),
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
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
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
    /// The URL is none, the key has characters that no header can have, or TLS cannot be set up.
    pub fn build(self) -> Result<Client, Error> {
        let refused = |text: String| Error::Refused(Problem::local("", text));
        reqwest::Url::parse(&self.url)
            .map_err(|error| refused(format!("{:?} is no URL: {error}", self.url)))?;
        let authorization = self.api_key.map(|key| {
            let value = HeaderValue::from_str(&format!("Bearer {key}"));
            let mut value = value.map_err(|_| refused("the key has strange characters".into()))?;
            value.set_sensitive(true);
            Ok(value)
        });
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
            url: self.url,
            authorization: authorization.transpose()?,
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

    async fn exchange(&self, claim: &Claim, call: Call) -> reqwest::Result<Answer> {
        let url = format!("{}{}", self.url, call.path);
        let mut request = self.http.request(call.method, url).timeout(call.timeout);
        request = request.header("lock-token", &claim.token);
        if let Some(authorization) = &self.authorization {
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
