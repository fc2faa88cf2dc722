//! The configuration: the structs that the rest of the program uses, and the checks between keys.
//!
//! A value comes from a flag, else from `LEASEHOLD_*` in the environment, else from the TOML file, else from
//! `config/leasehold.toml`, which is compiled in and is the only list of keys. Everything is parsed once, before any
//! socket opens. Nothing here knows HTTP, Redis or the process: arguments and environment are passed in.

mod audit;
mod auth;
mod certificate_name;
mod client_key;
mod error;
mod jwt;
mod key_hash;
pub mod keys;
mod keys_file;
mod layers;
mod listen;
mod log;
mod operators;
mod quorum;
mod redis;
mod redis_url;
mod secret;
mod server;
mod server_tls;
mod settings;
mod signing_keys;
mod store;
mod suggestion;
mod tls;
mod traces;
mod waiting;

use std::time::Duration;

use crate::domain::{Bounds, LimitBounds, NameGroups};
use settings::UpperBound;

pub use audit::{AuditConfig, AuditOutput};
pub use auth::{
    API_KEY_CHARS_MAX, API_KEY_CHARS_MIN, ApiKey, Auth, AuthConfig, Keys, check_api_key,
};
pub use certificate_name::CertificateName;
pub use client_key::ClientKey;
pub use error::{ConfigError, Origin};
pub use jwt::{JwksSource, JwtConfig};
pub use key_hash::KeyHash;
pub use keys_file::{ADMIN, KeysFile, PrincipalEntry, Quota, RequestRate};
pub use layers::{Sources, UnreadVariable, check_variables};
pub use listen::ListenAddress;
pub use log::{LogConfig, LogFormat, LogRequests};
pub use operators::OperatorTransport;
pub use quorum::{QuorumAddress, QuorumConfig, QuorumNode};
pub use redis::RedisConfig;
pub use redis_url::{ClusterAddress, SentinelAddress};
pub use secret::Secret;
pub use server::{AddressBlock, ServerConfig, half};
pub use server_tls::{ClientAuthorities, ServerCertificate};
pub use settings::Settings;
pub use signing_keys::{SigningKey, SigningKeys};
pub use store::{RedisAddress, StoreUrl};
pub use suggestion::{did_you_mean, key_meant_by};
pub use tls::{RedisTls, TlsIdentity, certificates_in};
pub use traces::TracesConfig;
pub use waiting::WaitingConfig;

/// The whole configuration, validated.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address to serve on.
    pub listen: ListenAddress,
    /// Where locks are stored.
    pub store: StoreUrl,
    /// Who may call.
    pub auth: Auth,
    /// Which tokens are accepted; `None` for none.
    pub jwt: Option<JwtConfig>,
    /// Authentication settings besides the keys.
    pub auth_config: AuthConfig,
    /// The deadline of one store operation.
    pub operation_timeout: Duration,
    /// Bounds of the values in a claim.
    pub lease: Bounds,
    /// Queues and lock events.
    pub waiting: WaitingConfig,
    /// Sockets and shutdown.
    pub server: ServerConfig,
    /// The certificate that clients see; `None` without TLS.
    pub certificate: Option<ServerCertificate>,
    /// The embedded stores, `memory:` and `file:`.
    pub memory: MemoryConfig,
    /// The `quorum:` store.
    pub quorum: QuorumConfig,
    /// The `redis://` store.
    pub redis: RedisConfig,
    /// Logs.
    pub log: LogConfig,
    /// The groups of lock names in metrics; may be none.
    pub name_groups: NameGroups,
    /// The audit stream.
    pub audit: AuditConfig,
    /// Traces; `None` if nothing is traced.
    pub traces: Option<TracesConfig>,
    /// Variables of other programs that are set, and those that would be read instead.
    pub unread: Vec<UnreadVariable>,
}

/// Where a probe on this machine finds the server.
#[derive(Debug)]
pub struct ProbeTarget {
    /// The address for clients; with TLS, that for probes if there is one, because it has no TLS.
    pub address: ListenAddress,
    /// Whether this address is served with TLS.
    pub has_tls: bool,
}

