//! Rereads keys from their files while the service runs, so that a key can be replaced without a restart. What each key
//! allows is decided in `http`.

use std::convert::Infallible;
use std::time::Duration;

use super::rereads::RereadCounts;
use crate::config::Keys;
use crate::http::{Audit, KeyRing, Role};
use crate::server::shutdown::ReloadSignals;

/// The ring with these keys.
pub(super) fn ring(keys: &Keys) -> KeyRing {
    let ring = KeyRing::new(roles(keys));
    replace(&ring, keys);
    ring
}

fn replace(ring: &KeyRing, keys: &Keys) {
    let principals = keys.file.as_ref().map(|file| file.principals.as_slice());
    ring.replace_all(roles(keys), principals.unwrap_or_default());
}

/// The keys with their roles, as `http` expects them.
fn roles(keys: &Keys) -> impl Iterator<Item = (Role, &str)> {
    let keys = [
        (Role::Client, keys.api.as_ref()),
        (Role::Client, keys.api_next.as_ref()),
        (Role::Admin, keys.admin.as_ref()),
        (Role::Reader, keys.read.as_ref()),
    ];
    keys.into_iter()
        .filter_map(|(role, key)| Some((role, key?.secret.expose())))
}

/// Keeps the key ring equal to the files, for as long as the service runs: rereads them at intervals, and at SIGHUP at
/// once. Keys that cannot be used change nothing, so that a half-written file locks out no client.
///
/// It rereads the contents instead of checking modification times: Kubernetes mounts Secrets as symbolic links that it
/// swaps, and keys are short.
pub(super) async fn follow(
    keys: Keys,
    ring: KeyRing,
    interval: Duration,
    counts: RereadCounts,
    audit: Audit,
    mut reloads: ReloadSignals,
) -> Infallible {
    if !keys.are_from_files() {
        return std::future::pending().await;
    }
    let mut follower = Follower {
        keys,
        ring,
        counts,
        audit,
        last_problem: None,
    };
    loop {
        let is_asked = tokio::select! {
            () = tokio::time::sleep(interval) => false,
            () = reloads.next() => true,
        };
        follower.reread(is_asked).await;
    }
}

struct Follower {
    keys: Keys,
    ring: KeyRing,
    counts: RereadCounts,
    audit: Audit,
    /// The problem that has been reported. It is reported again only after SIGHUP, or after it has changed.
    last_problem: Option<String>,
}

impl Follower {
    async fn reread(&mut self, is_asked: bool) {
        let known = self.keys.clone();
        // On a blocking thread: the files may be on a network file system.
        let reread = tokio::task::spawn_blocking(move || known.reread()).await;
        match reread.unwrap_or_else(|panic| Err(panic.to_string())) {
            Ok(reread) => self.take(reread, is_asked),
            Err(problem) => self.report(problem, is_asked),
        }
    }

    fn take(&mut self, keys: Keys, is_asked: bool) {
        self.last_problem = None;
        self.ring.set_outdated(false);
        if keys != self.keys {
            replace(&self.ring, &keys);
            self.keys = keys;
            self.counts.replaced();
            self.audit.keys_changed(true);
            tracing::info!("API keys reloaded: they have changed");
        } else if is_asked {
            tracing::info!("API keys reread: they have not changed");
        }
    }

    fn report(&mut self, problem: String, is_asked: bool) {
        self.ring.set_outdated(true);
        let is_new = self.last_problem.as_ref() != Some(&problem);
        if is_new {
            self.counts.failed();
            self.audit.keys_changed(false);
        }
        if is_new || is_asked {
            tracing::warn!(
                problem,
                "cannot reload the API keys; the previous keys stay valid"
            );
        }
        self.last_problem = Some(problem);
    }
}
