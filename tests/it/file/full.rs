//! A disk that is full: what is held stays held and can be renewed and released, and the store heals by itself.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use uuid::Uuid;

use super::url_of;
use crate::process::{Serving, leasehold};
use crate::support::disk::FaultyDisk;
use crate::support::{eventually, eventually_within, stores};

const FILE: &str = "leases.redb";
/// The room that is left for leases.
const ROOM: u64 = 2 * 1024 * 1024;
/// The TTL of the leases that end, and how long that may take.
const SHORT: &str = "15s";
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// A process on a disk that can be full, and a client.
pub(super) struct Full {
    serving: Serving,
    client: Client,
}

/// A claim on several locks that was granted.
pub(super) struct Grant {
    names: Vec<String>,
    token: Uuid,
    fences: Vec<Value>,
}

impl Full {
    fn on(disk: &FaultyDisk, directory: &Path, stop: Option<usize>) -> Self {
        let mut command = leasehold(&[]);
        disk.attach_below(&mut command, directory, stop);
        let arguments = [
            "--store",
            &url_of(directory),
            "--server-operations-max",
            "16",
        ];
        Self {
            serving: Serving::start_as(command, &arguments),
            client: Client::new(),
        }
    }

    /// A disk on which the store has started, with hardly any room left.
    pub(super) fn with_little_room(disk: &FaultyDisk, directory: &Path) -> Self {
        let full = Self::on(disk, directory, None);
        disk.limit(used(directory) + ROOM);
        full
    }

