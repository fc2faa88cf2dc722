//! Redis is unavailable while claims wait, and comes back with all data: the waiters are granted in their order, before
//! any later claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use leasehold::domain::{Acquired, Attempt, Claim, GrantKind, Granted};
use leasehold::service::AcquireOutcome;
use leasehold::store::{Fault, LockStore};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::{Replica, durable_redis, lasting};
use crate::support::eventually;
use crate::support::fixture::{
    Fixture, Waiter, claim, claim_on_all, deadline, fresh_name, lock_of, names, rival, ttl,
};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;
use crate::support::stores;

const WAITERS: usize = 8;
const WAIT: Duration = Duration::from_secs(50);
/// A TTL that ends while Redis is unavailable.
const LEASE: Duration = Duration::from_secs(1);

/// Two replicas, a lock that is held for a moment, and claims that wait for it on both alternately.
struct Queue {
    replicas: [Arc<Replica>; 2],
    holding: Claim,
    waiting: Vec<JoinHandle<()>>,
    /// The numbers of the claims in the order of their grants. Newcomers have larger numbers.
    granted: mpsc::UnboundedReceiver<usize>,
    tells: mpsc::UnboundedSender<usize>,
}

impl Queue {
    async fn on(server: &RedisServer) -> Self {
        let address = server.database(0);
        let replicas = [
            Arc::new(Replica::open(&address).await),
            Arc::new(Replica::open(&address).await),
        ];
        let (tells, granted) = mpsc::unbounded_channel();
        let holding = Claim {
            ttl: ttl(LEASE),
            ..claim()
        };
        let mut queue = Self {
            replicas,
            holding,
            waiting: Vec::new(),
            granted,
            tells,
        };
        queue.replicas[0].granted(&queue.holding).await;
        for number in 0..WAITERS {
            queue.joins(number).await;
        }
        queue
    }

    /// Enqueues a claim, which holds for a moment once it is granted.
    async fn joins(&mut self, number: usize) {
        let replica = Arc::clone(&self.replicas[number % 2]);
        let (claim, tells) = (rival(&self.holding), self.tells.clone());
        let claim = Claim {
            ttl: ttl(Duration::from_secs(30)),
            ..claim
        };
        self.waiting.push(tokio::spawn(async move {
            loop {
                match replica.acquire_within(&claim, WAIT).await {
                    Ok(AcquireOutcome::Granted(Granted {
                        kind: GrantKind::New,
                        ..
                    })) => break,
                    // Redis was killed before the first reply. The client retries, as the guide to waiting says.
                    Err(_) => sleep(Duration::from_millis(20)).await,
                    other => panic!("waiter {number}: {other:?}"),
                }
            }
            tells.send(number).expect("the test listens");
            sleep(Duration::from_millis(20)).await;
            replica.release(&claim).await.expect("the store answers");
        }));
        let replica = &self.replicas[0];
        eventually("it stands in the queue", async || {
            let view = replica.service.inspect(lock_of(&self.holding)).await.ok()?;
            (view.queue.length as usize == number + 1).then_some(())
        })
        .await;
    }

    /// Claims without a wait, which keep trying on both replicas until this is dropped.
    fn besieged(&self) -> Siege {
        let stop = Arc::new(AtomicBool::new(false));
        for replica in &self.replicas {
            let (replica, stop) = (Arc::clone(replica), Arc::clone(&stop));
            let (holding, tells) = (self.holding.clone(), self.tells.clone());
            tokio::spawn(async move {
                while !stop.load(SeqCst) {
                    let newcomer = rival(&holding);
                    if let Ok(AcquireOutcome::Granted(Granted {
                        kind: GrantKind::New,
                        ..
                    })) = replica.acquire(&newcomer).await
                    {
                        tells.send(WAITERS).ok();
                        replica.release(&newcomer).await.ok();
                    }
                    sleep(Duration::from_millis(5)).await;
                }
            });
        }
        Siege(stop)
    }

