//! What servers do all the time, done once with a lock of its own: it needs every right.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::Diagnosis;
use crate::config::{Config, StoreUrl};
use crate::domain::{
    Acquired, Attempt, Claim, LockName, LockNames, Mode, QueueRequest, Refused, Share,
    SuspendOptions, Token, Ttl, duration,
};
use crate::store::redis::RedisStore;
use crate::store::{Deadlines, Fault, ListQuery, LockStore, StoreError};

/// How often the latency is measured, and for how long at most: the locks must still be held.
const SAMPLES: usize = 11;
const SAMPLED_FOR: Duration = Duration::from_secs(1);
/// From here on a request may still be executed after it was answered that its outcome is unknown.
const LATENCY_MAX: Duration = Duration::from_millis(50);
/// How long counting the locks may take.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest TTL of the lock that is tried: after a loss, new grants wait for the longest one in use.
const TRIAL_TTL_MAX: Duration = Duration::from_secs(3);

/// What was found with one lock, or with one in each part of a cluster, so that every primary takes part.
pub(super) async fn of(
    store: &Arc<dyn LockStore>,
    config: &Config,
) -> Result<Vec<Diagnosis>, StoreError> {
    let trial = Trial::new(&**store, config);
    let found = trial.run().await;
    let is_permission = |error: &StoreError| error.fault() == Fault::Permission;
    if found.as_ref().is_err_and(is_permission) {
        // A script that was stopped in the middle may have left keys without a TTL.
        let _ = trial.release().await;
    }
    found
}

struct Trial<'a> {
    store: &'a dyn LockStore,
    config: &'a Config,
    /// How the names of the locks begin.
    beginning: String,
    /// What the locks are called in the finding.
    tried: &'static str,
    /// The claim that is granted the locks first.
    holder: Claim,
    /// The claim that waits for them meanwhile.
    waiter: Claim,
}

impl<'a> Trial<'a> {
    fn new(store: &'a dyn LockStore, config: &'a Config) -> Self {
        let token = Token::random();
        let beginning = format!("leasehold-doctor/{}", token.expose());
        let (names, tried) = match &config.store {
            StoreUrl::Cluster(_) => (
                RedisStore::lock_in_each_partition(&format!("{beginning}/")),
                "a lock in each part of the cluster",
            ),
            StoreUrl::Memory
            | StoreUrl::File(_)
            | StoreUrl::Redis(_)
            | StoreUrl::Sentinel(_)
            | StoreUrl::Quorum(_) => {
                let name = LockName::parse(beginning.as_bytes());
                let name = name.expect("a word and a UUID make a name");
                (vec![name], "a lock")
            }
        };
        let names = LockNames::several(names).expect("as many as a claim may have");
        let ttl = config.lease.default_ttl().get().min(TRIAL_TTL_MAX);
        let ttl = Ttl::from_store(ttl);
        Self {
            store,
            config,
            beginning,
            tried,
            holder: Claim::plain(names.clone(), token, ttl),
            waiter: Claim::plain(names, Token::random(), ttl),
        }
    }

    async fn run(&self) -> Result<Vec<Diagnosis>, StoreError> {
        self.grant_each().await?;
        let acquired = self.acquire(&self.holder).await?;
        let is_granted = matches!(acquired, Acquired::Granted(_));
        if is_granted {
            self.hand_over().await?;
        }
        let latencies = self.latencies().await?;
        self.release().await?;
        if is_granted {
            self.share().await?;
        }
        // Counting is broken off in a store with very many locks.
        let _ = tokio::time::timeout(COUNT_TIMEOUT, self.store.sweep()).await;
        let health = self.store.health();
        let locks = match health.held_locks {
            Some(count) => format!("{count} locks are held"),
            None => "there are too many locks to count them here".to_owned(),
        };
        let is_explained = health.findings.iter().any(|finding| !finding.is_fine);
        Ok(vec![
            self.rights(&acquired),
            latency(latencies, is_explained),
            Diagnosis::fine("locks", locks),
        ])
    }

