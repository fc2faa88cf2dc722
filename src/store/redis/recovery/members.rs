//! What the nodes of a quorum show each other of their data, for a node that is empty when this process first meets it.
//!
//! An empty Redis that is the only one is a new one. An empty node may have kept leases that only a part of a majority
//! keeps now: with its vote, there could be a second majority. So it has no vote until every lease that it may have
//! forgotten has ended. The other nodes know how long that is, since a lease is reported only after each node of its
//! majority knows its TTL.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, sleep};

use super::{Recovery, UNPOISONED, fleet};
use crate::store::redis::info::ServerInfo;
use crate::store::redis::keys::RedisKeys;

/// How often an empty node is looked at again while the others are.
const PAUSE: Duration = Duration::from_millis(20);

/// How long one check of an empty node waits for the others.
const LOOK_MAX: Duration = Duration::from_millis(500);

/// How long the nodes that do not answer are waited for.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Why a node has no vote: operators see these sentences.
pub(in crate::store::redis) const EMPTY: &str = "it is empty, and asks the other nodes of the quorum which leases \
     it may have lost: too few of them have answered so far, or one that has just restarted is waited for";
pub(in crate::store::redis) const SAME: &str =
    "it is another node of the quorum as well, which has one vote";

/// What is known of the data of all nodes.
#[derive(Debug)]
struct QuorumStates {
    /// The Redis process and the database behind each node.
    servers: Mutex<Vec<Option<(String, u32)>>>,
    seen: Mutex<Vec<Option<NodeState>>>,
    /// The longest time for which a node may have to keep a lease.
    lease_max: Duration,
    /// The longest wait of a node that has forgotten nothing: until its processes are back.
    pause_max: Duration,
    /// How long a node that has not been asked again is believed to pause.
    silence_max: Duration,
}

/// The data of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeState {
    /// When it was asked.
    at: Instant,
    /// Whether it knows of every lease that it has granted: it has data, and does not wait for forgotten leases.
    remembers: bool,
    /// Whether it has data, and waits so shortly that it remembers all leases that are alive when it is over: its processes
    /// may poll again, or the leases that it may have forgotten end.
    is_pausing: bool,
    /// Whether it waits for leases that it may have forgotten.
    is_waiting: bool,
    longest_ttl_ms: u64,
}

/// One node among the others.
#[derive(Debug)]
pub(in crate::store::redis) struct QuorumMember {
    states: Arc<QuorumStates>,
    number: usize,
    database: u32,
    empty_since: Mutex<Option<Instant>>,
}

impl QuorumMember {
    /// The nodes of one quorum, in these databases.
    pub(in crate::store::redis) fn all(
        databases: &[u32],
        lease_max: Duration,
        check_interval: Duration,
    ) -> Vec<Self> {
        let states = Arc::new(QuorumStates {
            servers: Mutex::new(vec![None; databases.len()]),
            seen: Mutex::new(vec![None; databases.len()]),
            lease_max,
            pause_max: fleet::pause_max(check_interval),
            // A node is asked once in each interval, and answers a little later.
            silence_max: SILENCE_MAX.max(check_interval * 2),
        });
        let member = |(number, database): (usize, &u32)| Self {
            states: Arc::clone(&states),
            number,
            database: *database,
            empty_since: Mutex::default(),
        };
        databases.iter().enumerate().map(member).collect()
    }

    /// Notes which Redis process is behind this node.
    ///
    /// # Errors
    /// It is behind another node too, by another name.
    fn note_server(&self, run_id: &str) -> RedisResult<()> {
        let server = Some((run_id.to_owned(), self.database));
        let mut servers = self.states.servers.lock().expect(UNPOISONED);
        let mut others = servers.iter().enumerate();
        if others.any(|(other, known)| other != self.number && *known == server) {
            return Err((redis::ErrorKind::Client, SAME).into());
        }
        servers[self.number] = server;
        Ok(())
    }

