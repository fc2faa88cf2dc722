//! The operations on several locks at once, as described in the document.

use serde_json::{Value, json};
use utoipa::openapi::path::{HttpMethod, OperationBuilder};
use utoipa::openapi::response::{ResponseBuilder, ResponsesBuilder};

use super::locks::{NOT_HOLDER, REFUSED, TOKEN, UNCHANGED, grant_example, of_locks, with_a_body};
use super::responses::{bare, of, refusals, token_header};
use super::{Described, fields};
use crate::http::locks::RELEASE_SEVERAL_FIELDS;
use crate::http::problem::Code;
use crate::http::routes::Route;
use crate::http::wire::GrantsView;

pub(super) fn operations() -> Vec<Described> {
    vec![
        (Route::Locks, HttpMethod::Post, acquire().build()),
        (Route::Locks, HttpMethod::Put, renew().build()),
        (Route::Locks, HttpMethod::Delete, release().build()),
    ]
}

fn acquire() -> OperationBuilder {
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

fn renew() -> OperationBuilder {
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

fn release() -> OperationBuilder {
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
