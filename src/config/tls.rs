//! TLS: the certificates that are trusted, and the one that this process shows to Redis. Parsed once; the store connects.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::error::ConfigError;
use super::secret;
use super::settings::Settings;

/// How a connection to Redis is encrypted.
#[derive(Debug, Clone, Default)]
pub struct RedisTls {
    /// The only certificate authorities that are trusted; none for those of the system.
    pub authorities: Option<Vec<CertificateDer<'static>>>,
    /// What this process shows to a Redis that asks for a certificate.
    pub identity: Option<ClientIdentity>,
    /// The name in Redis' certificate, if it is not the host of the URL.
    pub server_name: Option<ServerName<'static>>,
}

/// The certificate of this process, with its private key.
#[derive(Clone)]
pub struct ClientIdentity {
    /// The certificate, and those that connect it to an authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// The private key.
    pub key: Arc<PrivateKeyDer<'static>>,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ClientIdentity")
    }
}

const CA_FILE: &str = "redis.tls_ca_file";
const CERT_FILE: &str = "redis.tls_cert_file";
const KEY_FILE: &str = "redis.tls_key_file";
const SERVER_NAME: &str = "redis.tls_server_name";

impl RedisTls {
    /// `is_used` says whether the URL of the store asks for TLS.
    pub(super) fn parse(settings: &Settings, is_used: bool) -> Result<Self, ConfigError> {
        let names = [CA_FILE, CERT_FILE, KEY_FILE, SERVER_NAME];
        let is_set = |name: &&str| !settings.text(name).is_empty();
        if let Some(name) = names.iter().find(|name| !is_used && is_set(name)) {
            let problem = format!(
                "it is only for a store with TLS, and this one has none ({}); write rediss:// in its URL",
                settings.origin("store")
            );
            return Err(settings.invalid(name, problem));
        }
        Ok(Self {
            authorities: is_set(&CA_FILE)
                .then(|| certificates(settings, CA_FILE))
                .transpose()?,
            identity: identity(settings)?,
            server_name: server_name(settings)?,
        })
    }
}

fn identity(settings: &Settings) -> Result<Option<ClientIdentity>, ConfigError> {
    let is_set = |name| !settings.text(name).is_empty();
    let (missing, given) = match (is_set(CERT_FILE), is_set(KEY_FILE)) {
        (false, false) => return Ok(None),
        (true, true) => {
            let chain = certificates(settings, CERT_FILE)?;
            let key = PrivateKeyDer::from_pem_slice(&pem(settings, KEY_FILE)?);
            let key = key.map_err(|error| {
                let problem = no_pem(Path::new(settings.text(KEY_FILE)), "private key", &error);
                settings.invalid(KEY_FILE, problem)
            })?;
            let key = Arc::new(key);
            return Ok(Some(ClientIdentity { chain, key }));
        }
        (true, false) => (KEY_FILE, CERT_FILE),
        (false, true) => (CERT_FILE, KEY_FILE),
    };
    let problem = format!("a certificate and its key belong together; set {missing} too");
    Err(settings.invalid(given, problem))
}

fn server_name(settings: &Settings) -> Result<Option<ServerName<'static>>, ConfigError> {
    let text = settings.text(SERVER_NAME);
    if text.is_empty() {
        return Ok(None);
    }
    let problem = |_| {
        let problem = format!("\"{text}\" is not a host name; write one like redis.example");
        settings.invalid(SERVER_NAME, problem)
    };
    ServerName::try_from(text.to_owned())
        .map(Some)
        .map_err(problem)
}

fn certificates(
    settings: &Settings,
    name: &str,
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    certificates_in(Path::new(settings.text(name)))
        .map_err(|problem| settings.invalid(name, problem))
}

/// The certificates in a file.
///
/// # Errors
/// One line that says what is wrong with the file.
pub fn certificates_in(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let contents = secret::read_pem(file)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&contents).collect();
    match parsed {
        Ok(certificates) if certificates.is_empty() => {
            Err(no_pem(file, "certificate", &PemError::NoItemsFound))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(no_pem(file, "certificate", &error)),
    }
}

fn pem(settings: &Settings, name: &str) -> Result<Vec<u8>, ConfigError> {
    secret::read_pem(Path::new(settings.text(name)))
        .map_err(|problem| settings.invalid(name, problem))
}

/// The error of the parser is not quoted, because it may quote the file.
fn no_pem(file: &Path, what: &str, error: &PemError) -> String {
    let form = match matches!(error, PemError::NoItemsFound) {
        true => "in PEM form",
        false => "in well-formed PEM",
    };
    format!("{}: has no {what} {form}", file.display())
}
