//! What health checks report about messages: whether this process may use the channels, and whether it is subscribed.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{PubSub, PubSubShared};
use crate::store::Finding;
use crate::store::redis::UNPOISONED;

/// At how many checks in a row this process may be without a subscription: it is for a moment whenever Redis was away.
const UNSUBSCRIBED_MAX: u32 = 2;

/// What there is without messages.
const WITHOUT_MESSAGES: &str =
    "waiters notice a free lock up to a second late, and events are not delivered";

/// Which rights the user lacks at a Redis.
#[derive(Default)]
pub(super) struct MissingRights {
    pub(super) publish: AtomicBool,
    /// That to run `PUBSUB NUMSUB`.
    pub(super) count: AtomicBool,
}

/// Without a subscription, although Redis answers.
#[derive(Default)]
pub(super) struct Unsubscribed {
    /// At how many checks in a row.
    checks: u32,
    /// Why the last attempt to subscribe failed; none if none has failed since.
    why: Option<String>,
}

impl PubSub {
    /// Whether this process may use the channels, and receives what is sent on them. The rights are those that were found
    /// over connections of these partitions: one of each primary of a cluster, with its address.
    pub(in crate::store::redis) fn finding(&self, tried: &[(usize, Option<String>)]) -> Finding {
        let trouble = self.trouble(tried);
        Finding {
            topic: "channels",
            is_fine: trouble.is_none(),
            detail: trouble.unwrap_or_else(|| "the channels may be used".to_owned()),
        }
    }

    fn trouble(&self, tried: &[(usize, Option<String>)]) -> Option<String> {
        const RIGHTS: &str = "grant &lh:1:* +publish +subscribe +unsubscribe +pubsub|numsub";
        let shared = &*self.shared;
        // Where the user lacks a right; none if nowhere.
        let lacking = |flag: fn(&MissingRights) -> &AtomicBool| {
            let lacks = |partition: usize| flag(&shared.missing[partition]).load(Ordering::Relaxed);
            let lacking = tried.iter().filter(|(partition, _)| lacks(*partition));
            let places: Vec<_> = lacking.map(|(_, place)| place.as_deref()).collect();
            let addresses: Vec<_> = places.iter().copied().flatten().collect();
            let at = match addresses.is_empty() {
                true => String::new(),
                false => format!(" at {}", addresses.join(", ")),
            };
            (!places.is_empty()).then_some(at)
        };
        let publishing = lacking(|it| &it.publish);
        let may_not_subscribe = shared.may_not_subscribe.load(Ordering::Relaxed);
        let verb = match (may_not_subscribe, &publishing) {
            (true, Some(_)) => Some("subscribe or publish"),
            (true, None) => Some("subscribe"),
            (false, Some(_)) => Some("publish"),
            (false, None) => None,
        };
        if let Some(verb) = verb {
            let at = publishing.unwrap_or_default();
            return Some(format!(
                "the user may not {verb} on the channels lh:1:*{at}, so {WITHOUT_MESSAGES}; {RIGHTS}"
            ));
        }
        let unsubscribed = shared.unsubscribed.lock().expect(UNPOISONED);
        if unsubscribed.checks > UNSUBSCRIBED_MAX
            && let Some(why) = &unsubscribed.why
        {
            return Some(format!(
                "no messages can be received ({why}), so {WITHOUT_MESSAGES}"
            ));
        }
        let at = lacking(|it| &it.count)?;
        Some(format!(
            "the user may not run PUBSUB NUMSUB{at}, so events are published even if nobody watches; {RIGHTS}"
        ))
    }

    /// A check has reached Redis, as the subscription should have if messages are wanted.
    pub(in crate::store::redis) fn count_unsubscribed(&self) {
        if self.attached.get().is_none() {
            return;
        }
        let shared = &*self.shared;
        let is_subscribed = shared.connected_at.lock().expect(UNPOISONED).is_some();
        let mut unsubscribed = shared.unsubscribed.lock().expect(UNPOISONED);
        match is_subscribed {
            true => *unsubscribed = Unsubscribed::default(),
            false => unsubscribed.checks = unsubscribed.checks.saturating_add(1),
        }
    }
}

impl PubSubShared {
    /// An attempt to subscribe has failed.
    pub(in crate::store::redis) fn not_subscribed(&self, why: String) {
        self.unsubscribed.lock().expect(UNPOISONED).why = Some(why);
    }
}
