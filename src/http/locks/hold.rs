//! `POST /locks/{name}` as a stream: holds the lock for as long as the connection lives.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use futures_util::future::{self, Either};
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

use super::acquire::{AcquireRequest, granted};
use super::{LOCK_TOKEN, secret};
use crate::config::LogRequests;
use crate::domain::{Claim, Lease, LockName, NotHeld};
use crate::http::admission::Operation;
use crate::http::app::App;
use crate::http::audit::{AuditedSender, AuditedStream};
use crate::http::log::{LineNumber, SampledLine};
use crate::http::problem::Problem;
use crate::http::requester::Requester;
use crate::http::sse::{Event, EventStreamBody};
use crate::http::wire::{GrantView, PositionView};
use crate::server::Peer;
use crate::service::{AcquireOutcome, HoldEvent};
use crate::store::StoreError;

/// The longest time between keep-alives on an idle stream. They detect peers that vanished.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(5);
/// The shortest user timeout of a peer, however short its lease: lost packets need time to be sent again.
const USER_TIMEOUT_MIN: Duration = Duration::from_millis(500);

/// Responds with a stream of what happens to the claim. A claim that is refused at once gets a normal error response.
pub(super) async fn hold(
    app: &App,
    requester: Requester,
    acquire_request: AcquireRequest,
) -> Result<Response, Problem> {
    let claim = Arc::new(acquire_request.claim);
    let encoder = EventEncoder {
        name: claim.names[0].clone(),
        claim: Arc::clone(&claim),
        audited: app.settings().audit.sender(&requester),
        requester: requester.clone(),
        started: Instant::now(),
        was_draining: app.service().is_draining(),
        app: app.clone(),
    };
    // Cancellation safety: dropped here or later, the stream releases the lock or leaves the queue.
    let operation = Operation::Acquire {
        claim: &claim,
        waits: true,
    };
    let service = app.admit(operation, &requester).await?;
    let revoked = encoder.revoked();
    let audited = AuditedStream {
        sender: encoder.audited.clone(),
        names: claim.names.clone(),
    };
    let (wait, renewals) = (acquire_request.wait, app.admission().renewals().clone());
    let events = service.hold(Arc::clone(&claim), wait, revoked, audited, renewals);
    let mut events = Box::pin(events);
    let first = events.next().await;
    let first = match first {
        Some(HoldEvent::Refused(refused)) => return Err(encoder.refusal(refused)),
        Some(HoldEvent::Draining) | None => {
            return Err(Problem::stream_draining(claim.token));
        }
        Some(HoldEvent::Revoked { is_held: false }) => return Err(encoder.revocation()),
        Some(
            first @ (HoldEvent::Queued(_)
            | HoldEvent::Acquired { .. }
            | HoldEvent::Renewed(_)
            | HoldEvent::Lost(_)
            | HoldEvent::Revoked { is_held: true }),
        ) => first,
    };
    let third_of_ttl = claim.ttl.get() / 3;
    let guard = requester
        .peer
        .as_ref()
        .map(Peer::user_timeout)
        .map(|user_timeout| user_timeout.limited_to(third_of_ttl.max(USER_TIMEOUT_MIN)));
    let events = stream::once(async { first })
        .chain(events)
        .map(move |event| {
            // Moved in here, so that the timeout is in force for as long as the stream lives.
            let _ = &guard;
            encoder.encode(event)
        });
    let mut response = EventStreamBody::new(events, third_of_ttl.min(KEEP_ALIVE_MAX)).response();
    response
        .headers_mut()
        .insert(LOCK_TOKEN, secret(claim.token));
    Ok(response)
}

/// Encodes the events of a claim.
struct EventEncoder {
    name: LockName,
    claim: Arc<Claim>,
    audited: Option<AuditedSender>,
    requester: Requester,
    started: Instant,
    was_draining: bool,
    app: App,
}

impl EventEncoder {
    /// Completes when the sender may no longer hold the lock; never on a service without keys.
    fn revoked(&self) -> impl Future<Output = ()> + use<> {
        match &self.requester.principal {
            Some(principal) => {
                let names = self.claim.names.clone();
                Either::Left(self.app.clone().revoked(principal.clone(), names))
            }
            None => Either::Right(future::pending()),
        }
    }

    fn revocation(&self) -> Problem {
        let (principal, audited) = (self.requester.principal.as_ref(), self.audited.as_ref());
        let revocation = self.app.revocation(principal, &self.claim.names, audited);
        revocation.with_token(self.claim.token)
    }

    fn encode(&self, event: HoldEvent) -> Event {
        match event {
            HoldEvent::Queued(position) => Event::new("queued", &PositionView::from(position)),
            HoldEvent::Acquired {
                lease,
                waited,
                replayed,
            } => {
                let grant = self.grant(&lease).waited(waited).replayed(replayed);
                Event::new("acquired", &grant)
            }
            HoldEvent::Renewed(lease) => Event::new("renewed", &self.grant(&lease)),
            HoldEvent::Lost(reason) => {
                let name = self.name.clone();
                let problem = Problem::not_holder(NotHeld { name, reason });
                self.problem("lost", &problem.of_one_lock())
            }
            HoldEvent::Refused(refused) => self.problem("refused", &self.refusal(refused)),
            HoldEvent::Draining => {
                self.problem("draining", &Problem::stream_draining(self.claim.token))
            }
            HoldEvent::Revoked { is_held } => {
                let problem = self.revocation();
                if let Some(reason) = problem.access_refusal() {
                    self.app.http_metrics().refused(reason);
                }
                match is_held {
                    true => self.problem("lost", &problem.of_lost_lease()),
                    false => self.problem("refused", &problem),
                }
            }
        }
    }

    fn grant<'a>(&'a self, lease: &'a Lease) -> GrantView<'a> {
        GrantView::new(&self.name, self.claim.token, lease)
    }

    fn refusal(&self, refused: Result<AcquireOutcome, StoreError>) -> Problem {
        let refused = refused.map(|outcome| {
            let waited = self.started.elapsed();
            let refused = granted(outcome, &self.claim, waited, self.was_draining);
            match refused {
                Err(refusal) => refusal.of_one_lock(),
                Ok(_) => unreachable!("a grant is an event of its own"),
            }
        });
        refused.unwrap_or_else(|error| Problem::from(error).with_token(self.claim.token))
    }

    /// A problem within a stream, logged here because the layer that renders and logs problems never sees it.
    fn problem(&self, event: &'static str, problem: &Problem) -> Event {
        if let Some(number) = self.line_number(problem) {
            tracing::info!(
                request_id = self.requester.request_id.as_str(),
                peer = self.requester.address().map(tracing::field::display),
                lock.name = %self.name,
                outcome = problem.code().as_str(),
                peer_refusals = number.peer_refusals,
                client_errors = number.client_errors,
                store_failures = number.store_failures,
                cause = problem.cause(),
                "The stream of a claim ended."
            );
        }
        Event::new(event, &problem.body(self.requester.request_id.as_str()))
    }

    /// The number of the line about this, if there is one.
    fn line_number(&self, problem: &Problem) -> Option<LineNumber> {
        let mode = self.app.settings().request_log.mode;
        let is_refused = problem.code().facts().status == StatusCode::LOCKED;
        if mode == LogRequests::Off || (is_refused && mode == LogRequests::Failed) {
            return None;
        }
        let sampled = SampledLine::of(problem, self.requester.network(), mode);
        self.app.log_sample().number(sampled)
    }
}
