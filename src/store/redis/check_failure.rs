//! Why a check of the store failed: for the log, and for whoever queries the readiness of the process.

use super::failure::Failure;
use crate::store::Fault;

/// Why a check did not reach the store.
#[derive(Clone)]
pub(super) struct CheckFailure {
    pub(super) fault: Fault,
    /// Whether it lasts until somebody changes the configuration.
    pub(super) is_lasting: bool,
    /// For everybody who can query the readiness of the process.
    pub(super) explanation: String,
    /// For the log.
    pub(super) detail: String,
}

impl From<Failure> for CheckFailure {
    fn from(failure: Failure) -> Self {
        Self {
            fault: failure.fault,
            is_lasting: failure.is_lasting(),
            explanation: failure.explanation(),
            detail: failure.detail,
        }
    }
}

impl CheckFailure {
    /// For the operator who starts the process.
    pub(super) fn sentence(&self) -> String {
        format!("{} ({})", self.explanation, self.detail)
    }
}

/// Whether a check ended as the last one did. The errors of sockets and certificates may differ in each, for example by the
/// time.
pub(super) fn is_as_before(
    before: &Result<(), CheckFailure>,
    check: &Result<(), CheckFailure>,
) -> bool {
    match (before, check) {
        (Ok(()), Ok(())) => true,
        (Err(before), Err(now)) => {
            before.fault == now.fault && before.explanation == now.explanation
        }
        (Ok(()), Err(_)) | (Err(_), Ok(())) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::failure::Execution;

    #[test]
    fn a_failure_is_news_if_it_has_another_explanation() {
        let failed = |fault, detail| {
            let failure = Failure::new(fault, Execution::NotDone, detail);
            Err(CheckFailure::from(failure))
        };
        let broken = failed(Fault::Io, "Broken pipe (os error 32)");
        let reset = failed(Fault::Io, "Connection reset by peer (os error 104)");
        let refused = failed(Fault::Io, "Connection refused (os error 111)");
        assert!(is_as_before(&broken, &reset));
        for news in [refused, failed(Fault::Timeout, "it"), Ok(())] {
            assert!(!is_as_before(&broken, &news));
        }
        assert!(is_as_before(&Ok(()), &Ok(())));
    }
}
