//! What watches the service, while its clients have used up their requests.

use std::num::NonZeroU32;

use leasehold::config::RequestRate;
use leasehold::http::{Access, Failures};

use super::{FLOOD, by, file, greedy, ring};
use crate::api::support::{Api, get};

/// A rate of one request per second.
fn slow() -> RequestRate {
    RequestRate {
        per_second: NonZeroU32::MIN,
        burst: NonZeroU32::MIN,
    }
}

/// Otherwise whoever floods the service hides it from those who watch it.
#[tokio::test]
async fn the_metrics_are_read_however_many_requests_all_clients_send() {
    let open = Api::with(|settings| settings.requests = Some(slow())).await;
    let keys = ring(&file("waiters_max = 1"));
    let with_keys = Api::with(|settings| {
        settings.access = Access::Keys(keys, Failures::new(20));
        settings.requests = Some(slow());
    })
    .await;
    for api in [open, with_keys] {
        let mut refused = 0;
        for _ in 0..FLOOD {
            let metrics = api.send(by("quiet", get("/metrics"))).await;
            assert_eq!(metrics.status, 200, "{}", metrics.text());
            assert!(!metrics.headers.contains_key("ratelimit"));
            let other = api.send(greedy(get("/locks/a"))).await;
            refused += u32::from(other.status == 429);
            if refused == 20 {
                break;
            }
        }
        assert_eq!(refused, 20, "the clients use up the requests of all");
    }
}
