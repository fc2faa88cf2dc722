//! What the manifests and the examples for Kubernetes say holds for the binary: how long it takes to stop, and what its
//! commands do. `scripts/check-k8s` compares them with the schemas.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::config::check_variables;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Client;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::process::Serving;
use crate::support::{eventually, eventually_within};

const DEPLOYMENT: &str = include_str!("../../k8s/base/deployment.yaml");
const ENVIRONMENT: &str = include_str!("../../k8s/base/leasehold.env");
const DEFAULTS: &str = include_str!("../../config/leasehold.toml");
const WAITERS_COMPONENT: &str =
    include_str!("../../k8s/components/autoscaling-waiters/kustomization.yaml");
const CRON_JOB: &str = include_str!("../../examples/kubernetes/cronjob.yaml");
const LEADER: &str = include_str!("../../examples/kubernetes/leader-election.yaml");
const MIGRATION: &str = include_str!("../../examples/kubernetes/migration.yaml");

/// The value behind `key` in the first line that has it.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let mut lines = text.lines().map(str::trim_start);
    let value = lines.find_map(|line| line.strip_prefix(key));
    value.unwrap_or_else(|| panic!("there is no {key}"))
}

fn seconds(text: &str) -> Duration {
    let number = text.trim_matches('"').trim_end_matches('s');
    Duration::from_secs(number.parse().unwrap())
}

/// The time that a pod has to end before it is killed.
fn grace() -> Duration {
    seconds(value(DEPLOYMENT, "terminationGracePeriodSeconds: "))
}

#[test]
fn a_pod_has_drained_before_it_is_killed() {
    let delay = seconds(value(ENVIRONMENT, "LEASEHOLD_SERVER_DRAIN_DELAY="));
    let timeout = match ENVIRONMENT.contains("LEASEHOLD_SERVER_DRAIN_TIMEOUT=") {
        true => seconds(value(ENVIRONMENT, "LEASEHOLD_SERVER_DRAIN_TIMEOUT=")),
        false => seconds(value(DEFAULTS, "drain_timeout = ")),
    };
    // Some seconds to end the tasks in the background and to write the log.
    let rest = Duration::from_secs(5);
    assert!(delay + timeout + rest <= grace(), "{delay:?} {timeout:?}");
    assert!(!DEPLOYMENT.contains("preStop"), "its time would be added");
}

/// A process with a variable that it does not know does not start.
#[test]
fn the_manifests_set_variables_that_exist() {
    let k8s = Path::new(env!("CARGO_MANIFEST_DIR")).join("k8s");
    let directories = ["base", "components", "overlays"].map(|name| k8s.join(name));
    let entries = |directory: &Path| {
        fs::read_dir(directory)
            .unwrap()
            .map(|it| it.unwrap().path())
    };
    let mut files: Vec<_> = directories.iter().flat_map(|it| entries(it)).collect();
    let within: Vec<_> = files.extract_if(.., |path| path.is_dir()).collect();
    files.extend(within.iter().flat_map(|it| entries(it)));
    let mut variables: Vec<(OsString, OsString)> = Vec::new();
    for text in files.iter().map(|file| fs::read_to_string(file).unwrap()) {
        let set = text
            .lines()
            .map(|line| line.trim_start().trim_start_matches("- "));
        let set = set.filter(|line| line.starts_with("LEASEHOLD_"));
        let set = set.filter_map(|line| line.split_once('='));
        variables.extend(set.map(|(name, value)| (name.into(), value.into())));
    }
    assert!(variables.len() > 15, "{variables:?}");
    check_variables(&variables).unwrap();
}

/// With the settings of the manifests, and requests that wait for much longer than the pod has.
#[tokio::test]
async fn a_pod_with_waiting_requests_ends_within_its_grace_period() {
    const WAITERS: usize = 100;
    let delay = value(ENVIRONMENT, "LEASEHOLD_SERVER_DRAIN_DELAY=");
    let mut serving = Serving::start(&["--server-drain-delay", delay]);
    let (client, lock) = (Client::new(), format!("{}/locks/backup", serving.url));
    let granted = client.post(format!("{lock}?ttl=10m")).send().await.unwrap();
    assert_eq!(granted.status().as_u16(), 201);
    let mut waiting = JoinSet::new();
    for _ in 0..WAITERS {
        waiting.spawn(client.post(format!("{lock}?wait=55s")).send());
    }
    eventually("all wait", async || {
        let state: Value = client.get(&lock).send().await.ok()?.json().await.ok()?;
        (state["queue_length"] == WAITERS).then_some(())
    })
    .await;
    let stopped = Instant::now();
    serving.signal(Signal::SIGTERM);
    for answer in waiting.join_all().await {
        let answer = answer.unwrap();
        assert_eq!(answer.status().as_u16(), 503);
        let problem: Value = answer.json().await.unwrap();
        assert_eq!(problem["code"], "draining");
    }
    let left = grace().saturating_sub(stopped.elapsed());
    eventually_within(left, "the process ends", async || {
        serving.has_ended().then_some(())
    })
    .await;
    assert_eq!(serving.wait().code(), Some(0));
}

