//! HTTP: turns requests into claims, and outcomes into responses and problems. The routes and the layer order are here.
//!
//! Nothing here decides who holds a lock or how long an operation may take; nothing here knows which store is used.
//! Sockets, connection timeouts and shutdown belong to `server`.

mod admission;
mod app;
mod audit;
mod auth;
mod events;
mod extract;
mod health;
mod locks;
mod log;
mod metrics;
mod metrics_page;
mod negotiate;
pub mod openapi;
mod operators;
mod pages;
mod peers;
mod problem;
mod requester;
mod routes;
mod scope;
mod sse;
mod traces;
mod wire;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::{any, get, post};

pub use app::{ADMIN_ANSWER_BYTES_MAX, App, HttpSettings, RequestLog};
pub use audit::{Audit, AuditEvent};
pub use auth::{Access, Failures, IssuerKeys, KeyRing, KeysState, KnownHosts, Role, TokenVerifier};
pub use metrics::BUCKETS;
pub use operators::OperatorRuntime;
pub use problem::Code;
pub use routes::Route;
pub use scope::RequestScope;

use auth::{RateLimit, ServedAddress};
use operators::Operators;
use problem::Problem;
use routes::Routes;

/// Every route of the service, ready to be served.
///
/// From the outside in: [`RequestScope`] (request id, span, cross-site checks, rendering of problems, metrics, log, panic
/// handler), then the routes. Guarded routes check the key before they read the body.
pub fn router(app: App) -> RequestScope {
    let routes = guarded(&app)
        .merge(open(&app))
        .fallback(async || Problem::not_found())
        .with_state(app.clone());
    let routes = Routes::with_locks(routes, app.clone());
    RequestScope::new(app, ServedAddress::Listen, routes)
}

/// The routes for probes and operators, served on an address of their own.
pub fn admin_router(app: App, runtime: OperatorRuntime) -> RequestScope {
    let metrics = match app.settings().is_metrics_open {
        true => metrics(),
        false => with_key(&app, metrics()),
    };
    let transport = app.settings().operators;
    let routes = metrics
        .merge(probes())
        .fallback(async move || Problem::not_found_there(transport))
        .with_state(app.clone());
    let operators = Operators::new(app.clone(), runtime);
    let routes = Routes::with_operators(routes, operators);
    RequestScope::new(app, ServedAddress::AdminListen, routes)
}

/// Routes that need a key where one is configured: everything that shows or changes locks.
fn guarded(app: &App) -> Router<App> {
    let lock = get(locks::inspect)
        .post(locks::acquire)
        .put(locks::renew)
        .delete(locks::release);
    let several = get(locks::list)
        .post(locks::acquire)
        .put(locks::renew)
        .delete(locks::release);
    let nameless = post(locks::nameless)
        .put(locks::nameless)
        .delete(locks::nameless);
    let routes = Router::new()
        .route(Route::Lock.pattern(), lock)
        .route(Route::Locks.pattern(), several)
        // A trailing slash is the most common mistake. It only lists: with an empty variable as the name, a POST, PUT
        // or DELETE here must not become one on several locks.
        .route("/locks/", get(locks::list).merge(nameless))
        .route(Route::Events.pattern(), get(events::events))
        .route(Route::Terraform.pattern(), any(locks::terraform));
    let routes = match app.settings().is_metrics_open {
        true => routes,
        false => routes.merge(metrics()),
    };
    let routes = routes.method_not_allowed_fallback(async || Problem::method_not_allowed());
    with_key(app, routes)
}

/// Adds the check of the key and of the rate of requests to the routes, where one is configured.
fn with_key(app: &App, routes: Router<App>) -> Router<App> {
    if matches!(app.settings().access, Access::Open(_)) && app.requests().is_none() {
        return routes;
    }
    let app = app.clone();
    routes.route_layer(from_fn(move |request: Request, next: Next| {
        let admitted = auth::admit(&app, request);
        async move {
            // A refusal here has no such headers, except that of the quota itself.
            let request = admitted.await?;
            let rate_limit = RateLimit::of(&request);
            let mut response = next.run(request).await;
            if let Some(rate_limit) = rate_limit {
                rate_limit.attach_to(&mut response);
            }
            Ok::<_, Problem>(response)
        }
    }))
}

fn metrics() -> Router<App> {
    Router::new()
        .route(Route::Metrics.pattern(), get(health::metrics))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
}

/// Routes that never need a key.
fn open(app: &App) -> Router<App> {
    let routes = match app.settings().is_metrics_open {
        true => metrics(),
        false => Router::new(),
    };
    routes
        .merge(probes())
        .route(Route::Index.pattern(), get(pages::index))
        .route(Route::OpenApi.pattern(), get(pages::openapi))
        .route(Route::Docs.pattern(), get(pages::redirect))
        .route("/docs/", get(pages::asset))
        .route("/docs/{*asset}", get(pages::asset))
        .merge(pages::ui())
        .route(Route::Problems.pattern(), get(problem::code::list))
        .route(Route::Problem.pattern(), get(problem::code::page))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
}

/// The routes for probes.
fn probes() -> Router<App> {
    Router::new()
        .route(Route::Livez.pattern(), get(health::livez))
        .route(Route::Readyz.pattern(), get(health::readyz))
        .route(Route::Healthz.pattern(), get(health::readyz))
        .route(Route::Version.pattern(), get(pages::version))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
}
