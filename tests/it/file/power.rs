//! A disk that loses power, and one that fails to synchronize: of what was reported, nothing is lost.

use std::path::Path;
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::crashes::{Known, check, kill_under_load};
use super::damage::post;
use super::url_of;
use crate::process::{Serving, leasehold};
use crate::support::disk::FaultyDisk;
use crate::support::{eventually, stores};

const FILE: &str = "leases.redb";
const ROUNDS: usize = 8;

pub(super) fn serve_on(disk: &FaultyDisk, directory: &Path) -> Serving {
    let mut command = leasehold(&[]);
    disk.attach(&mut command);
    Serving::start_as(command, &["--store", &url_of(directory)])
}

/// Any part of what was not synchronized is missing, down to single sectors of a page.
#[tokio::test]
async fn after_a_loss_of_power_it_has_everything_that_it_reported() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let known = Arc::new(Mutex::new(Known::default()));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut rounds, mut sectors_lost) = (0, 0);
    // Now and then everything happens to be synchronized in all rounds.
    while rounds < ROUNDS || sectors_lost == 0 && rounds < 4 * ROUNDS {
        rounds += 1;
        let mut serving = serve_on(&disk, directory.path());
        check(&serving.url, &known).await;
        kill_under_load(&mut serving, &known).await;
        let file = directory.path().join(FILE);
        sectors_lost += disk.lose_power(&file, |end| random.usize(..end));
    }
    check(&serve_on(&disk, directory.path()).url, &known).await;
    assert!(sectors_lost > 0, "nothing was lost, which proves nothing");
}

/// The operating system reports a failure once; what it was to write may be missing from then on, although the next call
/// succeeds.
#[tokio::test]
async fn after_a_failed_synchronization_it_depends_on_nothing_that_may_be_missing() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let mut serving = serve_on(&disk, directory.path());
    eventually("the metrics have the size of the file", async || {
        (metric(&serving, "file_bytes").await > 0).then_some(())
    })
    .await;
    let mut granted = Vec::new();
    for round in 0..3 {
        for number in 0..50 {
            let path = format!("/locks/{round}/{number}");
            assert_eq!(post(&serving, &path).await.0, 201);
            granted.push(path);
        }
        disk.fail();
        let lost = format!("/locks/{round}/lost");
        let (status, problem) = post(&serving, &lost).await;
        assert_eq!(
            (status, &problem["outcome"]),
            (503, &Value::from("unknown"))
        );
        let (status, problem) = post(&serving, "/locks/while-it-fails").await;
        assert_eq!(
            (status, &problem["outcome"]),
            (503, &Value::from("nothing_done"))
        );
        let ready = reqwest::get(format!("{}/readyz?verbose", serving.url)).await;
        let said = ready.unwrap().text().await.unwrap();
        assert!(said.contains("cannot write to the disk"), "{said}");
        eventually("the metrics count the failure", async || {
            (metric(&serving, r#"commits_total{result="error"}"#).await > round).then_some(())
        })
        .await;
        disk.repair();
        let path = format!("/locks/{round}/after");
        eventually("the store grants again", async || {
            (post(&serving, &path).await.0 == 201).then_some(())
        })
        .await;
        granted.push(path);
    }
    serving.signal(Signal::SIGKILL);
    serving.wait();
    // Of each sector, what was there first.
    disk.lose_power(&directory.path().join(FILE), |_| 0);
    let serving = serve_on(&disk, directory.path());
    for path in granted {
        assert_eq!(post(&serving, &path).await.0, 423, "{path} is held");
    }
}

/// What a failed commit was to write is written by the next one.
#[tokio::test]
async fn a_release_whose_commit_failed_stays_released_once_it_was_reported() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let mut serving = serve_on(&disk, directory.path());
    let (status, grant) = post(&serving, "/locks/released").await;
    assert_eq!(status, 201);
    let release = async || {
        let request = reqwest::Client::new().delete(format!("{}/locks/released", serving.url));
        let token = grant["token"].as_str().expect("a token");
        let answer = request.header("Lock-Token", token).send().await;
        answer.expect("an answer").status().as_u16()
    };
    disk.fail();
    assert_eq!(release().await, 503);
    disk.repair();
    eventually("the release is confirmed", async || {
        (release().await == 204).then_some(())
    })
    .await;
    serving.signal(Signal::SIGKILL);
    serving.wait();
    let serving = serve_on(&disk, directory.path());
    assert_eq!(post(&serving, "/locks/released").await.0, 201, "it is free");
}

/// A metric of the store.
async fn metric(serving: &Serving, name: &str) -> usize {
    let metrics = reqwest::get(format!("{}/metrics", serving.url)).await;
    let metrics = metrics.unwrap().text().await.unwrap();
    let name = format!("leasehold_store_{name} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
    value.expect("it exists from the start").parse().unwrap()
}
