//! What the refusal of a claim says about the lock: its holders, for how long, and the place of the claim.

use std::time::Duration;

use serde_json::Value;

use crate::domain::duration;

/// The holders in a refusal, of one lock or of several.
fn all_holders(body: &Value) -> impl Iterator<Item = &Value> {
    let blocking = body["blocked_by"].as_array().into_iter().flatten();
    let all = std::iter::once(body).chain(blocking);
    all.filter_map(|refusal| refusal["holders"].as_array())
        .flatten()
}

/// The remaining time of the lease that ends first, unless it is renewed.
pub(super) fn held_for(body: &Value) -> String {
    let left = all_holders(body).filter_map(|holder| holder["expires_in_ms"].as_u64());
    left.min().map_or_else(String::new, |left| {
        let left = Duration::from_secs(left.div_ceil(1_000));
        format!(
            ", for another {} unless it is renewed",
            duration::format(left)
        )
    })
}

/// Who holds the lock, as far as the refusal says it.
pub(super) fn holders(body: &Value) -> String {
    let owners = all_holders(body).filter_map(|holder| holder["owner"].as_str());
    let mut owners: Vec<_> = owners.filter(|owner| !owner.is_empty()).collect();
    owners.sort_unstable();
    owners.dedup();
    match owners.as_slice() {
        [] => String::new(),
        [first, rest @ ..] if rest.len() > 2 => {
            format!(", held by {first} and {} others", rest.len())
        }
        owners => format!(", held by {}", owners.join(", ")),
    }
}

pub(super) fn place(body: &Value) -> String {
    match (body["position"].as_u64(), body["queue_length"].as_u64()) {
        (Some(position), Some(length)) => format!("; place {position} of {length}"),
        (Some(position), None) => format!("; place {position}"),
        (None, _) => String::new(),
    }
}
