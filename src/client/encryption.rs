//! TLS of the connections to the service: which authorities are trusted, which certificate is shown, and why a connection with
//! TLS fails.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, InvalidMessage, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::config::TlsIdentity;
use crate::tls::{self, CertificateFault};

/// The files of the certificate that is shown to a service that asks for one.
#[derive(Debug, Clone)]
pub struct CertificateFiles {
    /// The certificate, and those that connect it to an authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// How connections are encrypted.
pub(super) struct Encryption {
    roots: RootCertStore,
    files: Option<CertificateFiles>,
    /// What the last connection used.
    last: Mutex<TlsConnector>,
}

impl Encryption {
    /// Trusts these authorities, or those of the system.
    pub(super) fn new(
        authorities: Option<&[CertificateDer<'static>]>,
        files: Option<CertificateFiles>,
    ) -> Result<Self, String> {
        let roots = tls::trusted(authorities)?;
        let last = Mutex::new(connector(&roots, files.as_ref())?);
        Ok(Self { roots, files, last })
    }

    /// What the next connection uses. The files are read for each, because certificates that are mounted into a pod are
    /// replaced there before they end. While the files cannot be used or do not belong together, the certificate is that of
    /// before: a lease should not be lost because they are just being replaced.
    pub(super) fn connector(&self) -> TlsConnector {
        let files = self.files.as_ref();
        let read = files.and_then(|files| connector(&self.roots, Some(files)).ok());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = read {
            *last = read;
        }
        last.clone()
    }
}

fn connector(
    roots: &RootCertStore,
    files: Option<&CertificateFiles>,
) -> Result<TlsConnector, String> {
    let identity = files.map(|files| TlsIdentity::in_files(&files.certificate, &files.key));
    let config = tls::client_config(roots.clone(), identity.transpose()?.as_ref());
    let mut config = config.map_err(|error| match files {
        Some(files) => format!(
            "{} and {}: {error}",
            files.certificate.display(),
            files.key.display()
        ),
        None => error.to_string(),
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Why the other side is not trusted, and what to do; none if the error is another one.
pub(super) fn trust_problem(error: &io::Error) -> Option<&'static str> {
    let error = error_of_tls(error)?;
    if *error == rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) {
        return Some("it speaks plain HTTP; write http:// instead of https://");
    }
    let rustls::Error::InvalidCertificate(error) = error else {
        return None;
    };
    Some(match CertificateFault::of(error) {
        CertificateFault::UnknownAuthority => {
            "its certificate is not from an authority that is trusted; name that authority with --ca-file or LEASEHOLD_CA_FILE"
        }
        CertificateFault::OtherName => {
            "its certificate is for another name; use that name in the URL"
        }
        CertificateFault::Expired => "its certificate has expired",
        CertificateFault::NotValidYet => {
            "its certificate is not valid yet; check the clock of this machine"
        }
        CertificateFault::Other => "its certificate cannot be verified",
    })
}

/// Why the other side refuses the certificate of this client, and what to do; none if the error is another one.
pub(super) fn refusal(error: &io::Error) -> Option<&'static str> {
    use AlertDescription as A;
    let rustls::Error::AlertReceived(alert) = error_of_tls(error)? else {
        return None;
    };
    if *alert == A::CertificateRequired {
        Some(
            "it wants a certificate; name the files of one with --client-cert-file and --client-key-file, or with \
             LEASEHOLD_CLIENT_CERT_FILE and LEASEHOLD_CLIENT_KEY_FILE",
        )
    } else if *alert == A::UnknownCA {
        Some("the certificate of this client is not from an authority that it trusts")
    } else if *alert == A::CertificateExpired {
        Some("the certificate of this client has expired")
    } else if matches!(
        *alert,
        A::BadCertificate | A::CertificateUnknown | A::DecryptError
    ) {
        Some("it does not accept the certificate of this client")
    } else {
        None
    }
}

/// The same of a request. With TLS 1.3 the service looks at the certificate when the client has already sent its request.
pub(super) fn refusal_of_request(error: &hyper::Error) -> Option<&'static str> {
    refusal(error.source()?.downcast_ref()?)
}

fn error_of_tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
