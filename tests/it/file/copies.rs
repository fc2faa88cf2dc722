//! What may be missing from the disk after a failed synchronization is copied before anything depends on it: also by the
//! next process, and while power may be lost at any time.

use std::path::Path;

use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::damage::post;
use super::power::{FILE, serve_on};
use super::url_of;
use crate::process::{Serving, leasehold};
use crate::support::disk::FaultyDisk;
use crate::support::{eventually, stores};

/// It is in a page to which no later commit of these tests writes.
const UNKNOWN: &str = "/locks/z";

/// Some locks that are granted from now on, which take several pages of the file.
async fn grant_some(serving: &Serving, of: &str) -> Vec<String> {
    let mut granted = Vec::new();
    for number in 0..50 {
        let path = format!("/locks/{of}/{}/{number}", "n".repeat(200));
        assert_eq!(post(serving, &path).await.0, 201);
        granted.push(path);
    }
    granted
}

async fn assert_held(serving: &Serving, granted: &[String]) {
    for path in granted {
        assert_eq!(post(serving, path).await.0, 423, "{path} is held");
    }
}

/// Ends a process at once.
fn kill(mut serving: Serving) {
    serving.signal(Signal::SIGKILL);
    serving.wait();
}

/// The next process reads what the operating system has in memory, which looks whole.
#[tokio::test]
async fn a_process_that_starts_after_a_failed_synchronization_depends_on_nothing_that_may_be_missing()
 {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let serving = serve_on(&disk, directory.path());
    let mut granted = grant_some(&serving, "b").await;
    disk.fail();
    assert_eq!(post(&serving, UNKNOWN).await.0, 503);
    kill(serving);
    disk.repair();
    let serving = serve_on(&disk, directory.path());
    granted.extend(grant_some(&serving, "a").await);
    kill(serving);
    lose_power(&disk, directory.path());
    assert_held(&serve_on(&disk, directory.path()), &granted).await;
}

/// Some file systems notice only when they synchronize that there is no room. And what a commit was to remove, the next one
/// finds removed, so that it writes nothing in that place.
#[tokio::test]
async fn a_release_that_could_not_be_synchronized_leaves_nothing_that_may_be_missing() {
    for error in [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT] {
        let (directory, records) = (stores::directory(), stores::directory());
        let disk = FaultyDisk::new(records.path());
        let serving = serve_on(&disk, directory.path());
        let mut granted = grant_some(&serving, "b").await;
        let (_, grant) = post(&serving, UNKNOWN).await;
        granted.extend(grant_some(&serving, "zz").await);
        let release = async || {
            let request = reqwest::Client::new().delete(format!("{}{UNKNOWN}", serving.url));
            let token = grant["token"].as_str().expect("a token");
            let answer = request.header("Lock-Token", token).send().await;
            answer.expect("an answer").status().as_u16()
        };
        disk.fail_with(error);
        assert_eq!(release().await, 503);
        disk.repair();
        eventually("the release is confirmed", async || {
            (release().await == 204).then_some(())
        })
        .await;
        kill(serving);
        lose_power(&disk, directory.path());
        assert_held(&serve_on(&disk, directory.path()), &granted).await;
    }
}

/// Until the copy is in its place, the file has to stay one that can be used without what may be missing.
#[tokio::test]
async fn a_process_that_ends_before_its_copy_is_in_place_loses_nothing() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let mut serving = serve_on(&disk, directory.path());
    let granted = grant_some(&serving, "b").await;
    disk.fail();
    assert_eq!(post(&serving, UNKNOWN).await.0, 503);
    disk.kill_at_replacement();
    disk.repair();
    serving.wait();
    disk.kill_no_more();
    lose_power(&disk, directory.path());
    assert_held(&serve_on(&disk, directory.path()), &granted).await;
}

/// What there is of the room is for releases, and for other programs.
#[tokio::test]
async fn a_copy_for_which_there_is_no_room_takes_none_and_leaves_the_reserve() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let mut command = leasehold(&[]);
    disk.attach_below(&mut command, directory.path(), None);
    let serving = Serving::start_as(command, &["--store", &url_of(directory.path())]);
    let granted = grant_some(&serving, "b").await;
    let file = |name| std::fs::metadata(directory.path().join(name));
    let reserve = file("reserve").unwrap().len();
    disk.limit(0);
    disk.fail();
    assert_eq!(post(&serving, UNKNOWN).await.0, 503);
    disk.repair();
    let readyz = format!("{}/readyz?verbose", serving.url);
    eventually("it says that there is no room", async || {
        let said = reqwest::get(&readyz).await.unwrap().text().await.unwrap();
        said.contains("a copy of it needs").then_some(())
    })
    .await;
    assert!(file("leases.redb.new").is_err());
    assert_eq!(file("reserve").unwrap().len(), reserve);
    disk.limit(u64::MAX / 2);
    eventually("the store grants again", async || {
        (post(&serving, "/locks/after").await.0 == 201).then_some(())
    })
    .await;
    assert_held(&serving, &granted).await;
}

/// Of each sector, what was there first.
fn lose_power(disk: &FaultyDisk, directory: &Path) {
    disk.lose_power(&directory.join(FILE), |_| 0);
}
