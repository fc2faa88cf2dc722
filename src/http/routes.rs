//! Dispatch from a request to its handler: the router, with a shortcut for requests that change one lock.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler as _;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use axum::routing::future::RouteFuture;
use futures_util::future::{BoxFuture, Either, FutureExt as _, Map, ready};
use tower::Service;

use super::app::App;
use super::route::Route;
use super::{auth, locks};

/// The routes of one address. Cloning is cheap.
#[derive(Clone)]
pub(super) struct Routes {
    router: Router,
    /// Set if the address serves locks: requests that change one lock, which are nearly all, go straight to their
    /// handlers. The router would also parse their path for parameters that no handler reads.
    locks: Option<App>,
}

type HandlerFuture = BoxFuture<'static, Response>;

impl Routes {
    /// The routes of this router.
    pub(super) fn of(router: Router) -> Self {
        Self {
            router,
            locks: None,
        }
    }

    /// The routes of this router, which serves locks.
    pub(super) fn with_locks(router: Router, app: App) -> Self {
        Self {
            router,
            locks: Some(app),
        }
    }
}

impl Service<Request> for Routes {
    type Response = Response;
    type Error = Infallible;
    type Future = Either<
        Map<HandlerFuture, fn(Response) -> Result<Response, Infallible>>,
        RouteFuture<Infallible>,
    >;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (Some(app), Some(handler)) = (&self.locks, handler(&request)) else {
            return Either::Right(self.router.call(request));
        };
        let answer = match auth::admit(app, request) {
            Ok(request) => handler(request, app.clone()),
            Err(problem) => ready(problem.into_response()).boxed(),
        };
        Either::Left(answer.map(Ok))
    }
}

/// The handler of a request that changes one lock; `None` for all others.
fn handler(request: &Request) -> Option<fn(Request, App) -> HandlerFuture> {
    if Route::of(request.uri().path()) != Some(Route::Lock) {
        return None;
    }
    match *request.method() {
        Method::POST => Some(|request, app| locks::acquire.call(request, app)),
        Method::PUT => Some(|request, app| locks::renew.call(request, app)),
        Method::DELETE => Some(|request, app| locks::release.call(request, app)),
        _ => None,
    }
}