    /// Asserts that the waiters are granted first, and in their order.
    async fn assert_order(mut self) {
        for number in 0..WAITERS {
            let next = self.granted.recv().await.expect("a grant");
            assert_eq!(next, number, "granted out of turn");
        }
        for waiting in self.waiting {
            waiting.await.expect("it was granted");
        }
    }
}

/// Stops the newcomers when it is dropped.
struct Siege(Arc<AtomicBool>);

impl Drop for Siege {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_with_all_data_kept_keeps_the_order() {
    let mut server = durable_redis().await;
    let queue = Queue::on(&server).await;
    server.kill();
    // The test is about the length of the outage.
    sleep(Duration::from_secs(4)).await;
    let _siege = queue.besieged();
    server.restart().await;
    queue.assert_order().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_that_outlasts_what_is_known_of_the_queue_keeps_the_order() {
    let mut server = durable_redis().await;
    let queue = Queue::on(&server).await;
    server.kill();
    sleep(Duration::from_secs(12)).await;
    let _siege = queue.besieged();
    server.restart().await;
    queue.assert_order().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_of_redis_keeps_the_order() {
    let server = durable_redis().await;
    let queue = Queue::on(&server).await;
    let _siege = queue.besieged();
    server.pause();
    sleep(Duration::from_secs(4)).await;
    server.resume();
    queue.assert_order().await;
}

/// Redis answers all the time and keeps its data, but not what it knows of the waiters: no poll is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_takes_no_writes_for_long_keeps_the_order() {
    let server = durable_redis().await;
    let queue = Queue::on(&server).await;
    let needs_replicas = async |count| {
        let words = ["CONFIG", "SET", "min-replicas-to-write", count];
        server.command(&words).await;
    };
    needs_replicas("1").await;
    sleep(Duration::from_secs(12)).await;
    let _siege = queue.besieged();
    needs_replicas("0").await;
    queue.assert_order().await;
}

/// The others do not wait for a process that is cut off, and its waiter regains its place when it is back.
#[tokio::test]
async fn a_process_that_is_away_alone_is_passed_over_until_it_is_back() {
    let server = durable_redis().await;
    let network = Proxy::start(server.address()).await;
    let away = Arc::new(Replica::open(&network.database(0)).await);
    let here = Arc::new(Replica::open(&server.database(0)).await);
    let holding = lasting(claim());
    here.granted(&holding).await;
    let (tells, mut granted) = mpsc::unbounded_channel();
    for (number, replica) in [&away, &here, &here].into_iter().enumerate() {
        let (replica, waiter, tells) = (Arc::clone(replica), rival(&holding), tells.clone());
        tokio::spawn(async move {
            let answer = replica.acquire_within(&waiter, WAIT).await;
            assert!(
                matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::New)),
                "{answer:?}"
            );
            tells.send((number, waiter)).expect("the test listens");
        });
        eventually("it stands in the queue", async || {
            let view = here.service.inspect(lock_of(&holding)).await.ok()?;
            (view.queue.length as usize == number + 1).then_some(())
        })
        .await;
    }
    network.stall(true);
    here.release(&holding).await.expect("the store answers");
    let (first, second) = granted.recv().await.expect("somebody is granted it");
    assert_eq!(first, 1, "nobody waits for the process that is away");
    network.stall(false);
    eventually("it is back in its place", async || {
        let view = here.service.inspect(lock_of(&holding)).await.ok()?;
        (view.queue.length == 2).then_some(())
    })
    .await;
    here.release(&second).await.expect("the store answers");
    let (next, third) = granted.recv().await.expect("somebody is granted it");
    assert_eq!(next, 0, "it came first");
    here.release(&third).await.expect("the store answers");
    assert_eq!(granted.recv().await.expect("the last one").0, 2);
}

