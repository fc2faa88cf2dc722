//! An issuer of tokens: its keys, the key sets that it publishes, and what it signs.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD as BASE64, Engine as _};
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RsaKeyPair,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

pub(super) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
pub(super) const AUDIENCE: &str = "leasehold";
pub(super) const WORKER: &str = "system:serviceaccount:team-a:worker";

/// Making such keys takes a while, so all tests share them.
static RSA: LazyLock<[RsaKeyPair; 2]> = LazyLock::new(|| [(); 2].map(|()| new_rsa()));

/// `ring` makes no RSA keys.
fn new_rsa() -> RsaKeyPair {
    let bits = ["-pkeyopt", "rsa_keygen_bits:2048", "-outform", "DER"];
    let made = Command::new("openssl")
        .args(["genpkey", "-algorithm", "RSA"])
        .args(bits)
        .output();
    let made = made.expect("openssl is installed");
    // Older versions write PKCS #1, newer ones PKCS #8.
    let key = RsaKeyPair::from_der(&made.stdout);
    key.or_else(|_| RsaKeyPair::from_pkcs8(&made.stdout))
        .expect("openssl makes a key")
}

/// A private key.
pub(super) enum Signer {
    Rsa(&'static RsaKeyPair),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    pub(super) fn rsa() -> Self {
        Self::Rsa(&RSA[0])
    }

    pub(super) fn other_rsa() -> Self {
        Self::Rsa(&RSA[1])
    }

    pub(super) fn ecdsa() -> Self {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let made = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self::Ecdsa(EcdsaKeyPair::from_pkcs8(algorithm, made.as_ref(), &random).unwrap())
    }

    pub(super) fn ed25519() -> Self {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed25519(Ed25519KeyPair::from_pkcs8(made.as_ref()).unwrap())
    }

    pub(super) fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::Ecdsa(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .unwrap();
                signature
            }
            Self::Ecdsa(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Ed25519(key) => key.sign(message).as_ref().to_vec(),
        }
    }

    /// The public key, as the issuer publishes it.
    pub(super) fn jwk(&self, id: &str) -> Value {
        let common = json!({"kid": id, "use": "sig", "alg": self.algorithm()});
        let mut jwk = match self {
            Self::Rsa(key) => {
                let PublicKeyComponents::<Vec<u8>> { n, e } = key.public().into();
                json!({"kty": "RSA", "n": BASE64.encode(n), "e": BASE64.encode(e)})
            }
            Self::Ecdsa(key) => {
                let point = &key.public_key().as_ref()[1..];
                let (x, y) = point.split_at(32);
                json!({"kty": "EC", "crv": "P-256", "x": BASE64.encode(x), "y": BASE64.encode(y)})
            }
            Self::Ed25519(key) => {
                let x = BASE64.encode(key.public_key().as_ref());
                json!({"kty": "OKP", "crv": "Ed25519", "x": x})
            }
        };
        let members = jwk.as_object_mut().unwrap();
        members.extend(common.as_object().unwrap().clone());
        jwk
    }

    /// A token with this header and these claims, which may be any text.
    pub(super) fn token_of(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
        let signature = self.sign(message.as_bytes());
        format!("{message}.{}", BASE64.encode(signature))
    }

    /// A token with these claims, and the header that Kubernetes writes.
    pub(super) fn token(&self, id: &str, claims: &Value) -> String {
        let header = json!({"alg": self.algorithm(), "kid": id});
        self.token_of(&header.to_string(), &claims.to_string())
    }
}

pub(super) fn key_set(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

pub(super) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs()
}

/// What Kubernetes projects into a pod of this service account, valid for some seconds.
pub(super) fn claims(subject: &str, seconds: u64) -> Value {
    let now = now();
    let name = subject.rsplit(':').next().unwrap();
    json!({
        "aud": [AUDIENCE],
        "exp": now + seconds,
        "iat": now,
        "iss": ISSUER,
        "jti": uuid::Uuid::new_v4(),
        "kubernetes.io": {
            "namespace": "team-a",
            "node": {"name": "node-1", "uid": uuid::Uuid::new_v4()},
            "pod": {"name": "worker-0", "uid": uuid::Uuid::new_v4()},
            "serviceaccount": {"name": name, "uid": uuid::Uuid::new_v4()},
            "warnafter": now + 3_607,
        },
        "nbf": now,
        "sub": subject,
    })
}

/// Publishes a key set at a URL.
pub(super) struct Published {
    pub(super) url: String,
    pub(super) address: SocketAddr,
    /// `None` while it accepts connections and says nothing.
    answer: Arc<Mutex<Option<(u16, String)>>>,
    fetches: Arc<AtomicUsize>,
    last_head: Arc<Mutex<String>>,
    _server: AbortOnDropHandle<()>,
}

impl Published {
    pub(super) async fn new(set: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("http://{address}/jwks");
        let answer = Arc::new(Mutex::new(Some((200, set))));
        let fetches = Arc::new(AtomicUsize::new(0));
        let last_head = Arc::new(Mutex::new(String::new()));
        let (answers, counted) = (Arc::clone(&answer), Arc::clone(&fetches));
        let heads = Arc::clone(&last_head);
        let server = tokio::spawn(async move {
            let mut unanswered = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                match answers.lock().unwrap().clone() {
                    Some((status, body)) => {
                        let answered = answer_with(stream, status, body, Arc::clone(&heads));
                        drop(tokio::spawn(answered));
                    }
                    None => unanswered.push(stream),
                }
            }
        });
        Self {
            url,
            address,
            answer,
            fetches,
            last_head,
            _server: AbortOnDropHandle::new(server),
        }
    }

    pub(super) fn answer(&self, status: u16, body: &str) {
        *self.answer.lock().unwrap() = Some((status, body.to_owned()));
    }

    /// Answers nothing from now on.
    pub(super) fn fall_silent(&self) {
        *self.answer.lock().unwrap() = None;
    }

    /// The head of the last request.
    pub(super) fn last_head(&self) -> String {
        self.last_head.lock().unwrap().clone()
    }

    pub(super) fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }
}

async fn answer_with(
    mut stream: TcpStream,
    status: u16,
    body: String,
    last_head: Arc<Mutex<String>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    *last_head.lock().unwrap() = String::from_utf8(head).unwrap();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let _ = stream.write_all(answer.as_bytes()).await;
}
