//! Reads the keys of the issuer of tokens again and again, from their file or their URL. `http` verifies tokens with
//! them.

use std::convert::Infallible;
use std::time::Duration;

use hyper::StatusCode;
use jsonwebtoken::Algorithm;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::rereads::RereadCounts;
use crate::client::{Call, Client, ServiceUrl};
use crate::config::{ClientKey, JwksSource, JwtConfig, SigningKey, SigningKeys};
use crate::http::{Audit, IssuerKeys, KeysState, TokenVerifier};
use crate::server::shutdown::ReloadSignals;

/// How long a fetch may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long files may take, which may be on a network file system.
const FILES_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a fetch that failed is repeated.
const RETRY: Duration = Duration::from_secs(10);

/// The verifier of the tokens that the configuration describes. Keys from a URL are fetched later, because the service
/// works without them.
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
    let mut follower = IssuerFollower {
        known: match &config.source {
            JwksSource::File { keys, .. } => Some(keys.clone()),
            JwksSource::Url { .. } => None,
        },
        config,
        keys,
        counts,
        audit,
        last_reasons: None,
        last_problem: None,
        preparing: None,
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

struct IssuerFollower<'a> {
    config: JwtConfig,
    keys: &'a IssuerKeys,
    counts: RereadCounts,
    audit: Audit,
    /// The keys that were read the last time.
    known: Option<Vec<SigningKey>>,
    /// Why keys are left out, as it has been reported.
    last_reasons: Option<String>,
    /// The problem that has been reported.
    last_problem: Option<String>,
    /// The last use of files, which may hang beyond its time.
    preparing: Option<JoinHandle<Result<Prepared, String>>>,
}

/// What the files have that are read for each reading of the keys.
enum Prepared {
    Keys(SigningKeys),
    Client(Box<Client>),
}

impl IssuerFollower<'_> {
    /// Waits until the keys have to be read again, and drops those that become too old meanwhile.
    async fn wait(&self, next: Duration, reloads: &mut ReloadSignals) {
        tokio::select! {
            () = tokio::time::sleep(next) => {}
            () = reloads.next() => {}
            () = self.keys.wanted() => {}
            never = drop_stale_in_time(self.keys) => match never {},
        }
    }

    /// Returns whether there are keys that could be read.
    async fn read(&mut self) -> bool {
        let keys = self.keys;
        keys.begin();
        let fetched = tokio::select! {
            fetched = self.fetch() => fetched,
            // Reading takes its time when the issuer is away, which is when keys become too old.
            never = drop_stale_in_time(keys) => match never {},
        };
        match fetched {
            Ok(set) => {
                let reasons = set.reasons();
                if let Some(reasons) = &reasons
                    && self.last_reasons.as_ref() != Some(reasons)
                {
                    tracing::warn!("keys of the issuer of tokens are left out: {reasons}");
                }
                self.last_reasons = reasons;
                let keys = set.keys;
                self.keys.replace(keys.clone());
                self.last_problem = None;
                let count = keys.len();
                if self.known.as_ref() != Some(&keys) {
                    self.counts.replaced();
                    self.audit.keys_changed(true);
                    match count {
                        0 => tracing::error!(
                            "the issuer of tokens has no key for the algorithms in jwt.algorithms; all tokens are refused"
                        ),
                        _ => tracing::info!(
                            keys = count,
                            "keys of the issuer of tokens read: they are new or have changed"
                        ),
                    }
                    self.known = Some(keys);
                }
                count > 0
            }
            Err(problem) => {
                self.keys.keep();
                if self.last_problem.as_ref() != Some(&problem) {
                    self.counts.failed();
                    self.audit.keys_changed(false);
                    if self.keys.current_state() == KeysState::Unknown {
                        tracing::error!(
                            problem,
                            "cannot read the keys of the issuer of tokens, and none are known; all tokens are refused"
                        );
                    } else {
                        tracing::warn!(
                            problem,
                            "cannot read the keys of the issuer of tokens; those of before are used until jwt.jwks_stale_max"
                        );
                    }
                    self.last_problem = Some(problem);
                }
                drop_stale(self.keys);
                false
            }
        }
    }

    async fn fetch(&mut self) -> Result<SigningKeys, String> {
        // Another thread for each attempt would leave many of them behind.
        if self
            .preparing
            .as_ref()
            .is_some_and(|last| !last.is_finished())
        {
            return Err("reading files has not ended since the last time".to_owned());
        }
        let JwtConfig {
            source, algorithms, ..
        } = self.config.clone();
        // On a blocking thread: files may be on a network file system, and the authorities of the system are many.
        let prepare = tokio::task::spawn_blocking(move || prepare(&source, &algorithms));
        let prepared = timeout(FILES_TIMEOUT, self.preparing.insert(prepare)).await;
        let prepared = prepared.map_err(|_| "reading files takes too long".to_owned())?;
        match prepared.unwrap_or_else(|panic| Err(panic.to_string()))? {
            Prepared::Keys(keys) => Ok(keys),
            Prepared::Client(client) => {
                let url = client.url().to_string();
                let keys = fetch_with(*client, &self.config.algorithms).await;
                keys.map_err(|problem| format!("{url}: {problem}"))
            }
        }
    }
}

/// Drops the keys when they become too old, for as long as this is polled.
async fn drop_stale_in_time(keys: &IssuerKeys) -> Infallible {
    loop {
        match keys.stale_after() {
            Some(left) => tokio::time::sleep(left).await,
            None => std::future::pending::<()>().await,
        }
        drop_stale(keys);
    }
}

fn drop_stale(keys: &IssuerKeys) {
    if keys.drop_stale() {
        tracing::error!(
            "the keys of the issuer of tokens are older than jwt.jwks_stale_max and no longer used; all tokens are refused"
        );
    }
}

fn prepare(source: &JwksSource, algorithms: &[Algorithm]) -> Result<Prepared, String> {
    match source {
        JwksSource::File { path, .. } => SigningKey::reread(path, algorithms).map(Prepared::Keys),
        JwksSource::Url {
            url,
            authorities,
            token,
        } => {
            let parsed = ServiceUrl::parse(url)?;
            let key = token.clone().map(ClientKey::from_file).transpose()?;
            // It has just been read. The client would read it once more, on the thread that accepts connections.
            let key = key.map(ClientKey::as_read);
            let client = Client::new(parsed, key, authorities.as_deref(), None)?;
            Ok(Prepared::Client(Box::new(client)))
        }
    }
}

/// Fetches the keys over a connection of its own. Redirections are not followed: the URL that is configured is trusted, and
/// no other.
async fn fetch_with(mut client: Client, algorithms: &[Algorithm]) -> Result<SigningKeys, String> {
    let answer = client.send(&Call::get(String::new()), FETCH_TIMEOUT).await;
    let answer = answer.map_err(|error| error.explain("jwt.jwks_ca_file"))?;
    if answer.status != StatusCode::OK {
        return Err(format!("the answer is {}", answer.status));
    }
    SigningKey::all_in(&answer.text, algorithms)
}
