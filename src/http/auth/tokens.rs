//! Verifies the JSON Web Tokens of one issuer. Which principal a subject belongs to is in `keys`; where the keys of the
//! issuer come from is not known here.
//!
//! Tokens are refused as RFC 8725 (best current practices for JWT) and RFC 7519 say. Only a client with a token of the
//! issuer learns which claim is wrong, because the signature is verified before.

mod faults;
mod issuer_keys;
mod signatures;
mod verified;

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use futures_util::future::BoxFuture;
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Header, Validation, decode, decode_header};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::config::{JwtConfig, KeyHash, RequestRate, SigningKey};
use crate::limits::RequestBucket;
pub(in crate::http) use faults::TokenFault;
use issuer_keys::{FoundKey, KeyEnd};
pub use issuer_keys::{IssuerKeys, KeysState};
use verified::VerifiedTokens;

/// The types that a token of a client may have (RFC 8725, 3.11): others are for another purpose, such as a log-out.
/// Tokens of Kubernetes have none.
const TYPES: [&str; 2] = ["jwt", "at+jwt"];

/// How many new tokens in a second are verified for all addresses together that have failed too often. A signature
/// takes some ten to a hundred microseconds, so a flood costs at most a tenth of a processor.
const CHECKS_PER_SECOND: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);

/// Verifies tokens. Clones share the keys of the issuer and what has been verified.
#[derive(Clone)]
pub struct TokenVerifier(Arc<Shared>);

struct Shared {
    config: JwtConfig,
    keys: IssuerKeys,
    verified: Mutex<VerifiedTokens>,
    /// The verifications that are left for addresses that have failed too often.
    checks: RequestBucket,
}

/// A token whose signature and claims are in order.
#[derive(Clone)]
pub(super) struct VerifiedToken {
    pub(super) subject: Arc<str>,
    pub(super) life: TokenLife,
}

/// How long a token is valid.
#[derive(Clone)]
pub(super) struct TokenLife {
    until: SystemTime,
    key_end: KeyEnd,
}

impl TokenLife {
    /// Whether the token is no longer valid. The wall clock of this machine counts, like when it was verified.
    pub(super) fn is_over(&self) -> bool {
        self.key_end.is_over() || self.left().is_none()
    }

    /// Whether nobody can tell if the token is still valid: it has not expired, and no key of its issuer was known any more.
    pub(super) fn is_unknown(&self) -> bool {
        self.key_end.is_of_all() && self.left().is_some()
    }

