//! Content negotiation by `Accept` (RFC 9110, 12.5.1), without media type parameters.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

/// The offered type that `Accept` prefers: by `q`, then by the order of the header. The first offer is the default,
/// also for clients that accept none of the offers: a response in another type is better than none.
pub(super) fn preferred(headers: &HeaderMap, offers: &[&'static str]) -> &'static str {
    // Fast path: most clients send no `Accept`.
    if !headers.contains_key(ACCEPT) {
        return offers[0];
    }
    let mut best = (0, offers[0]);
    for value in headers.get_all(ACCEPT) {
        let ranges = value.to_str().unwrap_or_default().split(',');
        for (range, quality) in ranges.filter_map(range) {
            let offer = offers.iter().find(|offer| matches(range, offer));
            if let Some(&offer) = offer
                && quality > best.0
            {
                best = (quality, offer);
            }
        }
    }
    best.1
}

/// A media range and its quality in thousandths.
fn range(text: &str) -> Option<(&str, u32)> {
    let mut parts = text.split(';').map(str::trim);
    let range = parts.next().filter(|range| !range.is_empty())?;
    let quality = parts
        .find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")))
        .map_or(Some(1.0), |quality| quality.parse::<f32>().ok())?;
    // The clamp keeps it in range, and `q` has at most three decimals, so the cast loses nothing.
    Some((range, (quality.clamp(0.0, 1.0) * 1000.0) as u32))
}

fn matches(range: &str, offer: &str) -> bool {
    if range == "*/*" || range.eq_ignore_ascii_case(offer) {
        return true;
    }
    let Some((kind, "*")) = range.split_once('/') else {
        return false;
    };
    offer
        .split_once('/')
        .is_some_and(|(offered, _)| offered.eq_ignore_ascii_case(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_gets_the_type_that_it_prefers() {
        let offers = ["application/json", "text/plain"];
        for (accept, expected) in [
            ("", "application/json"),
            ("*/*", "application/json"),
            ("image/png", "application/json"),
            ("text/plain", "text/plain"),
            ("Text/Plain", "text/plain"),
            ("text/plain, */*", "text/plain"),
            ("*/*, text/plain", "application/json"),
            ("application/json, text/plain", "application/json"),
            ("application/json;q=0.5, text/plain", "text/plain"),
            ("text/plain;q=0, */*", "application/json"),
            ("text/*", "text/plain"),
            ("text/plain;q=much", "application/json"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().expect("a header value"));
            assert_eq!(preferred(&headers, &offers), expected, "{accept}");
        }
    }
}
