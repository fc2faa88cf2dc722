//! Responses: successes by their schema, errors by their codes.

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::{
    ContentBuilder, KnownFormat, ObjectBuilder, Ref, RefOr, ResponsesBuilder, SchemaFormat, Type,
    example::{Example, ExampleBuilder},
};

use super::locks::{TOKEN, holder_example};
use crate::http::problem::{Code, ProblemBody};

const REQUEST_ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// The codes of any request on locks.
pub(super) const OF_EVERY_LOCK_ROUTE: [Code; 8] = [
    Code::InvalidField,
    Code::UnknownField,
    Code::MalformedBody,
    Code::TokenInQuery,
    Code::Unauthorized,
    Code::Forbidden,
    Code::RateLimited,
    Code::IssuerUnavailable,
];
/// The codes of any request with a body.
pub(super) const OF_BODIES: [Code; 3] = [
    Code::BodyTimeout,
    Code::BodyTooLarge,
    Code::UnsupportedMediaType,
];
/// The codes of failures of the service.
pub(super) const OF_THE_SERVICE: [Code; 4] = [
    Code::Internal,
    Code::StoreUnavailable,
    Code::RateLimited,
    Code::Overloaded,
];

/// A JSON response with a named schema.
pub(super) fn of<T: ToSchema>(description: &str, example: Option<Value>) -> ResponseBuilder {
    let schema = Ref::from_schema_name(T::name());
    let content = ContentBuilder::new().schema(Some(schema)).example(example);
    bare(description).content("application/json", content.build())
}

/// A response without a body.
pub(super) fn bare(description: &str) -> ResponseBuilder {
    let request_id =
        header("The id of the request in the log: that of the client, or a generated one.");
    ResponseBuilder::new()
        .description(description)
        .header("X-Request-Id", request_id)
}

/// A text response.
pub(super) fn text(description: &str, content_type: &str) -> ResponseBuilder {
    let schema = ObjectBuilder::new().schema_type(Type::String);
    let content = ContentBuilder::new().schema(Some(schema)).build();
    bare(description).content(content_type, content)
}

/// A JSON object with any fields.
pub(super) fn any_object(description: &str) -> ResponseBuilder {
    let schema = ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(AdditionalProperties::FreeForm(true)));
    let content = ContentBuilder::new().schema(Some(schema)).build();
    bare(description).content("application/json", content)
}

pub(super) fn header(description: &str) -> Header {
    let schema = ObjectBuilder::new().schema_type(Type::String);
    HeaderBuilder::new()
        .schema(Some(schema))
        .description(Some(description))
        .build()
}

/// The token in the header of a grant.
pub(super) fn token_header() -> Header {
    uuid_header("The token, a secret that proves the claim.")
}

/// The token in the header of a refusal.
fn claim_token_header() -> Header {
    uuid_header("The token of the claim, if the body has it: send it with the next request.")
}

fn uuid_header(description: &str) -> Header {
    let uuid = SchemaFormat::KnownFormat(KnownFormat::Uuid);
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(uuid));
    HeaderBuilder::new()
        .schema(Some(schema))
        .description(Some(description))
        .build()
}

/// A number in a header.
pub(super) fn number_header(description: &str) -> Header {
    let schema = ObjectBuilder::new().schema_type(Type::Integer);
    let schema = schema.minimum(Some(0));
    HeaderBuilder::new()
        .schema(Some(schema))
        .description(Some(description))
        .build()
}

/// What the connection responds before the request reaches a handler.
pub(super) fn head_too_large() -> Response {
    let description = "The request line and the headers are larger than 64 KiB, or there are more than 100 headers. Nothing was done. The response has no body.";
    ResponseBuilder::new().description(description).build()
}

/// Adds the error responses, one for each status, with an example for each code.
pub(super) fn refusals(
    responses: ResponsesBuilder,
    codes: impl IntoIterator<Item = Code>,
) -> ResponsesBuilder {
    let mut codes: Vec<Code> = codes.into_iter().collect();
    codes.sort_by_key(|code| code.facts().status);
    let by_status = codes.chunk_by(|a, b| a.facts().status == b.facts().status);
    by_status.fold(responses, |responses, codes| {
        responses.response(codes[0].facts().status.as_str(), refusal(codes))
    })
}

