//! For how long leases are counted whose operation has not told beforehand when they end.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{
    Claim, LockNames, Released, RenewOptions, Renewed, RollbackRight, UNCOUNTED_MAX,
};
use leasehold::service::LockService;
use tokio::time::sleep;

use super::{hold, service, within_quota};
use crate::support::fixture::{claim_on_all, fresh_name, hold_count, names, ttl};
use crate::support::scripted_store::{Behavior, Operation, ScriptedStore};
use crate::support::stores::{self, OPERATION_TIMEOUT};

/// How long the leases of these tests last.
const LASTS: Duration = Duration::from_secs(1);
/// Far longer.
const ASKED: Duration = Duration::from_secs(600);
/// How much longer a lease is counted at most.
const COUNTED: Duration = OPERATION_TIMEOUT.saturating_mul(2);

/// What is asked of a lease of [`LASTS`].
#[derive(Clone, Copy, Debug)]
enum Asked {
    ItsOwnTtl,
    TtlBeyondMaxHold,
    TtlAfterAnotherLockWasReleased,
    StepBack,
}

/// A claim on two locks.
fn on_two() -> Claim {
    Claim {
        ttl: ttl(LASTS),
        ..claim_on_all(names(&[fresh_name(), fresh_name()]))
    }
}

async fn renew(service: &LockService, claim: &Claim, lasts: Option<Duration>) -> Renewed {
    let options = RenewOptions {
        ttl: lasts.map(ttl),
        mode: None,
        rollback_right: RollbackRight::Never,
    };
    let renewed = service.renew(claim.names.clone(), claim.token, options);
    renewed.await.expect("the store answers")
}

impl Asked {
    async fn of(self, service: &LockService, claim: &Claim) {
        match self {
            Self::ItsOwnTtl => {
                let renewed = renew(service, claim, None).await;
                assert!(matches!(renewed, Renewed::Extended(_)), "{renewed:?}");
            }
            Self::TtlBeyondMaxHold => {
                let renewed = renew(service, claim, Some(ASKED)).await;
                assert!(matches!(renewed, Renewed::Extended(_)), "{renewed:?}");
            }
            Self::TtlAfterAnotherLockWasReleased => {
                let first = LockNames::from(claim.names[0].clone());
                let released = service.release(first, claim.token, None, |_| {});
                released.await.expect("the store answers");
                let renewed = renew(service, claim, Some(ASKED)).await;
                assert!(matches!(renewed, Renewed::NotHolder(_)), "{renewed:?}");
            }
            Self::StepBack => {
                let depth = Some(hold_count(1));
                let released = service.release(claim.names.clone(), claim.token, depth, |_| {});
                let released = released.await.expect("the store answers");
                assert!(
                    matches!(
                        released[..],
                        [Released::SteppedBack(_), Released::SteppedBack(_)]
                    ),
                    "{released:?}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_counted_for_little_longer_than_it_lasts_whatever_was_asked() {
    for asked in [
        Asked::ItsOwnTtl,
        Asked::TtlBeyondMaxHold,
        Asked::TtlAfterAnotherLockWasReleased,
        Asked::StepBack,
    ] {
        let (service, _) = service(2, Behavior::Answered);
        let max_hold = matches!(asked, Asked::TtlBeyondMaxHold).then_some(LASTS);
        let held = Claim {
            max_hold,
            ..on_two()
        };
        assert!(hold(&service, &held).await);
        asked.of(&service, &held).await;
        assert!(!hold(&service, &on_two()).await, "{asked:?}: it is counted");
        sleep(LASTS.max(COUNTED)).await;
        assert!(hold(&service, &on_two()).await, "{asked:?}: it has ended");
    }
}

/// The store may have renewed it.
#[tokio::test(start_paused = true)]
async fn a_lease_whose_renewal_has_no_answer_is_counted_for_as_long_as_it_may_last() {
    let store = ScriptedStore::default().with(Operation::Renew, Behavior::Lost);
    let service = within_quota(&stores::service(Arc::new(store)), 2);
    let held = on_two();
    assert!(hold(&service, &held).await);
    let options = RenewOptions {
        ttl: Some(ttl(ASKED)),
        ..RenewOptions::default()
    };
    let renewed = service.renew(held.names.clone(), held.token, options).await;
    assert!(renewed.is_err(), "{renewed:?}");
    sleep(UNCOUNTED_MAX).await;
    assert!(!hold(&service, &on_two()).await, "it may last");
    sleep(ASKED).await;
    assert!(hold(&service, &on_two()).await, "it has ended");
}
