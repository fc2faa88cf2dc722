//! `leasehold serve`: only wires configuration, telemetry, store, service, router and server.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::announcement::{announce, announce_admin};
use super::outputs::{OutputError, Outputs};
use super::rereads::{follow_certificate, follow_issuer, follow_keys};
use super::{CliError, Exit, issuer_keys, key_files};
use crate::config::{Auth, Config, ListenAddress, ServerConfig, Sources, StoreUrl};
use crate::http::{self, Access, App, Failures, KnownHosts, OperatorRuntime};
use crate::limits::Refusals;
use crate::server::shutdown::{self, ReloadSignals, StopSignals};
use crate::server::{Drained, Server, ServerTls, Workers, descriptors};
use crate::service::metrics::LockMetrics;
use crate::service::{self, LockService};
use crate::store::{self, StoreError};
use crate::telemetry::Metrics;
use crate::telemetry::traces::{Exporter, ExporterError};

/// How often histogram samples are moved into their buckets, also in a process that is never scraped.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// How many primaries of a Redis Cluster there is room for among the open files.
const CLUSTER_PRIMARIES: usize = 16;
/// The limits of the address for probes and operators: more than there are probes, and no more memory than the manifests
/// have besides those of the first address.
const ADMIN_CONNECTIONS: usize = 128;
const ADMIN_REQUESTS: usize = 256;

