//! TLS of the connections that this program opens, to a Redis or to a service: which certificates it trusts.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, ClientConfig, RootCertStore};

use crate::config::TlsIdentity;

/// Why a certificate is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateFault {
    /// It is from an authority that is not trusted.
    UnknownAuthority,
    /// It is for another name.
    OtherName,
    /// It is too old.
    Expired,
    /// It begins later.
    NotValidYet,
    /// Anything else.
    Other,
}

impl CertificateFault {
    pub(crate) fn of(error: &CertificateError) -> Self {
        use CertificateError as E;
        // An authority of the same name with another key gives the second one.
        if matches!(error, E::UnknownIssuer | E::BadSignature) {
            Self::UnknownAuthority
        } else if matches!(error, E::NotValidForName | E::NotValidForNameContext { .. }) {
            Self::OtherName
        } else if matches!(error, E::Expired | E::ExpiredContext { .. }) {
            Self::Expired
        } else if matches!(error, E::NotValidYet | E::NotValidYetContext { .. }) {
            Self::NotValidYet
        } else {
            Self::Other
        }
    }
}

/// The authorities that are trusted: these alone, or those of the system.
///
/// # Errors
/// One of them cannot be used, or the system has none.
pub(crate) fn trusted(
    authorities: Option<&[CertificateDer<'static>]>,
) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(authorities) = authorities else {
        let of_system = rustls_native_certs::load_native_certs().certs;
        roots.add_parsable_certificates(of_system);
        return match roots.is_empty() {
            true => Err("this system has no root certificates".to_owned()),
            false => Ok(roots),
        };
    };
    for authority in authorities {
        let added = roots.add(authority.clone());
        added.map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

/// How to connect to a server whose certificate is from one of these authorities.
///
/// # Errors
/// The certificate of this process cannot be used.
pub(crate) fn client_config(
    roots: RootCertStore,
    identity: Option<&TlsIdentity>,
) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    match identity {
        Some(TlsIdentity { chain, key }) => {
            builder.with_client_auth_cert(chain.clone(), key.clone_key())
        }
        None => Ok(builder.with_no_client_auth()),
    }
}
