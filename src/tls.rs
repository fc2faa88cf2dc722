//! TLS of the connections that this program opens, to a Redis, to a service, or to its own server: which certificates it
//! trusts, and what says that its own is not accepted.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::crypto::{self, CryptoProvider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

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
    /// It is that of an authority, which signs others.
    OfAuthority,
    /// Anything else.
    Other,
}

/// What the verifier, whose errors have no type in the library's interface, calls a server's certificate that may sign others.
const OF_AUTHORITY: &str = "CaUsedAsEndEntity";

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
        } else if matches!(error, E::Other(other) if other.to_string().contains(OF_AUTHORITY)) {
            Self::OfAuthority
        } else {
            Self::Other
        }
    }
}

/// Whether an alert of the other side is about the certificate of this process, or about having none.
pub(crate) fn is_about_certificate(alert: AlertDescription) -> bool {
    use AlertDescription as A;
    matches!(
        alert,
        A::CertificateRequired
            | A::NoCertificate
            | A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            | A::AccessDenied
            // A signature that is not by the key of the certificate, or of an authority of the same name with another key.
            | A::DecryptError
    )
}

/// Whether the other side has broken off the handshake without a reason.
pub(crate) fn breaks_off(error: &Error) -> bool {
    *error == Error::AlertReceived(AlertDescription::HandshakeFailure)
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
            true => Err(
                "this system has no root certificates; name the file with those of an authority"
                    .to_owned(),
            ),
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

/// How to connect to a server whatever certificate it shows: for a probe, which sends no secret and only wants to know
/// whether the server answers. Over plain HTTP it asks any process that has the port, too.
///
/// The certificate in the file is not necessarily the one that is shown: while the file cannot be used, the server goes on
/// with the one before, and is healthy.
///
/// # Errors
/// TLS cannot be used.
pub(crate) fn config_for_probe() -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = AnyCertificate {
        provider: Arc::clone(&provider),
    };
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

/// Trusts every certificate whose server has its key.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
