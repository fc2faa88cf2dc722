//! The operations on one lock, and the listing, as the document has them.

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::path::{HttpMethod, OperationBuilder};
use utoipa::openapi::response::{ResponseBuilder, ResponsesBuilder};
use utoipa::openapi::{ContentBuilder, ObjectBuilder, OneOfBuilder, Ref, Type};

use super::responses::{
    OF_BODIES, OF_EVERY_LOCK_ROUTE, OF_THE_SERVICE, bare, header, number_header, of, refusals,
    token_header,
};
use super::streams::{or_holding, or_watching};
use super::{Described, fields, guarded};
use crate::http::locks::{ACQUIRE_FIELDS, LIST_FIELDS, RELEASE_FIELDS, RENEW_FIELDS};
use crate::http::problem::Code;
use crate::http::route::Route;
use crate::http::wire::{EvictedBody, GrantView, LockBody, LockPage};

pub(super) const TOKEN: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";
/// Why an acquire may be refused.
pub(super) const REFUSED: [Code; 11] = [
    Code::InvalidName,
    Code::ClaimEnded,
    Code::ClaimMismatch,
    Code::LimitMismatch,
    Code::UpgradeUnsupported,
    Code::LockHeld,
    Code::LockCooling,
    Code::WaitTimeout,
    Code::TooManyWaiters,
    Code::Draining,
    Code::Recovering,
];
/// Why what needs a claim that holds may be refused.
pub(super) const NOT_HOLDER: [Code; 7] = [
    Code::InvalidName,
    Code::TokenMissing,
    Code::LeaseReleased,
    Code::LeaseExpired,
    Code::LeaseLost,
    Code::LeaseEvicted,
    Code::TokenUnknown,
];
/// Why a claim may not be changed as a renewal asks for it.
pub(super) const UNCHANGED: [Code; 3] = [
    Code::ClaimMismatch,
    Code::LimitMismatch,
    Code::UpgradeUnsupported,
];

pub(super) fn operations() -> Vec<Described> {
    vec![
        (Route::Lock, HttpMethod::Post, acquire().build()),
        (Route::Lock, HttpMethod::Put, renew().build()),
        (Route::Lock, HttpMethod::Delete, release().build()),
        (Route::Lock, HttpMethod::Get, inspect().build()),
        (Route::Lock, HttpMethod::Head, inspect_head().build()),
        (Route::Locks, HttpMethod::Get, list().build()),
    ]
}

fn acquire() -> OperationBuilder {
    let granted = or_just_the_token(grant("Granted: you hold it."))
        .header("Location", header("The path of the lock."));
    let again = or_just_the_token(grant(
        "You held it already: the same lease again, or deeper. Or a stream, which holds the lock for as long as it \
         lives: `queued`, `acquired`, `renewed`, and at its end `lost`, `refused` or `draining`.",
    ));
    let responses = ResponsesBuilder::new()
        .response("201", granted)
        .response("200", or_holding(again));
    let example = json!({"ttl": "30s", "wait": "10s", "owner": "pod-1", "metadata": {"job": 7}});
    of_locks("acquire", "Acquire a lock")
        .description(Some(
            "Grants the lock if nobody is in the way, or waits for it in the order of arrival. To be able to repeat \
             the request whatever happens, propose a token. `Accept: text/plain` answers just the token; \
             `Accept: text/event-stream` holds the lock for as long as the connection lives.",
        ))
        .parameter(fields::name())
        .parameter(fields::token_header("The token of the claim, proposed by the client or from an earlier answer."))
        .parameters(Some(fields::query(&ACQUIRE_FIELDS)))
        .request_body(Some(fields::body(&ACQUIRE_FIELDS, example)))
        .responses(refusals(responses, with_a_body(&[&REFUSED])))
}

fn renew() -> OperationBuilder {
    let responses = ResponsesBuilder::new().response("200", grant("Yours, and for longer now."));
    of_locks("renew", "Renew a lease")
        .description(Some(
            "The TTL counts anew from now. Never creates a lease. With `mode=shared`, a claim that holds alone steps \
             down, and others may come to share the lock.",
        ))
        .parameter(fields::name())
        .parameter(fields::token_header(
            "The token of the claim, unless the body has it.",
        ))
        .parameters(Some(fields::query(&RENEW_FIELDS)))
        .request_body(Some(fields::body(&RENEW_FIELDS, json!({"ttl": "1m"}))))
        .responses(refusals(
            responses,
            with_a_body(&[&NOT_HOLDER, &UNCHANGED]),
        ))
}