    /// Another node may be found at the Redis that was behind this one.
    fn forget_server(&self) {
        self.states.servers.lock().expect(UNPOISONED)[self.number] = None;
    }

    /// What an exchange has shown of this node.
    pub(super) fn note(&self, asked_at: Instant, wait: Duration, longest_ttl_ms: u64) {
        self.put(self.states.seen(asked_at, true, wait, longest_ttl_ms));
    }

    /// The longest TTL that any node knows of.
    pub(super) fn longest_ttl_ms(&self) -> u64 {
        let seen = self.states.seen.lock().expect(UNPOISONED);
        let all = seen.iter().flatten().map(|seen| seen.longest_ttl_ms);
        all.max().unwrap_or_default()
    }

    /// How long grants of this node have to wait if it is empty, before this process begins an epoch there.
    ///
    /// # Errors
    /// It is empty, and too few other nodes have been asked since.
    pub(super) async fn wait_if_empty(
        &self,
        connection: &mut MultiplexedConnection,
        keys: RedisKeys,
    ) -> RedisResult<Duration> {
        let began = Instant::now();
        loop {
            let asked_at = Instant::now();
            if self.look(connection, keys, asked_at).await? {
                *self.empty_since.lock().expect(UNPOISONED) = None;
                return Ok(Duration::ZERO);
            }
            let since = self.empty_since(asked_at);
            if let Some(wait) = self.states.wait_of(self.number, since, Instant::now()) {
                return Ok(wait);
            }
            if began.elapsed() >= LOOK_MAX {
                return Err((redis::ErrorKind::Client, EMPTY).into());
            }
            sleep(PAUSE).await;
        }
    }

    /// Since when the node has been seen empty, now that it was.
    fn empty_since(&self, asked_at: Instant) -> Instant {
        let mut empty_since = self.empty_since.lock().expect(UNPOISONED);
        *empty_since.get_or_insert(asked_at)
    }

    /// Whether the node has data.
    async fn look(
        &self,
        connection: &mut MultiplexedConnection,
        keys: RedisKeys,
        asked_at: Instant,
    ) -> RedisResult<bool> {
        let mut look = redis::pipe();
        look.cmd("HMGET").arg(keys.node()).arg("epoch");
        look.cmd("GET").arg(keys.longest_ttl());
        look.cmd("PTTL").arg(keys.grace());
        let (epoch, longest_ttl_ms, grace_ms): ([Option<u64>; 1], Option<u64>, i64) =
            look.query_async(connection).await?;
        let [epoch] = epoch;
        let wait = Duration::from_millis(u64::try_from(grace_ms).unwrap_or_default());
        let (has_data, longest_ttl_ms) = (epoch.is_some(), longest_ttl_ms.unwrap_or_default());
        self.put(self.states.seen(asked_at, has_data, wait, longest_ttl_ms));
        Ok(has_data)
    }

    fn put(&self, seen: NodeState) {
        self.states.seen.lock().expect(UNPOISONED)[self.number] = Some(seen);
    }
}

impl QuorumStates {
    /// A node that was asked then, and whose grants wait for so long.
    fn seen(&self, at: Instant, has_data: bool, wait: Duration, longest_ttl_ms: u64) -> NodeState {
        let is_waiting = wait > self.pause_max;
        NodeState {
            at,
            remembers: has_data && wait.is_zero(),
            is_pausing: has_data && !wait.is_zero() && !is_waiting,
            is_waiting,
            longest_ttl_ms,
        }
    }