/// Why serving did not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    #[error("cannot listen on {address}: {error}{}", remedy(error, address, flag))]
    Bind {
        flag: &'static str,
        address: ListenAddress,
        error: io::Error,
    },
    /// The store is reachable, but would lose leases or refuses this process. Its configuration or ours is wrong.
    #[error("refusing this store: {}", .0.detail())]
    Refused(#[from] StoreError),
    #[error(transparent)]
    Output(OutputError),
    #[error(
        "the TLS certificate cannot be used with its key, or an authority of clients cannot be used: {0}"
    )]
    Tls(#[from] rustls::Error),
    #[error("cannot send traces: {0}")]
    Traces(String),
    #[error("the operating system refused a resource that the server needs: {0}")]
    System(#[from] io::Error),
}

impl From<ExporterError> for ServeError {
    fn from(error: ExporterError) -> Self {
        match error {
            ExporterError::Config(problem) => Self::Traces(problem),
            ExporterError::System(error) => Self::System(error),
        }
    }
}

pub(super) fn run(sources: &Sources) -> Result<Exit, CliError> {
    let (config, _) = Config::load(sources)?;
    let outputs = Outputs::open(&config).map_err(ServeError::Output)?;
    let served = run_until_stopped(&config, &outputs);
    outputs.flush();
    Ok(served?)
}

fn run_until_stopped(config: &Config, outputs: &Outputs) -> Result<Exit, ServeError> {
    // This thread accepts connections and does the process-wide work; the workers serve the connections.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let code = runtime.block_on(until_stopped(config, outputs))?;
    // After a second signal, tasks that still run are not awaited.
    runtime.shutdown_background();
    Ok(code)
}

/// Serves until the drain after the first signal has finished, or until a second signal.
async fn until_stopped(config: &Config, outputs: &Outputs) -> Result<Exit, ServeError> {
    outlive_signals()?;
    let reloads = ReloadSignals::listen(config.reloads())?;
    let signals = StopSignals::listen(config.reloads())?;
    let draining = CancellationToken::new();
    tokio::select! {
        served = serve(config, outputs, reloads, draining.clone()) => served.map(|()| Exit::Done),
        second = signals.announce(draining) => Ok(Exit::Stopped(second)),
    }
}

/// Ignores signals that should not end the process. SIGUSR1 and SIGUSR2 make other servers open their log again or
/// print statistics, and may be sent by mistake. SIGXFSZ comes with a write beyond the limit on the size of a file
/// (`ulimit -f`), which then fails like one on a full disk.
fn outlive_signals() -> io::Result<()> {
    let file_limit = SignalKind::from_raw(nix::sys::signal::Signal::SIGXFSZ as i32);
    let user_defined = [SignalKind::user_defined1(), SignalKind::user_defined2()];
    for kind in [file_limit].into_iter().chain(user_defined) {
        // The handler stays when the stream of signals is dropped.
        drop(signal(kind)?);
    }
    Ok(())
}

async fn serve(
    config: &Config,
    outputs: &Outputs,
    reloads: ReloadSignals,
    draining: CancellationToken,
) -> Result<(), ServeError> {
    let metrics = Arc::new(Metrics::with_buckets(&buckets()));
    outputs.count_dropped_lines(&metrics);
    let exporting = Exporter::start(config.traces.as_ref(), &metrics);
    let (tracer, exporter) = exporting?;
    // A disk that fails may keep it waiting.
    let store = tokio::select! {
        store = store::open(config) => store?,
        () = draining.cancelled() => return Ok(()),
    };
    let lock_metrics = LockMetrics::new(&metrics)
        .of_nodes(&metrics, &store.health().nodes)
        .by_group(&metrics, &config.name_groups);
    let service = LockService::new(
        store,
        config.operation_timeout,
        config.waiting.clone(),
        lock_metrics,
        draining.clone(),
    );
    let server_config = fitted(config)?;
    let refusals = Refusals::new(&metrics);
    let server = bind(&server_config, &config.listen, &refusals)?;
    let tls = tls(config)?;
    let server = match &tls {
        Some(tls) => server.with_tls(tls.clone(), server_config.tls_handshakes_max),
        None => server,
    };
    let certificates = follow_certificate(config, tls.clone(), &metrics)?;
    let workers = Workers::start(threads(config)).map_err(ServeError::System)?;
    let admin = admin(config, &server, &workers)?;
    show_open_connections(&server, &metrics);
    let access = access(config);
    let issuer = follow_issuer(config, &access, &metrics, outputs.audit())?;
    let settings = http::HttpSettings {
        audit: outputs.audit(),
        tls,
        tracer,
        ..http::HttpSettings::new(config, access.clone())
    };
    let app = App::new(service.clone(), Arc::clone(&metrics), settings);
    workers.on_each(|| service.clone().warm_up());
    announce(
        config,
        outputs.log.clone(),
        server.address(),
        &service.store_health(),
    );
    let stopped = shutdown::announced(draining, config.server.drain_delay);
    let drained = tokio::select! {
        drained = serve_both(server, admin, app, &workers, stopped) => drained,
        never = upkeep(&metrics) => match never {},
        never = service.run_checks() => match never {},
        never = follow_keys(config, &access, &metrics, outputs.audit(), reloads) => match never {},
        never = issuer => match never {},
        never = certificates => match never {},
    };
    // The service's background tasks run on the workers, so the workers are dropped after it.
    service.shut_down(config.operation_timeout).await;
    drop(workers);
    if let Some(exporter) = exporter {
        exporter.finish().await;
    }
    log_end(&drained);
    Ok(())
}

fn log_end(drained: &Drained) {
    match drained {
        Drained::Finished => tracing::info!("stopped"),
        Drained::Cut { connections } => {
            tracing::warn!(connections, "stopped; connections were cut")
        }
    }
}

/// How many threads serve connections.
fn threads(config: &Config) -> usize {
    config
        .server
        .worker_threads
        .unwrap_or_else(Workers::of_machine)
}

/// The server settings, with `connections_max` lowered to what the open-file limit allows.
fn fitted(config: &Config) -> Result<ServerConfig, ServeError> {
    let mut server = config.server.clone();
    let of_store = match config.store {
        StoreUrl::Memory => 0,
        // The database and the lock, and a moment while the database is opened again.
        StoreUrl::File(_) => 4,
        // Each worker and the accepting thread have a pool, and one more connection for pub/sub.
        StoreUrl::Redis(_) | StoreUrl::Sentinel(_) => {
            (threads(config) + 1) * (config.redis.connections + 1)
        }
        // The same for each primary; more of them than this would be a cluster of the largest size.
        StoreUrl::Cluster(_) => {
            CLUSTER_PRIMARIES * (threads(config) + 1) * (config.redis.connections + 1)
        }
        StoreUrl::Quorum(ref address) => {
            address.nodes.len() * (threads(config) + 1) * (config.redis.connections + 1)
        }
    };
    let reserved = of_store
        + server
            .admin_listen
            .as_ref()
            .map_or(0, |_| ADMIN_CONNECTIONS);
    let fitting = descriptors::connections_that_fit(server.connections_max, reserved)?;
    if fitting < server.connections_max {
        tracing::warn!(
            connections_max = fitting,
            configured = server.connections_max,
            "the open-file limit is too low for server.connections_max, which is lowered; raise the limit (ulimit -n, \
             LimitNOFILE)"
        );
        server.connections_max = fitting;
    }
    Ok(server)
}

fn show_open_connections(server: &Server, metrics: &Metrics) {
    let open = server.open_connections();
    metrics.sampled_gauge(
        "leasehold_open_connections",
        "Connections open on this process.",
        &[],
        move || {
            // Connection counts are far below the point where f64 loses integer precision.
            f64::from(u32::try_from(open.count()).unwrap_or(u32::MAX))
        },
    );
}

fn bind(
    config: &ServerConfig,
    address: &ListenAddress,
    refusals: &Refusals,
) -> Result<Server, ServeError> {
    let bound = Server::bind_counted(config, address.clone(), refusals.clone());
    bound.map_err(|error| ServeError::Bind {
        flag: "--listen",
        address: address.clone(),
        error,
    })
}

/// The server of the second address, if one is configured.
fn admin(
    config: &Config,
    server: &Server,
    workers: &Workers,
) -> Result<Option<Server>, ServeError> {
    let Some(address) = &config.server.admin_listen else {
        return Ok(None);
    };
    let limited = ServerConfig {
        connections_max: ADMIN_CONNECTIONS,
        connections_per_peer_max: None,
        // Neither probes nor browsers need HTTP/2, and each such connection can be made to take megabytes.
        http2_connections_max: 0,
        tls_handshakes_max: ADMIN_CONNECTIONS,
        answer_bytes_max: http::ADMIN_ANSWER_BYTES_MAX,
        requests_max: ADMIN_REQUESTS,
        ..config.server.clone()
    };
    let admin = server.bind_another(&limited, address.clone(), workers);
    let admin = admin.map_err(|error| ServeError::Bind {
        flag: "--server-admin-listen",
        address: address.clone(),
        error,
    })?;
    announce_admin(config, admin.address());
    Ok(Some(admin))
}

/// Serves both addresses until they are stopped. The second one is served on this thread, which stays responsive however busy
/// the workers are.
async fn serve_both(
    server: Server,
    admin: Option<Server>,
    app: App,
    workers: &Workers,
    stopped: impl Future<Output = ()>,
) -> Drained {
    let (clients, workers) = (http::router(app.clone()), workers.clone());
    let Some(admin) = admin else {
        return server.run(clients, workers, stopped).await;
    };
    let closing = CancellationToken::new();
    let runtime = OperatorRuntime {
        workers: workers.clone(),
        requests: server.requests(),
        closing: closing.clone(),
    };
    let operators = http::admin_router(app, runtime);
    let stopped = async {
        stopped.await;
        closing.cancel();
    };
    server
        .run_with(clients, workers, (admin, operators), stopped)
        .await
}

/// Every histogram family with its buckets.
fn buckets() -> Vec<(&'static str, &'static [f64])> {
    service::metrics::BUCKETS
        .into_iter()
        .chain([http::BUCKETS])
        .collect()
}

/// The access rules, as `http` expects them.
fn access(config: &Config) -> Access {
    match &config.auth {
        Auth::Open => {
            let hosts = KnownHosts::of(config.listen.is_local(), config.server.hosts.clone());
            let admin = config.server.admin_listen.as_ref();
            Access::Open(hosts.with_admin(admin.is_some_and(ListenAddress::is_local)))
        }
        Auth::Keys(keys) => Access::Keys(
            key_files::ring(keys).with_tokens(config.jwt.as_ref().map(issuer_keys::verifier)),
            Failures::new(config.auth_config.failures_max),
        ),
    }
}

/// The certificate that clients see, if they are served with TLS.
fn tls(config: &Config) -> Result<Option<ServerTls>, ServeError> {
    let certificate = config.certificate.as_ref();
    let tls = certificate.map(ServerTls::new);
    Ok(tls.transpose()?)
}

async fn upkeep(metrics: &Metrics) -> Infallible {
    let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        interval.tick().await;
        metrics.upkeep();
    }
}

/// What to do about the common errors; the others need no advice.
fn remedy(error: &io::Error, address: &ListenAddress, flag: &str) -> String {
    let is = |kind| error.kind() == kind;
    if let ListenAddress::Unix(_) = address {
        return if is(io::ErrorKind::AddrInUse) {
            format!("; stop the process that listens there, or choose another path with {flag}")
        } else if is(io::ErrorKind::PermissionDenied) || is(io::ErrorKind::NotFound) {
            "; the directory has to exist, and the user of this process to be able to write to it and to the .lock file \
             beside the socket"
                .to_owned()
        } else {
            String::new()
        };
    }
    if is(io::ErrorKind::AddrInUse) {
        format!("; stop the process that uses the port, or choose another port with {flag}")
    } else if is(io::ErrorKind::AddrNotAvailable) {
        "; no network interface of this machine has this address".to_owned()
    } else if is(io::ErrorKind::PermissionDenied) {
        format!("; ports below 1024 need a privilege, choose a higher port with {flag}")
    } else {
        String::new()
    }
}
