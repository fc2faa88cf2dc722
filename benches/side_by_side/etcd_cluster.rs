//! An etcd of several members on this machine.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::sleep;

use crate::delay::DelayingProxy;
use crate::machine::{Served, free_address};

/// How often a member is asked until it knows a leader, and the pause in between.
const TRIES: usize = 200;
const PAUSE: Duration = Duration::from_millis(50);

/// The members, and a lease that lasts as long as they do.
pub(crate) struct EtcdCluster {
    members: Vec<Served>,
    pub(crate) lease: String,
    _proxies: Vec<DelayingProxy>,
}

/// Where a member listens, and where the others reach it.
struct Place {
    client: SocketAddr,
    peer: SocketAddr,
    reached_at: SocketAddr,
}

impl EtcdCluster {
    /// Starts members. The last one answers the others late by this, and does not lead.
    pub(crate) async fn start(count: usize, delay: Option<Duration>) -> Self {
        let mut proxies = Vec::new();
        let mut places = Vec::new();
        for number in 0..count {
            let (client, peer) = (free_address(), free_address());
            let delay = delay.filter(|_| number + 1 == count);
            let proxy = delay.map(|delay| DelayingProxy::start(peer, delay));
            let reached_at = proxy.as_ref().map_or(peer, DelayingProxy::address);
            proxies.extend(proxy);
            places.push(Place {
                client,
                peer,
                reached_at,
            });
        }
        let all = places.iter().enumerate();
        let all = all.map(|(number, place)| format!("{number}=http://{}", place.reached_at));
        let all = all.collect::<Vec<_>>().join(",");
        let members = places.iter().enumerate();
        let members = members.map(|(number, place)| member(number, place, &all));
        let mut cluster = Self {
            members: members.collect(),
            lease: String::new(),
            _proxies: proxies,
        };
        cluster.lease = cluster.lease_of_first().await;
        // A member that does not lead has to be struck, whichever was elected.
        cluster.move_leader_to_first().await;
        cluster
    }

    /// The member that clients talk to.
    pub(crate) fn leader(&self) -> &Served {
        &self.members[0]
    }

    /// Kills the last member.
    pub(crate) fn kill_last(&mut self) {
        drop(self.members.pop());
    }

    async fn lease_of_first(&self) -> String {
        for _ in 0..TRIES {
            if let Ok(answer) = self
                .leader()
                .post("/v3/lease/grant", r#"{"TTL":3600}"#)
                .await
                && let Some(lease) = answer.json()["ID"].as_str()
            {
                return lease.to_owned();
            }
            sleep(PAUSE).await;
        }
        panic!("etcd does not grant a lease");
    }

    async fn move_leader_to_first(&self) {
        for _ in 0..TRIES {
            let status = self.leader().post("/v3/maintenance/status", "{}").await;
            let status = status.expect("the first member answers").json();
            let (own, leader) = (&status["header"]["member_id"], &status["leader"]);
            if own == leader {
                return;
            }
            // Only the member that leads may be asked.
            let order = format!(r#"{{"targetID":{own}}}"#);
            for member in &self.members {
                let _ = member
                    .post("/v3/maintenance/transfer-leadership", &order)
                    .await;
            }
            sleep(PAUSE).await;
        }
        panic!("the first member of etcd does not lead");
    }
}

fn member(number: usize, place: &Place, all: &str) -> Served {
    let [client, peer, reached_at] =
        [place.client, place.peer, place.reached_at].map(|address| format!("http://{address}"));
    Served::etcd_member(
        place.client,
        tempfile::tempdir().unwrap(),
        &[
            ("--name", &number.to_string()),
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &reached_at),
            ("--initial-cluster", all),
        ],
    )
}
