//! The operations on one lock or several, the listing, and the stream of events, as described in the document.

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::path::{HttpMethod, OperationBuilder};
use utoipa::openapi::response::{ResponseBuilder, ResponsesBuilder};
use utoipa::openapi::{Content, ContentBuilder, ObjectBuilder, OneOfBuilder, Ref, Type};

use super::responses::{
    OF_BODIES, OF_EVERY_LOCK_ROUTE, OF_THE_SERVICE, bare, header, number_header, of, refusals,
    token_header,
};
use super::{Described, fields};
use crate::http::events::EVENTS_FIELDS;
use crate::http::locks::{EVENT_STREAM, LIST_FIELDS, RELEASE_FIELDS, RELEASE_SEVERAL_FIELDS};
use crate::http::problem::Code;
use crate::http::routes::Route;
use crate::http::wire::{EvictedBody, GrantView, GrantsView, LockBody, LockPage};

/// An example of the stream format; the schema describes only the data.
const WRITTEN: &str =
    "\n\n```text\nid: 1767225630000000\nevent: released\ndata: {\"name\":\"orders/42\",…}\n\n```";
pub(super) const TOKEN: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";
/// The codes of a refused acquire.
pub(super) const REFUSED: [Code; 13] = [
    Code::InvalidName,
    Code::ClaimEnded,
    Code::ClaimMismatch,
    Code::LimitMismatch,
    Code::UpgradeUnsupported,
    Code::LockHeld,
    Code::LockCooling,
    Code::WaitTimeout,
    Code::TooManyWaiters,
    Code::QuotaExceeded,
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
const UNCHANGED: [Code; 3] = [
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
        (Route::Locks, HttpMethod::Post, acquire_several().build()),
        (Route::Locks, HttpMethod::Put, renew_several().build()),
        (Route::Locks, HttpMethod::Delete, release_several().build()),
        (Route::Events, HttpMethod::Get, events().build()),
        (Route::Events, HttpMethod::Head, events_head().build()),
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
        Code::QuotaExceeded,
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
    let codes = of_reading_many();
    of_locks("list_locks", "List locks that are held or waited for")
        .description(Some(
            "No lock is listed twice, and every lock that is held or waited for during the whole listing is listed. \
             While slots of a Redis Cluster move, the answer waits for them, and is 503 if that takes too long.",
        ))
        .parameters(Some(fields::query(&LIST_FIELDS)))
        .responses(refusals(responses, codes))
}

fn acquire_several() -> OperationBuilder {
    let responses = ResponsesBuilder::new()
        .response("201", grants("All of the locks were granted."))
        .response(
            "200",
            grants(
                "The claim held them already: the same leases again, or with a higher hold count.",
            ),
        );
    let example = with_names(json!({"ttl": "30s", "wait": "5s"}));
    of_locks("acquire_several", "Acquire several locks, all or none")
        .description(Some(
            "Grants all of the locks in one step, or none, under one token. The names may be in any order: it cannot cause a \
             deadlock. A refusal lists the conflicting locks in `blocked_by`. `Accept: text/plain` returns only the token.",
        ))
        .parameter(fields::token_header(
            "The token of the claim, proposed by the client or from an earlier response.",
        ))
        .request_body(Some(fields::ACQUIRE_SEVERAL.body(example)))
        .responses(refusals(responses, with_a_body(&[&REFUSED])))
}

fn renew_several() -> OperationBuilder {
    let responses = ResponsesBuilder::new().response("200", grants("The leases were renewed."));
    of_locks("renew_several", "Renew several leases, all or none")
        .description(Some(
            "Renews the leases on all of the locks, or none: if any lease is lost, nothing is renewed, and `lost` lists the \
             lost ones.",
        ))
        .parameter(fields::token_header(
            "The token of the claim, unless it is in the body.",
        ))
        .request_body(Some(fields::RENEW_SEVERAL.body(with_names(json!({"ttl": "1m"})))))
        .responses(refusals(
            responses,
            with_a_body(&[&NOT_HOLDER, &UNCHANGED]),
        ))
}

fn release_several() -> OperationBuilder {
    let responses = ResponsesBuilder::new()
        .response(
            "204",
            bare("The claim was released or left the queues, now or by an earlier request within the last minute."),
        )
        .response("200", grants("The hold count was reduced to `hold_count`."));
    let codes = with_a_body(&[&NOT_HOLDER]).filter(|code| *code != Code::LeaseReleased);
    of_locks("release_several", "Release several locks")
        .description(Some(
            "Ends the claim on each of the locks. If some leases are lost, the other locks are still released, and `lost` \
             lists the lost ones. The fields may also be sent in a body.",
        ))
        .parameter(fields::names())
        .parameter(fields::token_header("The token of the claim."))
        .parameters(Some(fields::query(&RELEASE_SEVERAL_FIELDS[1..])))
        .responses(refusals(responses, codes))
}

fn grants(description: &str) -> ResponseBuilder {
    let example = json!({
        "token": TOKEN, "locks": [grant_example("acct/1"), grant_example("acct/2")],
    });
    of::<GrantsView<'_>>(description, Some(example)).header("Lock-Token", token_header())
}

fn with_names(mut fields: Value) -> Value {
    fields["names"] = json!(["acct/1", "acct/2"]);
    fields
}

/// OpenAPI 3.1 cannot describe streams. Generated clients get the text, and the description says what is in it.
fn content() -> Content {
    let text = ObjectBuilder::new().schema_type(Type::String);
    ContentBuilder::new().schema(Some(text)).build()
}

fn events() -> OperationBuilder {
    let description = format!(
        "Events with ids: `acquired`, `renewed`, `released`, `expired`, `evicted` and `queued`; and `reset`, with \
         empty data, where events may be missing: the client should then read the state of the locks again. The data is a \
         `LockEvent`.{WRITTEN}"
    );
    let stream = bare(&description).content(EVENT_STREAM, content());
    watching(of_locks("watch", "Watch lock events"), stream)
        .description(Some(
            "Lasts as long as the connection lives. A client that reconnects sends the id of the last event that it \
             received.",
        ))
        .parameter(fields::last_event_id())
}

fn events_head() -> OperationBuilder {
    let operation = of_locks("watch_head", "Watch locks, headers only");
    watching(operation, bare("As for GET, without the stream."))
}

fn watching(operation: OperationBuilder, stream: ResponseBuilder) -> OperationBuilder {
    let codes = of_reading_many();
    operation
        .parameters(Some(fields::query(&EVENTS_FIELDS)))
        .responses(refusals(
            ResponsesBuilder::new().response("200", stream),
            codes,
        ))
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

/// The codes of a request that reads many locks.
fn of_reading_many() -> impl Iterator<Item = Code> {
    let codes = OF_EVERY_LOCK_ROUTE.into_iter().chain(OF_THE_SERVICE);
    codes.chain([Code::QuotaExceeded])
}

/// The given codes, and those of every request on locks that may have a body.
pub(super) fn with_a_body(codes: &[&[Code]]) -> impl Iterator<Item = Code> + use<> {
    let codes = codes.concat().into_iter();
    codes
        .chain(OF_EVERY_LOCK_ROUTE)
        .chain(OF_BODIES)
        .chain(OF_THE_SERVICE)
}

fn grant_example(name: &str) -> Value {
    let mut example = holder_example();
    let members = example.as_object_mut().expect("made as an object");
    let own = json!({
        "name": name, "token": TOKEN, "ttl_ms": 30_000, "waited_ms": 0, "replayed": false,
    });
    members.extend(own.as_object().expect("made as an object").clone());
    example
}

fn lock_example() -> Value {
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
