//! What each message on a channel means, and who is told.

use std::sync::atomic::Ordering;

use redis::Msg;

use super::pubsub::PubSubShared;
use super::{events, keys};
use crate::domain::{ClaimDigest, LockName};
use crate::store::Listener;

impl PubSubShared {
    pub(super) fn dispatch(&self, message: &Msg, listener: &dyn Listener) {
        let (channel, payload) = (message.get_channel_name(), message.get_payload_bytes());
        if channel == self.wake {
            if let Ok(name) = LockName::parse(payload) {
                listener.reserved(&name);
            } else if let Some((name, claim)) = payload.strip_prefix(b"\0").and_then(claim_on) {
                listener.dequeued(&name, claim);
            }
        } else if channel == self.events {
            // Until all processes know that this one wants events again, delivery may have gaps; `events_lost` covers
            // them.
            if !self.delivery.borrow().is_sure {
                return;
            }
            let text = std::str::from_utf8(payload).ok();
            if text.is_some_and(|text| events::is_of_unpublished(text, self.process())) {
                listener.events_lost();
                return;
            }
            if let Some(mut event) = text.and_then(events::parse) {
                if self.fleets.len() > 1 {
                    // Two primaries may publish events in the same microsecond.
                    let partition = event.name.bucket().index() % self.fleets.len();
                    event.id += &format!(".{partition}");
                }
                listener.event(event);
            }
        } else if channel == self.evictions {
            if let Ok(name) = LockName::parse(payload) {
                listener.evicted(&name);
            }
        } else if channel == self.releases {
            if let Some((name, claim)) = claim_on(payload) {
                listener.released(&name, claim);
            }
        } else if channel == self.watch {
            self.demand.announced();
        } else if channel == keys::CLOCK_CHANNEL {
            for number in 0..self.fleets.len() {
                if self.fleets[number].is_news_of_clock(payload) {
                    self.must_verify(number);
                }
            }
        } else if let Some(number) = self.recovery.iter().position(|it| it == channel) {
            let is_verify = payload.starts_with(b"verify");
            if is_verify && payload.ends_with(self.wake.as_bytes()) {
                return;
            }
            self.fleets[number].on_message(payload);
            if is_verify {
                self.must_verify(number);
            }
        }
    }

    fn must_verify(&self, number: usize) {
        self.unverified[number].store(true, Ordering::SeqCst);
        self.verify.notify_one();
    }

    /// Takes the numbers of the histories that must be verified.
    pub(super) fn take_unverified(&self) -> Vec<usize> {
        let flags = self.unverified.iter().enumerate();
        let set = flags.filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        set.map(|(number, _)| number).collect()
    }
}

/// Reads a claim and its lock.
fn claim_on(payload: &[u8]) -> Option<(LockName, ClaimDigest)> {
    let (claim, name) = payload.split_first_chunk()?;
    Some((LockName::parse(name).ok()?, ClaimDigest(*claim)))
}