    /// How long grants of a node wait that has been seen empty `since`; none if other nodes should be asked first.
    fn wait_of(&self, number: usize, since: Instant, now: Instant) -> Option<Duration> {
        let seen = self.seen.lock().expect(UNPOISONED);
        let majority = seen.len() / 2 + 1;
        // One that was asked before may have granted a lease together with this node, which has lost its data after that.
        let is_recent = |seen: &&NodeState| seen.at >= since;
        let recent: Vec<_> = seen.iter().flatten().filter(is_recent).collect();
        let others = || (seen.iter().enumerate()).filter(|(other, _)| *other != number);
        let remembering = others().filter_map(|(_, seen)| seen.as_ref());
        let remembering = remembering.filter(|seen| is_recent(seen) && seen.remembers);
        let known: Vec<_> = remembering.map(|seen| seen.longest_ttl_ms).collect();
        if known.len() >= majority {
            // Any majority of a lease has one of them.
            return known.into_iter().max().map(Duration::from_millis);
        }
        let has_waited = now.duration_since(since) >= SILENCE_MAX;
        let have_leases = |seen: &&NodeState| seen.longest_ttl_ms > 0 || seen.is_waiting;
        let are_enough = recent.len() == seen.len() || has_waited && recent.len() >= majority;
        if are_enough && !recent.iter().any(have_leases) {
            // A lease would be at a majority of nodes that are all empty or silent: more than may fail at a time.
            return Some(Duration::ZERO);
        }
        // A pause ends sooner than the longest lease. A node that is silent since may not say so.
        let pausing = others().filter_map(|(_, seen)| seen.as_ref());
        let pausing = pausing.filter(|seen| is_recent(seen) && seen.is_pausing);
        let pausing = pausing.filter(|seen| now.duration_since(seen.at) < self.silence_max);
        if known.len() + pausing.count() >= majority {
            return None;
        }
        (has_waited || recent.len() == seen.len()).then_some(self.lease_max)
    }
}

impl Recovery {
    /// How long new grants wait if this process and the store know of no lease.
    pub(super) async fn wait_if_empty(
        &self,
        connection: &mut MultiplexedConnection,
        server: &ServerInfo,
    ) -> RedisResult<Duration> {
        if let Some(member) = &self.member {
            let noted = member.note_server(&server.run_id);
            if noted.is_err() {
                // Two nodes may have changed places. In this order, no socket of before gives a Redis a second vote.
                self.fleet.renew_connections();
                member.forget_server();
            }
            noted?;
        }
        let is_known = self.known.lock().expect(UNPOISONED).data_epoch.is_some();
        match &self.member {
            Some(member) if !is_known => {
                let wait = member.wait_if_empty(connection, self.keys).await?;
                Ok(wait.max(self.grace_on_empty_start))
            }
            Some(_) | None => Ok(self.grace_on_empty_start),
        }
    }

