//! `/problems`: what each problem means and what to do about it, for programs and for people.

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
    /// Where this is served, and what problems carry as their `type`.
    r#type: String,
    /// The code that programs go by.
    code: &'static str,
    /// The status of answers with this problem.
    status: u16,
    /// A few words.
    title: &'static str,
    /// What has happened.
    meaning: &'static str,
    /// What to do.
    what_to_do: &'static str,
}

/// Every problem.
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
    // The raw path: codes have no letter that could be percent-encoded, and no decoding can then fail.
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
