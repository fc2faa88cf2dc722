//! The public keys of the issuer of tokens, in a JSON Web Key Set (RFC 7517). Only what can verify a signature with an
//! accepted algorithm is taken.

use std::ops::RangeInclusive;
use std::path::Path;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use serde::Deserialize;
use serde_json::Value;

use super::key_hash::KeyHash;
use super::secret;
use crate::domain::text;

/// The longest key set, in bytes. A key takes some 400 bytes, and one with its certificates a few thousand.
const JWKS_BYTES_MAX: usize = 256 * 1024;
/// How many keys a set may have. Each token may be compared with all of them.
const KEYS_MAX: usize = 100;
/// The length of an RSA key (RFC 7518, 3.3), up to the longest one that signatures are verified with.
const RSA_BITS: RangeInclusive<usize> = 2_048..=8_192;
/// How many of the keys that are left out have a reason in a line of the log.
const REASONS_MAX: usize = 10;
const UNKNOWN_KIND: &str = "is of no known kind, or a part of it is missing";
/// How much of the name of a key is repeated in the log.
const NAME_CHARS_MAX: usize = 64;

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

/// What a key set has for these algorithms.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SigningKeys {
    /// The keys that can verify signatures.
    pub keys: Vec<SigningKey>,
    /// For each of the others, why it is left out.
    left_out: Vec<String>,
}

impl SigningKeys {
    /// Which keys are left out, and why; none if all can be used.
    #[must_use]
    pub fn reasons(&self) -> Option<String> {
        let mut reasons = self
            .left_out
            .iter()
            .take(REASONS_MAX)
            .cloned()
            .collect::<Vec<_>>();
        let further = self.left_out.len() - reasons.len();
        if further > 0 {
            reasons.push(format!("and {further} more"));
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
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
    let set = SigningKey::reread(path, algorithms)?;
    if set.keys.is_empty() {
        let reasons = set.reasons().map(|it| format!(": {it}"));
        return Err(format!(
            "{}: has no key for the algorithms in jwt.algorithms{}",
            path.display(),
            reasons.unwrap_or_default()
        ));
    }
    Ok(set.keys)
}

impl SigningKey {
    /// Reads a key set from its file again. There is no key if the issuer has withdrawn all of them.
    ///
    /// # Errors
    /// One line that says what is wrong with the file.
    pub fn reread(path: &Path, algorithms: &[Algorithm]) -> Result<SigningKeys, String> {
        let contents = secret::bounded(path, JWKS_BYTES_MAX as u64)?;
        let keys = Self::all_in(&contents, algorithms);
        keys.map_err(|problem| format!("{}: {problem}", path.display()))
    }

    /// The keys of a key set for these algorithms. Others are left out: sets have keys for encryption and of future kinds
    /// too (RFC 7517, 5).
    ///
    /// # Errors
    /// It is not a key set, or is too large.
    pub fn all_in(text: &[u8], algorithms: &[Algorithm]) -> Result<SigningKeys, String> {
        if text.len() > JWKS_BYTES_MAX {
            return Err(format!("has more than {JWKS_BYTES_MAX} bytes"));
        }
        // The error of the parser is left out: it may quote what was answered instead of a key set.
        let set: KeySet = serde_json::from_slice(text)
            .map_err(|_| "is not a JSON Web Key Set, like {\"keys\":[…]}".to_owned())?;
        if set.keys.len() > KEYS_MAX {
            return Err(format!("has more than {KEYS_MAX} keys"));
        }
        let mut found = SigningKeys::default();
        for (number, key) in (1..).zip(set.keys) {
            let name = name_of(&key, number);
            match Self::parse(key, algorithms) {
                Ok(key) => found.keys.push(key),
                Err(reason) => found.left_out.push(format!("{name} {reason}")),
            }
        }
        Ok(found)
    }

    /// The error says why the key cannot be used, and is what follows its name.
    fn parse(key: Value, accepted: &[Algorithm]) -> Result<Self, String> {
        let jwk = serde_json::from_value::<Jwk>(key);
        let jwk = jwk.map_err(|_| UNKNOWN_KIND)?;
        let (common, parameters) = (&jwk.common, &jwk.algorithm);
        if let AlgorithmParameters::Other(_) = parameters {
            return Err(UNKNOWN_KIND.to_owned());
        }
        let is_for_signatures =
            matches!(common.public_key_use, None | Some(PublicKeyUse::Signature));
        let operations = common.key_operations.as_deref();
        let may_verify = operations.is_none_or(|all| all.contains(&KeyOperations::Verify));
        if !is_for_signatures {
            return Err("is not for signatures (use)".to_owned());
        }
        if !may_verify {
            return Err("is not for verification (key_ops)".to_owned());
        }
        // A key with an algorithm of its own is for this one alone.
        let named = common.key_algorithm.map(Algorithm::try_from).transpose();
        let named = named.map_err(|_| "is for another algorithm than those of signatures (alg)")?;
        let fits = |algorithm: &&Algorithm| {
            is_of_kind(parameters, **algorithm) && named.is_none_or(|named| named == **algorithm)
        };
        let algorithms: Vec<_> = accepted.iter().filter(fits).copied().collect();
        if algorithms.is_empty() {
            return Err("is for no algorithm in jwt.algorithms".to_owned());
        }
        let decoding = DecodingKey::from_jwk(&jwk);
        let decoding = decoding.map_err(|_| "has numbers that cannot be read")?;
        if let DecodingKeyKind::RsaModulusExponent { n, .. } = decoding.kind()
            && !RSA_BITS.contains(&bits_of(n))
        {
            let (first, last) = RSA_BITS.into_inner();
            return Err(format!(
                "has {} bits; RSA keys need {first} to {last}",
                bits_of(n)
            ));
        }
        Ok(Self {
            id: common.key_id.clone(),
            algorithms,
            hash: hash_of(&decoding),
            key: decoding,
        })
    }
}

/// What a key is called in the log. The issuer may have named it in any way.
fn name_of(key: &Value, number: usize) -> String {
    match key.get("kid").and_then(Value::as_str) {
        Some(id) => {
            let short: String = id.chars().take(NAME_CHARS_MAX).collect();
            format!("key \"{}\"", text::printable(&short))
        }
        None => format!("key number {number}"),
    }
}

/// The length of a number, without zeros in front.
fn bits_of(number: &[u8]) -> usize {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let first = number
        .get(zeros)
        .map_or(0, |byte| byte.leading_zeros() as usize);
    (number.len() - zeros) * 8 - first
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
