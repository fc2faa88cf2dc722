//! The lock of a Terraform state, as described in the document. OpenAPI cannot name the methods `LOCK` and `UNLOCK`, which
//! Terraform uses unless it is configured otherwise.

use serde_json::json;
use utoipa::ToSchema as _;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, Parameter};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::response::ResponsesBuilder;
use utoipa::openapi::{ContentBuilder, Ref, Required};

use super::locks::{NOT_HOLDER, REFUSED, of_locks, with_a_body};
use super::responses::{bare, of, refusals};
use super::{Described, fields};
use crate::http::locks::{LockInfo, TERRAFORM_FIELDS};
use crate::http::problem::Code;
use crate::http::routes::Route;
use crate::http::wire::GrantView;

pub(super) fn operations() -> Vec<Described> {
    vec![
        (Route::Terraform, HttpMethod::Post, lock().build()),
        (Route::Terraform, HttpMethod::Delete, unlock().build()),
    ]
}

fn lock() -> OperationBuilder {
    let held = of::<LockInfo>(
        "Another claim holds the lock: the lock info of the holder, as far as known. `ID` is followed by a sentence, because \
         Terraform prints nothing else.",
        None,
    );
    let responses = ResponsesBuilder::new().response(
        "200",
        of::<GrantView<'_>>(
            "The lock was granted, or the same run held it already.",
            None,
        ),
    );
    let codes = with_a_body(&[&REFUSED]).filter(|code| code.facts().status.as_u16() != 423);
    let responses = refusals(responses, codes);
    let mut responses = responses.build();
    responses
        .responses
        .insert("423".to_owned(), held.build().into());
    of_locks("terraform_lock", "Lock a Terraform state")
        .description(Some(
            "For the `http` backend of Terraform, with the method `LOCK` or `POST`. It is the lock `name`, and the `ID` of \
             the run is its token.",
        ))
        .parameter(fields::name())
        .parameters(Some(query()))
        .request_body(Some(body()))
        .responses(responses)
}

fn unlock() -> OperationBuilder {
    let responses = ResponsesBuilder::new().response(
        "200",
        bare("The lock was released, or without a body, taken away from its holders."),
    );
    let not_released = [Code::LeaseReleased, Code::TokenMissing];
    let codes = with_a_body(&[&NOT_HOLDER]).filter(move |code| !not_released.contains(code));
    of_locks("terraform_unlock", "Unlock a Terraform state")
        .description(Some(
            "With the method `UNLOCK` or `DELETE`. With the lock info of the run as its body, it releases the lock. Without a \
             body, which is what `terraform force-unlock` sends, it evicts the holders; that needs the admin key if keys are \
             configured.",
        ))
        .parameter(fields::name())
        .parameters(Some(query()))
        .responses(refusals(responses, codes))
}

fn query() -> Vec<Parameter> {
    let mut parameters = fields::query(&TERRAFORM_FIELDS);
    for parameter in &mut parameters {
        parameter.description = Some(match parameter.name.as_str() {
            "ttl" => "How long the lease lasts, since Terraform cannot renew it. Default: the longest that is allowed, 1h unless \
                      configured otherwise."
                .to_owned(),
            _ => "How long to wait for the lock. Default: 0s.".to_owned(),
        });
    }
    parameters
}

fn body() -> RequestBody {
    let info = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name(LockInfo::name())))
        .example(Some(json!({
            "ID": "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b",
            "Operation": "OperationTypeApply",
            "Info": "",
            "Who": "root@build-7",
            "Version": "1.11.4",
            "Created": "2026-01-01T00:00:00.000000000Z",
            "Path": "",
        })));
    RequestBodyBuilder::new()
        .description(Some("The lock info that Terraform sends about its run."))
        .required(Some(Required::True))
        .content("application/json", info.build())
        .build()
}
