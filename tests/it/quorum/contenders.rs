//! Contenders for one lock, each a process with its own delays to each node: split votes end.

use std::time::Duration;

use leasehold::domain::{Acquired, Claim};
use tokio::time::{Instant, sleep};

use super::nodes::{Process, is_granted, plain_stores};
use crate::support::fixture::{Waiter, claim, leases_granted, lock_of, only, rival};
use crate::support::scripted_store::Behavior;

const CONTENDERS: usize = 10;
const RUNS: u64 = 60;

/// How long those go on that try again and again.
const CONTENDED_FOR: Duration = Duration::from_secs(5);

/// Their longest pause.
const RETRY_MAX: Duration = Duration::from_millis(40);

/// How many rounds the winner of one run needed.
async fn rounds_of_winner(random: &mut fastrand::Rng) -> usize {
    let stores = plain_stores(3);
    let first = claim();
    let contenders: Vec<_> = (0..CONTENDERS)
        .map(|_| {
            let process = Process::on(&stores);
            for node in &process.nodes {
                node.behaves(Behavior::Delayed(Duration::from_micros(
                    random.u64(0..2_000),
                )));
            }
            (process, rival(&first))
        })
        .collect();
    let requests = contenders.iter().map(async |(process, claim)| {
        let granted = is_granted(process.acquire(claim).await);
        // A round may be over before it has asked each node, because one still rolls the round before back.
        let asked = process.nodes.iter().map(|node| node.acquires());
        granted.then(|| asked.max().expect("there are nodes"))
    });
    let answers = futures_util::future::join_all(requests).await;
    only(answers.into_iter().flatten().collect())
}

#[tokio::test(start_paused = true)]
async fn ten_contenders_have_a_winner_after_three_rounds_in_the_median() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut rounds = Vec::new();
    for _ in 0..RUNS {
        rounds.push(rounds_of_winner(&mut random).await);
    }
    rounds.sort_unstable();
    let (median, most) = (rounds[rounds.len() / 2], rounds[rounds.len() - 1]);
    println!("rounds of the winner: median {median}, most {most}");
    assert!(median <= 3, "{rounds:?}");
}

/// Three that each get one node first: the queue decides.
#[tokio::test(start_paused = true)]
async fn contenders_that_wait_are_granted_one_after_the_other() {
    let stores = plain_stores(3);
    let first = claim();
    let mut contenders: Vec<_> = (0..3)
        .map(|index| {
            let process = Process::on(&stores);
            for (number, node) in process.nodes.iter().enumerate() {
                let delay = Duration::from_millis(((number + index) % 3) as u64);
                node.behaves(Behavior::Delayed(delay));
            }
            (process, Waiter::new(rival(&first)))
        })
        .collect();
    let mut fences = Vec::new();
    for _ in 0..100 {
        let polls = contenders.iter_mut().map(async |(process, waiter)| {
            let answer = process.fixture.poll(waiter).await;
            match answer {
                Acquired::Granted(_) => Some((leases_granted(answer), waiter.claim.clone())),
                _ => None,
            }
        });
        let answers = futures_util::future::join_all(polls).await;
        let granted: Vec<_> = answers.into_iter().flatten().collect();
        assert!(granted.len() <= 1, "they exclude each other");
        for (leases, claim) in granted {
            fences.push(leases[0].holder.fence);
            let index = contenders
                .iter()
                .position(|(_, waiter)| waiter.claim.token == claim.token);
            let (process, _) = contenders.remove(index.expect("it is one of them"));
            process.fixture.freed(&claim).await;
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(fences.len(), 3, "all have had {}", lock_of(&first));
    assert!(fences.is_sorted(), "{fences:?}");
}

/// Fifty at five processes. Nobody keeps their order, but none is left out. On a stopped clock, how busy the machine is
/// changes nothing.
#[tokio::test(start_paused = true)]
async fn fifty_contenders_that_try_again_and_again_all_have_their_turn() {
    fastrand::seed(7);
    // The longest way to a node in milliseconds, the least number of grants per second, and the longest wait in seconds.
    for (delay_ms, grants_min, wait_max) in [(2, 70, 5), (10, 20, 15)] {
        let stores = plain_stores(3);
        let processes: Vec<_> = (0..5).map(|_| Process::on(&stores)).collect();
        let first = claim();
        let until = Instant::now() + CONTENDED_FOR;
        let clients = (0..50).map(|number| {
            let process = &processes[number % processes.len()];
            turns(process, &first, Duration::from_millis(delay_ms), until)
        });
        let waits = futures_util::future::join_all(clients).await;
        let mut waits: Vec<_> = waits.into_iter().flatten().collect();
        waits.sort_unstable();
        let grants = waits.len();
        let (median, most) = (waits[grants / 2], waits[grants - 1]);
        let per_second = grants as f64 / CONTENDED_FOR.as_secs_f64();
        println!(
            "nodes up to {delay_ms} ms away: {per_second:.0} grants/s, after {median:.1?} in the median, {most:.1?} at most"
        );
        assert!(per_second >= f64::from(grants_min), "{per_second} grants/s");
        assert!(most <= Duration::from_secs(wait_max), "one waited {most:?}");
    }
}

/// Acquires and releases the lock until then, without its queue. Returns how long each acquire took.
async fn turns(process: &Process, lock: &Claim, delay: Duration, until: Instant) -> Vec<Duration> {
    let mut waits = Vec::new();
    while Instant::now() < until {
        let (claim, since) = (rival(lock), Instant::now());
        loop {
            for node in &process.nodes {
                node.behaves(Behavior::Delayed(
                    delay.mul_f64(0.1 + 0.9 * fastrand::f64()),
                ));
            }
            if is_granted(process.acquire(&claim).await) {
                break;
            }
            sleep(RETRY_MAX.mul_f64(fastrand::f64())).await;
        }
        waits.push(since.elapsed());
        sleep(Duration::from_millis(1)).await;
        process.fixture.freed(&claim).await;
    }
    waits
}
