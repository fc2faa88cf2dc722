//! The cryptography of tokens, which the library for them leaves to `ring`: the verification of signatures, and nothing
//! else. This process signs no token.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes the library verify with `ring`, in the whole process.
pub(super) fn install() {
    // It fails if it was installed before, which is by this function: nothing else in the process has tokens.
    let _ = PROVIDER.install_default();
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(new_error(ErrorKind::InvalidAlgorithm));
    }
    Ok(Box::new(RingVerifier {
        algorithm: *algorithm,
        key: key.clone(),
    }))
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let verified = match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let parameters = rsa(self.algorithm).ok_or_else(Error::new)?;
                // Some issuers write the modulus with a zero in front, which `ring` does not take.
                let n = &n[n.iter().take_while(|byte| **byte == 0).count()..];
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            DecodingKeyKind::SecretOrDer(key) => {
                let algorithm = elliptic(self.algorithm).ok_or_else(Error::new)?;
                UnparsedPublicKey::new(algorithm, key).verify(message, signature)
            }
        };
        verified.map_err(|_| Error::new())
    }
}

/// Keys of less than 2,048 bits are refused (RFC 7518, 3.3).
fn rsa(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    let parameters = [
        (Algorithm::RS256, &signature::RSA_PKCS1_2048_8192_SHA256),
        (Algorithm::RS384, &signature::RSA_PKCS1_2048_8192_SHA384),
        (Algorithm::RS512, &signature::RSA_PKCS1_2048_8192_SHA512),
        (Algorithm::PS256, &signature::RSA_PSS_2048_8192_SHA256),
    ];
    let mut parameters = parameters.into_iter();
    parameters.find_map(|(of, parameters)| (of == algorithm).then_some(parameters))
}

fn elliptic(algorithm: Algorithm) -> Option<&'static dyn signature::VerificationAlgorithm> {
    if algorithm == Algorithm::ES256 {
        Some(&signature::ECDSA_P256_SHA256_FIXED)
    } else if algorithm == Algorithm::ES384 {
        Some(&signature::ECDSA_P384_SHA384_FIXED)
    } else if algorithm == Algorithm::EdDSA {
        Some(&signature::ED25519)
    } else {
        None
    }
}
