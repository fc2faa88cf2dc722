//! JSON Web Tokens as a way to say who a client is: their issuer, where its keys are, and the bounds of both. `http` verifies
//! the tokens.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use jsonwebtoken::Algorithm;
use rustls::pki_types::CertificateDer;

use super::error::ConfigError;
use super::settings::{KEPT_MAX, Settings, UpperBound};
use super::signing_keys::{self, SigningKey};
use super::tls;

pub(super) const ISSUER: &str = "jwt.issuer";
const AUDIENCE: &str = "jwt.audience";
const ALGORITHMS: &str = "jwt.algorithms";
const JWKS_FILE: &str = "jwt.jwks_file";
const JWKS_URL: &str = "jwt.jwks_url";
const JWKS_CA_FILE: &str = "jwt.jwks_ca_file";
const JWKS_TOKEN_FILE: &str = "jwt.jwks_token_file";

/// The algorithms that can be configured. All of them are asymmetric: with `none` or an HMAC in this list, whoever knows
/// the public key could make tokens (RFC 8725, 2.1 and 3.1).
const ALLOWED: [(&str, Algorithm); 7] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// A longer one would make `exp` and `nbf` meaningless.
const LEEWAY_MAX: Duration = Duration::from_secs(5 * 60);
/// The largest value that fits into the head of a request beside the other headers.
const TOKEN_BYTES_MAX: UpperBound = UpperBound(32 * 1024, "the head of a request has 64 KiB");

/// Which tokens are accepted.
#[derive(Debug, Clone)]
pub struct JwtConfig {
    /// The `iss` of every token.
    pub issuer: String,
    /// What the `aud` of every token has to contain.
    pub audience: String,
    /// The algorithms of signatures.
    pub algorithms: Vec<Algorithm>,
    /// Where the keys of the issuer are.
    pub source: JwksSource,
    /// How often keys from a URL are fetched again.
    pub refresh: Duration,
    /// How soon after the last time a token with an unknown key may cause it.
    pub refresh_min: Duration,
    /// How long keys are used that cannot be read again.
    pub stale_max: Duration,
    /// How much the clocks of the issuer and of this machine may differ.
    pub leeway: Duration,
    /// The longest time from the issue of a token to its end.
    pub lifetime_max: Duration,
    /// The longest token.
    pub token_bytes_max: usize,
    /// How many verified tokens are remembered.
    pub tokens_max: usize,
}

/// Where the keys of the issuer are.
#[derive(Debug, Clone)]
pub enum JwksSource {
    /// In a file, with its keys at the start.
    File {
        /// The file as it was named.
        path: PathBuf,
        /// What it had at the start.
        keys: Vec<SigningKey>,
    },
    /// At a URL.
    Url {
        /// The URL.
        url: String,
        /// The only authorities that are trusted; `None` for those of the system.
        authorities: Option<Vec<CertificateDer<'static>>>,
        /// A file with the token that this process sends.
        token: Option<PathBuf>,
    },
}

impl JwtConfig {
    /// `None` if no tokens are accepted.
    pub(super) fn parse(settings: &Settings) -> Result<Option<Self>, ConfigError> {
        // They are checked whether or not tokens are accepted, like all numbers and durations.
        let refresh = settings.positive("jwt.jwks_refresh")?;
        let refresh_min = settings.positive("jwt.jwks_refresh_min")?;
        let stale_max = settings.positive("jwt.jwks_stale_max")?;
        let leeway = settings.between("jwt.leeway", Duration::ZERO, LEEWAY_MAX)?;
        let lifetime_max = settings.positive("jwt.lifetime_max")?;
        let token_bytes_max = settings.count("jwt.token_bytes_max", TOKEN_BYTES_MAX)?;
        let tokens_max = settings.count("jwt.tokens_max", KEPT_MAX)?;
        let Some(issuer) = issuer(settings)? else {
            return Ok(None);
        };
        let audience = settings.text(AUDIENCE);
        if audience.is_empty() {
            // Without it, a token that the issuer made for another service would be accepted here (RFC 8725, 3.9).
            let problem = "is missing; write the name of this service in the aud of its tokens, like \"leasehold\"";
            return Err(settings.invalid(AUDIENCE, problem));
        }
        let algorithms = algorithms(settings)?;
        Ok(Some(Self {
            issuer,
            audience: audience.to_owned(),
            source: source(settings, &algorithms)?,
            algorithms,
            refresh,
            refresh_min,
            stale_max,
            leeway,
            lifetime_max,
            token_bytes_max,
            tokens_max,
        }))
    }
}

