//! Data that are older than what was reported: a directory that is set back to a copy, and a disk that confirms what it
//! then loses. Locks are granted a second time after that, as the page of guarantees says. How many are is counted here,
//! and that the fencing tokens order the holders all the same.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use super::damage::{post, refused};
use super::power::serve_on;
use super::serve;
use crate::process::Serving;
use crate::support::disk::FaultyDisk;
use crate::support::stores;

/// The files of the store, the database first.
const FILES: [&str; 2] = ["leases.redb", "lock"];
/// How many locks are granted before the time to which the data go back, and how many after it.
const LOCKS: usize = 20;

/// Claims each of these locks for an hour, and returns the fencing tokens of those that are granted.
async fn claimed(serving: &Serving, locks: &str) -> Vec<Option<u64>> {
    let mut fences = Vec::new();
    for number in 0..LOCKS {
        let (status, grant) = post(serving, &format!("/locks/{locks}/{number}")).await;
        let fence = grant["fencing_token"].as_u64();
        fences.push(fence.filter(|_| status == 201));
    }
    fences
}

async fn granted(serving: &Serving, locks: &str) -> Vec<u64> {
    let fences = claimed(serving, locks).await.into_iter();
    fences.map(|fence| fence.expect("it is free")).collect()
}

/// Checks a process whose data do not have the leases `since`: all of their locks are granted again, with larger tokens
/// than any before, and those of the leases from before are not.
async fn has_gone_back(serving: &Serving, since: &[u64]) {
    let kept = claimed(serving, "before").await;
    assert_eq!(kept, [None; LOCKS]);
    let again = granted(serving, "since").await;
    assert!(again.iter().min() > since.iter().max());
    println!(
        "{LOCKS} of {LOCKS} leases are kept, {LOCKS} of {LOCKS} later ones were granted again"
    );
}

fn copy(from: &Path, to: &Path) {
    for file in FILES {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

#[tokio::test]
async fn after_a_directory_was_set_back_to_a_copy_later_leases_are_granted_again_with_larger_tokens()
 {
    let (directory, backup) = (stores::directory(), stores::directory());
    let serving = serve(directory.path());
    granted(&serving, "before").await;
    drop(serving);
    copy(directory.path(), backup.path());
    let serving = serve(directory.path());
    let since = granted(&serving, "since").await;
    drop(serving);
    copy(backup.path(), directory.path());
    has_gone_back(&serve(directory.path()), &since).await;
}

/// The database is as it was when the disk began to lie, and the number of its last commit beside it is not.
#[tokio::test]
async fn a_disk_that_lies_is_noticed_unless_it_loses_the_time_of_the_last_commit_too() {
    let (directory, records) = (stores::directory(), stores::directory());
    let [database, lock] = FILES.map(|file| directory.path().join(file));
    let disk = FaultyDisk::new(records.path());
    let mut serving = serve_on(&disk, directory.path());
    granted(&serving, "before").await;
    let time_before = fs::read(&lock).unwrap();
    disk.lie();
    let since = granted(&serving, "since").await;
    serving.signal(Signal::SIGKILL);
    serving.wait();
    let lost = disk.lose_power(&database, |_| 0);
    assert!(lost > 0, "it has not lied");
    let said = refused(directory.path());
    assert!(said.contains("lacks changes that were reported"), "{said}");
    fs::write(&lock, time_before).unwrap();
    has_gone_back(&serve(directory.path()), &since).await;
}