/// The embedded stores, `memory:` and `file:`.
#[derive(Debug, Clone)]
pub struct MemoryConfig {
    /// The maximum number of locks at once.
    pub locks_max: usize,
}

impl Config {
    /// Resolves the layers, parses every value and checks them against each other.
    ///
    /// # Errors
    ///
    /// When a name is unknown, a value does not parse, or two values contradict each other.
    pub fn load(sources: &Sources) -> Result<(Self, Settings), ConfigError> {
        let settings = Settings::resolve(sources)?;
        let mut config = Self::parse(&settings)?;
        config.unread = layers::unread(sources, &settings);
        Ok((config, settings))
    }

    /// Only the bounds of claims, without validating the rest: what checks a keys file needs nothing else.
    ///
    /// # Errors
    ///
    /// When a name is unknown, or a bound does not parse.
    pub fn lease_bounds(sources: &Sources) -> Result<Bounds, ConfigError> {
        bounds(&Settings::resolve(sources)?, LimitBounds::ANY)
    }

    /// Only where a probe on this machine finds the server, without validating the rest: `healthcheck` needs nothing else.
    ///
    /// # Errors
    ///
    /// When a name is unknown, or the address does not parse.
    pub fn probed(sources: &Sources) -> Result<ProbeTarget, ConfigError> {
        let settings = Settings::resolve(sources)?;
        let has_tls = server_tls::is_set(&settings);
        let admin = match has_tls {
            true => server::admin_listen(&settings)?,
            false => None,
        };
        Ok(match admin {
            Some(address) => ProbeTarget {
                address,
                has_tls: false,
            },
            None => ProbeTarget {
                address: ListenAddress::parse(&settings, "listen")?,
                has_tls,
            },
        })
    }

    fn parse(settings: &Settings) -> Result<Self, ConfigError> {
        let listen = ListenAddress::parse(settings, "listen")?;
        let server = ServerConfig::parse(settings)?;
        let admin_listen = server.admin_listen.as_ref();
        if admin_listen.is_some_and(|admin_listen| listen.excludes(admin_listen)) {
            let problem = format!("{listen} is taken by listen; choose another one");
            return Err(settings.invalid("server.admin_listen", problem));
        }
        if let (ListenAddress::Unix(_), true) = (&listen, server_tls::is_set(settings)) {
            let problem = format!(
                "{listen} is a Unix socket, which is served without TLS; leave out server.tls_cert_file, or listen on an \
                 address with a port"
            );
            return Err(settings.invalid("listen", problem));
        }
        let (store, credentials) = store::parse(settings.text("store"))
            .map_err(|problem| settings.invalid("store", problem))?;
        let redis = RedisConfig::parse(settings, credentials, &store)?;
        let limits = match store {
            StoreUrl::Quorum(_) => LimitBounds::OF_QUORUM,
            StoreUrl::Memory
            | StoreUrl::File(_)
            | StoreUrl::Redis(_)
            | StoreUrl::Sentinel(_)
            | StoreUrl::Cluster(_) => LimitBounds::ANY,
        };
        let lease = bounds(settings, limits)?;
        Ok(Self {
            store,
            auth: Auth::parse(settings, &listen, &lease)?,
            jwt: JwtConfig::parse(settings)?,
            listen,
            auth_config: AuthConfig::parse(settings)?,
            operation_timeout: settings.positive("operation_timeout")?,
            lease,
            waiting: WaitingConfig::parse(settings)?,
            server,
            certificate: ServerCertificate::parse(settings)?,
            memory: MemoryConfig {
                locks_max: settings.count("memory.locks_max", LOCKS_MAX)?,
            },
            quorum: QuorumConfig::parse(settings)?,
            redis,
            log: LogConfig::parse(settings)?,
            name_groups: NameGroups::parse(settings.text("metrics.name_groups"))
                .map_err(|problem| settings.invalid("metrics.name_groups", problem))?,
            audit: AuditConfig::parse(settings)?,
            traces: TracesConfig::parse(settings)?,
            unread: Vec::new(),
        })
    }

