//! The operations on one lock, and the listing, as described in the document.

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::path::{HttpMethod, OperationBuilder};
use utoipa::openapi::response::{ResponseBuilder, ResponsesBuilder};
use utoipa::openapi::{ContentBuilder, OneOfBuilder, Ref};

use super::responses::{
    OF_BODIES, OF_EVERY_LOCK_ROUTE, OF_THE_SERVICE, bare, header, number_header, of, refusals,
    token_header,
};
use super::{Described, fields};
use crate::http::locks::{LIST_FIELDS, RELEASE_FIELDS};
use crate::http::problem::Code;
use crate::http::routes::Route;
use crate::http::wire::{EvictedBody, GrantView, LockBody, LockPage};

pub(super) const TOKEN: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";
/// The codes of a refused acquire.
pub(super) const REFUSED: [Code; 12] = [
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
    Code::StoreFull,
];
/// The codes of operations that need a claim that holds.
pub(super) const NOT_HOLDER: [Code; 7] = [
    Code::InvalidName,
    Code::TokenMissing,
    Code::LeaseReleased,
    Code::LeaseExpired,
    Code::LeaseLost,
    Code::LeaseEvicted,
    Code::TokenUnknown,
];
/// The codes of a renewal that would change the claim in a way that is not allowed.
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
    let granted =
        grant("The lock was granted.").header("Location", header("The path of the lock."));
    let again = grant(
        "The claim held the lock already: the same lease again, or with a higher hold count.",
    );
    let responses = ResponsesBuilder::new()
        .response("201", granted)
        .response("200", again);
    let example = json!({"ttl": "30s", "wait": "10s", "owner": "pod-1", "metadata": {"job": 7}});
    of_locks("acquire", "Acquire a lock")
        .description(Some(
            "Grants the lock if it is available, or waits for it in a queue. Propose a token to be able to repeat the request \
             safely after any failure.\n\n`Accept: text/plain` returns only the token. `Accept: text/event-stream` holds the \
             lock for as long as the connection lives: the response is 200, and a stream of `queued` (a `QueuePosition`), \
             `acquired` and `renewed` (a `Grant`), and at its end `lost`, `refused` or `draining` (a `Problem`).",
        ))
        .parameter(fields::name())
        .parameter(fields::token_header("The token of the claim, proposed by the client or from an earlier response."))
        .request_body(Some(fields::ACQUIRE.body(example)))
        .responses(refusals(responses, with_a_body(&[&REFUSED])))
}

fn renew() -> OperationBuilder {
    let responses = ResponsesBuilder::new().response("200", grant("The lease was renewed."));
    of_locks("renew", "Renew a lease")
        .description(Some(
            "Restarts the TTL. Never creates a lease. With `mode=shared`, an exclusive claim becomes a shared one, so that \
             others can share the lock.",
        ))
        .parameter(fields::name())
        .parameter(fields::token_header(
            "The token of the claim, unless it is in the body.",
        ))
        .request_body(Some(fields::RENEW.body(json!({"ttl": "1m"}))))
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
        "The hold count was reduced to `hold_count`; the headers are those of a grant. Or, with `force`, the evicted holders.",
    ))
    .content("application/json", either);
    let responses = ResponsesBuilder::new()
        .response(
            "204",
            bare("The claim was released or left the queue, now or by an earlier request within the last minute."),
        )
        .response("200", held_or_evicted);
    let codes = with_a_body(&[&NOT_HOLDER]).filter(|code| *code != Code::LeaseReleased);
    of_locks("release", "Release a lock")
        .description(Some(
            "Ends the claim, whether it holds the lock or waits for it, or reduces its hold count to `hold_count`. With \
             `force`, and the admin key if keys are configured, evicts all holders. The fields may also be sent in a body.",
        ))
        .parameter(fields::name())
        .parameter(fields::token_header("The token of the claim; not with `force`."))
        .parameters(Some(fields::query(&RELEASE_FIELDS)))
        .responses(refusals(responses, codes))
}

fn inspect() -> OperationBuilder {
    let lock = with_state(of::<LockBody<'_>>(
        "The state of the lock; a lock that was never used is free.",
        Some(lock_example()),
    ));
    let responses = ResponsesBuilder::new().response("200", lock);
    reading(of_locks("inspect", "Inspect a lock"), responses)
        .description(Some(
            "`Accept: text/event-stream` watches the lock for as long as the connection lives: the response is a stream, \
             first `state` (a `Lock`), then the events of the lock, as from `/events`.",
        ))
        .parameter(fields::last_event_id())
}

fn inspect_head() -> OperationBuilder {
    let responses =
        ResponsesBuilder::new().response("200", with_state(bare("As for GET, without the body.")));
    reading(
        of_locks("inspect_head", "Inspect a lock, headers only"),
        responses,
    )
}

fn with_state(response: ResponseBuilder) -> ResponseBuilder {
    let state = header("The state of the lock: `free`, `held` or `cooling`; not with a stream.");
    response.header("Lock-State", state)
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
            "No lock is listed twice, and every lock that is held or waited for during the whole listing is listed.",
        ))
        .parameters(Some(fields::query(&LIST_FIELDS)))
        .responses(refusals(responses, codes))
}

pub(super) fn of_locks(id: &str, summary: &str) -> OperationBuilder {
    OperationBuilder::new()
        .tag("locks")
        .operation_id(Some(id))
        .summary(Some(summary))
}

fn grant(description: &str) -> ResponseBuilder {
    with_lease_headers(of::<GrantView<'_>>(
        description,
        Some(grant_example("orders/42")),
    ))
}

/// The given codes, and those of every request on locks that may have a body.
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
        number_header("Increases with every grant of the lock."),
    )
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
