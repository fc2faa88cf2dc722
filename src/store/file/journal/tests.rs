//! Tests of what a journal writes when the disk fails, without the task that calls it.

use std::path::Path;

use super::super::super::memory::Journal as _;
use super::super::super::state::{KeyedClaim, State};
use super::super::database::FILE;
use super::*;
use crate::domain::{Attempt, Claim, LockName, Token, Ttl};

struct Fixture {
    directory: tempfile::TempDir,
    disk: Disk,
    journal: FileJournal,
    state: State,
    now: StoreTime,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let now = StoreTime::from_unix_us(1_000_000);
        let (store, rows) = (now, now);
        let disk = Disk::open(directory.path(), Clocks { store, rows }).expect("it is empty");
        let mut state = State::new(100);
        state.list_changed_rows(true);
        Self {
            journal: FileJournal::new(Downtime::default(), now),
            directory,
            disk,
            state,
            now,
        }
    }

    /// Grants a lock, and records it.
    fn grant(&mut self, name: &str) {
        let name = LockName::parse(name.as_bytes()).expect("a name");
        let ttl = Ttl::from_store(Duration::from_secs(60));
        let claim = Claim::plain(name.into(), Token::random(), ttl);
        let keyed = KeyedClaim::new(&claim);
        let applied = self.state.acquire(self.now, &keyed, Attempt(1), None);
        assert!(applied.answer.is_ok());
        let notifications = applied.notifications;
        self.journal.record(&self.state, self.now, notifications);
    }

    /// Commits what is due, and returns whether that is on the disk.
    async fn commit(&mut self) -> bool {
        let next = self.journal.next(Instant::now()).await;
        let Some((Some(batch), false)) = next else {
            panic!("there is something to write");
        };
        self.journal.commit(&mut self.disk, batch)
    }

    /// How many leases the file has on the lock.
    fn leases_on(&self, name: &str) -> usize {
        let prefix = format!("l{name}\0");
        let count = |count: &mut usize, key: &[u8], _: &[u8]| {
            *count += usize::from(key.starts_with(prefix.as_bytes()));
            Ok(())
        };
        self.disk.read(|_| 0, count).expect("the file is whole")
    }
}

/// Another program has the file, so that it cannot be opened.
fn lock(directory: &Path) -> std::fs::File {
    let file = std::fs::File::open(directory.join(FILE)).expect("it is there");
    file.try_lock().expect("the database is closed");
    file
}

#[tokio::test]
async fn what_a_failed_commit_was_to_write_is_written_by_the_next_one() {
    let mut fixture = Fixture::new();
    fixture.disk.close_database();
    let locked = lock(fixture.directory.path());
    fixture.grant("first");
    assert!(!fixture.commit().await);
    assert!(fixture.journal.accepts().is_err());
    drop(locked);
    // A step that had begun before.
    fixture.grant("second");
    assert!(fixture.commit().await);
    assert!(fixture.journal.accepts().is_ok());
    assert_eq!(
        ["first", "second"].map(|name| fixture.leases_on(name)),
        [1, 1]
    );
}

#[tokio::test]
async fn what_a_failed_commit_was_to_write_is_written_if_nothing_else_changes() {
    let mut fixture = Fixture::new();
    fixture.disk.close_database();
    let locked = lock(fixture.directory.path());
    fixture.grant("first");
    assert!(!fixture.commit().await);
    drop(locked);
    assert!(fixture.commit().await);
    assert_eq!(fixture.leases_on("first"), 1);
}

#[tokio::test]
async fn a_reserve_that_cannot_be_made_is_trouble_until_it_can() {
    let mut fixture = Fixture::new();
    let reserve = fixture.directory.path().join("reserve");
    // Somebody has made a directory there since the start.
    std::fs::create_dir(&reserve).expect("there is room");
    assert!(fixture.journal.restore(&mut fixture.disk));
    let trouble = fixture.journal.reserve_trouble().expect("there is none");
    assert!(trouble.contains("new claims are refused"), "{trouble}");
    assert!(fixture.journal.is_full());
    std::fs::remove_dir(&reserve).expect("it is empty");
    assert!(fixture.journal.restore(&mut fixture.disk));
    assert_eq!(fixture.journal.reserve_trouble(), None);
    assert!(!fixture.journal.is_full() && reserve.is_file());
}
