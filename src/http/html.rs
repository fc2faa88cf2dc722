//! Security headers for HTML pages: what a page may load, and that no other site may show it in a frame. The pages
//! themselves are elsewhere.

use axum::http::HeaderMap;
use axum::http::header::{CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY};

/// A page that is only text: it loads nothing and sends nothing.
pub(super) const TEXT_ONLY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// A page with scripts: only our own scripts run, and they connect only to us. `data:` is for icons in the style sheet.
pub(super) const OWN_SCRIPTS: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Adds the policy to the headers of a page, and `no-referrer`, because our URLs contain lock names.
pub(super) fn confine(headers: &mut HeaderMap, policy: &'static str) {
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
}
