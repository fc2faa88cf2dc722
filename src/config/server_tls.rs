//! The certificate that clients see, the authorities of theirs, and the files of both, which are read again while the
//! service runs.

use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;

use super::error::ConfigError;
use super::settings::Settings;
use super::tls::{self, TlsIdentity};

const CERT_FILE: &str = "server.tls_cert_file";
const KEY_FILE: &str = "server.tls_key_file";
pub(super) const CLIENT_CA_FILE: &str = "server.tls_client_ca_file";
const CLIENT_CERTIFICATE: &str = "server.tls_client_certificate";

/// A certificate with its private key, and the files that both are from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCertificate {
    /// What is shown to clients.
    pub identity: TlsIdentity,
    /// Whose certificates clients may show; `None` if they are not asked for any.
    pub clients: Option<ClientAuthorities>,
    certificate: PathBuf,
    key: PathBuf,
}

/// The authorities that sign the certificates of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAuthorities {
    /// Their own certificates.
    pub certificates: Vec<CertificateDer<'static>>,
    /// Whether a client without a certificate is refused.
    pub are_required: bool,
    file: PathBuf,
}

/// Whether clients are served with TLS.
pub(super) fn is_set(settings: &Settings) -> bool {
    !settings.text(CERT_FILE).is_empty()
}

/// Whether clients are asked for certificates.
pub(super) fn asks_clients(settings: &Settings) -> bool {
    !settings.text(CLIENT_CA_FILE).is_empty()
}

impl ServerCertificate {
    /// `None` where clients are served without TLS.
    pub(super) fn parse(settings: &Settings) -> Result<Option<Self>, ConfigError> {
        let identity = tls::identity(settings, CERT_FILE, KEY_FILE)?;
        let clients = ClientAuthorities::parse(settings, identity.is_some())?;
        Ok(identity.map(|identity| Self {
            identity,
            clients,
            certificate: settings.text(CERT_FILE).into(),
            key: settings.text(KEY_FILE).into(),
        }))
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// One line that says which file cannot be used and why.
    pub fn reread(&self) -> Result<Self, String> {
        Ok(Self {
            identity: TlsIdentity {
                chain: tls::certificates_in(&self.certificate)?,
                key: tls::private_key_in(Path::new(&self.key))?.into(),
            },
            clients: self
                .clients
                .as_ref()
                .map(ClientAuthorities::reread)
                .transpose()?,
            ..self.clone()
        })
    }
}

impl ClientAuthorities {
    fn parse(settings: &Settings, has_tls: bool) -> Result<Option<Self>, ConfigError> {
        let words = [("optional", false), ("required", true)];
        let are_required = settings.choice(CLIENT_CERTIFICATE, &words)?;
        let file = settings.text(CLIENT_CA_FILE);
        if file.is_empty() {
            let problem = format!(
                "required, but no authority is known that signs the certificates of clients; set {CLIENT_CA_FILE}"
            );
            return match are_required {
                true => Err(settings.invalid(CLIENT_CERTIFICATE, problem)),
                false => Ok(None),
            };
        }
        if !has_tls {
            let problem =
                format!("clients show certificates only over TLS; set {CERT_FILE} and {KEY_FILE}");
            return Err(settings.invalid(CLIENT_CA_FILE, problem));
        }
        Ok(Some(Self {
            certificates: tls::authorities(settings, CLIENT_CA_FILE)?,
            are_required,
            file: file.into(),
        }))
    }

    fn reread(&self) -> Result<Self, String> {
        Ok(Self {
            certificates: tls::certificates_in(&self.file)?,
            ..self.clone()
        })
    }
}
