//! Contract tests of the embedded store's limit: everything that it keeps counts, for exactly as long as it is kept.
//! Random histories are counted in `model`.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold::domain::{Attempt, Claim, Holder};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Fault, LockStore as _, TOMBSTONE_TTL};

use super::several::claim_on_fresh;
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, Waiter, at_depth, claim, claim_on, deadline, for_short, in_mode,
    lock_of, metadata, names, owner, permits, reader, rival,
};

/// A small store.
struct Capacity {
    store: Arc<MemoryStore>,
    fixture: Fixture,
}

impl Capacity {
    fn of(locks_max: usize) -> Self {
        let store = Arc::new(MemoryStore::new(locks_max));
        let fixture = Fixture::on(Arc::clone(&store) as _, None);
        Self { store, fixture }
    }

    #[track_caller]
    fn counts(&self, expected: usize) {
        assert_eq!(self.store.count_kept(), expected);
    }

    async fn refuses(&self, claim: &Claim) {
        let answer = self.fixture.attempt(claim, Attempt::random()).await;
        let error = answer.expect_err("there is no room");
        assert_eq!(error.fault(), Fault::Limit);
    }

    async fn refuses_to_queue(&self, waiter: &Waiter) {
        let Waiter {
            claim,
            attempt,
            queue_request,
        } = waiter;
        let answer = self
            .store
            .acquire(claim, *attempt, Some(queue_request), deadline());
        let error = answer.await.expect_err("there is no room");
        assert_eq!(error.fault(), Fault::Limit);
    }

    /// Fails unless nothing counts after everything has expired and was swept.
    async fn is_empty_afterwards(&self) {
        self.fixture.advance(LONG * 10 + TOMBSTONE_TTL).await;
        self.store.refresh_health().await;
        self.counts(0);
    }
}

