//! What browsers are told about our pages: what they may load, and that nobody else shows them in a frame. What the pages
//! are is elsewhere.

use axum::http::HeaderMap;
use axum::http::header::{CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY};

/// A page that is only text: it loads nothing and sends nothing.
pub(super) const TEXT_ONLY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// A page with scripts: only those that we serve run, and they talk only to us. Icons are part of its style sheet.
pub(super) const OWN_SCRIPTS: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Adds the policy to the headers of a page. No page tells others where its reader came from, because names of locks are
/// part of our addresses.
pub(super) fn confine(headers: &mut HeaderMap, policy: &'static str) {
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
}
