//! The names in the certificate of a client, by which it is known. The handshake has verified the certificate.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::config::CertificateName;

/// How many names count. Each request looks up all of them.
const NAMES_MAX: usize = 64;

/// The URIs and the DNS names among its subject alternative names; none if there are too many, because part of them could
/// hide that another principal has one of the rest. The subject itself is not used: it is free text.
pub(super) fn names(certificate: &CertificateDer<'_>) -> Arc<[CertificateName]> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return Arc::default();
    };
    // An error is an extension that is there twice.
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Arc::default();
    };
    let names = &names.value.general_names;
    if names.len() > NAMES_MAX {
        return Arc::default();
    }
    let names = names.iter().filter_map(|name| {
        if let GeneralName::URI(uri) = name {
            Some(CertificateName::of_uri(uri))
        } else if let GeneralName::DNSName(name) = name {
            Some(CertificateName::of_dns(name))
        } else {
            None
        }
    });
    names.collect()
}
