//! Whether Redis has refused a request lately because the user lacks a right. The checks of the store need few rights, so
//! they succeed meanwhile.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::UNPOISONED;
use super::failure::Failure;
use crate::store::{Fault, Finding};

/// For how long it is reported.
const REPORTED_FOR: Duration = Duration::from_secs(60);

/// The last refusal of a right. Shared by the nodes of a store.
#[derive(Debug, Default)]
pub(super) struct RefusedRight(Mutex<Option<(Instant, String)>>);

impl RefusedRight {
    /// Notes why a request failed, if that is a missing right.
    pub(super) fn note(&self, failure: &Failure) {
        if failure.fault == Fault::Permission {
            let refused = (Instant::now(), failure.explanation());
            *self.0.lock().expect(UNPOISONED) = Some(refused);
        }
    }

    /// None if no request was refused lately.
    pub(super) fn finding(&self) -> Option<Finding> {
        let refused = self.0.lock().expect(UNPOISONED);
        let (at, explanation) = refused.as_ref()?;
        (at.elapsed() < REPORTED_FOR).then(|| Finding {
            topic: "rights",
            is_fine: false,
            detail: format!("a request was refused less than a minute ago: {explanation}"),
        })
    }
}
