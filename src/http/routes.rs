//! The routes: how axum matches each, how documents and metric labels write it, and which requests need no router. The
//! handlers are elsewhere.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use axum::routing::future::RouteFuture;
use futures_util::future::{BoxFuture, Either, FutureExt as _, Map, ready};
use tower::Service;

use super::app::App;
use super::auth::RateLimit;
use super::operators::Operators;
use super::problem::Problem;
use super::{auth, locks};

/// One route of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One lock.
    Lock,
    /// All locks.
    Locks,
    /// Lock events.
    Events,
    /// The lock of a Terraform state.
    Terraform,
    /// Links to the other routes.
    Index,
    /// Liveness.
    Livez,
    /// Readiness.
    Readyz,
    /// The same as [`Route::Readyz`].
    Healthz,
    /// The build.
    Version,
    /// Metrics for Prometheus.
    Metrics,
    /// The OpenAPI document.
    OpenApi,
    /// Swagger UI.
    Docs,
    /// The locks, on a page for people.
    Ui,
    /// All problems.
    Problems,
    /// One problem.
    Problem,
}

impl Route {
    /// Every route.
    pub const ALL: [Self; 15] = [
        Self::Lock,
        Self::Locks,
        Self::Events,
        Self::Terraform,
        Self::Readyz,
        Self::Livez,
        Self::Healthz,
        Self::Metrics,
        Self::Index,
        Self::Version,
        Self::OpenApi,
        Self::Docs,
        Self::Ui,
        Self::Problems,
        Self::Problem,
    ];

    /// The path with its variables, for documents and metric labels; it never contains text from a client.
    #[must_use]
    pub fn template(self) -> &'static str {
        match self {
            Self::Lock => "/locks/{name}",
            Self::Locks => "/locks",
            Self::Events => "/events",
            Self::Terraform => "/terraform/{name}",
            Self::Index => "/",
            Self::Livez => "/livez",
            Self::Readyz => "/readyz",
            Self::Healthz => "/healthz",
            Self::Version => "/version",
            Self::Metrics => "/metrics",
            Self::OpenApi => "/openapi.json",
            Self::Docs => "/docs",
            Self::Ui => "/ui",
            Self::Problems => "/problems",
            Self::Problem => "/problems/{code}",
        }
    }

    /// The path as axum matches it. A lock's name may have slashes, so it takes the rest of the path.
    pub(super) fn pattern(self) -> &'static str {
        if self == Self::Lock {
            "/locks/{*name}"
        } else if self == Self::Terraform {
            "/terraform/{*name}"
        } else {
            self.template()
        }
    }

    /// Whether the route neither shows nor changes any lock, so that every client may read it.
    pub(super) fn shows_no_lock(self) -> bool {
        match self {
            Self::Lock | Self::Locks | Self::Events | Self::Terraform | Self::Metrics => false,
            Self::Index
            | Self::Livez
            | Self::Readyz
            | Self::Healthz
            | Self::Version
            | Self::OpenApi
            | Self::Docs
            | Self::Ui
            | Self::Problems
            | Self::Problem => true,
        }
    }

    /// The route of a path; `None` if the path is unknown.
    ///
    /// It names the route for metrics and logs, without text from the client. The router decides what is served.
    pub(super) fn of(path: &str) -> Option<Self> {
        let is_below = |root: &str| path.len() > root.len() && path.starts_with(root);
        Some(match path {
            _ if is_below("/locks/") => Self::Lock,
            "/locks/" => Self::Locks,
            _ if is_below("/terraform/") => Self::Terraform,
            _ if is_below("/problems/") => Self::Problem,
            "/problems/" => Self::Problems,
            _ if path.starts_with("/docs/") => Self::Docs,
            _ if path.starts_with("/ui/") => Self::Ui,
            _ => return Self::ALL.into_iter().find(|route| route.template() == path),
        })
    }
}

/// The routes of one address. Cloning is cheap.
#[derive(Clone)]
pub(super) struct Routes {
    router: Router,
    /// Set if the address serves locks: requests that change one lock, which are nearly all, go straight to their
    /// handlers. The router would also parse their path for parameters that no handler reads.
    locks: Option<App>,
    /// Set if the address serves operators.
    operators: Option<Arc<Operators>>,
}

type HandlerFuture = BoxFuture<'static, Response>;

impl Routes {
    /// The routes of this router, and those of operators.
    pub(super) fn with_operators(router: Router, operators: Operators) -> Self {
        Self {
            router,
            locks: None,
            operators: Some(Arc::new(operators)),
        }
    }

    /// The routes of this router, which serves locks.
    pub(super) fn with_locks(router: Router, app: App) -> Self {
        Self {
            router,
            locks: Some(app),
            operators: None,
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
            return match &self.operators {
                Some(operators) if operators.serve(&request) => {
                    Either::Left(operators.call(request).map(Ok))
                }
                Some(_) | None => Either::Right(self.router.call(request)),
            };
        };
        let admitted = auth::admit(app, request);
        let app = app.clone();
        let answer = move |admitted: Result<Request, Problem>| match admitted {
            Ok(request) => handler(State(app), request),
            Err(problem) => ready(problem.into_response()).boxed(),
        };
        let answer = match admitted {
            Either::Left(admitted) => answer(admitted.into_inner()),
            Either::Right(admitted) => admitted.then(answer).boxed(),
        };
        Either::Left(answer.map(Ok))
    }
}

/// The handler of a request that changes one lock; `None` for all others.
fn handler(request: &Request) -> Option<fn(State<App>, Request) -> HandlerFuture> {
    if Route::of(request.uri().path()) != Some(Route::Lock) {
        return None;
    }
    match *request.method() {
        Method::POST => Some(|app, request| {
            // Of requests that change one lock only this one counts in a quota.
            let rate_limit = RateLimit::of(&request);
            let answer = locks::acquire(app, request).map(move |answer| {
                let mut response = answer.into_response();
                if let Some(rate_limit) = rate_limit {
                    rate_limit.attach_to(&mut response);
                }
                response
            });
            answer.boxed()
        }),
        Method::PUT => Some(|app, request| {
            let answer = locks::renew(app, request);
            answer.map(IntoResponse::into_response).boxed()
        }),
        Method::DELETE => Some(|app, request| {
            let answer = locks::release(app, request);
            answer.map(IntoResponse::into_response).boxed()
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_belongs_to_the_route_that_serves_it() {
        for route in Route::ALL {
            let path = route.template().replace("{name}", "a/b");
            assert_eq!(Route::of(&path), Some(route), "{path}");
        }
        for (path, route) in [
            ("/locks/", Route::Locks),
            ("/locks//", Route::Lock),
            ("/docs/", Route::Docs),
            ("/docs/index.html", Route::Docs),
            ("/ui/ui.js", Route::Ui),
            ("/problems/", Route::Problems),
        ] {
            assert_eq!(Route::of(path), Some(route), "{path}");
        }
        for path in ["", "*", "locks", "/locksmith", "/livez/", "/events/a"] {
            assert_eq!(Route::of(path), None, "{path}");
        }
    }
}
