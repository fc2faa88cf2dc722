//! TLS of the connections to the service: which authorities are trusted, which certificate is shown, and why a connection with
//! TLS fails.

use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, InvalidMessage, RootCertStore};
use tokio_rustls::TlsConnector;

use super::connection::cause_in;
use super::{NoAnswer, ServiceUrl};
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
    last: Mutex<LastConnector>,
}

/// What the last connection used.
struct LastConnector {
    connector: TlsConnector,
    /// Why it is that of an earlier connection: the files could not be used.
    problem: Option<String>,
}

impl Encryption {
    /// Trusts these authorities, or those of the system.
    pub(super) fn new(
        authorities: Option<&[CertificateDer<'static>]>,
        files: Option<CertificateFiles>,
    ) -> Result<Self, String> {
        let roots = tls::trusted(authorities)?;
        let last = LastConnector {
            connector: connector(&roots, files.as_ref())?,
            problem: None,
        };
        let last = Mutex::new(last);
        Ok(Self { roots, files, last })
    }

    /// What the next connection uses. The files are read for each, because certificates that are mounted into a pod are
    /// replaced there before they end. While the files cannot be used or do not belong together, the certificate is that of
    /// before: a lease should not be lost because they are just being replaced. A refusal of that one has the reason.
    pub(super) fn connector(&self) -> TlsConnector {
        let files = self.files.as_ref();
        let read = files.map(|files| connector(&self.roots, Some(files)));
        let mut last = self.last();
        match read {
            Some(Ok(connector)) => {
                *last = LastConnector {
                    connector,
                    problem: None,
                }
            }
            Some(Err(problem)) => last.problem = Some(problem),
            None => {}
        }
        last.connector.clone()
    }

    /// Why one side does not accept the other's certificate; none if the error is another one. With TLS 1.3 the service
    /// looks at the certificate when the client has already sent its request.
    pub(super) fn problem_in(
        &self,
        error: &(dyn Error + 'static),
        url: &ServiceUrl,
    ) -> Option<NoAnswer> {
        let url = url.to_string();
        if self.files.is_none() {
            return problem_without_certificate(error, url);
        }
        let error = cause_in(error)?;
        let rustls::Error::AlertReceived(alert) = error else {
            return distrust(error, url);
        };
        if !tls::is_about_certificate(*alert) {
            return None;
        }
        let mut problem = refusal(*alert).to_owned();
        if let Some(of_files) = &self.last().problem {
            problem = format!("{problem}; its files cannot be used any more: {of_files}");
        }
        Some(NoAnswer::CertificateRefused { url, problem })
    }

    fn last(&self) -> MutexGuard<'_, LastConnector> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connector(
    roots: &RootCertStore,
    files: Option<&CertificateFiles>,
) -> Result<TlsConnector, String> {
    let identity = files.map(|files| TlsIdentity::in_files(&files.certificate, &files.key));
    let config = tls::client_config(roots.clone(), identity.transpose()?.as_ref());
    let mut config = config.map_err(|error| {
        let files = files.map(|it| [it.certificate.display(), it.key.display()]);
        match (files, error) {
            (Some([certificate, key]), rustls::Error::InconsistentKeys(_)) => {
                format!("{key} is not the key of the certificate in {certificate}")
            }
            (Some([certificate, key]), error) => format!("{certificate} and {key}: {error}"),
            (None, error) => error.to_string(),
        }
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Why a connection without a certificate of this client has failed, if one side does not trust the other, wants a
/// certificate or does not speak TLS; none if the error is another one.
pub(crate) fn problem_without_certificate(
    error: &(dyn Error + 'static),
    url: String,
) -> Option<NoAnswer> {
    let error = cause_in(error)?;
    let rustls::Error::AlertReceived(alert) = error else {
        return distrust(error, url);
    };
    if tls::breaks_off(error) {
        let problem = "it broke off the TLS handshake, as a service does with TLS 1.2 that requires a certificate of this \
                       client";
        let problem = problem.to_owned();
        return Some(NoAnswer::CertificateRefused { url, problem });
    }
    tls::is_about_certificate(*alert).then_some(NoAnswer::CertificateMissing { url })
}

/// Why the other side is not trusted; none if the error is another one.
fn distrust(error: &rustls::Error, url: String) -> Option<NoAnswer> {
    if *error == rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) {
        let problem = "it speaks plain HTTP; write http:// instead of https://";
        return Some(NoAnswer::Untrusted { url, problem });
    }
    let rustls::Error::InvalidCertificate(error) = error else {
        return None;
    };
    let problem = match CertificateFault::of(error) {
        CertificateFault::UnknownAuthority => return Some(NoAnswer::UnknownAuthority { url }),
        CertificateFault::OtherName => {
            "its certificate is for another name; use that name in the URL"
        }
        CertificateFault::Expired => "its certificate has expired",
        CertificateFault::NotValidYet => {
            "its certificate is not valid yet; check the clock of this machine"
        }
        CertificateFault::OfAuthority => {
            "its certificate is that of an authority (CA:TRUE), which only signs others"
        }
        CertificateFault::Other => "its certificate cannot be verified",
    };
    Some(NoAnswer::Untrusted { url, problem })
}

/// What the other side has against the certificate of this client.
fn refusal(alert: AlertDescription) -> &'static str {
    use AlertDescription as A;
    if alert == A::UnknownCA {
        "the certificate of this client is not from an authority that it trusts"
    } else if alert == A::CertificateExpired {
        "the certificate of this client has expired"
    } else if alert == A::CertificateRevoked {
        "the certificate of this client has been revoked"
    } else {
        "it does not accept the certificate of this client"
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn received(alert: AlertDescription) -> io::Error {
        io::Error::other(rustls::Error::AlertReceived(alert))
    }

    /// With TLS 1.2, OpenSSL gives no other reason.
    #[test]
    fn a_handshake_that_is_broken_off_is_a_problem_of_a_client_without_a_certificate() {
        let authority = rcgen::generate_simple_self_signed(["it".to_owned()]).unwrap();
        let encryption = Encryption::new(Some(&[authority.cert.der().clone()]), None).unwrap();
        let url = ServiceUrl::parse("https://127.0.0.1:1").unwrap();
        let problem = |alert| encryption.problem_in(&received(alert), &url);
        let problem_of_1_2 = problem(AlertDescription::HandshakeFailure);
        assert!(
            matches!(&problem_of_1_2, Some(NoAnswer::CertificateRefused { problem, .. }) if problem.contains("requires")),
            "{problem_of_1_2:?}"
        );
        assert!(problem(AlertDescription::ProtocolVersion).is_none());
    }
}
