//! How a Redis of the tests is configured.

/// What Redis persists, and when it syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// Nothing: a kill loses all data.
    Nothing,
    /// Everything, synced once a second.
    AofEverySecond,
    /// Everything, synced before each answer.
    AofAlways,
}

/// The files of a Redis with TLS.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    /// The authority of the certificates of clients.
    pub(crate) authority: String,
    /// What Redis shows to clients.
    pub(crate) certificate: String,
    /// The private key of it.
    pub(crate) key: String,
    /// Whether clients have to show one too.
    pub(crate) wants_certificate: bool,
}

/// How a Redis is configured.
#[derive(Clone, Debug)]
pub(crate) struct RedisOptions {
    /// What survives a kill.
    pub(crate) persistence: Persistence,
    /// `maxmemory-policy`.
    pub(crate) eviction_policy: &'static str,
    /// `databases`.
    pub(crate) databases: u16,
    /// Whether the test can move its clock.
    pub(crate) has_movable_clock: bool,
    /// Whether it is a node of a Redis Cluster, of which there are no others.
    pub(crate) is_cluster_node: bool,
    /// Whether it loads its data slowly.
    pub(crate) loads_slowly: bool,
    /// The files for TLS, on a port of its own beside the one without.
    pub(crate) tls: Option<TlsFiles>,
    /// Commands that it does not have, as in a managed service.
    pub(crate) without: &'static [&'static str],
    /// The environment, for a preloaded library.
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            persistence: Persistence::AofAlways,
            eviction_policy: "noeviction",
            databases: 16,
            has_movable_clock: false,
            is_cluster_node: false,
            loads_slowly: false,
            tls: None,
            without: &[],
            environment: Vec::new(),
        }
    }
}

impl RedisOptions {
    /// Without persistence, so that a slow disk cannot disturb a test.
    pub(crate) fn forgetful() -> Self {
        Self {
            persistence: Persistence::Nothing,
            ..Self::default()
        }
    }

    /// With ports for clients without and with TLS, and for the other nodes of a cluster.
    pub(super) fn arguments(
        &self,
        [port, tls_port, bus_port]: [u16; 3],
        directory: &str,
    ) -> Vec<String> {
        let (aof, fsync) = match self.persistence {
            Persistence::Nothing => ("no", "always"),
            Persistence::AofEverySecond => ("yes", "everysec"),
            Persistence::AofAlways => ("yes", "always"),
        };
        // Redis sleeps for a microsecond after about every fifth command.
        let load_delay = if self.loads_slowly { "-5" } else { "0" };
        let mut options = vec![
            ("port", port.to_string()),
            ("bind", "127.0.0.1".to_owned()),
            ("dir", directory.to_owned()),
            ("save", String::new()),
            ("appendonly", aof.to_owned()),
            ("appendfsync", fsync.to_owned()),
            // A replica that connects need not wait for others.
            ("repl-diskless-sync-delay", "0".to_owned()),
            ("maxmemory-policy", self.eviction_policy.to_owned()),
            ("databases", self.databases.to_string()),
            ("key-load-delay", load_delay.to_owned()),
        ];
        if self.is_cluster_node {
            options.push(("cluster-enabled", "yes".to_owned()));
            // Not `port` + 10000, which may be the port of another test.
            options.push(("cluster-port", bus_port.to_string()));
        }
        if let Some(tls) = &self.tls {
            let wants_certificate = if tls.wants_certificate { "yes" } else { "no" };
            options.extend([
                ("tls-port", tls_port.to_string()),
                ("tls-cert-file", tls.certificate.clone()),
                ("tls-key-file", tls.key.clone()),
                ("tls-ca-cert-file", tls.authority.clone()),
                ("tls-auth-clients", wants_certificate.to_owned()),
            ]);
            if self.is_cluster_node {
                // Otherwise the nodes announce only the port without TLS.
                options.push(("tls-cluster", "yes".to_owned()));
            }
        }
        let options = options.into_iter();
        let options = options.flat_map(|(option, value)| [format!("--{option}"), value]);
        let missing = self.without.iter();
        let missing = missing.flat_map(|name| ["--rename-command", name, ""].map(str::to_owned));
        options.chain(missing).collect()
    }
}