    /// Sends a request. Returns the status and the body; none if the process is gone.
    async fn try_send(
        &self,
        method: Method,
        path: &str,
        token: Uuid,
        body: Value,
    ) -> Option<(u16, Value)> {
        let request = self
            .client
            .request(method, format!("{}{path}", self.serving.url));
        let request = request.header("Lock-Token", token.to_string());
        let answer = request.json(&body).send().await.ok()?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await.ok()?;
        Some((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    async fn send(&self, method: Method, path: &str, token: Uuid) -> (u16, Value) {
        let answer = self.try_send(method, path, token, json!({})).await;
        answer.expect("the process lives")
    }

    /// Whether a claim on a lock of its own is granted.
    pub(super) async fn grants(&self) -> Option<()> {
        let path = format!("/locks/{}?ttl=1h", Uuid::new_v4());
        let (status, _) = self.send(Method::POST, &path, Uuid::new_v4()).await;
        (status == 201).then_some(())
    }

    /// Acquires locks until a claim is refused or the process is gone. Returns what was granted, and the refusal.
    pub(super) async fn fill(&self, ttl: &str) -> (Vec<Grant>, Option<(u16, Value)>) {
        let mut granted = Vec::new();
        loop {
            let number = granted.len();
            let name = |lock| format!("{}/{number}/{lock}", "n".repeat(200));
            let names: Vec<_> = (0..64).map(name).collect();
            let (token, owner) = (Uuid::new_v4(), "o".repeat(250));
            let body = json!({ "names": names, "ttl": ttl, "owner": owner });
            match self.try_send(Method::POST, "/locks", token, body).await {
                Some((201, grant)) => granted.push(Grant {
                    names,
                    token,
                    fences: fences(&grant),
                }),
                refused => return (granted, refused),
            }
            assert!(number < 5_000, "the limit has no effect");
        }
    }

    async fn assert_held(&self, granted: &[Grant]) {
        for grant in granted {
            let body = json!({ "names": grant.names });
            let renewed = self.try_send(Method::PUT, "/locks", grant.token, body);
            let (status, leases) = renewed.await.expect("the process lives");
            assert_eq!(status, 200, "{leases}");
            assert_eq!(fences(&leases), grant.fences);
        }
    }

    /// How many bytes the process has written so far, to whatever file.
    pub(super) fn bytes_written(&self) -> u64 {
        let counts = std::fs::read_to_string(format!("/proc/{}/io", self.serving.pid()));
        let counts = counts.expect("the process lives");
        let count = counts.lines().find_map(|line| line.strip_prefix("wchar: "));
        count.expect("it is there").parse().expect("a number")
    }

    pub(super) async fn said(&self, path: &str) -> (u16, String) {
        let answer = reqwest::get(format!("{}{path}", self.serving.url)).await;
        let answer = answer.expect("it answers");
        let status = answer.status().as_u16();
        (status, answer.text().await.expect("it is a text"))
    }
}

fn fences(grant: &Value) -> Vec<Value> {
    let locks = grant["locks"].as_array().expect("it has locks");
    let fences = locks.iter().map(|lock| lock["fencing_token"].clone());
    fences.collect()
}

/// The bytes that a directory uses on its disk.
pub(super) fn used(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).unwrap();
    files
        .map(|file| file.unwrap().metadata().unwrap().blocks() * 512)
        .sum()
}

#[tokio::test]
async fn on_a_full_disk_leases_are_renewed_and_released_and_new_claims_refused() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let full = Full::with_little_room(&disk, directory.path());
    let [holder, waiter] = [Uuid::new_v4(), Uuid::new_v4()];
    let path = "/locks/bystander";
    let (status, first) = full
        .send(Method::POST, "/locks/bystander?ttl=1h", holder)
        .await;
    assert_eq!(status, 201);
    let waiting = full
        .client
        .post(format!("{}{path}?ttl=1h&wait=55s", full.serving.url))
        .header("Lock-Token", waiter.to_string());
    let waiting = tokio::spawn(waiting.send());
    eventually("the claim waits", async || {
        (full.send(Method::GET, path, holder).await.1["queue_length"] == 1).then_some(())
    })
    .await;
    let (granted, refused) = full.fill("1h").await;
    let (status, problem) = refused.expect("the process lives");
    assert_eq!((status, &problem["code"]), (503, &"store_full".into()));
    assert_eq!(problem["outcome"], "nothing_done");
    full.assert_held(&granted).await;
    let (status, said) = full.said("/readyz?verbose").await;
    assert_eq!(status, 200, "renewals need the process: {said}");
    assert!(said.contains("the disk is full"), "{said}");
    eventually("the metrics know it", async || {
        let (_, metrics) = full.said("/metrics").await;
        metrics
            .contains("leasehold_store_disk_full 1\n")
            .then_some(())
    })
    .await;
    let (status, lease) = full.send(Method::PUT, path, holder).await;
    assert_eq!(
        (status, &lease["fencing_token"]),
        (200, &first["fencing_token"])
    );
    // The claim that waits has the room that it needs.
    assert_eq!(full.send(Method::DELETE, path, holder).await.0, 204);
    let next: Value = waiting.await.unwrap().unwrap().json().await.unwrap();
    assert!(next["fencing_token"].as_u64() > first["fencing_token"].as_u64());
    // What was done on the full disk survives the process.
    full.serving.signal(Signal::SIGKILL);
    drop(full);
    let full = Full::on(&disk, directory.path(), None);
    let (_, again) = full.send(Method::PUT, path, waiter).await;
    assert_eq!(again["fencing_token"], next["fencing_token"]);
    let (_, ended) = full.send(Method::PUT, path, holder).await;
    assert_eq!(ended["code"], "lease_released");
    full.assert_held(&granted).await;
    assert_eq!(full.grants().await, None);
}

/// Its signal ends nothing, and what was granted is on the disk.
#[tokio::test]
async fn a_limit_on_the_size_of_a_file_does_not_end_the_process() {
    let directory = stores::directory();
    let mut command = Command::new("sh");
    // In units of 512 bytes, of which the reserve takes 16,384. This process may have been started with the signal ignored.
    let limited = "ulimit -f 20000 && exec env --default-signal=XFSZ \"$0\" \"$@\"";
    command.env_clear().args(["-c", limited]);
    command.arg(env!("CARGO_BIN_EXE_leasehold"));
    let store = url_of(directory.path());
    let start = |command| Full {
        serving: Serving::start_as(command, &["--store", &store]),
        client: Client::new(),
    };
    let full = start(command);
    let (granted, refused) = full.fill("1h").await;
    assert_eq!(refused.expect("the process lives").0, 503);
    assert_eq!(full.said("/livez").await.0, 200);
    full.serving.signal(Signal::SIGKILL);
    drop(full);
    start(leasehold(&[])).assert_held(&granted).await;
}

#[tokio::test]
async fn a_full_disk_heals_when_leases_end() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let mut full = Full::with_little_room(&disk, directory.path());
    let holder = Uuid::new_v4();
    let (_, first) = full
        .send(Method::POST, "/locks/bystander?ttl=1h", holder)
        .await;
    let (_, refused) = full.fill(SHORT).await;
    assert_eq!(refused.expect("the process lives").1["code"], "store_full");
    eventually_within(END_TIMEOUT, "claims are admitted again", async || {
        let (status, lease) = full.send(Method::PUT, "/locks/bystander", holder).await;
        assert_eq!(
            (status, &lease["fencing_token"]),
            (200, &first["fencing_token"])
        );
        full.grants().await
    })
    .await;
    let (_, said) = full.said("/readyz?verbose").await;
    assert!(!said.contains("the disk is full"), "{said}");
    full.serving
        .wait_for_line("the disk has room again; claims are admitted");
}

