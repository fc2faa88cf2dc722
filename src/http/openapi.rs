//! The OpenAPI document, built from what the handlers use: their fields, response types and problem codes. Parts that
//! axum cannot express, such as a lock name with slashes, are written by hand.
//!
//! It is a document for generators of clients: each request and each response has one media type, JSON, with a schema
//! that has a name. Other forms of a request (a form, the query string) and of a response (a token as text, a stream)
//! are in descriptions. A test generates clients from it and runs them; another compares it with the served routes, and
//! with the committed file.

mod fields;
mod locks;
mod responses;
mod service;
mod terraform;

use utoipa::openapi::path::{HttpMethod, Operation, Paths};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Components, ComponentsBuilder, ContactBuilder, Info, InfoBuilder, LicenseBuilder, OpenApi,
    OpenApiBuilder, Ref, ServerBuilder, tag::TagBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use super::health::Health;
use super::locks::LockInfo;
use super::pages::{Index, Version};
use super::problem::{Page, Pages, ProblemBody};
use super::routes::Route;
use super::wire::{
    EvictedBody, GrantView, GrantsView, LockBody, LockEventBody, LockPage, PositionView,
};

/// The name of the security scheme in the document.
const API_KEY: &str = "api_key";
/// The name of the response that hyper may send for any operation, before the request reaches a handler.
const HEAD_TOO_LARGE: &str = "head_too_large";

const DESCRIPTION: &str = "\
Leases on named locks over plain HTTP.

`POST` acquires, `PUT` renews, `DELETE` releases. A grant carries a **token**, which is secret and proves the claim, \
and a **fencing token**, a number that grows with every grant of the lock, for the protected resource to compare.

Every request is safe to repeat with the same token: a claim that holds the lock gets the same lease again, a waiting one \
keeps its place in the queue.

With `wait`, a request waits for the lock in a queue. With `mode=shared`, several claims hold the lock at the same time: \
readers, or at most `limit` permits. `/locks` acquires several `names` at once, all or none, under one token.

A request with `Accept: text/event-stream` may get a stream of server-sent events, whose data is JSON; the operations \
say which.

Fields are described as JSON. They may also be sent as a form or in the query string, with the same names; the token \
never in the query string, and `metadata` only in JSON. Durations are strings with a unit: `500ms`, `30s`, `1m30s`.

Errors are problems (RFC 9457); programs should check the `code`. `/problems` explains each one and what to do.";

/// The document.
#[must_use]
pub fn document() -> OpenApi {
    let server = ServerBuilder::new()
        .url(".")
        .description(Some("The service that serves this document."));
    OpenApiBuilder::new()
        .info(info())
        .servers(Some([server.build()]))
        .tags(Some([
            tag("locks", "Acquire, renew, release, inspect and watch locks."),
            tag("service", "Health, metrics, version and documentation."),
        ]))
        .paths(paths())
        .components(Some(components()))
        .security(Some(guarded()))
        .build()
}

/// The document as served and committed: pretty-printed, with a newline at its end.
#[must_use]
pub fn json() -> String {
    let mut text = document()
        .to_pretty_json()
        .expect("the document has string keys and no failing serializer");
    text.push('\n');
    text
}

fn info() -> Info {
    let license = LicenseBuilder::new()
        .name("Apache-2.0")
        .identifier(Some("Apache-2.0"));
    let contact = ContactBuilder::new().name(Some("The operators of this service"));
    InfoBuilder::new()
        .title("Leasehold")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .contact(Some(contact.build()))
        .license(Some(license.build()))
        .build()
}

fn tag(name: &str, description: &str) -> utoipa::openapi::Tag {
    TagBuilder::new()
        .name(name)
        .description(Some(description))
        .build()
}

fn paths() -> Paths {
    let mut paths = Paths::new();
    let operations = locks::operations()
        .into_iter()
        .chain(terraform::operations())
        .chain(service::operations());
    for (route, method, mut operation) in operations {
        let refused = ["414", "431"].map(|status| {
            let head_too_large = Ref::from_response_name(HEAD_TOO_LARGE);
            (status.to_owned(), head_too_large.into())
        });
        operation.responses.responses.extend(refused);
        let methods = vec![method];
        paths.add_path_operation(route.template(), methods, operation);
    }
    paths
}

fn components() -> Components {
    let key = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "A key, if the service is configured with keys. The read key permits GET and HEAD, the API key everything \
             except evictions, the admin key everything. A key of the keys file permits what the rules of its principal say, \
             and so does a client certificate with one of its names, where the service asks for certificates, and a JSON Web \
             Token with one of its subjects, where the service accepts those of an issuer.",
        ));
    let mut schemas = Vec::new();
    collect::<GrantView<'_>>(&mut schemas);
    collect::<GrantsView<'_>>(&mut schemas);
    collect::<LockBody<'_>>(&mut schemas);
    collect::<LockPage<'_>>(&mut schemas);
    collect::<EvictedBody<'_>>(&mut schemas);
    collect::<LockEventBody<'_>>(&mut schemas);
    collect::<PositionView>(&mut schemas);
    collect::<LockInfo>(&mut schemas);
    collect::<ProblemBody<'_>>(&mut schemas);
    collect::<Page>(&mut schemas);
    collect::<Pages>(&mut schemas);
    collect::<Health>(&mut schemas);
    collect::<Index>(&mut schemas);
    collect::<Version>(&mut schemas);
    let bodies = fields::BODIES.map(|body| (body.name.to_owned(), body.schema().into()));
    schemas.extend(bodies);
    let components = ComponentsBuilder::new().schemas_from_iter(schemas);
    responses::examples()
        .fold(components, |components, (code, example)| {
            components.example(code, example)
        })
        .response(HEAD_TOO_LARGE, responses::head_too_large())
        .security_scheme(API_KEY, SecurityScheme::Http(key.build()))
        .build()
}

/// Adds a schema and the schemas that it refers to.
fn collect<T: ToSchema + PartialSchema>(
    schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>,
) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

/// One operation with its route and method.
type Described = (Route, HttpMethod, Operation);

/// A key or none: whether one is needed depends on the configuration. It is said once, for all operations that do not say
/// otherwise: with an alternative of its own, a generated operation would always want a key.
fn guarded() -> [SecurityRequirement; 2] {
    let no_scopes: [&str; 0] = [];
    [
        SecurityRequirement::new(API_KEY, no_scopes),
        SecurityRequirement::default(),
    ]
}
