//! Problems of the address for probes and operators.

use std::time::Duration;

use super::body::ProblemOutcome;
use super::{Code, Problem};
use crate::config::OperatorTransport;

/// When to retry what the workers have not answered, and where to retry what this process does not begin any more.
const RETRY: Duration = Duration::from_secs(1);

impl Problem {
    /// There is no such route at that address.
    pub(in crate::http) fn not_found_there(transport: OperatorTransport) -> Self {
        let detail = match transport {
            OperatorTransport::None => {
                "this address serves only /livez, /readyz, /healthz, /version and /metrics; to serve /ui and /locks too, it has \
                 to be open to nobody who cannot reach listen, to need keys unless it is of this machine, and to ask for \
                 the client certificates that listen asks for"
            }
            OperatorTransport::Any => {
                "this address serves only /livez, /readyz, /healthz, /version, /metrics and /ui, and /locks to read and to evict"
            }
            OperatorTransport::Encrypted => {
                "this address serves only /livez, /readyz, /healthz, /version and /metrics, and over TLS, as https://, also \
                 /ui, and /locks to read and to evict"
            }
        };
        Self::new(Code::NotFound, detail)
    }

    /// The address for clients is closed already.
    pub(in crate::http) fn operators_draining() -> Self {
        let detail = "this process is about to stop; repeat the request at another process";
        let mut refusal = Self::new(Code::Draining, detail);
        refusal.0.extras.outcome = Some(ProblemOutcome::NothingDone);
        refusal.retry_after(RETRY)
    }

    /// The workers have not answered in time.
    pub(in crate::http) fn operators_unanswered(is_read: bool) -> Self {
        let (outcome, detail) = match is_read {
            true => (
                ProblemOutcome::NothingDone,
                "this process was too busy to answer in time; nothing was changed",
            ),
            false => (
                ProblemOutcome::Unknown,
                "this process was too busy to answer in time; whether the request took effect is unknown",
            ),
        };
        let mut refusal = Self::new(Code::Overloaded, detail);
        refusal.0.extras.outcome = Some(outcome);
        refusal.retry_after(RETRY)
    }
}
