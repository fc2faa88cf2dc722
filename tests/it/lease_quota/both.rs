//! A quota of the principal and one of all, which apply together.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{
    Claim, CountOutcome, CountStep, LeaseQuota, LeasesOf, Refused, RenewOptions, Renewed,
};
use leasehold::service::AcquireOutcome;
use leasehold::store::CountLeases;

use super::{hold, is_free, within};
use crate::support::eventually;
use crate::support::fixture::{claim, deadline};
use crate::support::scripted_store::ScriptedStore;
use crate::support::stores;

fn of_principal(leases_max: usize) -> LeaseQuota {
    let of = LeasesOf::Principal("team".into());
    LeaseQuota { of, leases_max }
}

fn of_all(leases_max: usize) -> LeaseQuota {
    let of = LeasesOf::All;
    LeaseQuota { of, leases_max }
}

/// Whether one more lease has room within the quota.
async fn has_room(store: &ScriptedStore, quota: LeaseQuota) -> bool {
    let Claim { names, token, .. } = claim();
    let checked = store.count_leases(&quota, CountStep::Check, &names, token, deadline());
    checked.await.expect("the store counts") == CountOutcome::Within
}

#[tokio::test(start_paused = true)]
async fn what_one_of_two_quotas_refuses_is_counted_in_neither() {
    let store = Arc::new(ScriptedStore::default());
    let all = stores::service(Arc::clone(&store) as Arc<_>);
    let here = within(&all, Some(of_principal(2)), Some(of_all(1)));
    let held = claim();
    assert!(hold(&here, &held).await);
    let refused = claim();
    let answer = here
        .acquire(Arc::new(refused.clone()), Duration::ZERO)
        .await;
    let outcome = answer.expect("the store answers").outcome;
    let of_all_is_full = Refused::TooManyLeases {
        of_all: true,
        retry_in: held.ttl.get(),
    };
    assert!(
        matches!(&outcome, AcquireOutcome::Refused(it) if *it == of_all_is_full),
        "{outcome:?}"
    );
    eventually("it is rolled back", async || {
        is_free(&store, &refused).await.then_some(())
    })
    .await;
    assert!(has_room(&store, of_principal(2)).await);

    // A renewal for which there is no room leaves its young lease as it is, and counts it nowhere.
    let uncounted = claim();
    assert!(hold(&all, &uncounted).await);
    let renewed = here
        .renew(
            uncounted.names.clone(),
            uncounted.token,
            RenewOptions::default(),
        )
        .await;
    assert!(matches!(renewed, Ok(Renewed::Extended(_))), "{renewed:?}");
    assert!(has_room(&store, of_principal(2)).await);
    assert!(!has_room(&store, of_principal(1)).await);

    // What is released has room in both.
    let released = here.release(held.names.clone(), held.token, None, |_| {});
    released.await.expect("the store answers");
    assert!(has_room(&store, of_principal(1)).await);
    assert!(has_room(&store, of_all(1)).await);
}

#[tokio::test(start_paused = true)]
async fn a_principal_without_room_takes_nothing_from_the_others() {
    let store = Arc::new(ScriptedStore::default());
    let all = stores::service(Arc::clone(&store) as Arc<_>);
    let here = within(&all, Some(of_principal(1)), Some(of_all(2)));
    assert!(hold(&here, &claim()).await);
    let answer = here.acquire(Arc::new(claim()), Duration::ZERO).await;
    let outcome = answer.expect("the store answers").outcome;
    assert!(
        matches!(
            outcome,
            AcquireOutcome::Refused(Refused::TooManyLeases { of_all: false, .. })
        ),
        "{outcome:?}"
    );
    assert!(has_room(&store, of_all(2)).await);
}
