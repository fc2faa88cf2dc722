//! Acquire, renew, release, again and again, at half of what the service can do: how far the slow cycles are from the
//! usual ones.
//!
//! Cycles begin when a clock says so, not when the one before is over, and count from the moment at which they should have
//! begun (an open loop): what waits for its turn is not left out. The clock is a thread of its own that sleeps for a tenth
//! of a millisecond at a time, because the runtime's timers only know whole ones.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Plan, redis_url};
use crate::http1::{Connection, Request};
use crate::machine::{Served, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::{Finding, percentile};

const NAME: &str = "cycles";
const CONNECTIONS: usize = 64;
const TICK: Duration = Duration::from_micros(100);

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let mut findings = Vec::new();
    for (store, url) in [("memory:", "memory:"), ("redis://", &redis_url(&redis))] {
        let served = Served::leasehold(url, &[]);
        let (mut rates, mut p50, mut p99) = (Vec::new(), Vec::new(), Vec::new());
        for round in 1..=plan.rounds {
            eprintln!("  {store}: round {round}");
            let (full, mut took) = undisturbed(async || {
                let full = drive(&served, plan.seconds, None).await.len() as f64 / plan.seconds;
                (full, drive(&served, plan.seconds, Some(full / 2.0)).await)
            })
            .await;
            took.sort_by(f64::total_cmp);
            rates.push(took.len() as f64 / plan.seconds / full);
            p50.push(percentile(&took, 50));
            p99.push(percentile(&took, 99));
        }
        let ratio = super::ratios(&p99, &p50);
        let of = |what: &str| format!("{store} {what}");
        findings.push(Finding::new(NAME, of("p99 over p50"), "", ratio).at_most(4.0));
        findings.push(Finding::new(NAME, of("p50 of a cycle"), "µs", p50));
        findings.push(Finding::new(NAME, of("p99 of a cycle"), "µs", p99));
        findings.push(Finding::new(NAME, of("load over full load"), "", rates));
    }
    findings
}

/// When cycles should begin: at once, one after the other, or by the clock.
type Starts = Arc<Mutex<mpsc::UnboundedReceiver<Instant>>>;

/// Cycles for so long, at so many in a second or as fast as they go. How long each took, in microseconds.
async fn drive(served: &Served, seconds: f64, rate: Option<f64>) -> Vec<f64> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let starts: Option<Starts> = rate.map(|rate| Arc::new(Mutex::new(clock(rate, end))));
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let connection = Connection::open(served.address).await.unwrap();
        clients.spawn(client(connection, starts.clone(), end));
    }
    clients.join_all().await.concat()
}

/// Tells when cycles are due, until the end.
fn clock(rate: f64, end: Instant) -> mpsc::UnboundedReceiver<Instant> {
    let (tx, rx) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let (began, mut told) = (Instant::now(), 0);
        while Instant::now() < end {
            let due = (began.elapsed().as_secs_f64() * rate) as u64;
            for number in told..due {
                let _ = tx.send(began + Duration::from_secs_f64(number as f64 / rate));
            }
            told = due;
            std::thread::sleep(TICK);
        }
    });
    rx
}

async fn client(mut connection: Connection, starts: Option<Starts>, end: Instant) -> Vec<f64> {
    let (token, mut took) = (uuid::Uuid::new_v4().to_string(), Vec::new());
    for number in 0_u64.. {
        let begin = match &starts {
            Some(starts) => starts.lock().await.recv().await,
            None => Some(Instant::now()).filter(|now| *now < end),
        };
        let Some(begin) = begin else {
            break;
        };
        let path = format!("/locks/cycle-{}-{number}", &token[..13]);
        for (method, body, status) in [
            ("POST", "ttl=60s", 201),
            ("PUT", "", 200),
            ("DELETE", "", 204),
        ] {
            let request = Request {
                method,
                path: &path,
                token: Some(&token),
                body,
            };
            assert_eq!(connection.ask(request).await.unwrap().status, status);
        }
        took.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    took
}
