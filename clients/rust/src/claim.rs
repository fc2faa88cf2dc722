//! A claim: its requests, and what a grant says. Nothing here sends anything.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Map, Value, json};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longer than any lease: 115 days.
const LEASE_MAX: Duration = Duration::from_secs(10_000_000);

/// One attempt to hold a lock or several. Its token never changes, so each of its requests may be repeated.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) names: Vec<String>,
    pub(crate) token: String,
    pub(crate) hold_count: u16,
    /// The fields of the acquire, without `wait`.
    pub(crate) fields: Map<String, Value>,
}

/// A request to the service.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) fields: Map<String, Value>,
    pub(crate) timeout: Duration,
}

/// What came back. A status of 0 means that nothing did, and the body has the reason as `detail`.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Duration,
    pub(crate) body: Value,
}

/// What an answer says about a lease. Of several locks, the one that ends first counts.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) fencing_tokens: BTreeMap<String, u64>,
    pub(crate) ttl: Duration,
    /// How long the lease lasts, counted from before the request was sent.
    pub(crate) valid_for: Duration,
}

impl Claim {
    pub(crate) fn acquire(&self, wait: Duration) -> Call {
        let mut fields = self.fields.clone();
        if !wait.is_zero() {
            fields.insert("wait".to_owned(), in_ms(wait));
        }
        self.call(Method::POST, fields, wait + ANSWER_TIMEOUT)
    }

    pub(crate) fn renew(&self, timeout: Duration) -> Call {
        self.call(Method::PUT, Map::new(), timeout)
    }

    /// Releases the lock or leaves the queue; a re-entered lock is stepped back.
    pub(crate) fn release(&self) -> Call {
        let mut fields = Map::new();
        if self.hold_count > 1 {
            fields.insert("hold_count".to_owned(), json!(self.hold_count - 1));
        }
        self.call(Method::DELETE, fields, RELEASE_TIMEOUT)
    }

    fn call(&self, method: Method, mut fields: Map<String, Value>, timeout: Duration) -> Call {
        let path = match &self.names[..] {
            [name] if is_valid(name) => format!("/locks/{name}"),
            names => {
                fields.insert("names".to_owned(), json!(names));
                "/locks".to_owned()
            }
        };
        Call {
            method,
            path,
            fields,
            timeout,
        }
    }
}

impl Answer {
    /// Whether the same request may succeed later although nothing is wrong with it.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self.status, 0 | 408 | 429) || self.status >= 500
    }

    /// Whether the request is wrong or not allowed.
    pub(crate) fn is_refusal(&self) -> bool {
        self.status / 100 == 4 && !self.is_temporary()
    }
}

impl Grant {
    /// `None` if the body is not a grant of these locks.
    pub(crate) fn read(body: &Value, names: &[String]) -> Option<Self> {
        let one = std::slice::from_ref(body);
        let grants = body["locks"].as_array().map_or(one, Vec::as_slice);
        let millis = |grant: &Value, name: &str| {
            let duration = Duration::from_millis(grant[name].as_u64()?);
            (duration <= LEASE_MAX).then_some(duration)
        };
        // The lease lasts for `expires_in_ms` from the answer, which came no sooner than after the wait.
        let valid_for = |grant| Some(millis(grant, "waited_ms")? + millis(grant, "expires_in_ms")?);
        let first = grants.iter().min_by_key(|grant| valid_for(grant))?;
        let ttl = millis(first, "ttl_ms").filter(|ttl| !ttl.is_zero())?;
        let fencing_tokens = grants.iter().map(|grant| {
            let name = grant["name"].as_str()?.to_owned();
            Some((name, grant["fencing_token"].as_u64()?))
        });
        let fencing_tokens: BTreeMap<_, _> = fencing_tokens.collect::<Option<_>>()?;
        let is_ours = names.iter().all(|name| fencing_tokens.contains_key(name));
        is_ours.then_some(Self {
            fencing_tokens,
            ttl,
            valid_for: valid_for(first)?,
        })
    }
}

/// A duration as the service reads it.
pub(crate) fn in_ms(duration: Duration) -> Value {
    format!("{}ms", duration.as_millis().max(1)).into()
}

/// Whether a name can stand in a path. There, "a/../b" would become another name; the service refuses it, if it gets to
/// see it.
fn is_valid(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._~:@+,=-".contains(&byte);
    name.split('/')
        .all(|segment| !matches!(segment, "" | "." | "..") && segment.bytes().all(is_allowed))
}
