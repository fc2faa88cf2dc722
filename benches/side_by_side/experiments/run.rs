//! How long a lock around a command takes: `leasehold run x -- true` beside `flock x true` and `etcdctl lock x true`.

use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::Instant;

use super::{Plan, ratios};
use crate::machine::{Served, undisturbed};
use crate::report::Finding;

const NAME: &str = "run";

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::leasehold("memory:", &[]);
    let (etcd, _) = Served::etcd(tempfile::tempdir().unwrap()).await;
    let mut flock = Command::new("flock");
    flock.arg(directory.path().join("lock")).arg("true");
    let mut leasehold = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    leasehold
        .args(["run", "x", "--", "true"])
        .env("LEASEHOLD_URL", served.url());
    let mut etcdctl = Command::new("etcdctl");
    etcdctl
        .args(["lock", "x", "true", "--endpoints", &etcd.url()])
        .env("ETCDCTL_API", "3");
    let mut commands = [flock, leasehold, etcdctl];
    let mut millis = [(); 3].map(|()| Vec::new());
    for _ in 0..plan.rounds {
        for (command, millis) in commands.iter_mut().zip(&mut millis) {
            let measured = undisturbed(async || repeated(command, plan.seconds)).await;
            millis.push(measured.as_secs_f64() * 1_000.0);
        }
    }
    let [flock, leasehold, etcdctl] = millis;
    let ratio =
        |figure: &str, under: &[f64]| Finding::new(NAME, figure, "", ratios(&leasehold, under));
    vec![
        ratio("leasehold run over flock", &flock),
        ratio(
            "leasehold run over etcdctl lock, which syncs to disk",
            &etcdctl,
        ),
        Finding::new(NAME, "leasehold run -- true", "ms", leasehold.clone()),
        Finding::new(NAME, "flock true", "ms", flock),
    ]
}

/// How long one takes of as many as there is time for, one after the other.
fn repeated(command: &mut Command, seconds: f64) -> Duration {
    let began = Instant::now();
    let mut count = 0;
    while count == 0 || began.elapsed().as_secs_f64() < seconds {
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
        assert!(status.unwrap().success());
        count += 1;
    }
    began.elapsed() / count
}
