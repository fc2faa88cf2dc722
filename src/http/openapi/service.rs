//! Health, metrics, version and documentation, as described in the document.

use serde_json::json;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::response::{ResponseBuilder, ResponsesBuilder};
use utoipa::openapi::{ObjectBuilder, Required, Type};

use super::responses::{any_object, bare, header, of, refusals, text};
use super::{Described, fields};
use crate::http::health::Health;
use crate::http::pages::{Index, Version};
use crate::http::problem::Code;
use crate::http::problem::{Page, Pages};
use crate::http::routes::Route;

pub(super) fn operations() -> Vec<Described> {
    let get = |route, operation: OperationBuilder| (route, HttpMethod::Get, operation.build());
    let document = any_object("The document.");
    let page = of::<Page>("What the problem means and what to do.", None);
    let pages = of::<Pages>("All problems.", None);
    vec![
        get(
            Route::Livez,
            plain("livez", "Liveness: whether the process runs", alive()),
        ),
        get(
            Route::Readyz,
            ready("readyz", "Readiness: whether the process can serve"),
        ),
        get(Route::Healthz, ready("healthz", "The same as readyz")),
        get(Route::Metrics, metrics()),
        get(
            Route::Version,
            plain(
                "version",
                "The version and build",
                of::<Version>("The build.", None),
            ),
        ),
        get(
            Route::Index,
            plain(
                "index",
                "Links to the other routes",
                of::<Index>("Links.", None),
            )
            .description(Some(
                "JSON, or a page for people if `Accept` prefers `text/html`.",
            )),
        ),
        get(Route::OpenApi, plain("openapi", "This document", document)),
        get(Route::Docs, docs()),
        get(
            Route::Ui,
            plain(
                "ui",
                "The locks, on a page for people",
                text("The page.", "text/html"),
            ),
        ),
        get(
            Route::Problems,
            plain("list_problems", "What each problem means", pages),
        ),
        get(Route::Problem, problem(page)),
    ]
}

fn alive() -> ResponseBuilder {
    of::<Health>("The process runs.", Some(json!({"status": "ok"})))
}

fn ready(id: &str, summary: &str) -> OperationBuilder {
    let unavailable = json!({"status": "unavailable"});
    let responses = ResponsesBuilder::new()
        .response(
            "200",
            of::<Health>("Send requests.", Some(json!({"status": "ok"}))),
        )
        .response(
            "503",
            of::<Health>("Send requests elsewhere.", Some(unavailable)),
        );
    plain(id, summary, alive())
        .description(Some(
            "Not ready while the process shuts down, before the first successful store operation, or while the store is \
             configured in a way that would lose leases. The probe itself never asks the store.",
        ))
        .parameters(Some(fields::query(&["verbose"])))
        .responses(refusals(
            responses,
            [
                Code::UnknownField,
                Code::InvalidField,
                Code::MalformedBody,
                Code::Forbidden,
            ],
        ))
}

fn metrics() -> OperationBuilder {
    let metrics = text("Metrics in the Prometheus text format.", "text/plain");
    let responses = ResponsesBuilder::new().response("200", metrics);
    described("metrics", "Metrics for Prometheus", alive()).responses(refusals(
        responses,
        [
            Code::Unauthorized,
            Code::Forbidden,
            Code::RateLimited,
            Code::IssuerUnavailable,
        ],
    ))
}

fn docs() -> OperationBuilder {
    let moved = bare("Redirects to the page.").header("Location", header("The path of the page."));
    plain("docs", "This document as an interactive page", alive()).responses(refusals(
        ResponsesBuilder::new().response("303", moved),
        [Code::Forbidden],
    ))
}

fn problem(page: ResponseBuilder) -> OperationBuilder {
    let codes = Code::ALL.iter().map(|code| code.as_str());
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(codes));
    let code = ParameterBuilder::new()
        .name("code")
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some("The code of a problem."))
        .schema(Some(schema));
    let page = ResponsesBuilder::new().response("200", page);
    plain("problem", "What a problem means and what to do", alive())
        .description(Some("JSON, or HTML or plain text if `Accept` asks for it."))
        .parameter(code)
        .responses(refusals(page, [Code::NotFound, Code::Forbidden]))
}

/// An operation without fields and without a key. It can be refused only as a cross-site request or for an unknown
/// host.
fn plain(id: &str, summary: &str, answer: ResponseBuilder) -> OperationBuilder {
    described(id, summary, answer).securities(Some([]))
}

fn described(id: &str, summary: &str, answer: ResponseBuilder) -> OperationBuilder {
    OperationBuilder::new()
        .tag("service")
        .operation_id(Some(id))
        .summary(Some(summary))
        .responses(refusals(
            ResponsesBuilder::new().response("200", answer),
            [Code::Forbidden],
        ))
}
