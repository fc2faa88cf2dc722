//! The certificate that clients see, and its files, which are read again while the service runs.

use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::settings::Settings;
use super::tls::{self, TlsIdentity};

const CERT_FILE: &str = "server.tls_cert_file";
const KEY_FILE: &str = "server.tls_key_file";

/// A certificate with its private key, and the files that both are from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCertificate {
    /// What is shown to clients.
    pub identity: TlsIdentity,
    certificate: PathBuf,
    key: PathBuf,
}

impl ServerCertificate {
    /// `None` where clients are served without TLS.
    pub(super) fn parse(settings: &Settings) -> Result<Option<Self>, ConfigError> {
        let identity = tls::identity(settings, CERT_FILE, KEY_FILE)?;
        Ok(identity.map(|identity| Self {
            identity,
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
            ..self.clone()
        })
    }
}