    fn rights(&self, acquired: &Acquired) -> Diagnosis {
        if let Acquired::Granted(_) = acquired {
            let tried = self.tried;
            let text = format!(
                "{tried} could be acquired, waited for, read, released, shared, listed and evicted"
            );
            Diagnosis::fine("rights", text)
        } else if let Acquired::Refused(Refused::Recovering { retry_in }) = acquired {
            let left = duration::format(Duration::from_secs(retry_in.as_secs() + 1));
            let text =
                format!("the data may have been lost, so new grants wait for another {left}");
            Diagnosis::warning("grants", text)
        } else {
            Diagnosis::warning("rights", "a lock that nobody uses could not be acquired")
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.config.operation_timeout
    }

    fn deadlines(&self) -> Deadlines {
        Deadlines {
            step: self.config.operation_timeout,
            end: self.deadline(),
        }
    }

    async fn acquire(&self, claim: &Claim) -> Result<Acquired, StoreError> {
        let acquiring = self
            .store
            .acquire(claim, Attempt::random(), None, self.deadline());
        acquiring.await
    }

    /// Has each lock granted by itself, and released: that takes a shorter way than several at once.
    async fn grant_each(&self) -> Result<(), StoreError> {
        let granting = self.holder.names.iter().map(async |name| {
            let claim = Claim {
                names: name.clone().into(),
                token: Token::random(),
                ..self.holder.clone()
            };
            let acquired = self.acquire(&claim).await;
            // Whatever was answered: a script may have been stopped in the middle.
            let releasing = (self.store).release(&claim.names, claim.token, None, self.deadline());
            releasing.await.and(acquired)
        });
        let granted: Result<Vec<_>, _> = join_all(granting).await.into_iter().collect();
        granted.map(drop)
    }

    /// Has the waiter wait, leave its place and come back, looks at it meanwhile, and hands the locks over to it. Each step
    /// needs rights that no other one does.
    async fn hand_over(&self) -> Result<(), StoreError> {
        let (store, holder, waiter) = (self.store, &self.holder, &self.waiter);
        let (attempt, mut request) = (Attempt::random(), self.queue_request());
        self.poll(attempt, &mut request).await?;
        let options = SuspendOptions {
            keep: self.config.operation_timeout,
            lists_conflicts: true,
        };
        store.suspend(waiter, options, self.deadline()).await?;
        // Once to return to the queue, and once from there.
        self.poll(attempt, &mut request).await?;
        self.poll(attempt, &mut request).await?;
        for name in waiter.names.iter() {
            store.inspect(name, self.deadline()).await?;
        }
        let releasing = store.release(&holder.names, holder.token, None, self.deadline());
        releasing.await?;
        self.poll(attempt, &mut request).await
    }

    fn queue_request(&self) -> QueueRequest {
        let Config {
            operation_timeout,
            waiting,
            ..
        } = self.config;
        QueueRequest {
            ticket: None,
            age: Duration::ZERO,
            wait: *operation_timeout,
            execute_within: *operation_timeout,
            place_kept: Duration::ZERO,
            poll_interval: waiting.poll_interval,
            waiters_max: waiting.waiters_per_lock_max,
            wants_position: true,
            is_head: true,
            takes_over: false,
        }
    }

    /// Lets the waiter ask for the locks, from its place if it has one.
    async fn poll(&self, attempt: Attempt, request: &mut QueueRequest) -> Result<(), StoreError> {
        let polling = self
            .store
            .acquire(&self.waiter, attempt, Some(&*request), self.deadline());
        if let Acquired::Waiting(waiting) = polling.await? {
            request.ticket = Some(waiting.ticket);
        }
        Ok(())
    }

    async fn latencies(&self) -> Result<Vec<Duration>, StoreError> {
        let names = &self.holder.names;
        let (samples, all_began) = (names.iter().count().max(SAMPLES), Instant::now());
        let mut latencies = Vec::new();
        for name in names.iter().cycle().take(samples) {
            let began = Instant::now();
            self.store.inspect(name, self.deadline()).await?;
            latencies.push(began.elapsed());
            if all_began.elapsed() >= SAMPLED_FOR {
                break;
            }
        }
        Ok(latencies)
    }

    /// Ends both claims, wherever the trial has come to.
    async fn release(&self) -> Result<(), StoreError> {
        for claim in [&self.waiter, &self.holder] {
            let releasing = self
                .store
                .release(&claim.names, claim.token, None, self.deadline());
            releasing.await?;
        }
        Ok(())
    }

    /// Has two claims share the locks, lists them and evicts both claims, which needs yet other rights.
    async fn share(&self) -> Result<(), StoreError> {
        for _ in 0..2 {
            let claim = Claim {
                mode: Mode::Shared(Share::READ),
                token: Token::random(),
                ..self.holder.clone()
            };
            self.acquire(&claim).await?;
        }
        let query = ListQuery {
            prefix: self.beginning.clone(),
            within: None,
            after: None,
            snapshot: None,
            page_size: 2,
        };
        // A store with very many keys does not list them in time.
        let listed = self.store.list(&query, self.deadlines()).await;
        if let Some(error) = listed
            .err()
            .filter(|error| error.fault() == Fault::Permission)
        {
            return Err(error);
        }
        for name in self.holder.names.iter() {
            let evicting = self.store.evict(name, "leasehold doctor", self.deadlines());
            evicting.await?;
        }
        Ok(())
    }
}

/// Whoever reads that the store is slow is advised to move it only if no other finding may be the reason.
fn latency(mut latencies: Vec<Duration>, is_explained: bool) -> Diagnosis {
    latencies.sort();
    let [fastest, median] = [latencies[0], latencies[latencies.len() / 2]];
    let millis = |latency: Duration| latency.as_secs_f64() * 1000.0;
    let text = format!(
        "an operation takes {:.1} ms, the fastest took {:.1} ms",
        millis(median),
        millis(fastest)
    );
    match (fastest < LATENCY_MAX, is_explained) {
        (true, _) => Diagnosis::fine("latency", text),
        (false, true) => Diagnosis::warning("latency", text),
        (false, false) => Diagnosis::warning(
            "latency",
            format!("{text}; run the server nearer to the store"),
        ),
    }
}