    /// The longest TTL of a lease that may be alive.
    pub(super) fn longest_ttl_ms(&self, now: Instant) -> u64 {
        let known_ms = self.fleet.longest_ttl.known_ms(now);
        let is_known = self.known.lock().expect(UNPOISONED).data_epoch.is_some();
        match &self.member {
            // Of leases that this node may have lost, this process knows only what the others do.
            Some(member) if !is_known => known_ms.max(member.longest_ttl_ms()),
            Some(_) | None => known_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const MILLI: Duration = Duration::from_millis(1);

    /// How long the first of the nodes waits, which is empty, once it has asked the others for this long.
    fn wait_with(others: &[Option<(NodeState, i64)>], after: Duration) -> Option<Duration> {
        wait_with_checks(Duration::from_secs(2), others, after)
    }

    /// The same, if each node is checked once in this time.
    fn wait_with_checks(
        check_interval: Duration,
        others: &[Option<(NodeState, i64)>],
        after: Duration,
    ) -> Option<Duration> {
        let since = Instant::now() + HOUR;
        let states = QuorumMember::all(&vec![0; others.len() + 1], HOUR, check_interval);
        let empty = NodeState {
            at: since,
            remembers: false,
            is_pausing: false,
            is_waiting: false,
            longest_ttl_ms: 0,
        };
        states[0].put(empty);
        for (member, other) in states[1..].iter().zip(others) {
            if let Some((seen, later_ms)) = other {
                let later = MILLI * u32::try_from(later_ms.unsigned_abs()).expect("it is short");
                let at = match *later_ms < 0 {
                    true => since - later,
                    false => since + later,
                };
                member.put(NodeState { at, ..*seen });
            }
        }
        states[0].states.wait_of(0, since, since + after)
    }

    fn with_leases_of(longest_ttl_ms: u64) -> NodeState {
        NodeState {
            at: Instant::now(),
            remembers: true,
            is_pausing: false,
            is_waiting: false,
            longest_ttl_ms,
        }
    }

    fn empty() -> NodeState {
        NodeState {
            remembers: false,
            ..with_leases_of(0)
        }
    }

    #[test]
    fn an_empty_node_waits_for_the_longest_lease_that_a_majority_of_others_knows() {
        let others = [
            Some((with_leases_of(30_000), 1)),
            Some((with_leases_of(9_000), 1)),
        ];
        let wait = wait_with(&others, MILLI);
        assert_eq!(wait, Some(Duration::from_secs(30)));
    }

    #[test]
    fn a_node_that_was_asked_before_the_empty_one_counts_only_when_asked_again() {
        let others = [
            Some((with_leases_of(9_000), -1)),
            Some((with_leases_of(9_000), 1)),
        ];
        assert_eq!(wait_with(&others, MILLI), None);
    }

    #[test]
    fn nodes_that_are_all_empty_are_new() {
        let others = [Some((empty(), 1)), Some((empty(), 0))];
        assert_eq!(wait_with(&others, MILLI), Some(Duration::ZERO));
        let others = [Some((empty(), 1)), None];
        assert_eq!(wait_with(&others, MILLI), None);
        assert_eq!(wait_with(&others, SILENCE_MAX), Some(Duration::ZERO));
    }

    #[test]
    fn an_empty_node_waits_as_long_as_possible_if_too_few_others_remember() {
        let others = [Some((with_leases_of(9_000), 1)), None];
        assert_eq!(wait_with(&others, MILLI), None);
        assert_eq!(wait_with(&others, SILENCE_MAX), Some(HOUR));
        let others = [Some((with_leases_of(9_000), 1)), Some((empty(), 1))];
        assert_eq!(wait_with(&others, MILLI), Some(HOUR));
        let waits = NodeState {
            is_waiting: true,
            ..empty()
        };
        let others = [Some((with_leases_of(9_000), 1)), Some((waits, 1))];
        assert_eq!(wait_with(&others, MILLI), Some(HOUR));
    }

    /// It has its data. Only a node that is silent may never tell that its pause is over.
    #[test]
    fn an_empty_node_waits_for_one_that_pauses_instead_of_the_longest_lease() {
        let pauses = NodeState {
            remembers: false,
            is_pausing: true,
            ..with_leases_of(9_000)
        };
        let others = |later_ms| [Some((with_leases_of(9_000), 1)), Some((pauses, later_ms))];
        assert_eq!(wait_with(&others(1), MILLI), None);
        assert_eq!(wait_with(&others(4_000), SILENCE_MAX), None);
        assert_eq!(wait_with(&others(1), SILENCE_MAX + MILLI), Some(HOUR));
        let others = [Some((pauses, 1)), None];
        assert_eq!(wait_with(&others, SILENCE_MAX - MILLI), None);
        assert_eq!(wait_with(&others, SILENCE_MAX), Some(HOUR));
    }

    #[test]
    fn a_node_that_pauses_is_not_taken_for_silent_between_two_checks() {
        let pauses = NodeState {
            remembers: false,
            is_pausing: true,
            ..with_leases_of(9_000)
        };
        let others = [Some((with_leases_of(9_000), 1)), Some((pauses, 1))];
        let wait = |after| wait_with_checks(SILENCE_MAX, &others, after);
        assert_eq!(wait(SILENCE_MAX * 2), None);
        assert_eq!(wait(SILENCE_MAX * 2 + MILLI), Some(HOUR));
    }
}
