//! TLS to Redis: what is verified, and what went wrong in words.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::RedisError;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::failure::{Execution, Failure};
use crate::config::RedisTls;
use crate::store::Fault;
use crate::tls::{CertificateFault, breaks_off, client_config, is_about_certificate, trusted};

/// Encrypts connections to one Redis.
pub(super) struct ClientTls {
    connector: TlsConnector,
    /// The name in the certificate, if it is not the host.
    name: Option<ServerName<'static>>,
    has_identity: bool,
}

/// Why there is no TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsProblem {
    /// Its certificate is from an authority that is not trusted.
    UnknownAuthority,
    /// Its certificate is for another name.
    OtherName,
    /// Its certificate is too old.
    Expired,
    /// Its certificate begins later.
    NotValidYet,
    /// Its certificate is that of an authority.
    OfAuthority,
    /// Its certificate is unusable for another reason.
    BadCertificate,
    /// It requires a certificate of this process.
    WantsCertificate,
    /// It refuses the certificate of this process.
    RefusesCertificate,
    /// It does not speak TLS.
    Missing,
    /// It speaks only TLS.
    Expected,
    /// It has broken off the handshake, and this process has no certificate. With TLS 1.2, that is what one says that requires
    /// one (RFC 5246, section 7.4.6).
    MayWantCertificate,
    /// Anything else, such as no version in common.
    NoAgreement,
}

impl TlsProblem {
    /// For operators.
    pub(super) fn explanation(self) -> &'static str {
        match self {
            Self::UnknownAuthority => {
                "its certificate is not from an authority that is trusted; set redis.tls_ca_file"
            }
            Self::OtherName => {
                "its certificate is for another name; use that name in the store's URL, or set redis.tls_server_name"
            }
            Self::Expired => "its certificate has expired",
            Self::NotValidYet => "its certificate is not valid yet",
            Self::OfAuthority => {
                "its certificate is that of an authority (CA:TRUE), which only signs others; give it one that is signed by \
                 that authority"
            }
            Self::BadCertificate => "its certificate cannot be verified",
            Self::WantsCertificate => {
                "it requires a certificate of Leasehold; set redis.tls_cert_file and redis.tls_key_file"
            }
            Self::RefusesCertificate => "it refuses the certificate in redis.tls_cert_file",
            Self::Missing => {
                "it answers without TLS; use its port for TLS, or write redis:// instead of rediss:// in the store's URL (with \
                 +sentinel and +cluster, too)"
            }
            Self::Expected => {
                "it expects TLS; write rediss:// instead of redis:// in the store's URL (with +sentinel and +cluster, too)"
            }
            Self::MayWantCertificate => {
                "it broke off the TLS handshake, as a Redis does with TLS 1.2 that requires a certificate of Leasehold; set \
                 redis.tls_cert_file and redis.tls_key_file"
            }
            Self::NoAgreement => "the TLS handshake failed",
        }
    }
}

impl ClientTls {
    /// # Errors
    /// The certificates cannot be used.
    pub(super) fn new(config: &RedisTls) -> Result<Self, Failure> {
        let unusable = |detail: String| Failure::new(Fault::Tls, Execution::NotDone, detail);
        let roots = trusted(config.authorities.as_deref()).map_err(|problem| {
            unusable(match config.authorities {
                Some(_) => format!("redis.tls_ca_file: {problem}"),
                None => format!("{problem}; set redis.tls_ca_file"),
            })
        })?;
        let client = client_config(roots, config.identity.as_ref())
            .map_err(|error| unusable(format!("redis.tls_cert_file: {error}")))?;
        Ok(Self {
            connector: TlsConnector::from(Arc::new(client)),
            name: config.server_name.clone(),
            has_identity: config.identity.is_some(),
        })
    }

    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
        };
        self.connector.connect(name, stream).await
    }

    pub(super) fn has_identity(&self) -> bool {
        self.has_identity
    }
}

/// Whether the other side speaks TLS. Its certificate is refused.
pub(super) async fn is_spoken_on(stream: TcpStream) -> bool {
    let Ok(client) = client_config(RootCertStore::empty(), None) else {
        return false;
    };
    let Ok(name) = ServerName::try_from("probe.invalid") else {
        return false;
    };
    let connecting = TlsConnector::from(Arc::new(client)).connect(name, stream);
    match connecting.await {
        Ok(_) => true,
        Err(error) => {
            let error = cause(&error);
            matches!(
                error,
                Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))
            )
        }
    }
}

/// The TLS problem behind an error; none if the error is another one.
pub(super) fn problem_in(error: &RedisError, has_identity: bool) -> Option<TlsProblem> {
    let source = error.source()?;
    let shared = source.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    let cause = cause(shared.downcast_ref::<io::Error>()?)?;
    Some(if let rustls::Error::InvalidCertificate(error) = cause {
        problem_with(error)
    } else if let rustls::Error::AlertReceived(alert) = cause
        && is_about_certificate(*alert)
    {
        match has_identity {
            true => TlsProblem::RefusesCertificate,
            false => TlsProblem::WantsCertificate,
        }
    } else if breaks_off(cause) && !has_identity {
        TlsProblem::MayWantCertificate
    } else if let rustls::Error::InvalidMessage(_) = cause {
        TlsProblem::Missing
    } else {
        TlsProblem::NoAgreement
    })
}

fn problem_with(certificate: &CertificateError) -> TlsProblem {
    match CertificateFault::of(certificate) {
        CertificateFault::UnknownAuthority => TlsProblem::UnknownAuthority,
        CertificateFault::OtherName => TlsProblem::OtherName,
        CertificateFault::Expired => TlsProblem::Expired,
        CertificateFault::NotValidYet => TlsProblem::NotValidYet,
        CertificateFault::OfAuthority => TlsProblem::OfAuthority,
        CertificateFault::Other => TlsProblem::BadCertificate,
    }
}

fn cause(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
