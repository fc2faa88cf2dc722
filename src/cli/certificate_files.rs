//! Rereads the certificate of the server, and the authorities of its clients, from their files while it runs, so that both
//! can be changed without a restart. Open connections keep those before.

use std::convert::Infallible;
use std::time::Duration;

use super::rereads::RereadCounts;
use crate::config::ServerCertificate;
use crate::server::ServerTls;
use crate::server::shutdown::ReloadSignals;

/// Keeps both equal to their files, for as long as the service runs: rereads them at intervals, and at SIGHUP at
/// once. Between the replacement of the one file and the other the two do not belong together; that changes nothing, and
/// is reported only if it lasts.
pub(super) async fn follow(
    mut known: ServerCertificate,
    tls: ServerTls,
    interval: Duration,
    counts: RereadCounts,
    mut reloads: ReloadSignals,
) -> Infallible {
    let (mut last_problem, mut reported) = (None, None);
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = reloads.next() => {}
        }
        let files = known.clone();
        // On a blocking thread: the files may be on a network file system.
        let reread = tokio::task::spawn_blocking(move || files.reread()).await;
        let reread = reread.unwrap_or_else(|panic| Err(panic.to_string()));
        let problem = match reread {
            Ok(same) if same == known => None,
            Ok(changed) => match tls.replace(&changed) {
                Ok(()) => {
                    known = changed;
                    counts.replaced();
                    tracing::info!(
                        "TLS files reloaded: the certificate or the authorities of clients have changed"
                    );
                    None
                }
                Err(error) => Some(error.to_string()),
            },
            Err(problem) => Some(problem),
        };
        if problem.is_some() && problem == last_problem && problem != reported {
            counts.failed();
            tracing::warn!(
                problem,
                "cannot reload the TLS certificate and the authorities of clients; the previous ones stay in use"
            );
            reported.clone_from(&problem);
        }
        if problem.is_none() {
            reported = None;
        }
        tls.set_outdated(reported.is_some());
        last_problem = problem;
    }
}
