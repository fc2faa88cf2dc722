//! A process is stopped while hundreds of clients wait on it, or thousands in full size.

use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::Client;
use super::fleet::Fleet;
use super::http1::Answer;
use super::pace::{Spread, Turn, Turns};
use super::{LASTING, bound, size};

const LOCK: &str = "draining/line";
/// The number of waiters on the process that stops; for every `ONE_ELSEWHERE_OF` of them, one more waits on another
/// process.
const WAITERS: usize = 500;
const WAITERS_FULL: usize = 5_000;
const ONE_ELSEWHERE_OF: usize = 10;
const HOLD: Duration = Duration::from_millis(1);
/// How soon after the stop signal all waiters must have a response.
const AT_ONCE: Duration = Duration::from_millis(500);
/// The `terminationGracePeriodSeconds` of the manifests, after which a process would be killed.
const GRACE: Duration = Duration::from_secs(30);

/// Waits for the response that the process stops. When its gate opens, it moves to another process and takes its turn.
async fn moved(
    mut client: Client,
    number: usize,
    answered: oneshot::Sender<Instant>,
    go: oneshot::Receiver<()>,
) -> Turn {
    let answer = client.ask("POST", LASTING).await.expect("it is answered");
    assert_told_to_move(&answer, &client.token);
    answered.send(answer.at).expect("the test waits for it");
    go.await.expect("the test lets it");
    client.move_on();
    client.take_turn(number, LASTING, HOLD).await
}

fn assert_told_to_move(answer: &Answer, token: &str) {
    let problem = answer.json();
    assert_eq!(answer.status, 503, "{problem}");
    assert_eq!(problem["code"], "draining");
    assert_eq!(problem["token"], token);
    assert!(problem["place_kept_ms"].as_u64() > Some(0), "{problem}");
    // A busy process leaves the position out rather than delay the response.
    assert_ne!(problem["position"], 0, "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_waiters_of_a_process_that_stops_go_on_elsewhere_in_their_order_and_it_ends_in_time() {
    let waiters = size(WAITERS, WAITERS_FULL);
    let mut fleet = Fleet::start_keeping("1m", 3).await;
    let mut holder = fleet.client(1, LOCK);
    let mut watcher = fleet.client(2, LOCK);
    holder.granted(LASTING).await;
    let mut clients = JoinSet::new();
    let (mut responses, mut gates) = (Vec::new(), Vec::new());
    let all = waiters + waiters / ONE_ELSEWHERE_OF;
    for number in 0..all {
        if number % (ONE_ELSEWHERE_OF + 1) == 0 {
            let mut client = fleet.client(1, LOCK);
            clients.spawn(async move { client.take_turn(number, LASTING, HOLD).await });
        } else {
            let ((tell, response), (gate, go)) = (oneshot::channel(), oneshot::channel());
            clients.spawn(moved(fleet.client(0, LOCK), number, tell, go));
            responses.push(response);
            gates.push(gate);
        }
        watcher.until_queued(number + 1).await;
    }
    let stopped = Instant::now();
    fleet.signal(0, Signal::SIGTERM);
    let answered = futures_util::future::join_all(responses).await.into_iter();
    let answered: Spread = answered
        .map(|at| at.expect("a response") - stopped)
        .collect();
    println!("{waiters} waiters sent elsewhere after SIGTERM: {answered}");
    assert!(
        answered.max() <= bound(AT_ONCE),
        "late responses: {answered}"
    );
    let status = fleet.ended(0, GRACE).await;
    println!("the process ended {:?} after SIGTERM", stopped.elapsed());
    assert_eq!(status.code(), Some(0), "it was not stopped well");
    watcher.until_queued(all - waiters).await;
    // They come back in another order.
    for gate in gates.into_iter().rev() {
        gate.send(()).expect("it waits for it");
    }
    watcher.until_queued(all).await;
    holder.release().await;
    let turns = Turns::new(clients.join_all().await);
    println!("then {} hand-overs: {}", all - 1, turns.hand_overs());
    assert_eq!(turns.inversions(), 0, "granted before an earlier one");
    fleet.becomes_empty(crate::support::EFFECT_TIMEOUT).await;
}
