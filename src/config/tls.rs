//! TLS: the certificates that are trusted, and the one that this process shows to Redis. Parsed once; the store connects.
//! What is read from files here is also used for the certificate that clients see.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};

use super::error::ConfigError;
use super::secret;
use super::settings::Settings;

/// How a connection to Redis is encrypted.
#[derive(Debug, Clone, Default)]
pub struct RedisTls {
    /// The only certificate authorities that are trusted; none for those of the system.
    pub authorities: Option<Vec<CertificateDer<'static>>>,
    /// What this process shows to a Redis that asks for a certificate.
    pub identity: Option<TlsIdentity>,
    /// The name in Redis' certificate, if it is not the host of the URL.
    pub server_name: Option<ServerName<'static>>,
}

/// A certificate of this process, with its private key.
#[derive(Clone, Eq)]
pub struct TlsIdentity {
    /// The certificate, and those that connect it to an authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// The private key.
    pub key: Arc<PrivateKeyDer<'static>>,
}

impl TlsIdentity {
    /// The certificate in one file and the key in another. Whether they belong together is not checked.
    ///
    /// # Errors
    /// One line that says what is wrong with a file.
    pub fn in_files(certificate: &Path, key: &Path) -> Result<Self, String> {
        Ok(Self {
            chain: certificates_in(certificate)?,
            key: Arc::new(private_key_in(key)?),
        })
    }
}

impl PartialEq for TlsIdentity {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain && self.key.secret_der() == other.key.secret_der()
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TlsIdentity")
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
                .then(|| authorities(settings, CA_FILE))
                .transpose()?,
            identity: identity(settings, CERT_FILE, KEY_FILE)?,
            server_name: server_name(settings)?,
        })
    }
}

/// The certificate and the key in the files that these keys name, if they do.
pub(super) fn identity(
    settings: &Settings,
    cert_file: &str,
    key_file: &str,
) -> Result<Option<TlsIdentity>, ConfigError> {
    let is_set = |name| !settings.text(name).is_empty();
    let (missing, given) = match (is_set(cert_file), is_set(key_file)) {
        (false, false) => return Ok(None),
        (true, true) => {
            let chain = certificates(settings, cert_file)?;
            let key = private_key_in(Path::new(settings.text(key_file)))
                .map_err(|problem| settings.invalid(key_file, problem))?;
            check_pair(settings, (cert_file, &chain), (key_file, &key))?;
            let key = Arc::new(key);
            return Ok(Some(TlsIdentity { chain, key }));
        }
        (true, false) => (key_file, cert_file),
        (false, true) => (cert_file, key_file),
    };
    let problem = format!("a certificate and its key belong together; set {missing} too");
    Err(settings.invalid(given, problem))
}

/// Checks that both can be used, and together, as every use of them will.
fn check_pair(
    settings: &Settings,
    (cert_file, chain): (&str, &[CertificateDer<'static>]),
    (key_file, key): (&str, &PrivateKeyDer<'static>),
) -> Result<(), ConfigError> {
    let of = |name: &str| settings.text(name);
    let provider = ring::default_provider();
    let unusable = |name: &str, error: rustls::Error| {
        settings.invalid(name, format!("{}: cannot be used: {error}", of(name)))
    };
    let signing = provider.key_provider.load_private_key(key.clone_key());
    let signing = signing.map_err(|error| unusable(key_file, error))?;
    match CertifiedKey::new(chain.to_vec(), signing).keys_match() {
        // A key that does not show its public half cannot be compared.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => {
            let problem = format!(
                "{} is not the key of the certificate in {}",
                of(key_file),
                of(cert_file)
            );
            Err(settings.invalid(key_file, problem))
        }
        Err(error) => Err(unusable(cert_file, error)),
    }
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

/// The certificates of authorities in the file that this key names.
pub(super) fn authorities(
    settings: &Settings,
    name: &str,
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let authorities = certificates(settings, name)?;
    let mut roots = RootCertStore::empty();
    for authority in &authorities {
        roots.add(authority.clone()).map_err(|error| {
            let file = settings.text(name);
            settings.invalid(
                name,
                format!("{file}: a certificate cannot be used: {error}"),
            )
        })?;
    }
    Ok(authorities)
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

/// The private key in a file.
///
/// # Errors
/// One line that says what is wrong with the file.
pub(super) fn private_key_in(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let contents = secret::read_pem(file)?;
    PrivateKeyDer::from_pem_slice(&contents).map_err(|error| no_pem(file, "private key", &error))
}

/// The error of the parser is not quoted, because it may quote the file.
fn no_pem(file: &Path, what: &str, error: &PemError) -> String {
    let form = match matches!(error, PemError::NoItemsFound) {
        true => "in PEM form",
        false => "in well-formed PEM",
    };
    format!("{}: has no {what} {form}", file.display())
}