    /// Completes when the token is no longer valid.
    pub(super) async fn over(self) {
        while let Some(left) = self.left() {
            tokio::select! {
                () = self.key_end.reached() => return,
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    fn left(&self) -> Option<Duration> {
        let left = self.until.duration_since(SystemTime::now()).ok()?;
        (!left.is_zero()).then_some(left)
    }
}

/// The claims of a token that are used. A claim that is there twice is an error.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: f64,
    #[serde(default)]
    iat: Option<f64>,
    // A single text: a list of issuers, which the library would accept, is not what RFC 7519, 4.1.1, says.
    #[serde(rename = "iss")]
    _issuer: String,
    #[serde(rename = "aud")]
    _audience: IgnoredAny,
    #[serde(rename = "nbf", default)]
    _not_before: IgnoredAny,
}

impl TokenVerifier {
    /// Accepts the tokens that the configuration describes, with the keys of the issuer that are known already.
    #[must_use]
    pub fn new(config: &JwtConfig, keys: Vec<SigningKey>) -> Self {
        signatures::install();
        Self(Arc::new(Shared {
            keys: IssuerKeys::new(keys, config.refresh_min, config.stale_max),
            verified: Mutex::new(VerifiedTokens::new(config.tokens_max)),
            checks: RequestBucket::new(RequestRate {
                per_second: CHECKS_PER_SECOND,
                burst: CHECKS_PER_SECOND,
            }),
            config: config.clone(),
        }))
    }

    /// The keys of the issuer.
    #[must_use]
    pub fn keys(&self) -> &IssuerKeys {
        &self.0.keys
    }

    /// Refuses a token that is too long, before anything is done with it.
    pub(super) fn check_length(&self, token: &[u8]) -> Result<(), TokenFault> {
        match token.len() <= self.0.config.token_bytes_max {
            true => Ok(()),
            false => Err(TokenFault::TooLong),
        }
    }

    /// The token, if it has been verified before and is still valid. It is looked up by its hash, like a key.
    pub(super) fn known(&self, hash: &KeyHash) -> Option<VerifiedToken> {
        // Keys that are too old verify nothing, even if they were not dropped yet.
        let has_keys = self.0.keys.current_state() != KeysState::Unknown;
        has_keys.then(|| self.verified().get(hash)).flatten()
    }

    /// Takes the verification of one signature from those for addresses that have failed too often; if none is left, says
    /// when there is one again.
    pub(super) fn take_check(&self) -> Result<(), Duration> {
        let taken = self.0.checks.take();
        taken.map(drop).map_err(|empty| empty.retry_in)
    }

    /// Verifies a token, and remembers it.
    pub(super) fn verify(&self, token: &[u8], hash: KeyHash) -> Result<VerifiedToken, TokenFault> {
        let Shared { config, keys, .. } = &*self.0;
        let header = decode_header(token).map_err(|_| TokenFault::Malformed)?;
        check(&header)?;
        if is_critical(token) {
            return Err(TokenFault::Malformed);
        }
        // The header chooses among the accepted algorithms and nothing else. Headers that tell where to find a key
        // (jku, jwk, x5u, x5c) are ignored (RFC 8725, 3.10), and the key has to be for this algorithm (3.1).
        if !config.algorithms.contains(&header.alg) {
            return Err(TokenFault::Algorithm);
        }
        let key = match keys.find(header.kid.as_deref(), header.alg) {
            FoundKey::Key(key) => key,
            FoundKey::OtherAlgorithm => return Err(TokenFault::Algorithm),
            FoundKey::Ambiguous => return Err(TokenFault::UnnamedKey),
            FoundKey::Unknown => return Err(TokenFault::UnknownKey),
            FoundKey::NoKeys => return Err(TokenFault::NoKeys),
        };
        let mut validation = Validation::new(header.alg);
        validation.leeway = config.leeway.as_secs();
        validation.validate_nbf = true;
        validation.set_issuer(&[&config.issuer]);
        validation.set_audience(&[&config.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let claims = decode::<Claims>(token, &key.signing.key, &validation);
        let claims = claims.map_err(|error| fault(&error))?.claims;
        let token = VerifiedToken {
            life: TokenLife {
                until: self.valid_until(&claims)?,
                key_end: key.end.clone(),
            },
            subject: claims.sub.into(),
        };
        self.verified().insert(hash, token.clone());
        Ok(token)
    }

    /// When a token with an unknown key can be tried again, because the keys will have been read again; `None` if that
    /// would not help.
    pub(super) fn refreshed(&self) -> Option<BoxFuture<'static, ()>> {
        self.0.keys.refreshed()
    }

    fn valid_until(&self, claims: &Claims) -> Result<SystemTime, TokenFault> {
        let config = &self.0.config;
        let at = |seconds: f64| {
            let since = Duration::try_from_secs_f64(seconds).ok()?;
            UNIX_EPOCH.checked_add(since)
        };
        let now = SystemTime::now();
        let issued = claims.iat.map_or(Some(now), at);
        let (issued, expires) = issued.zip(at(claims.exp)).ok_or(TokenFault::Claims)?;
        if issued > now + config.leeway {
            return Err(TokenFault::NotYetValid);
        }
        let lifetime = expires.duration_since(issued).unwrap_or_default();
        if lifetime > config.lifetime_max {
            return Err(TokenFault::LivesTooLong);
        }
        Ok(expires + config.leeway)
    }

    fn verified(&self) -> MutexGuard<'_, VerifiedTokens> {
        let verified = self.0.verified.lock();
        verified.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this could be a token rather than a key: three parts, which are not checked here.
pub(super) fn is_token(presented: &[u8]) -> bool {
    presented.iter().filter(|byte| **byte == b'.').count() == 2
}

fn check(header: &Header) -> Result<(), TokenFault> {
    let is_of_type = |typ: &str| {
        let typ = typ.to_ascii_lowercase();
        TYPES.contains(&typ.strip_prefix("application/").unwrap_or(&typ))
    };
    if !header.typ.as_deref().is_none_or(is_of_type) {
        return Err(TokenFault::Type);
    }
    Ok(())
}

/// Whether the header names other headers as critical. A token with an unknown critical header has to be refused, and
/// none is known here; a value that is no list of names is not valid either (RFC 7515, 4.1.11). The library ignores
/// `null`.
fn is_critical(token: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct CriticalHeaders {
        #[serde(default, deserialize_with = "is_there")]
        crit: bool,
    }
    let header = token.split(|byte| *byte == b'.').next();
    let header = header.and_then(|header| BASE64_URL_SAFE_NO_PAD.decode(header).ok());
    let header = header.and_then(|header| serde_json::from_slice::<CriticalHeaders>(&header).ok());
    header.is_none_or(|header| header.crit)
}

fn is_there<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(value).map(|_| true)
}

fn fault(error: &Error) -> TokenFault {
    use ErrorKind as E;
    let kind = error.kind();
    if matches!(kind, E::ExpiredSignature) {
        TokenFault::Expired
    } else if matches!(kind, E::ImmatureSignature) {
        TokenFault::NotYetValid
    } else if matches!(kind, E::InvalidIssuer) {
        TokenFault::Issuer
    } else if matches!(kind, E::InvalidAudience) {
        TokenFault::Audience
    } else if matches!(kind, E::InvalidSignature) {
        TokenFault::Signature
    } else if matches!(
        kind,
        E::MissingRequiredClaim(_) | E::InvalidClaimFormat(_) | E::Json(_)
    ) {
        TokenFault::Claims
    } else {
        TokenFault::Malformed
    }
}
