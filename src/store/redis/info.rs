//! What a Redis reports about itself, and what Leasehold concludes. Redis is checked, not trusted.

use std::collections::HashMap;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::cluster::ClusterView;

use crate::store::{Fault, Finding};

/// The oldest Redis that supports the scripts.
const VERSION_MIN: (u32, u32) = (6, 2);
/// What counts as the role of a Sentinel.
const SENTINEL: &str = "sentinel";
/// Clock offsets above this get a warning, in milliseconds.
const CLOCK_OFFSET_MAX_MS: i64 = 250;

/// The result of one check of a Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerInfo {
    /// Changes with every start of a Redis process.
    pub(super) run_id: String,
    /// Whose replica it was before it was promoted; empty for none.
    pub(super) promoted_from: String,
    version: String,
    /// Its name and version, for operators. The version of a Valkey is another one than that of the Redis it behaves like.
    product: String,
    role: String,
    is_cluster_node: bool,
    /// Whether the store is a cluster.
    is_of_cluster: bool,
    /// The replication id.
    pub(super) replid: String,
    /// What it knows about itself and the other nodes of its cluster; none without one.
    pub(super) in_cluster: ClusterView,
    is_loading: bool,
    maxmemory_policy: String,
    is_append_only: bool,
    /// `always`, `everysec` or `no`; none if the command is forbidden, as on many managed services.
    appendfsync: Option<String>,
    /// `no-appendfsync-on-rewrite`: nothing is synced while the file is rewritten. None if unknown.
    skips_fsync_on_rewrite: Option<bool>,
    replicas: u64,
    last_write_failed: bool,
    /// Whether `maxmemory` was reached, by the same measure as Redis'.
    is_full: bool,
    maxmemory_bytes: u64,
}

impl ServerInfo {
    /// Checks a Redis. Fails while it loads its data: it reports then that it has no append-only file. By the next
    /// command it may have loaded them, and would count as one that has not kept them.
    pub(super) async fn read(
        connection: &mut MultiplexedConnection,
        is_of_cluster: bool,
    ) -> RedisResult<Self> {
        let info: String = redis::cmd("INFO").query_async(connection).await?;
        let config: RedisResult<HashMap<String, String>> = redis::cmd("CONFIG")
            .arg("GET")
            .arg("*appendfsync*")
            .query_async(connection)
            .await;
        let config = match config {
            Ok(config) => config,
            // Many managed services forbid the command, or do not have it.
            Err(error) if matches!(error.code(), Some("NOPERM" | "ERR")) => HashMap::new(),
            Err(error) => return Err(error),
        };
        let mut server = Self {
            is_of_cluster,
            ..Self::parse(&info, &config)
        };
        if is_of_cluster && server.is_cluster_node {
            let nodes: String = redis::cmd("CLUSTER")
                .arg("NODES")
                .query_async(connection)
                .await?;
            server.in_cluster = ClusterView::parse(&nodes);
        }
        if server.is_primary() && server.is_loading {
            let kind = redis::ErrorKind::Server(redis::ServerErrorKind::BusyLoading);
            return Err((kind, "it is loading its data").into());
        }
        Ok(server)
    }

