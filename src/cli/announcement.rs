//! The message of a server once its port is open: its URL, its store, and what should be improved.

use std::io::{self, IsTerminal as _, Write as _};

use crate::config::{Config, ListenAddress, OperatorTransport, StoreUrl};
use crate::store::StoreHealth;
use crate::telemetry::{self, LogWriter};

/// The notice for a user who starts a server without naming a store.
const FORGETS: &str =
    "leases are lost when this process ends; --store file:DIR or redis://HOST keeps them";

/// Announces the second address, with what it serves.
pub(super) fn announce_admin(config: &Config, address: &ListenAddress) {
    let url = url_of("http", address);
    match config.operator_transport() {
        OperatorTransport::None => tracing::info!(url, "listening for probes and metrics"),
        OperatorTransport::Any => {
            tracing::info!(url, "listening for probes, metrics and operators");
        }
        OperatorTransport::Encrypted => {
            let operators = url_of("https", address);
            tracing::info!(
                url,
                operators,
                "listening for probes and metrics, and over TLS for operators"
            );
        }
    }
}

/// Announces the open port: as a short banner on a terminal, as one log line otherwise.
pub(super) fn announce(
    config: &Config,
    mut log: LogWriter,
    address: &ListenAddress,
    health: &StoreHealth,
) {
    let (version, store) = (
        env!("CARGO_PKG_VERSION"),
        config.redis.with_user(&config.store),
    );
    let scheme = match config.certificate {
        Some(_) => "https",
        None => "http",
    };
    let url = url_of(scheme, address);
    // On other addresses the warnings of the configuration say it.
    let forgets = config.store == StoreUrl::Memory && config.listen.is_local();
    if telemetry::is_text(&config.log) && io::stdout().is_terminal() {
        let trouble = match (&health.trouble, health.contacted) {
            (Some(trouble), false) => format!("\n          not ready: {trouble}"),
            _ => String::new(),
        };
        let warning = match forgets {
            true => format!("\n          {FORGETS}"),
            false => String::new(),
        };
        // No browser can open a Unix socket.
        let docs = match address {
            ListenAddress::Tcp(_) => format!("\n  docs    {url}/docs"),
            ListenAddress::Unix(_) => String::new(),
        };
        let banner = format!(
            "leasehold {version}\n  url     {url}{docs}\n  store   {store}{warning}{trouble}\n"
        );
        // Through the log writer, because a stopped terminal (Ctrl-S) would block a direct write, and so the start.
        let _ = log.write_all(banner.as_bytes());
    } else {
        tracing::info!(url, store, version, "listening");
        if forgets {
            tracing::warn!("{FORGETS}");
        }
    }
    let warnings = config.warnings().into_iter();
    for warning in warnings.chain(relative_directory(config)) {
        tracing::warn!("{warning}");
    }
}

/// A relative directory is another one wherever the process is started, and an empty one has no locks.
fn relative_directory(config: &Config) -> Option<String> {
    let StoreUrl::File(directory) = &config.store else {
        return None;
    };
    let absolute = std::path::absolute(directory).ok()?;
    let shown = absolute.display();
    directory.is_relative().then(|| {
        format!(
            "the store is relative to the directory in which this process was started; write file:{shown}"
        )
    })
}

/// The URL of the service, as the commands take it.
pub(super) fn url_of(scheme: &str, address: &ListenAddress) -> String {
    match address {
        ListenAddress::Tcp(address) => format!("{scheme}://{address}"),
        ListenAddress::Unix(_) => address.to_string(),
    }
}
