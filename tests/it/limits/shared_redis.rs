//! What another program on the same Redis notices of listings: how long its requests take meanwhile. A usual run is small
//! and shows that all are served; a full one prints figures for the documentation.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::domain::Claim;
use leasehold::store::{Deadlines, ListQuery};
use tokio::time::{Instant, interval};

use crate::support::fixture::{Fixture, claim_on, name, ttl};
use crate::support::neighbour::FOREIGN_KEY;

/// Between two requests of the other program.
const PAUSE: Duration = Duration::from_micros(500);
/// Far more than a listing takes.
const LISTING_TIMEOUT: Duration = Duration::from_secs(600);

/// How much of everything.
#[derive(Clone, Copy)]
struct Size {
    foreign_keys: usize,
    locks: usize,
    rounds: usize,
    /// How long each case is measured in a round.
    lasts: Duration,
}

const USUAL: Size = Size {
    foreign_keys: 10_000,
    locks: 500,
    rounds: 1,
    lasts: Duration::from_millis(300),
};
const FULL: Size = Size {
    foreign_keys: 1_000_000,
    locks: 100_000,
    rounds: 5,
    lasts: Duration::from_secs(10),
};

#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
fn size() -> Size {
    let is_full = std::env::var("LEASEHOLD_SHARED_REDIS").is_ok_and(|size| size == "full");
    if is_full { FULL } else { USUAL }
}

/// The other program. It reads and writes its keys, one after the other, and returns how long each request took, the
/// shortest first.
#[allow(
    clippy::disallowed_methods,
    reason = "it has a thread of its own, so that it waits for nothing but Redis"
)]
fn requests(port: u16, keys: usize, lasts: Duration) -> Vec<Duration> {
    let mut redis = TcpStream::connect(("127.0.0.1", port)).unwrap();
    redis.set_nodelay(true).unwrap();
    let (began, mut took) = (Instant::now(), Vec::new());
    while began.elapsed() < lasts {
        let key = format!("{FOREIGN_KEY}{}", fastrand::usize(..keys));
        let (command, answer) = match took.len() % 2 {
            0 => (format!("GET {key}\r\n"), "$1\r\nx\r\n"),
            _ => (format!("SET {key} x\r\n"), "+OK\r\n"),
        };
        let (sent, mut bytes) = (Instant::now(), vec![0; answer.len()]);
        redis.write_all(command.as_bytes()).unwrap();
        redis.read_exact(&mut bytes).unwrap();
        took.push(sent.elapsed());
        assert_eq!(bytes, answer.as_bytes());
        thread::sleep(PAUSE);
    }
    took.sort();
    took
}

/// Runs this beside what a process does all the time: it checks Redis, and counts the locks that are held.
async fn beside_checks<T>(fixture: &Fixture, running: impl Future<Output = T>) -> T {
    let store = fixture.store();
    let checks = async {
        let mut ticks = interval(store.check_interval());
        loop {
            ticks.tick().await;
            store.refresh_health().await;
        }
    };
    let counts = async {
        let mut ticks = interval(store.check_interval());
        loop {
            ticks.tick().await;
            store.sweep().await;
        }
    };
    tokio::select! {
        done = running => done,
        () = checks => unreachable!("they do not end"),
        () = counts => unreachable!("they do not end"),
    }
}

/// Holds this number of locks for longer than the test lasts.
async fn hold(fixture: &Fixture, count: usize) {
    let numbers: Vec<_> = (0..count).collect();
    for numbers in numbers.chunks(100) {
        let granting = numbers.iter().map(async |number| {
            let lock = name(&format!("held/{number}"));
            let ttl = ttl(Duration::from_secs(3600));
            fixture
                .granted(&Claim {
                    ttl,
                    ..claim_on(&lock)
                })
                .await;
        });
        join_all(granting).await;
    }
}

/// Lists all locks again and again, page by page, and has at least a first page when it ends. Returns how long the first page of each listing took: it visits all
/// keys.
async fn list(fixture: &Fixture, locks: usize, is_over: &AtomicBool) -> Vec<Duration> {
    let mut first_pages = Vec::new();
    loop {
        let (began, mut listed) = (Instant::now(), 0);
        let (mut after, mut snapshot) = (None, None);
        loop {
            if is_over.load(Ordering::Relaxed) && !first_pages.is_empty() {
                return first_pages;
            }
            let query = ListQuery {
                prefix: String::new(),
                within: None,
                after: after.take(),
                snapshot: snapshot.take(),
                page_size: 1_000,
            };
            let end = Instant::now() + LISTING_TIMEOUT;
            let deadlines = Deadlines {
                step: LISTING_TIMEOUT,
                end,
            };
            let listing = fixture.store().list(&query, deadlines).await.unwrap();
            if listed == 0 {
                first_pages.push(began.elapsed());
            }
            listed += listing.locks.len();
            (after, snapshot) = (listing.next_after, listing.snapshot);
            if after.is_none() {
                break;
            }
        }
        assert_eq!(listed, locks);
    }
}

/// What the other program notices in one case, in each round.
#[derive(Default)]
struct Noticed {
    medians: Vec<Duration>,
    /// What one of a hundred exceeds.
    tails: Vec<Duration>,
    longest: Vec<Duration>,
    /// How long the first page of a listing takes.
    first_pages: Vec<Duration>,
}

impl Noticed {
    async fn measure(&mut self, port: u16, listed: Option<&Fixture>, size: Size) {
        let is_over = AtomicBool::new(false);
        let other = async {
            let requests = move || requests(port, size.foreign_keys, size.lasts);
            let took = tokio::task::spawn_blocking(requests).await.unwrap();
            is_over.store(true, Ordering::Relaxed);
            took
        };
        let listing = async {
            match listed {
                Some(fixture) => beside_checks(fixture, list(fixture, size.locks, &is_over)).await,
                None => Vec::new(),
            }
        };
        let (took, first_pages) = tokio::join!(other, listing);
        self.medians.push(took[took.len() / 2]);
        self.tails.push(took[took.len() * 99 / 100]);
        self.longest.push(took[took.len() - 1]);
        self.first_pages.extend(first_pages);
    }

    fn print(self, case: &str) {
        let of_case = [self.medians, self.tails, self.longest, self.first_pages];
        let [p50, p99, longest, first_page] = of_case.map(|mut it| {
            it.sort();
            let median = it.get(it.len() / 2);
            median.map_or("none".to_owned(), |it| format!("{it:.2?}"))
        });
        println!("{case}: p50 {p50}, p99 {p99}, longest {longest}, first page {first_page}");
    }
}

#[tokio::test]
async fn another_program_is_served_while_locks_are_listed_in_its_database_and_in_another() {
    let size = size();
    let same = Fixture::redis_alone().await;
    let redis = same.redis_behind().server;
    redis.fill_with_foreign_keys(size.foreign_keys).await;
    let own = Fixture::on_server(redis, 5).await;
    for fixture in [&same, &own] {
        beside_checks(fixture, hold(fixture, size.locks)).await;
    }
    let cases = [
        ("without Leasehold", None),
        ("own database", Some(&own)),
        ("same database", Some(&same)),
    ];
    let mut noticed: [Noticed; 3] = Default::default();
    for _ in 0..size.rounds {
        for ((_, listed), noticed) in cases.iter().zip(&mut noticed) {
            noticed.measure(redis.port(), *listed, size).await;
        }
    }
    for ((case, listed), noticed) in cases.into_iter().zip(noticed) {
        assert!(!noticed.medians.is_empty());
        assert_eq!(noticed.first_pages.is_empty(), listed.is_none());
        noticed.print(case);
    }
}
