//! What nobody receives is rolled back in the background: again and again, often enough, and for as long as it matters.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::domain::{Claim, LockState};
use leasehold::service::{HoldEvent, LockService};
use tokio::time::sleep;

use super::staged::Staged;
use super::{LONG_WAIT, Waiting, assert_idle, held, rivals, settle, takes, view};
use crate::support::fixture::{LONG, claim, rival, ttl};

/// How soon a store that is back is asked again.
const SOON: Duration = Duration::from_millis(1_010);
/// So long is the store away: nearly as long as the lease lasts.
const AWAY: Duration = Duration::from_secs(57);

/// Brings the store down, by what is done with it: it cannot be reached, or what is sent to it is lost.
const WAYS: [fn(&Staged, bool); 2] = [Staged::goes_down, Staged::goes_silent];

async fn is_held(service: &LockService, claim: &Claim) -> bool {
    matches!(view(service, claim).await.state, LockState::Held(_))
}

/// A store is away while something is to be rolled back, and back before that has come about by itself.
async fn is_rolled_back(
    (service, store): (LockService, Arc<Staged>),
    claim: &Claim,
    goes: fn(&Staged, bool),
    hang_up: impl FnOnce(),
) {
    goes(&store, true);
    hang_up();
    sleep(AWAY).await;
    goes(&store, false);
    assert!(is_held(&service, claim).await, "it is not over yet");
    sleep(SOON).await;
    assert_idle(&service, claim).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_received_is_given_back_however_long_the_store_is_away() {
    for goes in WAYS {
        let (service, store) = Staged::service();
        let claim = Arc::new(claim());
        let answer = service.acquire(Arc::clone(&claim), Duration::ZERO).await;
        let hang_up = || drop(answer);
        is_rolled_back((service, store), &claim, goes, hang_up).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_answer_was_lost_is_given_back_however_long_the_store_is_away() {
    for goes in WAYS {
        let (service, store) = Staged::service();
        let holder = held(&service).await;
        let claim = Arc::new(rival(&holder));
        store.next([super::staged::Fate::Lost]);
        super::releases(&service, &holder).await;
        let asked = service.acquire(Arc::clone(&claim), LONG_WAIT).await;
        assert!(asked.is_err(), "its answer is lost");
        is_rolled_back((service, store), &claim, goes, || {}).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_stream_gives_its_lock_back_however_long_the_store_is_away() {
    for goes in WAYS {
        let (service, store) = Staged::service();
        let claim = Arc::new(claim());
        let mut hold = service.hold(Arc::clone(&claim), None);
        let event = hold.next().await;
        assert!(
            matches!(event, Some(HoldEvent::Acquired { .. })),
            "{event:?}"
        );
        let hang_up = || drop(hold);
        is_rolled_back((service, store), &claim, goes, hang_up).await;
    }
}

/// What counts is how long the lease lasts, not what the stream asked for that took it over.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_over_is_given_back_however_long_it_lasts() {
    for was_told in [true, false] {
        let (service, store) = Staged::service();
        let claim = Arc::new(claim());
        takes(&service, &claim).await;
        let brief = Arc::new(Claim {
            ttl: ttl(Duration::from_secs(3)),
            ..Claim::clone(&claim)
        });
        let mut hold = service.hold(brief, None);
        if was_told {
            let event = hold.next().await;
            assert!(
                matches!(event, Some(HoldEvent::Acquired { .. })),
                "{event:?}"
            );
        }
        settle().await;
        let hang_up = || drop(hold);
        is_rolled_back((service, store), &claim, Staged::goes_down, hang_up).await;
    }
}

/// Not so often that a store that comes back is kept busy with it, and not for ever.
#[tokio::test(start_paused = true)]
async fn tries_to_roll_back_are_spaced_and_end_when_the_lease_has() {
    for goes in WAYS {
        let (service, store) = Staged::service();
        let answer = service.acquire(Arc::new(claim()), Duration::ZERO).await;
        goes(&store, true);
        drop(answer);
        settle().await;
        let tries = || store.endings().len();
        assert_eq!(tries(), 1);
        sleep(Duration::from_secs(10)).await;
        assert!((10..=20).contains(&tries()), "{} tries in 10 s", tries());
        sleep(LONG - Duration::from_secs(10)).await;
        let in_all = tries();
        assert!((60..=70).contains(&in_all), "{in_all} tries in a minute");
        sleep(LONG).await;
        assert!(tries() <= in_all + 5, "{} tries", tries());
    }
}

/// For less time than it takes until a process that does not ask is passed over with all of its waiters.
#[tokio::test(start_paused = true)]
async fn a_claim_that_hung_up_steps_out_of_the_queue_when_the_store_is_back() {
    for goes in WAYS {
        let (service, store) = Staged::service();
        let holder = held(&service).await;
        let [first, second] = &rivals(&holder, 2)[..] else {
            unreachable!("there are two")
        };
        let waiting = Waiting::standing(&service, first, LONG_WAIT).await;
        let behind = Waiting::standing(&service, second, LONG_WAIT).await;
        goes(&store, true);
        waiting.hangs_up().await;
        sleep(Duration::from_secs(2)).await;
        goes(&store, false);
        assert_eq!(view(&service, &holder).await.queue.length, 2);
        sleep(SOON).await;
        assert_eq!(view(&service, &holder).await.queue.length, 1);
        super::releases(&service, &holder).await;
        behind.granted().await;
    }
}