/// The first one waits for two locks, which takes another way through the script than one lock does.
#[tokio::test]
async fn without_memory_waiters_of_several_processes_are_granted_in_their_order() {
    let server = durable_redis().await;
    let open = async || {
        let store = stores::redis_store(&server.database(0), &stores::redis_config()).await;
        Fixture::on(store.expect("it opens"), None)
    };
    let [here, elsewhere] = [open().await, open().await];
    let held = lasting(claim());
    here.granted(&held).await;
    let on_two = names(&[lock_of(&held).clone(), fresh_name()]);
    let mut first = here.waiting(&claim_on_all(on_two)).await;
    let mut second = elsewhere.waiting(&rival(&held)).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1kb"]).await;
    let (store, newcomer) = (here.store(), claim());
    let refused = store.acquire(&newcomer, Attempt::random(), None, deadline());
    assert!(
        refused
            .await
            .is_err_and(|error| error.fault() == Fault::Full)
    );
    here.release(&held).await;
    elsewhere.still_waits(&mut second).await;
    here.granted_after_wait(&mut first).await;
    elsewhere.granted_after_wait(&mut second).await;
}

/// A waiter elsewhere may have met the same refusals as this process, and must have had time to poll before it is passed
/// over.
#[tokio::test]
async fn a_redis_without_memory_skips_no_waiter() {
    let server = durable_redis().await;
    let address = server.database(0);
    let elsewhere = stores::redis_store(&address, &stores::redis_config()).await;
    let elsewhere = elsewhere.expect("it opens");
    let replica = Replica::open(&address).await;
    let held = lasting(claim());
    replica.granted(&held).await;
    let first = Waiter::new(rival(&held));
    let asked = elsewhere.acquire(
        &first.claim,
        first.attempt,
        Some(&first.queue_request),
        deadline(),
    );
    assert!(matches!(asked.await, Ok(Acquired::Waiting(_))));
    drop(elsewhere);
    server.command(&["CONFIG", "SET", "maxmemory", "1kb"]).await;
    let is_full = Instant::now();
    eventually("it is full", async || {
        replica.acquire(&lasting(claim())).await.err()
    })
    .await;
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    replica.release(&held).await.expect("the store answers");
    let next = replica.acquire_within(&rival(&held), WAIT).await;
    assert!(
        matches!(&next, Ok(granted) if granted.kind() == Some(GrantKind::New)),
        "{next:?}"
    );
    // Otherwise a reservation that is not claimed ends after a second.
    let passed = is_full.elapsed();
    assert!(
        passed > Duration::from_secs(5),
        "passed over after {passed:?}"
    );
}

/// While nobody is passed over, because Redis may just have been away for all, the end of a reservation gives a later waiter
/// nothing: it would poll again and again.
#[tokio::test]
async fn a_waiter_does_not_poll_for_the_reservation_of_one_that_is_gone_right_after_an_outage() {
    let server = durable_redis().await;
    let open = async || {
        let store = stores::redis_store(&server.database(0), &stores::redis_config()).await;
        store.expect("it opens")
    };
    let [here, elsewhere] = [open().await, open().await];
    let held = lasting(claim());
    let acquire = async |claim: &Claim| {
        let answer = here.acquire(claim, Attempt::random(), None, deadline());
        answer.await
    };
    acquire(&held).await.expect("the store answers");
    let [gone, waiter] = [(); 2].map(|()| Waiter::new(rival(&held)));
    let poll = async |store: &Arc<dyn LockStore>, waiter: &Waiter| {
        let queue_request = Some(&waiter.queue_request);
        let asked = store.acquire(&waiter.claim, waiter.attempt, queue_request, deadline());
        match asked.await {
            Ok(Acquired::Waiting(waiting)) => waiting,
            other => panic!("it waits, but: {other:?}"),
        }
    };
    poll(&elsewhere, &gone).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1kb"]).await;
    let refused = acquire(&lasting(claim())).await;
    assert!(refused.is_err_and(|error| error.fault() == Fault::Full));
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let released = here.release(&held.names, held.token, None, deadline());
    released.await.expect("the store answers");
    let waiting = poll(&here, &waiter).await;
    assert_eq!(waiting.recheck_in, None, "it polls at its usual times");
}
