//! Permits: majorities alone do not keep a limit of two or more, since each node counts only what it has granted.

use std::time::Duration;

use leasehold::domain::Claim;

use super::nodes::{Process, is_granted, plain_stores};
use crate::support::fixture::{claim, in_mode, permits, rival};
use crate::support::scripted_store::Behavior;

/// Each of three claims gets two of three nodes, and each node grants two claims.
#[tokio::test(start_paused = true)]
async fn a_limit_is_kept_by_claims_that_each_have_another_majority() {
    const DELAYS_MS: [[u64; 3]; 3] = [[0, 20, 1], [1, 0, 20], [20, 1, 0]];
    let stores = plain_stores(3);
    let first = in_mode(&claim(), permits(1, 2));
    let contenders = DELAYS_MS.map(|delays| {
        let process = Process::on(&stores);
        for (node, delay_ms) in process.nodes.iter().zip(delays) {
            node.behaves(Behavior::Delayed(Duration::from_millis(delay_ms)));
        }
        let claim = Claim {
            mode: first.mode,
            ..rival(&first)
        };
        (process, claim)
    });
    let requests = contenders
        .iter()
        .map(|(process, claim)| process.acquire(claim));
    let answers = futures_util::future::join_all(requests).await;
    let granted = answers
        .into_iter()
        .filter(|answer| is_granted(answer.clone()));
    assert_eq!(granted.count(), 2, "as many as there are permits");
}

#[tokio::test(start_paused = true)]
async fn as_many_hold_as_there_are_permits_without_one_node() {
    for down in 0..3 {
        let process = Process::alone();
        process.without(&[down]);
        let first = in_mode(&claim(), permits(1, 3));
        for _ in 0..3 {
            let next = Claim {
                mode: first.mode,
                ..rival(&first)
            };
            process.fixture.granted(&next).await;
        }
        assert!(!is_granted(process.acquire(&first).await));
    }
}
