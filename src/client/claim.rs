//! A claim as its client sees it: the requests that it takes, and what a grant says.

use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::{Call, ServiceAnswer};
use crate::domain::{LockName, LockNames, Token, duration};

/// One claim on one lock or on several. It keeps its token, so that each request may be repeated.
#[derive(Debug, Clone)]
pub struct ClientClaim {
    names: LockNames,
    token: Token,
}

/// What an answer says about the lease of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedLease {
    /// The fencing token of each lock, in the order of the names.
    pub fencing_tokens: Vec<u64>,
    /// How long the lease lasts without renewal.
    pub ttl: Duration,
    /// How long the lease lasts, counted from before the request was sent.
    pub valid_for: Duration,
    /// When the lease ends, for people.
    pub expires_at: String,
}

impl ClientClaim {
    /// A claim with this token.
    #[must_use]
    pub fn new(names: LockNames, token: Token) -> Self {
        Self { names, token }
    }

    /// The locks, sorted by name.
    #[must_use]
    pub fn names(&self) -> &LockNames {
        &self.names
    }

    /// The token, which proves the claim.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// The request that acquires, with these fields.
    #[must_use]
    pub fn acquire(&self, fields: &Map<String, Value>) -> Call {
        self.call(Method::POST, fields.clone())
    }

    /// The request that renews, for the TTL of the claim or for this one.
    #[must_use]
    pub fn renew(&self, ttl: Option<Duration>) -> Call {
        let ttl = ttl.map(|ttl| ("ttl".to_owned(), json!(duration::format(ttl))));
        self.call(Method::PUT, ttl.into_iter().collect())
    }

    /// The request that releases or leaves the queue; with a hold count, that steps back to this depth.
    #[must_use]
    pub fn release(&self, hold_count: Option<u16>) -> Call {
        let mut fields = Map::new();
        if let Some(count) = hold_count {
            fields.insert("hold_count".to_owned(), count.into());
        }
        self.call(Method::DELETE, fields)
    }

    /// The lease in an answer; `None` if the answer has none, or one of other locks or of another claim.
    #[must_use]
    pub fn lease_in(&self, answer: &ServiceAnswer) -> Option<GrantedLease> {
        let lease = GrantedLease::read(&answer.body)?;
        let grants = GrantedLease::documents(&answer.body).iter();
        let granted = grants.map(|grant| (grant["name"].as_str(), grant["token"].as_str()));
        let token = self.token.expose().to_string();
        let names = self.names.iter().map(LockName::as_str);
        let own = names.map(|name| (Some(name), Some(token.as_str())));
        granted.eq(own).then_some(lease)
    }

    /// The lease that an answer says was renewed; `None` if it does not say so. Any server could answer 200.
    #[must_use]
    pub fn renewed_lease_in(&self, answer: &ServiceAnswer) -> Option<GrantedLease> {
        let lease = self.lease_in(answer)?;
        (answer.status == StatusCode::OK && !lease.valid_for.is_zero()).then_some(lease)
    }

    fn call(&self, method: Method, mut fields: Map<String, Value>) -> Call {
        let path = match &self.names[..] {
            [name] => Call::of_lock(method.clone(), name).path,
            names => {
                let names: Vec<_> = names.iter().map(LockName::as_str).collect();
                fields.insert("names".to_owned(), json!(names));
                "/locks".to_owned()
            }
        };
        let fields = match fields.is_empty() {
            true => Value::Null,
            false => Value::Object(fields),
        };
        Call {
            method,
            path,
            token: Some(self.token),
            fields,
        }
    }
}

impl GrantedLease {
    /// The grants in an answer: one, or one for each of several locks.
    #[must_use]
    pub fn documents(body: &Value) -> &[Value] {
        let one = std::slice::from_ref(body);
        body["locks"].as_array().map_or(one, Vec::as_slice)
    }

    /// Reads a grant of one lock, or of several, of which the shortest counts. `None` if the body is not a grant.
    #[must_use]
    pub fn read(body: &Value) -> Option<Self> {
        let grants = Self::documents(body);
        let millis = |grant: &Value, name: &str| grant[name].as_u64().map(Duration::from_millis);
        let fencing_tokens = grants.iter().map(|grant| grant["fencing_token"].as_u64());
        // The lease lasts for `expires_in_ms` from the answer, which came no sooner than after the wait.
        let valid_for = |grant| Some(millis(grant, "waited_ms")? + millis(grant, "expires_in_ms")?);
        let first = grants.iter().min_by_key(|grant| valid_for(grant))?;
        Some(Self {
            fencing_tokens: fencing_tokens.collect::<Option<_>>()?,
            ttl: millis(first, "ttl_ms")?,
            valid_for: valid_for(first)?,
            expires_at: first["expires_at"].as_str()?.to_owned(),
        })
    }
}