    /// Whether SIGHUP has anything to reload.
    #[must_use]
    pub fn reloads(&self) -> bool {
        let has_key_files = match &self.auth {
            Auth::Open => false,
            Auth::Keys(keys) => keys.are_from_files(),
        };
        has_key_files || self.certificate.is_some()
    }

    /// Settings that are valid but risky, as sentences for the log.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.listen.is_local() {
            if self.auth == Auth::Open {
                warnings.push(format!(
                    "auth is none: every client that can reach {} can take and release locks",
                    self.listen
                ));
            }
            if self.store == StoreUrl::Memory {
                warnings.push(
                    "the store is memory: leases are lost when this process ends, and no other process shares them; use file:DIR \
                     or redis://"
                        .to_owned(),
                );
            }
        }
        for UnreadVariable { name, meant } in &self.unread {
            warnings.push(format!(
                "{name} is set and not read, because it does not begin with LEASEHOLD_; set {meant}"
            ));
        }
        let clients = self.certificate.as_ref().and_then(|it| it.clients.as_ref());
        if clients.is_some_and(|it| it.are_required) && self.server.admin_listen.is_none() {
            warnings.push(
                "server.tls_client_certificate is required: probes, Prometheus and leasehold healthcheck show no certificate and \
                 are refused; set server.admin_listen for them"
                    .to_owned(),
            );
        }
        if let Auth::Keys(keys) = &self.auth {
            let files = keys.file.iter();
            warnings.extend(files.flat_map(|file| file.warnings(&self.lease)));
        }
        if let Some(policy) = &self.redis.accept_eviction_policy {
            warnings.push(format!(
                "the eviction policy {policy} is accepted: Redis may evict locks that are held"
            ));
        }
        warnings
    }
}

/// Far above what the memory of a machine holds.
const LOCKS_MAX: UpperBound = UpperBound(1_000_000_000, "no machine has memory for more locks");

fn bounds(settings: &Settings, limits: LimitBounds) -> Result<Bounds, ConfigError> {
    in_order(settings, "lease.ttl_min", "lease.ttl_default")?;
    in_order(settings, "lease.ttl_default", "lease.ttl_max")?;
    Ok(Bounds {
        ttl_default: settings.positive("lease.ttl_default")?,
        ttl_min: settings.positive("lease.ttl_min")?,
        ttl_max: settings.positive("lease.ttl_max")?,
        max_hold_max: settings.positive("lease.max_hold_max")?,
        lock_delay_max: lock_delay_max(settings)?,
        limits,
    })
}

/// A store keeps the tombstone of an ended lease for a minute, and cannot keep its lock closed for longer than that.
fn lock_delay_max(settings: &Settings) -> Result<Duration, ConfigError> {
    const LIMIT: Duration = Duration::from_secs(60);
    let name = "lease.lock_delay_max";
    let lock_delay = settings.duration(name)?;
    if lock_delay > LIMIT {
        let problem = format!(
            "{} is out of range; use 0s to {}: the store keeps no record of an ended lease for longer",
            settings.text(name),
            crate::domain::duration::format(LIMIT),
        );
        return Err(settings.invalid(name, problem));
    }
    Ok(lock_delay)
}

fn in_order(settings: &Settings, low: &str, high: &str) -> Result<(), ConfigError> {
    if settings.positive(low)? <= settings.positive(high)? {
        return Ok(());
    }
    // Blame the value that the user wrote, not a default.
    let (blamed, other, relation) = match settings.origin(high) {
        Origin::Default => (low, high, "longer"),
        Origin::File { .. } | Origin::Environment(_) | Origin::Flag(_) => (high, low, "shorter"),
    };
    let problem = format!(
        "{} is {relation} than {other}, which is {} ({}); write ttl_min <= ttl_default <= ttl_max",
        settings.text(blamed),
        settings.text(other),
        settings.origin(other),
    );
    Err(settings.invalid(blamed, problem))
}