fn refusal(codes: &[Code]) -> Response {
    let examples = codes.iter().map(|code| {
        let code = code.as_str();
        let example = Ref::new(format!("#/components/examples/{code}"));
        (code, RefOr::<Example>::Ref(example))
    });
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name(ProblemBody::name())))
        .examples_from_iter(examples);
    let lines = codes.iter().map(|code| {
        let facts = code.facts();
        format!("- `{}`: {}", facts.code, facts.title)
    });
    let description = lines.collect::<Vec<_>>().join("\n");
    let mut response = bare(&description).content("application/problem+json", content.build());
    let status = codes[0].facts().status.as_u16();
    if status == 401 {
        let scheme = header(
            "`Bearer`; with `error=\"invalid_token\"` if a JSON Web Token was sent that is not valid.",
        );
        response = response.header("WWW-Authenticate", scheme);
    }
    if matches!(status, 423 | 429 | 503) {
        let seconds = number_header("When to try again, in seconds.");
        response = response.header("Retry-After", seconds);
    }
    if codes.contains(&Code::QuotaExceeded) {
        let policy = header(
            "The quota of requests of the principal, if it has one: `q` at once, which take `w` seconds to come back.",
        );
        let left = header("What is left of it: `r` requests now, and all of them in `t` seconds.");
        response = response
            .header("RateLimit-Policy", policy)
            .header("RateLimit", left);
    }
    let have_token = [
        Code::WaitTimeout,
        Code::Draining,
        Code::Recovering,
        Code::StoreFull,
    ];
    if codes.iter().any(|code| have_token.contains(code)) {
        response = response.header("Lock-Token", claim_token_header());
    }
    response.build()
}

/// One example for each code, for the responses to refer to. `method_not_allowed` has none, because no documented
/// method gets it.
pub(super) fn examples() -> impl Iterator<Item = (&'static str, Example)> {
    let codes = Code::ALL
        .iter()
        .filter(|code| **code != Code::MethodNotAllowed);
    codes.map(|&code| {
        let example = ExampleBuilder::new()
            .summary(code.facts().title)
            .description(code.facts().remedy)
            .value(Some(example_of(code)));
        (code.as_str(), example.build())
    })
}

/// A problem of this code, with the common members and its own.
fn example_of(code: Code) -> Value {
    let facts = code.facts();
    let mut example = json!({
        "type": format!("/problems/{}", facts.code),
        "title": facts.title,
        "status": facts.status.as_u16(),
        "detail": facts.meaning,
        "code": facts.code,
        "instance": REQUEST_ID,
    });
    let members = example.as_object_mut().expect("made as an object");
    let own = members_of(code);
    members.extend(own.as_object().expect("made as an object").clone());
    example
}

fn members_of(code: Code) -> Value {
    match code.as_str() {
        "unknown_field" => json!({"field": "tll", "suggestion": "ttl"}),
        "invalid_field" => json!({"field": "ttl"}),
        "lock_held" => json!({
            "holders": [holder_example()], "holders_total": 1, "queue_length": 0, "retry_after_ms": 5_000,
        }),
        "lock_cooling" => json!({
            "holders": [], "holders_total": 0, "queue_length": 0, "retry_after_ms": 12_000,
        }),
        "wait_timeout" => json!({
            "token": TOKEN, "position": 2, "queue_length": 3, "place_kept_ms": 10_000,
            "holders": [holder_example()], "holders_total": 1, "retry_after_ms": 0,
        }),
        "too_many_waiters" => json!({"queue_length": 10_000, "retry_after_ms": 1_000}),
        "draining" => json!({
            "outcome": "nothing_done", "token": TOKEN, "position": 2, "queue_length": 3, "place_kept_ms": 10_000,
            "retry_after_ms": 0,
        }),
        "limit_mismatch" => json!({"limit_in_force": 4}),
        "claim_ended" => json!({"ended": "released"}),
        "lease_evicted" => json!({"reason": "maintenance"}),
        "store_unavailable" => json!({"outcome": "unknown", "retry_after_ms": 1_000}),
        "quota_exceeded" => json!({
            "quota": "requests_per_second", "outcome": "nothing_done", "retry_after_ms": 20,
        }),
        "rate_limited" | "overloaded" | "issuer_unavailable" => {
            json!({"outcome": "nothing_done", "retry_after_ms": 1_000})
        }
        "store_full" => json!({"outcome": "nothing_done", "retry_after_ms": 5_000}),
        "recovering" => json!({"outcome": "nothing_done", "retry_after_ms": 12_000}),
        _ => json!({}),
    }
}
