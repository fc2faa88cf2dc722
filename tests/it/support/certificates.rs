//! Certificates for tests: an authority, and what it signs, in files.

use std::path::Path;
use std::sync::Arc;

use leasehold::config::{RedisTls, TlsIdentity};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;

use super::redis_server::TlsFiles;

/// An authority, and the directory of what it has signed.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        let id = uuid::Uuid::new_v4();
        set_subject(&mut params, &format!("authority {id}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let authority = Self { issuer, directory };
        authority.write("ca.pem", &authority.issuer.pem());
        authority
    }

    /// The files of a Redis whose certificate is for this name.
    pub(crate) fn files_for(&self, name: &str) -> TlsFiles {
        self.files(name, |_| {})
    }

    /// The same with a certificate that was valid once.
    pub(crate) fn expired_files_for(&self, name: &str) -> TlsFiles {
        self.files(name, expire)
    }

    /// The same with a certificate that may sign others.
    pub(crate) fn authority_files_for(&self, name: &str) -> TlsFiles {
        self.files(name, |params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        })
    }

    /// What a client trusts that trusts this authority alone.
    pub(crate) fn trusted(&self) -> RedisTls {
        RedisTls {
            authorities: Some(vec![self.issuer.der().clone()]),
            ..RedisTls::default()
        }
    }

    /// A client's own certificate.
    pub(crate) fn identity(&self) -> TlsIdentity {
        let files = self.files_for("leasehold");
        let certificate = CertificateDer::from_pem_file(&files.certificate);
        let key = PrivateKeyDer::from_pem_file(&files.key);
        TlsIdentity {
            chain: vec![certificate.expect("a certificate")],
            key: key.expect("a key").into(),
        }
    }

    /// The certificate of a client with this name, a URI or a DNS name.
    pub(crate) fn client(&self, name: &str) -> TlsIdentity {
        self.client_of_names(vec![san(name)])
    }

    /// The same with a certificate that was valid once.
    pub(crate) fn expired_client(&self, name: &str) -> TlsIdentity {
        self.client_with(vec![san(name)], expire)
    }

    /// The certificate of a client with these names.
    pub(crate) fn client_of_names(&self, names: Vec<SanType>) -> TlsIdentity {
        self.client_with(names, |_| {})
    }

    fn client_with(
        &self,
        names: Vec<SanType>,
        change: impl FnOnce(&mut CertificateParams),
    ) -> TlsIdentity {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        set_subject(&mut params, "client");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("a signature");
        let der = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        TlsIdentity {
            chain: vec![signed.der().clone()],
            key: Arc::new(der),
        }
    }

    /// The file with the certificate of the authority.
    pub(crate) fn file(&self) -> String {
        self.path("ca.pem")
    }

    fn files(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> TlsFiles {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        set_subject(&mut params, name);
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("a signature");
        self.write(&format!("{name}.pem"), &signed.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
        TlsFiles {
            authority: self.file(),
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            wants_certificate: false,
        }
    }

    fn write(&self, name: &str, contents: &str) {
        std::fs::write(Path::new(&self.path(name)), contents).expect("a writable directory");
    }

    fn path(&self, name: &str) -> String {
        let path = self.directory.path().join(name);
        path.to_str().expect("a path in UTF-8").to_owned()
    }
}

/// A URI or a DNS name.
pub(crate) fn san(name: &str) -> SanType {
    let text = name.try_into().expect("a name in ASCII");
    match name.contains("://") {
        true => SanType::URI(text),
        false => SanType::DnsName(text),
    }
}

fn expire(params: &mut CertificateParams) {
    params.not_before = rcgen::date_time_ymd(2001, 1, 1);
    params.not_after = rcgen::date_time_ymd(2002, 1, 1);
}

/// The default subject is the same for all: a certificate would seem to be its own issuer.
fn set_subject(params: &mut CertificateParams, name: &str) {
    params.distinguished_name.push(DnType::CommonName, name);
}
