//! redis-benchmark with the very call that the service makes: what Redis does alone is the floor under everything.

use std::process::{Command, Stdio};

use sha2::{Digest as _, Sha256};

use super::{redis_pid, redis_url};
use crate::http1::{Connection, Request};
use crate::machine::{Served, cpu_seconds};
use crate::monitor::Monitor;
use crate::redis_server::{RedisOptions, RedisServer};

const NAME: &str = "orders-to-be-replaced";
const TOKEN: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";
/// About so many calls in a second, to know how many take the time that there is.
const EXPECTED_PER_SECOND: f64 = 60_000.0;

/// Calls in a second, one at a time on each of 64 connections, and with 16 at a time on 4.
pub(super) async fn measure(seconds: f64) -> [f64; 2] {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let call = recorded(&redis, Served::leasehold(&redis_url(&redis), &[])).await;
    [["-c", "64", "-P", "1"], ["-c", "4", "-P", "16"]]
        .map(|shape| benchmark(&redis, &call, shape, seconds))
}

/// CPU time in µs of a call that this process makes to its Redis, with these numbers of calls at a time on 4 connections.
pub(super) async fn cpu_us<const COUNT: usize>(
    redis: &RedisServer,
    served: Served,
    at_a_time: [&str; COUNT],
    seconds: f64,
) -> [f64; COUNT] {
    let call = recorded(redis, served).await;
    let pid = redis_pid(redis).await;
    at_a_time.map(|at_a_time| {
        let before = cpu_seconds(pid);
        benchmark(redis, &call, ["-c", "4", "-P", at_a_time], seconds);
        (cpu_seconds(pid) - before) / calls(seconds) * 1e6
    })
}

/// The arguments of one acquire, as Redis hears them.
async fn recorded(redis: &RedisServer, served: Served) -> Vec<Vec<u8>> {
    let mut monitor = Monitor::start(&redis.address()).await;
    let mut client = Connection::open(served.address).await.unwrap();
    let request = Request {
        method: "POST",
        path: &format!("/locks/{NAME}"),
        token: Some(TOKEN),
        body: "ttl=60s",
    };
    let answer = client.ask(request).await.unwrap();
    assert_eq!(answer.status, 201);
    let is_of_lock = |word: &Vec<u8>| String::from_utf8_lossy(word).contains(NAME);
    let mut executed = monitor.take().await.into_iter();
    let acquire =
        executed.find(|call| call.name() == "evalsha" && call.words.iter().any(is_of_lock));
    acquire.expect("an acquire").words
}

fn benchmark(redis: &RedisServer, call: &[Vec<u8>], shape: [&str; 4], seconds: f64) -> f64 {
    let port = redis.address().rsplit_once(':').unwrap().1.to_owned();
    let count = calls(seconds);
    let output = Command::new("redis-benchmark")
        .args([
            "-p",
            &port,
            "-n",
            &count.to_string(),
            "-r",
            "1000000000",
            "--csv",
        ])
        .args(shape)
        .args(call.iter().map(|argument| changing(argument)))
        .stderr(Stdio::null())
        .output()
        .expect("redis-benchmark is installed (scripts/bench does it)");
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = text.lines().last().unwrap_or_default();
    let per_second = figures
        .rsplit_once("\",\"")
        .and_then(|_| figures.split("\",\"").nth(1));
    per_second
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("redis-benchmark said: {text}"))
}

/// How many calls are made.
fn calls(seconds: f64) -> f64 {
    (EXPECTED_PER_SECOND * seconds).round()
}

/// An argument that is another one in each call, where that of each acquire is: the name, the claim's digest. What else is
/// no text, the attempt, becomes text of the same length.
fn changing(argument: &[u8]) -> String {
    let digest = Sha256::new()
        .chain_update(uuid::Uuid::parse_str(TOKEN).unwrap().as_bytes())
        .chain_update(NAME)
        .finalize();
    let mut argument = argument.to_vec();
    for whole in [&digest[..], &digest[..16], NAME.as_bytes()] {
        if let Some(at) = argument.windows(whole.len()).position(|part| part == whole) {
            let fresh = format!(
                "{:x<1$}__rand_int__",
                "",
                whole.len() - "__rand_int__".len()
            );
            argument.splice(at..at + whole.len(), fresh.into_bytes());
        }
    }
    let letters = argument.into_iter().map(|byte| {
        if (b' '..=b'~').contains(&byte) {
            byte
        } else {
            b'x'
        }
    });
    String::from_utf8(letters.collect()).expect("ASCII")
}