fn release() -> OperationBuilder {
    let either = OneOfBuilder::new()
        .item(Ref::from_schema_name(GrantView::name()))
        .item(Ref::from_schema_name(EvictedBody::name()));
    let either = ContentBuilder::new().schema(Some(either)).build();
    let held_or_evicted = with_lease_headers(bare(
        "Stepped back to `hold_count`, with the headers of a grant; or, with `force`, who was evicted.",
    ))
    .content("application/json", either);
    let responses = ResponsesBuilder::new()
        .response(
            "204",
            bare("Released; or released before, within the last minute; or out of the queue."),
        )
        .response("200", held_or_evicted);
    let codes = with_a_body(&[&NOT_HOLDER]).filter(|code| *code != Code::LeaseReleased);
    of_locks("release", "Release a lock")
        .description(Some(
            "Ends the claim, whether it holds or waits, or steps it back to `hold_count`. With `force`, \
             and the admin key where there are keys, takes the lock away from whoever holds it. The fields may be sent in a body too, but none is needed.",
        ))
        .parameter(fields::name())
        .parameter(fields::token_header("The token of the claim; not with `force`."))
        .parameters(Some(fields::query(&RELEASE_FIELDS)))
        .responses(refusals(responses, codes))
}

fn inspect() -> OperationBuilder {
    let lock = of::<LockBody<'_>>(
        "What the lock is doing; a lock that never was is free. Or a stream: first `state`, then what happens to the \
         lock.",
        Some(lock_example()),
    );
    let responses = ResponsesBuilder::new().response("200", or_watching(lock));
    reading(of_locks("inspect", "Look at a lock"), responses)
        .description(Some(
            "`Accept: text/event-stream` watches it for as long as the connection lives.",
        ))
        .parameter(fields::last_event_id())
}

fn inspect_head() -> OperationBuilder {
    let responses = ResponsesBuilder::new().response("200", bare("As for GET, without the body."));
    reading(
        of_locks("inspect_head", "Look at a lock, headers only"),
        responses,
    )
}

fn reading(operation: OperationBuilder, responses: ResponsesBuilder) -> OperationBuilder {
    let codes = [
        Code::InvalidName,
        Code::UnknownField,
        Code::MalformedBody,
        Code::TokenInQuery,
        Code::Unauthorized,
        Code::Forbidden,
        Code::RateLimited,
    ];
    operation
        .parameter(fields::name())
        .responses(refusals(responses, codes.into_iter().chain(OF_THE_SERVICE)))
}

fn list() -> OperationBuilder {
    let example = json!({"locks": [lock_example()], "next_page_token": ""});
    let responses = ResponsesBuilder::new().response(
        "200",
        of::<LockPage<'_>>("One page, in the order of names.", Some(example)),
    );
    let codes = OF_EVERY_LOCK_ROUTE.into_iter().chain(OF_THE_SERVICE);
    of_locks("list_locks", "List locks that are held or waited for")
        .description(Some(
            "No lock is listed twice, and none is missed that stays so.",
        ))
        .parameters(Some(fields::query(&LIST_FIELDS)))
        .responses(refusals(responses, codes))
}

pub(super) fn of_locks(id: &str, summary: &str) -> OperationBuilder {
    OperationBuilder::new()
        .tag("locks")
        .operation_id(Some(id))
        .summary(Some(summary))
        .securities(Some(guarded()))
}

fn grant(description: &str) -> ResponseBuilder {
    with_lease_headers(of::<GrantView<'_>>(
        description,
        Some(grant_example("orders/42")),
    ))
}

/// What may be wrong with a request about locks that may have a body, and what `codes` say.
pub(super) fn with_a_body(codes: &[&[Code]]) -> impl Iterator<Item = Code> + use<> {
    let codes = codes.concat().into_iter();
    codes
        .chain(OF_EVERY_LOCK_ROUTE)
        .chain(OF_BODIES)
        .chain(OF_THE_SERVICE)
}

pub(super) fn grant_example(name: &str) -> Value {
    let mut example = holder_example();
    let members = example.as_object_mut().expect("made as an object");
    let own = json!({
        "name": name, "token": TOKEN, "ttl_ms": 30_000, "waited_ms": 0, "replayed": false,
    });
    members.extend(own.as_object().expect("made as an object").clone());
    example
}

pub(super) fn lock_example() -> Value {
    json!({
        "name": "orders/42",
        "state": "held",
        "holders": [holder_example()],
        "holders_total": 1,
        "queue_length": 1,
        "queue_head": {
            "owner": "pod-2",
            "mode": "exclusive",
            "limit": null,
            "permits": 1,
            "waiting_since": "2026-01-01T00:00:10.000Z",
        },
        "free_in_ms": null,
    })
}

fn with_lease_headers(response: ResponseBuilder) -> ResponseBuilder {
    response.header("Lock-Token", token_header()).header(
        "Fencing-Token",
        number_header("Grows with every grant of the lock."),
    )
}

pub(super) fn or_just_the_token(response: ResponseBuilder) -> ResponseBuilder {
    let schema = ObjectBuilder::new().schema_type(Type::String);
    let token = ContentBuilder::new()
        .schema(Some(schema))
        .example(Some(json!(format!("{TOKEN}\n"))));
    response.content("text/plain", token.build())
}

pub(super) fn holder_example() -> Value {
    json!({
        "fencing_token": 1_767_225_600_000_000_u64,
        "mode": "exclusive",
        "limit": null,
        "permits": 1,
        "owner": "pod-1",
        "metadata": {"job": 7},
        "hold_count": 1,
        "acquired_at": "2026-01-01T00:00:00.000Z",
        "expires_at": "2026-01-01T00:00:30.000Z",
        "expires_in_ms": 30_000,
    })
}
