//! Tests of the group commit in many orders of the requests and of the task that writes. The disk is a list of rows.

use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;

use shuttle::future::{block_on, spawn};

use super::super::super::memory::Journal as _;
use super::super::super::state::{KeyedClaim, State};
use super::*;
use crate::domain::{Attempt, Claim, LockName, Token, Ttl};
use crate::sync::explored::explore;

const ORDERS: usize = 300;

const REQUESTS: usize = 3;

const HOUR: Duration = Duration::from_secs(3_600);

/// A store, and what has reached its disk.
struct JournaledStore {
    journal: FileJournal,
    state: Mutex<State>,
    disk: Mutex<Rows>,
    /// How many of the next commits fail.
    failures: AtomicUsize,
}

impl JournaledStore {
    fn new(failures: usize) -> Arc<Self> {
        let mut state = State::new(100);
        state.list_changed_rows(true);
        Arc::new(Self {
            journal: FileJournal::new(Downtime::default(), now()),
            state: Mutex::new(state),
            disk: Mutex::new(Rows::new()),
            failures: AtomicUsize::new(failures),
        })
    }

    /// Grants a lock as a step of the store does: recorded in the order of the steps.
    fn grant(&self, name: &str) {
        let name = LockName::parse(name.as_bytes()).expect("a name");
        let ttl = Ttl::from_store(HOUR);
        let claim = Claim::plain(name.into(), Token::random(), ttl);
        let keyed = KeyedClaim::new(&claim);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let applied = state.acquire(now(), &keyed, Attempt(1), None);
        assert!(applied.answer.is_ok());
        let notifications = applied.notifications;
        self.journal.record(&state, now(), notifications);
    }

    /// Whether the disk has the lease on the lock.
    fn has(&self, name: &str) -> bool {
        let prefix = format!("l{name}\0");
        let disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        disk.keys().any(|key| key.starts_with(prefix.as_bytes()))
    }

    /// Writes batch after batch until the journal is closed, as the journal's own task does.
    async fn write(&self) {
        let never = Instant::now() + HOUR;
        while let Some((Some(batch), is_last)) = self.journal.next(never).await {
            let fails = |left: usize| left.checked_sub(1);
            let failed = self
                .failures
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails);
            if failed.is_ok() {
                self.journal.failed(batch, "a test".to_owned());
                continue;
            }
            let mut disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
            disk.extend(batch.rows.clone());
            drop(disk);
            self.journal.succeeded(batch);
            if is_last {
                return;
            }
        }
    }
}

fn now() -> StoreTime {
    StoreTime::from_unix_us(1_000_000)
}

/// Runs requests beside the task that writes, and returns once that has ended.
fn run_requests(store: &Arc<JournaledStore>) {
    let request = |number: usize| {
        let store = Arc::clone(store);
        async move {
            let name = format!("lock-{number}");
            store.grant(&name);
            let written = store.journal.written(Instant::now() + HOUR).await;
            let is_written = store.has(&name);
            assert!(is_written || written.is_err(), "it was only reported");
            written.is_ok()
        }
    };
    block_on(async {
        let requests: Vec<_> = (0..REQUESTS).map(|number| spawn(request(number))).collect();
        let writing = Arc::clone(store);
        let writer = spawn(async move { writing.write().await });
        let mut reported = 0;
        for request in requests {
            reported += usize::from(request.await.expect("it ends"));
        }
        let failed = store.journal.commits()[1] > 0;
        assert!(reported == REQUESTS || failed, "only a failure is unclear");
        store.journal.close(now());
        writer.await.expect("it ends when the journal is closed");
    });
}

#[test]
fn what_is_reported_is_on_the_disk_in_any_order_of_requests_and_commits() {
    explore(ORDERS, || {
        let store = JournaledStore::new(0);
        run_requests(&store);
    });
}

#[test]
fn what_failed_commits_were_to_write_is_written_in_any_order_of_requests_and_commits() {
    explore(ORDERS, || {
        let store = JournaledStore::new(2);
        run_requests(&store);
        for number in 0..REQUESTS {
            assert!(store.has(&format!("lock-{number}")));
        }
    });
}
