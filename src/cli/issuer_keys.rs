//! Reads the keys of the issuer of tokens again and again, from their file or their URL. What they verify is decided in
//! `http`.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::StatusCode;
use jsonwebtoken::Algorithm;

use super::rereads::RereadCounts;
use crate::client::{Call, Client, ServiceUrl};
use crate::config::{ClientKey, JwksSource, JwtConfig, SigningKey};
use crate::http::{Audit, IssuerKeys, TokenVerifier};
use crate::server::shutdown::ReloadSignals;

/// How long a fetch may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a fetch that failed is repeated.
const RETRY: Duration = Duration::from_secs(10);

/// What verifies the tokens that the configuration describes. The keys from a URL are fetched later, because the service is
/// of use without them.
pub(super) fn verifier(config: &JwtConfig) -> TokenVerifier {
    let keys = match &config.source {
        JwksSource::File { keys, .. } => keys.clone(),
        JwksSource::Url { .. } => Vec::new(),
    };
    TokenVerifier::new(config, keys)
}

/// Reads the keys for as long as the service runs: at intervals, at SIGHUP, and when a token refers to an unknown key. Keys
/// that cannot be read change nothing, until those of before are too old.
pub(super) async fn follow(
    config: JwtConfig,
    keys: &IssuerKeys,
    reread_interval: Duration,
    counts: RereadCounts,
    audit: Audit,
    mut reloads: ReloadSignals,
) -> Infallible {
    let interval = match &config.source {
        JwksSource::File { .. } => reread_interval,
        JwksSource::Url { .. } => config.refresh,
    };
    let mut follower = Follower {
        known: match &config.source {
            JwksSource::File { keys, .. } => Some(keys.clone()),
            JwksSource::Url { .. } => None,
        },
        config,
        keys,
        counts,
        audit,
        last_problem: None,
    };
    loop {
        // The first time at once: keys from a URL are not known yet.
        let is_read = follower.read().await;
        let next = match is_read {
            true => interval,
            false => interval.min(RETRY),
        };
        follower.wait(next, &mut reloads).await;
    }
}

struct Follower<'a> {
    config: JwtConfig,
    keys: &'a IssuerKeys,
    counts: RereadCounts,
    audit: Audit,
    /// The keys that were read the last time.
    known: Option<Vec<SigningKey>>,
    /// The problem that has been reported.
    last_problem: Option<String>,
}

impl Follower<'_> {
    /// Waits until the keys have to be read again, and drops those that become too old meanwhile.
    async fn wait(&self, next: Duration, reloads: &mut ReloadSignals) {
        let mut next = std::pin::pin!(tokio::time::sleep(next));
        loop {
            let stale = async {
                match self.keys.stale_after() {
                    Some(left) => tokio::time::sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut next => return,
                () = reloads.next() => return,
                () = self.keys.wanted() => return,
                () = stale => self.drop_stale(),
            }
        }
    }

    /// Returns whether the keys could be read.
    async fn read(&mut self) -> bool {
        match fetch(&self.config).await {
            Ok(keys) => {
                self.keys.replace(keys.clone());
                self.last_problem = None;
                if self.known.as_ref() != Some(&keys) {
                    let count = keys.len();
                    self.counts.replaced.increment(1);
                    self.audit.keys_changed(true);
                    tracing::info!(
                        keys = count,
                        "keys of the issuer of tokens read: they are new or have changed"
                    );
                    self.known = Some(keys);
                }
                true
            }
            Err(problem) => {
                self.keys.keep();
                if self.last_problem.as_ref() != Some(&problem) {
                    self.counts.failed.increment(1);
                    self.audit.keys_changed(false);
                    tracing::warn!(
                        problem,
                        "cannot read the keys of the issuer of tokens; those of before are used until jwt.jwks_stale_max"
                    );
                    self.last_problem = Some(problem);
                }
                self.drop_stale();
                false
            }
        }
    }

    fn drop_stale(&self) {
        if self.keys.drop_stale() {
            tracing::error!(
                "the keys of the issuer of tokens are older than jwt.jwks_stale_max and no longer used; all tokens are refused"
            );
        }
    }
}

async fn fetch(config: &JwtConfig) -> Result<Vec<SigningKey>, String> {
    let algorithms = config.algorithms.clone();
    match &config.source {
        JwksSource::File { path, .. } => {
            let path = path.clone();
            // On a blocking thread: the file may be on a network file system.
            let read = tokio::task::spawn_blocking(move || SigningKey::reread(&path, &algorithms));
            read.await.unwrap_or_else(|panic| Err(panic.to_string()))
        }
        JwksSource::Url {
            url,
            authorities,
            token,
        } => {
            let parsed = ServiceUrl::parse(url)?;
            let key = token.as_deref().map(sent_token).transpose()?;
            let client = Client::new(parsed, key, authorities.as_deref())?;
            let keys = fetch_with(client, &algorithms).await;
            keys.map_err(|problem| format!("{url}: {problem}"))
        }
    }
}

fn sent_token(file: &Path) -> Result<ClientKey, String> {
    ClientKey::from_file(PathBuf::from(file))
}

/// Fetches the keys over a connection of its own. Redirections are not followed: the URL that is configured is trusted, and
/// no other.
async fn fetch_with(
    mut client: Client,
    algorithms: &[Algorithm],
) -> Result<Vec<SigningKey>, String> {
    let answer = client.send(&Call::get(String::new()), FETCH_TIMEOUT).await;
    let answer = answer.map_err(|error| error.to_string())?;
    if answer.status != StatusCode::OK {
        return Err(format!("the answer is {}", answer.status));
    }
    SigningKey::all_in(&answer.text, algorithms)
}
