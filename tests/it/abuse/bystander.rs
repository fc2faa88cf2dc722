//! The client that must not notice an attack: it holds a lock, uses others, and asks whether the process lives.
//!
//! It runs on a thread of its own, so that an attacker in the same test delays it only as far as cores are shared.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{PROBE, ask, is_full};

/// The lease that the bystander must not lose.
pub(super) const LEASE: &str = "ttl=3s";
pub(super) const LEASE_MS: &str = "3000";
/// How many cycles a full run measures, before an attack and during it.
const MEASURED: usize = 300;
/// How much longer the 99th percentile of its cycles may take during an attack.
const SLOWER_AT_MOST: u32 = 10;

/// What a bystander does besides asking whether the process lives.
#[derive(Clone, Copy)]
pub(super) enum Use {
    /// It renews a lock, and acquires and releases another one.
    Locks,
    /// It renews its lock. That goes on when the store is full.
    ItsLock,
}

/// A bystander at work.
pub(super) struct Bystander {
    ends: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    cycles: JoinHandle<Vec<Duration>>,
    /// What its cycles took before the attack. A usual run has none, as the machine is busy with other tests.
    quiet: Vec<Duration>,
}

impl Bystander {
    /// Starts before the attack does.
    pub(super) async fn start(address: SocketAddr, uses: Use) -> Self {
        let mut bystander = Self::begin(address, uses);
        if is_full() {
            bystander.quiet = bystander.cycles_of(MEASURED).await;
            bystander = Self {
                quiet: bystander.quiet,
                ..Self::begin(address, uses)
            };
        }
        bystander
    }

    fn begin(address: SocketAddr, uses: Use) -> Self {
        let (ends, done) = (Arc::default(), Arc::default());
        let at_work = bystand(address, uses, Arc::clone(&ends), Arc::clone(&done));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        Self {
            ends,
            done,
            cycles: tokio::task::spawn_blocking(move || runtime.block_on(at_work)),
            quiet: Vec::new(),
        }
    }

    /// Fails if the bystander has noticed anything.
    pub(super) async fn noticed_nothing(self) {
        self.noticed_no_more_than(Duration::ZERO).await;
    }

    /// Fails if the bystander has noticed anything but cycles that took as long as this.
    pub(super) async fn noticed_no_more_than(mut self, elsewhere: Duration) {
        let attacked = self.attacked().await;
        if is_full() {
            let quiet = p99(&mut self.quiet);
            let ratio = attacked.as_secs_f64() / quiet.as_secs_f64();
            println!("bystander: p99 {quiet:?} before, {attacked:?} under attack: {ratio:.1}");
            assert!(
                attacked <= elsewhere.max(quiet * SLOWER_AT_MOST),
                "{ratio:.1} times"
            );
        }
    }

    /// Ends it, and returns the 99th percentile of its cycles.
    pub(super) async fn attacked(&mut self) -> Duration {
        let least = if is_full() { MEASURED } else { 1 };
        p99(&mut self.cycles_of(least).await)
    }

    /// Ends it after so many cycles.
    async fn cycles_of(&mut self, least: usize) -> Vec<Duration> {
        while self.done.load(Ordering::Relaxed) < least && !self.cycles.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.ends.store(true, Ordering::Relaxed);
        (&mut self.cycles).await.expect("the bystander noticed")
    }
}

pub(super) fn p99(cycles: &mut [Duration]) -> Duration {
    cycles.sort_unstable();
    cycles[(cycles.len() - 1) * 99 / 100]
}

/// Returns what each cycle took.
async fn bystand(
    address: SocketAddr,
    uses: Use,
    ends: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
) -> Vec<Duration> {
    let held = expect(address, "POST", "/locks/bystander", LEASE, 201).await;
    let held = token(&held);
    let renewal = format!("{held}&{LEASE}");
    let mut cycles = Vec::new();
    loop {
        let is_last = ends.load(Ordering::Relaxed);
        let begun = Instant::now();
        let took = [probe(address).await, probe(address).await];
        let in_time = took.iter().filter(|took| **took < PROBE).count();
        // A machine that is busy with other tests may let one probe wait, but hardly the next one too.
        let expected = if is_full() { took.len() } else { 1 };
        assert!(in_time >= expected, "probes took {took:?}");
        let other = match uses {
            Use::Locks => Some(expect(address, "POST", "/locks/other", LEASE, 201).await),
            Use::ItsLock => None,
        };
        expect(address, "PUT", "/locks/bystander", &renewal, 200).await;
        if let Some(other) = other {
            expect(address, "DELETE", "/locks/other", &token(&other), 204).await;
        }
        cycles.push(begun.elapsed());
        done.fetch_add(1, Ordering::Relaxed);
        if is_last {
            expect(address, "DELETE", "/locks/bystander", &held, 204).await;
            return cycles;
        }
        let pause = if is_full() { 5 } else { 50 };
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

fn token(grant: &str) -> String {
    let grant: serde_json::Value = serde_json::from_str(grant).unwrap();
    format!("token={}", grant["token"].as_str().unwrap())
}

async fn probe(address: SocketAddr) -> Duration {
    let asked = Instant::now();
    expect(address, "GET", "/livez", "", 200).await;
    asked.elapsed()
}

pub(super) async fn expect(
    address: SocketAddr,
    method: &str,
    path: &str,
    form: &str,
    status: u16,
) -> String {
    let (answered, body) = ask(address, method, path, form)
        .await
        .unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    assert_eq!(answered, status, "{method} {path}: {body}");
    body
}
