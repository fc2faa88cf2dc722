//! Listings of very many locks in the `memory:` store: other tasks run between their steps.

use std::cell::Cell;
use std::time::Duration;

use leasehold::domain::{Attempt, Claim, LockName, Token};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Deadlines, ListQuery, LockStore};
use tokio::time::Instant;

use crate::support::EFFECT_TIMEOUT;
use crate::support::fixture::{LONG, claim_on, deadline};

/// A closed lock, which a listing reads but does not show.
async fn close(store: &MemoryStore, name: LockName) {
    let claim = Claim {
        min_hold: Some(LONG),
        token: Token::random(),
        ..claim_on(&name)
    };
    let acquiring = store.acquire(&claim, Attempt::random(), None, deadline());
    acquiring.await.expect("there is room");
    let releasing = store.release(&claim.names, claim.token, None, deadline());
    releasing.await.expect("it is held");
}

#[tokio::test(flavor = "current_thread")]
async fn others_run_between_the_steps_of_a_listing() {
    const LOCKS: usize = 20_000;
    let store = MemoryStore::new(LOCKS);
    for number in 0..LOCKS {
        let name = format!("closed/{number}");
        close(&store, LockName::parse(name.as_bytes()).expect("a name")).await;
    }
    let query = ListQuery {
        prefix: "closed/".to_owned(),
        within: None,
        after: None,
        snapshot: None,
        page_size: 10,
    };
    let deadlines = Deadlines {
        step: EFFECT_TIMEOUT,
        end: Instant::now() + EFFECT_TIMEOUT,
    };
    let is_over = Cell::new(false);
    let listings = async {
        let listings = (0..3).map(|_| store.list(&query, deadlines));
        let listings = futures_util::future::join_all(listings).await;
        is_over.set(true);
        listings
    };
    let mut turns = 0_usize;
    let others = async {
        while !is_over.get() {
            turns += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let (listings, ()) = tokio::join!(listings, others);
    for listing in listings {
        assert!(listing.expect("there is time").locks.is_empty());
    }
    assert!(turns > 20, "others had {turns} turns");
}