/// Tombstones replace leases on other pages, and the pages of the leases become free only with later commits.
#[tokio::test]
async fn a_disk_without_a_byte_left_heals_when_all_holders_are_evicted() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let full = Full::with_little_room(&disk, directory.path());
    let holder = Uuid::new_v4();
    let (_, first) = full
        .send(Method::POST, "/locks/bystander?ttl=1h", holder)
        .await;
    let names: Vec<_> = (0..64).map(|lock| format!("shared/{lock}")).collect();
    let body = json!({ "names": names, "ttl": "1h", "mode": "shared" });
    let claim = async || {
        let claimed = full.try_send(Method::POST, "/locks", Uuid::new_v4(), body.clone());
        claimed.await.expect("the process lives").0
    };
    while claim().await == 201 {}
    // Another program takes what was left of the reserve.
    disk.limit(used(directory.path()));
    let reason = "r".repeat(256);
    let evictions = names.iter().map(async |name| {
        let path = format!("/locks/{name}?force=true&reason={reason}");
        eventually_within(END_TIMEOUT, "all holders are evicted", async || {
            let (status, _) = full.send(Method::DELETE, &path, Uuid::new_v4()).await;
            (status == 200).then_some(())
        })
        .await;
    });
    futures_util::future::join_all(evictions).await;
    eventually_within(END_TIMEOUT, "the bystander renews", async || {
        let (status, lease) = full.send(Method::PUT, "/locks/bystander", holder).await;
        (status == 200).then(|| assert_eq!(lease["fencing_token"], first["fencing_token"]))
    })
    .await;
    // More than the reserve needs, however much of the file is in use.
    disk.limit(used(directory.path()) + 16 * ROOM);
    eventually_within(END_TIMEOUT, "claims are admitted again", async || {
        full.grants().await
    })
    .await;
    // What a failed commit was to write was written by a later one: no evicted lease is back.
    full.serving.signal(Signal::SIGKILL);
    drop(full);
    let full = Full::on(&disk, directory.path(), None);
    for name in &names {
        let (_, lock) = full
            .send(Method::GET, &format!("/locks/{name}"), holder)
            .await;
        assert_eq!(lock["state"], "free", "{lock}");
    }
}

#[tokio::test]
async fn a_disk_that_another_program_has_filled_grants_nothing_until_there_is_room() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let full = Full::on(&disk, directory.path(), None);
    let (path, token) = ("/locks/released", Uuid::new_v4());
    let long = "/locks/released?ttl=1h";
    assert_eq!(full.send(Method::POST, long, token).await.0, 201);
    disk.limit(0);
    let (granted, _) = full.fill("1h").await;
    assert_eq!(full.grants().await, None);
    full.serving.signal(Signal::SIGKILL);
    drop(full);
    let full = Full::on(&disk, directory.path(), None);
    // Nobody has tried to write since the start.
    let (status, said) = full.said("/readyz?verbose").await;
    let is_known = status == 503 || said.contains("the disk is full");
    assert!(is_known, "{status}: {said}");
    assert_eq!(full.grants().await, None);
    assert_eq!(full.send(Method::DELETE, path, token).await.0, 503);
    disk.limit(u64::MAX / 2);
    eventually("the store grants again", async || full.grants().await).await;
    full.assert_held(&granted).await;
    assert_eq!(full.said("/readyz").await.0, 200);
    // What a failed commit was to write is written by a later one.
    assert_eq!(full.send(Method::DELETE, path, token).await.0, 204);
    full.serving.signal(Signal::SIGKILL);
    drop(full);
    let full = Full::on(&disk, directory.path(), None);
    assert_eq!(full.send(Method::POST, path, Uuid::new_v4()).await.0, 201);
}

/// What they may have been granted is given back when the disk can be written again, perhaps in an hour.
#[tokio::test]
async fn claims_with_an_unknown_outcome_take_no_turn_from_others() {
    let (directory, records) = (stores::directory(), stores::directory());
    let disk = FaultyDisk::new(records.path());
    let full = Full::on(&disk, directory.path(), None);
    assert!(full.grants().await.is_some());
    disk.fail();
    let claims = (0..64).map(async |number| {
        let path = format!("/locks/unknown/{number}?ttl=1h");
        full.send(Method::POST, &path, Uuid::new_v4()).await
    });
    let answers = futures_util::future::join_all(claims).await;
    assert!(
        answers
            .iter()
            .any(|(_, problem)| problem["outcome"] == "unknown")
    );
    for (status, problem) in &answers {
        assert_eq!(
            (*status, &problem["code"]),
            (503, &"store_unavailable".into())
        );
    }
    let later = full.send(Method::POST, "/locks/later", Uuid::new_v4());
    let (_, problem) = later.await;
    assert_eq!(problem["code"], "store_unavailable", "{problem}");
    disk.repair();
    eventually("the store grants again", async || full.grants().await).await;
}

/// Each step on the disk after it was full for the first time may be the last before power is lost.
#[tokio::test]
async fn a_loss_of_power_while_the_reserve_is_given_up_takes_nothing_that_was_reported() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for stop in 0..24 {
        let (directory, records) = (stores::directory(), stores::directory());
        let disk = FaultyDisk::new(records.path());
        drop(Full::on(&disk, directory.path(), None));
        disk.limit(used(directory.path()) + ROOM / 4);
        let mut full = Full::on(&disk, directory.path(), Some(stop));
        let (granted, refused) = full.fill("1h").await;
        if refused.is_some() {
            full.serving.signal(Signal::SIGKILL);
        }
        full.serving.wait();
        let file = directory.path().join(FILE);
        disk.lose_power(&file, |end| random.usize(..end));
        let full = Full::on(&disk, directory.path(), None);
        full.assert_held(&granted).await;
        disk.limit(u64::MAX / 2);
        eventually("claims are admitted", async || full.grants().await).await;
    }
}
