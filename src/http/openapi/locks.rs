//! The operations on locks, as the document has them.

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::path::{HttpMethod, OperationBuilder};
use utoipa::openapi::response::{ResponseBuilder, ResponsesBuilder};
use utoipa::openapi::{ContentBuilder, ObjectBuilder, OneOfBuilder, Ref, Type};

use super::responses::{
    OF_BODIES, OF_EVERY_LOCK_ROUTE, OF_THE_SERVICE, bare, header, number_header, of, refusals,
    token_header,
};
use super::{Described, fields, guarded};
use crate::http::locks::{ACQUIRE_FIELDS, LIST_FIELDS, RELEASE_FIELDS, RENEW_FIELDS};
use crate::http::problem::Code;
use crate::http::route::Route;
use crate::http::wire::{Evicted, Grant, LockBody, LockPage};

const TOKEN: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";
const NOT_HOLDER: [Code; 5] = [
    Code::ClaimEnded,
    Code::LeaseExpired,
    Code::LeaseLost,
    Code::LeaseEvicted,
    Code::TokenUnknown,
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
        "You held it already: the same lease again, or deeper.",
    ));
    let responses = ResponsesBuilder::new()
        .response("201", granted)
        .response("200", again);
    let codes = [
        Code::InvalidName,
        Code::ClaimEnded,
        Code::LockHeld,
        Code::LockCooling,
        Code::Recovering,
    ];
    let codes = codes
        .into_iter()
        .chain(OF_EVERY_LOCK_ROUTE)
        .chain(OF_BODIES)
        .chain(OF_THE_SERVICE);
    let example = json!({"ttl": "30s", "owner": "pod-1", "metadata": {"job": 7}});
    of_locks("acquire", "Acquire a lock")
        .description(Some(
            "Grants the lock if nobody holds it. To be able to repeat the request whatever happens, propose a token. \
             `Accept: text/plain` answers just the token.",
        ))
        .parameter(fields::name())
        .parameter(fields::token_header("The token of the claim, proposed by the client or from an earlier answer."))
        .parameters(Some(fields::query(&ACQUIRE_FIELDS)))
        .request_body(Some(fields::body(&ACQUIRE_FIELDS, example)))
        .responses(refusals(responses, codes))
}

fn renew() -> OperationBuilder {
    let responses = ResponsesBuilder::new().response("200", grant("Yours, and for longer now."));
    let codes = [Code::InvalidName, Code::TokenMissing]
        .into_iter()
        .chain(NOT_HOLDER);
    let codes = codes
        .chain(OF_EVERY_LOCK_ROUTE)
        .chain(OF_BODIES)
        .chain(OF_THE_SERVICE);
    of_locks("renew", "Renew a lease")
        .description(Some("The TTL counts anew from now. Never creates a lease."))
        .parameter(fields::name())
        .parameter(fields::token_header(
            "The token of the claim, unless the body has it.",
        ))
        .parameters(Some(fields::query(&RENEW_FIELDS)))
        .request_body(Some(fields::body(&RENEW_FIELDS, json!({"ttl": "1m"}))))
        .responses(refusals(responses, codes))
}

fn release() -> OperationBuilder {
    let either = OneOfBuilder::new()
        .item(Ref::from_schema_name(Grant::name()))
        .item(Ref::from_schema_name(Evicted::name()));
    let either = ContentBuilder::new().schema(Some(either)).build();
    let held_or_evicted = with_lease_headers(bare(
        "Stepped back to `hold_count`, with the headers of a grant; or, with `force`, who was evicted.",
    ))
    .content("application/json", either);
    let responses = ResponsesBuilder::new()
        .response(
            "204",
            bare("Released; or released before, within the last minute."),
        )
        .response("200", held_or_evicted);
    let codes = [Code::InvalidName, Code::TokenMissing]
        .into_iter()
        .chain(NOT_HOLDER);
    let codes = codes
        .chain(OF_EVERY_LOCK_ROUTE)
        .chain(OF_BODIES)
        .chain(OF_THE_SERVICE);
    let codes = codes.filter(|code| *code != Code::ClaimEnded);
    of_locks("release", "Release a lock")
        .description(Some(
            "Ends the claim, or steps it back to `hold_count`. With `force`, takes the lock away from whoever holds \
             it. The fields may be sent in a body too, but none is needed.",
        ))
        .parameter(fields::name())
        .parameter(fields::token_header("The token of the claim; not with `force`."))
        .parameters(Some(fields::query(&RELEASE_FIELDS)))
        .responses(refusals(responses, codes))
}

fn inspect() -> OperationBuilder {
    let example = json!({
        "name": "orders/42", "state": "held", "holders": [holder_example()], "queue_length": 0, "free_in_ms": null,
    });
    let responses = ResponsesBuilder::new().response(
        "200",
        of::<LockBody<'_>>(
            "What the lock is doing; a lock that never was is free.",
            Some(example),
        ),
    );
    reading(of_locks("inspect", "Look at a lock"), responses)
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
    ];
    operation
        .parameter(fields::name())
        .responses(refusals(responses, codes.into_iter().chain(OF_THE_SERVICE)))
}

fn list() -> OperationBuilder {
    let lock = json!({
        "name": "orders/42", "state": "held", "holders": [holder_example()], "queue_length": 0, "free_in_ms": null,
    });
    let example = json!({"locks": [lock], "next_page_token": ""});
    let responses = ResponsesBuilder::new().response(
        "200",
        of::<LockPage<'_>>("One page, in the order of names.", Some(example)),
    );
    let codes = OF_EVERY_LOCK_ROUTE.into_iter().chain(OF_THE_SERVICE);
    of_locks("list_locks", "List held locks")
        .description(Some(
            "No lock is listed twice, and none is missed that stays held.",
        ))
        .parameters(Some(fields::query(&LIST_FIELDS)))
        .responses(refusals(responses, codes))
}

fn of_locks(id: &str, summary: &str) -> OperationBuilder {
    OperationBuilder::new()
        .tag("locks")
        .operation_id(Some(id))
        .summary(Some(summary))
        .securities(Some(guarded()))
}

fn grant(description: &str) -> ResponseBuilder {
    let mut example = holder_example();
    let members = example.as_object_mut().expect("made as an object");
    let own = json!({
        "name": "orders/42", "token": TOKEN, "ttl_ms": 30_000, "waited_ms": 0, "replayed": false,
    });
    members.extend(own.as_object().expect("made as an object").clone());
    with_lease_headers(of::<Grant<'_>>(description, Some(example)))
}

fn with_lease_headers(response: ResponseBuilder) -> ResponseBuilder {
    response.header("Lock-Token", token_header()).header(
        "Fencing-Token",
        number_header("Grows with every grant of the lock."),
    )
}

fn or_just_the_token(response: ResponseBuilder) -> ResponseBuilder {
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
