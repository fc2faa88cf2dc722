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

/// Another thread writes the clocks between a step and its record.
#[tokio::test]
async fn a_step_before_the_clocks_were_written_sets_no_commit_back() {
    let mut fixture = Fixture::new();
    fixture.journal.try_disk(&mut fixture.disk, fixture.now);
    let later = fixture.now + Duration::from_secs(2);
    fixture.journal.write_clocks(later);
    for name in ["in-the-same-commit", "in-the-next-one"] {
        fixture.grant(name);
        assert!(fixture.commit().await);
        let clocks = fixture.disk.read(|clocks| clocks, |_, _, _| Ok(()));
        assert_eq!(clocks.expect("the file is whole").store, later, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn notifications_are_late_during_a_slow_commit_and_for_a_moment_after_it() {
    let mut fixture = Fixture::new();
    fixture.grant("first");
    let next = fixture.journal.next(Instant::now()).await;
    let (batch, _) = next.expect("there is something to write");
    assert!(!fixture.journal.is_late());
    tokio::time::advance(LATE).await;
    assert!(fixture.journal.is_late());
    let batch = batch.expect("a grant");
    assert!(fixture.journal.commit(&mut fixture.disk, batch));
    assert!(fixture.journal.is_late());
    tokio::time::advance(RESERVATION_EXTENSION).await;
    assert!(!fixture.journal.is_late());
}

#[tokio::test(start_paused = true)]
async fn no_notification_is_late_after_a_quick_commit() {
    let mut fixture = Fixture::new();
    fixture.grant("first");
    assert!(fixture.commit().await);
    assert!(!fixture.journal.is_late());
}

#[tokio::test(start_paused = true)]
async fn notifications_are_late_while_the_disk_fails_and_for_a_moment_after_it() {
    let mut fixture = Fixture::new();
    fixture.disk.close_database();
    let locked = lock(fixture.directory.path());
    fixture.grant("first");
    assert!(!fixture.commit().await);
    assert!(fixture.journal.is_late());
    drop(locked);
    assert!(fixture.commit().await);
    assert!(fixture.journal.is_late());
    tokio::time::advance(RESERVATION_EXTENSION).await;
    assert!(!fixture.journal.is_late());
}

/// A process that crashes again and again reaches the first check of its store, and perhaps not the next.
#[test]
fn a_process_that_has_just_started_writes_its_clocks_early_and_then_seldom() {
    let fixture = Fixture::new();
    let after = |seconds| fixture.now + Duration::from_secs(seconds);
    let writes = |now| {
        fixture.journal.write_clocks(now);
        let is_due = std::mem::take(&mut fixture.journal.state().batch.is_due);
        if is_due {
            fixture.journal.state().written_at = now;
        }
        is_due
    };
    assert_eq!(
        [0, 2, 4, 8].map(|at| writes(after(at))),
        [false, true, false, false]
    );
    assert_eq!(
        [12, 14, 22].map(|at| writes(after(at))),
        [true, false, true]
    );
}

#[tokio::test]
async fn a_failure_of_the_disk_does_not_hide_that_only_a_restart_helps() {
    let mut fixture = Fixture::new();
    fixture.grant("first");
    fixture.journal.broken("a file was removed".to_owned());
    let batch = Batch::new(fixture.now);
    fixture.journal.failed(batch, "no room".to_owned());
    let trouble = fixture.journal.trouble().expect("it is broken");
    assert!(trouble.contains("restart the process"), "{trouble}");
}