    fn parse(info: &str, config: &HashMap<String, String>) -> Self {
        let lines: HashMap<&str, &str> = info
            .lines()
            .filter_map(|line| line.trim_end().split_once(':'))
            .collect();
        let text = |key: &str| lines.get(key).copied().unwrap_or_default().to_owned();
        // All zeros if there is none.
        let id = |key: &str| text(key).trim_matches('0').to_owned();
        let bytes = |key: &str| text(key).parse().unwrap_or(0_u64);
        let maxmemory_bytes = bytes("maxmemory");
        let counted_bytes = bytes("used_memory").saturating_sub(bytes("mem_not_counted_for_evict"));
        Self {
            run_id: text("run_id"),
            promoted_from: id("master_replid2"),
            replid: id("master_replid"),
            version: text("redis_version"),
            product: match lines.get("valkey_version") {
                Some(version) => format!("valkey {version}"),
                None => format!("redis {}", text("redis_version")),
            },
            role: match lines.get("redis_mode") {
                // It reports no role of its own.
                Some(&"sentinel") => SENTINEL.to_owned(),
                Some(_) | None => text("role"),
            },
            is_cluster_node: text("cluster_enabled") == "1",
            is_of_cluster: false,
            in_cluster: ClusterView::default(),
            is_loading: text("loading") == "1",
            maxmemory_policy: text("maxmemory_policy"),
            is_append_only: text("aof_enabled") == "1",
            appendfsync: config.get("appendfsync").cloned(),
            skips_fsync_on_rewrite: config
                .get("no-appendfsync-on-rewrite")
                .map(|value| value != "no"),
            replicas: text("connected_slaves").parse().unwrap_or(0),
            last_write_failed: text("aof_last_write_status") == "err",
            is_full: maxmemory_bytes > 0 && counted_bytes > maxmemory_bytes,
            maxmemory_bytes,
        }
    }

    /// Whether every acknowledged write is on disk before its acknowledgement, and no replica that lacks the last
    /// writes can be promoted in its place.
    pub(super) fn is_durable(&self) -> bool {
        self.is_synced() && self.skips_fsync_on_rewrite == Some(false) && self.replicas == 0
    }

    pub(super) fn is_primary(&self) -> bool {
        self.role == "master"
    }

    /// Whether the scripts can run here at all: they write, and the keys of one script have many slots unless the store
    /// is a cluster.
    pub(super) fn runs_scripts(&self) -> bool {
        self.is_primary() && self.is_cluster_node == self.is_of_cluster
    }

    fn is_synced(&self) -> bool {
        self.is_append_only
            && self.appendfsync.as_deref() == Some("always")
            && !self.last_write_failed
    }

    /// Why this Redis may not grant leases, in kind and in words; none if it may.
    pub(super) fn refusal(&self, accepted_policy: Option<&str>) -> Option<(Fault, String)> {
        let findings = [
            (Fault::Refused, self.version_finding()),
            (Fault::Cluster, self.cluster_finding()),
            (Fault::Replica, self.role_finding()),
            (Fault::Refused, self.policy_finding(accepted_policy)),
        ];
        findings
            .into_iter()
            .find(|(_, finding)| !finding.is_fine)
            .map(|(fault, finding)| (fault, finding.detail))
    }

    /// All findings, good or bad.
    pub(super) fn findings(
        &self,
        accepted_policy: Option<&str>,
        clock_offset_ms: i64,
    ) -> Vec<Finding> {
        vec![
            self.version_finding(),
            self.cluster_finding(),
            self.role_finding(),
            self.policy_finding(accepted_policy),
            self.persistence_finding(),
            self.memory_finding(),
            clock_finding(clock_offset_ms),
        ]
    }