/// Whether tokens are accepted.
pub(super) fn is_set(settings: &Settings) -> bool {
    !settings.text(ISSUER).is_empty()
}

fn issuer(settings: &Settings) -> Result<Option<String>, ConfigError> {
    let issuer = settings.text(ISSUER);
    let dependent = [AUDIENCE, JWKS_FILE, JWKS_URL, JWKS_CA_FILE, JWKS_TOKEN_FILE];
    let set = dependent
        .into_iter()
        .find(|name| !settings.text(name).is_empty());
    match (issuer, set) {
        ("", None) => Ok(None),
        ("", Some(name)) => {
            let problem = format!("has no effect without {ISSUER}, the iss of the tokens");
            Err(settings.invalid(name, problem))
        }
        (issuer, _) => Ok(Some(issuer.to_owned())),
    }
}

fn algorithms(settings: &Settings) -> Result<Vec<Algorithm>, ConfigError> {
    let mut algorithms = Vec::new();
    for word in settings.text(ALGORITHMS).split(',').map(str::trim) {
        let known = ALLOWED.iter().find(|(name, _)| *name == word);
        let Some((_, algorithm)) = known else {
            let names = ALLOWED.map(|(name, _)| name).join(", ");
            let problem = format!(
                "\"{word}\" is not an algorithm that is accepted here; use some of {names}"
            );
            return Err(settings.invalid(ALGORITHMS, problem));
        };
        if !algorithms.contains(algorithm) {
            algorithms.push(*algorithm);
        }
    }
    Ok(algorithms)
}

fn source(settings: &Settings, algorithms: &[Algorithm]) -> Result<JwksSource, ConfigError> {
    let [file, url, ca_file, token_file] =
        [JWKS_FILE, JWKS_URL, JWKS_CA_FILE, JWKS_TOKEN_FILE].map(|name| settings.text(name));
    match (file, url) {
        ("", "") => {
            let problem =
                format!("the keys of the issuer are missing; set {JWKS_FILE} or {JWKS_URL}");
            Err(settings.invalid(ISSUER, problem))
        }
        ("", url) => {
            check_url(url).map_err(|problem| settings.invalid(JWKS_URL, problem))?;
            let authorities = match ca_file {
                "" => None,
                file => Some(
                    tls::certificates_in(file.as_ref())
                        .map_err(|problem| settings.invalid(JWKS_CA_FILE, problem))?,
                ),
            };
            Ok(JwksSource::Url {
                url: url.to_owned(),
                authorities,
                token: (!token_file.is_empty()).then(|| token_file.into()),
            })
        }
        (_, url) if !url.is_empty() => {
            let problem = format!("{JWKS_FILE} is set too; set only one of the two");
            Err(settings.invalid(JWKS_URL, problem))
        }
        (path, _) => {
            let path = PathBuf::from(path);
            let keys = signing_keys::read(&path, algorithms);
            let keys = keys.map_err(|problem| settings.invalid(JWKS_FILE, problem))?;
            Ok(JwksSource::File { path, keys })
        }
    }
}

/// Whoever can change the keys on their way can make tokens, so plain HTTP is for this machine alone.
fn check_url(url: &str) -> Result<(), String> {
    let example = "write one like https://issuer.example/jwks.json";
    if url.contains(['@', '?', '#']) {
        // It is not quoted, because such a part may be a password.
        return Err(format!("has a user, a query or a fragment; {example}"));
    }
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(host) => host.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    // Also what the client that fetches it would refuse, each time and only in the log.
    let has_port = authority
        .rsplit(']')
        .next()
        .is_some_and(|rest| rest.contains(':'));
    let is_usable = url
        .parse::<hyper::Uri>()
        .is_ok_and(|uri| !has_port || uri.port_u16().is_some());
    if host.is_empty() || !is_usable {
        return Err(format!("\"{url}\" is not a URL; {example}"));
    }
    let is_loopback = || {
        host == "localhost"
            || host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    };
    match scheme {
        "https" => Ok(()),
        "http" if is_loopback() => Ok(()),
        "http" => Err(format!(
            "\"{url}\" is not encrypted, and only the loopback address needs no encryption; {example}"
        )),
        _ => Err(format!("\"{url}\" is neither https nor http; {example}")),
    }
}
