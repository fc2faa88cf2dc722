//! The public keys of the issuer of tokens, in a JSON Web Key Set (RFC 7517). Only what can verify a signature with an
//! accepted algorithm is taken.

use std::path::Path;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use serde::Deserialize;
use serde_json::Value;

use super::key_hash::KeyHash;
use super::secret;

/// The longest key set, in bytes. A key takes some 400 bytes, and one with its certificates a few thousand.
const JWKS_BYTES_MAX: usize = 256 * 1024;
/// How many keys a set may have. Each token may be compared with all of them.
const KEYS_MAX: usize = 100;

/// A key of the issuer.
#[derive(Debug, Clone)]
pub struct SigningKey {
    /// Its name, which tokens refer to.
    pub id: Option<String>,
    /// The accepted algorithms that it may be used with. A key is never used with one of another kind (RFC 8725, 3.1).
    pub algorithms: Vec<Algorithm>,
    /// The key itself.
    pub key: DecodingKey,
    /// The hash of the key itself.
    hash: KeyHash,
}

impl PartialEq for SigningKey {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.algorithms == other.algorithms && self.hash == other.hash
    }
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// Reads a key set from its file when the process starts.
///
/// # Errors
/// One line that says what is wrong with the file. One without a key is an error here, because no token could be valid.
pub(super) fn read(path: &Path, algorithms: &[Algorithm]) -> Result<Vec<SigningKey>, String> {
    let keys = SigningKey::reread(path, algorithms)?;
    if keys.is_empty() {
        let shown = path.display();
        return Err(format!(
            "{shown}: has no key for the algorithms in jwt.algorithms"
        ));
    }
    Ok(keys)
}

impl SigningKey {
    /// Reads a key set from its file again. There is no key if the issuer has withdrawn all of them.
    ///
    /// # Errors
    /// One line that says what is wrong with the file.
    pub fn reread(path: &Path, algorithms: &[Algorithm]) -> Result<Vec<Self>, String> {
        let contents = secret::bounded(path, JWKS_BYTES_MAX as u64)?;
        let keys = Self::all_in(&contents, algorithms);
        keys.map_err(|problem| format!("{}: {problem}", path.display()))
    }

    /// The keys of a key set for these algorithms. Others are left out: sets have keys for encryption and of future kinds
    /// too (RFC 7517, 5).
    ///
    /// # Errors
    /// It is not a key set, or is too large.
    pub fn all_in(text: &[u8], algorithms: &[Algorithm]) -> Result<Vec<Self>, String> {
        if text.len() > JWKS_BYTES_MAX {
            return Err(format!("has more than {JWKS_BYTES_MAX} bytes"));
        }
        // The error of the parser is left out: it may quote what was answered instead of a key set.
        let set: KeySet = serde_json::from_slice(text)
            .map_err(|_| "is not a JSON Web Key Set, like {\"keys\":[…]}".to_owned())?;
        if set.keys.len() > KEYS_MAX {
            return Err(format!("has more than {KEYS_MAX} keys"));
        }
        let keys = set.keys.into_iter();
        Ok(keys
            .filter_map(|key| Self::parse(key, algorithms))
            .collect())
    }

    fn parse(key: Value, accepted: &[Algorithm]) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(key).ok()?;
        let (common, parameters) = (&jwk.common, &jwk.algorithm);
        let is_for_signatures =
            matches!(common.public_key_use, None | Some(PublicKeyUse::Signature));
        let operations = common.key_operations.as_deref();
        let may_verify = operations.is_none_or(|all| all.contains(&KeyOperations::Verify));
        if !is_for_signatures || !may_verify {
            return None;
        }
        // A key with an algorithm of its own is for this one alone.
        let named = match common.key_algorithm {
            Some(named) => Some(Algorithm::try_from(named).ok()?),
            None => None,
        };
        let fits = |algorithm: &&Algorithm| {
            is_of_kind(parameters, **algorithm) && named.is_none_or(|named| named == **algorithm)
        };
        let algorithms: Vec<_> = accepted.iter().filter(fits).copied().collect();
        let decoding = DecodingKey::from_jwk(&jwk).ok()?;
        (!algorithms.is_empty()).then(|| Self {
            id: common.key_id.clone(),
            algorithms,
            hash: hash_of(&decoding),
            key: decoding,
        })
    }
}

fn is_of_kind(parameters: &AlgorithmParameters, algorithm: Algorithm) -> bool {
    use AlgorithmParameters as Parameters;
    if let Parameters::RSA(_) = parameters {
        algorithm.family() == AlgorithmFamily::Rsa
    } else if let Parameters::EllipticCurve(key) = parameters {
        matches!(
            (&key.curve, algorithm),
            (EllipticCurve::P256, Algorithm::ES256) | (EllipticCurve::P384, Algorithm::ES384)
        )
    } else if let Parameters::OctetKeyPair(key) = parameters {
        key.curve == EllipticCurve::Ed25519 && algorithm == Algorithm::EdDSA
    } else {
        // Above all no symmetric key, whatever the configuration says.
        false
    }
}

fn hash_of(key: &DecodingKey) -> KeyHash {
    match key.kind() {
        DecodingKeyKind::SecretOrDer(bytes) => KeyHash::of(bytes),
        DecodingKeyKind::RsaModulusExponent { n, e } => {
            KeyHash::of(&[n.as_slice(), e.as_slice()].concat())
        }
    }
}
