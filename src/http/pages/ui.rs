//! `/ui`: a page for people that shows the locks, and evicts. It is three files in the binary, so that no script and no
//! style is within the page, where its policy would have to permit them. It gets its data from the other routes, with
//! the key that its user enters.

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use axum::routing::get;

use super::{OWN_SCRIPTS, confine, see_other};
use crate::http::app::App;
use crate::http::routes::Route;

/// The page and its files.
pub(in crate::http) fn ui() -> Router<App> {
    let script = || file("text/javascript; charset=utf-8", include_str!("ui/ui.js"));
    let style = || file("text/css; charset=utf-8", include_str!("ui/ui.css"));
    Router::new()
        .route(Route::Ui.pattern(), get(async || page()))
        .route("/ui/", get(async || redirect()))
        .route("/ui/ui.js", get(async move || script()))
        .route("/ui/ui.css", get(async move || style()))
}

/// `GET /ui/`: redirects to `/ui`, to which the links of the page are relative, also below another path of a proxy.
fn redirect() -> Response {
    see_other("../ui")
}

fn page() -> Response {
    let mut response = file("text/html; charset=utf-8", include_str!("ui/ui.html"));
    confine(response.headers_mut(), OWN_SCRIPTS);
    response
}

/// A file, which no cache keeps: after an upgrade, the page and its script are of one release.
fn file(content_type: &'static str, text: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
