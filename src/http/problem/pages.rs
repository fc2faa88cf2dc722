//! `/problems`: what each problem means and what to do about it, as JSON, HTML or plain text.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Code, Problem};
use crate::http::html;
use crate::http::negotiate;
use crate::http::wire::json;

/// What a problem means and what to do about it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProblemPage)]
pub(crate) struct Page {
    /// The path of this page, which is the `type` of the problem.
    r#type: String,
    /// The code for programs to check.
    code: &'static str,
    /// The status of responses with this problem.
    status: u16,
    /// A short summary.
    title: &'static str,
    /// What happened.
    meaning: &'static str,
    /// What to do.
    what_to_do: &'static str,
}

/// All problems.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProblemPages)]
pub(crate) struct Pages {
    problems: Vec<Page>,
}

impl Page {
    fn of(code: Code) -> Self {
        let facts = code.facts();
        Self {
            r#type: format!("/problems/{}", facts.code),
            code: facts.code,
            status: facts.status.as_u16(),
            title: facts.title,
            meaning: facts.meaning,
            what_to_do: facts.remedy,
        }
    }

    fn text(&self) -> String {
        format!(
            "{} ({}, {})\n\n{}\n{}\n",
            self.title, self.status, self.code, self.meaning, self.what_to_do
        )
    }

    fn html(&self) -> String {
        let [title, meaning, what_to_do] = [self.title, self.meaning, self.what_to_do].map(escaped);
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
             <h1>{title}</h1><p><code>{}</code>, status {}</p><p>{meaning}</p><p>{what_to_do}</p></html>\n",
            self.code, self.status
        )
    }
}

/// `GET /problems`
pub(crate) async fn list() -> Response {
    let problems = Code::ALL.iter().copied().map(Page::of).collect();
    json(StatusCode::OK, "application/json", &Pages { problems })
}

/// `GET /problems/{code}`
pub(crate) async fn page(request: Request) -> Result<Response, Problem> {
    // The raw path is enough, because codes need no percent-encoding; and so no decoding can fail.
    let code = request
        .uri()
        .path()
        .rsplit('/')
        .next()
        .and_then(Code::parse);
    let page = Page::of(code.ok_or_else(Problem::not_found)?);
    Ok(written(request.headers(), &page))
}

fn written(headers: &HeaderMap, page: &Page) -> Response {
    let offers = ["application/json", "text/html", "text/plain"];
    let (content_type, body) = match negotiate::preferred(headers, &offers) {
        "text/html" => ("text/html; charset=utf-8", page.html()),
        "text/plain" => ("text/plain; charset=utf-8", page.text()),
        _ => return json(StatusCode::OK, "application/json", page),
    };
    let mut response = Response::new(Body::from(body));
    if content_type.starts_with("text/html") {
        html::confine(response.headers_mut(), html::TEXT_ONLY);
    }
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
