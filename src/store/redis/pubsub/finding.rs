//! What health checks report about messages: whether this process may use the channels, and whether it is subscribed.

use std::sync::atomic::Ordering;

use super::{PubSub, PubSubShared};
use crate::store::Finding;
use crate::store::redis::UNPOISONED;

/// At how many checks in a row this process may be without a subscription: it is for a moment whenever Redis was away.
const UNSUBSCRIBED_MAX: u32 = 2;

/// What there is without messages.
const WITHOUT_MESSAGES: &str =
    "waiters notice a free lock up to a second late, and events are not delivered";

/// Without a subscription, although Redis answers.
#[derive(Default)]
pub(super) struct Unsubscribed {
    /// At how many checks in a row.
    checks: u32,
    /// Why the last attempt to subscribe failed; none if none has failed since.
    why: Option<String>,
}

impl PubSub {
    /// Whether this process may use the channels, and receives what is sent on them.
    pub(in crate::store::redis) fn finding(&self) -> Finding {
        const RIGHTS: &str = "grant &lh:1:* +publish +subscribe +unsubscribe +pubsub|numsub";
        let shared = &*self.shared;
        let lacks = [
            (&shared.may_not_subscribe, "subscribe"),
            (&shared.may_not_publish, "publish"),
        ];
        let lacking = lacks
            .iter()
            .filter(|(lacks, _)| lacks.load(Ordering::Relaxed));
        let lacking: Vec<_> = lacking.map(|(_, right)| *right).collect();
        let is_fine = lacking.is_empty();
        let may_count = !shared.may_not_count.load(Ordering::Relaxed);
        let unsubscribed = shared.unsubscribed.lock().expect(UNPOISONED);
        let why = unsubscribed.why.as_ref();
        let why = why.filter(|_| unsubscribed.checks > UNSUBSCRIBED_MAX);
        let detail = match (is_fine, may_count) {
            (true, _) if let Some(why) = why => {
                format!("no messages can be received ({why}), so {WITHOUT_MESSAGES}")
            }
            (true, true) => "the channels may be used".to_owned(),
            (true, false) => format!(
                "the user may not run PUBSUB NUMSUB, so events are published even if nobody watches; {RIGHTS}"
            ),
            (false, _) => format!(
                "the user may not {} on the channels lh:1:*, so {WITHOUT_MESSAGES}; {RIGHTS}",
                lacking.join(" or ")
            ),
        };
        let is_fine = is_fine && may_count && why.is_none();
        Finding {
            topic: "channels",
            is_fine,
            detail,
        }
    }
}

impl PubSubShared {
    /// A check has reached Redis, as the subscription should have.
    pub(super) fn count_unsubscribed(&self) {
        let is_subscribed = self.connected_at.lock().expect(UNPOISONED).is_some();
        let mut unsubscribed = self.unsubscribed.lock().expect(UNPOISONED);
        match is_subscribed {
            true => *unsubscribed = Unsubscribed::default(),
            false => unsubscribed.checks = unsubscribed.checks.saturating_add(1),
        }
    }

    /// An attempt to subscribe has failed.
    pub(in crate::store::redis) fn not_subscribed(&self, why: String) {
        self.unsubscribed.lock().expect(UNPOISONED).why = Some(why);
    }
}
