//! What operators do with locks at `server.admin_listen`, beside its probes and metrics: read them, evict their holders, and
//! see them on a page.
//!
//! The thread that accepts connections has to answer probes whatever happens. So the workers run all of this, it never
//! streams, and it has a deadline.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use super::app::App;
use super::problem::Problem;
use super::requester::Requester;
use super::routes::Route;
use super::{locks, pages, with_key};
use crate::config::OperatorTransport;
use crate::limits::Budget;
use crate::server::{Peer, Workers};
use crate::telemetry::traces;

/// What the requests of operators need of the servers.
#[derive(Clone, Debug)]
pub struct OperatorRuntime {
    /// Those that run them.
    pub workers: Workers,
    /// The requests at the address for clients: those of operators count among them.
    pub requests: Budget,
    /// Cancelled when the address for clients accepts no more connections: from then on none begins here either.
    pub closing: CancellationToken,
}

/// The routes of operators.
pub(super) struct Operators {
    app: App,
    router: Router,
    runtime: OperatorRuntime,
}

impl Operators {
    pub(super) fn new(app: App, runtime: OperatorRuntime) -> Self {
        let lock = get(locks::state).delete(locks::evict_only);
        let routes = Router::new()
            .route(Route::Lock.pattern(), lock)
            .route(Route::Locks.pattern(), get(locks::list));
        let transport = app.settings().operators;
        let router = with_key(&app, routes)
            .merge(pages::ui())
            .method_not_allowed_fallback(async || Problem::method_not_allowed())
            .fallback(async move || Problem::not_found_there(transport))
            .with_state(app.clone());
        Self {
            app,
            router,
            runtime,
        }
    }

    /// Whether this is a request of an operator, on a connection over which they are served.
    pub(super) fn serve(&self, request: &Request) -> bool {
        let requester = request.extensions().get::<Requester>();
        let peer = requester.and_then(|requester| requester.peer.as_ref());
        let is_served = match self.app.settings().operators {
            OperatorTransport::None => false,
            OperatorTransport::Any => true,
            OperatorTransport::Encrypted => peer.is_some_and(Peer::is_encrypted),
        };
        let route = Route::of(request.uri().path());
        is_served && matches!(route, Some(Route::Lock | Route::Locks | Route::Ui))
    }

    /// Answers it.
    pub(super) fn call(self: &Arc<Self>, request: Request) -> BoxFuture<'static, Response> {
        let answer = Arc::clone(self).answer(request);
        answer
            .map(|answer| answer.unwrap_or_else(Problem::into_response))
            .boxed()
    }

    /// # Cancel safety
    /// An eviction that has begun is completed all the same.
    async fn answer(self: Arc<Self>, mut request: Request) -> Result<Response, Problem> {
        if self.runtime.closing.is_cancelled() {
            return Err(Problem::operators_draining());
        }
        let is_read = request.method().is_safe();
        self.count(&mut request)?;
        let answer = self.router.clone().call(request);
        let answer = self.runtime.workers.run(traces::inherit(answer));
        let Ok(Ok(response)) = timeout(self.longest(), answer).await else {
            return Err(Problem::operators_unanswered(is_read));
        };
        Ok(response)
    }

    /// Counts the request among those at the other address, of its peer and of all.
    fn count(&self, request: &mut Request) -> Result<(), Problem> {
        let Some(requester) = request.extensions_mut().get_mut::<Requester>() else {
            return Ok(());
        };
        let peer = requester.peer.take();
        requester.peer = peer.map(|peer| peer.in_request_of_process(&self.runtime.requests));
        match requester.over_limit() {
            Some(limit) => {
                self.app.refusals().count(limit);
                Err(Problem::over_limit(limit))
            }
            None => Ok(()),
        }
    }

    /// The time that a request takes at most at the other address: for its body, its turn, and a listing or an eviction.
    fn longest(&self) -> Duration {
        let settings = self.app.settings();
        settings.body_timeout + settings.admission_timeout + self.app.service().longest_operation()
    }
}