    fn version_finding(&self) -> Finding {
        let mut numbers = self
            .version
            .split('.')
            .map(|part| part.parse().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let is_fine = version >= VERSION_MIN;
        let advice = if is_fine { "" } else { "; use 6.2 or later" };
        Finding {
            topic: "version",
            is_fine,
            detail: format!("{}{advice}", self.product),
        }
    }

    fn cluster_finding(&self) -> Finding {
        let detail = match (self.is_cluster_node, self.is_of_cluster) {
            (true, false) => {
                "it is a node of a Redis Cluster; write redis+cluster:// in LEASEHOLD_STORE, or use a Redis without \
                 cluster-enabled"
            }
            (false, false) => "it is no node of a Redis Cluster",
            (true, true) => "it is a node of a Redis Cluster",
            (false, true) => {
                "it is no node of a Redis Cluster; write redis:// in LEASEHOLD_STORE, or set cluster-enabled to yes"
            }
        };
        Finding {
            topic: "cluster",
            is_fine: self.is_cluster_node == self.is_of_cluster,
            detail: detail.to_owned(),
        }
    }

    fn role_finding(&self) -> Finding {
        let is_fine = self.is_primary();
        let advice = match self.role.as_str() {
            _ if is_fine => "",
            SENTINEL => "; write redis+sentinel:// in LEASEHOLD_STORE",
            _ => "; point LEASEHOLD_STORE at the primary",
        };
        Finding {
            topic: "role",
            is_fine,
            detail: format!("role is {}{advice}", self.role),
        }
    }

    fn policy_finding(&self, accepted: Option<&str>) -> Finding {
        let policy = &self.maxmemory_policy;
        let (is_fine, detail) = match policy.as_str() {
            "noeviction" => (true, "maxmemory-policy is noeviction".to_owned()),
            // A Sentinel has none.
            "" => (true, "maxmemory-policy is not known".to_owned()),
            _ if Some(policy.as_str()) == accepted => (
                true,
                format!("maxmemory-policy {policy} may evict leases; accepted by name"),
            ),
            _ => {
                let advice =
                    "set it to noeviction, or accept it by name with redis.accept_eviction_policy";
                (
                    false,
                    format!("maxmemory-policy {policy} may evict leases that are held; {advice}"),
                )
            }
        };
        Finding {
            topic: "maxmemory-policy",
            is_fine,
            detail,
        }
    }

    fn memory_finding(&self) -> Finding {
        let bytes = self.maxmemory_bytes;
        let detail = match (self.is_full, bytes) {
            (true, _) => format!(
                "the {bytes} bytes of maxmemory are used up, so that new claims are refused; raise it, or make room"
            ),
            (false, 0) => "there is no maxmemory".to_owned(),
            (false, _) => format!("there is room within the {bytes} bytes of maxmemory"),
        };
        Finding {
            topic: "memory",
            is_fine: !self.is_full,
            detail,
        }
    }

    fn persistence_finding(&self) -> Finding {
        let detail = match (self.is_append_only, self.last_write_failed) {
            (true, true) => {
                "the last write of the append-only file failed; free disk space".to_owned()
            }
            (true, false) if self.is_durable() => {
                "append-only file with appendfsync always".to_owned()
            }
            (true, false) if self.is_synced() && self.skips_fsync_on_rewrite != Some(false) => {
                "append-only file with appendfsync always, but not while it is rewritten; set \
                 no-appendfsync-on-rewrite to no, or new grants wait after a restart"
                    .to_owned()
            }
            (true, false) if self.is_synced() => format!(
                "append-only file with appendfsync always; replicas: {}; new grants wait after a restart, because one of \
                 them may be promoted",
                self.replicas
            ),
            (true, false) => match &self.appendfsync {
                Some(appendfsync) => format!(
                    "append-only file with appendfsync {appendfsync}, so new grants wait after a restart; with always they need not"
                ),
                None => "append-only file whose appendfsync cannot be read, so new grants wait after a restart; with the right \
                         to CONFIG GET they need not"
                    .to_owned(),
            },
            (false, _) => "no append-only file, so new grants wait after a restart; with appendonly yes and appendfsync \
                           always they need not"
                .to_owned(),
        };
        Finding {
            topic: "persistence",
            is_fine: !self.last_write_failed,
            detail,
        }
    }
}

fn clock_finding(offset_ms: i64) -> Finding {
    let is_fine = offset_ms.abs() <= CLOCK_OFFSET_MAX_MS;
    let advice = if is_fine {
        ""
    } else {
        "; keep the clocks of all machines in step by NTP"
    };
    let relation = if offset_ms < 0 { "behind" } else { "ahead of" };
    let offset_ms = offset_ms.unsigned_abs();
    let detail =
        format!("the store's clock is {offset_ms} ms {relation} this machine's clock{advice}");
    Finding {
        topic: "clock",
        is_fine,
        detail,
    }
}

#[cfg(test)]
impl ServerInfo {
    /// A primary with this run id and nothing else known.
    pub(super) fn of_process(run_id: &str) -> Self {
        let info = format!("run_id:{run_id}\r\nrole:master\r\n");
        Self::parse(&info, &HashMap::new())
    }
}

#[cfg(test)]
mod tests;
