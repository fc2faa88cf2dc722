//! What servers do all the time, done once with a lock of its own: it needs every right.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Diagnosis;
use crate::config::{Config, StoreUrl};
use crate::domain::{
    Acquired, Attempt, Claim, LockName, LockNames, Mode, QueueRequest, Refused, Share, Token, Ttl,
    duration,
};
use crate::store::redis::RedisStore;
use crate::store::{Deadlines, Fault, ListQuery, LockStore, StoreError};

/// How often the latency is measured at least.
const SAMPLES: usize = 11;
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
    let samples: Vec<_> = names
        .iter()
        .cycle()
        .take(names.len().max(SAMPLES))
        .cloned()
        .collect();
    let names = LockNames::several(names).expect("as many as a claim may have");
    let deadline = || Instant::now() + config.operation_timeout;
    let ttl = config.lease.default_ttl().get().min(TRIAL_TTL_MAX);
    let claim = Claim::plain(names.clone(), token, Ttl::from_store(ttl));
    let acquiring = store.acquire(&claim, Attempt::random(), None, deadline());
    let acquired = acquiring.await?;
    let is_granted = matches!(acquired, Acquired::Granted(_));
    let rights = if is_granted {
        wait_behind(store, &claim, config).await?;
        let text = format!(
            "{tried} could be acquired, waited for, read, released, shared, listed and evicted"
        );
        Diagnosis::fine("rights", text)
    } else if let Acquired::Refused(Refused::Recovering { retry_in }) = acquired {
        let left = duration::format(Duration::from_secs(retry_in.as_secs() + 1));
        let text = format!("the data may have been lost, so new grants wait for another {left}");
        Diagnosis::warning("grants", text)
    } else {
        Diagnosis::warning("rights", "a lock that nobody uses could not be acquired")
    };
    let mut latencies = Vec::new();
    for name in &samples {
        let began = Instant::now();
        store.inspect(name, deadline()).await?;
        latencies.push(began.elapsed());
    }
    store.release(&names, token, None, deadline()).await?;
    if is_granted {
        share(store, &beginning, &claim, config).await?;
    }
    // Counting is broken off in a store with very many locks.
    let _ = tokio::time::timeout(COUNT_TIMEOUT, store.sweep()).await;
    let locks = match store.health().held_locks {
        Some(count) => format!("{count} locks are held"),
        None => "there are too many locks to count them here".to_owned(),
    };
    Ok(vec![
        rights,
        latency(latencies),
        Diagnosis::fine("locks", locks),
    ])
}

/// Has another claim wait for the locks and leave the queue, and looks at it meanwhile, which needs more rights.
async fn wait_behind(
    store: &Arc<dyn LockStore>,
    holding: &Claim,
    config: &Config,
) -> Result<(), StoreError> {
    let deadline = || Instant::now() + config.operation_timeout;
    let waiting = Claim::plain(holding.names.clone(), Token::random(), holding.ttl);
    let request = QueueRequest {
        ticket: None,
        age: Duration::ZERO,
        wait: config.operation_timeout,
        execute_within: config.operation_timeout,
        place_kept: Duration::ZERO,
        poll_interval: config.waiting.poll_interval,
        waiters_max: config.waiting.waiters_per_lock_max,
        wants_position: true,
        is_head: true,
        takes_over: false,
    };
    let enqueued = store.acquire(&waiting, Attempt::random(), Some(&request), deadline());
    enqueued.await?;
    for name in waiting.names.iter() {
        store.inspect(name, deadline()).await?;
    }
    let left = store.release(&waiting.names, waiting.token, None, deadline());
    left.await.map(drop)
}

/// Has two claims share the locks, lists them and evicts both claims, which needs yet other rights.
async fn share(
    store: &Arc<dyn LockStore>,
    beginning: &str,
    alone: &Claim,
    config: &Config,
) -> Result<(), StoreError> {
    for _ in 0..2 {
        let claim = Claim {
            mode: Mode::Shared(Share::READ),
            token: Token::random(),
            ..alone.clone()
        };
        let deadline = Instant::now() + config.operation_timeout;
        let acquired = store.acquire(&claim, Attempt::random(), None, deadline);
        acquired.await?;
    }
    let deadlines = || Deadlines {
        step: config.operation_timeout,
        end: Instant::now() + config.operation_timeout,
    };
    let query = ListQuery {
        prefix: beginning.to_owned(),
        within: None,
        after: None,
        snapshot: None,
        page_size: 2,
    };
    // A store with very many keys does not list them in time.
    let listed = store.list(&query, deadlines()).await;
    if let Some(error) = listed
        .err()
        .filter(|error| error.fault() == Fault::Permission)
    {
        return Err(error);
    }
    for name in alone.names.iter() {
        store.evict(name, "leasehold doctor", deadlines()).await?;
    }
    Ok(())
}

fn latency(mut latencies: Vec<Duration>) -> Diagnosis {
    latencies.sort();
    let [fastest, median] = [latencies[0], latencies[latencies.len() / 2]];
    let millis = |latency: Duration| latency.as_secs_f64() * 1000.0;
    let text = format!(
        "an operation takes {:.1} ms, the fastest took {:.1} ms",
        millis(median),
        millis(fastest)
    );
    match fastest < LATENCY_MAX {
        true => Diagnosis::fine("latency", text),
        false => Diagnosis::warning(
            "latency",
            format!("{text}; run the server nearer to the store"),
        ),
    }
}
