//! Counts events per minute, for each peer or in total, in bounded memory: peers beyond some thousands share one count.
//! The users of this module decide what is counted, and what follows.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The length of a counting window.
const WINDOW: Duration = Duration::from_secs(60);
/// How many peers have a count of their own; all others share one.
const PEERS_MAX: usize = 4_096;
/// How often a full table is searched for windows that are over.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The counts of one kind of event. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerCounts(Arc<Mutex<PeerWindows>>);

/// The number of events in the window, including this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) count: u32,
    /// The rest of the window.
    pub(super) over_in: Duration,
}

impl PeerCounts {
    /// Counts one event of the peer that is counted under this address.
    pub(super) fn count(&self, peer: IpAddr) -> Counted {
        let now = Instant::now();
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let window = counts.count(peer, now);
        Counted {
            count: window.count,
            over_in: (window.began_at + WINDOW).saturating_duration_since(now),
        }
    }

    /// The events of the peer so far; `None` if there are none in the current minute.
    pub(super) fn current(&self, peer: IpAddr) -> Option<Counted> {
        let now = Instant::now();
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = counts.peers.len() >= PEERS_MAX;
        let of_others = counts.others.as_ref().filter(|_| is_full);
        let window = counts.peers.get(&peer).or(of_others)?;
        (!window.is_over(now)).then(|| Counted {
            count: window.count,
            over_in: (window.began_at + WINDOW).saturating_duration_since(now),
        })
    }
}

/// The count of one kind of event over all peers.
#[derive(Debug, Default)]
pub(super) struct TotalCount(Mutex<Option<Window>>);

impl TotalCount {
    /// How often it happened within the minute, this time included.
    pub(super) fn count(&self) -> u32 {
        let now = Instant::now();
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        window.get_or_insert(Window::new(now)).count(now).count
    }
}

#[derive(Debug, Default)]
struct PeerWindows {
    peers: HashMap<IpAddr, Window>,
    /// The window of all peers that do not fit into the table.
    others: Option<Window>,
    swept_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    began_at: Instant,
    count: u32,
}

impl PeerWindows {
    fn count(&mut self, peer: IpAddr, now: Instant) -> Window {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&peer) {
            self.sweep(now);
        }
        let has_room = self.peers.len() < PEERS_MAX || self.peers.contains_key(&peer);
        let fresh = Window::new(now);
        let window = if has_room {
            self.peers.entry(peer).or_insert(fresh)
        } else {
            self.others.get_or_insert(fresh)
        };
        window.count(now)
    }

    fn sweep(&mut self, now: Instant) {
        let is_recent = |swept_at: Instant| now.duration_since(swept_at) < SWEEP_INTERVAL;
        if !self.swept_at.is_some_and(is_recent) {
            self.swept_at = Some(now);
            self.peers.retain(|_, window| !window.is_over(now));
        }
    }
}

impl Window {
    fn new(began_at: Instant) -> Self {
        Self { began_at, count: 0 }
    }

    /// The window with one event more, or the next one with its first.
    fn count(&mut self, now: Instant) -> Self {
        if self.is_over(now) {
            *self = Self::new(now);
        }
        self.count = self.count.saturating_add(1);
        *self
    }

    fn is_over(self, now: Instant) -> bool {
        now.duration_since(self.began_at) >= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_do_not_fit_share_one_count() {
        let (mut counts, now) = (PeerWindows::default(), Instant::now());
        let peer = |number: u32| IpAddr::V4(number.into());
        let many = u32::try_from(PEERS_MAX).expect("a small number");
        for number in 0..many {
            assert_eq!(counts.count(peer(number), now).count, 1);
        }
        assert_eq!(counts.count(peer(many), now).count, 1);
        assert_eq!(counts.count(peer(many + 1), now).count, 2);
        assert_eq!(counts.count(peer(0), now).count, 2, "it has its own count");
        let later = now + WINDOW;
        assert_eq!(counts.count(peer(many), later).count, 1);
        assert_eq!(counts.peers.len(), 1, "those that are over are gone");
    }
}