/// The claim with this many bytes of owner and metadata in total.
fn with_text(claim: &Claim, bytes: usize) -> Claim {
    let owner = owner("pod-1");
    let left = bytes - owner.as_str().len() - r#"{"m":""}"#.len();
    let metadata = metadata(&format!(r#"{{"m":"{}"}}"#, "x".repeat(left)));
    assert_eq!(
        metadata.as_ref().map(|it| it.as_json().len()),
        Some(bytes - 5)
    );
    Claim {
        owner,
        metadata,
        ..claim.clone()
    }
}

pub(super) async fn every_holder_of_a_shared_lock_counts(_: &Fixture) {
    let capacity = Capacity::of(3);
    let first = in_mode(&claim(), READ);
    let second = reader(&first);
    for claim in [&first, &second, &reader(&first)] {
        capacity.fixture.granted(claim).await;
    }
    capacity.counts(3);
    capacity.refuses(&reader(&first)).await;
    capacity.fixture.freed(&second).await;
    capacity.fixture.granted(&reader(&first)).await;
    capacity.is_empty_afterwards().await;
}

pub(super) async fn a_claim_counts_for_each_of_its_locks(_: &Fixture) {
    let capacity = Capacity::of(7);
    let (several, locks) = claim_on_fresh::<3>();
    let several = in_mode(&several, READ);
    capacity.fixture.all_granted(&several).await;
    capacity.fixture.all_granted(&reader(&several)).await;
    capacity.counts(6);
    capacity.refuses(&reader(&several)).await;
    capacity
        .fixture
        .granted(&in_mode(&claim_on(&locks[0]), READ))
        .await;
    capacity.counts(7);
    capacity.is_empty_afterwards().await;
}

pub(super) async fn each_full_256_bytes_of_owner_and_metadata_count_once(_: &Fixture) {
    let capacity = Capacity::of(100);
    for (bytes, counts) in [
        (100, 0),
        (255, 0),
        (256, 1),
        (511, 1),
        (512, 2),
        (4_000, 15),
    ] {
        let (several, _) = claim_on_fresh::<64>();
        let several = with_text(&several, bytes);
        capacity.fixture.all_granted(&several).await;
        capacity.counts(64 + counts);
        // While a claim holds, its text is that of its first request.
        let again = with_text(&at_depth(&several, 2), 4_000);
        capacity.fixture.acquire(&again).await;
        capacity.fixture.renew(&several).await;
        capacity.counts(64 + counts);
        capacity.fixture.release_all(&several).await;
        capacity.counts(0);
    }
}

pub(super) async fn a_text_is_kept_once_for_all_locks_of_its_claim(_: &Fixture) {
    let capacity = Capacity::of(200);
    let (several, locks) = claim_on_fresh::<64>();
    capacity
        .fixture
        .all_granted(&with_text(&several, 4_000))
        .await;
    let waiter = capacity
        .fixture
        .waiting(&with_text(&rival(&several), 255))
        .await;
    let (mut holders, mut heads) = (Vec::new(), Vec::new());
    for lock in &locks {
        holders.push(capacity.fixture.holder(lock).await);
        heads.push(capacity.fixture.queue(lock).await.head.expect("one waits"));
    }
    // Different texts that exist at the same time have different addresses.
    let metadata = |it: &Holder| it.metadata.as_ref().map(|it| it.as_json().as_ptr());
    assert!(
        holders
            .iter()
            .all(|it| metadata(it) == metadata(&holders[0]))
    );
    let owners = holders.iter().map(|it| it.owner.as_str().as_ptr());
    let waiting = heads.iter().map(|it| it.owner.as_str().as_ptr());
    let different: BTreeSet<_> = owners.chain(waiting).collect();
    assert_eq!(different.len(), 2);
    drop(waiter);
}

/// Otherwise the text of a claim with many locks would be uncounted after all but one are released.
pub(super) async fn a_text_counts_until_the_last_lock_of_its_claim_is_released(_: &Fixture) {
    let capacity = Capacity::of(20);
    let (several, locks) = claim_on_fresh::<3>();
    let several = with_text(&several, 4_000);
    capacity.fixture.all_granted(&several).await;
    for (lock, left) in locks.iter().zip([17, 16, 0]) {
        let one = Claim {
            names: names([lock]),
            ..several.clone()
        };
        let holder = capacity.fixture.holder(lock).await;
        assert_eq!(holder.metadata, several.metadata);
        capacity.fixture.freed(&one).await;
        capacity.counts(left);
    }
}

/// A waiter cannot be refused when it becomes the head; a claim without room is refused before it waits.
pub(super) async fn a_claim_that_waits_has_the_room_to_hold(_: &Fixture) {
    let capacity = Capacity::of(20);
    let holding = claim();
    capacity.fixture.granted(&holding).await;
    let mut waiter = capacity
        .fixture
        .waiting(&with_text(&rival(&holding), 4_000))
        .await;
    capacity.counts(17);
    capacity.fixture.still_waits(&mut waiter).await;
    capacity.fixture.still_waits(&mut waiter.again()).await;
    capacity.counts(17);
    for _ in 0..3 {
        capacity.fixture.granted(&claim()).await;
    }
    capacity
        .refuses_to_queue(&Waiter::new(rival(&holding)))
        .await;
    capacity.counts(20);
    capacity.fixture.freed(&holding).await;
    capacity.fixture.granted(&waiter.claim).await;
    capacity.counts(19);
    capacity.is_empty_afterwards().await;
}

pub(super) async fn a_kept_place_counts_until_it_expires(_: &Fixture) {
    let capacity = Capacity::of(100);
    let (several, _) = claim_on_fresh::<3>();
    capacity.fixture.all_granted(&several).await;
    let waiter = capacity
        .fixture
        .waiting(&with_text(&rival(&several), 512))
        .await;
    capacity.counts(3 + 3 + 2);
    capacity.fixture.suspend(&waiter.claim, SHORT).await;
    capacity.counts(3 + 3 + 2);
    capacity.fixture.outlast(SHORT).await;
    capacity.store.refresh_health().await;
    capacity.counts(3);
    let waiter = capacity
        .fixture
        .waiting(&with_text(&rival(&several), 512))
        .await;
    capacity.fixture.release_all(&waiter.claim).await;
    capacity.counts(3);
    capacity.is_empty_afterwards().await;
}

pub(super) async fn a_lease_that_is_over_counts_while_its_lock_is_closed(_: &Fixture) {
    let capacity = Capacity::of(100);
    let closing = |claim: &Claim| Claim {
        min_hold: Some(LONG),
        lock_delay: Some(LONG),
        ..with_text(claim, 512)
    };
    let released = closing(&in_mode(&claim(), permits(1, 50)));
    for _ in 0..10 {
        let released = closing(&in_mode(&rival(&released), permits(1, 50)));
        capacity.fixture.granted(&released).await;
        capacity.fixture.freed(&released).await;
    }
    capacity.counts(10);
    let evicted = closing(&in_mode(&claim(), READ));
    capacity.fixture.granted(&evicted).await;
    capacity.fixture.evict(lock_of(&evicted), "").await;
    capacity.counts(11);
    let expired = for_short(&closing(&claim()));
    capacity.fixture.granted(&expired).await;
    capacity.counts(14);
    capacity.fixture.outlast(SHORT).await;
    capacity.store.refresh_health().await;
    capacity.counts(12);
    capacity.is_empty_afterwards().await;
}

pub(super) async fn what_is_refused_for_lack_of_room_leaves_nothing(_: &Fixture) {
    let capacity = Capacity::of(10);
    let (several, locks) = claim_on_fresh::<5>();
    capacity.refuses(&with_text(&several, 6 * 256)).await;
    capacity.counts(0);
    capacity.fixture.granted(&claim_on(&locks[0])).await;
    let mut waiter = Waiter::new(with_text(&several, 5 * 256));
    capacity.refuses_to_queue(&waiter).await;
    capacity.counts(1);
    waiter.claim = with_text(&several, 4 * 256);
    capacity.fixture.still_waits(&mut waiter).await;
    capacity.counts(10);
    // A poll with a longer text is refused, and the claim waits on with its present text.
    let longer = Waiter::new(with_text(&waiter.claim, 5 * 256));
    capacity.refuses_to_queue(&longer).await;
    capacity.counts(10);
}

pub(super) async fn however_a_claim_ends_nothing_counts_afterwards(_: &Fixture) {
    let capacity = Capacity::of(100);
    let fixture = &capacity.fixture;
    let attempt = Attempt::random();
    let withdrawn = with_text(&claim(), 4_000);
    fixture
        .attempt(&withdrawn, attempt)
        .await
        .expect("there is room");
    capacity.counts(16);
    fixture.withdraw(&withdrawn, attempt).await;
    capacity.counts(0);
    let taken_over = Claim {
        takes_over: true,
        ..with_text(&claim(), 4_000)
    };
    fixture.granted(&taken_over).await;
    fixture
        .attempt(&taken_over, attempt)
        .await
        .expect("it holds");
    capacity.counts(16);
    fixture.close(&taken_over, attempt).await;
    capacity.counts(0);
    let steps_down = with_text(&claim(), 4_000);
    fixture.granted(&steps_down).await;
    fixture.renew_in_mode(&steps_down, READ).await;
    fixture.granted(&reader(&steps_down)).await;
    capacity.counts(17);
    fixture.evict(lock_of(&steps_down), "stuck").await;
    capacity.counts(0);
    let expired = for_short(&with_text(&claim(), 4_000));
    fixture.granted(&expired).await;
    fixture.outlast(SHORT).await;
    fixture.state(lock_of(&expired)).await;
    // The lock remembers the expiry for a minute, to report it with the next grant.
    capacity.counts(1);
    fixture.granted(&rival(&expired)).await;
    capacity.counts(1);
    capacity.is_empty_afterwards().await;
}