/// Otherwise a pod would have two threads for each core of its node, with connections to Redis and memory for each.
#[tokio::test]
async fn a_pod_has_as_many_threads_as_the_manifests_say() {
    let threads = value(ENVIRONMENT, "LEASEHOLD_SERVER_WORKER_THREADS=");
    let count: usize = threads.parse().unwrap();
    // Other numbers than those of this machine, too.
    for threads in [count, 1, 7] {
        let serving = Serving::start(&["--server-worker-threads", &threads.to_string()]);
        // A thread has its name a moment after its start.
        eventually("all threads have their names", async || {
            let tasks = fs::read_dir(format!("/proc/{}/task", serving.pid())).ok()?;
            let names = tasks.map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
            let workers =
                names.filter(|name| name.as_ref().is_some_and(|it| it.starts_with("worker-")));
            (workers.count() == threads).then_some(())
        })
        .await;
    }
}

/// One more waiter than a pod has connections for would be refused.
#[test]
fn pods_are_added_before_waiters_use_up_the_connections() {
    let per_pod: u32 = value(WAITERS_COMPONENT, "averageValue: ")
        .trim_matches('"')
        .parse()
        .unwrap();
    let connections = value(ENVIRONMENT, "LEASEHOLD_SERVER_CONNECTIONS_MAX=");
    assert_eq!(per_pod * 2, connections.parse::<u32>().unwrap());
}

/// The command of an example, with another program in the place of that of the image.
fn command(example: &str, serving: &Serving, program: &[&str]) -> Command {
    let words = value(example, "command: [").trim_end_matches(']');
    let words = words.split(", ").collect::<Vec<_>>();
    let (own, of_image) = words.split_at(words.iter().position(|word| *word == "--").unwrap() + 1);
    assert_eq!(own[..2], ["leasehold", "run"]);
    assert!(
        program.is_empty() || of_image[0].starts_with("/app/"),
        "{of_image:?}"
    );
    let of_image = if program.is_empty() {
        of_image
    } else {
        program
    };
    let binary = Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let path = format!("{}:/usr/bin:/bin", binary.parent().unwrap().display());
    let mut command = Command::new(binary);
    command
        .args(
            own[1..]
                .iter()
                .map(|word| word.replace("$(POD_NAME)", "pod-1")),
        )
        .args(of_image)
        .env_clear()
        .envs([("PATH", path.as_str()), ("LEASEHOLD_URL", &serving.url)])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// How often a program runs if its command is started twice, one after the other.
fn runs_of_two(example: &str) -> usize {
    let serving = Serving::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let program = ["sh", "-c", "echo $LEASEHOLD_FENCING_TOKEN >>runs"];
        let mut command = command(example, &serving, &program);
        let status = command.current_dir(&directory).status().unwrap();
        assert!(status.success(), "{status}");
    }
    let runs = std::fs::read_to_string(directory.path().join("runs")).unwrap();
    runs.lines().count()
}

#[test]
fn the_job_runs_once_in_the_fleet() {
    assert_eq!(runs_of_two(CRON_JOB), 1);
}

#[test]
fn the_migration_is_carried_out_by_every_pod_in_turn() {
    assert_eq!(runs_of_two(MIGRATION), 2);
}

/// What the program asks for to learn who leads, and what it writes with.
#[tokio::test]
async fn the_sidecar_leads_as_its_pod_until_it_is_stopped() {
    let serving = Serving::start(&[]);
    let lock = format!(
        "{}/locks{}",
        serving.url,
        value(LEADER, "value: http://leasehold.leasehold:7625/locks")
    );
    let state = async || -> Value { reqwest::get(&lock).await.unwrap().json().await.unwrap() };
    let mut sidecar = command(LEADER, &serving, &[]).spawn().unwrap();
    eventually("it leads", async || {
        let holder = &state().await["holders"][0];
        assert!(holder.is_null() || holder["owner"] == "pod-1", "{holder}");
        holder["fencing_token"].as_u64()
    })
    .await;
    let pid = Pid::from_raw(i32::try_from(sidecar.id()).unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    tokio::task::spawn_blocking(move || sidecar.wait())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(state().await["state"], "free");
}
