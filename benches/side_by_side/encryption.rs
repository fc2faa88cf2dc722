//! TLS of a measured service and of its clients: certificates of their own, and the flags and the configuration for them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use leasehold::config::TlsIdentity;
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

use crate::certificates::Authority;

/// What the client is called in its certificate.
const CLIENT: &str = "spiffe://bench/client";

/// The files of a service, and what its clients know of it.
pub(crate) struct Encryption {
    directory: PathBuf,
    certificate: CertificateDer<'static>,
    clients: Option<(Authority, TlsIdentity)>,
}

impl Encryption {
    /// A service whose key is one of ECDSA P-256. All files are in this directory, which has to stay.
    pub(crate) fn with_ecdsa(directory: &Path) -> Self {
        Self::new(directory, &KeyPair::generate().unwrap())
    }

    /// The same with a key of RSA 2048.
    pub(crate) fn with_rsa(directory: &Path) -> Self {
        let mut openssl = Command::new("openssl");
        openssl.args(["genpkey", "-algorithm", "RSA", "-quiet"]);
        let output = openssl.args(["-pkeyopt", "rsa_keygen_bits:2048"]).output();
        let pem = String::from_utf8(output.expect("openssl is installed").stdout).unwrap();
        Self::new(directory, &KeyPair::from_pem(&pem).unwrap())
    }

    fn new(directory: &Path, key: &KeyPair) -> Self {
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.self_signed(key).unwrap();
        let encryption = Self {
            directory: directory.to_owned(),
            certificate: certificate.der().clone(),
            clients: None,
        };
        encryption.write("certificate.pem", &certificate.pem());
        encryption.write("key.pem", &key.serialize_pem());
        encryption
    }

    /// The same, and every client shows a certificate, by which it is a principal that may acquire everything.
    pub(crate) fn and_of_clients(mut self) -> Self {
        let authority = Authority::new();
        let identity = authority.client(CLIENT);
        self.clients = Some((authority, identity));
        self.write(
            "keys.toml",
            &format!(
                "[principals.client]\ncertificates = [\"{CLIENT}\"]\n\
                 rules = [{{ prefix = \"\", verbs = [\"acquire\"] }}]\n"
            ),
        );
        self
    }

    /// The flags of the service.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut flags = vec![
            "--server-tls-cert-file".to_owned(),
            self.path("certificate.pem"),
            "--server-tls-key-file".to_owned(),
            self.path("key.pem"),
        ];
        if let Some((authority, _)) = &self.clients {
            flags.extend([
                "--server-tls-client-ca-file".to_owned(),
                authority.file(),
                "--server-tls-client-certificate".to_owned(),
                "required".to_owned(),
                "--auth-keys-file".to_owned(),
                self.path("keys.toml"),
            ]);
        }
        flags
    }

    /// TLS of a client.
    pub(crate) fn client_config(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match &self.clients {
            None => config.with_no_client_auth(),
            Some((_, own)) => config
                .with_client_auth_cert(own.chain.clone(), own.key.clone_key())
                .unwrap(),
        })
    }

    fn write(&self, name: &str, contents: &str) {
        std::fs::write(self.path(name), contents).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}
