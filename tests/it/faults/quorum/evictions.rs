//! Evictions while a node is silent: it ends the same leases once it answers, also one that it gets only then, and no later
//! one.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{addresses, keep, next_fence, process, servers};
use crate::faults::lasting;
use crate::support::fixture::{claim, rival};
use crate::support::redis_server::RedisOptions;

/// Shorter than what goes on of a grant at a node that is silent.
const SILENT: Duration = Duration::from_secs(2);

/// Until the node that is back answers.
const ANSWERS: Duration = Duration::from_millis(500);

/// Longer than a node may get the lease of a grant or a renewal that was answered before.
const SETTLED: Duration = Duration::from_secs(8);

#[tokio::test]
async fn a_node_that_was_silent_ends_the_leases_that_were_evicted_meanwhile_and_no_later_one() {
    let servers = servers(RedisOptions::default()).await;
    let (replica, _) = process(&addresses(&servers)).await;
    let locks = [claim(), claim()].map(lasting);
    for first in &locks {
        replica.granted(first).await;
    }
    servers[2].pause();
    let silent_until = Instant::now() + SILENT;
    for first in &locks {
        let second = rival(first);
        replica.evict(first).await.expect("a majority answers");
        replica.granted(&second).await;
        replica.evict(&second).await.expect("a majority answers");
    }
    let [held, free] = locks.map(|first| rival(&first));
    replica.granted(&held).await;
    sleep_until(silent_until).await;
    servers[2].resume();
    // The node grants nothing yet when the holder renews, once.
    sleep(ANSWERS).await;
    keep(&replica, &held).await;
    sleep(SETTLED).await;
    // From now on, the holder and the next one need the node that was silent.
    servers[0].pause();
    keep(&replica, &held).await;
    next_fence(&replica, &free).await;
    replica.assert_holds(&held).await;
}
