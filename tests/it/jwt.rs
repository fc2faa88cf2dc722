//! Clients that are known by a JSON Web Token instead of a key: those of Kubernetes, with the keys of the issuer from a file
//! and from a URL.

mod attacks;
mod issuer;
mod keys;
mod lasting;
mod rate;

use std::fs;
use std::path::PathBuf;

use reqwest::Method;
use serde_json::Value;
use tempfile::TempDir;

use crate::process::Serving;
use issuer::{AUDIENCE, ISSUER, Published, Signer, WORKER, claims, key_set};

/// Two teams with service accounts of their own, and an operator with a key.
const KEYS_FILE: &str = r#"
[principals.team-a]
subjects = ["system:serviceaccount:team-a:worker", "system:serviceaccount:team-a:short"]
bind_owner = true
rules = [{ prefix = "a", verbs = ["acquire", "read", "list"] }]

[principals.team-b]
subjects = ["system:serviceaccount:team-b:worker"]
rules = [{ prefix = "b", verbs = ["acquire"] }, { verbs = ["metrics"] }]
"#;

/// Where the keys of the issuer are.
enum Keys<'a> {
    File(&'a str),
    Url(&'a Published),
}

/// A service that accepts tokens, and the directory with its files.
struct Accepting {
    serving: Serving,
    directory: TempDir,
    client: reqwest::Client,
}

struct JwtAnswer {
    status: u16,
    challenge: String,
    body: Value,
}

impl JwtAnswer {
    fn detail(&self) -> &str {
        self.body["detail"].as_str().unwrap_or_default()
    }
}

impl Accepting {
    fn start(keys: &Keys<'_>, further: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("keys.toml"), KEYS_FILE).unwrap();
        let (flag, place) = match keys {
            Keys::File(set) => {
                fs::write(path("jwks.json"), set).unwrap();
                ("--jwt-jwks-file", path("jwks.json"))
            }
            Keys::Url(published) => ("--jwt-jwks-url", published.url.clone()),
        };
        let (keys_file, audit) = (path("keys.toml"), path("audit"));
        let arguments = [
            "--auth-keys-file",
            &keys_file,
            "--audit-output",
            &audit,
            "--jwt-issuer",
            ISSUER,
            "--jwt-audience",
            AUDIENCE,
            flag,
            &place,
        ];
        // A request waits for keys that are just being read, so nothing has to be waited for here.
        let serving = Serving::start(&[&arguments[..], further].concat());
        Self {
            serving,
            directory,
            client: reqwest::Client::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn send(&self, method: Method, path: &str, token: &str) -> JwtAnswer {
        let url = format!("{}{path}", self.serving.url);
        let request = self.client.request(method, url).bearer_auth(token);
        let answer = request.send().await.unwrap();
        let challenge = answer.headers().get("www-authenticate");
        JwtAnswer {
            status: answer.status().as_u16(),
            challenge: challenge.map_or_else(String::new, |it| it.to_str().unwrap().to_owned()),
            body: serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default(),
        }
    }

    async fn acquire(&self, name: &str, token: &str) -> JwtAnswer {
        self.send(Method::POST, &format!("/locks/{name}"), token)
            .await
    }

    async fn text(&self, path: &str, token: &str) -> String {
        let url = format!("{}{path}", self.serving.url);
        let answer = self
            .client
            .get(url)
            .bearer_auth(token)
            .send()
            .await
            .unwrap();
        answer.text().await.unwrap()
    }
}

/// A token of this service account by the first key of the issuer.
fn worker_token() -> String {
    Signer::rsa().token("1", &claims(WORKER, 600))
}

#[tokio::test]
async fn a_service_account_of_kubernetes_may_do_what_its_principal_may() {
    let set = key_set(&[Signer::rsa().jwk("1")]);
    let published = Published::new(set.clone()).await;
    for keys in [Keys::File(&set), Keys::Url(&published)] {
        let service = Accepting::start(&keys, &[]);
        let worker = worker_token();
        let granted = service.acquire("a/1", &worker).await;
        assert_eq!(granted.status, 201, "{}", granted.body);
        assert_eq!(granted.body["owner"], "team-a");
        let refused = service.acquire("b/1", &worker).await;
        assert_eq!(refused.status, 403, "{}", refused.body);
        assert!(
            refused
                .detail()
                .contains("the principal team-a has no rule")
        );
        let other = claims("system:serviceaccount:team-b:worker", 600);
        let other = Signer::rsa().token("1", &other);
        assert_eq!(service.acquire("b/1", &other).await.status, 201);
        assert_eq!(service.acquire("a/2", &other).await.status, 403);
        // The account of another namespace with the same name.
        let stranger = claims("system:serviceaccount:team-c:worker", 600);
        let stranger = Signer::rsa().token("1", &stranger);
        let unknown = service.acquire("a/1", &stranger).await;
        assert_eq!(unknown.status, 401);
        assert!(
            unknown.detail().contains("no principal"),
            "{}",
            unknown.body
        );
    }
}

#[tokio::test]
async fn each_algorithm_that_is_configured_is_accepted_and_no_other() {
    let signers = [Signer::rsa(), Signer::ecdsa(), Signer::ed25519()];
    let set = key_set(
        &signers
            .each_ref()
            .map(|signer| signer.jwk(signer.algorithm())),
    );
    let algorithms = ["--jwt-algorithms", "EdDSA, ES256"];
    let service = Accepting::start(&Keys::File(&set), &algorithms);
    for (signer, status) in signers.iter().zip([401, 201, 201]) {
        let name = signer.algorithm();
        let token = signer.token(name, &claims(WORKER, 600));
        let answer = service.acquire(&format!("a/{name}"), &token).await;
        assert_eq!(answer.status, status, "{name}: {}", answer.body);
    }
}
